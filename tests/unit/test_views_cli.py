"""The commands list, show, why, ci, coverage and render, and how soon the command starts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucomm import cli, documents
from gpucomm.project import Project
from gpucomm.standard import cells_of

T24 = "cu121-torch2.4.1-nccl2.20.5"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What one call of gpucomm gave."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(
    small_project: Project,
    bare_env: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Runs gpucomm in this process, in the small checkout, with no engine that answers."""
    bare_env.setenv("DOCKER_HOST", f"unix://{tmp_path}/closed.sock")
    bare_env.setenv("ENGINE", "none")
    bare_env.setenv("GPUCOMM_CACHE", str(tmp_path / "cache"))
    bare_env.chdir(small_project.places.root)
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> Done:
        bare_env.setattr(sys, "argv", ["gpucomm", *arguments])
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
        assert isinstance(code, int | None)
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return Done(returncode=code or 0, stdout=text.out, stderr=text.err)

    yield call
    signal.signal(signal.SIGTERM, handler)


# ---------------------------------------------------------------- list and show
def test_list(run: Run, small_project: Project) -> None:
    done = run("list")
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.splitlines()
    assert header.split()[0] == "cell"
    assert [row.split()[0] for row in rows] == [one.id for one in cells_of(small_project.matrix)]
    assert all(row.endswith("unknown") for row in rows)


def test_list_json_is_one_object_per_cell(run: Run, small_project: Project) -> None:
    rows = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    assert [row["id"] for row in rows] == [one.id for one in cells_of(small_project.matrix)]
    assert {row["state"] for row in rows} == {"unknown"}


def test_list_markdown_and_lines(run: Run, small_project: Project) -> None:
    assert run("list", "--markdown", "cpu").stdout.splitlines()[2] == (
        "| cpu-torch2.13.0 | cpu | amd64 | locked | rendered |"
    )
    rows = run("list", "--lines").stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(small_project.matrix.lines)
    assert json.loads(run("list", "--lines", "--json", "cpu").stdout)["alias"] == "cpu-torch2.13.0"
    assert run("list", "--json", "--markdown").returncode == 2


def test_show(run: Run) -> None:
    done = run("show", "cu121,cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{T24}\n")
    assert "\n\ncpu-torch2.13.0\n" in done.stdout
    assert json.loads(run("show", "--json", "cpu").stdout)["id"] == "cpu-torch2.13.0"
    assert run("show", "cu121-torch2.13.0").returncode == 2


def test_a_wrong_proof_file_is_wrong_input(run: Run, small_project: Project) -> None:
    folder = small_project.places.root / "docs" / "evidence"
    folder.mkdir(parents=True)
    (folder / "proofs.json").write_text('{"cu12-torch1": []}')
    for command in (["list"], ["show", "cpu"]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("gpucomm: docs/evidence/proofs.json:1:2: cu12-torch1: ")


# ---------------------------------------------------------------- why
def test_why_ends_with_0_where_it_exists_and_with_1_where_it_cannot(run: Run) -> None:
    for words, code in (
        ("cu121", 0),
        ("all", 0),
        (f"{T24}-mpi", 0),
        ("cu121-torch2.13.0", 1),
        ("cu121,cu121-torch2.13.0", 1),
        ("rocm6.0-torch2.4.1", 1),
        ("rocm6.0", 1),
        ("cu121-torch2.4.1-nccl2.18.1", 1),
        ("cu121-* --gpu 9.0", 0),
        ("cu121 --gpu sm_75", 0),
        ("cu130 --gpu 7.0", 1),
        ("cpu --gpu gfx90a", 1),
        ("--gpu gfx90a", 0),
    ):
        done = run("why", *words.split())
        assert (done.returncode, done.stderr) == (code, ""), words
        assert done.stdout


def test_why_of_nonsense_is_wrong_input(run: Run) -> None:
    for words in ("nonsense", "cu121-torch2.4.1-slmi", "cu121 --gpu H100", ""):
        done = run("why", *words.split())
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr


def test_why_needs_no_lock(run: Run, small_project: Project) -> None:
    (small_project.places.root / "matrix.lock").unlink()
    assert run("why", "cu121-torch2.13.0").returncode == 1
    assert run("coverage").returncode == 0


# ---------------------------------------------------------------- ci and coverage
def test_ci_leaves_out_unlocked_cells_and_says_so(run: Run, small_project: Project) -> None:
    done = run("ci", "--max-jobs", "4")
    assert done.returncode == 0
    assert done.stderr == (
        "left out 1 unlocked cells (--all takes them): rocm6.1-torch2.4.1-rccl2.18.6\n"
    )
    include = json.loads(done.stdout)["include"]
    targets = [name for job in include for name in job["target"].split(",")]
    every = [cell.id for cell in cells_of(small_project.matrix)]
    assert sorted([*targets, "rocm6.1-torch2.4.1-rccl2.18.6"]) == sorted(every)
    assert len(include) <= 4
    done = run("ci", "--all")
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["include"]) == len(every)


