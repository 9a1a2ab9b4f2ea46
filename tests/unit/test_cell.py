"""cell.py: what a cell is called, and the way from a name back to axis values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm.cell import Cell, Wanted, additions, base_image, cell, toolkit_image, wanted_of
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

ParseMatrix = Callable[[str], Matrix]
T24 = "cu121-torch2.4.1"
GFX = (
    "    gpu_targets: {package: rocm, version: 7.14.0, extras: [], wheels: [], "
    "device_wheel: rocm-sdk-device-, known: [gfx90a, gfx942, gfx950], default: [gfx90a, gfx942]}\n"
)


@pytest.fixture(scope="module")
def with_targets(parse_matrix: ParseMatrix, small_text: str) -> Matrix:
    """The small matrix, with GPU code in wheels of its own on rocm6.1."""
    rccl = '    rccl: "2.18.6"\n'
    assert small_text.count(rccl) == 1
    return parse_matrix(small_text.replace(rccl, rccl + GFX))


def named(matrix: Matrix, text: str) -> Cell:
    return cell(matrix, wanted_of(matrix, text))


def test_the_facts_of_a_cuda_cell(small: Matrix) -> None:
    one = named(small, f"{T24}-nccl2.21.5-slim-mpi")
    assert one == Cell(
        line="cu121",
        accelerator="cuda",
        torch="2.4.1",
        index="default",
        nccl="2.21.5",
        nccl_overridden=True,
        rccl=None,
        cuda="12.1",
        rocm=None,
        os="debian12",
        python="3.11",
        glibc="2.36",
        flavor="slim",
        extras=("mpi",),
        gpu_targets=(),
        id=f"{T24}-nccl2.21.5-slim-mpi",
        pins_id=f"{T24}-nccl2.21.5-py3.11",
    )
    with pytest.raises(FrozenInstanceError):
        one.torch = "1"  # type: ignore[misc]


def test_the_facts_of_a_rocm_cell(small: Matrix) -> None:
    one = named(small, "rocm6.1-torch2.4.1")
    assert (one.id, one.pins_id) == (
        "rocm6.1-torch2.4.1-rccl2.18.6",
        "rocm6.1-torch2.4.1-rccl2.18.6-py3.11",
    )
    assert (one.accelerator, one.rocm, one.rccl, one.index) == ("rocm", "6.1", "2.18.6", "rocm6.1")
    assert (one.nccl, one.nccl_overridden, one.cuda) == (None, False, None)


def test_the_facts_of_a_cpu_cell(small: Matrix) -> None:
    one = named(small, "cpu-torch2.13.0")
    assert (one.id, one.index) == ("cpu-torch2.13.0", "cpu")
    assert (one.nccl, one.nccl_overridden, one.cuda, one.rccl, one.rocm) == (
        None, False, None, None, None,
    )  # fmt: skip


def test_a_static_nccl_is_not_in_the_id(parse_matrix: ParseMatrix, small_text: str) -> None:
    old = '"2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}'
    assert small_text.count(old) == 1
    matrix = parse_matrix(small_text.replace(old, '"2.2.2": {nccl: static}'))
    one = named(matrix, "cu121-torch2.2.2")
    assert (one.id, one.nccl, one.nccl_overridden) == ("cu121-torch2.2.2", None, False)
    assert named(matrix, "cu121-torch2.2.2-nccl2.21.5").nccl_overridden


def test_the_default_index_is_that_of_the_default_line(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace("default: cu130", "default: cpu")
    matrix = parse_matrix(text)
    assert named(matrix, "cpu-torch2.13.0").index == "default"
    assert named(matrix, "cu130-torch2.13.0").index == "cu130"


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        pytest.param(T24, "py3.11", id="plain"),
        pytest.param(f"{T24}-slim", "py3.11", id="flavor-without-wheels"),
        pytest.param(f"{T24}-mpi", "py3.11", id="extra-without-wheel"),
        pytest.param(f"{T24}-devel", "py3.11", id="flavor-with-wheels-of-other-lines"),
        pytest.param(f"{T24}-ubuntu24.04", "py3.12", id="other-python"),
        pytest.param(f"{T24}-torchvision", "py3.11-torchvision", id="extra-with-wheel"),
        pytest.param(f"{T24}-torchvision-mpi-slim", "py3.11-torchvision", id="all"),
    ],
)
def test_cells_share_a_lock_where_nothing_decides_other_wheels(
    text: str, pins: str, small: Matrix
) -> None:
    assert named(small, text).pins_id == f"{T24}-nccl2.20.5-{pins}"


def test_a_flavor_that_adds_wheels_has_a_lock_of_its_own(small: Matrix) -> None:
    name = "cu130-torch2.13.0-nccl2.29.7"
    assert named(small, f"{name}-devel").pins_id == f"{name}-py3.11-devel"
    # The vendor's image has the toolkit, so nothing is added.
    assert named(small, f"{name}-devel-ubuntu24.04").pins_id == f"{name}-py3.12"


def test_what_a_flavor_adds(small: Matrix) -> None:
    added = (("nvidia-cuda-nvcc", "=={cuda}.*"),)
    assert additions(small, line="cu130", flavor="devel", os="debian12") == added
    assert additions(small, line="cu130", flavor="runtime", os="debian12") == ()
    assert additions(small, line="cu121", flavor="devel", os="debian12") == ()
    assert additions(small, line="cu130", flavor="devel", os="ubuntu24.04") == ()


def test_the_image_that_a_flavor_stands_on(small: Matrix) -> None:
    cuda = "registry.example/nvidia/cuda:13.0.3-devel-ubuntu24.04"
    assert toolkit_image(small, line="cu130", flavor="devel", os="ubuntu24.04") == cuda
    assert toolkit_image(small, line="cu130", flavor="runtime", os="ubuntu24.04") is None
    assert toolkit_image(small, line="cu130", flavor="devel", os="debian12") is None
    assert toolkit_image(small, line="rocm6.1", flavor="devel", os="ubuntu24.04") is None
    assert toolkit_image(small, line="cpu", flavor="devel", os="ubuntu24.04") is None
    plain = "registry.example/library/ubuntu:24.04"
    assert base_image(small, named(small, "cu130-torch2.13.0-ubuntu24.04-devel")) == cuda
    assert base_image(small, named(small, "cu130-torch2.13.0-ubuntu24.04")) == plain
    assert base_image(small, named(small, "cpu-torch2.13.0-ubuntu24.04-devel")) == plain


def test_another_default_is_the_one_left_out(parse_matrix: ParseMatrix, small_text: str) -> None:
    text = small_text.replace("{os: debian12, flavor: runtime}", "{os: ubuntu24.04, flavor: slim}")
    matrix = parse_matrix(text)
    one = named(matrix, T24)
    assert (one.os, one.flavor, one.id) == ("ubuntu24.04", "slim", f"{T24}-nccl2.20.5")
    other = named(matrix, f"{T24}-debian12-runtime")
    assert other.id == f"{T24}-nccl2.20.5-debian12-runtime"


def test_gpu_targets_stand_in_the_id_only_where_they_are_named(with_targets: Matrix) -> None:
    name = "rocm6.1-torch2.4.1-rccl2.18.6"
    plain = named(with_targets, name)
    assert (plain.id, plain.gpu_targets) == (name, ("gfx90a", "gfx942"))
    one = named(with_targets, f"{name}-gfx950")
    assert (one.id, one.gpu_targets) == (f"{name}-gfx950", ("gfx950",))
    assert one.pins_id == f"{name}-py3.11-gfx950"
    two = named(with_targets, "rocm6.1-gfx950-torch2.4.1-gfx90a")
    assert two.id == f"{name}-gfx90a-gfx950"


# ---------------------------------------------------------------- from an id to axis values


def test_what_an_id_leaves_out_has_its_default(small: Matrix) -> None:
    assert wanted_of(small, T24) == Wanted(
        line="cu121", torch="2.4.1", nccl=None, os="debian12", flavor="runtime"
    )


@given(data=st.data())
def test_the_parts_of_an_id_may_stand_in_any_order(data: st.DataObject, small: Matrix) -> None:
    parts = data.draw(
        st.permutations(["torch2.4.1", "nccl2.21.5", "ubuntu24.04", "devel", "torchvision", "mpi"])
    )
    wanted = Wanted(
        line="cu121", torch="2.4.1", nccl="2.21.5", os="ubuntu24.04", flavor="devel",
        extras=("mpi", "torchvision"),
    )  # fmt: skip
    assert wanted_of(small, "-".join(["cu121", *parts])) == wanted


def test_an_id_leads_back_to_its_cell(small: Matrix, with_targets: Matrix, real: Project) -> None:
    for matrix in (small, with_targets, real.matrix):
        for one in cells_of(matrix):
            assert named(matrix, one.id) == one


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is not a line"),
        ("cu122-torch2.4.1", "'cu122' is not a line; did you mean 'cu121'?"),
        ("xyz", "'xyz' is not a line"),
        ("torch2.4.1-cu121", "'torch2.4.1' is not a line"),
        ("cu121", "'cu121' names no torch; for example cu121-torch2.4.1"),
        ("cu121-slim", "'cu121-slim' names no torch; for example cu121-torch2.4.1"),
        (f"{T24}-slum", f"'slum' in '{T24}-slum' is no value of any axis; did you mean 'slim'?"),
        (f"{T24}-debian13", f"'debian13' in '{T24}-debian13' is no value of any axis; "
                            "did you mean 'debian12'?"),
        (f"{T24}--slim", f"'' in '{T24}--slim' is no value of any axis"),
        (f"{T24}-gfx942", f"'gfx942' in '{T24}-gfx942' is no value of any axis"),
        (f"{T24}-nccl", f"'nccl' in '{T24}-nccl' is no value of any axis"),
        (f"{T24}-nccl2.x", f"'nccl2.x' in '{T24}-nccl2.x' is no value of any axis"),
        ("cu121-torch2.4.1.zip", "'torch2.4.1.zip' in 'cu121-torch2.4.1.zip' is no value of any "
                                 "axis"),
        (f"{T24}-torch2.2.2", f"'torch2.2.2' in '{T24}-torch2.2.2' stands twice"),
        (f"{T24}-nccl2.20.5-nccl2.21.5", f"'nccl2.21.5' in '{T24}-nccl2.20.5-nccl2.21.5' "
                                         "stands twice"),
        (f"{T24}-slim-devel", f"'devel' in '{T24}-slim-devel' stands twice"),
        (f"{T24}-debian12-ubuntu24.04", f"'ubuntu24.04' in '{T24}-debian12-ubuntu24.04' "
                                        "stands twice"),
        ("rocm6.1-torch2.4.1-rccl2.20.5",
         "RCCL follows ROCm: rocm6.1 has 2.18.6, not 2.20.5"),
        (f"{T24}-rccl2.18.6", "RCCL follows ROCm: cu121 has no RCCL, not 2.18.6"),
        ("rocm6.0-torch2.4.1", "'rocm6.0' is not a line here: the matrix starts at 6.1"),
    ],
)  # fmt: skip
def test_what_is_no_cell_is_one_line(text: str, fault: str, small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        wanted_of(small, text)
    (said,) = caught.value.faults
    assert said.startswith(fault)
    assert "did you mean" in said or said == fault


def test_a_misspelt_gpu_target_is_told(with_targets: Matrix) -> None:
    with pytest.raises(WrongInput, match=r"'gfx951' .* did you mean 'gfx950'"):
        wanted_of(with_targets, "rocm6.1-torch2.4.1-gfx951")


@given(text=st.text(alphabet="cu121-torch.2nl4rocm6 gfx", max_size=30))
def test_any_text_is_axis_values_or_wrong_input(text: str, small: Matrix) -> None:
    try:
        said = [wanted_of(small, text).line]
    except WrongInput as error:
        said = list(error.faults)
    assert len(said) == 1


def test_ids_are_unique_and_so_is_what_they_lock(small: Matrix, real: Project) -> None:
    for matrix in (small, real.matrix):
        cells = cells_of(matrix)
        assert len({one.id for one in cells}) == len(cells)
        locked: dict[str, object] = {}
        for one in cells:
            added = additions(matrix, line=one.line, flavor=one.flavor, os=one.os)
            wheels = tuple(extra for extra in one.extras if matrix.extras[extra].wheel)
            same = replace(
                one, id="", os="", glibc="", flavor=str(added), extras=wheels, pins_id=""
            )
            assert locked.setdefault(one.pins_id, same) == same
