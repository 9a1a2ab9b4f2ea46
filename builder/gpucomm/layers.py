"""Which wheel goes into which layer: one build stage per layer, copied in this order.

What differs least between cells comes first and NCCL last, so that another NCCL costs one layer.
Pure; it names packages, never versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from gpucomm.lock import Wheel
from gpucomm.schema import MACHINES, Architecture

ORDER = ("cuda", "rocm", "python", "cudnn", "triton", "torch", "toolkit", "extras", "nccl")
# The first match decides.
_PACKAGES = (
    ("nccl", "nvidia-nccl-*"),
    ("cudnn", "nvidia-cudnn-*"),
    ("toolkit", "nvidia-cuda-nvcc*"),
    ("toolkit", "nvidia-cuda-crt*"),
    ("toolkit", "nvidia-cuda-cccl*"),
    ("toolkit", "nvidia-nvvm*"),
    ("cuda", "nvidia-*"),
    ("cuda", "cuda-toolkit"),
    ("rocm", "rocm"),
    ("rocm", "rocm-sdk-*"),
    ("triton", "triton"),
    ("triton", "triton-rocm"),
    ("triton", "pytorch-triton-rocm"),
    ("torch", "torch"),
    ("extras", "torchvision"),
    ("extras", "torchaudio"),
    ("python", "*"),
)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One version of one package, with the hash of its file on each platform."""

    name: str
    version: str
    hashes: tuple[str, ...]
    machine: str | None = None
    """The only machine that has it; None for every platform of the cell."""

    @property
    def constraint(self) -> str:
        """The requirement that accepts this version and no other, where a platform has it."""
        marker = f" ; platform_machine == '{self.machine}'" if self.machine else ""
        return f"{self.name}=={self.version}{marker}"

    @property
    def line(self) -> str:
        """The requirement that accepts these files and no others."""
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in self.hashes)
        return f"{self.constraint} {hashes}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer and what is unpacked into it, by name."""

    name: str
    pins: tuple[Pin, ...]


def pins_of(wheels: Mapping[Architecture, tuple[Wheel, ...]]) -> tuple[Pin, ...]:
    """The wheels of every platform as one list: a version that all share stands there once."""
    found: dict[tuple[str, str], dict[Architecture, str]] = {}
    for arch, row in wheels.items():
        for wheel in row:
            found.setdefault((wheel.name, wheel.version), {})[arch] = wheel.sha256
    return tuple(
        Pin(
            name=name,
            version=version,
            hashes=tuple(dict.fromkeys(by_arch.values())),
            machine=None if len(by_arch) == len(wheels) else MACHINES[next(iter(by_arch))],
        )
        for (name, version), by_arch in sorted(found.items())
    )


@cache
def layer_of(package: str) -> str:
    """The layer that `package` goes into."""
    return next(name for name, glob in _PACKAGES if fnmatchcase(package, glob))


def layers_of(wheels: Mapping[Architecture, tuple[Wheel, ...]]) -> tuple[Layer, ...]:
    """The wheels by layer, in the order of copying; layers without wheels are left out."""
    groups: dict[str, list[Pin]] = {name: [] for name in ORDER}
    for pin in pins_of(wheels):
        groups[layer_of(pin.name)].append(pin)
    return tuple(Layer(name=name, pins=tuple(found)) for name, found in groups.items() if found)
