"""Matrices of any size with locks that answer them, for the fuzz test and bench/plan.py.

Owns: the text of such a matrix.yaml, and its lock. The tables are shaped like those of the real
one: each CUDA line has a few torches, each torch its NCCL and what may replace it, and the standard
set is a product. A cell has as many wheels as a real one. All hashes and sizes are made up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpucomm.cell import Cell
from gpucomm.lock import Lock, Wheel, tools_key, wanted_keys
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

_NVIDIA = (
    "nvidia-cublas-cu12", "nvidia-cuda-cupti-cu12", "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime-cu12", "nvidia-cufft-cu12", "nvidia-cufile-cu12", "nvidia-curand-cu12",
    "nvidia-cusolver-cu12", "nvidia-cusparse-cu12", "nvidia-cusparselt-cu12",
    "nvidia-nvjitlink-cu12", "nvidia-nvtx-cu12",
)  # fmt: skip
_OTHERS = (
    "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "setuptools",
    "sympy", "triton", "typing-extensions",
)  # fmt: skip
_SOURCE = "metadata"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many values each axis has. `overrides` are NCCL versions beside the wheel's own."""

    lines: int
    torches: int
    """Of each line; the table of torch has some more than that for each further line."""
    overrides: int = 0
    systems: int = 1
    flavors: int = 1
    extras: int = 0
    """Extras that the standard cells have, one each, beside cells without any."""

    @property
    def cells(self) -> int:
        """The number of standard cells."""
        rows = self.lines * self.torches * (1 + self.overrides)
        return rows * self.systems * self.flavors * (1 + self.extras)


def text_of(shape: Shape) -> str:
    """A matrix.yaml with exactly `shape.cells` standard cells."""
    return "\n".join(
        [
            "version: 2",
            "registry: registry.example/team/gpucomm",
            "source: https://source.example/gpucomm",
            "source_date_epoch: 1700000000",
            "pytorch_index: https://wheels.example/whl",
            "defaults: {os: system0, flavor: flavor0}",
            "systems:",
            *_systems(shape),
            "flavors:",
            *_flavors(shape),
            "extras:",
            *(f"  extra{n}: {{wheel: package{n}}}" for n in range(shape.extras)),
            "  mpi: {apt: [openmpi-bin, libopenmpi3, libucx0]}",
            "torch:",
            *_torches(shape),
            "nccl_families:",
            "  cu12:",
            "    wheel: nvidia-nccl-cu12",
            "    runtime: nvidia-cuda-runtime-cu12",
            f"    versions: {_flow(_nccl(n) for n in range(shape.overrides + 1))}",
            "lines:",
            *_lines(shape),
            "left_out: []",
            *_standard(shape),
            "aliases:",
            *(f"  {_line(n)}: {_line(n)}-torch{_default(shape, n)}-nccl{_nccl(0)}"
              for n in range(shape.lines)),
            *_REST,
        ]
    ) + "\n"  # fmt: skip


def _flow(values: Iterable[object]) -> str:
    return json.dumps(list(values))


def _line(number: int) -> str:
    return f"cu12{number:03}"


def _torch(number: int) -> str:
    return f"2.{number}.1"


def _nccl(number: int) -> str:
    return f"2.{20 + number}.5"


def _default(shape: Shape, line: int) -> str:
    """The torch whose wheel on the default index was built for a line: its newest."""
    return _torch(line + shape.torches - 1)


def _systems(shape: Shape) -> list[str]:
    rows: list[str] = []
    for number in range(shape.systems):
        rows += [
            f"  system{number}:",
            f"    distribution: {'debian' if number % 2 else 'ubuntu'}",
            f"    release: release{number}",
            f'    python: "3.{10 + number % 5}"',
            '    glibc: "2.39"',
            f"    image: registry.example/library/system:{number}",
            "    base: registry",
            "    architectures: [amd64, arm64]",
        ]
        if number % 2:
            rows += [
                "    devel_image:",
                f"      cuda: registry.example/cuda:{{toolkit}}-devel-system{number}",
            ]
    return rows


def _flavors(shape: Shape) -> list[str]:
    rows: list[str] = []
    for number in range(shape.flavors):
        rows += [
            f"  flavor{number}:",
            "    apt: [gcc, g++, libc6-dev, python3-dev]",
            f"    without: {'[triton]' if number % 3 == 1 else '[]'}",
        ]
    # One that no standard cell has, as rules and locks know it all the same.
    rows += [
        "  devel:",
        "    apt: [gcc, make]",
        "    without: []",
        "    toolkit: true",
        "    wheels:",
        '      - {package: nvidia-cuda-nvcc, lines: ["cu12*"], require: "=={cuda}.*"}',
    ]
    return rows


def _torches(shape: Shape) -> list[str]:
    wheels = {f"package{n}": f"0.{n}.1" for n in range(shape.extras)}
    rows: list[str] = []
    for number in range(shape.lines + shape.torches - 1):
        default = number - shape.torches + 1
        rows += [
            f'  "{_torch(number)}":',
            '    python: ">=3.8,<3.15"',
            '    glibc: "2.28"',
            *([f"    default: {_line(default)}"] if default >= 0 else []),
            f"    wheels: {json.dumps(wheels)}",
        ]
    return rows


def _lines(shape: Shape) -> list[str]:
    overrides = _flow(_nccl(n) for n in range(1, shape.overrides + 1))
    rows: list[str] = []
    for number in range(shape.lines):
        rows += [
            f"  {_line(number)}:",
            "    accelerator: cuda",
            f'    cuda: "12.{number}"',
            f'    toolkit: "12.{number}.1"',
            "    nccl_family: cu12",
            "    nvidia_require: cuda>=12.0",
            '    driver: {floor: "525.60.13", toolkit: "530.30.02"}',
            "    torch:",
            *(
                f'      "{_torch(n)}": {{nccl: "{_nccl(0)}", overrides: {overrides}}}'
                for n in range(number, number + shape.torches)
            ),
            '    gpus: [{archs: ["7.0", "8.0", "9.0"]}]',
        ]
    return rows


