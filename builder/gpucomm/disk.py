"""Is there room for this build? Asked before it starts, answered with numbers."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from gpucomm.errors import Unusable
from gpucomm.layers import layers_of
from gpucomm.lock import MAIN, Wheel
from gpucomm.progress import human_size

# Measured: a cold build of cu121-torch2.4.1 (2.84 GB of wheels) took 25.3 GB of disk, from wheel
# cache, stage outputs, layer blobs and the unpacked image together.
FACTOR = 8.5
SYSTEM = 1_500_000_000  # base, packages and their layers
REBUILD = 500_000_000  # a cell that is already here: only what changed is made again
# Of the same build: 5.8 GB of it are the unpacked image. The store unpacks every layer above one
# that differs again.
UNPACKED = 2.1


def needed(
    wheels: Collection[Wheel], *, present: bool, beside: Iterable[Collection[Wheel]] = ()
) -> int:
    """Bytes that building a cell may take; `beside` are the wheels of each other image of its kind.

    Counts on the build cache of the images that are here: without it the build may need more, and
    ends with what to type when the disk is full.
    """
    if present:
        return REBUILD
    shared = (FACTOR * _new(wheels, other) + UNPACKED * _bytes(wheels) for other in beside)
    return SYSTEM + int(min([FACTOR * _bytes(wheels), *shared]))


def _new(wheels: Collection[Wheel], other: Collection[Wheel]) -> int:
    """Bytes of the wheels in those layers that an image with the wheels `other` has not."""
    theirs = layers_of({MAIN: tuple(other)})
    made = {
        pin.name
        for layer in layers_of({MAIN: tuple(wheels)})
        if layer not in theirs
        for pin in layer.pins
    }
    return _bytes(wheel for wheel in wheels if wheel.name in made)


def _bytes(wheels: Iterable[Wheel]) -> int:
    return sum(wheel.size for wheel in wheels)


def check(cell_id: str, need: int, folder: Path) -> None:
    """Raise Unusable when `folder` (the engine's root) has less than `need` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < need:
        raise Unusable(
            f"{cell_id}: building needs about {human_size(need)} below {folder}, "
            f"{human_size(free)} are free; docker builder prune and docker image prune make room"
        )
