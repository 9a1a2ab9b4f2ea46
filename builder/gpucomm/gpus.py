"""Which GPUs a cell has code for, and which lines have code for one GPU.

Owns: the ways to write a GPU, and what may run what: code of one compute capability runs on a later
one of the same major number, PTX is compiled for any later one, code of AMD's targets runs on that
target alone. Pure. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.nearest import nearest
from gpucomm.rules import contains, platforms
from gpucomm.schema import Architecture, Matrix
from gpucomm.standard import cells_of

_PTX = "+PTX"
_CAPABILITY = re.compile(r"(?:sm_|compute_)?(\d{1,2})(\.?)(\d)[a-z]?")
# Jetson and its kin: what is compiled for another GPU does not run there, nor the other way round.
_ALONE = frozenset({"5.3", "6.2", "7.2", "8.7", "11.0"})
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of GPU: `9.0` of NVIDIA, `gfx942` of AMD."""

    vendor: Literal["nvidia", "amd"]
    name: str


@dataclass(frozen=True, kw_only=True)
class Support:
    """Whether a GPU can run what there is, and why."""

    ok: bool
    reason: str
    ptx: bool = False
    """By PTX alone, which the driver compiles."""


@dataclass(frozen=True, kw_only=True)
class Supporting:
    """A line that has something for a GPU. `cell` is one to take, standard or not."""

    line: str
    torches: tuple[str, ...]
    cell: str


def parse(matrix: Matrix, text: str) -> Gpu:
    """The GPU that `text` names: `7.0`, `sm_70`, `gfx90a`. Raises WrongInput."""
    word = text.strip().lower()
    if _TARGET.fullmatch(word):
        return Gpu(vendor="amd", name=word)
    match = _CAPABILITY.fullmatch(word)
    # `70` alone would be anybody's guess
    if match and bool(match[2]) != word.startswith(("sm_", "compute_")):
        return Gpu(vendor="nvidia", name=f"{match[1]}.{match[3]}")
    near = nearest(word, known(matrix)) if word.startswith("gfx") else ""
    raise WrongInput(
        f"--gpu {text!r} is no compute capability such as 9.0 or sm_90 and no target such as "
        f"gfx942{near}; `nvidia-smi --query-gpu=compute_cap --format=csv` and `rocminfo` tell it"
    )


def known(matrix: Matrix) -> list[str]:
    """Every GPU that the matrix names, in its order."""
    rows = (row for line in matrix.lines.values() for row in line.gpus)
    return list(dict.fromkeys(arch.removesuffix(_PTX) for row in rows for arch in row.archs))


def archs_of(matrix: Matrix, cell: Cell, arch: Architecture) -> tuple[str, ...]:
    """The GPUs that `cell` has code for on one platform, as the matrix writes them."""
    line = matrix.lines[cell.line]
    found = dict.fromkeys(
        name
        for row in line.gpus
        if contains(row.torch, cell.torch) and (not row.arch or arch in row.arch)
        for name in row.archs
    )
    return tuple(name for name in found if line.gpu_targets is None or name in cell.gpu_targets)


def support(archs: Sequence[str], gpu: Gpu) -> Support:
    """Whether code for `archs` runs on `gpu`."""
    exact = [arch.removesuffix(_PTX) for arch in archs]
    if gpu.name in exact:
        return Support(ok=True, reason=f"has code for {gpu.name}")
    if not archs:
        return Support(ok=False, reason="has no code for any GPU")
    if gpu.vendor == "amd" or not exact[0][:1].isdigit():
        return Support(ok=False, reason=f"has code for {', '.join(archs)}")
    wanted = _number(gpu.name)
    older = [arch for arch in exact if _number(arch) < wanted]
    same = [
        arch for arch in older if _number(arch)[0] == wanted[0] and not _ALONE & {arch, gpu.name}
    ]
    if same:
        best = max(same, key=_number)
        reason = f"runs the code for {best}, which later GPUs of major {wanted[0]} can"
        return Support(ok=True, reason=reason)
    ptx = [arch for arch in older if f"{arch}{_PTX}" in archs]
    if ptx:
        best = max(ptx, key=_number)
        reason = f"compiles the PTX for {best} when it starts, which takes long the first time"
        return Support(ok=True, reason=reason, ptx=True)
    return Support(ok=False, reason=f"has code for {', '.join(archs)}")


def _number(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def supporting(matrix: Matrix, gpu: Gpu) -> Iterator[Supporting]:
    """Every line with a cell that runs on `gpu`, with its newest such cell."""
    for name in matrix.lines:
        found: dict[str, str] = {}
        for cell in cells_of(matrix):
            if cell.line != name or cell.torch in found:
                continue
            if runs_on(matrix, cell, gpu):
                found[cell.torch] = cell.id
            elif (other := with_target(matrix, cell, gpu)) is not None:
                found[cell.torch] = other
        if found:
            torches = tuple(sorted(found, key=Version))
            yield Supporting(line=name, torches=torches, cell=found[torches[-1]])


def runs_on(matrix: Matrix, cell: Cell, gpu: Gpu) -> bool:
    """Whether `cell` runs on `gpu` on one of its platforms."""
    return any(support(archs_of(matrix, cell, arch), gpu).ok for arch in platforms(matrix, cell))


def with_target(matrix: Matrix, cell: Cell, gpu: Gpu) -> str | None:
    """The id of the same cell with the code for `gpu`, where that comes in wheels of its own."""
    targets = matrix.lines[cell.line].gpu_targets
    if targets is None or gpu.name not in targets.known or gpu.name in cell.gpu_targets:
        return None
    parts = [part for part in cell.id.split("-") if part not in targets.known]
    return "-".join([*parts, gpu.name])
