"""The settings of the communication libraries that are in force here, and where each comes from.

Variables win over files. Reads files below a root; must not judge anything.
"""

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


def _files(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """The files that the library reads, the one that wins first."""
    if environ.get(_CONF):
        yield Path(environ[_CONF])
    elif environ.get("HOME"):
        yield Path(environ["HOME"]) / ".nccl.conf"
        yield Path(environ["HOME"]) / ".rccl.conf"
    yield root / "etc/nccl.conf"
    yield root / "etc/rccl.conf"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def settings(
    environ: Mapping[str, str], root: Path = Path("/")
) -> tuple[list[Setting], list[Unread]]:
    """Every setting in force, by name, and the lines of files that are none."""
    found: dict[str, Setting] = {
        name: Setting(name=name, value=value, origin="environment")
        for name, value in environ.items()
        if name.startswith(PREFIXES) or name in OTHERS
    }
    unread: list[Unread] = []
    for path in _files(environ, root):
        for number, line in enumerate(_lines(path), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, equals, value = text.partition("=")
            where = f"{path}:{number}"
            if not equals or not name.strip().replace("_", "").isalnum():
                unread.append(Unread(where=where, text=text))
            else:
                name = name.strip()
                found.setdefault(name, Setting(name=name, value=value.strip(), origin=where))
    return [found[name] for name in sorted(found)], unread
