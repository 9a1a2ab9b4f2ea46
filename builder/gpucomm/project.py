"""One checkout, read and checked: its matrix, its lock and where its things lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucomm import lock as locks
from gpucomm import matrix as matrices
from gpucomm import places, registry, render
from gpucomm.cell import Cell
from gpucomm.lock import Lock, Wheel
from gpucomm.places import Places
from gpucomm.schema import Matrix


@dataclass(frozen=True, kw_only=True)
class Project:
    """Everything that is a pure function of the checkout's files, and REGISTRY."""

    matrix: Matrix
    lock: Lock
    places: Places
    repository: str
    """Registry and name of the images: matrix.yaml's, or REGISTRY."""

    def wheels(self, cell: Cell) -> tuple[Wheel, ...]:
        """What `cell` installs."""
        return self.lock.wheels(cell, self.matrix)

    def rendered(self) -> dict[str, str]:
        """What images/ must hold."""
        return render.render(self.matrix, self.lock, self.places.templates)

    def reference(self, cell: Cell) -> str:
        """Name of the image of `cell`."""
        return f"{self.repository}:{cell.id}"


def load(env: Mapping[str, str] = os.environ, start: Path | None = None) -> Project:
    """The checkout around `start`, else the working directory. Raises WrongInput, all faults."""
    where = places.find(env, start)
    matrix = matrices.load(where.root)
    return Project(
        matrix=matrix,
        lock=locks.load(where.root, matrix),
        places=where,
        repository=registry.check_name(env.get("REGISTRY") or matrix.registry),
    )
