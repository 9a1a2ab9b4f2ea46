"""Reads and checks matrix.yaml, the one source of truth for versions.

Owns: references between keys, and messages that name file and line, all at once. It does not
resolve wheels (lock.py) or know Docker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version
from pydantic import ValidationError

from gpucomm.cell import cells_of
from gpucomm.errors import WrongInput
from gpucomm.located import Located, Location, read
from gpucomm.lock import holds_for
from gpucomm.schema import Line, Matrix

FILE = "matrix.yaml"


def load(root: Path) -> Matrix:
    """Read and check `root`/matrix.yaml. Raises WrongInput with every fault, each `file:line:`."""
    return check(read(root / FILE))


def check(located: Located) -> Matrix:
    """Turn located data into a Matrix, or raise WrongInput with every fault at once."""
    faults = list(located.faults)
    matrix: Matrix | None = None
    if located.lines:
        try:
            matrix = Matrix.model_validate(located.data)
        except ValidationError as error:
            faults += _schema_faults(located, error)
    if matrix is not None:
        faults += [located.fault(path, message) for path, message in _reference_faults(matrix)]
    if faults or matrix is None:
        raise WrongInput(sorted(faults or [f"{located.file}:1: empty file"], key=_line_of))
    return matrix


def _line_of(fault: str) -> int:
    number = fault.split(":", 2)[1]
    return int(number) if number.isdigit() else 0


def _schema_faults(located: Located, error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        # pydantic marks a fault in a mapping's key with the extra step "[key]"
        path: Location = tuple(part for part in item["loc"] if part != "[key]")
        written = located.texts.get(path)
        match item["type"]:
            case "string_type" if written is not None:
                message = f'{written} is read as a number or a word of YAML; quote it: "{written}"'
            case "extra_forbidden":
                message = "unknown key"
            case "missing":
                message = "missing"
            case _:
                message = item["msg"].removeprefix("Value error, ")
        yield located.fault(path, message)


def _reference_faults(matrix: Matrix) -> Iterator[tuple[Location, str]]:
    complete = True
    for axis, known in (("os", matrix.systems), ("flavor", matrix.flavors)):
        value = getattr(matrix.defaults, axis)
        if value not in known:
            complete = False
            yield ("defaults", axis), f"{value!r} is not one of {', '.join(known)}"
    for name, line in matrix.lines.items():
        for path, message in _line_faults(matrix, line):
            complete = False
            yield ("lines", name, *path), message
    if not complete:
        return
    yield from _hold_faults(matrix)
    ids = {cell.id for cell in cells_of(matrix)}
    for alias, target in matrix.aliases.items():
        if target not in ids:
            yield ("aliases", alias), f"{target!r} is not a cell of this matrix"
        if alias in ids:
            yield ("aliases", alias), "an alias cannot have the name of a cell"


def _given_twice(
    key: str, values: Sequence[str], same: Callable[[str], object]
) -> Iterator[tuple[Location, str]]:
    """Two alike would be two cells of one name."""
    seen: set[object] = set()
    for index, value in enumerate(values):
        if same(value) in seen:
            yield (key, index), f"{value!r} is given twice"
        seen.add(same(value))


def _hold_faults(matrix: Matrix) -> Iterator[tuple[Location, str]]:
    for index, hold in enumerate(matrix.holds):
        lines = {
            cell.line: None
            for cell in cells_of(matrix)
            if cell.cuda is None and hold in holds_for(matrix, cell)
        }
        if lines and "{cuda}" in hold.require:
            where = ", ".join(lines)
            message = f"{{cuda}} has no meaning on {where}, which this rule covers; give it lines"
            yield ("holds", index, "require"), message


def _line_faults(matrix: Matrix, line: Line) -> Iterator[tuple[Location, str]]:
    for key in ("cuda", "nccl_wheel", "nvidia_require"):
        if (getattr(line, key) is None) == (line.accelerator == "cuda"):
            need = "needed on" if line.accelerator == "cuda" else "without meaning on"
            yield (key,), f"{need} a line whose accelerator is {line.accelerator}"
    if line.nccl_overrides and line.accelerator != "cuda":
        accelerator = line.accelerator
        yield ("nccl_overrides",), f"without meaning on a line whose accelerator is {accelerator}"
    yield from _given_twice("nccl_overrides", line.nccl_overrides, Version)
    yield from _given_twice("flavors", line.flavors, str)
    for version, torch in line.torch.items():
        if (torch.nccl is None) == (line.accelerator == "cuda"):
            need = "name the NCCL its wheel requires" if torch.nccl is None else "no NCCL here"
            yield ("torch", version, "nccl"), need
    for index, flavor in enumerate(line.flavors):
        if flavor not in matrix.flavors:
            known = ", ".join(matrix.flavors)
            yield ("flavors", index), f"{flavor!r} is not one of {known}"
        if flavor not in line.size_budget_mb:
            yield ("size_budget_mb",), f"no budget for the flavor {flavor}"
    for flavor in line.size_budget_mb:
        if flavor not in line.flavors:
            yield ("size_budget_mb", flavor), "this line has no such flavor"
