"""The device nodes of GPUs and RDMA cards, and whether this process may open them."""

import os
import stat
from pathlib import Path
from typing import Any

_PATTERNS = (
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-caps-imex-channels/channel*",
    "kfd",
    "dri/renderD*",
    "infiniband/uverbs*",
)


def device_nodes(root: Path = Path("/")) -> dict[str, dict[str, Any]]:
    """Name below /dev -> its numeric group, and whether it can be read and written."""
    dev = root / "dev"
    nodes = {}
    for pattern in _PATTERNS:
        for path in sorted(dev.glob(pattern)):
            try:
                status = path.stat()
            except OSError:
                continue  # a link that leads nowhere is no device
            nodes[str(path.relative_to(dev))] = {
                "group": status.st_gid,
                "open": os.access(path, os.R_OK | os.W_OK),
                "device": stat.S_ISCHR(status.st_mode),
            }
    return nodes


def groups() -> list[int]:
    """The numeric groups of this process."""
    return sorted({os.getgid(), *os.getgroups()})
