"""`gpucomm coverage`: axis values, and pairs of them, that no standard cell has.

A value without a standard cell is one that nobody builds before somebody asks for it. A pair that
cannot exist is not missing; a single value that cannot exist is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gpucomm.cell import Cell, Wanted, cell
from gpucomm.rules import platforms, possible
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

Value = tuple[str, str]
"""An axis and one of its values."""
Pair = tuple[Value, Value]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What there is, and what of it no standard cell has, both in matrix order."""

    values: tuple[Value, ...]
    missing: tuple[Value, ...]
    pairs: tuple[Pair, ...]
    missing_pairs: tuple[Pair, ...]


def coverage_of(matrix: Matrix) -> Coverage:
    """What the standard set leaves out."""
    cells = cells_of(matrix)
    values = tuple(dict.fromkeys(_declared(matrix)))
    had = {value for one in cells for value in _values(matrix, one)}
    place = {value: index for index, value in enumerate(values)}
    pairs = sorted(
        {pair for one in _everything(matrix) for pair in _pairs(matrix, one)},
        key=lambda pair: (place[pair[0]], pair[1][0], place.get(pair[1], 0), pair[1]),
    )
    had_pairs = {pair for one in cells for pair in _pairs(matrix, one)}
    return Coverage(
        values=values,
        missing=tuple(value for value in values if value not in had),
        pairs=tuple(pairs),
        missing_pairs=tuple(pair for pair in pairs if pair not in had_pairs),
    )


def _declared(matrix: Matrix) -> Iterator[Value]:
    """Every axis value that the matrix names."""
    yield from (("line", name) for name in matrix.lines)
    yield from (("torch", torch) for torch in matrix.torch)
    for line in matrix.lines.values():
        for torch in line.torch.values():
            for nccl in (torch.nccl, *torch.overrides):
                if nccl is not None:
                    yield f"NCCL of {line.nccl_family}", nccl
    yield from (("os", name) for name in matrix.systems)
    yield from (("flavor", name) for name in matrix.flavors)
    yield from (("extra", name) for name in matrix.extras)
    for system in matrix.systems.values():
        yield from (("platform", arch) for arch in system.architectures)
    for name, line in matrix.lines.items():
        known = line.gpu_targets.known if line.gpu_targets else []
        yield from ((f"GPU target of {name}", target) for target in known)


def _values(matrix: Matrix, one: Cell) -> Iterator[Value]:
    line = matrix.lines[one.line]
    yield "line", one.line
    yield "torch", one.torch
    if line.nccl_family is not None:
        yield f"NCCL of {line.nccl_family}", one.nccl or "static"
    yield "os", one.os
    yield "flavor", one.flavor
    yield from (("extra", extra) for extra in one.extras)
    yield from (("platform", arch) for arch in platforms(matrix, one))
    yield from ((f"GPU target of {one.line}", target) for target in one.gpu_targets)


def _pairs(matrix: Matrix, one: Cell) -> Iterator[Pair]:
    line: Value = ("line", one.line)
    yield line, ("os", one.os)
    yield line, ("flavor", one.flavor)
    yield from ((line, ("extra", extra)) for extra in one.extras)
    yield from ((line, ("platform", arch)) for arch in platforms(matrix, one))
    if one.nccl_overridden and one.nccl is not None:
        yield line, ("override", f"{one.nccl} of torch {one.torch}")
    yield ("os", one.os), ("flavor", one.flavor)
    yield from ((("os", one.os), ("extra", extra)) for extra in one.extras)


def _everything(matrix: Matrix) -> Iterator[Cell]:
    """Cells that can exist, enough of them to have every pair that can."""
    extras: list[tuple[str, ...]] = [(), *((extra,) for extra in matrix.extras)]
    for name, line in matrix.lines.items():
        for torch, row in line.torch.items():
            combinations = [
                *product([None], matrix.systems, matrix.flavors, extras),
                *((nccl, matrix.defaults.os, matrix.defaults.flavor, ()) for nccl in row.overrides),
            ]
            for nccl, os, flavor, some in combinations:
                wanted = Wanted(
                    line=name, torch=torch, nccl=nccl, os=os, flavor=flavor, extras=some
                )
                one = cell(matrix, wanted)
                if possible(matrix, one):
                    yield one


def lines_of(found: Coverage) -> list[str]:
    """The report for a person; it ends with the count."""
    lines = [f"no standard cell has {axis} {value}" for axis, value in found.missing]
    grouped: dict[tuple[Value, str], list[str]] = {}
    for first, (axis, value) in found.missing_pairs:
        grouped.setdefault((first, axis), []).append(value)
    lines += [
        f"no standard cell has {first[0]} {first[1]} with {axis} {', '.join(values)}"
        for (first, axis), values in grouped.items()
    ]
    return [
        *lines,
        f"{len(found.missing)} of {len(found.values)} axis values and "
        f"{len(found.missing_pairs)} of {len(found.pairs)} pairs have no standard cell",
    ]
