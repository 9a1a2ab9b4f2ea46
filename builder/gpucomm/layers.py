"""Which wheel goes into which layer: one build stage per layer, copied in this order.

What differs least between cells comes first and NCCL last, so that another NCCL costs one layer.
Pure; it names packages, never versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpucomm.lock import Wheel

ORDER = ("cuda", "python", "cudnn", "triton", "torch", "nccl")
# The first match decides.
_PACKAGES = (
    ("nccl", "nvidia-nccl-*"),
    ("cudnn", "nvidia-cudnn-*"),
    ("cuda", "nvidia-*"),
    ("triton", "triton"),
    ("torch", "torch"),
    ("python", "*"),
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer and the wheels unpacked into it, by name."""

    name: str
    wheels: tuple[Wheel, ...]


def layers_of(wheels: Iterable[Wheel]) -> tuple[Layer, ...]:
    """The wheels by layer, in the order of copying; layers without wheels are left out."""
    groups: dict[str, list[Wheel]] = {name: [] for name in ORDER}
    for wheel in wheels:
        name = next(name for name, glob in _PACKAGES if fnmatchcase(wheel.name, glob))
        groups[name].append(wheel)
    return tuple(Layer(name=name, wheels=tuple(found)) for name, found in groups.items() if found)
