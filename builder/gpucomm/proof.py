"""How far a cell was proved, and by which evidence: docs/evidence/proofs.json.

Rendered text is no proof that an image works; this file says for each cell what was really done.
A cell that it does not name was only rendered. The checks that need the evidence itself are in
`evidence_faults`; the drift gate runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel

from gpucomm.errors import WrongInput
from gpucomm.jsonfile import read
from gpucomm.located import Located
from gpucomm.schema import DateText, Matrix, Model
from gpucomm.standard import on_demand

FILE = "docs/evidence/proofs.json"
RENDERED = "rendered"
Level = Literal["built", "cpu", "gpu"]
LEVELS: tuple[Level, ...] = ("built", "cpu", "gpu")


def _relative(text: str) -> str:
    path = Path(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{text!r} is not a path inside the checkout")
    return text


class Proof(Model):
    """One thing that was done with the image of a cell."""

    level: Level
    date: DateText
    evidence: Annotated[str, AfterValidator(_relative)]
    """File of the checkout that shows it."""
    device: Annotated[str, Field(min_length=2)] | None = None
    """The GPU, where the level is `gpu`."""

    @property
    def said(self) -> str:
        """The proof in a few words."""
        match self.level:
            case "gpu":
                return f"verified on GPU ({self.device}, {self.date})"
            case "cpu":
                return "verified on CPU"
            case "built":
                return "built"


class _File(RootModel[dict[str, list[Proof]]]):
    """The whole file: proofs by cell id."""


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """Everything that was proved, by cell id."""

    by_cell: Mapping[str, tuple[Proof, ...]] = field(default_factory=dict)

    def highest(self, cell_id: str) -> Proof | None:
        """The strongest proof of a cell, the newest of its level; None where it was only
        rendered."""
        return max(
            self.by_cell.get(cell_id, ()),
            key=lambda proof: (LEVELS.index(proof.level), proof.date),
            default=None,
        )

    def said(self, cell_id: str) -> str:
        """How far a cell was proved, in a few words."""
        proof = self.highest(cell_id)
        return proof.said if proof else RENDERED


def load(root: Path, matrix: Matrix) -> Proofs:
    """The proofs of a checkout; none where it has no such file. Raises WrongInput, all faults."""
    return _load(root, matrix)[0]


def _load(root: Path, matrix: Matrix) -> tuple[Proofs, Located | None]:
    if not (root / FILE).exists():
        return Proofs(), None
    file, located = read(root / FILE, _File, FILE)
    if faults := list(_faults(matrix, located, file.root)):
        raise WrongInput(faults)
    proofs = {cell_id: tuple(proofs) for cell_id, proofs in file.root.items()}
    return Proofs(by_cell=proofs), located


def _faults(matrix: Matrix, located: Located, by_cell: Mapping[str, list[Proof]]) -> Iterator[str]:
    for cell_id, proofs in by_cell.items():
        try:
            found = on_demand(matrix, cell_id).id
        except WrongInput as error:
            yield from (located.fault((cell_id,), fault) for fault in error.faults)
        else:
            if found != cell_id:
                yield located.fault((cell_id,), f"the id of this cell is {found}")
        for index, proof in enumerate(proofs):
            if (proof.device is None) == (proof.level == "gpu"):
                need = "needed" if proof.level == "gpu" else "without meaning"
                message = f"device: {need} where the level is {proof.level}"
                yield located.fault((cell_id, index), message)


def evidence_faults(root: Path, matrix: Matrix) -> Iterator[str]:
    """Every proof whose evidence is not there or does not mention the cell.

    Raises WrongInput like `load`.
    """
    proofs, located = _load(root, matrix)
    if located is None:
        return
    for cell_id, row in proofs.by_cell.items():
        for index, proof in enumerate(row):
            place = (cell_id, index, "evidence")
            path = root / proof.evidence
            if not path.is_file():
                yield located.fault(place, f"there is no file {proof.evidence}")
            elif cell_id not in path.read_text(encoding="utf-8", errors="replace"):
                yield located.fault(place, f"{proof.evidence} does not mention {cell_id}")
