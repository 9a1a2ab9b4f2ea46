"""Shared memory, and what the control group lets this container have."""

import os
import re
from pathlib import Path
from typing import Any

from gpucomm_selftest.machine.files import number_of, text_of

# A limit above this is none: version 1 says "none" by the largest number of pages.
_UNLIMITED = 1 << 60
# Files of NCCL in shared memory. It removes their names once both ends have opened them.
_SEGMENT = re.compile(r"nccl-\w+")


def shared_memory(root: Path = Path("/")) -> dict[str, Any]:
    """Bytes of /dev/shm, whether it can be written, and segments that were left in it."""
    folder = root / "dev/shm"
    try:
        room = os.statvfs(folder)
    except OSError:
        return {"there": False, "size": 0, "free": 0, "writable": False, "stale": []}
    return {
        "there": True,
        "size": room.f_frsize * room.f_blocks,
        "free": room.f_frsize * room.f_bavail,
        "writable": os.access(folder, os.W_OK),
        "stale": _stale(folder, root / "proc"),
    }


def _mapped(proc: Path) -> str:
    """The mappings of every process that this one may look at."""
    return "\n".join(text_of(maps) for maps in proc.glob("[0-9]*/maps"))


def _stale(folder: Path, proc: Path) -> list[dict[str, Any]]:
    """Segments that no process to be seen has mapped. Another container's may be in use: it
    shares this folder only with --ipc=host, and then its processes are not to be seen."""
    try:
        found = [entry for entry in folder.iterdir() if _SEGMENT.fullmatch(entry.name)]
    except OSError:
        return []
    if not found:
        return []
    mapped = _mapped(proc)
    stale = []
    for entry in sorted(found):
        if entry.name not in mapped:
            try:
                stale.append({"name": entry.name, "size": entry.stat().st_size})
            except OSError:
                continue  # removed meanwhile: it was in use
    return stale


def _own_group(root: Path, controller: str) -> str:
    """The path of this process's group; of version 2 where `controller` is empty."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if (controller in names.split(",")) if controller else not names:
            return path.lstrip("/")
    return ""


def control_group(root: Path = Path("/")) -> dict[str, int | None]:
    """Bytes: the least limit on the way up, what is used, and how often the kernel killed."""
    base = root / "sys/fs/cgroup"
    if (base / "memory").is_dir():
        folder = base / "memory" / _own_group(root, "memory")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        base /= "memory"
    else:
        folder = base / _own_group(root, "")
        names = ("memory.max", "memory.current", "memory.events")
    if not (folder / names[0]).exists():
        # In a group namespace of its own the container's group is the root of what it sees.
        folder = base
    limits: list[int] = []
    at = folder
    while True:
        limit = number_of(at / names[0])
        if limit is not None and limit < _UNLIMITED:
            limits.append(limit)
        if at == base or base not in at.parents:
            break
        at = at.parent
    killed = re.search(r"^oom_kill (\d+)$", text_of(folder / names[2]), re.M)
    return {
        "limit": min(limits, default=None),
        "used": number_of(folder / names[1]),
        "killed": int(killed[1]) if killed else None,
    }
