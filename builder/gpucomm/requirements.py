"""What a resolver is asked for one cell: requirements, overrides, constraints.

Pure. The lock is made from it, and a cell that could not be locked is built from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucomm.cell import DEFAULT_INDEX, Cell, additions
from gpucomm.lock import held, holds_for, with_cuda
from gpucomm.schema import Matrix


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirement lines. `overrides` replace what packages require, `constraints` narrow it."""

    wanted: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()


def requirements_of(matrix: Matrix, cell: Cell) -> Requirements:
    """What `cell` needs, with nothing that the matrix does not state."""
    local = "" if cell.index == DEFAULT_INDEX else f"+{cell.index}"
    release = matrix.torch[cell.torch]
    wheels = [wheel for extra in cell.extras if (wheel := matrix.extras[extra].wheel)]
    added = additions(matrix, line=cell.line, flavor=cell.flavor, os=cell.os)
    return Requirements(
        wanted=(
            f"torch=={cell.torch}{local}",
            *matrix.with_,
            *(f"{wheel}=={release.wheels[wheel]}{local}" for wheel in wheels),
            *(f"{package}{with_cuda(require, cell)}" for package, require in added),
        ),
        overrides=(*_nccl_override(matrix, cell), *_target_override(matrix, cell)),
        constraints=tuple(f"{hold.package}{held(hold, cell)}" for hold in holds_for(matrix, cell)),
    )


def _nccl_override(matrix: Matrix, cell: Cell) -> list[str]:
    """The requirement that replaces torch's own on NCCL, where the cell overrides it."""
    family = matrix.lines[cell.line].nccl_family
    if not cell.nccl_overridden or family is None:
        return []
    return [f"{matrix.nccl_families[family].wheel}=={cell.nccl}"]


def _target_override(matrix: Matrix, cell: Cell) -> list[str]:
    """The requirement that replaces torch's own on GPU code for every target."""
    targets = matrix.lines[cell.line].gpu_targets
    if targets is None:
        return []
    extras = ",".join([*targets.extras, *(f"device-{name}" for name in cell.gpu_targets)])
    return [f"{targets.package}[{extras}]=={targets.version}"]
