"""A cell: one combination of axis values, and its name.

Owns: the id of a cell, and the way from an id back to axis values. Whether a cell can exist is
rules.py; which cells are published is standard.py. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.version import InvalidVersion, Version

from gpucomm.errors import WrongInput
from gpucomm.nearest import nearest
from gpucomm.schema import STATIC, Accelerator, Matrix

DEFAULT_INDEX = "default"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an id says. `nccl` is None where it names no NCCL: the one that the wheel requires."""

    line: str
    torch: str
    nccl: str | None = None
    os: str
    flavor: str
    extras: tuple[str, ...] = ()
    gpu_targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of axis values. `nccl`, `rccl`, `cuda` and `rocm` are None where they
    have no meaning."""

    line: str
    accelerator: Accelerator
    torch: str
    index: str
    """`default`, or the folder below the PyTorch index that has its torch."""
    nccl: str | None
    nccl_overridden: bool
    rccl: str | None
    cuda: str | None
    rocm: str | None
    os: str
    python: str
    glibc: str
    flavor: str
    extras: tuple[str, ...]
    gpu_targets: tuple[str, ...]
    """The targets whose GPU code it has, where that comes in wheels of its own."""
    id: str
    pins_id: str
    """Cells that share it share one lock: what decides the wheels, whatever the flavor."""


def cell(matrix: Matrix, wanted: Wanted) -> Cell:
    """The cell of axis values that the matrix knows. Whether it can exist is another question."""
    line, system = matrix.lines[wanted.line], matrix.systems[wanted.os]
    bundled = line.torch[wanted.torch].nccl
    bundled = None if bundled == STATIC else bundled
    nccl = wanted.nccl or bundled
    core = [wanted.line, f"torch{wanted.torch}"]
    core += [f"nccl{nccl}"] if nccl else [f"rccl{line.rccl}"] if line.rccl else []
    rest = [wanted.os] if wanted.os != matrix.defaults.os else []
    rest += [wanted.flavor] if wanted.flavor != matrix.defaults.flavor else []
    wheels = [extra for extra in wanted.extras if matrix.extras[extra].wheel]
    added = additions(matrix, line=wanted.line, flavor=wanted.flavor, os=wanted.os)
    wheels += [wanted.flavor] if added else []
    default = matrix.torch[wanted.torch].default == wanted.line
    targets = line.gpu_targets.default if line.gpu_targets else []
    return Cell(
        line=wanted.line,
        accelerator=line.accelerator,
        torch=wanted.torch,
        index=DEFAULT_INDEX if default else wanted.line,
        nccl=nccl,
        nccl_overridden=nccl != bundled,
        rccl=line.rccl,
        cuda=line.cuda,
        rocm=line.rocm,
        os=wanted.os,
        python=system.python,
        glibc=system.glibc,
        flavor=wanted.flavor,
        extras=wanted.extras,
        gpu_targets=wanted.gpu_targets or tuple(targets),
        id="-".join([*core, *rest, *wanted.extras, *wanted.gpu_targets]),
        pins_id="-".join([*core, f"py{system.python}", *wheels, *wanted.gpu_targets]),
    )


def additions(matrix: Matrix, *, line: str, flavor: str, os: str) -> tuple[tuple[str, str], ...]:
    """(package, specifier) of every wheel that a flavor adds on a line.

    None where the system has a vendor's image with the toolkit for that flavor.
    """
    if toolkit_image(matrix, line=line, flavor=flavor, os=os) is not None:
        return ()
    return tuple(
        (added.package, added.require)
        for added in matrix.flavors[flavor].wheels
        if any(fnmatchcase(line, glob) for glob in added.lines)
    )


def toolkit_image(matrix: Matrix, *, line: str, flavor: str, os: str) -> str | None:
    """The vendor's image with the toolkit that a flavor stands on; None for the plain system."""
    row = matrix.lines[line]
    image = matrix.systems[os].devel_image.get(row.accelerator)
    if not matrix.flavors[flavor].toolkit or image is None or row.toolkit is None:
        return None
    return image.replace("{toolkit}", row.toolkit)


def base_image(matrix: Matrix, cell: Cell) -> str:
    """The registry image that `cell` stands on, unless its base is bootstrapped."""
    found = toolkit_image(matrix, line=cell.line, flavor=cell.flavor, os=cell.os)
    return found or matrix.systems[cell.os].image


def wanted_of(matrix: Matrix, text: str) -> Wanted:
    """The axis values that an id names; what it leaves out has its default.

    `cu124-torch2.6.0`, `cu124-torch2.6.0-nccl2.25.1-ubuntu22.04-devel-mpi`. Parts after the torch
    may stand in any order. Raises WrongInput with one line for what is not a value of any axis.
    """
    name, *parts = text.split("-")
    if name not in matrix.lines:
        left_out = next((f" here: {r.reason}" for r in matrix.left_out if r.line == name), None)
        raise WrongInput(f"{name!r} is not a line{left_out or nearest(name, matrix.lines)}")
    line = matrix.lines[name]
    found: dict[str, str] = {}
    extras: list[str] = []
    targets: list[str] = []
    known_targets = line.gpu_targets.known if line.gpu_targets else []
    for part in parts:
        axis, value = _axis_of(matrix, part)
        if axis == "extras":
            extras.append(value)
        elif part in known_targets:
            targets.append(part)
        elif axis is None or axis in found:
            known = [*matrix.systems, *matrix.flavors, *matrix.extras, *known_targets]
            problem = "stands twice" if axis else "is no value of any axis"
            raise WrongInput(f"{part!r} in {text!r} {problem}{nearest(part, known)}")
        else:
            found[axis] = value
    if "torch" not in found:
        newest = max(line.torch, key=Version)
        raise WrongInput(f"{text!r} names no torch; for example {name}-torch{newest}")
    if (library := found.get("rccl")) and library != line.rccl:
        raise WrongInput(f"RCCL follows ROCm: {name} has {line.rccl or 'no RCCL'}, not {library}")
    return Wanted(
        line=name,
        torch=found["torch"],
        nccl=found.get("nccl"),
        os=found.get("os", matrix.defaults.os),
        flavor=found.get("flavor", matrix.defaults.flavor),
        extras=tuple(extra for extra in matrix.extras if extra in extras),
        gpu_targets=tuple(target for target in known_targets if target in targets),
    )


def versioned(part: str) -> tuple[str, str] | None:
    """(axis, version) of a part such as `torch2.6.0`; None for any other."""
    for axis in ("torch", "nccl", "rccl"):
        value = part.removeprefix(axis)
        if value != part and value[:1].isdigit():
            try:
                Version(value)
            except InvalidVersion:
                return None
            return axis, value
    return None


def _axis_of(matrix: Matrix, part: str) -> tuple[str | None, str]:
    if (found := versioned(part)) is not None:
        return found
    for axis, known in (
        ("os", matrix.systems), ("flavor", matrix.flavors), ("extras", matrix.extras)
    ):  # fmt: skip
        if part in known:
            return axis, part
    return None, part
