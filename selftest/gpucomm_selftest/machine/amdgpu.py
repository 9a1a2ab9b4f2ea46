"""The health of AMD GPUs, from what the kernel's driver counts below /sys.

In the form of nvml.health, so that one check judges both. Source: the kernel's documentation,
"GPU RAS" of amdgpu: `ue: N` in ras/*_err_count, and `ADDRESS : SIZE : FLAG` for each bad page.
"""

import re
from pathlib import Path
from typing import Any

from gpucomm_selftest.machine.files import names_in, text_of

_UNCORRECTED = re.compile(r"^ue:\s*(\d+)", re.M)
_CARD = re.compile(r"card\d+")
# The last field of a bad page: reserved (and done with), to be reserved, or not to be reserved.
_PENDING, _FAILED = "P", "F"


def _pages(text: str) -> dict[str, int]:
    flags = [line.rpartition(":")[2].strip() for line in text.splitlines()]
    return {"pending": flags.count(_PENDING), "failed": flags.count(_FAILED)}


def health(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Of every GPU whose driver counts errors."""
    found: list[dict[str, Any]] = []
    base = root / "sys/class/drm"
    cards = [name for name in names_in(base) if _CARD.fullmatch(name)]
    for card in sorted(cards, key=lambda name: int(name[4:])):
        folder = base / card / "device/ras"
        counts = [
            match
            for name in names_in(folder)
            if name.endswith("_err_count")
            for match in _UNCORRECTED.findall(text_of(folder / name))
        ]
        if not counts:
            continue
        found.append(
            {
                "index": len(found),
                "name": card,
                "bus": (base / card / "device").resolve().name,
                "mig": False,
                "compute_mode": "",
                "persistence": None,
                "ecc_errors": sum(int(count) for count in counts),
                "remapped": _pages(text_of(folder / "gpu_vram_bad_pages")),
                "slowdowns": [],
            }
        )
    return found
