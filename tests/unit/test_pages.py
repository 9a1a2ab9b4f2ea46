"""pages.py: where the wheels lie that the default index does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpucomm import pages
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of, on_demand

ROCM = "rocm6.1-torch2.4.1"
TARGETS = (
    "    gpu_targets: {package: rocm, version: 7.14.0, extras: [], wheels: [rocm-sdk-core], "
    "device_wheel: rocm-sdk-device-, known: [gfx90a, gfx942], default: [gfx942]}\n"
)


def packages(matrix: Matrix, name: str) -> list[str]:
    return pages.packages_of(matrix, on_demand(matrix, name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cu121-torch2.4.1-nccl2.21.5", []),
        ("cu121-torch2.4.1-torchvision", []),
        ("cu130-torch2.13.0-devel", []),
        ("cpu-torch2.13.0", ["torch"]),
        ("cpu-torch2.13.0-slim-mpi", ["torch"]),
        (ROCM, ["torch", "pytorch-triton-rocm"]),
        (f"{ROCM}-torchvision-mpi", ["torch", "torchvision", "pytorch-triton-rocm"]),
    ],
)
def test_only_what_the_default_index_has_not_is_looked_for_elsewhere(
    name: str, expected: list[str], small: Matrix
) -> None:
    assert packages(small, name) == expected


def test_the_wheels_with_gpu_code_are_those_of_the_cells_targets(
    parse_matrix: Callable[[str], Matrix], small_text: str
) -> None:
    rccl = '    rccl: "2.18.6"\n'
    matrix = parse_matrix(small_text.replace(rccl, rccl + TARGETS))
    rocm = ["torch", "pytorch-triton-rocm", "rocm", "rocm-sdk-core"]
    assert packages(matrix, ROCM) == [*rocm, "rocm-sdk-device-gfx942"]
    assert packages(matrix, f"{ROCM}-gfx942-gfx90a") == [
        *rocm, "rocm-sdk-device-gfx90a", "rocm-sdk-device-gfx942",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mirror", "index"),
    [
        (None, "https://wheels.example/whl"),
        ("", "https://wheels.example/whl"),
        ("http://127.0.0.1:8080/whl", "http://127.0.0.1:8080/whl"),
        ("http://127.0.0.1:8080/whl//", "http://127.0.0.1:8080/whl"),
        ("https://user:p%40ss@mirror.example", "https://user:p%40ss@mirror.example"),
    ],
)
def test_a_mirror_takes_the_place_of_the_index(
    mirror: str | None, index: str, small: Matrix
) -> None:
    cell = on_demand(small, ROCM)
    assert pages.pages_of(small, cell, mirror) == [
        f"{index}/rocm6.1/torch/",
        f"{index}/rocm6.1/pytorch-triton-rocm/",
    ]
    assert pages.torch_page(index, "rocm6.1") == f"{index}/rocm6.1/torch/"
    assert pages.torch_page(f"{index}/", "rocm6.1") == f"{index}/rocm6.1/torch/"


def test_a_page_below_an_index_ends_as_a_folder(small: Matrix) -> None:
    """Without the last slash an index answers with a redirection, which costs a request."""
    assert pages.page_path(on_demand(small, "cpu-torch2.13.0"), "torch") == "cpu/torch/"


def test_every_real_cell_has_a_page_for_torch_or_the_default_index(real: Project) -> None:
    for cell in cells_of(real.matrix):
        found = pages.packages_of(real.matrix, cell)
        assert found[:1] == ([] if cell.index == "default" else ["torch"]), cell.id
        assert len(found) == len(set(found))
        triton = [name for name in found if "triton" in name]
        assert len(triton) == (cell.accelerator == "rocm"), cell.id
        paths = [pages.page_path(cell, name) for name in found]
        assert all(path.startswith(f"{cell.line}/") for path in paths)
