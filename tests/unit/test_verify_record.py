"""verify.py: what a verification is remembered by, and when it is not taken again.

The image tests themselves are replaced by small ones; no image is touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucomm import verify
from gpucomm.cell import Cell
from gpucomm.errors import WorkFailed
from gpucomm.lock import Wheel
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.standard import by_id, cells_of
from gpucomm.verify import suite_hash

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]
IMAGE = f"sha256:{'ab' * 32}"
CELL = "cu121-torch2.4.1-nccl2.20.5"
PINS, CPU = f"{CELL}-py3.11", "cpu-torch2.13.0-py3.11"
OVERRIDES = '{nccl: "2.20.5", overrides: ["2.21.5"]}'
BUDGET = "size_budget_mb: {runtime: 6400, slim: 5600}"


@pytest.fixture
def cell(small: Matrix) -> Cell:
    return by_id(small)[CELL]


# ---------------------------------------------------------------- the hash of the suite


def test_a_changed_image_test_is_another_suite(small_project: Project, cell: Cell) -> None:
    folder = small_project.places.image_tests
    seen = [suite_hash(small_project, cell)]
    changes: list[Callable[[], Any]] = [
        lambda: (folder / "test_one.py").write_text("def test_one(): assert True\n"),
        lambda: (folder / "test_two.py").write_text(""),
        lambda: (folder / "test_two.py").rename(folder / "test_three.py"),
        lambda: (folder / "conftest.py").write_text("x = 1\n"),
        lambda: (folder / "conftest.py").unlink(),
    ]
    for change in changes:
        change()
        seen.append(suite_hash(small_project, cell))
    assert len(set(seen[:-1])) == len(seen) - 1
    assert seen[-1] == seen[-3]  # the conftest that came and went


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("source.example/gpucomm", "other.example/gpucomm", id="label"),
        pytest.param("{runtime: 6400,", "{runtime: 6500,", id="budget"),
        pytest.param("apt: [gcc, libc6-dev]", "apt: [gcc, libc6-dev, g++]", id="packages"),
        pytest.param(BUDGET, "size_budget_mb: {slim: 5600}", id="no-budget"),
        pytest.param("cuda>=12.0", "cuda>=12.1", id="nvidia-require"),
        pytest.param(BUDGET, f"{BUDGET}\n    environment: {{A: b}}", id="environment"),
    ],
)
def test_a_changed_expectation_is_another_suite(
    old: str, new: str, small_project: Project, cell: Cell, small_text: str,
    parse_matrix: ParseMatrix,
) -> None:  # fmt: skip
    assert small_text.count(old) == 1
    changed = replace(small_project, matrix=parse_matrix(small_text.replace(old, new)))
    assert suite_hash(changed, cell) != suite_hash(small_project, cell)


@pytest.mark.parametrize("field", ["version", "sha256"])
def test_a_changed_pin_is_another_suite(field: str, small_project: Project, cell: Cell) -> None:
    lock = small_project.lock
    first, *rest = lock.cells[PINS]
    changed = {"version": replace(first, version="9.9"), "sha256": replace(first, sha256="f" * 64)}
    cells = {**lock.cells, PINS: (changed[field], *rest)}
    other = replace(small_project, lock=replace(lock, cells=cells))
    assert suite_hash(other, cell) != suite_hash(small_project, cell)


def test_every_cell_has_its_own_suite(small_project: Project, small: Matrix) -> None:
    hashes = {suite_hash(small_project, cell) for cell in cells_of(small)}
    assert len(hashes) == len(cells_of(small))


def test_nothing_else_is_another_suite(
    small_project: Project, cell: Cell, small_text: str, parse_matrix: ParseMatrix,
    make_wheel: MakeWheel, tmp_path: Path,
) -> None:  # fmt: skip
    before = suite_hash(small_project, cell)
    folder = small_project.places.image_tests
    os.utime(folder / "test_one.py", (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "test_one.pyc").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    text = small_text.replace("latest: cu121-torch2.4.1-nccl2.20.5", "latest: cpu-torch2.13.0")
    text = text.replace("{runtime: 1600}", "{runtime: 1700}")
    other = replace(small_project, matrix=parse_matrix(text))
    lock = other.lock
    cpu = (*lock.cells[CPU], make_wheel("extra", "1.0"))
    other = replace(other, lock=replace(lock, cells={**lock.cells, CPU: cpu}))
    elsewhere = replace(other.places, cache=tmp_path / "other-cache")
    assert suite_hash(replace(other, places=elsewhere), cell) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            '"2.2.2": {nccl: "2.19.3"', '"2.2.2": {nccl: "2.18.1"', id="nccl-of-another-torch"
        ),
        pytest.param(f'"2.4.1": {OVERRIDES}', '"2.4.1": {nccl: "2.20.5"}', id="override-gone"),
        pytest.param("slim: 5600", "slim: 5700", id="budget-of-another-flavor"),
        pytest.param('[{archs: ["7.0", "9.0"]}]', '[{archs: ["9.0"]}]', id="gpus"),
        pytest.param('toolkit: "530.30.02"', 'toolkit: "531.30.02"', id="driver"),
        pytest.param("effect: warn", "effect: warn\n    # seen again", id="comment"),
        pytest.param("lines: [cu121], flavor", "lines: [cpu], flavor", id="standard-set"),
    ],
)
def test_what_a_line_says_of_other_cells_is_not_another_suite(
    old: str, new: str, small_project: Project, cell: Cell, small_text: str,
    parse_matrix: ParseMatrix,
) -> None:  # fmt: skip
    assert small_text.count(old) == 1
    changed = replace(small_project, matrix=parse_matrix(small_text.replace(old, new)))
    assert suite_hash(changed, cell) == suite_hash(small_project, cell)


def test_a_slim_image_is_not_verified_again_for_a_wheel_that_it_leaves_out(
    small_project: Project, small: Matrix
) -> None:
    slim = by_id(small)[f"{CELL}-slim"]
    lock = small_project.lock
    rows = tuple(
        replace(wheel, version="9.9") if wheel.name == "triton" else wheel
        for wheel in lock.cells[PINS]
    )
    other = replace(small_project, lock=replace(lock, cells={**lock.cells, PINS: rows}))
    assert suite_hash(other, slim) == suite_hash(small_project, slim)


# ---------------------------------------------------------------- a run and its record

CONFTEST = """\
import json
from pathlib import Path

