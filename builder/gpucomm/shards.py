"""`gpucomm ci`: the cells as jobs of a GitHub workflow matrix, and the plan that leaves some out.

Cells of one line stay together, because they share layers. A line is split only as far as the
number of jobs allows, and lines share a job only where there are more lines than jobs. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.jsonfile import read
from gpucomm.located import Located
from gpucomm.rules import platforms
from gpucomm.schema import Matrix

ADVICE = "make it with gpucomm plan --json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job: cells of one platform, of one line where the number of jobs allows it."""

    lines: tuple[str, ...]
    arch: str
    cells: tuple[str, ...]
    part: int = 1
    of: int = 1

    @property
    def name(self) -> str:
        """What the job is called: no two are called alike."""
        lines = "+".join(self.lines[:3]) + (f"+{more}" if (more := len(self.lines) - 3) > 0 else "")
        return f"{lines} {self.arch}" + (f" {self.part}/{self.of}" if self.of > 1 else "")

    def entry(self) -> dict[str, str]:
        """The job as an entry of a matrix's `include`."""
        return {
            "name": self.name,
            "target": ",".join(self.cells),
            "line": ",".join(self.lines),
            "arch": self.arch,
        }


def jobs_of(matrix: Matrix, cells: Iterable[Cell], limit: int) -> list[Job]:
    """At most `limit` jobs with every cell once, in the order of the cells."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        # A cell is in one job, on a runner of its first platform.
        arch = platforms(matrix, cell)[0]
        groups.setdefault((cell.line, arch), []).append(cell.id)
    if len(groups) > limit:
        return _merged(groups, limit)
    size = _size(groups, limit)
    return [
        Job(lines=(line,), arch=arch, cells=tuple(part), part=index, of=len(parts))
        for (line, arch), ids in groups.items()
        for parts in [_parts(ids, -(-len(ids) // size))]
        for index, part in enumerate(parts, 1)
    ]


def _size(groups: Mapping[tuple[str, str], Sequence[str]], limit: int) -> int:
    """The least number of cells per job with which the jobs are not more than `limit`."""
    size = 1
    while sum(-(-len(ids) // size) for ids in groups.values()) > limit:
        size += 1
    return size


def _parts(ids: Sequence[str], count: int) -> list[Sequence[str]]:
    """`ids` in `count` parts, none longer than another by more than one."""
    bounds = [len(ids) * index // count for index in range(count + 1)]
    return [ids[start:end] for start, end in itertools.pairwise(bounds)]


def _merged(groups: Mapping[tuple[str, str], Sequence[str]], limit: int) -> list[Job]:
    """Whole lines together in `limit` jobs: the longest first, each to the shortest job."""
    arches = list(dict.fromkeys(arch for _, arch in groups))
    if len(arches) > limit:
        raise WrongInput(f"--max-jobs {limit}: {', '.join(arches)} need a job each")
    order = list(groups)
    longest = sorted(order, key=lambda key: (-len(groups[key]), order.index(key)))
    bins: list[list[tuple[str, str]]] = []
    for key in longest:
        # One job for each platform first: its runner is another machine.
        mine = [bin_ for bin_ in bins if bin_[0][1] == key[1]]
        missing = len({arch for arch in arches if not any(b[0][1] == arch for b in bins)})
        if not mine or len(bins) + missing < limit:
            bins.append([key])
        else:
            min(mine, key=lambda bin_: sum(len(groups[other]) for other in bin_)).append(key)
    jobs = []
    for bin_ in bins:
        keys = sorted(bin_, key=order.index)
        cells = tuple(one for key in keys for one in groups[key])
        jobs.append(Job(lines=tuple(line for line, _ in keys), arch=keys[0][1], cells=cells))
    return sorted(jobs, key=lambda job: order.index((job.lines[0], job.arch)))


# ---------------------------------------------------------------- the plan
class _Entry(BaseModel):
    """One cell of a plan; what else it says is not needed here."""

    model_config = ConfigDict(strict=True, frozen=True)

    id: Annotated[str, Field(min_length=1)]
    work: bool


class _Plan(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    cells: list[_Entry]


def needed(path: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Those of `cells` that need work, by the plan in `path`. Raises WrongInput, all faults."""
    plan, located = read(path, _Plan, str(path), ADVICE)
    work: dict[str, bool] = {}
    faults: list[str] = []
    for index, entry in enumerate(plan.cells):
        if entry.id in work:
            faults.append(_fault(located, index, f"{entry.id} stands twice"))
        work[entry.id] = entry.work
    missing = [cell.id for cell in cells if cell.id not in work]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        faults.append(f"{path}: says nothing of {', '.join(missing[:3])}{more}; {ADVICE}")
    if faults:
        raise WrongInput(faults)
    return [cell for cell in cells if work[cell.id]]


def _fault(located: Located, index: int, message: str) -> str:
    return f"{located.fault(('cells', index), message)}; {ADVICE}"
