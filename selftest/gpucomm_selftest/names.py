"""The variables that a collective library knows, read from the library itself.

The names stand as strings in its section .rodata, and nowhere else near as few: so the list is
exact for any NCCL or RCCL that is really loaded, and there is no table to keep up to date. Must not
load the library and must not import torch.
"""

import re
from pathlib import Path

from gpucomm_selftest import elf

_NAME = re.compile(rb"(?<![A-Za-z0-9_])((?:NCCL|RCCL)_[A-Z0-9_]{2,})(?=[\x00 ])")


def known_names(path: Path) -> frozenset[str]:
    """Every NCCL_ and RCCL_ name in the constants of this library. Raises OSError and ElfError."""
    with elf.mapped(path) as data:
        constants = elf.section(data, ".rodata")
    return frozenset(match[1].decode() for match in _NAME.finditer(constants))