def pytest_addoption(parser):
    for name in ("--image", "--cell", "--report"):
        parser.addoption(name)

def pytest_configure(config):
    config.outcome = {"passed": [], "failed": {}}

def pytest_runtest_logreport(report):
    pass

def pytest_sessionfinish(session):
    path = session.config.getoption("--report")
    Path(path).write_text(json.dumps(session.config.outcome))

import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    result = (yield).get_result()
    outcome = item.config.outcome
    if result.when == "call":
        if result.passed:
            outcome["passed"].append(item.name)
        else:
            outcome["failed"][item.name] = str(call.excinfo.value).splitlines()[0]
"""


@pytest.fixture
def suite(small_project: Project) -> Callable[[str], Project]:
    """Replaces the image tests by `text`."""

    def replace_tests(text: str) -> Project:
        folder = small_project.places.image_tests
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_one.py").write_text(text)
        return small_project

    return replace_tests


PASSING = """\
def test_one(request):
    assert request.config.getoption("--image").startswith("sha256:abab")
def test_two(request):
    assert request.config.getoption("--cell") == "cu121-torch2.4.1-nccl2.20.5"
"""


def test_a_pass_is_recorded_for_exactly_that_image_and_suite(
    suite: Callable[[str], Project], cell: Cell
) -> None:
    project = suite(PASSING)
    hashed = suite_hash(project, cell)
    assert verify.recorded(project.places, IMAGE, hashed) is None
    result = verify.verify(project, cell, IMAGE)
    assert (result.image, result.cell, result.passed) == (IMAGE, CELL, 2)
    found = verify.recorded(project.places, IMAGE, hashed)
    assert found is not None
    assert (found.image, found.cell, found.passed) == (IMAGE, CELL, 2)
    assert found.seconds == result.seconds
    assert verify.recorded(project.places, f"sha256:{'cd' * 32}", hashed) is None
    assert verify.recorded(project.places, IMAGE, "0" * 64) is None
    # the same first digits are not the same image
    alike = IMAGE[:40] + "0" * 31
    assert verify.recorded(project.places, alike, hashed) is None
    assert (project.places.logs / f"{CELL}.verify.log").read_text()


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "{}", '{"image": "x"}', '{"more": 1}', "\x00"]
)
def test_a_broken_record_is_no_record(text: str, suite: Callable[[str], Project]) -> None:
    places = suite("").places
    path = verify._record(places, IMAGE, "0" * 64)
    path.parent.mkdir(parents=True)
    data = {"image": IMAGE, "cell": CELL, "seconds": 1.0, "passed": 2}
    path.write_text(json.dumps(data))
    assert verify.recorded(places, IMAGE, "0" * 64) is not None
    path.write_text(text)
    assert verify.recorded(places, IMAGE, "0" * 64) is None


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        pytest.param(
            "def test_a():\n    raise OSError('no NCCL')\ndef test_b():\n    raise OSError('two')\n"
            "def test_c(): pass\n",
            [f"{CELL}: test_a: no NCCL", f"{CELL}: test_b: two"],
            id="failed",
        ),
        pytest.param("", [f"{CELL}: the tests did not run (pytest ended with 5)"], id="none"),
        pytest.param(
            "import absent_module\n",
            [f"{CELL}: the tests did not run (pytest ended with 2)"],
            id="broken",
        ),
    ],
)
def test_a_failure_names_every_test_and_the_log_and_is_not_recorded(
    tests: str, said: list[str], suite: Callable[[str], Project], cell: Cell
) -> None:
    project = suite(tests)
    with pytest.raises(WorkFailed) as caught:
        verify.verify(project, cell, IMAGE)
    *faults, last = caught.value.faults
    assert faults == said
    assert last == f"full log: {project.places.logs / f'{CELL}.verify.log'}"
    assert verify.recorded(project.places, IMAGE, suite_hash(project, cell)) is None


def test_the_report_of_an_earlier_run_is_not_taken_for_this_one(
    suite: Callable[[str], Project], cell: Cell
) -> None:
    project = suite(PASSING)
    verify.verify(project, cell, IMAGE)
    (project.places.image_tests / "conftest.py").write_text("import absent_module\n")
    with pytest.raises(WorkFailed, match="did not run"):
        verify.verify(project, cell, IMAGE)
