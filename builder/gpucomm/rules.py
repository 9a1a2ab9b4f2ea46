"""Why a combination cannot exist: the rules of matrix.yaml, held against one cell.

Owns: the built-in checks (what the tables of the matrix imply) and the matching of its `rules`.
Every denial carries the reason and the source that matrix.yaml gives for it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from gpucomm.cell import DEFAULT_INDEX, Cell, Wanted
from gpucomm.schema import STATIC, Architecture, Matrix, Rule, When

# Each must have its reason and source under `checks` in matrix.yaml.
CHECKS = (
    "wheel",
    "python",
    "glibc",
    "nccl-named",
    "nccl-family",
    "nccl-floor",
    "extra-wheel",
    "driver",
    "gpus",
    "rccl",
)


@dataclass(frozen=True, kw_only=True)
class Denial:
    """One reason why a cell, or one platform of it, cannot exist, or what is wrong with it."""

    rule: str
    fact: str
    """What is so in this case."""
    reason: str
    """Why that excludes the cell."""
    source: str
    """Key of the matrix's `sources`."""
    arch: Architecture | None = None
    """The platform that it is about; None for the whole cell."""


@cache
def contains(specifier: str, version: str) -> bool:
    """Whether `version` is in `specifier`; the empty specifier holds everything."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)


def possible(matrix: Matrix, cell: Cell) -> bool:
    """Whether `cell` can exist on at least one platform."""
    return next(_whole_denials(matrix, cell), None) is None and bool(platforms(matrix, cell))


def platforms(matrix: Matrix, cell: Cell) -> tuple[Architecture, ...]:
    """The platforms that `cell` can have, its system's first."""
    denied = {denial.arch for denial in _platform_denials(matrix, cell)}
    return tuple(arch for arch in matrix.systems[cell.os].architectures if arch not in denied)


def denials(matrix: Matrix, cell: Cell) -> tuple[Denial, ...]:
    """Every reason against `cell` or one of its platforms; empty when nothing is against it."""
    return (*_whole_denials(matrix, cell), *_platform_denials(matrix, cell))


def unpublished(matrix: Matrix, wanted: Wanted) -> Denial | None:
    """The denial of a torch that its line does not have."""
    if wanted.torch in matrix.lines[wanted.line].torch:
        return None
    left_out = next(
        (row for row in matrix.left_out if (row.line, row.torch) == (wanted.line, wanted.torch)),
        None,
    )
    if left_out is not None:
        return Denial(
            rule="left-out",
            fact=f"torch {wanted.torch} is published for {wanted.line} and left out here",
            reason=left_out.reason,
            source=left_out.source,
        )
    lines = [name for name, line in matrix.lines.items() if wanted.torch in line.torch]
    if wanted.torch not in matrix.torch:
        fact = f"torch {wanted.torch} is not in the matrix, which has {', '.join(matrix.torch)}"
    else:
        fact = f"torch {wanted.torch} is published for {', '.join(lines)}, not for {wanted.line}"
    return checked(matrix, "wheel", fact)


def checked(matrix: Matrix, check: str, fact: str) -> Denial:
    """The denial of a built-in check, with the reason that the matrix gives for it."""
    row = matrix.checks[check]
    return Denial(rule=check, fact=fact, reason=row.reason, source=row.source)


def _whole_denials(matrix: Matrix, cell: Cell) -> Iterator[Denial]:
    release = matrix.torch[cell.torch]
    if not contains(release.python, cell.python):
        fact = f"torch {cell.torch} has wheels for Python {release.python}"
        yield checked(matrix, "python", f"{fact}, {cell.os} has {cell.python}")
    if Version(cell.glibc) < Version(release.glibc):
        fact = f"the wheel of torch {cell.torch} needs glibc {release.glibc}"
        yield checked(matrix, "glibc", f"{fact}, {cell.os} has {cell.glibc}")
    for extra in cell.extras:
        wheel = matrix.extras[extra].wheel
        if wheel is not None and wheel not in release.wheels:
            yield checked(matrix, "extra-wheel", f"there is no {wheel} for torch {cell.torch}")
    if cell.nccl_overridden and cell.nccl is not None:
        yield from _nccl_denials(matrix, cell, cell.nccl)
    for name, rule in matrix.rules.items():
        if rule.effect == "deny" and not rule.when.arch and matches(rule.when, cell):
            yield _ruled(name, rule, cell)


