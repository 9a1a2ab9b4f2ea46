"""Which collective library a process has really loaded: the file, and what that file says it is.

The maps of the process and `ncclGetVersion` of the mapped file are the only witnesses. torch
carries an RPATH, so no environment variable says what it loads, and `torch.cuda.nccl.version()`
is the version it was compiled for. Must not import torch and must not load a library that is not
loaded already.
"""

import ctypes
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# libnccl.so.2 and librccl.so.1.0, but not the plugins libnccl-net.so and librccl-net.so.
_LIBRARY = re.compile(r"lib(?P<family>nccl|rccl)\.so[0-9.]*$")
_MAPS_LINE = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S{4} [0-9a-f]+ (?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+)\s+"
    r"(?P<path>/.*)$"
)
_DELETED = " (deleted)"


@dataclass(frozen=True, kw_only=True)
class MappedLibrary:
    path: str
    family: str  # nccl or rccl
    deleted: bool = False


def mapped_libraries(maps: Iterable[str]) -> list[MappedLibrary]:
    """The distinct collective libraries among the lines of a /proc/PID/maps.

    A file is its device and inode: one library under two names (a symlink, a bind mount) is one.
    """
    found: dict[tuple[str, str], MappedLibrary] = {}
    for line in maps:
        match = _MAPS_LINE.match(line.rstrip("\n"))
        if not match:
            continue
        path = match["path"]
        deleted = path.endswith(_DELETED)
        path = path.removesuffix(_DELETED)
        name = _LIBRARY.search(path)
        if name and path.rpartition("/")[2] == name[0]:
            library = MappedLibrary(path=path, family=name["family"], deleted=deleted)
            found.setdefault((match["device"], match["inode"]), library)
    return list(found.values())


def own_libraries() -> list[MappedLibrary]:
    """Those of this process."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        return mapped_libraries(maps)


def mapped_file(name: str) -> str | None:
    """The real path of the first library of this name that this process has mapped."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            match = _MAPS_LINE.match(line.rstrip("\n"))
            if match and match["path"].rpartition("/")[2].startswith(name):
                return str(Path(match["path"]).resolve())
    return None


def decode_version(code: int) -> str:
    """NCCL's integer as people write it: 2804 is 2.8.4, and since 2.9 22105 is 2.21.5."""
    if code < 10000:
        major, rest = divmod(code, 1000)
    else:
        major, rest = divmod(code, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def ask_version(path: str) -> int:
    """What a library that this process has loaded says of itself. Raises OSError."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        ask = library.ncclGetVersion
    except AttributeError as error:
        raise OSError(f"{path} has no ncclGetVersion") from error
    code = ctypes.c_int(0)
    result = ask(ctypes.byref(code))
    if result != 0 or code.value <= 0:
        raise OSError(f"ncclGetVersion of {path} returned {result} and version {code.value}")
    return code.value


def describe_own() -> list[dict[str, str | int | bool | None]]:
    """Every collective library of this process with its version, as it goes into the report."""
    described: list[dict[str, str | int | bool | None]] = []
    for library in own_libraries():
        code: int | None = None
        error: str | None = None
        try:
            code = ask_version(library.path)
        except OSError as problem:
            error = str(problem)
        described.append(
            {
                "path": library.path,
                "family": library.family,
                "deleted": library.deleted,
                "code": code,
                "version": None if code is None else decode_version(code),
                "error": error,
            }
        )
    return described
