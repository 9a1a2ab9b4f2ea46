"""How a container gets the GPUs of its machine: as words for a person, and as options for here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from gpucomm.schema import Accelerator

KFD = Path("/dev/kfd")
# The group of /dev/kfd is the host's. Images have a `render` of another number, which counts there.
_KFD_GROUP = f'"$(stat -c %g {KFD})"'
OPTIONS: Mapping[Accelerator, tuple[str, ...]] = {
    "cuda": ("--gpus all",),
    "rocm": (
        f"--device={KFD}",
        "--device=/dev/dri",
        "--group-add video",
        f"--group-add {_KFD_GROUP}",
        "--security-opt seccomp=unconfined",
    ),
    "cpu": (),
}


def options_here(accelerator: Accelerator, *, nvidia: bool, kfd: Path = KFD) -> list[str]:
    """The options of `docker run` for what this machine has; none where it has no such GPU.

    `nvidia` says whether the engine can hand out NVIDIA GPUs; AMD's are there when `kfd` is.
    """
    if accelerator == "cuda" and not nvidia:
        return []
    if accelerator == "rocm" and not kfd.exists():
        return []
    group = str(kfd.stat().st_gid) if accelerator == "rocm" else ""
    return shlex.split(" ".join(OPTIONS[accelerator]).replace(_KFD_GROUP, group))
