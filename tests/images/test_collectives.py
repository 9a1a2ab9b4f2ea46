"""The self-test inside the image, with Gloo everywhere and NCCL where there is a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version


def test_gloo_with_two_ranks(run: Any, expected: Any) -> None:
    done = run("gpucomm-selftest", "--backend", "gloo", "--nproc", "2", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["verdict"] == "pass"
    assert report["exit_code"] == 0
    assert report["world"]["size"] == 2
    assert Version(report["versions"]["torch"]).public == expected.cell.torch
    assert report["versions"]["cuda"] == expected.cell.cuda
    statuses = {stage["id"]: stage["status"] for stage in report["stages"]}
    assert {"versions", "init", "correctness"} <= set(statuses)
    assert set(statuses.values()) == {"pass"}
    assert [one for one in report["findings"] if one["level"] in ("warn", "fail")] == []


def test_nccl_on_every_gpu(run: Any, gpu: bool) -> None:
    if not gpu:
        pytest.skip("this engine has no GPU")
    done = run("gpucomm-selftest", "--backend", "nccl", "--json", options=["--gpus", "all"])
    assert done.code == 0, done.out + done.err
    assert json.loads(done.out)["verdict"] == "pass"
