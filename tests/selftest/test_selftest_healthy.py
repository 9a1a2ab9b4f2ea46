"""No false alarm: healthy runs in many settings find nothing to warn of, and pass.

GPUCOMM_TEST_BACKEND=nccl runs them on the GPUs of this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.selftest.conftest import BACKEND

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

# What a run says of its own setting: ranks that share a GPU, and a rank that is alone.
OF_THE_SETTING = {"GC0108", "GC0109"}

SETTINGS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "the default": ((), {}),
    "one rank": (("--nproc", "1"), {}),
    "three ranks": (("--nproc", "3"), {}),
    "four ranks": (("--nproc", "4"), {}),
    "standard budget": (("--budget", "standard", "--nproc", "2"), {}),
    "a long time-out": (("--timeout", "300"), {}),
    "one stage": (("--stages", "versions"), {}),
    "init alone": (("--stages", "init"), {}),
    "without correctness": (("--skip", "correctness"), {}),
    "no home": ((), {"HOME": "/nonexistent"}),
    "plain locale": ((), {"LC_ALL": "C", "LANG": "C"}),
    "threads": ((), {"OMP_NUM_THREADS": "2"}),
    "log level": ((), {"NCCL_DEBUG": "WARN"}),
    "log of everything": ((), {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}),
    "loopback by name": ((), {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}),
    "any interface but one": ((), {"NCCL_SOCKET_IFNAME": "^docker"}),
    "names of other software": (
        (),
        {"NCCL_VERSION": "", "OFI_NCCL_PROTOCOL": "SENDRECV", "NCCL_NET_PLUGIN": "none"},
    ),
    "settings of torch": (
        (),
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_BLOCKING_WAIT": "0"},
    ),
    "no byte code": ((), {"PYTHONDONTWRITEBYTECODE": "1"}),
    "half a Slurm shell": ((), {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_healthy_run_finds_nothing(torch_run: Runner, name: str) -> None:
    argv, environ = SETTINGS[name]
    running = torch_run.start("--backend", BACKEND, "--json", *argv, environ=environ)
    done = running.finish()
    report = done.json
    alarms = [
        f"{one['id']}: {one['measured']}"
        for one in report["findings"]
        if one["level"] in ("warn", "fail") and one["id"] not in OF_THE_SETTING
    ]
    assert alarms == []
    assert (done.code, report["verdict"]) == (0, "pass")
    assert {stage["status"] for stage in report["stages"]} == {"pass"}
    assert running.processes() == []


def test_there_are_twenty() -> None:
    assert len(SETTINGS) >= 20
