"""requirements.py: what a resolver is asked for one cell, and that all of it is in the matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from packaging.requirements import Requirement

from gpucomm.project import Project
from gpucomm.requirements import Requirements, requirements_of
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of, on_demand

T22, T24 = "cu121-torch2.2.2", "cu121-torch2.4.1"
NVJITLINK = "nvidia-nvjitlink-cu12==12.1.*"
TARGETS = (
    "    gpu_targets: {package: rocm, version: 7.14.0.post1, extras: [libraries], "
    "wheels: [rocm-sdk-core], device_wheel: rocm-sdk-device-, "
    "known: [gfx90a, gfx942], default: [gfx942]}\n"
)


def asked(matrix: Matrix, name: str) -> Requirements:
    return requirements_of(matrix, on_demand(matrix, name))


@pytest.fixture(scope="module")
def with_targets(parse_matrix: Callable[[str], Matrix], small_text: str) -> Matrix:
    """The small matrix, with GPU code in wheels of its own on rocm6.1."""
    rccl = '    rccl: "2.18.6"\n'
    assert small_text.count(rccl) == 1
    return parse_matrix(small_text.replace(rccl, rccl + TARGETS))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            T24,
            Requirements(wanted=("torch==2.4.1", "numpy"), constraints=(NVJITLINK,)),
            id="default-index",
        ),
        pytest.param(
            T22,
            Requirements(wanted=("torch==2.2.2", "numpy"), constraints=(NVJITLINK, "numpy<2")),
            id="held-by-torch",
        ),
        pytest.param(
            f"{T24}-nccl2.21.5",
            Requirements(
                wanted=("torch==2.4.1", "numpy"),
                overrides=("nvidia-nccl-cu12==2.21.5",),
                constraints=(NVJITLINK,),
            ),
            id="other-nccl",
        ),
        pytest.param(
            f"{T24}-torchvision",
            Requirements(
                wanted=("torch==2.4.1", "numpy", "torchvision==0.19.1"), constraints=(NVJITLINK,)
            ),
            id="wheel-beside-torch",
        ),
        pytest.param(
            "rocm6.1-torch2.4.1-torchvision",
            Requirements(wanted=("torch==2.4.1+rocm6.1", "numpy", "torchvision==0.19.1+rocm6.1")),
            id="own-index",
        ),
        pytest.param("cpu-torch2.13.0", Requirements(wanted=("torch==2.13.0+cpu", "numpy")),
                     id="cpu"),
        pytest.param(
            "cu130-torch2.13.0-devel",
            Requirements(wanted=("torch==2.13.0", "numpy", "nvidia-cuda-nvcc==13.0.*")),
            id="compiler-in-wheels",
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for(name: str, expected: Requirements, small: Matrix) -> None:
    assert asked(small, name) == expected


@pytest.mark.parametrize("words", ["slim", "mpi", "slim-mpi"])
def test_what_is_no_wheel_changes_nothing_that_is_asked_for(words: str, small: Matrix) -> None:
    assert asked(small, f"{T24}-{words}") == asked(small, T24)


def test_the_image_of_the_vendor_has_the_compiler(small: Matrix) -> None:
    found = asked(small, "cu130-torch2.13.0-ubuntu24.04-devel")
    assert found == asked(small, "cu130-torch2.13.0")


def test_only_the_gpu_code_of_the_cell_is_asked_for(with_targets: Matrix) -> None:
    name = "rocm6.1-torch2.4.1"
    for words, targets in (
        ("", "device-gfx942"),
        ("-gfx90a", "device-gfx90a"),
        ("-gfx942-gfx90a", "device-gfx90a,device-gfx942"),
    ):
        found = asked(with_targets, f"{name}{words}")
        assert found.overrides == (f"rocm[libraries,{targets}]==7.14.0.post1",)
        assert found.wanted == ("torch==2.4.1+rocm6.1", "numpy")


def test_every_real_cell_asks_for_what_the_matrix_states(real: Project) -> None:
    for cell in cells_of(real.matrix):
        found = requirements_of(real.matrix, cell)
        torch, *others = (Requirement(line) for line in found.wanted)
        (version,) = torch.specifier
        assert torch.name == "torch"
        assert version.version.split("+") in ([cell.torch], [cell.torch, cell.line])
        assert ("+" in version.version) == (cell.index != "default"), cell.id
        assert {one.name for one in others} >= set(real.matrix.with_)
        overrides = {Requirement(line).name for line in found.overrides}
        assert any(name.startswith("nvidia-nccl-") for name in overrides) == cell.nccl_overridden
        assert "{" not in "".join((*found.wanted, *found.overrides, *found.constraints))
        for line in found.constraints:
            assert str(Requirement(line).specifier), cell.id
