"""sweep.py: which cells, the table of a run, and what makes a remembered row void."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gpucomm import sweep
from gpucomm.cell import DEFAULT_INDEX, Cell
from gpucomm.project import Project
from gpucomm.standard import by_id, cells_of, on_demand
from gpucomm.sweep import Row

ROW = Row(
    cell="cu121-torch2.4.1-nccl2.20.5",
    recipe="ab" * 32,
    digest=f"sha256:{'0123456789ab' * 6}"[:71],
    date="2026-01-31",
    build_seconds=123.6,
    verify_seconds=45.4,
    tests=67,
    download=2_510_000_000,
    compressed=3_600_000_000,
    unpacked=6_230_000_000,
    torch="2.4.1+cu121",
    library="nccl 2.20.5",
    engine="Docker 28.0.1",
)


# ---------------------------------------------------------------- which cells


def test_the_real_cells_are_the_six_aliases_whose_wheels_are_on_the_default_index(
    real: Project,
) -> None:
    matrix, found = real.matrix, sweep.real_cells(real)
    assert [cell.line for cell in found] == ["cu121", "cu124", "cu126", "cu128", "cu130", "cu132"]
    assert [cell.id for cell in found] == [matrix.aliases[cell.line] for cell in found]
    assert all(real.wheels(cell) for cell in found)
    chosen = {cell.line for cell in found}
    for line in matrix.lines.keys() - chosen:
        assert by_id(matrix)[matrix.aliases[line]].index == line
    assert all(cell.index == DEFAULT_INDEX for cell in found)


def test_a_line_without_an_alias_is_not_among_them(small_project: Project) -> None:
    assert [cell.line for cell in sweep.real_cells(small_project)] == ["cu121", "cu130"]
    aliases = {"latest": small_project.matrix.aliases["latest"]}
    matrix = small_project.matrix.model_copy(update={"aliases": aliases})
    assert sweep.real_cells(replace(small_project, matrix=matrix)) == ()


# ---------------------------------------------------------------- the table


def test_a_row_tells_what_was_loaded_and_what_it_took() -> None:
    cpu = replace(ROW, cell="cpu", library="none", download=9_000_000, build_seconds=0)
    header, rule, *rows = sweep.table([ROW, cpu]).splitlines()
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    assert rule == "|" + "---|" * len(columns)
    values = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert dict(zip(columns, values[0], strict=True)) == {
        "cell": ROW.cell,
        "loaded": "nccl 2.20.5",
        "torch": "2.4.1+cu121",
        "build": "124 s",
        "verify": "67 tests, 45 s",
        "wheels": "2.51 GB",
        "compressed": "3.60 GB",
        "unpacked": "6.23 GB",
        "digest": "0123456789ab",
    }
    assert dict(zip(columns, values[1], strict=True))["wheels"] == "9 MB"
    assert len(sweep.table([]).splitlines()) == 2


def test_the_document_names_days_and_engines_and_ends_in_the_table() -> None:
    one = sweep.document([ROW])
    assert "`make test-matrix` on 2026-01-31, Docker 28.0.1. " in one
    assert one.endswith(f"\n\n{sweep.table([ROW])}\n")
    rows = [ROW, replace(ROW, date="2026-01-29", engine="Docker 27.5.0")]
    text = sweep.document(rows)
    assert "on 2026-01-29 to 2026-01-31, Docker 27.5.0, Docker 28.0.1. " in text
    assert text.endswith(f"{sweep.table(rows)}\n")


# ---------------------------------------------------------------- the record


def remember(project: Project, cell: Cell, row: Row = ROW) -> Path:
    """Keep a row of `cell` as a run would."""
    path = project.places.cache / "sweep" / f"{cell.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    row = replace(row, cell=cell.id, recipe=sweep.recipe_of(project, cell))
    path.write_text(json.dumps(asdict(row)))
    return path


@pytest.fixture
def cell(small_project: Project) -> Cell:
    """A cell of the small checkout, which has a self-test to copy too."""
    source = small_project.places.selftest / "gpucomm_selftest" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    return cells_of(small_project.matrix)[0]


def test_what_passed_is_remembered(small_project: Project, cell: Cell) -> None:
    assert sweep.recorded(small_project, cell) is None
    remember(small_project, cell)
    row = sweep.recorded(small_project, cell)
    assert row is not None
    assert replace(row, recipe=ROW.recipe) == replace(ROW, cell=cell.id)
    assert sweep.recorded(small_project, cells_of(small_project.matrix)[1]) is None


@pytest.mark.parametrize(
    "file",
    [
        "images/CELL/Dockerfile",
        "images/CELL/requirements/python.txt",
        "templates/files/unpack-wheels",
        "selftest/gpucomm_selftest/__init__.py",
        "tests/images/test_one.py",
    ],
)
def test_a_changed_file_makes_the_record_void(
    file: str, small_project: Project, cell: Cell
) -> None:
    remember(small_project, cell)
    path = small_project.places.root / file.replace("CELL", cell.id)
    before = path.read_bytes()
    path.write_bytes(before + b"\n")
    assert sweep.recorded(small_project, cell) is None
    path.write_bytes(before)
    assert sweep.recorded(small_project, cell) is not None
    path.rename(path.with_name("renamed.py"))
    assert sweep.recorded(small_project, cell) is None


def test_what_concerns_another_cell_or_is_a_cache_leaves_the_record(
    small_project: Project, cell: Cell
) -> None:
    remember(small_project, cell)
    other = cells_of(small_project.matrix)[1]
    (small_project.recipe(other) / "Dockerfile").write_text("FROM other\n")
    cache = small_project.places.selftest / "gpucomm_selftest" / "__pycache__"
    cache.mkdir()
    (cache / "one.pyc").write_bytes(b"x")
    (small_project.places.root / "README.md").write_text("x\n")
    assert sweep.recorded(small_project, cell) is not None


def test_an_expectation_of_the_matrix_is_part_of_the_record(
    small_project: Project, cell: Cell
) -> None:
    # A budget is that of the torch of the alias.
    cell = by_id(small_project.matrix)[small_project.matrix.aliases[cell.line]]
    remember(small_project, cell)
    line = small_project.matrix.lines[cell.line]
    line = line.model_copy(update={"size_budget_mb": {"runtime": 1}})
    matrix = small_project.matrix.model_copy(
        update={"lines": {**small_project.matrix.lines, cell.line: line}}
    )
    assert sweep.recorded(replace(small_project, matrix=matrix), cell) is None


def test_a_cell_on_demand_is_remembered_by_its_own_files(small_project: Project) -> None:
    cell = on_demand(small_project.matrix, "cu121-torch2.4.1-mpi")
    small_project.write_recipes([cell])
    remember(small_project, cell)
    assert sweep.recorded(small_project, cell) is not None
    (small_project.recipe(cell) / "Dockerfile").write_text("FROM other\n")
    assert sweep.recorded(small_project, cell) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"cell": "one"}'])
def test_a_record_cut_short_is_none(text: str, small_project: Project, cell: Cell) -> None:
    remember(small_project, cell).write_text(text)
    assert sweep.recorded(small_project, cell) is None


def test_a_record_of_another_shape_is_none(small_project: Project, cell: Cell) -> None:
    path = remember(small_project, cell)
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert sweep.recorded(small_project, cell) is None
