"""disk.py: how much room a build needs, and what is said when it is not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpucomm import disk
from gpucomm.errors import Unusable
from gpucomm.lock import Wheel

MakeWheel = Callable[..., Wheel]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def with_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Path]]:
    """Sets the free bytes of every file system; returns the folders that were asked about."""

    def set_free(free: int) -> list[Path]:
        asked: list[Path] = []

        def usage(folder: Path) -> Usage:
            asked.append(Path(folder))
            return Usage(10**12, 10**12 - free, free)

        monkeypatch.setattr(shutil, "disk_usage", usage)
        return asked

    return set_free


def test_the_need_grows_with_the_wheels(make_wheel: MakeWheel) -> None:
    small = [make_wheel("torch", "2.4.1", 800_000_000)]
    large = [*small, make_wheel("nvidia-cublas-cu12", "12.1", 400_000_000)]
    assert disk.needed([], present=False) > 0
    grown = disk.needed(large, present=False) - disk.needed(small, present=False)
    # Downloaded, unpacked in a stage, compressed in a layer, unpacked in the store.
    assert grown > 3 * 400_000_000


def test_an_image_that_is_here_needs_less_to_build_again(make_wheel: MakeWheel) -> None:
    wheels = [make_wheel("torch", "2.4.1", 800_000_000)]
    assert disk.needed(wheels, present=True) < disk.needed(wheels, present=False) / 5


def test_layers_that_another_image_has_are_only_unpacked_again(make_wheel: MakeWheel) -> None:
    torch = make_wheel("torch", "2.4.1", 800_000_000)
    cublas = make_wheel("nvidia-cublas-cu12", "12.1", 400_000_000)
    runtime = make_wheel("nvidia-cuda-runtime-cu12", "12.1", 1_000_000)
    nccl, newer = (make_wheel("nvidia-nccl-cu12", v, 200_000_000) for v in ("2.20.5", "2.21.5"))
    cell = [torch, cublas, runtime, nccl]

    def need(*other: Wheel) -> int:
        return disk.needed(cell, present=False, beside=[other])

    cold, same = disk.needed(cell, present=False), need(*cell)
    assert disk.SYSTEM + 2 * 1_401_000_000 < same < cold / 2
    another_nccl = need(torch, cublas, runtime, newer)
    assert same < another_nccl < cold / 2
    assert another_nccl - same == disk.FACTOR * 200_000_000
    # A layer with one other wheel is made again as a whole.
    assert need(torch, cublas, nccl) - same == pytest.approx(disk.FACTOR * 401_000_000, abs=1)
    # Nothing shared costs no more than a cold build; the best of all images counts.
    assert need() == need(make_wheel("torch", "2.1.2", 800_000_000)) == cold
    assert disk.needed(cell, present=False, beside=[[], cell]) == same


def test_enough_room_says_nothing(tmp_path: Path, with_free: Callable[[int], list[Path]]) -> None:
    asked = with_free(1000)
    disk.check("cell", 1000, tmp_path)
    assert asked == [tmp_path]


def test_too_little_room_is_unusable_with_both_numbers(
    tmp_path: Path, with_free: Callable[[int], list[Path]]
) -> None:
    with_free(3_000_000_000)
    with pytest.raises(Unusable) as caught:
        disk.check("cu121-torch2.4.1", 22_500_000_000, tmp_path)
    (fault,) = caught.value.faults
    assert fault.startswith("cu121-torch2.4.1: building needs about 22.50 GB")
    assert "3.00 GB are free" in fault
    assert str(tmp_path) in fault
    assert "prune" in fault
    assert caught.value.exit_code == 3


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_its_parent(
    tmp_path: Path, with_free: Callable[[int], list[Path]]
) -> None:
    asked = with_free(0)
    with pytest.raises(Unusable, match="lib/docker"):
        disk.check("cell", 1, tmp_path / "lib" / "docker")
    assert asked == [tmp_path]
