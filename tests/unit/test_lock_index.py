"""`gpucomm lock` from end to end: the real matrix against an index on this machine.

Every other test of the lock gives it a folder or a lock that it made itself; here the command, uv
and HTTP are the real ones, and every line and torch of matrix.yaml is resolved.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.command import GPUCOMM
from tests.wheelindex import (
    ChangedBytes,
    Fault,
    Index,
    NotFound,
    Row,
    Stalled,
    TinyWheel,
    TooMany,
    Truncated,
    nccl_wheels,
    published,
    serve,
)
from uv import find_uv_bin

from gpucomm import lock as locks
from gpucomm import matrix as matrices
from gpucomm.cell import base_image
from gpucomm.lock import Lock
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Checkout:
    """A copy of what `gpucomm lock` and `gpucomm render` read, without a lock of any wheel."""

    root: Path
    home: Path
    matrix: Matrix

    def environ(self, index: Index, **more: str) -> dict[str, str]:
        """The environment of one command: this index, no other, and nothing of this machine."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "UV_CACHE_DIR": str(self.home / "uv"),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_DEFAULT_INDEX": index.url(),
            "PYTORCH_INDEX": index.url("whl"),
        } | more

    def gpucomm(self, index: Index, *arguments: str, **environ: str) -> Done:
        """Run the command here as a person does."""
        return self.run(index, str(GPUCOMM), *arguments, **environ)

    def run(self, index: Index, *command: str, **environ: str) -> Done:
        """Run any command here."""
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environ(index, **environ),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=240,
        )

    @property
    def lock(self) -> Lock:
        """The lock as it is now."""
        return locks.read(self.root / locks.FILE)


def checkout(folder: Path) -> Checkout:
    """A checkout in `folder`. Its bases are locked: no registry is asked."""
    root = folder / "checkout"
    root.mkdir()
    for name in ("templates", "docs"):
        shutil.copytree(ROOT / name, root / name)
    for name in (matrices.FILE, "README.md"):
        shutil.copy(ROOT / name, root / name)
    matrix = matrices.load(root)
    images = {base_image(matrix, cell) for cell in cells_of(matrix)}
    bases = dict.fromkeys(images, f"sha256:{'ab' * 32}")
    locks.write(root / locks.FILE, Lock(cells={}, tools={}, bases=bases))
    return Checkout(root, folder / "home", matrix)


def wheels_of(matrix: Matrix) -> dict[str, list[TinyWheel]]:
    """Every wheel that a lock of the whole matrix needs, by the folders of `serve`."""
    rows: list[Row] = [
        (torch, name, one.nccl) for name, line in matrix.lines.items()
        for torch, one in line.torch.items()
    ]  # fmt: skip
    found = published(rows, pythons=PYTHONS, machines=MACHINES, whole=True)
    for name, line in matrix.lines.items():
        for one in line.torch.values():
            for version in one.overrides:
                found["simple"] += nccl_wheels(name, version, MACHINES)
    return found


@pytest.fixture(scope="module")
def everything() -> Iterator[Index]:
    """The index with everything; a test that plants a fault removes it."""
    with serve(wheels_of(matrices.load(ROOT)), metadata_files=True) as index:
        yield index


@pytest.fixture(scope="module")
def locked(everything: Index, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, Done]:
    """A checkout in which `gpucomm lock` was run once for all cells, and what it said."""
    one = checkout(tmp_path_factory.mktemp("locked"))
    return one, one.gpucomm(everything, "lock")


# ---------------------------------------------------------------- every line and torch


def test_every_line_and_torch_of_the_matrix_is_locked(locked: tuple[Checkout, Done]) -> None:
    one, done = locked
    assert (done.returncode, done.stderr) == (0, "")
    keys = locks.wanted_keys(one.matrix, cells_of(one.matrix))
    assert one.lock.unlocked == {}
    assert one.lock.cells.keys() == keys.keys()
    pairs = {(cell.line, cell.torch) for cell, _ in keys.values()}
    rows = {(name, torch) for name, line in one.matrix.lines.items() for torch in line.torch}
    assert pairs == rows
    tools = {locks.tools_key(cell.python, arch) for cell, arch in keys.values()}
    assert one.lock.tools.keys() == tools
    progress = [line for line in done.stdout.splitlines() if line.startswith("lock ")]
    assert len(progress) == len(keys) + len(tools)


def test_a_torch_with_all_of_cuda_inside_is_locked_without_a_wheel_of_cuda(
    locked: tuple[Checkout, Done],
) -> None:
    one, _ = locked
    found = versions(one, "cu118-torch2.1.2-py3.11")
    assert found["torch"] == "2.1.2+cu118"
    assert not [name for name in found if name.startswith("nvidia-")]


def test_sizes_are_known_though_no_page_tells_them(locked: tuple[Checkout, Done]) -> None:
    one, _ = locked
    wheels = [wheel for row in one.lock.cells.values() for wheel in row]
    assert wheels
    assert all(wheel.size > 0 for wheel in wheels)