def _nccl_denials(matrix: Matrix, cell: Cell, nccl: str) -> Iterator[Denial]:
    line = matrix.lines[cell.line]
    if line.nccl_family is None:
        yield checked(matrix, "nccl-named", f"{cell.line} has no NCCL to choose")
        return
    family = matrix.nccl_families[line.nccl_family]
    if nccl not in family.versions:
        fact = f"{family.wheel} has no {nccl}; it has {family.versions[0]} to {family.versions[-1]}"
        yield checked(matrix, "nccl-family", fact)
    elif nccl not in line.torch[cell.torch].overrides:
        named = ", ".join(line.torch[cell.torch].overrides) or "none"
        fact = f"NCCL {nccl} is no override of torch {cell.torch} on {cell.line}, which has {named}"
        yield checked(matrix, "nccl-named", fact)
    bundled = line.torch[cell.torch].nccl
    if bundled == STATIC:
        fact = f"NCCL is linked into torch {cell.torch} of {cell.line}"
        yield checked(matrix, "nccl-floor", fact)
    elif bundled is not None and Version(nccl) < Version(bundled):
        fact = f"torch {cell.torch} on {cell.line} was built with NCCL {bundled}, {nccl} is older"
        yield checked(matrix, "nccl-floor", fact)


def _platform_denials(matrix: Matrix, cell: Cell) -> Iterator[Denial]:
    for name, rule in matrix.rules.items():
        if rule.effect == "deny" and rule.when.arch and matches(rule.when, cell):
            for arch in rule.when.arch:
                yield _ruled(name, rule, cell, arch)


def warnings(matrix: Matrix, cell: Cell) -> tuple[Denial, ...]:
    """What is known to be wrong with a cell, or one platform of it, that can exist all the same."""
    has = platforms(matrix, cell)
    return tuple(
        _ruled(name, rule, cell, arch)
        for name, rule in matrix.rules.items()
        if rule.effect == "warn" and matches(rule.when, cell)
        for arch in rule.when.arch or (None,)
        if arch is None or arch in has
    )


def _ruled(name: str, rule: Rule, cell: Cell, arch: Architecture | None = None) -> Denial:
    fact = fact_of(rule.when, cell)
    return Denial(
        rule=name,
        fact=f"{fact} on {arch}" if arch else fact,
        reason=rule.reason,
        source=rule.source,
        arch=arch,
    )


def matches(when: When, cell: Cell) -> bool:
    """Whether a rule is about `cell`, whatever its platform."""
    return (
        (not when.accelerator or cell.accelerator in when.accelerator)
        and (not when.flavor or cell.flavor in when.flavor)
        and (not when.extras or bool(set(cell.extras) & set(when.extras)))
        and (when.index is None or (cell.index == DEFAULT_INDEX) == (when.index == "default"))
        and contains(when.torch, cell.torch)
        and contains(when.python, cell.python)
        and (when.nccl is None or (cell.nccl is not None and contains(when.nccl, cell.nccl)))
        and meets(cell.line, when.lines)
        and meets(cell.os, when.os)
    )


def meets(name: str, globs: Iterable[str]) -> bool:
    """Whether one of `globs` is `name`, or holds it."""
    return globs == ["*"] or any(fnmatchcase(name, glob) for glob in globs)


def fact_of(when: When, cell: Cell) -> str:
    """The values of `cell` that a rule speaks of, for a person."""
    said = [cell.line]
    said += [f"torch {cell.torch}"] if when.torch else []
    said += [f"NCCL {cell.nccl}"] if when.nccl is not None else []
    said += [cell.os] if when.os != ["*"] or when.python else []
    said += [cell.flavor] if when.flavor else []
    said += [extra for extra in cell.extras if extra in when.extras]
    return ", ".join(said)
