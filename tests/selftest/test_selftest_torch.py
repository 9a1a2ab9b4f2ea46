"""The real self-test with a real torch, driven and damaged from the outside only."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucomm_selftest.plan import Setting, plan

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

CORRECTNESS = r"stage correctness: begins"


@pytest.mark.parametrize("ranks", [2, 4])
def test_gloo_passes_and_the_table_agrees_with_the_json(torch_run: Runner, ranks: int) -> None:
    common = ("--backend", "gloo", "--nproc", str(ranks))
    done = torch_run.run(*common, "--json")
    report = done.json
    assert (done.code, report["verdict"], report["exit_code"]) == (0, "pass", 0)
    assert {stage["status"] for stage in report["stages"]} == {"pass"}
    (init,) = [stage for stage in report["stages"] if stage["id"] == "init"]
    assert len(init["rows"]) == ranks
    assert len({rank["pid"] for rank in report["world"]["ranks"]}) == ranks
    rows = next(one for one in report["stages"] if one["id"] == "correctness")["rows"]
    planned = plan(Setting(world=ranks, backend="gloo"))
    assert [row["check"] for row in rows] == [check.label for check in planned]
    assert {row["level"] for row in rows} <= {"pass", "unsupported"}
    # What every torch since 2.1 offers on Gloo must have run.
    sure = [
        row
        for row in rows
        if row["dtype"] == "fp32"
        and row["collective"] in ("all_reduce", "all_reduce_async", "broadcast", "all_gather")
        and row["op"] != "avg"
    ]
    assert {row["level"] for row in sure} == {"pass"}
    assert len(sure) > 10
    objects = [row["level"] for row in rows if row["dtype"] == "object"]
    assert objects == ["pass"] * 4

    text = torch_run.run(*common)
    assert text.code == 0
    assert re.search(r"^PASS: .* exit 0\]$", text.out, re.M | re.S)
    shown = [line.split() for line in text.out.splitlines()]
    for name in {f"{row['collective']} {row['op']}".strip() for row in rows}:
        for level, mark in (("pass", "ok"), ("unsupported", "n/a")):
            count = sum(
                f"{row['collective']} {row['op']}".strip() == name and row["level"] == level
                for row in rows
            )
            begin = [*name.split(), str(count), mark]
            assert any(words[: len(begin)] == begin for words in shown) == (count > 0), begin
    unsupported = any(row["level"] == "unsupported" for row in rows)
    assert ("GC0303" in text.out) == unsupported


def test_a_killed_rank_is_named_and_nothing_is_left(torch_run: Runner) -> None:
    running = torch_run.start("--backend", "gloo", "--nproc", "4", "--json", "--verbose")
    running.wait_for_log(CORRECTNESS)
    running.rank(2).kill(signal.SIGKILL)
    done = running.finish(30)
    assert done.code == 1
    finding = done.json["findings"][-1]
    assert finding["id"] == "GC0901"
    assert re.match(r"rank 2 \(pid \d+\) was killed by SIGKILL during", finding["measured"])
    assert not re.search(r"rank [013] \(pid", finding["measured"])
    assert running.processes() == []


def test_a_rank_killed_while_it_imports_torch_is_named(torch_run: Runner) -> None:
    running = torch_run.start("--backend", "gloo", "--nproc", "2", "--json", "--verbose")
    running.wait_for_log(r": rank 1 pid \d+")
    running.rank(0).kill(signal.SIGKILL)
    done = running.finish(30)
    assert done.code == 1
    assert "rank 0 (pid" in done.json["summary"]
    assert "SIGKILL during init" in done.json["summary"]
    assert running.processes() == []


def test_a_stopped_rank_is_a_hang_that_ends_at_the_deadline(torch_run: Runner) -> None:
    running = torch_run.start(
        "--backend", "gloo", "--nproc", "4", "--json", "--verbose", "--timeout", "30"
    )
    running.wait_for_log(CORRECTNESS)
    running.rank(1).kill(signal.SIGSTOP)
    done = running.finish(45)
    assert done.code == 124
    report = done.json
    assert report["verdict"] == "hang"
    (hung,) = [stage for stage in report["stages"] if stage["status"] == "hang"]
    assert hung["id"] == "correctness"
    assert 30 <= hung["seconds"] < 36
    finding = report["findings"][-1]
    assert finding["id"] == "GC0902"
    assert re.search(r"rank 1 \(pid \d+\) is stopped", finding["measured"])
    assert "ranks 0,2,3 were waiting" in finding["measured"]
    assert running.processes() == []
    # The stacks of those that wait are evidence.
    output = hung["stopped_ranks"][0]["output"]
    assert any("most recent call first" in line for line in output)


def test_a_launcher_that_is_told_to_end_leaves_no_process(torch_run: Runner) -> None:
    running = torch_run.start("--backend", "gloo", "--nproc", "2", "--verbose")
    running.wait_for_log(CORRECTNESS)
    assert len(running.processes()) == 2
    running.popen.send_signal(signal.SIGTERM)
    done = running.finish(20)
    assert done.code == 143
    assert "INTERRUPTED: GC0906" in done.out
    assert running.processes() == []


def test_nccl_without_a_gpu_is_an_unusable_environment(torch_run: Runner) -> None:
    done = torch_run.run(
        "--backend",
        "nccl",
        "--json",
        environ={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""},
    )
    assert done.code == 3
    assert done.json["verdict"] == "unusable"
    assert done.json["findings"][0]["id"] == "GC0111"


def test_wrong_usage(torch_run: Runner) -> None:
    done = torch_run.run("--nproc", "-3")
    assert (done.code, done.out) == (2, "")


def test_the_checker_sees_every_damage_and_accepts_every_right_output(torch_run: Runner) -> None:
    script = (Path(__file__).parent / "perturbations.py").read_text(encoding="utf-8")
    done = torch_run.script(script)
    assert done.code == 0, done.err
    assert done.json["missed"] == []
    assert done.json["accepted"] == done.json["checks"] * 3
    assert done.json["checks"] > 500
    assert done.json["tried"] > 20000
