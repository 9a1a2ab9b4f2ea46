"""A cell: one buildable combination of the matrix, and its name.

Owns: expansion of the matrix into cells and the cell id. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from gpucomm.schema import Line, Matrix


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of axis values. `nccl` is None where the line has no NCCL."""

    line: str
    accelerator: str
    torch: str
    nccl: str | None
    nccl_overridden: bool
    cuda: str | None
    os: str
    python: str
    flavor: str
    id: str
    pins_id: str
    """The id without the flavor: cells that share it share one lock."""


def cells_of(matrix: Matrix) -> tuple[Cell, ...]:
    """Every cell, in the order of the matrix, oldest torch first."""
    return tuple(
        _cell(matrix, name, line, torch, nccl, flavor)
        for name, line in matrix.lines.items()
        for torch in sorted(line.torch, key=Version)
        for nccl in _nccls(line, torch)
        for flavor in line.flavors
    )


def _nccls(line: Line, torch: str) -> list[str | None]:
    bundled = line.torch[torch].nccl
    return [bundled, *(version for version in line.nccl_overrides if version != bundled)]


def _cell(matrix: Matrix, name: str, line: Line, torch: str, nccl: str | None, flavor: str) -> Cell:
    os = matrix.defaults.os
    pins_id = "-".join([name, f"torch{torch}", *([f"nccl{nccl}"] if nccl else [])])
    return Cell(
        line=name,
        accelerator=line.accelerator,
        torch=torch,
        nccl=nccl,
        nccl_overridden=nccl != line.torch[torch].nccl,
        cuda=line.cuda,
        os=os,
        python=matrix.systems[os].python,
        flavor=flavor,
        id=pins_id if flavor == matrix.defaults.flavor else f"{pins_id}-{flavor}",
        pins_id=pins_id,
    )


def aliases_of(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """The aliases that point at `cell`."""
    return tuple(alias for alias, target in matrix.aliases.items() if target == cell.id)
