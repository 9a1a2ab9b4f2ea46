"""What can be asked for, and what is said about what cannot."""

import dataclasses
import json
from pathlib import Path
from typing import NoReturn

import pytest

from gpucomm_selftest import __version__
from gpucomm_selftest.cli import choose, main, parse
from gpucomm_selftest.environment import rank_environment, shown
from gpucomm_selftest.errors import UsageError
from gpucomm_selftest.stage import Session, Stage, StageResult
from gpucomm_selftest.stages import STAGES


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--back", "nccl"], "unrecognized arguments: --back nccl"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
        (["--nproc", "0"], "--nproc 0: give a number from 1 to 1024"),
        (["--nproc", "two"], "invalid int value: 'two'"),
        (["--ranks-per-gpu", "0"], "--ranks-per-gpu 0: give a number from 1 to 16"),
        (["--ranks-per-gpu", "2", "--nproc", "2"], "both say how many ranks"),
        (["--ranks-per-gpu", "2", "--backend", "gloo"], "gloo ranks run on the CPU"),
        (["--budget", "huge"], "invalid choice: 'huge'"),
        (["--budget", ""], "invalid choice: ''"),
        (["--timeout", "inf"], "--timeout inf: give a number of seconds above 0"),
        (["--timeout", "-1"], "--timeout -1: give a number of seconds above 0"),
        (["--timeout", "soon"], "invalid float value: 'soon'"),
        (["--junit", "/"], "--junit /: it is a folder"),
        (["--bundle", "/nonexistent/b.tar.gz"], "--bundle /nonexistent/b.tar.gz: /nonexistent is"),
        (["--bundle", ""], "--bundle .: it is a folder"),
        (["--timeout", "0"], "--timeout 0: give a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout nan: give a number of seconds above 0"),
        (
            ["--stages", "bandwith"],
            "--stages bandwith: no such stage; there are rendezvous, versions",
        ),
        (["--stages", ","], "--stages: names no stage"),
        (["--skip", "x"], "--skip x: no such stage"),
        (["--skip", "init"], "--skip init: stage pairs needs it; skip pairs too"),
        (["--skip", ",".join(STAGES)], "no stage is left to run"),
        (
            ["--output", "/nonexistent/report"],
            "--output /nonexistent/report: /nonexistent is no folder",
        ),
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
    three = ["versions", "init", "correctness"]
    alone = [one for one in STAGES if one not in ("rendezvous", "digest")]
    assert choose([], []) == (alone, [])
    assert choose(["correctness"], []) == (three, ["versions", "init"])
    assert choose(["init", "versions"], []) == (["versions", "init"], [])
    assert choose([], ["correctness"]) == ([one for one in alone if one != "correctness"], [])
    assert choose(["rendezvous"], []) == (["rendezvous"], [])
    with pytest.raises(UsageError):
        choose(["correctness"], ["init"])


def test_copies_of_a_launcher_always_meet_first() -> None:
    assert choose([], [], True) == (list(STAGES), [])
    assert choose(["lint"], [], True)[0] == ["rendezvous", "versions", "lint"]
    assert choose(["lint"], [], True)[1] == ["rendezvous", "versions"]
    with pytest.raises(UsageError):
        choose([], ["rendezvous"], True)


def test_timeout_is_the_deadline_of_each_stage(tmp_path: Path) -> None:
    options = parse(["--timeout", "7", "--output", str(tmp_path / "r")], {})
    assert options.deadlines == dict.fromkeys(options.stage_ids, 7.0)
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert parse([], place).deadlines == {one.id: one.deadline for one in STAGES.values()}


def test_the_budget_multiplies_the_deadlines_and_a_timeout_replaces_them() -> None:
    quick = parse([], {})
    assert quick.budget == "quick"
    deep = parse(["--budget", "deep"], {})
    assert deep.deadlines == {name: 10 * limit for name, limit in quick.deadlines.items()}
    assert set(parse(["--budget", "deep", "--timeout", "7"], {}).deadlines.values()) == {7.0}


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


def test_a_stage_that_fails_by_itself_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(session: Session, deadline: float) -> NoReturn:
        raise KeyError("a defect")

    def fine(session: Session, deadline: float) -> StageResult:
        return StageResult(id="init", status="pass", deadline=deadline)

    first = dataclasses.replace(STAGES["versions"], run=broken)
    second: Stage = dataclasses.replace(STAGES["init"], needs=(), run=fine)
    monkeypatch.setattr("gpucomm_selftest.cli.STAGES", {"versions": first, "init": second})
    assert main(["--json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [stage["status"] for stage in report["stages"]] == ["fail", "pass"]
    (finding,) = report["findings"]
    assert (finding["id"], finding["stage"]) == ("GC0910", "versions")
    assert finding["measured"] == "versions: KeyError: 'a defect'"
    assert err == ""
    assert main(["--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
