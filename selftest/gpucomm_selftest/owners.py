"""Who brought a file: the wheel or distribution package that installed it, and the variable that
makes the loader take it.

Reads the records that installers leave; it must not ask a package manager and must not judge.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# A variable that makes the loader take a file which the program did not ask for by itself.
PRELOAD, LIBRARY_PATH = "LD_PRELOAD", "LD_LIBRARY_PATH"


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package that says it installed the file."""

    kind: str  # wheel or distribution
    name: str
    version: str
    size: int | None  # of the file when it was installed, where the package recorded it

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name} {self.version}".rstrip()


def _record_size(record: bytes, relative: str) -> tuple[bool, int | None]:
    """Whether a RECORD has the file, and the size that it had."""
    for begin in (b"\n" + relative.encode() + b",", b'\n"' + relative.encode() + b'",'):
        at = (b"\n" + record).find(begin)
        if at >= 0:
            line = record[at : record.find(b"\n", at + 1) if b"\n" in record[at + 1 :] else None]
            size = line.strip().rpartition(b",")[2]
            return True, int(size) if size.isdigit() else None
    return False, None


def wheels_of(path: Path) -> list[Package]:
    """The installed wheels whose RECORD has this file: two where they share a path."""
    found = []
    for site in path.parents:
        if site.name not in ("site-packages", "dist-packages"):
            continue
        relative = str(path.relative_to(site))
        for info in sorted(site.glob("*.dist-info")):
            try:
                record = (info / "RECORD").read_bytes()
            except OSError:
                continue  # a distribution's package: dpkg knows it
            has, size = _record_size(record, relative)
            if has:
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                name = name.replace("_", "-")
                found.append(Package(kind="wheel", name=name, version=version, size=size))
    return found


def distribution_packages(paths: Iterable[Path], root: Path = Path("/")) -> dict[Path, Package]:
    """The Debian package of each file, of those that have one."""
    wanted: dict[bytes, Path] = {}
    for path in paths:
        for name in {str(path), str(path).removeprefix("/usr")}:
            # Before and after /lib became a link to /usr/lib, its files were listed differently.
            wanted[f"\n{name}\n".encode()] = path
    found: dict[Path, Package] = {}
    if not wanted:
        return found
    for listed in sorted((root / "var/lib/dpkg/info").glob("*.list")):
        try:
            lines = b"\n" + listed.read_bytes()
        except OSError:
            continue
        for line, path in wanted.items():
            if line in lines:
                name = listed.stem.partition(":")[0]
                version = _dpkg_version(root, name)
                found[path] = Package(kind="distribution", name=name, version=version, size=None)
    return found


def _dpkg_version(root: Path, name: str) -> str:
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    _, _, entry = f"\n{text}".partition(f"\nPackage: {name}\n")
    for line in entry.partition("\n\n")[0].splitlines():
        if line.startswith("Version: "):
            return line.removeprefix("Version: ").strip()
    return ""


def preload_entries(environ: Mapping[str, str]) -> list[str]:
    """The loader takes both separators."""
    return environ.get(PRELOAD, "").replace(":", " ").split()


def not_preloaded(environ: Mapping[str, str], mapped: Iterable[str]) -> list[str]:
    """What LD_PRELOAD names and the loader has not loaded: it says so on stderr, and goes on."""
    paths = [Path(one) for one in mapped]
    names = {path.name for path in paths}
    return [
        entry
        for entry in preload_entries(environ)
        if not (
            any(same_file(Path(entry), path) for path in paths) if "/" in entry else entry in names
        )
    ]


def pinned(text: str) -> dict[str, str]:
    """The versions that a file of constraints asks for: `name==version` on a line."""
    made = {}
    for line in text.splitlines():
        name, equals, version = line.partition("#")[0].partition(";")[0].partition("==")
        if equals and version.strip():
            made[name.partition("[")[0].strip().lower().replace("_", "-")] = version.strip()
    return made


def library_path_entries(environ: Mapping[str, str]) -> list[str]:
    return [one for one in environ.get(LIBRARY_PATH, "").replace(";", ":").split(":") if one]


def same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def brought_by(path: Path, environ: Mapping[str, str]) -> str:
    """`NAME=entry` of the variable that leads the loader to this file, or nothing."""
    for entry in preload_entries(environ):
        if same_file(Path(entry), path) or ("/" not in entry and entry == path.name):
            return f"{PRELOAD}={entry}"
    for entry in library_path_entries(environ):
        if same_file(Path(entry) / path.name, path):
            return f"{LIBRARY_PATH}={entry}"
    return ""
