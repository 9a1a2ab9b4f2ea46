"""What the keys of matrix.yaml say of each other: names that must exist, values that contradict.

Owns: every fault that needs more than one key to see, as (path, message). Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from packaging.version import Version

from gpucomm import rules
from gpucomm.cell import versioned
from gpucomm.located import Location
from gpucomm.nearest import nearest
from gpucomm.rules import contains, meets
from gpucomm.schema import STATIC, Line, Matrix
from gpucomm.standard import LIMIT, barren_rows, by_id, candidates, combinations

Fault = tuple[Location, str]
# Keys of a line by accelerator: needed on these, without meaning on the others.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "cuda": ("cuda", "nccl_family", "nvidia_require", "driver", "toolkit"),
    "rocm": ("rocm", "rccl"),
    "cpu": (),
}


def reference_faults(matrix: Matrix) -> Iterator[Fault]:
    """Every key that names something that is not there, or contradicts another key."""
    faults = [
        *_name_faults(matrix),
        *_default_faults(matrix),
        *_release_faults(matrix),
        *(
            (("lines", name, *path), message)
            for name, line in matrix.lines.items()
            for path, message in _line_faults(matrix, line)
        ),
        *_source_faults(matrix),
        *_glob_faults(matrix),
        *_left_out_faults(matrix),
    ]
    yield from faults
    if faults:  # the rest expands the matrix, which needs every reference to hold
        return
    yield from _rule_faults(matrix)
    yield from _hold_faults(matrix)
    yield from _addition_faults(matrix)
    if too_many := list(_size_faults(matrix)):
        yield from too_many
        return
    yield from _standard_faults(matrix)
    yield from _alias_faults(matrix)


def _known(path: Location, value: str, known: Iterable[str], what: str) -> Iterator[Fault]:
    names = list(known)
    if value not in names:
        near = nearest(value, names)
        yield path, f"{value!r} is not {what}{near or '; there is ' + (', '.join(names) or 'none')}"


def _given_twice(
    path: Location, values: Iterable[str], same: Callable[[str], object]
) -> Iterator[Fault]:
    """Two alike would be two cells of one id."""
    seen: set[object] = set()
    for index, value in enumerate(values):
        key = same(value)
        if key in seen:
            yield (*path, index), f"{value!r} is given twice"
        seen.add(key)


def _same_keys(path: Location, keys: Iterable[str]) -> Iterator[Fault]:
    """Two keys that are one version would be two cells of one id."""
    seen: dict[Version, str] = {}
    for key in keys:
        other = seen.setdefault(Version(key), key)
        if other != key:
            yield (*path, key), f"{key!r} and {other!r} are one version"


def _name_faults(matrix: Matrix) -> Iterator[Fault]:
    """A part of an id must say by itself which axis it is of."""
    axes: Mapping[str, Iterable[str]] = {
        "systems": matrix.systems,
        "flavors": matrix.flavors,
        "extras": matrix.extras,
    }
    seen: dict[str, str] = {}
    for axis, names in axes.items():
        for name in names:
            if name in seen:
                yield (axis, name), f"{name!r} is also one of {seen[name]}: two cells of one id"
            seen[name] = axis
            if versioned(name):
                yield (axis, name), "reads like a version in a cell id; take another name"
    for name, line in matrix.lines.items():
        for index, target in enumerate(line.gpu_targets.known if line.gpu_targets else []):
            if target in seen:
                path: Location = ("lines", name, "gpu_targets", "known", index)
                yield path, f"{target!r} is also one of {seen[target]}: two cells of one id"
    yield from _same_keys(("torch",), matrix.torch)


def _default_faults(matrix: Matrix) -> Iterator[Fault]:
    yield from _known(("defaults", "os"), matrix.defaults.os, matrix.systems, "a system")
    yield from _known(("defaults", "flavor"), matrix.defaults.flavor, matrix.flavors, "a flavor")


def _release_faults(matrix: Matrix) -> Iterator[Fault]:
    wheels = {extra.wheel for extra in matrix.extras.values() if extra.wheel}
    for version, release in matrix.torch.items():
        here = ("torch", version)
        if release.default is not None:
            yield from _known((*here, "default"), release.default, matrix.lines, "a line")
            line = matrix.lines.get(release.default)
            if line is not None and version not in line.torch:
                yield (*here, "default"), f"the line {release.default} has no torch {version}"
        for wheel in release.wheels:
            yield from _known((*here, "wheels", wheel), wheel, wheels, "the wheel of an extra")
        if not any(version in line.torch for line in matrix.lines.values()):
            yield here, "no line has this torch"


def _line_faults(matrix: Matrix, line: Line) -> Iterator[Fault]:
    needed = _NEEDED[line.accelerator]
    for key in sorted({key for keys in _NEEDED.values() for key in keys}):
        if key == "toolkit" and line.accelerator == "rocm":
            continue  # AMD has no such image for some versions
        if (getattr(line, key) is None) == (key in needed):
            need = "needed on" if key in needed else "without meaning on"
            yield (key,), f"{need} a line whose accelerator is {line.accelerator}"
    if line.accelerator == "rocm":
        for version in line.torch:
            release = matrix.torch.get(version)
            if release is not None and release.triton_rocm is None:
                yield ("torch", version), f"torch.{version}.triton_rocm is needed on a ROCm line"
    if line.nccl_family is not None:
        known = matrix.nccl_families
        yield from _known(("nccl_family",), line.nccl_family, known, "an NCCL family")
    if (targets := line.gpu_targets) is not None:
        for index, target in enumerate(targets.default):
            path = ("gpu_targets", "default", index)
            yield from _known(path, target, targets.known, "one of its known targets")
    for flavor in line.size_budget_mb:
        yield from _known(("size_budget_mb", flavor), flavor, matrix.flavors, "a flavor")
    yield from _same_keys(("torch",), line.torch)
    for version, torch in line.torch.items():
        here = ("torch", version)
        yield from _known(here, version, matrix.torch, "in the torch table")
        if torch.nccl is None and line.accelerator == "cuda":
            yield (*here, "nccl"), "name the NCCL that its wheel requires"
        if line.accelerator != "cuda" and (torch.nccl or torch.overrides):
            yield (
                (*here, "nccl"),
                f"no NCCL to choose on a line whose accelerator is {line.accelerator}",
            )
        yield from _given_twice((*here, "overrides"), torch.overrides, Version)
        for index, nccl in enumerate(torch.overrides):
            override: Location = (*here, "overrides", index)
            if torch.nccl is None:
                continue
            if torch.nccl == STATIC:
                yield override, "the NCCL of this torch is linked into it and cannot be replaced"
            elif Version(nccl) == Version(torch.nccl):
                yield override, f"{nccl} is the NCCL of the wheel itself, no override"
            elif Version(nccl) < Version(torch.nccl):
                yield (
                    override,
                    f"{nccl} is older than {torch.nccl}, which this torch was built with",
                )
            if (family := matrix.nccl_families.get(line.nccl_family or "")) is not None:
                yield from _known(override, nccl, family.versions, f"a version of {family.wheel}")


def _source_faults(matrix: Matrix) -> Iterator[Fault]:
    """Each fact names its source, each source serves a fact, each built-in check has its reason."""
    named: list[tuple[Location, str]] = [
        *((("checks", name, "source"), fact.source) for name, fact in matrix.checks.items()),
        *((("rules", name, "source"), rule.source) for name, rule in matrix.rules.items()),
        *((("left_out", i, "source"), row.source) for i, row in enumerate(matrix.left_out)),
    ]
    for path, source in named:
        yield from _known(path, source, matrix.sources, "one of sources")
    used = {source for _, source in named}
    for source in matrix.sources:
        if source not in used:
            yield ("sources", source), "nothing names this source"
    for name in rules.CHECKS:
        if name not in matrix.checks:
            yield ("checks",), f"{name} is missing: this check needs its reason and source"
    for name in matrix.checks:
        yield from _known(("checks", name), name, rules.CHECKS, "a built-in check")


def _glob_faults(matrix: Matrix) -> Iterator[Fault]:
    """Every list of globs or names that points at an axis: each entry must meet something."""
    globs: list[tuple[Location, Sequence[str], str]] = []
    names: list[tuple[Location, Sequence[str], str]] = []
    for i, row in enumerate(matrix.standard):
        here: Location = ("standard", i)
        globs.append(((*here, "lines"), row.lines, "line"))
        names.append(((*here, "os"), row.os or [], "system"))
        names.append(((*here, "flavor"), row.flavor or [], "flavor"))
        names += [((*here, "extras", n), extras, "extra") for n, extras in enumerate(row.extras)]
        names += [
            ((*here, "gpu_targets", n), targets, "GPU target")
            for n, targets in enumerate(row.gpu_targets)
        ]
    globs += [(("holds", i, "lines"), hold.lines, "line") for i, hold in enumerate(matrix.holds)]
    for name, flavor in matrix.flavors.items():
        for i, added in enumerate(flavor.wheels):
            globs.append((("flavors", name, "wheels", i, "lines"), added.lines, "line"))
    for name, rule in matrix.rules.items():
        here = ("rules", name, "when")
        globs.append(((*here, "lines"), rule.when.lines, "line"))
        globs.append(((*here, "os"), rule.when.os, "system"))
        names.append(((*here, "flavor"), rule.when.flavor, "flavor"))
        names.append(((*here, "extras"), rule.when.extras, "extra"))
    known: Mapping[str, Iterable[str]] = {
        "line": matrix.lines,
        "system": matrix.systems,
        "flavor": matrix.flavors,
        "extra": matrix.extras,
        "GPU target": {
            target
            for line in matrix.lines.values()
            for target in (line.gpu_targets.known if line.gpu_targets else [])
        },
    }
    for where, values, what in globs:
        for n, glob in enumerate(values):
            if not any(meets(name, [glob]) for name in known[what]):
                yield (*where, n), f"{glob!r} matches no {what}{nearest(glob, known[what])}"
    for where, values, what in names:
        for n, value in enumerate(values):
            yield from _known((*where, n), value, known[what], f"one of the {what}s")


def _left_out_faults(matrix: Matrix) -> Iterator[Fault]:
    for index, row in enumerate(matrix.left_out):
        line = matrix.lines.get(row.line)
        if line is not None and row.torch in line.torch:
            yield ("left_out", index), f"{row.line} has torch {row.torch}: it is not left out"


def _rule_faults(matrix: Matrix) -> Iterator[Fault]:
    for name, rule in matrix.rules.items():
        arch = set(rule.when.arch)
        if not any(
            rules.matches(rule.when, cell)
            and (not arch or arch & set(matrix.systems[cell.os].architectures))
            for cell in candidates(matrix, rule.when)
        ):
            yield ("rules", name), "matches nothing: no combination of the axes is like that"


def _hold_faults(matrix: Matrix) -> Iterator[Fault]:
    for index, hold in enumerate(matrix.holds):
        lines = [
            line
            for name, line in matrix.lines.items()
            if meets(name, hold.lines) and any(contains(hold.torch, torch) for torch in line.torch)
        ]
        if not lines:
            yield ("holds", index), "matches nothing: no line has such a torch"
        elif "{cuda}" in hold.require and any(line.cuda is None for line in lines):
            yield (
                ("holds", index, "require"),
                "{cuda} has no meaning on a line without CUDA; give it lines",
            )


def _addition_faults(matrix: Matrix) -> Iterator[Fault]:
    for name, flavor in matrix.flavors.items():
        for index, added in enumerate(flavor.wheels):
            lines = [line for key, line in matrix.lines.items() if rules.meets(key, added.lines)]
            if "{cuda}" in added.require and any(line.cuda is None for line in lines):
                yield (
                    ("flavors", name, "wheels", index, "require"),
                    "{cuda} has no meaning on a line without CUDA; name other lines",
                )


def _size_faults(matrix: Matrix) -> Iterator[Fault]:
    total = 0
    for index, row in enumerate(matrix.standard):
        before, total = total, total + combinations(matrix, row)
        if before <= LIMIT < total:
            with_others = f", {total} with the rows before it" if before else ""
            yield (
                ("standard", index),
                f"{total - before} combinations{with_others}; more than {LIMIT} were hardly meant",
            )


def _standard_faults(matrix: Matrix) -> Iterator[Fault]:
    for index in barren_rows(matrix):
        yield ("standard", index), "gives no cell: every combination of it is impossible"


def _alias_faults(matrix: Matrix) -> Iterator[Fault]:
    ids = by_id(matrix)
    forwards, backwards = sorted(ids), sorted(id_[::-1] for id_ in ids)
    for alias, target in matrix.aliases.items():
        if target not in ids:
            # Comparing with every id takes minutes where there are thousands.
            alike = [*_around(target, forwards)]
            alike += [found[::-1] for found in _around(target[::-1], backwards)]
            yield ("aliases", alias), f"{target!r} is not a standard cell{nearest(target, alike)}"


def _around(word: str, ordered: Sequence[str]) -> Sequence[str]:
    """Those of sorted words that start most like `word`."""
    at = bisect_left(ordered, word)
    return ordered[max(at - 20, 0) : at + 20]
