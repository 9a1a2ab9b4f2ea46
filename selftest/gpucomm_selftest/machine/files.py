"""Small files of /proc and /sys: their text, or nothing where they cannot be read."""

from pathlib import Path


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number_of(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdigit() else None


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
