"""Which libraries a process has really loaded: the files, who brought them, and what they say.

The maps of the process and `ncclGetVersion` of the mapped file are the only witnesses. torch
carries an RPATH, so no environment variable says what it loads, and `torch.cuda.nccl.version()`
is the version it was compiled for. Must not import torch and must not load a library that is not
loaded already. What is wrong with them is judged in stages/.
"""

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucomm_selftest import elf
from gpucomm_selftest.elf import SharedObject
from gpucomm_selftest.owners import (
    brought_by,
    distribution_packages,
    library_path_entries,
    wheels_of,
)

_MAPS_LINE = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S{4} [0-9a-f]+ (?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+)\s+"
    r"(?P<path>/.*)$"
)
_DELETED = " (deleted)"

# What else decides how ranks talk, by the name of the file. A wheel may have put a hash into it.
_WATCHED = (
    ("nccl", re.compile(r"libnccl\.so[0-9.]*$")),
    ("rccl", re.compile(r"librccl\.so[0-9.]*$")),
    ("plugin", re.compile(r"lib[nr]ccl-(?:net|tuner|profiler|env|gin|rma)\S*\.so[0-9.]*$")),
    ("libfabric", re.compile(r"libfabric\S*\.so[0-9.]*$")),
    ("driver", re.compile(r"libcuda\.so[0-9.]*$")),
    ("cudart", re.compile(r"libcudart(?:-[0-9a-f]{8})?\.so[0-9.]*$")),
    ("cudnn", re.compile(r"libcudnn(?:-[0-9a-f]{8})?\.so[0-9.]*$")),
    ("hip", re.compile(r"libamdhip64\.so[0-9.]*$")),
    ("ibverbs", re.compile(r"libibverbs(?:-[0-9a-f]{8})?\.so[0-9.]*$")),
)
_TORCH = re.compile(r"libtorch_(?:cuda|hip|python)\.so$")
_MAJOR = re.compile(r"\.so\.(\d+)")
_COLLECTIVE = ("nccl", "rccl")
# What the symbols of a collective library begin with; RCCL has those of NCCL.
PREFIXES = ("nccl", "pnccl")
# Where the loader looks last. ld.so.cache may name others, and is not read.
_USUAL = (
    "/usr/local/cuda/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


@dataclass(frozen=True, kw_only=True)
class MappedLibrary:
    path: str
    family: str  # nccl or rccl
    deleted: bool = False


def mapped_libraries(maps: Iterable[str]) -> list[MappedLibrary]:
    """The distinct collective libraries among the lines of a /proc/PID/maps.

    A file is its device and inode: one library under two names (a symlink, a bind mount) is one.
    """
    return [
        MappedLibrary(path=one.path, family=one.kind, deleted=one.deleted)
        for one in mapped_files(maps)
        if one.kind in _COLLECTIVE
    ]


def _kind_of(name: str) -> str:
    for kind, pattern in _WATCHED:
        if pattern.fullmatch(name):
            return kind
    return "torch" if _TORCH.fullmatch(name) else ""


@dataclass(frozen=True, kw_only=True)
class MappedFile:
    path: str
    kind: str
    deleted: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def mapped_files(maps: Iterable[str]) -> list[MappedFile]:
    """The distinct files of the kinds above, and those of torch that call them.

    A file is its device and inode: one library under two names (a symlink, a bind mount) is one.
    """
    found: dict[tuple[str, str], MappedFile] = {}
    for line in maps:
        match = _MAPS_LINE.match(line.rstrip("\n"))
        if not match:
            continue
        path = match["path"]
        deleted = path.endswith(_DELETED)
        path = path.removesuffix(_DELETED)
        kind = _kind_of(path.rpartition("/")[2])
        if kind:
            file = MappedFile(path=path, kind=kind, deleted=deleted)
            found.setdefault((match["device"], match["inode"]), file)
    return list(found.values())


def plugin_files(environ: Mapping[str, str]) -> list[Path]:
    """The plugins of a collective library that the loader would find, each once."""
    found: dict[str, Path] = {}
    for folder in (*library_path_entries(environ), *_USUAL):
        for path in sorted(Path(folder).glob("lib[nr]ccl-*.so*")):
            found.setdefault(path.name, path)
    return list(found.values())


def own_paths() -> list[str]:
    """Every file that this process has mapped."""
    matches = (_MAPS_LINE.match(line.rstrip("\n")) for line in _own_maps())
    return sorted({match["path"].removesuffix(_DELETED) for match in matches if match})


def _own_maps() -> list[str]:
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        return list(maps)


def own_libraries() -> list[MappedLibrary]:
    """Those of this process."""
    return mapped_libraries(_own_maps())


def mapped_file(kind: str) -> str | None:
    """The real path of the first library of a kind that this process has mapped."""
    paths = [one.path for one in own_files() if one.kind == kind]
    return os.path.realpath(paths[0]) if paths else None


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


def own_files() -> list[MappedFile]:
    """Every watched file of this process."""
    return mapped_files(_own_maps())


def describe_loaded(files: Iterable[MappedFile]) -> list[dict[str, Any]]:
    """The watched libraries among them, without those of torch itself."""
    return [
        {"path": one.path, "kind": one.kind, "major": major_of(one.name), "deleted": one.deleted}
        for one in files
        if one.kind != "torch"
    ]


def major_of(name: str) -> str:
    """`12` of libcudart.so.12.1.105."""
    match = _MAJOR.search(name)
    return match[1] if match else ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def with_owners(
    loaded: list[dict[str, Any]], environ: Mapping[str, str], root: Path = Path("/")
) -> list[dict[str, Any]]:
    """Each with the packages that installed it and the variable that made the loader take it."""
    real = {one["path"]: Path(os.path.realpath(one["path"])) for one in loaded}
    wheels = {path: wheels_of(Path(path)) or wheels_of(real[path]) for path in real}
    distributed = distribution_packages([real[path] for path in real if not wheels[path]], root)
    described = []
    for one in loaded:
        path = real[one["path"]]
        packages = wheels[one["path"]] or [
            package for of, package in distributed.items() if of == path
        ]
        described.append(
            {
                **one,
                "size": _size(path),
                "packages": [{"label": each.label, "size": each.size} for each in packages],
                "by": brought_by(Path(one["path"]), environ),
            }
        )
    return described


def own_choice(objects: Mapping[str, SharedObject], environ: Mapping[str, str]) -> tuple[str, str]:
    """The soname of the collective library that torch was linked with, and the file that its own
    search path leads to without LD_PRELOAD and LD_LIBRARY_PATH. Either may be empty.

    Where torch has no search path that leads anywhere, it takes what LD_LIBRARY_PATH or the
    system has; then there is nothing that could have been loaded instead.
    """
    soname = ""
    for path, shared in objects.items():
        for need in shared.needs:
            if _kind_of(need) not in _COLLECTIVE:
                continue
            soname = need
            origin = str(Path(path).parent)
            search = [
                entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
                for entry in shared.search
            ]
            for folder in [*search, *library_path_entries(environ), *_USUAL]:
                if (Path(folder) / need).is_file():
                    return soname, str(Path(folder) / need)
    return soname, ""


def describe_symbols(files: list[MappedFile]) -> dict[str, Any]:
    """What torch's libraries want from the collective library, and what of it nobody has."""
    needed: dict[str, str] = {}
    provided: set[str] = set()
    unreadable: list[str] = []
    objects: dict[str, SharedObject] = {}
    for one in files:
        if one.kind not in ("torch", *_COLLECTIVE):
            continue
        try:
            shared = elf.read(Path(one.path), PREFIXES)
        except (OSError, elf.ElfError) as error:
            unreadable.append(f"{one.path}: {error}")
            continue
        provided |= shared.defined
        if one.kind == "torch":
            objects[one.path] = shared
            needed.update(dict.fromkeys(shared.undefined, one.path))
    return {
        "needed": len(needed),
        "missing": {name: path for name, path in sorted(needed.items()) if name not in provided},
        "unreadable": unreadable,
        "objects": objects,
    }
