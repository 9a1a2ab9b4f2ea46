"""Whether a torch build has code for a GPU, and which image line has.

Pure. Lists of torch.cuda.get_arch_list: sm_90 is machine code for 9.0 and, within the same major
version, for every later one; compute_90 is PTX, from which a driver makes code for any later GPU;
the suffix a (sm_90a) is for that one GPU alone.
"""

import re
from collections.abc import Sequence

from gpucomm_selftest.driver_table import floor_of, version

_ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)(?P<suffix>[a-z]?)$")

# The lines of gpucomm's images, oldest first, and the GPUs that the wheels of their newest torch
# have code for. A test holds them against the matrix.
LINES = {
    "cu118": ("5.0", "9.0"),
    "cu121": ("5.0", "9.0"),
    "cu124": ("5.0", "9.0"),
    "cu126": ("5.0", "9.0"),
    "cu128": ("7.0", "12.0"),
    "cu130": ("7.5", "12.1"),
}


def _number(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def has_code(capability: str, archs: Sequence[str]) -> bool:
    """Whether kernels of this build can run on a GPU of this compute capability."""
    mine = _number(capability)
    for name in archs:
        match = _ARCH.match(name)
        if not match:
            continue
        have = divmod(int(match["number"]), 10)
        if match["suffix"] == "a":
            if have == mine:
                return True
        elif match["kind"] == "compute":
            if mine >= have:
                return True
        elif mine[0] == have[0] and mine >= have:
            return True
    return False


def has_amd_code(arch: str, archs: Sequence[str]) -> bool:
    """The same for an AMD GPU: gfx942 runs code for gfx942, whatever its features."""
    plain = arch.partition(":")[0]
    return any(one.partition(":")[0] == plain for one in archs)


def line_for(capability: str, driver: str = "") -> str | None:
    """The newest line whose newest torch has code for this GPU, of those that run with this driver
    where there is one: the newest of all where none does."""
    mine = _number(capability)
    fit = [line for line, (least, most) in LINES.items() if _number(least) <= mine <= _number(most)]
    run = [line for line in fit if driver and version(driver) >= _floor(line)]
    best = run or fit
    return best[-1] if best else None


def _floor(line: str) -> tuple[int, ...]:
    """The least driver for a line: cu128 is CUDA 12.8."""
    return version(floor_of(f"{line[2:-1]}.{line[-1]}") or "")
