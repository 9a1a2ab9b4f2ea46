"""The settings of the communication libraries that are in force here, and where each comes from.

Variables win over files. Reads files below a root; must not judge anything.
"""

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# What any of the libraries, or torch about them, reads.
PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_GLOO_", "TORCH_FR_", "OFI_NCCL_")
OTHERS = (
    "TORCH_DISTRIBUTED_DEBUG",
    "CUDA_LAUNCH_BLOCKING",
    "HSA_OVERRIDE_GFX_VERSION",
)

_CONF = "NCCL_CONF_FILE"
# NCCL 2.23 has it; RCCL took it over with that version.
_CONF_SINCE = 22300
# Before this the home of the account counted, and not HOME (getpwuid in src/misc/param.cc).
_HOME_SINCE = 23000
_NEWEST = 99999


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str
    value: str
    origin: str  # "environment", or the file and line


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A line of a file that is no setting."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Reader:
    """The library that reads the files: which, and how, depends on it."""

    family: str = "nccl"  # or rccl
    code: int | None = None  # its version as a number, such as 22005


def home_of_user() -> str:
    """What the account says, whatever HOME is."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _files(environ: Mapping[str, str], root: Path, reader: Reader, home: str) -> Iterator[Path]:
    """The files that the library reads, the one that wins first."""
    code = reader.code or _NEWEST
    if environ.get(_CONF) and code >= _CONF_SINCE:
        yield Path(environ[_CONF])
    else:
        folder = environ.get("HOME", "") if code >= _HOME_SINCE else home
        if folder:
            yield Path(folder) / f".{reader.family}.conf"
    yield root / f"etc/{reader.family}.conf"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def settings(
    environ: Mapping[str, str],
    root: Path = Path("/"),
    reader: Reader = Reader(),
    home: str = "",
) -> tuple[list[Setting], list[Unread]]:
    """Every setting in force, by name, and the lines of files that are none.

    The library trims nothing: a blank beside the name makes another name that nobody reads, and one
    beside the value belongs to it (setEnvFile in src/misc/param.cc).
    """
    found: dict[str, Setting] = {
        name: Setting(name=name, value=value, origin="environment")
        for name, value in environ.items()
        if name.startswith(PREFIXES) or name in OTHERS
    }
    unread: list[Unread] = []
    for path in _files(environ, root, reader, home):
        for number, line in enumerate(_lines(path), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, equals, value = line.partition("=")
            where = f"{path}:{number}"
            if not equals or not name.replace("_", "").isalnum():
                unread.append(Unread(where=where, text=line))
            else:
                found.setdefault(name, Setting(name=name, value=value, origin=where))
    return [found[name] for name in sorted(found)], unread
