"""`gpucomm why`: where the values of a cell come from, or every reason why it cannot exist.

Owns: what a selector can mean here (more than a TARGET: cells that do not exist have names too),
and which cells are near one that does not. The reasons themselves are rules.py and matrix.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from gpucomm import gpus, rules, tables
from gpucomm.cell import Cell, Wanted, cell, wanted_of
from gpucomm.errors import WrongInput
from gpucomm.facts import source_of, standard_reasons, values_of
from gpucomm.gpus import Gpu
from gpucomm.rules import Denial
from gpucomm.schema import Line, Matrix, Torch
from gpucomm.selector import expand_braces, select, split

NEAREST = 8
_RCCL = re.compile(r"-rccl(\d[^-]*)")


@dataclass(frozen=True, kw_only=True)
class Near:
    """A cell that exists, and what it has in common with the one that was asked for."""

    cell: Cell
    note: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is to be said of one cell. `cell` is None where it cannot exist; `denials` then says
    why, else which platforms it lacks. `gpu_ok` is None where no GPU was asked for."""

    name: str
    cell: Cell | None
    denials: tuple[Denial, ...]
    near: tuple[Near, ...] = ()
    gpu_ok: bool | None = None
    lines: tuple[str, ...]


def answers(matrix: Matrix, selector: str, gpu: Gpu | None = None) -> list[Answer]:
    """One answer for each cell that `selector` names, existing or not.

    Raises WrongInput with one line for every part that is no name of a cell at all.
    """
    found: dict[str, Answer] = {}
    faults: list[str] = []
    for part in split(selector):
        try:
            for answer in _answers(matrix, part, gpu):
                found.setdefault(answer.name, answer)
        except WrongInput as error:
            faults += error.faults
    if faults:
        raise WrongInput(faults)
    return list(found.values())


def _answers(matrix: Matrix, part: str, gpu: Gpu | None) -> Iterator[Answer]:
    try:
        cells = select(matrix, part)
    except WrongInput:
        names = list(_meant(matrix, part))
        if not names:
            raise
        for name in names:
            yield from _answers(matrix, name, gpu) if name != part else [_denied(matrix, name)]
    else:
        yield from (_existing(matrix, one, gpu) for one in cells)


def _meant(matrix: Matrix, part: str) -> Iterator[str]:
    """The ids, of cells that exist or not, that `part` can mean though no TARGET is like it."""
    left_out = {row.line for row in matrix.left_out} - matrix.lines.keys()
    if set("*?[{") & set(part):
        torches = dict.fromkeys([*matrix.torch, *(row.torch for row in matrix.left_out)])
        globs = expand_braces(part)
        for line in [*matrix.lines, *sorted(left_out)]:
            for torch in torches:
                name = f"{line}-torch{torch}"
                if rules.meets(name, globs):
                    yield name
    elif "-torch" in part or part in left_out:
        yield part


# ---------------------------------------------------------------- cells that cannot exist
def _denied(matrix: Matrix, name: str) -> Answer:
    line = name.split("-")[0]
    if line not in matrix.lines and any(row.line == line for row in matrix.left_out):
        wanted, denials = _left_out(matrix, line, name)
    else:
        rccl = _RCCL.search(name)
        wanted = wanted_of(matrix, _RCCL.sub("", name))
        denials = tuple(_denials(matrix, wanted))
        if rccl is not None and rccl[1] != matrix.lines[line].rccl:
            denials = (*denials, _rccl_denial(matrix, line, rccl[1]))
    near = tuple(nearest_cells(matrix, wanted))
    lines = [f"{name} cannot exist"]
    for denial in denials:
        lines += _reason_lines(matrix, denial, f"{denial.rule}: {denial.fact}")
    rows = [(one.cell.id, one.note) for one in near]
    lines += ["  nearest cells that can exist", *tables.plain(rows, indent="    ")] if rows else []
    return Answer(name=name, cell=None, denials=denials, near=near, lines=tuple(lines))


