"""matrix.lock: every wheel of every cell with version, file, sha256 and size, and base digests.

Owns: the lock's shape, reading and writing it, and the check that it answers the matrix. The lock
names no index: a wheel is known by its hash, so any mirror can serve it. Resolving is resolve.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from gpucomm.cell import Cell, cells_of
from gpucomm.errors import WrongInput
from gpucomm.schema import Hold, Matrix

FILE = "matrix.lock"
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One file of one package. `size` is in bytes."""

    name: str
    version: str
    file: str
    sha256: str
    size: int

    @property
    def pin(self) -> str:
        """The requirement line that accepts this file and no other."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """`cells` by pins id, `tools` by Python version, `bases` (image digest) by system."""

    cells: Mapping[str, tuple[Wheel, ...]]
    tools: Mapping[str, tuple[Wheel, ...]]
    bases: Mapping[str, str]

    def wheels(self, cell: Cell, matrix: Matrix) -> tuple[Wheel, ...]:
        """What `cell` installs: its lock less what its flavor leaves out."""
        without = matrix.flavors[cell.flavor].without
        return tuple(wheel for wheel in self.cells[cell.pins_id] if wheel.name not in without)

    def version(self, cell: Cell, package: str) -> str | None:
        """Locked version of `package` in `cell`, None where it has none."""
        found = (wheel.version for wheel in self.cells[cell.pins_id] if wheel.name == package)
        return next(found, None)


EMPTY = Lock(cells={}, tools={}, bases={})


def load(root: Path, matrix: Matrix) -> Lock:
    """Read `root`/matrix.lock and hold it against the matrix. Raises WrongInput, all faults."""
    lock = read(root)
    if faults := [f"{FILE}: {fault}; run gpucomm lock" for fault in faults_of(matrix, lock)]:
        raise WrongInput(faults)
    return lock


def read(root: Path) -> Lock:
    """Read `root`/matrix.lock without checking it; an absent file is the empty lock."""
    path = root / FILE
    if not path.exists():
        return EMPTY
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = {file: Wheel(file=file, **entry) for file, entry in data["wheels"].items()}
        return Lock(
            cells={
                key: tuple(files[file] for file in value) for key, value in data["cells"].items()
            },
            tools={
                key: tuple(files[file] for file in value) for key, value in data["tools"].items()
            },
            bases=dict(data["bases"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongInput(f"{FILE}: not a lock ({error!r}); run gpucomm lock") from None


def write(root: Path, lock: Lock) -> None:
    """Replace `root`/matrix.lock as a whole."""
    wheels = {wheel.file: wheel for group in (lock.cells, lock.tools) for row in group.values()
              for wheel in row}  # fmt: skip
    data = {
        "version": 1,
        "bases": dict(sorted(lock.bases.items())),
        "tools": {key: [wheel.file for wheel in value] for key, value in lock.tools.items()},
        "cells": {key: [wheel.file for wheel in value] for key, value in lock.cells.items()},
        "wheels": {
            file: {key: value for key, value in asdict(wheels[file]).items() if key != "file"}
            for file in sorted(wheels)
        },
    }
    temporary = root / f".{FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(root / FILE)


def differences(before: Lock, after: Lock) -> list[str]:
    """What a person reads after `gpucomm lock`: every changed version, one line each."""
    rows: list[str] = []
    for pins_id, wheels in after.cells.items():
        old = {wheel.name: wheel.version for wheel in before.cells.get(pins_id, ())}
        new = {wheel.name: wheel.version for wheel in wheels}
        rows += [
            f"{pins_id}: {name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    rows += [f"{key}: no longer in the matrix" for key in before.cells if key not in after.cells]
    rows += [
        f"base {name}: {before.bases.get(name, 'absent')} -> {digest}"
        for name, digest in after.bases.items()
        if before.bases.get(name) != digest
    ]
    return rows


def holds_for(matrix: Matrix, cell: Cell) -> tuple[Hold, ...]:
    """The rules of the matrix that concern `cell`."""
    return tuple(
        hold
        for hold in matrix.holds
        if any(fnmatchcase(cell.line, glob) for glob in hold.lines)
        and Version(cell.torch) in SpecifierSet(hold.torch)
    )


def held(hold: Hold, cell: Cell) -> SpecifierSet:
    """The specifier of a rule with the cell's CUDA version in it."""
    return SpecifierSet(hold.require.replace("{cuda}", cell.cuda or ""))


def faults_of(matrix: Matrix, lock: Lock) -> Iterator[str]:
    """Every way in which the lock does not answer the matrix."""
    known = {cell.pins_id: cell for cell in cells_of(matrix)}
    for pins_id, cell in known.items():
        yield from (f"{pins_id}: {fault}" for fault in cell_faults(matrix, lock, cell))
    for python in sorted({cell.python for cell in known.values()}):
        if not set(matrix.tools) <= {wheel.name for wheel in lock.tools.get(python, ())}:
            yield f"the tools for Python {python} are not locked"
    yield from (f"{key}: locked but not in the matrix" for key in lock.cells if key not in known)


def cell_faults(matrix: Matrix, lock: Lock, cell: Cell) -> Iterator[str]:
    """Every way in which the lock of `cell` does not answer the matrix."""
    if cell.pins_id not in lock.cells:
        yield "not locked"
        return
    line = matrix.lines[cell.line]
    torch = lock.version(cell, "torch")
    if torch is None or Version(torch).public != cell.torch:
        yield f"torch is {torch}, the matrix says {cell.torch}"
    for package in matrix.with_:
        if lock.version(cell, package) is None:
            yield f"{package} is missing"
    if line.nccl_wheel is not None:
        nccl = lock.version(cell, line.nccl_wheel)
        if nccl != cell.nccl:
            yield f"NCCL is {nccl}, the matrix says {cell.nccl}"
        # The wheel says itself which CUDA it was built for, by the runtime that it requires.
        runtime = lock.version(cell, CUDA_RUNTIME)
        if runtime is None or Version(runtime).release[:2] != Version(cell.cuda or "0").release[:2]:
            yield f"the wheel requires CUDA runtime {runtime}, the line is CUDA {cell.cuda}"
    if line.accelerator == "cpu" and (cuda := _cuda_signs(lock, cell)):
        yield f"torch is a CUDA build ({', '.join(cuda)}), the line is CPU"
    for hold in holds_for(matrix, cell):
        version = lock.version(cell, hold.package)
        if version is not None and version not in held(hold, cell):
            yield f"{hold.package} is {version}, held at {held(hold, cell)}: {hold.reason}"


def _cuda_signs(lock: Lock, cell: Cell) -> list[str]:
    """What shows that a cell's torch was built for CUDA: its local version, NVIDIA's wheels."""
    wheels = lock.cells[cell.pins_id]
    local = Version(lock.version(cell, "torch") or "0").local or ""
    nvidia = [wheel.name for wheel in wheels if wheel.name.startswith("nvidia-")]
    return [f"+{local}", *nvidia] if local.startswith("cu") else nvidia
