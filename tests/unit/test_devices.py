"""devices.py: which GPUs of a machine a container gets."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpucomm.devices import OPTIONS, options_here
from gpucomm.schema import Accelerator


@pytest.fixture
def kfd(tmp_path: Path) -> Path:
    path = tmp_path / "kfd"
    path.touch()
    return path


def test_amds_devices_come_with_the_number_of_their_group(kfd: Path) -> None:
    options = options_here("rocm", nvidia=False, kfd=kfd)
    # What a shell makes of the line that people are given.
    text = " ".join(OPTIONS["rocm"])
    shell = shlex.split(text.replace('"$(stat -c %g /dev/kfd)"', str(kfd.stat().st_gid)))
    assert options == shell
    assert ["--group-add", str(kfd.stat().st_gid)] == options[-4:-2]
    assert not any("$" in word or '"' in word for word in options)


def test_nvidias_come_when_the_engine_hands_them_out(kfd: Path) -> None:
    assert options_here("cuda", nvidia=True, kfd=kfd) == ["--gpus", "all"]
    assert options_here("cuda", nvidia=False, kfd=kfd) == []


@pytest.mark.parametrize("accelerator", ["rocm", "cpu"])
def test_an_image_gets_no_devices_that_are_not_its_own(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    assert options_here(accelerator, nvidia=True, kfd=tmp_path / "absent") == []