def test_ci_takes_a_plan(run: Run, tmp_path: Path, small_project: Project) -> None:
    rows = [{"id": cell.id, "work": cell.line == "cpu"} for cell in cells_of(small_project.matrix)]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"cells": rows}))
    done = run("ci", "--plan", str(path))
    assert [job["target"] for job in json.loads(done.stdout)["include"]] == ["cpu-torch2.13.0"]
    done = run("ci", "--plan", str(path), "cu130")
    assert json.loads(done.stdout) == {"include": []}
    assert "GitHub refuses an empty matrix" in done.stderr
    path.write_text("{}")
    done = run("ci", "--plan", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "make it with gpucomm plan --json" in done.stderr


def test_ci_holds_to_githubs_limit(run: Run) -> None:
    for jobs in ("0", "257", "x"):
        assert run("ci", "--max-jobs", jobs).returncode == 2


def test_coverage_ends_with_the_count_and_its_check_fails(run: Run) -> None:
    done = run("coverage")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pairs have no standard cell" in done.stdout.splitlines()[-1]
    assert run("coverage", "--check").returncode == 1


# ---------------------------------------------------------------- render
def test_render_writes_the_documents_and_its_check_guards(
    run: Run, small_project: Project, root: Path
) -> None:
    (small_project.places.root / "docs").mkdir()
    page = small_project.places.root / documents.MATRIX
    shutil.copyfile(root / documents.MATRIX, page)
    done = run("render", "--check")
    assert done.returncode == 1
    assert f"gpucomm: {documents.SCHEMA}: missing; run gpucomm render" in done.stderr.splitlines()
    assert run("render").stdout.splitlines() == [
        "0 files changed under images/",
        f"{documents.MATRIX} changed",
        f"{documents.SCHEMA} changed",
    ]
    assert run("render", "--check").returncode == 0
    page.write_text(page.read_text().replace("525.60.13", "1.2.3"))
    shutil.rmtree(small_project.places.images / T24)
    lines = run("render", "--check").stderr.splitlines()
    assert lines[0].startswith(f"gpucomm: images/{T24}/")
    assert lines[-1] == (
        f"gpucomm: {documents.MATRIX}: differs from what the matrix renders; run gpucomm render"
    )


# ---------------------------------------------------------------- the start
HEAVY = ("docker", "pydantic", "pytest", "requests", "rich", "ruamel", "jinja2")


@pytest.mark.parametrize(
    ("arguments", "free_of"),
    [
        (["--help"], HEAVY),
        (["--version"], HEAVY),
        (["why", "--help"], HEAVY),
        (["build", "cu121", "--nonsense"], HEAVY),
        (["why", "cu121-torch2.7.1"], ("docker", "pytest", "requests", "rich")),
        (["list", "--markdown"], ("docker", "pytest", "requests")),
    ],
)
def test_no_command_imports_what_it_does_not_need(
    arguments: list[str], free_of: tuple[str, ...], root: Path
) -> None:
    program = (
        "import sys\n"
        "from gpucomm.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert "click" in loaded
    assert set(loaded).isdisjoint(free_of)
