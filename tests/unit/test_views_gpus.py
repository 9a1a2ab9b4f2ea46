"""gpus.py: how a GPU is written, and which code runs on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import gpus
from gpucomm.errors import WrongInput
from gpucomm.gpus import Gpu
from gpucomm.project import Project
from gpucomm.rules import platforms
from gpucomm.schema import Matrix
from gpucomm.standard import by_id, cells_of, on_demand


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("7.0", "7.0"), ("sm_70", "7.0"), ("SM_90", "9.0"), ("sm_90a", "9.0"), ("sm_120", "12.0"),
        ("compute_86", "8.6"), ("12.1", "12.1"), (" 9.0 ", "9.0"), ("gfx90a", "gfx90a"),
        ("GFX942", "gfx942"), ("gfx1100", "gfx1100"),
    ],
)  # fmt: skip
def test_a_gpu_is_written_in_several_ways(text: str, name: str, small: Matrix) -> None:
    assert gpus.parse(small, text).name == name


@pytest.mark.parametrize("text", ["", "H100", "70", "sm_7.0", "7", "gfx", "gfx94", "9.0.1", "sm_"])
def test_anything_else_is_wrong_input_that_says_how(text: str, small: Matrix) -> None:
    with pytest.raises(WrongInput, match="nvidia-smi"):
        gpus.parse(small, text)


def test_a_misspelt_target_names_the_nearest(small: Matrix) -> None:
    with pytest.raises(WrongInput, match="did you mean 'gfx942'"):
        gpus.parse(small, "gfx94-2")


NVIDIA = ["5.0", "7.0", "8.0", "8.6", "9.0", "12.0+PTX"]


@pytest.mark.parametrize(
    ("name", "ok", "reason"),
    [
        ("8.0", True, "has code for 8.0"),
        ("12.0", True, "has code for 12.0"),
        ("8.9", True, "the code for 8.6"),
        ("8.7", False, "has code for"),  # Jetson stands alone
        ("12.1", True, "the code for 12.0"),
        ("13.0", True, "the PTX for 12.0"),
        ("10.0", False, "has code for 5.0, 7.0"),
        ("3.7", False, "has code for"),
        ("6.0", False, "has code for"),
    ],
)
def test_what_runs_on_nvidia(name: str, ok: bool, reason: str) -> None:
    found = gpus.support(NVIDIA, Gpu(vendor="nvidia", name=name))
    assert (found.ok, found.ptx) == (ok, "PTX for" in found.reason)
    assert reason in found.reason


def test_amd_runs_its_own_target_only() -> None:
    archs = ["gfx90a", "gfx942"]
    assert gpus.support(archs, Gpu(vendor="amd", name="gfx942")).ok
    assert not gpus.support(archs, Gpu(vendor="amd", name="gfx950")).ok
    assert not gpus.support(archs, Gpu(vendor="nvidia", name="9.0")).ok
    assert not gpus.support(NVIDIA, Gpu(vendor="amd", name="gfx942")).ok


def test_nothing_runs_on_a_line_without_gpus() -> None:
    assert "any GPU" in gpus.support([], Gpu(vendor="nvidia", name="9.0")).reason


@given(
    archs=st.lists(st.sampled_from(NVIDIA), min_size=1, unique=True),
    major=st.integers(1, 14),
    minor=st.integers(0, 9),
)
def test_code_is_never_older_than_the_gpu_that_runs_it(
    archs: list[str], major: int, minor: int
) -> None:
    found = gpus.support(archs, Gpu(vendor="nvidia", name=f"{major}.{minor}"))
    numbers = [tuple(map(int, arch.removesuffix("+PTX").split("."))) for arch in archs]
    if found.ok:
        assert min(numbers) <= (major, minor)
    if "12.0+PTX" in archs and (major, minor) >= (12, 0):
        assert found.ok


def test_the_rows_of_a_line_are_chosen_by_torch_and_platform(real: Project) -> None:
    matrix = real.matrix
    old = on_demand(matrix, "cu126-torch2.6.0")
    new = on_demand(matrix, "cu130-torch2.14.1")
    assert gpus.archs_of(matrix, old, "arm64") == ()
    assert gpus.archs_of(matrix, new, "amd64") != gpus.archs_of(matrix, new, "arm64")
    assert "11.0" in gpus.archs_of(matrix, new, "arm64")


def test_every_real_gpu_cell_has_code_on_each_of_its_platforms(real: Project) -> None:
    for cell in cells_of(real.matrix):
        for arch in platforms(real.matrix, cell):
            has = bool(gpus.archs_of(real.matrix, cell, arch))
            assert has == (cell.accelerator != "cpu"), (cell.id, arch)


def test_targets_in_wheels_of_their_own_count_only_where_the_cell_has_them(real: Project) -> None:
    matrix = real.matrix
    cell = by_id(matrix)[matrix.aliases["rocm7.14"]]
    gpu = gpus.parse(matrix, "gfx1100")
    assert not gpus.runs_on(matrix, cell, gpu)
    other = gpus.with_target(matrix, cell, gpu)
    assert other is not None
    assert gpus.runs_on(matrix, on_demand(matrix, other), gpu)
    assert gpus.with_target(matrix, cell, gpus.parse(matrix, "gfx942")) is None


@pytest.mark.parametrize("name", ["3.7", "7.0", "8.9", "9.0", "12.1", "gfx90a", "gfx1103"])
def test_the_lines_for_a_gpu_are_those_whose_cell_runs_on_it(name: str, real: Project) -> None:
    matrix = real.matrix
    gpu = gpus.parse(matrix, name)
    found = list(gpus.supporting(matrix, gpu))
    assert found
    for row in found:
        cell = on_demand(matrix, row.cell)
        assert (cell.line, cell.torch) == (row.line, row.torches[-1])
        assert gpus.runs_on(matrix, cell, gpu)
    lines = {row.line for row in found}
    for cell in cells_of(matrix):
        assert cell.line in lines or not gpus.runs_on(matrix, cell, gpu)


def test_no_line_for_a_gpu_of_tomorrow(small: Matrix) -> None:
    assert list(gpus.supporting(small, Gpu(vendor="nvidia", name="13.0"))) == []
