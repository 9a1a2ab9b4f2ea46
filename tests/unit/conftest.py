"""A small fixed matrix with its lock, and a checkout made of them, for the tests of this folder.

The versions here are frozen on purpose: a version bump of the real matrix changes no expectation.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from gpucomm import located, lock, matrix, places, project, render
from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.lock import Lock, Wheel
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

settings.register_profile("unit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("unit")

ROOT = Path(__file__).resolve().parents[2]
SMALL = """\
version: 2
registry: registry.example/team/gpucomm
source: https://source.example/gpucomm
source_date_epoch: 1700000000
pytorch_index: https://wheels.example/whl
defaults: {os: debian12, flavor: runtime}
systems:
  debian12:
    distribution: debian
    release: bookworm
    python: "3.11"
    glibc: "2.36"
    image: registry.example/library/debian:bookworm-slim
    base: auto
    architectures: [amd64, arm64]
  ubuntu24.04:
    distribution: ubuntu
    release: noble
    python: "3.12"
    glibc: "2.39"
    image: registry.example/library/ubuntu:24.04
    base: registry
    architectures: [amd64]
    devel_image:
      cuda: registry.example/nvidia/cuda:{toolkit}-devel-ubuntu24.04
flavors:
  runtime:
    apt: [gcc, libc6-dev]
    without: []
  slim:
    apt: []
    without: [triton]
  devel:
    apt: [gcc, make]
    without: []
    toolkit: true
    wheels:
      - {package: nvidia-cuda-nvcc, lines: ["cu13*"], require: "=={cuda}.*"}
extras:
  mpi: {apt: [openmpi-bin]}
  torchvision: {wheel: torchvision}
torch:
  "2.2.2":
    python: ">=3.8,<3.13"
    glibc: "2.17"
    default: cu121
    wheels: {torchvision: "0.17.2"}
  "2.4.1":
    python: ">=3.8,<3.13"
    glibc: "2.17"
    default: cu121
    triton_rocm: pytorch-triton-rocm
    wheels: {torchvision: "0.19.1"}
  "2.13.0":
    python: ">=3.10"
    glibc: "2.28"
    default: cu130
nccl_families:
  cu12:
    wheel: nvidia-nccl-cu12
    runtime: nvidia-cuda-runtime-cu12
    versions: ["2.18.1", "2.19.3", "2.20.5", "2.21.5", "2.22.3"]
  cu13:
    wheel: nvidia-nccl-cu13
    runtime: nvidia-cuda-runtime
    versions: ["2.29.7", "2.30.7"]
lines:
  cu121:
    accelerator: cuda
    cuda: "12.1"
    toolkit: "12.1.1"
    nccl_family: cu12
    nvidia_require: cuda>=12.0
    driver: {floor: "525.60.13", toolkit: "530.30.02"}
    torch:
      "2.4.1": {nccl: "2.20.5", overrides: ["2.21.5"]}
      "2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}
    gpus: [{archs: ["7.0", "9.0"]}]
    size_budget_mb: {runtime: 6400, slim: 5600}
  cu130:
    accelerator: cuda
    cuda: "13.0"
    toolkit: "13.0.3"
    nccl_family: cu13
    nvidia_require: cuda>=13.0
    driver: {floor: "580.65.06", toolkit: "580.65.06"}
    torch:
      "2.13.0": {nccl: "2.29.7"}
    gpus: [{archs: ["7.5", "9.0"]}]
  rocm6.1:
    accelerator: rocm
    rocm: "6.1"
    rccl: "2.18.6"
    toolkit: 6.1-complete
    environment: {HSA_NO_SCRATCH_RECLAIM: "1"}
    torch:
      "2.4.1": {}
    gpus: [{archs: [gfx90a, gfx942]}]
  cpu:
    accelerator: cpu
    torch:
      "2.13.0": {}
    size_budget_mb: {runtime: 1600}
left_out:
  - {line: rocm6.0, torch: "2.4.1", reason: the matrix starts at 6.1, source: variants}