def test_what_was_locked_answers_the_matrix_and_is_not_resolved_again(
    locked: tuple[Checkout, Done], everything: Index
) -> None:
    one, _ = locked
    checked = one.gpucomm(everything, "lock", "--check")
    assert (checked.returncode, checked.stderr) == (0, "")
    before = (one.root / locks.FILE).read_bytes()
    everything.forget()
    again = one.gpucomm(everything, "lock")
    assert (again.returncode, again.stdout, again.stderr) == (0, "no version changed\n", "")
    assert everything.requests == ()
    assert (one.root / locks.FILE).read_bytes() == before


def test_what_is_locked_names_no_index_and_is_rendered_whole(
    locked: tuple[Checkout, Done], everything: Index
) -> None:
    one, _ = locked
    done = one.gpucomm(everything, "render")
    assert (done.returncode, done.stderr) == (0, "")
    files = [path for path in (one.root / "images").rglob("*") if path.is_file()]
    host = everything.url("").removeprefix("http://").rstrip("/")
    for path in [*files, one.root / locks.FILE]:
        text = path.read_text()
        assert host not in text, path
        assert "127.0.0.1" not in text, path
        if path.is_relative_to(one.root / "images"):
            assert "unlocked" not in f"{path.name} {text}", path
    for cell in cells_of(one.matrix):
        assert (one.root / "images" / cell.id / "Dockerfile").is_file()
    assert one.gpucomm(everything, "render", "--check").returncode == 0


def versions(one: Checkout, key: str) -> dict[str, str]:
    """Package and version of what is locked at `key`."""
    return {wheel.name: wheel.version for wheel in one.lock.cells[key]}


