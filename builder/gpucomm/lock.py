"""matrix.lock: every wheel of every cell with version, file, sha256 and size, and base digests.

Owns: the lock's shape, reading and writing it, and the check that it answers the matrix. The lock
names no index: a wheel is known by its hash, so any mirror can serve it. What could not be resolved
stays in it as `unlocked`, with the reason. Resolving is resolve.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from gpucomm.cell import Cell, additions
from gpucomm.errors import WrongInput
from gpucomm.rules import contains, meets, platforms
from gpucomm.schema import STATIC, Architecture, Hold, Matrix
from gpucomm.standard import cells_of

FILE = "matrix.lock"
MAIN: Architecture = "amd64"
"""The platform whose keys in the lock have no suffix."""
EXPIRY_NOTICE = timedelta(days=90)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One file of one package. `size` is in bytes."""

    name: str
    version: str
    file: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Lock:
    """`cells` and `unlocked` (the reason) by pins id, `tools` by Python version, each with its
    platform; `bases` (image digest) by image; `aliases` as they were when it was made."""

    cells: Mapping[str, tuple[Wheel, ...]]
    tools: Mapping[str, tuple[Wheel, ...]]
    bases: Mapping[str, str]
    unlocked: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def wheels(self, cell: Cell, matrix: Matrix, arch: Architecture = MAIN) -> tuple[Wheel, ...]:
        """What `cell` installs: its lock less what its flavor leaves out; nothing if unlocked."""
        without = matrix.flavors[cell.flavor].without
        found = self.cells.get(key_of(cell, arch), ())
        return tuple(wheel for wheel in found if wheel.name not in without)

    def version(self, cell: Cell, package: str, arch: Architecture = MAIN) -> str | None:
        """Locked version of `package` in `cell`, None where it has none."""
        found = self.cells.get(key_of(cell, arch), ())
        return next((wheel.version for wheel in found if wheel.name == package), None)

    def locked(self, cell: Cell, matrix: Matrix) -> tuple[Architecture, ...]:
        """The platforms of `cell` that are locked."""
        return tuple(arch for arch in platforms(matrix, cell) if key_of(cell, arch) in self.cells)

    def reason(self, cell: Cell, matrix: Matrix) -> str | None:
        """Why no platform of `cell` is locked; None when one is."""
        if self.locked(cell, matrix):
            return None
        reasons = (self.unlocked.get(key_of(cell, a)) for a in platforms(matrix, cell))
        return next((reason for reason in reasons if reason), "it was never resolved")

    def joined(self, other: Lock) -> Lock:
        """This lock, and what only `other` has."""
        cells = {**other.cells, **self.cells}
        return Lock(
            cells=cells,
            tools={**other.tools, **self.tools},
            bases={**other.bases, **self.bases},
            unlocked={
                key: reason
                for key, reason in {**other.unlocked, **self.unlocked}.items()
                if key not in cells
            },
            aliases=self.aliases,
        )


EMPTY = Lock(cells={}, tools={}, bases={})


def key_of(cell: Cell, arch: Architecture) -> str:
    """Key of one platform of `cell` in the lock."""
    return cell.pins_id if arch == MAIN else f"{cell.pins_id}-{arch}"


def tools_key(python: str, arch: Architecture) -> str:
    """Key of the tools for one Python on one platform."""
    return python if arch == MAIN else f"{python}-{arch}"


def wanted_keys(matrix: Matrix, cells: Iterable[Cell]) -> dict[str, tuple[Cell, Architecture]]:
    """Every key that `cells` need, each with one cell and the platform that it is for."""
    return {key_of(cell, arch): (cell, arch) for cell in cells for arch in platforms(matrix, cell)}


def load(root: Path, matrix: Matrix) -> Lock:
    """Read `root`/matrix.lock and hold it against the matrix. Raises WrongInput, all faults."""
    lock = read(root / FILE)
    if faults := [f"{FILE}: {fault}; run gpucomm lock" for fault in faults_of(matrix, lock)]:
        raise WrongInput(faults)
    return lock