standard:
  - {reason: every torch on every line}
  - {reason: the NCCL axis of this line, lines: [cu121], nccl: overrides}
  - {reason: the flavor without a compiler, lines: [cu121], flavor: [slim]}
  - reason: torchvision beside the newest torch
    lines: [cu121]
    only_alias: true
    extras: [[torchvision]]
aliases:
  cu121: cu121-torch2.4.1-nccl2.20.5
  cpu: cpu-torch2.13.0
  cu130: cu130-torch2.13.0-nccl2.29.7
  rocm6.1: rocm6.1-torch2.4.1-rccl2.18.6
  latest: cu121-torch2.4.1-nccl2.20.5
checks:
  wheel: {source: variants, reason: a torch exists where it was built}
  python: {source: metadata, reason: the distribution decides the Python}
  glibc: {source: metadata, reason: the tag of a wheel names a glibc}
  nccl-named: {source: metadata, reason: only named versions are tested}
  nccl-family: {source: metadata, reason: the NCCL wheel follows the CUDA major}
  nccl-floor: {source: metadata, reason: an older NCCL lacks functions}
  extra-wheel: {source: metadata, reason: each is built against one torch}
  driver: {source: metadata, reason: below the floor nothing starts}
  gpus: {source: metadata, reason: torch has code for these GPUs}
  rccl: {source: metadata, reason: RCCL is part of ROCm}
rules:
  arm64-early:
    when: {accelerator: [cuda], torch: "<2.11", arch: [arm64]}
    reason: these aarch64 wheels are CPU builds
    source: metadata
  arm64-elsewhere:
    when: {accelerator: [rocm, cpu], arch: [arm64]}
    reason: there are no such wheels here
    source: metadata
  compile-python312:
    when: {torch: "<2.4", python: ">=3.12", flavor: [runtime]}
    reason: torch.compile refuses this Python
    source: metadata
  slow-start:
    when: {torch: "==2.2.2"}
    effect: warn
    reason: its first collective is slow
    source: metadata
    expires: "2099-01-01"
sources:
  metadata: {read: the metadata of the wheels}
  variants: {read: the list of published builds, url: "https://source.example/variants"}
with: [numpy]
tools: [uv, flit-core]
holds:
  - package: nvidia-nvjitlink-cu12
    lines: ["cu12*"]
    require: "=={cuda}.*"
    reason: left alone it floats to the newest CUDA
  - package: numpy
    torch: "<2.3"
    require: "<2"
    reason: that torch was compiled for numpy 1
"""

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]


def _wheel(name: str, version: str, size: int = 1_000_000) -> Wheel:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = hashlib.sha256(file.encode()).hexdigest()
    return Wheel(name=name, version=version, file=file, sha256=digest, size=size)


def _parse(text: str) -> Matrix:
    return matrix.check(located.parse(text, matrix.FILE))


def _wheels_of(matrix: Matrix, cell: Cell) -> tuple[Wheel, ...]:
    local = "" if cell.index == "default" else f"+{cell.index}"
    versions = {
        "torch": f"{cell.torch}{local}",
        "numpy": "1.26.4" if cell.torch.startswith("2.2") else "2.4.6",
        "filelock": "4.3.1",
        "typing-extensions": "4.16.0",
    }
    versions |= {name: matrix.torch[cell.torch].wheels[name] for name in cell.extras}
    if cell.line == "cu121" and cell.nccl is not None:
        versions |= {
            "triton": "3.0.0",
            "nvidia-nccl-cu12": cell.nccl,
            "nvidia-cudnn-cu12": "9.1.0.70",
            "nvidia-cublas-cu12": "12.1.3.1",
            "nvidia-cuda-runtime-cu12": "12.1.105",
            "nvidia-nvjitlink-cu12": "12.1.105",
        }
    if cell.line == "cu130" and cell.nccl is not None:
        versions |= {
            "triton": "3.7.1",
            "nvidia-nccl-cu13": cell.nccl,
            "nvidia-cudnn-cu13": "9.20.0.48",
            "nvidia-cublas": "13.0.2.14",
            "nvidia-cuda-runtime": "13.0.96",
        }
    return tuple(_wheel(name, versions[name]) for name in sorted(versions))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests lie in."""
    return ROOT


