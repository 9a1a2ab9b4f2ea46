"""What this process may do: resource limits, capabilities, and the filter of system calls."""

import re
import resource
from pathlib import Path
from typing import Any

from gpucomm_selftest.machine.files import text_of

# Bits of CapEff: linux/capability.h
_CAPABILITIES = {"IPC_LOCK": 14, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23}
_SECCOMP = {0: "off", 1: "strict", 2: "filter"}

_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
}


def limits() -> dict[str, int | None]:
    """The soft limits: bytes, or a number of files; nothing is no limit."""
    known = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    return {
        name: None if value == resource.RLIM_INFINITY else value for name, value in known.items()
    }


def rights(root: Path = Path("/")) -> dict[str, Any]:
    """The capabilities that count here, and whether system calls are filtered."""
    status = text_of(root / "proc/self/status")
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.M)
    bits = int(effective[1], 16) if effective else 0
    mode = re.search(r"^Seccomp:\s*(\d+)$", status, re.M)
    return {
        "capabilities": [name for name, bit in _CAPABILITIES.items() if bits >> bit & 1],
        "seccomp": _SECCOMP.get(int(mode[1]), mode[1]) if mode else "unknown",
    }
