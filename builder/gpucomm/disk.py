"""Is there room for this build? Asked before it starts, answered with numbers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from gpucomm.errors import Unusable
from gpucomm.lock import Wheel
from gpucomm.progress import human_size

# Measured: a cold build of cu121-torch2.4.1 (2.84 GB of wheels) took 25.3 GB of disk, from wheel
# cache, stage outputs, layer blobs and the unpacked image together.
FACTOR = 8.5
SYSTEM = 1_500_000_000  # base, packages and their layers
REBUILD = 500_000_000  # a cell that is already here: only what changed is made again


def needed(wheels: Iterable[Wheel], *, present: bool) -> int:
    """Bytes that building a cell may take."""
    return REBUILD if present else SYSTEM + int(FACTOR * sum(wheel.size for wheel in wheels))


def check(cell_id: str, need: int, folder: Path) -> None:
    """Raise Unusable when `folder` (the engine's root) has less than `need` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < need:
        raise Unusable(
            f"{cell_id}: building needs about {human_size(need)} below {folder}, "
            f"{human_size(free)} are free; docker builder prune and docker image prune make room"
        )
