"""cli.py: what a person types, what is printed, and the exit codes. No engine answers here."""

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

from gpucomm import cli
from gpucomm.project import Project
from gpucomm.standard import cells_of

T24 = "cu121-torch2.4.1-nccl2.20.5"
REPOSITORY = "registry.example/team/gpucomm"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What one call of gpucomm gave."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def no_engine(
    small_project: Project, bare_env: pytest.MonkeyPatch, tmp_path: Path
) -> pytest.MonkeyPatch:
    """The small checkout as the working directory, and no engine that answers."""
    bare_env.setenv("DOCKER_HOST", f"unix://{tmp_path}/closed.sock")
    bare_env.setenv("ENGINE", "none")
    bare_env.setenv("GPUCOMM_CACHE", str(tmp_path / "cache"))
    bare_env.chdir(small_project.places.root)
    return bare_env


@pytest.fixture
def run(no_engine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs gpucomm in this process, which is ten times as fast as a new one."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> Done:
        no_engine.setattr(sys, "argv", ["gpucomm", *arguments])
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
        assert isinstance(code, int | None)
        text = capsys.readouterr()
        return Done(returncode=code or 0, stdout=text.out, stderr=text.err)

    yield call
    signal.signal(signal.SIGTERM, handler)


def as_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """gpucomm as a person runs it."""
    return subprocess.run(
        [sys.executable, "-c", "from gpucomm.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def matrix_file(project: Project) -> Path:
    return project.places.root / "matrix.yaml"


def test_image_prints_exactly_one_line(run: Run) -> None:
    done = run("image", "cu121")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{REPOSITORY}:{T24}\n"


def test_image_of_several_cells_is_wrong_input(run: Run) -> None:
    done = run("image", "*-slim")
    assert (done.returncode, done.stdout) == (2, "")
    assert "names 2 cells" in done.stderr


def test_registry_takes_the_place_of_the_matrixs(run: Run, no_engine: pytest.MonkeyPatch) -> None:
    no_engine.setenv("REGISTRY", "127.0.0.1:5000/own")
    assert run("image", "cpu").stdout == "127.0.0.1:5000/own:cpu-torch2.13.0\n"
    no_engine.setenv("REGISTRY", "https://127.0.0.1:5000/own")
    done = run("image", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpucomm: REGISTRY 'https://127.0.0.1:5000/own' is not host")


def test_list_json_is_one_object_per_cell(run: Run, small_project: Project) -> None:
    done = run("list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in rows] == [cell.id for cell in cells_of(small_project.matrix)]
    row = next(row for row in rows if row["id"] == T24)
    assert (
        row.items()
        >= {
            "id": T24,
            "line": "cu121",
            "torch": "2.4.1",
            "library": "nccl",
            "library_version": "2.20.5",
            "image": f"{REPOSITORY}:{T24}",
            "aliases": ["cu121", "latest"],
            "state": "unknown",
        }.items()
    )
    assert (rows[-1]["library"], rows[-1]["library_version"]) == ("gloo", None)


@pytest.mark.parametrize(
    "command", ["image", "list", "build", "push", "pull", "run", "selftest", "test-image", "clean"]
)
def test_an_unknown_target_is_wrong_input_with_the_nearest_names(command: str, run: Run) -> None:
    done = run(command, "cu121-torch2.4.l-nccl2.20.5")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpucomm: 'torch2.4.l' in 'cu121-torch2.4.l-nccl2.20.5' is no value")


def test_every_unknown_target_is_named(run: Run) -> None:
    done = run("list", "one,cpu,two")
    assert done.returncode == 2
    assert [line.split("'")[1] for line in done.stderr.splitlines()] == ["one", "two"]


def test_a_broken_matrix_gives_all_its_faults_and_nothing_else(
    run: Run, small_project: Project, small_text: str
) -> None:
    text = small_text.replace("base: auto", "base: auto\n    colour: red")
    text = text.replace('python: "3.11"', "python: 3.10").replace("tools:", "tolls:")
    matrix_file(small_project).write_text(text)
    for arguments in (["list"], ["build", "cu121"], ["lock"], ["render", "--check"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        lines = done.stderr.splitlines()
        assert len(lines) == 4, done.stderr
        assert all(line.startswith("gpucomm: matrix.yaml:") for line in lines)


def test_a_lock_that_does_not_answer_is_wrong_input(run: Run, small_project: Project) -> None:
    (small_project.places.root / "matrix.lock").unlink()
    done = run("list")
    assert (done.returncode, done.stdout) == (2, "")
    said = f"gpucomm: matrix.lock: {T24}-py3.11: not locked; run gpucomm lock"
    assert said in done.stderr.splitlines()


def lock_file(project: Project) -> Path:
    return project.places.root / "matrix.lock"


def test_lock_check_passes_on_a_good_checkout_and_writes_nothing(
    run: Run, small_project: Project
) -> None:
    before = lock_file(small_project).read_bytes()
    done = run("lock", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    lock = small_project.lock
    assert done.stdout == (
        f"matrix.lock answers the matrix: {len(lock.cells)} locked, {len(lock.unlocked)} not\n"
    )
    assert lock_file(small_project).read_bytes() == before
    assert not small_project.places.on_demand.exists()


@pytest.mark.parametrize("what", ["hash", "version", "alias", "base"])
def test_lock_check_refuses_a_lock_that_was_edited(
    what: str, run: Run, small_project: Project
) -> None:
    path = lock_file(small_project)
    data = json.loads(path.read_text())
    wheel = data["wheels"]["numpy-2.4.6-py3-none-any.whl"]
    old, new = {
        "hash": (wheel["sha256"], f"{'0' * 8}{wheel['sha256'][8:]}"),
        "version": ('"version": "2.4.6"', '"version": "2.4.7"'),
        "alias": (f'"cu121": "{T24}"', '"cu121": "cu121-torch2.2.2-nccl2.19.3"'),
        "base": ("sha256:abab", "sha256:cdcd"),
    }[what]
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    for arguments in (["lock", "--check"], ["list"], ["build", "cpu"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("gpucomm: matrix.lock: edited by hand, its seal does not fit; ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            f"  cu121: {T24}\n",
            "  cu121: cu121-torch2.2.2-nccl2.19.3\n",
            f"alias cu121: {T24} when it was locked, now cu121-torch2.2.2-nccl2.19.3",
        ),
        (
            'wheels: {torchvision: "0.19.1"}',
            'wheels: {torchvision: "0.19.0"}',
            f"{T24}-py3.11-torchvision: torchvision is 0.19.1, the matrix says 0.19.0",
        ),
        (
            "2.29.7",
            "2.29.8",
            "cu130-torch2.13.0-nccl2.29.8-py3.11: not locked",
        ),
    ],
    ids=["alias", "version", "nccl"],
)
def test_lock_check_names_what_the_matrix_says_otherwise(
    old: str, new: str, said: str, run: Run, small_project: Project
) -> None:
    path = matrix_file(small_project)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    done = run("lock", "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"gpucomm: matrix.lock: {said}; run gpucomm lock" in done.stderr.splitlines(), done


def test_lock_check_fails_when_a_date_of_the_matrix_has_come(
    run: Run, small_project: Project
) -> None:
    path = matrix_file(small_project)
    path.write_text(path.read_text().replace('"2099-01-01"', '"2020-01-01"'))
    done = run("lock", "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpucomm: rule slow-start was to be looked at again on 2020-01-")


def test_as_a_process_it_prints_and_ends_alike(no_engine: pytest.MonkeyPatch) -> None:
    done = as_process("image", "cu121")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{REPOSITORY}:{T24}\n", "")
    done = as_process("image", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpucomm: TARGET 'nothing' names no cell")
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(no_engine: pytest.MonkeyPatch) -> None:
    done = as_process("--debug", "image", "nothing")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "WrongInput" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["list", "--nonsense"], ["image"], ["build", "cpu", "--base", "x"],
                  ["build", "cpu", "--ca", "/absent.pem"], ["image", "cpu", "more"]],
)  # fmt: skip
def test_wrong_usage_is_wrong_input(arguments: list[str], run: Run) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["build", "--help"], ["--version"]])
def test_help_needs_no_checkout(
    arguments: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_outside_of_a_checkout_is_wrong_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpucomm: no matrix.yaml in ")


def test_the_checkout_is_found_from_below(
    run: Run, small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_project.places.images)
    assert run("image", "cpu").returncode == 0


def test_render_writes_and_its_check_guards(run: Run, small_project: Project) -> None:
    images = small_project.places.images
    files = small_project.rendered()
    done = run("render", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(files)} files" in done.stdout
    (images / T24 / "Dockerfile").write_text("FROM other\n")
    (images / "stray").mkdir()
    done = run("render", "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"gpucomm: images/{T24}/Dockerfile: differs from what the matrix renders; "
        "run gpucomm render",
        "gpucomm: images/stray: belongs to no cell; run gpucomm render",
    ]
    assert (images / T24 / "Dockerfile").read_text() == "FROM other\n"
    assert run("render").stdout == "2 files changed under images/\n"
    assert run("render", "--check").returncode == 0
    assert run("render").stdout == "0 files changed under images/\n"


def test_render_makes_images_from_nothing(run: Run, small_project: Project) -> None:
    shutil.rmtree(small_project.places.images)
    assert run("render").returncode == 0
    assert run("render", "--check").returncode == 0


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("cpu", ["--apt-mirror", "mirror.example"], "--apt-mirror 'mirror.example' is not a URL"),
        ("cpu", ["--wheelhouse", "."], "WHEELHOUSE . has no torch-2.13.0+cpu-py3-none-any.whl"),
        ("rocm6.1", [], "rocm6.1-torch2.4.1-rccl2.18.6 is unlocked: the PyTorch index of rocm6.1"),
    ],
)
def test_a_wrong_option_of_build_is_said_before_anything_is_done(
    target: str, options: list[str], said: str, run: Run, small_project: Project
) -> None:
    images = small_project.places.images
    shutil.rmtree(images)
    done = run("build", target, *options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpucomm: {said}")
    assert not images.exists()


def test_a_missing_ca_of_the_environment_is_said_before_anything_is_done(
    run: Run, small_project: Project, no_engine: pytest.MonkeyPatch
) -> None:
    no_engine.setenv("SSL_CERT_FILE", "/absent.pem")
    shutil.rmtree(small_project.places.images)
    done = run("build", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "/absent.pem (SSL_CERT_FILE or its kin) cannot be read" in done.stderr
    assert not small_project.places.images.exists()


def test_no_engine_is_unusable(run: Run) -> None:
    for command in ("test-image", "push", "pull", "run", "selftest", "build", "clean"):
        done = run(command, "cpu")
        assert done.returncode == 3, (command, done.stderr)
        assert "no Docker engine answers at unix://" in done.stderr
        assert "Traceback" not in done.stderr
