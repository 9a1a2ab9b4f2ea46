"""shards.py: the jobs of a workflow matrix, and the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import shards
from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of


@given(limit=st.integers(1, 256), data=st.data())
def test_every_cell_is_in_exactly_one_job(limit: int, data: st.DataObject, real: Project) -> None:
    every = cells_of(real.matrix)
    cells = data.draw(st.lists(st.sampled_from(every), unique_by=lambda cell: cell.id))
    jobs = shards.jobs_of(real.matrix, cells, limit)
    assert len(jobs) <= limit
    assert sorted(name for job in jobs for name in job.cells) == sorted(one.id for one in cells)
    assert jobs == shards.jobs_of(real.matrix, cells, limit)
    assert len({job.name for job in jobs}) == len(jobs)
    line_of = {cell.id: cell.line for cell in cells}
    for job in jobs:
        assert list(job.lines) == list(dict.fromkeys(line_of[name] for name in job.cells))
    groups = {cell.line for cell in cells}
    if len(groups) <= limit:
        assert all(len(job.lines) == 1 for job in jobs)
    else:
        # whole lines stay together
        homes: dict[str, set[str]] = {}
        for job in jobs:
            for line in job.lines:
                homes.setdefault(line, set()).add(job.name)
        assert all(len(home) == 1 for home in homes.values())


@given(limit=st.integers(20, 256))
def test_a_job_is_as_short_as_the_number_of_jobs_allows(limit: int, real: Project) -> None:
    matrix = real.matrix
    jobs = shards.jobs_of(matrix, cells_of(matrix), limit)
    longest = max(len(job.cells) for job in jobs)
    counts = [sum(cell.line == line for cell in cells_of(matrix)) for line in matrix.lines]
    if longest > 1:
        assert sum(-(-count // (longest - 1)) for count in counts) > limit
    for line in matrix.lines:
        sizes = [len(job.cells) for job in jobs if job.lines == (line,)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("limit", [1, 2, 5, 13])
def test_lines_that_share_jobs_are_balanced(limit: int, real: Project) -> None:
    jobs = shards.jobs_of(real.matrix, cells_of(real.matrix), limit)
    sizes = [len(job.cells) for job in jobs]
    longest_line = max(
        sum(cell.line == line for cell in cells_of(real.matrix)) for line in real.matrix.lines
    )
    assert len(jobs) == limit
    assert max(sizes) - min(sizes) <= longest_line


def test_an_entry_is_what_a_workflow_reads(small: Matrix) -> None:
    jobs = shards.jobs_of(small, [one for one in cells_of(small) if one.line == "cpu"], 4)
    assert [job.entry() for job in jobs] == [
        {"name": "cpu amd64", "target": "cpu-torch2.13.0", "line": "cpu", "arch": "amd64"}
    ]
    jobs = shards.jobs_of(small, [one for one in cells_of(small) if one.line == "cu121"], 3)
    assert [job.name for job in jobs] == [f"cu121 amd64 {part}/3" for part in (1, 2, 3)]
    (job,) = shards.jobs_of(small, cells_of(small), 1)
    assert job.name == "cu121+cu130+rocm6.1+1 amd64"
    assert job.entry()["line"] == "cu121,cu130,rocm6.1,cpu"


def test_no_cells_are_no_jobs(small: Matrix) -> None:
    assert shards.jobs_of(small, [], 1) == []


def arm_alone(matrix: Matrix) -> Matrix:
    """The matrix with a rule that takes amd64 away from cu130."""
    rule = matrix.rules["arm64-elsewhere"]
    when = rule.when.model_copy(
        update={"accelerator": ["cuda"], "lines": ["cu130"], "arch": ["amd64"]}
    )
    other = rule.model_copy(update={"when": when})
    return matrix.model_copy(update={"rules": {**matrix.rules, "no-amd64": other}})


def test_cells_of_two_platforms_never_share_a_job(small: Matrix) -> None:
    matrix = arm_alone(small)
    cells = cells_of(small)
    jobs = shards.jobs_of(matrix, cells, 2)
    assert {job.arch: job.lines for job in jobs} == {
        "amd64": ("cu121", "rocm6.1", "cpu"),
        "arm64": ("cu130",),
    }
    with pytest.raises(WrongInput, match="amd64, arm64 need a job each"):
        shards.jobs_of(matrix, cells, 1)


# ---------------------------------------------------------------- the plan
def plan(path: Path, rows: object) -> Path:
    path.write_text(json.dumps({"cells": rows}, indent=1))
    return path


def rows_of(cells: tuple[Cell, ...]) -> list[dict[str, object]]:
    return [{"id": cell.id, "work": cell.line == "cpu", "why": "x"} for cell in cells]


def test_a_plan_leaves_out_what_needs_no_work(small: Matrix, tmp_path: Path) -> None:
    path = plan(tmp_path / "plan.json", rows_of(cells_of(small)))
    found = shards.needed(path, cells_of(small))
    assert [cell.id for cell in found] == ["cpu-torch2.13.0"]


def test_a_plan_may_say_more_than_is_asked(small: Matrix, tmp_path: Path) -> None:
    path = plan(
        tmp_path / "plan.json", [{"id": "cu1-torch1", "work": True}, *rows_of(cells_of(small))]
    )
    assert len(shards.needed(path, cells_of(small)[-1:])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1:1: not JSON: Expecting value"),
        ('{"cells": [\n{"id": "a", }]}', ":2:"),
        ("[]", "Input should be"),
        ('{"cell": []}', "cells: field required"),
        ('{"cells": [{"id": "a"}]}', ":1:12: cells.0.work: field required"),
        ('{"cells": [{"id": "a", "work": "yes"}]}', "cells.0.work: input should be a valid"),
        ('{"cells": [{"id": 7, "work": true}]}', "cells.0.id: input should be a valid string"),
        ('{"cells": [{"id": "cpu", "work": true},\n{"id": "cpu", "work": true}]}',
         ":2:1: cells.1: cpu stands twice"),
        ('{"cells": [], "cells": []}', "duplicate key"),
        ('{"cells": []}', "says nothing of"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_wrong_plan_names_the_file_and_what_to_do(
    text: str, said: str, small: Matrix, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(WrongInput) as caught:
        shards.needed(path, cells_of(small))
    assert said.lower() in str(caught.value).lower()
    assert all(fault.startswith(str(path)) for fault in caught.value.faults)
    assert all(fault.endswith(shards.ADVICE) for fault in caught.value.faults)


def test_a_plan_that_is_no_text(small: Matrix, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(WrongInput, match="not UTF-8"):
        shards.needed(path, cells_of(small))
    with pytest.raises(WrongInput, match="cannot be read"):
        shards.needed(tmp_path, cells_of(small))