def _denials(matrix: Matrix, wanted: Wanted) -> Iterator[Denial]:
    """Every reason against a cell; of its platforms only when none is left."""
    missing = rules.unpublished(matrix, wanted)
    if missing is not None:
        yield missing
        if wanted.torch not in matrix.torch:
            return
        matrix = _as_if_published(matrix, wanted)
    one = cell(matrix, wanted)
    some = bool(rules.platforms(matrix, one))
    yield from (denial for denial in rules.denials(matrix, one) if denial.arch is None or not some)


def _as_if_published(matrix: Matrix, wanted: Wanted) -> Matrix:
    """The matrix with the torch on the line, to see what else is against the cell."""
    line = matrix.lines[wanted.line]
    torch = Torch(overrides=[wanted.nccl] if wanted.nccl else [])
    torches = {**line.torch, wanted.torch: torch}
    lines = {**matrix.lines, wanted.line: line.model_copy(update={"torch": torches})}
    return matrix.model_copy(update={"lines": lines})


def _rccl_denial(matrix: Matrix, line: str, rccl: str) -> Denial:
    has = matrix.lines[line].rccl or "no RCCL"
    return rules.checked(matrix, "rccl", f"{line} has {has}, not {rccl}")


def _left_out(matrix: Matrix, line: str, name: str) -> tuple[Wanted, tuple[Denial, ...]]:
    rows = [row for row in matrix.left_out if row.line == line]
    known = Line(accelerator="cpu", torch={row.torch: Torch() for row in rows})
    named = name if "-torch" in name else f"{name}-torch{max((r.torch for r in rows), key=Version)}"
    parsable = matrix.model_copy(update={"lines": {**matrix.lines, line: known}})
    wanted = wanted_of(parsable, _RCCL.sub("", named))
    own = [row for row in rows if row.torch == wanted.torch and named == name] or rows
    denials = [
        Denial(
            rule="left-out",
            fact=f"{row.line} with torch {row.torch} is published and left out here",
            reason=row.reason,
            source=row.source,
        )
        for row in own
    ]
    if wanted.torch not in known.torch:
        fact = f"torch {wanted.torch} was not published for {line}"
        denials.insert(0, rules.checked(matrix, "wheel", fact))
    return wanted, tuple(denials)


def nearest_cells(matrix: Matrix, wanted: Wanted) -> Iterator[Near]:
    """Cells that exist and differ as little as can be: one value given up, another torch of the
    line, another line with the torch."""
    seen: set[str] = set()
    for tries in _neighbours(matrix, wanted):
        known = (one for one in tries if one.torch in matrix.lines[one.line].torch)
        found = (cell(matrix, one) for one in known)
        near = next((one for one in found if rules.possible(matrix, one)), None)
        if near is not None and near.id not in seen:
            seen.add(near.id)
            yield Near(cell=near, note=_difference(wanted, near))
        if len(seen) == NEAREST:
            return


def _neighbours(matrix: Matrix, wanted: Wanted) -> Iterator[list[Wanted]]:
    """What to try: the first of each list that can exist is a neighbour."""
    line = matrix.lines.get(wanted.line)
    if line is not None:
        yield [wanted]
        yield [replace(wanted, nccl=None)]
        yield [replace(wanted, os=matrix.defaults.os)]
        yield [replace(wanted, os=other) for other in matrix.systems]
        yield [replace(wanted, flavor=matrix.defaults.flavor)]
        yield [replace(wanted, extras=())]
        torches = sorted(line.torch, key=Version, reverse=True)
        if wanted.torch not in matrix.torch:
            torches.sort(key=lambda torch: _distance(torch, wanted.torch))
        yield _plainer(matrix, wanted, torches)
    for name, other in matrix.lines.items():
        if name != wanted.line and wanted.torch in other.torch:
            there = replace(wanted, line=name, gpu_targets=())
            yield _plainer(matrix, there, [wanted.torch])


def _plainer(matrix: Matrix, wanted: Wanted, torches: Iterable[str]) -> list[Wanted]:
    """`wanted` with each torch; after them the same with every other axis at its default."""
    same = [replace(wanted, torch=torch) for torch in torches]
    os, flavor = matrix.defaults.os, matrix.defaults.flavor
    return [
        *same,
        *(replace(one, nccl=None) for one in same),
        *(replace(one, nccl=None, os=os, flavor=flavor, extras=()) for one in same),
    ]


