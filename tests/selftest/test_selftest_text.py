"""The text of a report: golden files, and what holds for any report.

After a change that is meant, write the golden files anew with
GPUCOMM_UPDATE_GOLDEN=1 and read the difference.
"""

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from gpucomm_selftest.collectives import Check
from gpucomm_selftest.findings import found
from gpucomm_selftest.stages.correctness import judge, merge
from gpucomm_selftest.text import WIDTH, whole

GOLDEN = Path(__file__).parent / "golden"

VERSIONS = {
    "python": "3.10.14",
    "platform": "Linux-6.8.0-x86_64-with-glibc2.36",
    "torch": "2.4.1+cu121",
    "cuda": "12.1",
    "hip": None,
    "gpus": [
        {"index": index, "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
        for index in range(2)
    ],
    "driver": {"name": "nvidia", "version": "580.159.04", "from": "/proc/driver/nvidia/version"},
    "libraries": [
        {
            "family": "nccl",
            "version": "2.21.5",
            "path": "/usr/local/lib/python3.10/site-packages/nvidia/nccl/lib/libnccl.so.2",
        }
    ],
    "compiled_for": "2.20.5",
    "import_seconds": 3.04,
}


def stage(name: str, status: str, seconds: float, **more: Any) -> dict[str, Any]:
    made = {"id": name, "status": status, "seconds": seconds, "deadline": 60.0, "summary": ""}
    return {**made, "rows": [], "stopped_ranks": [], **more}


def told(finding_id: str, measured: str, stage_id: str) -> dict[str, str]:
    return {**found(finding_id, measured).as_json(), "stage": stage_id}


def init_row(rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "pid": 4711 + rank,
        "gpu": rank,
        "import_seconds": 3.0,
        "context_seconds": 0.33,
        "store_seconds": 0.01,
        "init_seconds": 0.52,
        "first_all_reduce_seconds": 0.0123,
    }


def base() -> dict[str, Any]:
    return {
        "program": "gpucomm-selftest",
        "version": "0.1.0",
        "settings": {
            "backend": "auto",
            "nproc": None,
            "ranks_per_gpu": None,
            "launcher": {"family": "none", "copies": 1, "rank": 0, "address": None, "ports": []},
            "budget": "quick",
            "timeout": None,
            "stages": ["versions", "init", "correctness"],
            "added_stages": [],
            "deadlines": {"versions": 60.0, "init": 120.0, "correctness": 120.0},
            "environment": {"NCCL_DEBUG": "WARN"},
        },
        "versions": VERSIONS,
        "world": {
            "size": 2,
            "backend": "nccl",
            "why_backend": "auto: torch sees 2 GPUs",
            "gpus": 2,
            "functional_only": False,
            "environment_set": {"OMP_NUM_THREADS": "1"},
        },
        "findings": [told("GC0104", "loaded 2.21.5, compiled for 2.20.5", "versions")],
        "seconds": 12.34,
    }


def plan(large: int) -> list[Check]:
    return [
        Check(collective=collective, op=op, dtype=dtype, count=count)
        for collective, op in (
            ("all_reduce", "sum"),
            ("reduce_scatter_in_place", "sum"),
            ("broadcast", ""),
            ("all_gather", ""),
            ("send_recv", ""),
        )
        for dtype in ("fp32", "fp16", "bf16", "int64", "uint8", "fp8_e4m3", "complex64")
        for count in (1, 1021, large)
    ]


def passed() -> dict[str, Any]:
    checks = plan(1 << 20)
    rows = merge(checks, {r: [(n, "pass", "") for n in range(len(checks))] for r in range(2)})
    return base() | {
        "verdict": "pass",
        "exit_code": 0,
        "summary": "105 of 105 checks exact on 2 ranks",
        "stages": [
            stage("versions", "pass", 3.5, summary="torch 2.4.1+cu121, nccl 2.21.5 loaded"),
            stage("init", "pass", 4.0, summary="2 ranks", rows=[init_row(0), init_row(1)]),
            stage("correctness", "pass", 2.5, summary="105 of 105 checks exact", rows=rows),
        ],
    }


def wrong() -> dict[str, Any]:
    checks = plan(1 << 16)
    reports = {rank: [(n, "pass", "") for n in range(len(checks))] for rank in range(2)}
    for number, check in enumerate(checks):
        if check.collective == "all_gather" and check.count > 1:
            reports[1][number] = (number, "fail", "7 of 2042 elements wrong")
        if check.dtype == "bf16" and check.collective == "broadcast":
            for rank in range(2):
                reports[rank][number] = (number, "unsupported", "Invalid scalar type")
    rows = merge(checks, reports)
    found_here = judge(rows, reports, "gloo")
    return passed() | {
        "verdict": "fail",
        "exit_code": 1,
        "summary": f"GC0302: {found_here[0].measured}",
        "stages": [*passed()["stages"][:2], stage("correctness", "fail", 2.5, rows=rows)],
        "findings": [{**one.as_json(), "stage": "correctness"} for one in found_here],
    }


def hung() -> dict[str, Any]:
    sentence = "init did not end within 120 s: rank 1 (pid 4712) is stopped"
    frame = '  File "torch/distributed/distributed_c10d.py", line 3252 in all_reduce'
    output = [
        "noise",
        "",
        "Stack (most recent call first):",
        frame,
        *[f"frame {n}" for n in range(9)],
    ]
    waiting = {"name": "rank 0 (pid 4711)", "error": None, "signal": None, "exit_status": None}
    return passed() | {
        "verdict": "hang",
        "exit_code": 124,
        "summary": f"GC0902: {sentence}",
        "stages": [
            passed()["stages"][0],
            stage(
                "init",
                "hang",
                120.1,
                summary=sentence,
                stopped_ranks=[{**waiting, "output": output}],
                evidence=["Job summary", "  2 ranks, 1 missing"],
            ),
            stage("correctness", "not reached", 0.0, summary="needs init"),
        ],
        "findings": [told("GC0902", sentence, "init")],
    }


def shared() -> dict[str, Any]:
    made = copy.deepcopy(passed())
    made["world"].update(size=4, gpus=1, functional_only=True)
    made["world"]["environment_set"]["NCCL_HOSTID"] = "its own on every rank"
    made["findings"] = [told("GC0108", "4 ranks on 1 GPU, by NCCL_HOSTID=x", "versions")]
    return made


REPORTS = {"passed": passed, "wrong": wrong, "hung": hung, "shared": shared}


@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str) -> None:
    text = whole(REPORTS[name]())
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GPUCOMM_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_it_fits_the_terminal_and_has_no_colour_unless_asked(name: str) -> None:
    text = whole(REPORTS[name]())
    assert "\033" not in text
    own = [line for line in text.splitlines() if "/" not in line]
    assert max(len(line) for line in own) <= WIDTH
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "\n\n\n" not in text


def test_colour_changes_no_letter() -> None:
    report = wrong()
    coloured = whole(report, colour=True)
    assert "\033[31m" in coloured
    for code in ("31", "32", "33", "36", "0"):
        coloured = coloured.replace(f"\033[{code}m", "")
    assert coloured == whole(report)


def test_a_run_on_one_gpu_says_that_its_speed_means_nothing() -> None:
    text = " ".join(whole(shared()).split())
    assert "FUNCTIONAL TEST ONLY, its speed means nothing" in text
    assert "GC0108 WARN: several ranks share a GPU: this is a functional test only" in text
