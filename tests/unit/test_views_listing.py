"""listing.py and tables.py: the tables of `gpucomm list`."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import listing, tables
from gpucomm.facts import library_of
from gpucomm.lock import Lock
from gpucomm.project import Project
from gpucomm.proof import Proofs
from gpucomm.rules import platforms
from gpucomm.standard import by_id, cells_of

T24 = "cu121-torch2.4.1-nccl2.20.5"
NONE = Proofs()
OLD_KEYS = ["id", "line", "torch", "library", "library_version", "image", "aliases", "state"]
NEW_KEYS = [
    "accelerator", "cuda", "rocm", "os", "python", "flavor", "extras", "gpu_targets", "platforms",
    "locked", "unlocked_reason", "proof",
]  # fmt: skip


def test_the_json_of_a_cell(small_project: Project) -> None:
    cells = cells_of(small_project.matrix)
    lines = listing.by_cell(small_project, NONE, cells, "json", lambda _: "built")
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == [cell.id for cell in cells]
    assert all(list(row) == OLD_KEYS + NEW_KEYS for row in rows)
    assert next(row for row in rows if row["id"] == T24) == {
        "id": T24, "line": "cu121", "torch": "2.4.1", "library": "nccl",
        "library_version": "2.20.5", "image": f"registry.example/team/gpucomm:{T24}",
        "aliases": ["cu121", "latest"], "state": "built", "accelerator": "cuda", "cuda": "12.1",
        "rocm": None, "os": "debian12", "python": "3.11", "flavor": "runtime", "extras": [],
        "gpu_targets": [], "platforms": ["amd64"], "locked": True, "unlocked_reason": None,
        "proof": "rendered",
    }  # fmt: skip
    rocm = next(row for row in rows if row["line"] == "rocm6.1")
    assert (rocm["library"], rocm["library_version"]) == ("rccl", "2.18.6")
    assert (rocm["locked"], rocm["rocm"]) == (False, "6.1")
    assert "could not be reached" in rocm["unlocked_reason"]
    assert (rows[-1]["library"], rows[-1]["library_version"]) == ("gloo", None)


def test_the_table_of_cells(small_project: Project) -> None:
    cells = cells_of(small_project.matrix)
    header, *lines = listing.by_cell(small_project, NONE, cells, "text", lambda _: "absent")
    assert header.split() == ["cell", "aliases", "platforms", "lock", "proof", "here"]
    row = next(line for line in lines if line.startswith(f"{T24} "))
    assert row.split() == [T24, "cu121", "latest", "amd64", "locked", "rendered", "absent"]
    assert {line.index("rendered") for line in lines} == {header.index("proof")}


def test_markdown_has_no_local_state(small_project: Project) -> None:
    cells = cells_of(small_project.matrix)
    lines = listing.by_cell(small_project, NONE, cells, "markdown", None)
    assert lines[0] == "| cell | aliases | platforms | lock | proof |"
    assert lines[1] == "|---|---|---|---|---|"
    assert f"| {T24} | cu121 latest | amd64 | locked | rendered |" in lines
    assert len(lines) == len(cells) + 2


def test_a_cell_that_is_locked_on_one_platform_only(real: Project) -> None:
    cell = by_id(real.matrix)[real.matrix.aliases["cu130"]]
    assert platforms(real.matrix, cell) == ("amd64", "arm64")
    wheels = real.lock.cells[cell.pins_id]
    half = Lock(cells={cell.pins_id: wheels}, tools={}, bases={})
    project = Project(matrix=real.matrix, lock=half, places=real.places, repository=real.repository)
    assert listing.cell_row(project, NONE, cell)[3] == "locked amd64"


def test_lines(small_project: Project) -> None:
    matrix = small_project.matrix
    header, *rows = listing.by_line(matrix, cells_of(matrix), "text")
    assert header.split() == ["line", "torch", "library", "minimum", "driver", "alias"]
    assert rows[0].split() == [
        "cu121", "2.2.2,", "2.4.1", "NCCL", "2.19.3,", "2.20.5,", "2.21.5", "525.60.13", T24
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == list(matrix.lines)
    assert rows[-1].split() == ["cpu", "2.13.0", "Gloo", "cpu-torch2.13.0"]
    (only,) = listing.by_line(matrix, [by_id(matrix)["cpu-torch2.13.0"]], "markdown")[2:]
    assert only == "| cpu | 2.13.0 | Gloo |  | cpu-torch2.13.0 |"


def test_lines_as_json(small_project: Project) -> None:
    matrix = small_project.matrix
    rows = [json.loads(line) for line in listing.by_line(matrix, cells_of(matrix), "json")]
    assert rows[0] == {
        "line": "cu121",
        "accelerator": "cuda",
        "torch": ["2.2.2", "2.4.1"],
        "nccl": {"2.2.2": "2.19.3", "2.4.1": "2.20.5"},
        "overrides": {"2.2.2": ["2.21.5"], "2.4.1": ["2.21.5"]},
        "rccl": None,
        "driver": {"floor": "525.60.13", "toolkit": "530.30.02"},
        "alias": T24,
    }
    assert rows[-1]["nccl"] is None


def test_the_real_lines_are_a_row_each(real: Project) -> None:
    matrix = real.matrix
    lines = listing.by_line(matrix, cells_of(matrix), "text")[1:]
    assert [line.split()[0] for line in lines] == list(matrix.lines)
    assert "2.1.2 to 2.5.1" in lines[list(matrix.lines).index("cu121")]
    assert max(len(line) for line in lines) <= 140


def test_130_cells_are_fast(real: Project) -> None:
    started = time.perf_counter()
    listing.by_cell(real, NONE, cells_of(real.matrix), "json", lambda _: "absent")
    assert time.perf_counter() - started < 0.5


def test_the_library_of_a_cell_whose_nccl_is_inside_torch(real: Project) -> None:
    assert library_of(by_id(real.matrix)["cu118-torch2.1.2"]) == ("nccl", None)


# ---------------------------------------------------------------- tables
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(min_codepoint=33, max_codepoint=126))] * 3), min_size=1
    )
)
def test_a_plain_table_cuts_nothing_and_aligns(rows: list[tuple[str, str, str]]) -> None:
    lines = tables.plain(rows, ("a", "b", "c"))
    assert len(lines) == len(rows) + 1
    for row, line in zip(rows, lines[1:], strict=True):
        assert line.split() == [word for word in row if word]
    start = max(len(row[0]) for row in [*rows, ("a",)]) + 2
    for row, line in zip(rows, lines[1:], strict=True):
        assert line[start:].startswith(row[1])


def test_no_rows_give_the_header_or_nothing() -> None:
    assert tables.plain([], ("a", "b")) == ["a  b"]
    assert tables.plain([]) == []


@pytest.mark.parametrize(("text", "cell"), [("a|b", "a\\|b"), ("a\nb", "a b"), ("", "")])
def test_a_markdown_table_stays_one(text: str, cell: str) -> None:
    assert tables.markdown(("h",), [(text,)])[2] == f"| {cell} |"
