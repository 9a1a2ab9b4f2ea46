"""What TARGET= takes: an alias, a cell id, a glob with braces, several by commas, or `all`.

A glob and `all` pick from the standard cells. An id names any cell that can exist.
"""

from __future__ import annotations

import difflib
import re

from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.rules import meets
from gpucomm.schema import Matrix
from gpucomm.standard import by_id, cells_of, on_demand


def select(matrix: Matrix, selector: str) -> tuple[Cell, ...]:
    """The cells that `selector` names, in matrix order, each once; those on demand come last.

    Raises WrongInput with one line for every part that names nothing.
    """
    wanted: dict[str, Cell] = {}
    faults: list[str] = []
    for part in split(selector):
        try:
            wanted |= {cell.id: cell for cell in _named(matrix, part)}
        except WrongInput as error:
            faults += error.faults
    if faults:
        raise WrongInput(faults)
    standard = by_id(matrix)
    listed = [cell for cell in cells_of(matrix) if cell.id in wanted]
    return (*listed, *(cell for cell in wanted.values() if cell.id not in standard))


def _named(matrix: Matrix, part: str) -> tuple[Cell, ...]:
    standard = by_id(matrix)
    if part in matrix.aliases:
        return (standard[matrix.aliases[part]],)
    if part in standard:
        return (standard[part],)
    if found := _matching(cells_of(matrix), part):
        return found
    if "-torch" in part and not set("*?[{") & set(part):
        return (on_demand(matrix, part),)
    raise WrongInput(_unknown(matrix, cells_of(matrix), part))


def select_one(matrix: Matrix, selector: str) -> Cell:
    """The one cell that `selector` names. Raises WrongInput when it names more."""
    chosen = select(matrix, selector)
    if len(chosen) != 1:
        names = ", ".join(cell.id for cell in chosen)
        raise WrongInput(f"TARGET {selector!r} names {len(chosen)} cells, name one of: {names}")
    return chosen[0]


def split(selector: str) -> list[str]:
    """Split at the commas that are not inside braces."""
    depth, pieces = 0, [""]
    for char in selector:
        depth = max(depth + {"{": 1, "}": -1}.get(char, 0), 0)
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    parts = [piece.strip() for piece in pieces]
    if not all(parts):
        raise WrongInput(f"TARGET {selector!r} has an empty part")
    return parts


def _matching(cells: tuple[Cell, ...], pattern: str) -> tuple[Cell, ...]:
    if pattern == "all":
        return cells
    globs = expand_braces(pattern)
    return tuple(cell for cell in cells if meets(cell.id, globs))


def expand_braces(pattern: str) -> list[str]:
    """`cu12{1,4}-*` becomes `cu121-*`, `cu124-*`; nesting works from the inside out."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [whole for part in match[1].split(",") for whole in expand_braces(f"{head}{part}{tail}")]


def _unknown(matrix: Matrix, cells: tuple[Cell, ...], part: str) -> str:
    names = [*matrix.aliases, *(cell.id for cell in cells)]
    near = difflib.get_close_matches(part, names, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else f"try one of: {', '.join(matrix.aliases)}"
    return f"TARGET {part!r} names no cell; {hint} (gpucomm list shows all)"
