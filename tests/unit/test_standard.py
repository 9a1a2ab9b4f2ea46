"""standard.py: the cells that are built and published, and those on demand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpucomm.cell import base_image
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.rules import denials, platforms, possible
from gpucomm.schema import Matrix, When
from gpucomm.standard import (
    alias_rule,
    aliases_of,
    barren_rows,
    by_id,
    candidates,
    cells_of,
    on_demand,
    size_budget,
    wanted_by,
)

ParseMatrix = Callable[[str], Matrix]
T22, T24 = "cu121-torch2.2.2-nccl", "cu121-torch2.4.1-nccl"
ROCM = "rocm6.1-torch2.4.1-rccl2.18.6"
RCCL = '    rccl: "2.18.6"\n'
GFX = (
    "    gpu_targets: {package: rocm, version: 7.14.0, extras: [], wheels: [], "
    "device_wheel: rocm-sdk-device-, known: [gfx90a, gfx942, gfx950], default: [gfx90a, gfx942]}\n"
)
ROW = "  - {reason: every torch on every line}\n"


def ids(matrix: Matrix) -> list[str]:
    return [one.id for one in cells_of(matrix)]


def with_row(text: str, row: str) -> str:
    """The small matrix with one more row."""
    assert text.count(ROW) == 1
    return text.replace(ROW, f"{ROW}  - {{reason: this one more row, {row}}}\n")


# ---------------------------------------------------------------- the small matrix


def test_the_standard_cells_by_line_then_torch_then_row(small: Matrix) -> None:
    assert ids(small) == [
        f"{T22}2.19.3",
        f"{T22}2.21.5",
        f"{T22}2.19.3-slim",
        f"{T24}2.20.5",
        f"{T24}2.21.5",
        f"{T24}2.20.5-slim",
        f"{T24}2.20.5-torchvision",
        "cu130-torch2.13.0-nccl2.29.7",
        ROCM,
        "cpu-torch2.13.0",
    ]
    assert list(by_id(small)) == ids(small)
    assert cells_of(small) is cells_of(small)
    assert barren_rows(small) == []


def test_torch_is_ordered_by_version_not_by_text(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    row = '      "2.4.1": {nccl: '
    assert small_text.count(row) == 1
    text = small_text.replace(row, f'      "2.10.0": {{nccl: "2.21.5"}}\n{row}')
    text = text.replace("\ntorch:\n", '\ntorch:\n  "2.10.0": {python: ">=3.8", glibc: "2.17"}\n')
    torches = [one.torch for one in cells_of(parse_matrix(text)) if one.line == "cu121"]
    assert list(dict.fromkeys(torches)) == ["2.2.2", "2.4.1", "2.10.0"]


def test_a_row_leaves_out_what_cannot_exist(parse_matrix: ParseMatrix, small_text: str) -> None:
    # Ubuntu 24.04 has Python 3.12, which a rule forbids torch before 2.4 with a compiler.
    matrix = parse_matrix(with_row(small_text, "lines: [cu121], os: [ubuntu24.04]"))
    assert set(ids(matrix)) - {f"{T24}2.20.5-ubuntu24.04"} == set(by_id(parse_matrix(small_text)))
    # There is no torchvision for torch 2.13.0.
    matrix = parse_matrix(with_row(small_text, "extras: [[torchvision]]"))
    assert [name for name in ids(matrix) if name.endswith("-torchvision")] == [
        f"{T22}2.19.3-torchvision", f"{T24}2.20.5-torchvision", f"{ROCM}-torchvision",
    ]  # fmt: skip


def test_a_row_is_the_product_of_its_values(parse_matrix: ParseMatrix, small_text: str) -> None:
    row = "lines: [cpu], os: [debian12, ubuntu24.04], flavor: [slim, devel], extras: [[], [mpi]]"
    matrix = parse_matrix(with_row(small_text, row))
    assert [name for name in ids(matrix) if name.startswith("cpu-")] == [
        "cpu-torch2.13.0",
        "cpu-torch2.13.0-slim",
        "cpu-torch2.13.0-slim-mpi",
        "cpu-torch2.13.0-devel",
        "cpu-torch2.13.0-devel-mpi",
        "cpu-torch2.13.0-ubuntu24.04-slim",
        "cpu-torch2.13.0-ubuntu24.04-slim-mpi",
        "cpu-torch2.13.0-ubuntu24.04-devel",
        "cpu-torch2.13.0-ubuntu24.04-devel-mpi",
    ]


@pytest.mark.parametrize(
    ("row", "more"),
    [
        pytest.param('torch: "<2.4", flavor: [devel]', [f"{T22}2.19.3-devel"], id="torch"),
        pytest.param(
            'lines: ["cu*"], torch: ">=2.4", flavor: [devel]',
            [f"{T24}2.20.5-devel", "cu130-torch2.13.0-nccl2.29.7-devel"],
            id="glob",
        ),
        pytest.param(
            "lines: [cu121], only_alias: true, nccl: overrides, flavor: [slim]",
            [f"{T24}2.21.5-slim"],
            id="only-alias",
        ),
        pytest.param(
            "lines: [cpu], extras: [[mpi], [mpi, mpi]]", ["cpu-torch2.13.0-mpi"], id="mpi"
        ),
        pytest.param("lines: [cpu]", [], id="once"),
    ],
)
def test_what_one_more_row_gives(
    row: str, more: list[str], parse_matrix: ParseMatrix, small_text: str, small: Matrix
) -> None:
    found = ids(parse_matrix(with_row(small_text, row)))
    assert len(found) == len(set(found))
    assert [name for name in found if name not in by_id(small)] == more


def test_extras_stand_in_the_order_of_the_matrix(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    found = ids(parse_matrix(with_row(small_text, "lines: [cu121], extras: [[torchvision, mpi]]")))
    assert f"{T24}2.20.5-mpi-torchvision" in found


def test_gpu_targets_are_taken_only_where_a_line_has_them(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace(RCCL, RCCL + GFX)
    row = 'lines: ["*"], flavor: [slim], gpu_targets: [[gfx950], [gfx942, gfx90a]]'
    found = ids(parse_matrix(with_row(text, row)))
    assert set(found) - set(ids(parse_matrix(text))) == {
        f"{ROCM}-slim-gfx950", f"{ROCM}-slim-gfx90a-gfx942",
    }  # fmt: skip


def test_a_row_gives_each_combination_whether_it_can_exist_or_not(small: Matrix) -> None:
    everything, overrides, *_ = small.standard
    assert len(list(wanted_by(small, everything))) == 5
    assert [(one.torch, one.nccl) for one in wanted_by(small, overrides)] == [
        ("2.2.2", "2.21.5"), ("2.4.1", "2.21.5"),
    ]  # fmt: skip


def test_aliases_of_a_cell_in_the_order_of_the_matrix(small: Matrix) -> None:
    found = {one.id: aliases_of(small, one) for one in cells_of(small)}
    assert found.pop(f"{T24}2.20.5") == ("cu121", "latest")
    assert found.pop("cpu-torch2.13.0") == ("cpu",)
    assert found.pop("cu130-torch2.13.0-nccl2.29.7") == ("cu130",)
    assert found.pop(ROCM) == ("rocm6.1",)
    assert set(found.values()) == {()}


def test_the_alias_of_a_line_is_its_newest_torch_of_the_default_index(
    parse_matrix: ParseMatrix, small_text: str, small: Matrix
) -> None:
    assert alias_rule(small, "cu121") == "2.4.1"
    assert alias_rule(small, "rocm6.1") == "2.4.1"  # none is of the default index
    # Torch 2.4.1 of another default line: cu121's newest on the default index is 2.2.2.
    row = '"2.4.1":\n    python: ">=3.8,<3.13"\n    glibc: "2.17"\n    default: '
    assert small_text.count(f"{row}cu121") == 1
    text = small_text.replace(f"{row}cu121", f"{row}rocm6.1")
    text = text.replace("only_alias: true", "only_alias: false")
    assert alias_rule(parse_matrix(text), "cu121") == "2.2.2"


def test_the_cells_that_a_rule_could_be_about(small: Matrix) -> None:
    found = list(candidates(small, When(torch="<2.4", flavor=["slim"], extras=["mpi"])))
    assert {(one.torch, one.flavor, one.extras) for one in found} == {("2.2.2", "slim", ("mpi",))}
    assert {(one.os, one.nccl) for one in found} == {
        (os, nccl) for os in ("debian12", "ubuntu24.04") for nccl in ("2.19.3", "2.21.5")
    }
    newer = candidates(small, When(python=">=3.12", os=["ubuntu*"]))
    assert {one.os for one in newer} == {"ubuntu24.04"}
    assert list(candidates(small, When(python=">=3.12", os=["debian*"]))) == []


# ---------------------------------------------------------------- on demand


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cu121-torch2.4.1", f"{T24}2.20.5"),
        (f"{T24}2.20.5-runtime-debian12", f"{T24}2.20.5"),
        ("cu121-mpi-slim-nccl2.21.5-ubuntu24.04-torch2.4.1", f"{T24}2.21.5-ubuntu24.04-slim-mpi"),
        ("cu121-torchvision-torch2.4.1-mpi", f"{T24}2.20.5-mpi-torchvision"),
        ("cu121-ubuntu24.04-torch2.2.2-slim", f"{T22}2.19.3-ubuntu24.04-slim"),
        ("rocm6.1-torch2.4.1", ROCM),
        ("rocm6.1-rccl2.18.6-torch2.4.1-slim", f"{ROCM}-slim"),
        ("cpu-devel-torch2.13.0", "cpu-torch2.13.0-devel"),
    ],
)
def test_an_id_names_a_cell_in_any_order_of_its_parts(text: str, name: str, small: Matrix) -> None:
    one = on_demand(small, text)
    assert one.id == name
    assert on_demand(small, name) == one


def test_gpu_targets_on_demand(parse_matrix: ParseMatrix, small_text: str) -> None:
    matrix = parse_matrix(small_text.replace(RCCL, RCCL + GFX))
    assert on_demand(matrix, "rocm6.1-torch2.4.1").gpu_targets == ("gfx90a", "gfx942")
    one = on_demand(matrix, "rocm6.1-gfx950-gfx942-torch2.4.1-slim")
    assert one.gpu_targets == ("gfx942", "gfx950")
    assert one.id == f"{ROCM}-slim-gfx942-gfx950"
    with pytest.raises(WrongInput, match=r"'gfx951' in .* did you mean 'gfx950'"):
        on_demand(matrix, "rocm6.1-torch2.4.1-gfx951")
    with pytest.raises(WrongInput, match=r"'gfx950' in .* is no value of any axis"):
        on_demand(matrix, "cpu-torch2.13.0-gfx950")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("cu121-torch2.13.0", id="torch-of-another-line"),
        pytest.param("cu121-torch2.5.0", id="unknown-torch"),
        pytest.param(f"{T24}2.22.3", id="nccl-that-is-no-override"),
        pytest.param(f"{T24}2.18.1", id="older-nccl"),
        pytest.param(f"{T24}2.30.7", id="nccl-of-another-family"),
        pytest.param("rocm6.1-torch2.4.1-nccl2.21.5", id="nccl-on-rocm"),
        pytest.param("cpu-torch2.13.0-torchvision", id="no-extra-wheel"),
        pytest.param("cu121-torch2.2.2-ubuntu24.04", id="rule"),
    ],
)
def test_what_cannot_exist_says_where_to_ask_why(text: str, small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        on_demand(small, text)
    assert caught.value.faults == (f"{text} cannot exist; why: gpucomm why {text}",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{T24}2.20.5-torchvison", "did you mean 'torchvision'?"),
        (f"{T24}2.20.5-debian13", "did you mean 'debian12'?"),
        ("cu212-torch2.4.1", "did you mean 'cu121'?"),
        ("rocm6.1-torch2.4.1-rccl2.18.5", "RCCL follows ROCm: rocm6.1 has 2.18.6, not 2.18.5"),
        ("cpu-slim", "'cpu-slim' names no torch; for example cpu-torch2.13.0"),
    ],
)
def test_what_is_no_id_says_what_to_write(text: str, fault: str, small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        on_demand(small, text)
    (said,) = caught.value.faults
    assert said.endswith(fault)


def test_every_standard_cell_can_also_be_named(small: Matrix, real: Project) -> None:
    for matrix in (small, real.matrix):
        for one in cells_of(matrix):
            assert on_demand(matrix, one.id) == one


# ---------------------------------------------------------------- the committed matrix


def test_the_standard_set_is_small_enough_to_be_built(real: Project) -> None:
    assert 0 < len(cells_of(real.matrix)) < 256  # the jobs of one workflow's matrix


@pytest.mark.parametrize("axis", ["lines", "systems", "flavors", "extras", "torch"])
def test_the_standard_set_has_every_value_of_every_axis(axis: str, real: Project) -> None:
    found: dict[str, set[str]] = {
        "lines": {one.line for one in cells_of(real.matrix)},
        "systems": {one.os for one in cells_of(real.matrix)},
        "flavors": {one.flavor for one in cells_of(real.matrix)},
        "extras": {extra for one in cells_of(real.matrix) for extra in one.extras},
        "torch": {one.torch for one in cells_of(real.matrix)},
    }
    assert found[axis] == set(getattr(real.matrix, axis)), f"an image of each of {axis} is tested"


def test_the_standard_set_has_every_torch_of_every_line(real: Project) -> None:
    matrix = real.matrix
    pairs = {(one.line, one.torch) for one in cells_of(matrix)}
    assert pairs == {(name, torch) for name, line in matrix.lines.items() for torch in line.torch}


def test_the_standard_set_has_both_platforms(real: Project) -> None:
    matrix = real.matrix
    found = [platforms(matrix, one) for one in cells_of(matrix)]
    assert ("amd64", "arm64") in found
    assert ("amd64",) in found
    for name, line in matrix.lines.items():
        if line.cuda and line.cuda.startswith("13"):
            assert any(
                "arm64" in platforms(matrix, one) for one in cells_of(matrix) if one.line == name
            ), f"{name} has no cell for arm64"


def test_the_standard_set_has_an_nccl_override_of_every_family(real: Project) -> None:
    matrix = real.matrix
    cells = [one for one in cells_of(matrix) if one.nccl_overridden]
    overridden = {matrix.lines[one.line].nccl_family for one in cells}
    assert overridden == matrix.nccl_families.keys()


def test_every_override_of_the_matrix_can_be_had(real: Project) -> None:
    matrix = real.matrix
    for name, line in matrix.lines.items():
        for torch, row in line.torch.items():
            for nccl in row.overrides:
                one = on_demand(matrix, f"{name}-torch{torch}-nccl{nccl}")
                assert one.nccl_overridden
                assert one.nccl == nccl


def test_the_standard_set_has_gpu_targets_by_default_and_one_by_one(real: Project) -> None:
    matrix = real.matrix
    lines = {name: line.gpu_targets for name, line in matrix.lines.items() if line.gpu_targets}
    assert lines
    for name, targets in lines.items():
        found = {one.gpu_targets for one in cells_of(matrix) if one.line == name}
        assert tuple(targets.default) in found
        assert any(len(some) == 1 for some in found)
        for target in targets.known:
            torch = alias_rule(matrix, name)
            assert on_demand(matrix, f"{name}-torch{torch}-{target}").gpu_targets == (target,)


def test_every_vendors_image_is_stood_on(real: Project) -> None:
    matrix = real.matrix
    stood_on = {base_image(matrix, one) for one in cells_of(matrix)}
    for name, system in matrix.systems.items():
        assert system.image in stood_on, name
        for image in system.devel_image.values():
            before = image.split("{toolkit}")[0]
            assert any(base.startswith(before) for base in stood_on), (name, image)


def test_every_standard_cell_can_exist(real: Project) -> None:
    matrix = real.matrix
    for one in cells_of(matrix):
        assert possible(matrix, one)
        assert "amd64" in platforms(matrix, one)
        assert all(denial.arch == "arm64" for denial in denials(matrix, one))


def test_a_size_budget_is_that_of_the_torch_of_the_alias(small: Matrix) -> None:
    named = by_id(small)
    assert size_budget(small, named["cu121-torch2.4.1-nccl2.20.5"]) == 6400
    assert size_budget(small, named["cu121-torch2.4.1-nccl2.20.5-slim"]) == 5600
    assert size_budget(small, named["cu121-torch2.2.2-nccl2.19.3"]) is None
    assert size_budget(small, named["cu130-torch2.13.0-nccl2.29.7"]) is None
    aliases = {"latest": small.aliases["cu121"]}
    without = small.model_copy(update={"aliases": aliases})
    assert size_budget(without, named["cu121-torch2.4.1-nccl2.20.5"]) is None
