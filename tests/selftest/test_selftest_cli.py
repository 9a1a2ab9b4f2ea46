"""What can be asked for, and what is said about what cannot."""

from pathlib import Path

import pytest

from gpucomm_selftest import __version__
from gpucomm_selftest.cli import choose, main, parse
from gpucomm_selftest.environment import rank_environment, shown
from gpucomm_selftest.errors import UsageError


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--back", "nccl"], "unrecognized arguments: --back nccl"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
        (["--nproc", "0"], "--nproc 0: give a number from 1 to 1024"),
        (["--nproc", "two"], "invalid int value: 'two'"),
        (["--timeout", "0"], "--timeout 0: give a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout nan: give a number of seconds above 0"),
        (["--stages", "bandwith"], "--stages bandwith: no such stage; there are versions, init"),
        (["--stages", ","], "--stages: names no stage"),
        (["--skip", "x"], "--skip x: no such stage"),
        (["--skip", "init"], "--skip init: stage correctness needs it; skip correctness too"),
        (["--skip", "versions,init,correctness"], "no stage is left to run"),
        (["--output", "/nonexistent/report"], "--output /nonexistent/report: No such file"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gpucomm-selftest {__version__}\n"


def test_stages_bring_what_they_need_in_order() -> None:
    every = ["versions", "init", "correctness"]
    assert choose([], []) == (every, [])
    assert choose(["correctness"], []) == (every, ["versions", "init"])
    assert choose(["init", "versions"], []) == (["versions", "init"], [])
    assert choose([], ["correctness"]) == (["versions", "init"], [])
    with pytest.raises(UsageError):
        choose(["correctness"], ["init"])


def test_timeout_is_the_deadline_of_each_stage(tmp_path: Path) -> None:
    options = parse(["--timeout", "7", "--output", str(tmp_path / "r")], {})
    assert options.deadlines == {"versions": 7.0, "init": 7.0, "correctness": 7.0}
    assert set(parse([], {}).deadlines.values()) == {60.0, 120.0}


def test_only_settings_that_matter_are_shown() -> None:
    environ = {"NCCL_DEBUG": "INFO", "AWS_SECRET": "x", "LD_PRELOAD": "/a.so", "HOME": "/"}
    assert shown(environ) == {"NCCL_DEBUG": "INFO", "LD_PRELOAD": "/a.so"}


def test_the_environment_of_a_rank_keeps_its_own_and_makes_paths_absolute() -> None:
    made = rank_environment({"PYTHONPATH": "here:/there", "A": "1"}, {"B": "2"})
    first, second = made["PYTHONPATH"].split(":")[:2]
    assert (first, second) == (str(Path("here").absolute()), "/there")
    assert (made["A"], made["B"]) == ("1", "2")


def test_a_uid_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4123456)
    assert rank_environment({}, {})["LOGNAME"] == "uid4123456"
    assert "LOGNAME" not in rank_environment({"USER": "somebody"}, {})