@pytest.fixture(scope="session")
def real() -> Project:
    """The checkout that these tests lie in, read."""
    found = matrix.load(ROOT)
    return Project(
        matrix=found,
        lock=lock.load(ROOT, found),
        places=places.find({"GPUCOMM_CACHE": "/nonexistent"}, ROOT),
        repository=found.registry,
    )


@pytest.fixture(scope="session")
def make_wheel() -> MakeWheel:
    """`make_wheel(name, version, size=1000000)`: a wheel of the lock."""
    return _wheel


@pytest.fixture(scope="session")
def parse_matrix() -> ParseMatrix:
    """The text of a matrix.yaml as a checked matrix."""
    return _parse


@pytest.fixture(scope="session")
def matrix_faults() -> Callable[[str], tuple[str, ...]]:
    """The faults of the text of a wrong matrix.yaml, each one line with file, line and column."""

    def faults(text: str) -> tuple[str, ...]:
        with pytest.raises(WrongInput) as caught:
            _parse(text)
        assert caught.value.exit_code == 2
        found = caught.value.faults
        assert all(re.fullmatch(r"matrix\.yaml:\d+:\d+: .+", fault) for fault in found), found
        return found

    return faults


@pytest.fixture(scope="session")
def at() -> Callable[[str, str], str]:
    """`at(text, where)`: `matrix.yaml:line:column: ` of the only place of `where` in `text`."""

    def place(text: str, where: str) -> str:
        assert text.count(where) == 1, where
        start = text.index(where)
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        return f"matrix.yaml:{line}:{column}: "

    return place


@pytest.fixture(scope="session")
def small_text() -> str:
    """The small matrix as text."""
    return SMALL


@pytest.fixture(scope="session")
def small() -> Matrix:
    """The small matrix."""
    return _parse(SMALL)


@pytest.fixture(scope="session")
def small_lock(small: Matrix) -> Lock:
    """A lock that answers the small matrix; the line rocm6.1 is unlocked."""
    keys = lock.wanted_keys(small, cells_of(small))
    tools = (_wheel("flit-core", "4.2.0"), _wheel("uv", "0.13.9"))
    return Lock(
        cells={
            key: _wheels_of(small, cell)
            for key, (cell, _) in keys.items()
            if cell.accelerator != "rocm"
        },
        unlocked={
            key: "the PyTorch index of rocm6.1 could not be reached when this was locked"
            for key, (cell, _) in keys.items()
            if cell.accelerator == "rocm"
        },
        tools={"3.11": tools, "3.11-arm64": tools},
        bases={"registry.example/library/debian:bookworm-slim": f"sha256:{'ab' * 32}"},
        aliases=small.aliases,
    )


@pytest.fixture
def small_project(small: Matrix, small_lock: Lock, tmp_path: Path) -> Project:
    """A checkout of the small matrix with the real templates, rendered, with one image test."""
    where = places.Places(root=tmp_path / "checkout", cache=tmp_path / "cache")
    shutil.copytree(ROOT / "templates", where.templates)
    (where.root / matrix.FILE).write_text(SMALL)
    lock.write(where.root / lock.FILE, small_lock)
    render.write(render.render(small, small_lock, where.templates), where.images)
    where.image_tests.mkdir(parents=True)
    (where.image_tests / "test_one.py").write_text("def test_one(): pass\n")
    return project.Project(
        matrix=small, lock=small_lock, places=where, repository="registry.example/team/gpucomm"
    )


@pytest.fixture
def bare_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The environment without anything that gpucomm, uv, pip or urllib would read from it."""
    words = ("proxy", "uv_", "pip_", "pytorch_", "docker", "gpucomm", "ssl_cert", "ca_bundle")
    for name in list(os.environ):
        if any(word in name.lower() for word in words) or name in ("REGISTRY", "WHEELHOUSE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch
