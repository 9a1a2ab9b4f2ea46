"""The standard set: the cells that are built and published, out of all that can exist.

Owns: the expansion of matrix.yaml's `standard` rows, and the aliases of a cell. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from packaging.version import Version

from gpucomm.cell import Cell, Wanted, cell, wanted_of
from gpucomm.errors import WrongInput
from gpucomm.rules import contains, meets, possible
from gpucomm.schema import Matrix, Standard, When

LIMIT = 20_000
"""Combinations of all rows. More were not meant, and would keep every command waiting."""
_Values: TypeAlias = Sequence[tuple[str, ...]]
_Axes: TypeAlias = tuple[Sequence[str | None], Sequence[str], Sequence[str], _Values, _Values]
"""NCCL, system, flavor, extras, GPU targets."""


def cells_of(matrix: Matrix) -> tuple[Cell, ...]:
    """Every standard cell: by line in the order of the matrix, oldest torch first."""
    found: tuple[Cell, ...] | None = matrix.memo.get("cells")
    if found is None:
        found = _expand(matrix)
        matrix.memo["cells"] = found
    return found


def by_id(matrix: Matrix) -> Mapping[str, Cell]:
    """The standard cells by id."""
    found: dict[str, Cell] | None = matrix.memo.get("by_id")
    if found is None:
        found = {one.id: one for one in cells_of(matrix)}
        matrix.memo["by_id"] = found
    return found


def aliases_of(matrix: Matrix, one: Cell) -> tuple[str, ...]:
    """The aliases that point at a cell."""
    found: dict[str, tuple[str, ...]] | None = matrix.memo.get("aliases")
    if found is None:
        found = {}
        for alias, target in matrix.aliases.items():
            found[target] = (*found.get(target, ()), alias)
        matrix.memo["aliases"] = found
    return found.get(one.id, ())


def alias_rule(matrix: Matrix, line: str) -> str:
    """The torch that the alias of `line` must have.

    The newest whose wheel is on the default index, which any mirror serves; else the newest.
    """
    torches = sorted(matrix.lines[line].torch, key=Version)
    default = [torch for torch in torches if matrix.torch[torch].default == line]
    return (default or torches)[-1]


def wanted_by(matrix: Matrix, row: Standard) -> Iterator[Wanted]:
    """Every combination of the values of `row`, whether it can exist or not."""
    for line, torch, axes in _axes(matrix, row):
        for nccl, os, flavor, extras, targets in product(*axes):
            yield Wanted(
                line=line,
                torch=torch,
                nccl=nccl,
                os=os,
                flavor=flavor,
                extras=extras,
                gpu_targets=targets,
            )


def combinations(matrix: Matrix, row: Standard) -> int:
    """How many `wanted_by` yields, without making them."""
    return sum(prod(len(values) for values in axes) for _, _, axes in _axes(matrix, row))


def _axes(matrix: Matrix, row: Standard) -> Iterator[tuple[str, str, _Axes]]:
    """Each line and torch of `row` with the values of the other axes."""
    systems, flavors = row.os or [matrix.defaults.os], row.flavor or [matrix.defaults.flavor]
    extras = [tuple(extra for extra in matrix.extras if extra in wanted) for wanted in row.extras]
    for name, line in matrix.lines.items():
        if not meets(name, row.lines):
            continue
        known = line.gpu_targets.known if line.gpu_targets else []
        targets = [
            tuple(target for target in known if target in wanted)
            for wanted in row.gpu_targets
            if set(wanted) <= set(known)
        ]
        torches = [alias_rule(matrix, name)] if row.only_alias else sorted(line.torch, key=Version)
        for torch in torches:
            if contains(row.torch, torch):
                overrides = line.torch[torch].overrides
                nccls = overrides if row.nccl == "overrides" else [None]
                yield name, torch, (nccls, systems, flavors, extras, targets)


def _expand(matrix: Matrix) -> tuple[Cell, ...]:
    found: dict[str, Cell] = {}
    barren: list[int] = []
    for index, row in enumerate(matrix.standard):
        cells = (cell(matrix, wanted) for wanted in wanted_by(matrix, row))
        kept = [one for one in cells if possible(matrix, one)]
        barren += [] if kept else [index]
        for one in kept:
            found.setdefault(one.id, one)
    matrix.memo["barren"] = barren
    place = {name: index for index, name in enumerate(matrix.lines)}
    # sorted() keeps the order of the rows for what is equal here.
    return tuple(sorted(found.values(), key=lambda one: (place[one.line], Version(one.torch))))


def barren_rows(matrix: Matrix) -> list[int]:
    """The rows of `standard` that give no cell at all."""
    cells_of(matrix)
    found: list[int] = matrix.memo["barren"]
    return found


def candidates(matrix: Matrix, when: When) -> Iterator[Cell]:
    """Cells that a rule could be about, possible or not: enough of them to tell if one is."""
    # One system for each set of platforms: all that are taken here are alike in the rest.
    systems = {
        tuple(system.architectures): name
        for name, system in matrix.systems.items()
        if meets(name, when.os) and contains(when.python, system.python)
    }
    for name, line in matrix.lines.items():
        if not meets(name, when.lines):
            continue
        for torch, row in line.torch.items():
            if not contains(when.torch, torch):
                continue
            for nccl in (None, *row.overrides):
                for os in systems.values():
                    yield cell(
                        matrix,
                        Wanted(
                            line=name,
                            torch=torch,
                            nccl=nccl,
                            os=os,
                            flavor=when.flavor[0] if when.flavor else matrix.defaults.flavor,
                            extras=tuple(when.extras[:1]),
                        ),
                    )


def on_demand(matrix: Matrix, text: str) -> Cell:
    """The cell that an id names, standard or not. Raises WrongInput when it cannot exist."""
    wanted = wanted_of(matrix, text)
    if wanted.torch in matrix.lines[wanted.line].torch:
        one = cell(matrix, wanted)
        if possible(matrix, one):
            return one
    raise WrongInput(f"{text} cannot exist; why: gpucomm why {text}")


def size_budget(matrix: Matrix, cell: Cell) -> int | None:
    """What an image may hold, in MB of 10^6 bytes unpacked; None for a torch not the alias's.

    A line has one figure for each flavor, measured on the cell that its alias names.
    """
    alias = matrix.aliases.get(cell.line)
    if alias is None or by_id(matrix)[alias].torch != cell.torch:
        return None
    return matrix.lines[cell.line].size_budget_mb.get(cell.flavor)