def test_what_torch_leaves_open_follows_the_cuda_of_the_line(
    locked: tuple[Checkout, Done],
) -> None:
    """The index offers nvJitLink, nvvm, crt and cccl of a newer CUDA as well."""
    one, _ = locked
    for key, (cell, _) in locks.wanted_keys(one.matrix, cells_of(one.matrix)).items():
        found = versions(one, key)
        for name in ("nvidia-nvjitlink", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"):
            for package in (name, f"{name}-cu12"):
                if package in found:
                    assert found[package].startswith(f"{cell.cuda}."), (key, package)
    early = versions(one, "cu121-torch2.4.1-nccl2.20.5-py3.11-devel")
    assert early["nvidia-cuda-cccl-cu12"] == "12.3.101.post1"
    late = versions(one, "cu130-torch2.14.1-nccl2.30.7-py3.11-devel-arm64")
    assert (late["nvidia-cuda-nvcc"], late["nvidia-cuda-cccl"]) == ("13.0.88", "13.0.85")


def test_rocm_in_wheels_is_locked_for_the_targets_of_the_cell_only(
    locked: tuple[Checkout, Done],
) -> None:
    one, _ = locked
    line = "rocm7.14-torch2.14.1-rccl2.30.4-py3.11"
    for name, targets in (
        ("", {"gfx90a", "gfx942", "gfx950"}), ("-gfx942", {"gfx942"}),
        ("-gfx908-gfx90a", {"gfx908", "gfx90a"}),
    ):  # fmt: skip
        found = versions(one, f"{line}{name}")
        devices = {package.rpartition("-")[2] for package in found if "-device-" in package}
        assert devices == targets
        assert found["rocm"] == "7.14.0.post1"
        assert found["rocm-sdk-core"] == found["rocm-sdk-libraries"] == "7.14.0"


def test_another_nccl_and_the_torch_libraries_are_locked(locked: tuple[Checkout, Done]) -> None:
    one, _ = locked
    for key, package, version in (
        ("cu118-torch2.4.1-nccl2.21.5-py3.11", "nvidia-nccl-cu11", "2.21.5"),
        ("cu126-torch2.7.1-nccl2.28.9-py3.11", "nvidia-nccl-cu12", "2.28.9"),
        ("cu132-torch2.15.0-nccl2.32.3-py3.11-arm64", "nvidia-nccl-cu13", "2.32.3"),
        ("rocm6.4-torch2.9.1-rccl2.22.3-py3.11-torchvision-torchaudio",
         "torchaudio", "2.9.1+rocm6.4"),
        ("cpu-torch2.15.0-py3.11-torchvision-torchaudio", "torchvision", "0.29.2+cpu"),
    ):  # fmt: skip
        assert versions(one, key)[package] == version


# ---------------------------------------------------------------- faults of an index

FEW: list[Row] = [
    ("2.4.1", "cu121", "2.20.5"),
    ("2.7.1", "cu118", "2.21.5"),
    ("2.9.1", "rocm6.4", None),
    ("2.15.0", "cpu", None),
]
SELECTOR = "cu121,cu118,rocm6.4,cpu"
SPOILED = "rocm6.4-torch2.9.1-rccl2.22.3-py3.11"
OTHERS = {
    "cu121-torch2.4.1-nccl2.20.5-py3.11",
    "cu118-torch2.7.1-nccl2.21.5-py3.11",
    "cpu-torch2.15.0-py3.11",
}
TORCH, PAGES = "/whl/rocm6.4/torch-2.9.1*.whl", "/whl/rocm6.4/*/"
ONCE = {"UV_HTTP_TIMEOUT": "2", "UV_HTTP_RETRIES": "0"}


@pytest.fixture
def few(tmp_path: Path) -> Checkout:
    """A checkout without a lock, for the few cells of the index `small`."""
    return checkout(tmp_path)


@pytest.fixture
def small() -> Iterator[Index]:
    """An index with four lines. uv reads the metadata in the wheels: none lies beside them."""
    with serve(published(FEW, whole=True)) as index:
        yield index


@pytest.mark.parametrize(
    ("where", "fault", "says"),
    [
        pytest.param(TORCH, NotFound(), "404", id="wheel-404"),
        pytest.param(TORCH, Truncated(), "end of file before message length", id="wheel-cut"),
        pytest.param(TORCH, Stalled(), "operation timed out", id="wheel-stalled"),
        pytest.param(PAGES, Truncated(), "end of file before message length", id="page-cut"),
        pytest.param(PAGES, Stalled(), "operation timed out", id="page-stalled"),
        pytest.param("/whl/rocm6.4/pytorch-triton-rocm/", NotFound(), "404", id="page-404"),
    ],
)
def test_a_fault_of_an_index_is_one_line_and_stops_no_other_cell(
    few: Checkout, small: Index, where: str, fault: Fault, says: str
) -> None:
    with small.fault(where, fault) as planted:
        done = few.gpucomm(small, "lock", SELECTOR, **ONCE)
    assert planted.hits
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpucomm: {SPOILED}: ")
    assert says in line
    assert "Traceback" not in done.stdout
    assert few.lock.cells.keys() == OTHERS
    assert few.lock.unlocked == {SPOILED: "uv failed when this was locked"}
    assert f"{SPOILED}: FAILED" in done.stdout
    # The same command goes on where it stopped.
    small.forget()
    again = few.gpucomm(small, "lock", SELECTOR, **ONCE)
    assert (again.returncode, again.stderr) == (0, "")
    assert few.lock.cells.keys() == {*OTHERS, SPOILED}
    assert few.lock.unlocked == {}
    assert not any("cu118" in request.path for request in small.requests)


@pytest.mark.parametrize("where", [TORCH, "/whl/rocm6.4/torch/", "/simple/numpy/"])
def test_an_index_that_asks_to_wait_is_asked_again(few: Checkout, small: Index, where: str) -> None:
    with small.fault(where, TooMany(retry_after=1, times=2)) as planted:
        done = few.gpucomm(small, "lock", SELECTOR, UV_HTTP_RETRIES="2")
    assert planted.hits == 2
    assert (done.returncode, done.stderr) == (0, "")
    assert few.lock.cells.keys() == {*OTHERS, SPOILED}


def test_a_fault_leaves_the_former_lock_of_its_cell(few: Checkout, small: Index) -> None:
    assert few.gpucomm(small, "lock", SELECTOR).returncode == 0
    before = few.lock
    small.add("simple", TinyWheel("filelock", "99.0"))
    shutil.rmtree(few.home)
    with small.fault(TORCH, NotFound()):
        done = few.gpucomm(small, "lock", SELECTOR, "--upgrade", **ONCE)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert few.lock.cells[SPOILED] == before.cells[SPOILED]
    assert {versions(few, key)["filelock"] for key in OTHERS} == {"99.0"}
    assert few.lock.unlocked == {}


def test_a_fault_that_all_cells_share_is_one_line_for_each(few: Checkout, small: Index) -> None:
    with small.fault("setuptools", NotFound()):
        done = few.gpucomm(small, "lock", SELECTOR, **ONCE)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert {line.split(": ")[1] for line in lines} == {*OTHERS, SPOILED}
    assert len(lines) == 4
    assert "127.0.0.1" not in (few.root / locks.FILE).read_text()


# ---------------------------------------------------------------- the hashes that were locked


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_that_changed_is_refused_where_the_lock_is_installed(
    locked: tuple[Checkout, Done], everything: Index, tmp_path: Path, changed: bool
) -> None:
    one, _ = locked
    assert one.gpucomm(everything, "render").returncode == 0
    cell = one.root / "images" / "cu121-torch2.4.1-nccl2.20.5"
    target = tmp_path / "target"
    install = (
        find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--no-cache",
        "--python", sys.executable, "--python-version", "3.11",
        "--python-platform", "x86_64-manylinux_2_28", "--target", str(target),
        "-r", str(cell / "requirements" / "nccl.txt"),
    )  # fmt: skip
    if changed:
        file = "nvidia_nccl_cu12-2.20.5-py3-none-manylinux2014_x86_64.whl"
        with everything.fault(file, ChangedBytes()) as planted:
            done = one.run(everything, *install)
        assert planted.hits
        assert done.returncode == 1
        assert "Hash mismatch" in done.stderr
        assert not list(target.glob("nvidia_nccl*"))
    else:
        done = one.run(everything, *install)
        assert (done.returncode, done.stderr) == (0, "")
        assert [path.name for path in target.glob("nvidia_nccl*")] == [
            "nvidia_nccl_cu12-2.20.5.dist-info"
        ]