def read(path: Path) -> Lock:
    """Read a lock without holding it against a matrix; an absent file is the empty lock."""
    if not path.exists():
        return EMPTY
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = {file: Wheel(file=file, **entry) for file, entry in data["wheels"].items()}
        lock = Lock(
            cells=_wheels_by_key(data["cells"], files),
            tools=_wheels_by_key(data["tools"], files),
            bases=dict(data["bases"]),
            unlocked=dict(data["unlocked"]),
            aliases=dict(data["aliases"]),
        )
        sealed = data["seal"] == _seal(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongInput(f"{path.name}: not a lock ({error!r}); run gpucomm lock") from None
    if not sealed:
        raise WrongInput(
            f"{path.name}: edited by hand, its seal does not fit; take the committed file back, "
            "or run gpucomm lock --upgrade to resolve everything anew"
        )
    return lock


def _wheels_by_key(
    rows: Mapping[str, list[str]], files: Mapping[str, Wheel]
) -> dict[str, tuple[Wheel, ...]]:
    return {key: tuple(files[file] for file in value) for key, value in rows.items()}


def _seal(data: Mapping[str, Any]) -> str:
    """sha256 of everything else in the file: one edited hash or version does not fit."""
    content = {key: value for key, value in data.items() if key != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write(path: Path, lock: Lock) -> None:
    """Replace a lock file as a whole."""
    wheels = {
        wheel.file: wheel
        for group in (lock.cells, lock.tools)
        for row in group.values()
        for wheel in row
    }
    data: dict[str, Any] = {
        "version": 2,
        "aliases": dict(lock.aliases),
        "bases": dict(sorted(lock.bases.items())),
        "tools": _files_by_key(dict(sorted(lock.tools.items()))),
        "unlocked": dict(lock.unlocked),
        "cells": _files_by_key(lock.cells),
        "wheels": {
            file: {key: value for key, value in asdict(wheels[file]).items() if key != "file"}
            for file in sorted(wheels)
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps({"seal": _seal(data), **data}, indent=1)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _files_by_key(rows: Mapping[str, tuple[Wheel, ...]]) -> dict[str, list[str]]:
    return {key: [wheel.file for wheel in value] for key, value in rows.items()}


def differences(before: Lock, after: Lock) -> list[str]:
    """What a person reads after `gpucomm lock`: every changed version, one line each."""
    rows: list[str] = []
    for key, wheels in after.cells.items():
        rows += _changes(key, before.cells.get(key, ()), wheels)
    for key, wheels in after.tools.items():
        rows += _changes(f"tools for Python {key}", before.tools.get(key, ()), wheels)
    rows += [
        f"{key}: unlocked: {reason}"
        for key, reason in after.unlocked.items()
        if before.unlocked.get(key) != reason
    ]
    gone = (
        (before.cells.keys() | before.unlocked.keys()) - after.cells.keys() - after.unlocked.keys()
    )
    rows += [f"{key}: no longer in the matrix" for key in sorted(gone)]
    for what, old_map, new_map in (
        ("base", before.bases, after.bases),
        ("alias", before.aliases, after.aliases),
    ):
        rows += [
            f"{what} {name}: {old_map.get(name, 'absent')} -> {new_map.get(name, 'absent')}"
            for name in sorted(old_map.keys() | new_map.keys())
            if old_map.get(name) != new_map.get(name)
        ]
    return rows


def _changes(key: str, before: tuple[Wheel, ...], after: tuple[Wheel, ...]) -> Iterator[str]:
    old = {wheel.name: wheel for wheel in before}
    new = {wheel.name: wheel for wheel in after}
    if not old:
        yield f"{key}: locked, {len(new)} wheels"
        return
    for name in sorted(old.keys() | new.keys()):
        was, now = _version(old.get(name)), _version(new.get(name))
        if was != now:
            yield f"{key}: {name} {was} -> {now}"
        elif old[name].sha256 != new[name].sha256:
            yield f"{key}: {name} {now}: another file of the same version"


def _version(wheel: Wheel | None) -> str:
    return wheel.version if wheel else "absent"


def holds_for(matrix: Matrix, cell: Cell) -> tuple[Hold, ...]:
    """The holds of the matrix that concern `cell`."""
    return tuple(
        hold
        for hold in matrix.holds
        if meets(cell.line, hold.lines) and contains(hold.torch, cell.torch)
    )


def with_cuda(require: str, cell: Cell) -> str:
    """A specifier of the matrix with the cell's CUDA version in it."""
    return require.replace("{cuda}", cell.cuda or "")


def held(hold: Hold, cell: Cell) -> SpecifierSet:
    """What a hold leaves of a package's versions for `cell`."""
    return SpecifierSet(with_cuda(hold.require, cell))


def faults_of(matrix: Matrix, lock: Lock) -> Iterator[str]:
    """Every way in which the lock does not answer the matrix."""
    known = wanted_keys(matrix, cells_of(matrix))
    for key, (cell, arch) in known.items():
        yield from (f"{key}: {fault}" for fault in cell_faults(matrix, lock, cell, arch))
    for key in sorted({tools_key(cell.python, arch) for cell, arch in known.values()}):
        if not set(matrix.tools) <= {wheel.name for wheel in lock.tools.get(key, ())}:
            yield f"the tools for Python {key} are not locked"
    for key in sorted(lock.cells.keys() | lock.unlocked.keys()):
        if key not in known:
            yield f"{key}: in the lock but not in the matrix"
    for alias in sorted(matrix.aliases.keys() | lock.aliases.keys()):
        was, now = lock.aliases.get(alias), matrix.aliases.get(alias)
        if was != now:
            yield f"alias {alias}: {was or 'absent'} when it was locked, now {now or 'absent'}"


def cell_faults(matrix: Matrix, lock: Lock, cell: Cell, arch: Architecture = MAIN) -> Iterator[str]:
    """Every way in which the lock of one platform of `cell` does not answer the matrix."""
    key = key_of(cell, arch)
    if key not in lock.cells:
        if key not in lock.unlocked:
            yield "not locked"
        return

    def version(package: str) -> str | None:
        return lock.version(cell, package, arch)

    for wheel in lock.cells[key]:
        if not _SHA256.fullmatch(wheel.sha256):
            yield f"{wheel.name} has no sha256"
    torch = version("torch")
    if torch is None or Version(torch).public != cell.torch:
        yield f"torch is {torch}, the matrix says {cell.torch}"
    for package in matrix.with_:
        if version(package) is None:
            yield f"{package} is missing"
    for extra in cell.extras:
        wheel_name = matrix.extras[extra].wheel
        if wheel_name is not None:
            wanted, found = matrix.torch[cell.torch].wheels[wheel_name], version(wheel_name)
            if found is None or Version(found).public != wanted:
                yield f"{wheel_name} is {found}, the matrix says {wanted}"
    for package, require in additions(matrix, line=cell.line, flavor=cell.flavor, os=cell.os):
        found = version(package)
        if found is None or found not in SpecifierSet(with_cuda(require, cell)):
            yield f"{package} is {found}, the flavor {cell.flavor} adds {require or 'any'}"
    yield from _accelerator_faults(matrix, lock, cell, arch)
    for hold in holds_for(matrix, cell):
        found = version(hold.package)
        if found is not None and found not in held(hold, cell):
            yield f"{hold.package} is {found}, held at {held(hold, cell)}: {hold.reason}"


def _accelerator_faults(
    matrix: Matrix, lock: Lock, cell: Cell, arch: Architecture
) -> Iterator[str]:
    line = matrix.lines[cell.line]
    local = Version(lock.version(cell, "torch", arch) or "0").local
    if line.nccl_family is not None:
        family = matrix.nccl_families[line.nccl_family]
        nccl = lock.version(cell, family.wheel, arch)
        if nccl != cell.nccl:  # None on both sides where NCCL is linked into torch
            yield f"NCCL is {nccl}, the matrix says {cell.nccl}"
        # The wheel says itself which CUDA it was built for: by the runtime that it requires or,
        # with NCCL and all of CUDA inside, by its local version.
        runtime = lock.version(cell, family.runtime, arch)
        if runtime is None and line.torch[cell.torch].nccl == STATIC:
            if local != cell.line:
                yield f"torch is +{local}, the line is {cell.line}"
        elif Version(runtime or "0").release[:2] != Version(cell.cuda or "0").release[:2]:
            yield f"the wheel requires CUDA runtime {runtime}, the line is CUDA {cell.cuda}"
    elif signs := _cuda_signs(lock, cell, arch):
        yield f"torch is a CUDA build ({', '.join(signs)}), the line is {cell.line}"
    if cell.accelerator == "rocm" and local != cell.line:
        yield f"torch is +{local}, the line is {cell.line}"


def _cuda_signs(lock: Lock, cell: Cell, arch: Architecture) -> list[str]:
    """What shows that a torch was built for CUDA: its local version, NVIDIA's wheels."""
    wheels = lock.cells[key_of(cell, arch)]
    local = Version(lock.version(cell, "torch", arch) or "0").local or ""
    nvidia = [wheel.name for wheel in wheels if wheel.name.startswith("nvidia-")]
    return [f"+{local}", *nvidia] if local.startswith("cu") else nvidia


def expiring(matrix: Matrix, today: date) -> Iterator[str]:
    """What ran out or soon will: a known-bad combination, the key that signs a system's packages.

    Both are dates in matrix.yaml that somebody has to look at again.
    """
    for name, rule in matrix.rules.items():
        if rule.expires is not None and date.fromisoformat(rule.expires) <= today:
            yield f"rule {name} was to be looked at again on {rule.expires}: {rule.reason}"
    for name, system in matrix.systems.items():
        for key in system.signing_keys:
            if date.fromisoformat(key.expires) - EXPIRY_NOTICE <= today:
                yield f"{name}: the signing key {key.fingerprint} ends on {key.expires}"