def _difference(wanted: Wanted, found: Cell) -> str:
    said = [found.line] if found.line != wanted.line else []
    said += [f"torch {found.torch}"] if found.torch != wanted.torch else []
    if wanted.nccl and found.nccl != wanted.nccl:
        said.append(f"NCCL {found.nccl}" if found.nccl else "no NCCL to choose")
    said += [found.os] if found.os != wanted.os else []
    said += [found.flavor] if found.flavor != wanted.flavor else []
    said += [f"no {extra}" for extra in wanted.extras if extra not in found.extras]
    return f"differs in: {', '.join(said)}" if said else f"RCCL {found.rccl}"


def _distance(one: str, other: str) -> tuple[int, int]:
    a, b = Version(one), Version(other)
    return abs((a.major - b.major) * 1000 + a.minor - b.minor), abs(a.micro - b.micro)


# ---------------------------------------------------------------- cells that exist
def _existing(matrix: Matrix, one: Cell, gpu: Gpu | None) -> Answer:
    reasons = standard_reasons(matrix, one)
    kind = f"a standard cell ({reasons[0]})" if reasons else "possible, on demand: not published"
    lines = [f"{one.id}: {kind}"]
    rows = [(value.name, value.value, value.origin) for value in values_of(matrix, one)]
    lines += tables.plain(rows, indent="  ")
    lines += [f"  platforms: {', '.join(rules.platforms(matrix, one))}"]
    denials = rules.denials(matrix, one)
    for denial in denials:
        title = f"not on {denial.arch}, {denial.rule}: {denial.fact}"
        lines += _reason_lines(matrix, denial, title)
    line = matrix.lines[one.line]
    if line.driver is not None:
        title = f"driver: {line.driver.floor} or newer; its toolkit's own is {line.driver.toolkit}"
        lines += _check_lines(matrix, "driver", title)
    if line.gpus:
        codes = [
            f"{arch}: {' '.join(gpus.archs_of(matrix, one, arch))}"
            for arch in rules.platforms(matrix, one)
        ]
        lines += _check_lines(matrix, "gpus", f"GPUs, {'; '.join(codes)}")
    for warning in rules.warnings(matrix, one):
        lines += _reason_lines(matrix, warning, f"known fault, {warning.rule}: {warning.fact}")
    gpu_ok = None
    if gpu is not None:
        gpu_ok = gpus.runs_on(matrix, one, gpu)
        lines += _gpu_lines(matrix, one, gpu, gpu_ok)
    return Answer(name=one.id, cell=one, denials=denials, gpu_ok=gpu_ok, lines=tuple(lines))


def _gpu_lines(matrix: Matrix, one: Cell, gpu: Gpu, ok: bool) -> Iterator[str]:
    for arch in rules.platforms(matrix, one):
        found = gpus.support(gpus.archs_of(matrix, one, arch), gpu)
        yield f"  GPU {gpu.name} on {arch}: {'yes' if found.ok else 'no'}, it {found.reason}"
        driver = matrix.lines[one.line].driver
        if found.ptx and driver is not None:
            yield f"    the driver compiles PTX from {driver.toolkit} on"
    if not ok:
        yield from (f"  {line}" for line in lines_for(matrix, gpu))


def lines_for(matrix: Matrix, gpu: Gpu) -> Iterator[str]:
    """The lines that have something for a GPU, in words."""
    found = list(gpus.supporting(matrix, gpu))
    if not found:
        yield f"no line runs on {gpu.name}; there is {', '.join(gpus.known(matrix))}"
        return
    yield f"lines that run on {gpu.name}:"
    rows = [(row.line, f"torch {', '.join(row.torches)}", row.cell) for row in found]
    yield from tables.plain(rows, indent="  ")


# ---------------------------------------------------------------- words
def _reason_lines(matrix: Matrix, denial: Denial, title: str) -> list[str]:
    return [
        f"  {title}",
        f"    reason: {denial.reason}",
        f"    source: {source_of(matrix, denial.source)}",
    ]


def _check_lines(matrix: Matrix, check: str, title: str) -> list[str]:
    row = matrix.checks[check]
    return [
        f"  {title}",
        f"    reason: {row.reason}",
        f"    source: {source_of(matrix, row.source)}",
    ]
