"""One checkout, read and checked: its matrix, its lock and where its things lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucomm import lock as locks
from gpucomm import matrix as matrices
from gpucomm import places, registry, render, rules
from gpucomm.cell import Cell
from gpucomm.lock import Lock, Wheel
from gpucomm.places import Places
from gpucomm.schema import Matrix
from gpucomm.standard import by_id


@dataclass(frozen=True, kw_only=True)
class Project:
    """Everything that is a pure function of the checkout's files, and REGISTRY."""

    matrix: Matrix
    lock: Lock
    places: Places
    repository: str
    """Registry and name of the images: matrix.yaml's, or REGISTRY."""

    def wheels(self, cell: Cell) -> tuple[Wheel, ...]:
        """What `cell` installs on this builder's platform; nothing if it is unlocked."""
        return self.lock.wheels(cell, self.matrix)

    def rendered(self) -> dict[str, str]:
        """What images/ must hold: the standard cells."""
        return render.render(self.matrix, self.lock, self.places.templates)

    def recipe(self, cell: Cell) -> Path:
        """The folder with the rendered files of `cell`."""
        standard = cell.id in by_id(self.matrix)
        return (self.places.images if standard else self.places.on_demand) / cell.id

    def never_resolved(self, cell: Cell) -> bool:
        """Whether no lock says anything of `cell`: it is made on demand, for the first time."""
        keys = {locks.key_of(cell, arch) for arch in rules.platforms(self.matrix, cell)}
        return not keys & (self.lock.cells.keys() | self.lock.unlocked.keys())

    def write_recipes(self, cells: Iterable[Cell]) -> int:
        """Write images/, and the files of those of `cells` that are not standard; the changes."""
        changed = render.write(self.rendered(), self.places.images)
        for cell in cells:
            if cell.id not in by_id(self.matrix):
                files = render.render_cell(self.matrix, self.lock, self.places.templates, cell)
                render.write(files, self.recipe(cell))
        return changed

    def reference(self, cell: Cell) -> str:
        """Name of the image of `cell`."""
        return f"{self.repository}:{cell.id}"


def load(env: Mapping[str, str] = os.environ, start: Path | None = None) -> Project:
    """The checkout around `start`, else the working directory. Raises WrongInput, all faults."""
    where = places.find(env, start)
    matrix = matrices.load(where.root)
    return Project(
        matrix=matrix,
        lock=locks.load(where.root, matrix).joined(locks.read(where.on_demand / locks.FILE)),
        places=where,
        repository=registry.check_name(env.get("REGISTRY") or matrix.registry),
    )
