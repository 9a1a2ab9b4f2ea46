"""A small fixed matrix with its lock, and a checkout made of them, for the tests of this folder.

The versions here are frozen on purpose: a version bump of the real matrix changes no expectation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from gpucomm import located, lock, matrix, places, project, render
from gpucomm.cell import Cell, cells_of
from gpucomm.lock import Lock, Wheel
from gpucomm.project import Project
from gpucomm.schema import Matrix

settings.register_profile("unit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("unit")

ROOT = Path(__file__).resolve().parents[2]
SMALL = """\
version: 1
registry: registry.example/team/gpucomm
source: https://source.example/gpucomm
source_date_epoch: 1700000000
pytorch_index: https://wheels.example/whl
defaults: {os: debian12, flavor: runtime}
systems:
  debian12:
    release: bookworm
    python: "3.11"
    image: registry.example/library/debian:bookworm-slim
    base: auto
flavors:
  runtime:
    apt: [gcc, libc6-dev]
    without: []
  slim:
    apt: []
    without: [triton]
lines:
  cu121:
    accelerator: cuda
    cuda: "12.1"
    index: default
    nccl_wheel: nvidia-nccl-cu12
    nvidia_require: cuda>=12.0
    torch:
      "2.4.1": {nccl: "2.20.5"}
      "2.2.2": {nccl: "2.19.3"}
    nccl_overrides: ["2.21.5"]
    flavors: [runtime, slim]
    size_budget_mb: {runtime: 6400, slim: 5600}
  cpu:
    accelerator: cpu
    index: cpu
    torch:
      "2.13.0": {}
    flavors: [runtime]
    size_budget_mb: {runtime: 1600}
aliases:
  cu121: cu121-torch2.4.1-nccl2.20.5
  cpu: cpu-torch2.13.0
  latest: cu121-torch2.4.1-nccl2.20.5
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
    return Wheel(name=name, version=version, file=file, sha256=f"{len(file):064x}", size=size)


def _parse(text: str) -> Matrix:
    return matrix.check(located.parse(text, matrix.FILE))


def _wheels_of(cell: Cell) -> tuple[Wheel, ...]:
    versions = {
        "torch": cell.torch if cell.cuda else f"{cell.torch}+cpu",
        "numpy": "1.26.4" if cell.torch.startswith("2.2") else "2.4.6",
        "filelock": "4.3.1",
        "typing-extensions": "4.16.0",
    }
    if cell.nccl is not None:
        versions |= {
            "triton": "3.0.0",
            "nvidia-nccl-cu12": cell.nccl,
            "nvidia-cudnn-cu12": "9.1.0.70",
            "nvidia-cublas-cu12": "12.1.3.1",
            "nvidia-cuda-runtime-cu12": "12.1.105",
            "nvidia-nvjitlink-cu12": "12.1.105",
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
def small_text() -> str:
    """The small matrix as text."""
    return SMALL


@pytest.fixture(scope="session")
def small() -> Matrix:
    """The small matrix."""
    return _parse(SMALL)


@pytest.fixture(scope="session")
def small_lock(small: Matrix) -> Lock:
    """A lock that answers the small matrix."""
    return Lock(
        cells={cell.pins_id: _wheels_of(cell) for cell in cells_of(small)},
        tools={"3.11": (_wheel("flit-core", "4.2.0"), _wheel("uv", "0.13.9"))},
        bases={"debian12": f"sha256:{'ab' * 32}"},
    )


@pytest.fixture
def small_project(small: Matrix, small_lock: Lock, tmp_path: Path) -> Project:
    """A checkout of the small matrix with the real templates, rendered, with one image test."""
    where = places.Places(root=tmp_path / "checkout", cache=tmp_path / "cache")
    shutil.copytree(ROOT / "templates", where.templates)
    (where.root / matrix.FILE).write_text(SMALL)
    lock.write(where.root, small_lock)
    render.write(render.render(small, small_lock, where.templates), where.images)
    where.image_tests.mkdir(parents=True)
    (where.image_tests / "test_one.py").write_text("def test_one(): pass\n")
    return project.Project(
        matrix=small, lock=small_lock, places=where, repository="registry.example/team/gpucomm"
    )


@pytest.fixture
def bare_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The environment without anything that gpucomm, uv, pip or urllib would read from it."""
    words = ("proxy", "uv_", "pip_", "docker", "gpucomm", "ssl_cert", "ca_bundle")
    for name in list(os.environ):
        if any(word in name.lower() for word in words) or name in ("REGISTRY", "WHEELHOUSE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch
