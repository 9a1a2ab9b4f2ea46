"""What a container was not given, said by the self-test inside it: real containers of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner


# Judged as for GPUs, which need not be there: Gloo takes no shared and no locked memory.
PREFLIGHT = ("--stages", "preflight", "--backend", "nccl", "--json")


@pytest.fixture
def image_run(torch_run: Runner) -> Runner:
    if torch_run.image is None:
        pytest.skip("the options are those of a container; a Python has none")
    return torch_run


def test_without_gpus_it_is_unusable_and_says_which_flag_is_missing(image_run: Runner) -> None:
    done = image_run.run("--json")
    assert (done.code, done.json["verdict"]) == (3, "unusable")
    finding = done.json["findings"][0]
    assert finding["id"] == "GC0114"
    assert "docker run --gpus all" in finding["action"]
    assert "nvidia.com/gpu" in finding["kubernetes"]
    assert "srun --gpus" in finding["slurm"]
    assert image_run.run("--backend", "gloo").code == 0


@pytest.mark.parametrize(
    ("options", "finding", "said"),
    [
        (["--shm-size", "64m"], "GC0401", "64 MiB, 64 MiB free"),
        (["--ulimit", "memlock=65536:65536"], "GC0406", "64 KiB, no IPC_LOCK"),
        (["--ulimit", "nofile=256:256"], "GC0407", "256 open files"),
        (["--ulimit", "stack=262144:262144"], "GC0408", "256 KiB"),
        (["--memory", "300m"], "GC0417", "limit 300 MiB"),
    ],
)
def test_what_the_container_lacks(
    image_run: Runner, options: list[str], finding: str, said: str
) -> None:
    image_run.options += options
    done = image_run.run(*PREFLIGHT)
    found = {one["id"]: one["measured"] for one in done.json["findings"]}
    assert said in found[finding]


def test_a_container_with_enough_has_no_finding(image_run: Runner) -> None:
    image_run.options += ["--shm-size", "2g"]
    done = image_run.run(*PREFLIGHT)
    assert (done.code, done.json["findings"]) == (0, [])
