"""The tables of `gpucomm list`: cells, and lines.

Owns: the columns and the keys. JSON keys are never renamed; new ones are added at the end. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from packaging.version import Version

from gpucomm import tables
from gpucomm.cell import Cell
from gpucomm.facts import library_of
from gpucomm.project import Project
from gpucomm.proof import Proofs
from gpucomm.rules import platforms
from gpucomm.schema import STATIC, Line, Matrix
from gpucomm.standard import aliases_of

CELLS = ("cell", "aliases", "platforms", "lock", "proof")
STATE = "here"
LINES = ("line", "torch", "library", "minimum driver", "alias")


Form = Literal["text", "json", "markdown"]


def by_cell(
    project: Project,
    proofs: Proofs,
    cells: Iterable[Cell],
    form: Form,
    state: Callable[[Cell], str] | None,
) -> list[str]:
    """One line for each cell. `state` tells what is here; without it there is no such column."""
    if form == "json":
        known = state or (lambda _: "unknown")
        return [json.dumps(cell_data(project, proofs, cell, known(cell))) for cell in cells]
    rows = [(*cell_row(project, proofs, cell), *([state(cell)] if state else [])) for cell in cells]
    return _table(form, (*CELLS, *([STATE] if state else [])), rows)


def by_line(matrix: Matrix, cells: Iterable[Cell], form: Form) -> list[str]:
    """One line for each line that one of `cells` is of."""
    names = {cell.line for cell in cells}
    chosen = [name for name in matrix.lines if name in names]
    if form == "json":
        return [json.dumps(line_data(matrix, name)) for name in chosen]
    return _table(form, LINES, [line_row(matrix, name) for name in chosen])


def _table(form: Form, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return tables.markdown(header, rows) if form == "markdown" else tables.plain(rows, header)


def cell_row(project: Project, proofs: Proofs, cell: Cell) -> tuple[str, ...]:
    """One line of the table of cells, as CELLS names its columns."""
    matrix, lock = project.matrix, project.lock
    locked, all_ = lock.locked(cell, matrix), platforms(matrix, cell)
    said = "locked" if locked == all_ else f"locked {', '.join(locked)}" if locked else "unlocked"
    aliases = " ".join(aliases_of(matrix, cell))
    return cell.id, aliases, ", ".join(all_), said, proofs.said(cell.id)


def cell_data(project: Project, proofs: Proofs, cell: Cell, state: str) -> dict[str, Any]:
    """One cell, ready for JSON."""
    matrix = project.matrix
    library, version = library_of(cell)
    reason = project.lock.reason(cell, matrix)
    return {
        "id": cell.id,
        "line": cell.line,
        "torch": cell.torch,
        "library": library,
        "library_version": version,
        "image": project.reference(cell),
        "aliases": list(aliases_of(matrix, cell)),
        "state": state,
        "accelerator": cell.accelerator,
        "cuda": cell.cuda,
        "rocm": cell.rocm,
        "os": cell.os,
        "python": cell.python,
        "flavor": cell.flavor,
        "extras": list(cell.extras),
        "gpu_targets": list(cell.gpu_targets),
        "platforms": list(platforms(matrix, cell)),
        "locked": reason is None,
        "unlocked_reason": reason,
        "proof": proofs.said(cell.id),
    }


def line_row(matrix: Matrix, name: str) -> tuple[str, ...]:
    """One line of the table of lines, as LINES names its columns."""
    line = matrix.lines[name]
    driver = line.driver.floor if line.driver else ""
    return name, _range(matrix, line), _library(line), driver, matrix.aliases.get(name, "")


def line_data(matrix: Matrix, name: str) -> dict[str, Any]:
    """One line, ready for JSON. `nccl` and `overrides` are by torch."""
    line = matrix.lines[name]
    torches = sorted(line.torch, key=Version)
    nccl: Mapping[str, str | None] = {torch: line.torch[torch].nccl for torch in torches}
    return {
        "line": name,
        "accelerator": line.accelerator,
        "torch": torches,
        "nccl": nccl if line.accelerator == "cuda" else None,
        "overrides": {torch: line.torch[torch].overrides for torch in torches},
        "rccl": line.rccl,
        "driver": line.driver.model_dump() if line.driver else None,
        "alias": matrix.aliases.get(name),
    }


def _range(matrix: Matrix, line: Line) -> str:
    """`2.1.2 to 2.5.1` where no torch of the matrix is left out between them."""
    torches = sorted(line.torch, key=Version)
    every = sorted(matrix.torch, key=Version)
    start = every.index(torches[0])
    if len(torches) > 2 and every[start : start + len(torches)] == torches:
        return f"{torches[0]} to {torches[-1]}"
    return ", ".join(torches)


def _library(line: Line) -> str:
    match line.accelerator:
        case "cuda":
            return f"NCCL {_versions(line)}"
        case "rocm":
            return f"RCCL {line.rccl}"
        case "cpu":
            return "Gloo"


def _versions(line: Line) -> str:
    found = {
        nccl
        for torch in line.torch.values()
        for nccl in (torch.nccl, *torch.overrides)
        if nccl not in (None, STATIC)
    }
    ordered: Sequence[str] = sorted((str(nccl) for nccl in found), key=Version)
    return ", ".join(ordered)