def _standard(shape: Shape) -> list[str]:
    product = ", ".join(
        [
            f"os: {_flow(f'system{n}' for n in range(shape.systems))}",
            f"flavor: {_flow(f'flavor{n}' for n in range(shape.flavors))}",
            f"extras: {_flow([[], *([f'extra{n}'] for n in range(shape.extras))])}",
        ]
    )
    rows = ["standard:", f"  - {{reason: every torch on every line, {product}}}"]
    if shape.overrides:
        rows.append(f"  - {{reason: the NCCL axis of all, nccl: overrides, {product}}}")
    return rows


_REST = f"""\
checks:
  wheel: {{source: {_SOURCE}, reason: a torch exists where it was built}}
  python: {{source: {_SOURCE}, reason: the distribution decides the Python}}
  glibc: {{source: {_SOURCE}, reason: the tag of a wheel names a glibc}}
  nccl-named: {{source: {_SOURCE}, reason: only named versions are tested}}
  nccl-family: {{source: {_SOURCE}, reason: the NCCL wheel follows the CUDA major}}
  nccl-floor: {{source: {_SOURCE}, reason: an older NCCL lacks functions}}
  extra-wheel: {{source: {_SOURCE}, reason: each is built against one torch}}
  driver: {{source: {_SOURCE}, reason: below the floor nothing starts}}
  gpus: {{source: {_SOURCE}, reason: torch has code for these GPUs}}
  rccl: {{source: {_SOURCE}, reason: RCCL is part of ROCm}}
rules:
  arm64-default-index:
    when: {{accelerator: [cuda], index: default, torch: "<2.11", arch: [arm64]}}
    reason: these aarch64 wheels are CPU builds
    source: {_SOURCE}
  arm64-pytorch-index:
    when: {{accelerator: [cuda], index: pytorch, torch: "<2.9", arch: [arm64]}}
    reason: no aarch64 CUDA build for this matrix to follow
    source: {_SOURCE}
  arm64-nccl-hang:
    when: {{accelerator: [cuda], nccl: "<2.21", arch: [arm64]}}
    reason: NCCL before this can hang on ARM
    source: {_SOURCE}
    expires: "2099-12-31"
  devel-early:
    when: {{accelerator: [cuda], torch: "<2.5", flavor: [devel], os: ["system*"]}}
    reason: the toolkit of that time is not carried
    source: {_SOURCE}
  devel-lines:
    when: {{lines: [cu12000, "cu1200?"], flavor: [devel], os: ["system*"]}}
    reason: no image with the whole toolkit was found
    source: {_SOURCE}
  devel-mpi:
    when: {{torch: "<2.4", flavor: [devel], extras: [mpi]}}
    reason: its compilers refuse the headers of this MPI
    source: {_SOURCE}
  slow-start:
    when: {{torch: "==2.2.1"}}
    effect: warn
    reason: its first collective is slow
    source: {_SOURCE}
    expires: "2099-12-31"
  graphs:
    when: {{nccl: "==2.20.5"}}
    effect: warn
    reason: CUDA graphs were seen to hang
    source: {_SOURCE}
    expires: "2099-12-31"
with: [numpy, setuptools]
tools: [uv, flit-core]
holds:
  - package: nvidia-nvjitlink-cu12
    lines: ["cu12*"]
    require: "=={{cuda}}.*"
    reason: left alone it floats to the newest CUDA
  - package: numpy
    torch: "<2.3"
    require: "<2"
    reason: that torch was compiled for numpy 1
sources:
  {_SOURCE}: {{read: the metadata of the wheels}}""".splitlines()


def lock_of(matrix: Matrix) -> Lock:
    """A lock that answers a matrix of `text_of`, every cell locked on every platform that it has.

    What two cells have in common is one value, as it is when a lock was read from its file.
    """
    keys = wanted_keys(matrix, cells_of(matrix))
    tools = (_wheel("flit-core", "4.2.0"), _wheel("uv", "0.13.9"))
    return Lock(
        cells={key: _wheels(matrix, cell) for key, (cell, _) in keys.items()},
        tools={tools_key(cell.python, arch): tools for cell, arch in keys.values()},
        bases={system.image: f"sha256:{'ab' * 32}" for system in matrix.systems.values()},
        aliases=matrix.aliases,
    )


def _wheels(matrix: Matrix, cell: Cell) -> tuple[Wheel, ...]:
    local = "" if cell.index == "default" else f"+{cell.index}"
    versions = {"torch": f"{cell.torch}{local}", "nvidia-cudnn-cu12": "9.1.0.70"}
    versions |= dict.fromkeys(_NVIDIA, f"{cell.cuda}.105")
    versions |= dict.fromkeys(_OTHERS, "1.26.4")
    versions |= {"nvidia-nccl-cu12": cell.nccl} if cell.nccl else {}
    for extra in cell.extras:
        if (wheel := matrix.extras[extra].wheel) is not None:
            versions[wheel] = f"{matrix.torch[cell.torch].wheels[wheel]}{local}"
    return tuple(_wheel(name, versions[name]) for name in sorted(versions))


@cache
def _wheel(name: str, version: str) -> Wheel:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = hashlib.sha256(file.encode()).hexdigest()
    return Wheel(name=name, version=version, file=file, sha256=digest, size=1_000_000)
