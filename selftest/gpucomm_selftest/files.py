"""Files that a person asked for: written whole or not at all, and refused before the run begins."""

import os
import tempfile
from pathlib import Path

from gpucomm_selftest.errors import UsageError


def check_writable(path: Path, option: str) -> None:
    """Raises UsageError where `path` could not be written at the end of the run."""
    folder = path.parent
    why = None
    if "\0" in str(path):
        raise UsageError(f"{option} {str(path)!r}: no name of a file; name one")
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"{folder} is no folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "no permission to write there"
    if why:
        raise UsageError(f"{option} {path}: {why}; name a file that can be written")


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Puts `content` there at once: a reader sees the old file or the new one. Raises OSError."""
    if path.exists() and not path.is_file():
        # A pipe or a device, such as /dev/stderr, is written and never replaced.
        path.write_bytes(content)
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
