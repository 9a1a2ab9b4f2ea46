"""why.py: every reason with its source, and what is near."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import gpus, rules, why
from gpucomm.cell import Wanted, cell
from gpucomm.errors import WrongInput
from gpucomm.facts import source_of
from gpucomm.project import Project
from gpucomm.schema import Matrix
from gpucomm.selector import select
from gpucomm.standard import cells_of

T24 = "cu121-torch2.4.1-nccl2.20.5"


def one(matrix: Matrix, selector: str, gpu: str | None = None) -> why.Answer:
    asked = gpus.parse(matrix, gpu) if gpu else None
    (answer,) = why.answers(matrix, selector, asked)
    return answer


# ---------------------------------------------------------------- cells that cannot exist
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("cu121-torch2.7.1", ["wheel"]),
        ("cu121-torch2.4.0", ["wheel"]),
        ("cu118-torch2.8.0-nccl2.27.3", ["wheel", "nccl-family"]),
        ("cu132-torch2.4.1-ubuntu24.04-devel", ["wheel"]),
        ("cu121-torch2.7.1-ubuntu24.04-devel", ["wheel", "devel-cuda-noble"]),
        ("cu118-torch2.1.2-debian13", ["python", "compile-python312"]),
        ("cu121-torch2.1.2-debian13-slim", ["python"]),
        ("cu121-torch2.2.2-ubuntu24.04", ["compile-python312"]),
        ("cu121-torch2.4.1-nccl2.18.1", ["nccl-named", "nccl-floor"]),
        ("cu121-torch2.4.1-nccl2.22.3", ["nccl-named"]),
        ("cu121-torch2.4.1-nccl2.14.3", ["nccl-family", "nccl-floor"]),
        ("cu118-torch2.1.2-nccl2.18.3", ["nccl-named", "nccl-floor"]),
        ("rocm6.4-torch2.9.1-nccl2.21.5", ["nccl-named"]),
        ("cpu-torch2.15.0-nccl2.30.7", ["nccl-named"]),
        ("rocm6.4-torch2.9.1-rccl2.26.6", ["rccl"]),
        ("cu121-torch2.4.1-rccl2.18.3", ["rccl"]),
        ("rocm6.4-torch2.9.1-devel", ["devel-rocm-debian"]),
        ("rocm7.1-torch2.13.0-ubuntu22.04-devel", ["devel-rocm-no-image"]),
        ("rocm7.2-torch2.14.1-ubuntu24.04-devel", ["devel-rocm-noble"]),
        ("cu124-torch2.6.0-ubuntu24.04-devel", ["devel-cuda-noble"]),
        ("rocm5.6-torch2.2.2", ["left-out"]),
        ("rocm5.6-torch2.9.1", ["wheel", "left-out", "left-out"]),
        ("rocm5.5", ["left-out"]),
    ],
)
def test_every_reason_has_its_fact_and_source(name: str, names: list[str], real: Project) -> None:
    matrix = real.matrix
    answer = one(matrix, name)
    assert answer.cell is None
    assert [denial.rule for denial in answer.denials] == names
    assert answer.lines[0] == f"{name} cannot exist"
    text = "\n".join(answer.lines)
    for denial in answer.denials:
        assert f"  {denial.rule}: {denial.fact}" in answer.lines
        assert f"    reason: {denial.reason}" in answer.lines
        assert f"    source: {source_of(matrix, denial.source)}" in answer.lines
        source = matrix.sources[denial.source]
        assert source.read in text
        assert source.url is None or source.url in text
    assert answer.near


def test_torch_2_7_1_on_cu121(real: Project) -> None:
    lines = one(real.matrix, "cu121-torch2.7.1").lines
    assert lines[1] == (
        "  wheel: torch 2.7.1 is published for cu118, cu126, cu128, rocm6.2.4, rocm6.3, cpu, "
        "not for cu121"
    )
    assert lines[3].endswith("generate_binary_build_matrix.py")
    near = [line.split()[0] for line in lines[5:]]
    assert near[0] == "cu121-torch2.5.1-nccl2.21.5"
    assert {name.split("-")[0] for name in near[1:]} == {
        "cu118", "cu126", "cu128", "rocm6.2.4", "rocm6.3", "cpu"
    }  # fmt: skip


def test_what_is_near_can_exist_and_differs_as_it_says(real: Project) -> None:
    answer = one(real.matrix, "cu118-torch2.1.2-debian13-slim")
    notes = {near.cell.id: near.note for near in answer.near}
    assert notes["cu118-torch2.1.2-slim"] == "differs in: debian12"
    assert notes["cu118-torch2.7.1-nccl2.21.5-debian13-slim"] == "differs in: torch 2.7.1"
    assert notes["cu121-torch2.1.2-nccl2.18.1"] == "differs in: cu121, debian12, runtime"
    for near in answer.near:
        assert rules.possible(real.matrix, near.cell)


def test_the_nearest_torch_of_one_that_nobody_lists(small: Matrix) -> None:
    answer = one(small, "cu121-torch2.4.0")
    assert "is not in the matrix" in answer.denials[0].fact
    assert [near.cell.id for near in answer.near] == [T24]


def test_a_wrong_rccl_alone_points_at_the_right_one(small: Matrix) -> None:
    answer = one(small, "rocm6.1-torch2.4.1-rccl2.20.5")
    assert answer.denials[0].fact == "rocm6.1 has 2.18.6, not 2.20.5"
    assert answer.near[0].cell.id == "rocm6.1-torch2.4.1-rccl2.18.6"
    assert answer.near[0].note == "RCCL 2.18.6"


def test_a_cell_without_any_platform_names_the_rules_of_all(small: Matrix) -> None:
    rule = small.rules["arm64-elsewhere"]
    when = rule.when.model_copy(update={"arch": ["amd64", "arm64"]})
    nowhere = small.model_copy(
        update={"rules": {"nowhere": rule.model_copy(update={"when": when})}}
    )
    nowhere._memo = {}
    answer = one(nowhere, "cpu-torch2.13.0-mpi")
    assert [denial.arch for denial in answer.denials] == ["amd64", "arm64"]


def test_a_glob_without_a_standard_cell_names_lines_and_torches(small: Matrix) -> None:
    answers = why.answers(small, "cu1{21,30}-torch2.{4.1,13.0},rocm6.0-*")
    assert {answer.name: answer.cell is not None for answer in answers} == {
        T24: True,
        "cu121-torch2.13.0": False,
        "cu130-torch2.4.1": False,
        "cu130-torch2.13.0-nccl2.29.7": True,
        "rocm6.0-torch2.2.2": False,
        "rocm6.0-torch2.4.1": False,
        "rocm6.0-torch2.13.0": False,
    }
    assert all(answer.denials for answer in answers if answer.cell is None)


# ---------------------------------------------------------------- nonsense
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cu12", "nearest: cu121"),
        ("cu122-torch2.4.1", "'cu122' is not a line; did you mean 'cu121'?"),
        ("cu121-torch2.4.1-slmi", "'slmi' in 'cu121-torch2.4.1-slmi' is no value of any axis"),
        ("cu121-torch2.4.1-slmi", "did you mean 'slim'?"),
        ("rocm6.0-torch2.4.1-slmi", "did you mean 'slim'?"),
        ("cu121-torch2.4.1-slim-devel", "stands twice"),
        ("cu999-*", "names no cell"),
        ("", "empty part"),
    ],
)
def test_nonsense_is_wrong_input_with_the_nearest(name: str, said: str, small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        why.answers(small, name)
    assert said in str(caught.value)


def test_every_part_that_is_nonsense_is_named(small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        why.answers(small, "one,cu121,cu121-torch2.13.0,two-torch1")
    assert len(caught.value.faults) == 2


@given(text=st.text(alphabet="cu12-rocm6.01torchnl{},*?[]gfx", max_size=24))
def test_any_text_is_answered_or_wrong_input(text: str, small: Matrix) -> None:
    try:
        said = [line for answer in why.answers(small, text) for line in answer.lines]
    except WrongInput as error:
        said = list(error.faults)
    assert all(said)
    assert said


# ---------------------------------------------------------------- cells that exist
def test_an_existing_cell_says_where_its_values_come_from(small: Matrix) -> None:
    answer = one(small, "cu121-torch2.2.2")
    assert answer.cell is not None
    assert answer.name == "cu121-torch2.2.2-nccl2.19.3"
    text = "\n".join(answer.lines)
    assert answer.lines[0] == f"{answer.name}: a standard cell (every torch on every line)"
    assert "lines.cu121.torch.2.2.2.nccl: what the wheel requires" in text
    assert "systems.debian12.python: the distribution decides it" in text
    assert "  platforms: amd64" in answer.lines
    assert "  not on arm64, arm64-early: cu121, torch 2.2.2 on arm64" in answer.lines
    assert "  driver: 525.60.13 or newer; its toolkit's own is 530.30.02" in answer.lines
    assert "  GPUs, amd64: 7.0 9.0" in answer.lines
    assert "  known fault, slow-start: cu121, torch 2.2.2" in answer.lines
    assert "    reason: its first collective is slow" in answer.lines


def test_a_cell_on_demand_says_so(small: Matrix) -> None:
    assert "on demand" in one(small, f"{T24}-mpi").lines[0]


def test_the_gpu_of_an_existing_cell(small: Matrix) -> None:
    assert one(small, "cu121").gpu_ok is None
    yes = one(small, "cu121", "8.6")
    assert yes.gpu_ok is False
    good = one(small, "cu121", "sm_90")
    assert good.gpu_ok is True
    assert "  GPU 9.0 on amd64: yes, it has code for 9.0" in good.lines
    bad = one(small, "cu130", "7.0")
    assert bad.gpu_ok is False
    assert "  lines that run on 7.0:" in bad.lines
    assert any(line.split()[:2] == ["cu121", "torch"] for line in bad.lines)


def test_ptx_names_the_driver_that_compiles_it(real: Project) -> None:
    lines = one(real.matrix, "cu129", "13.0").lines
    driver = real.matrix.lines["cu129"].driver
    assert driver is not None
    assert f"    the driver compiles PTX from {driver.toolkit} on" in lines


def test_a_gpu_that_no_line_runs_on_names_those_that_there_are(small: Matrix) -> None:
    assert list(why.lines_for(small, gpus.parse(small, "13.0"))) == [
        "no line runs on 13.0; there is 7.0, 9.0, 7.5, gfx90a, gfx942"
    ]


def test_every_standard_cell_is_answered(real: Project) -> None:
    answers = why.answers(real.matrix, "all")
    assert [answer.cell for answer in answers] == list(cells_of(real.matrix))


@given(data=st.data())
def test_what_select_takes_exists_and_what_it_refuses_has_a_reason(
    data: st.DataObject, small: Matrix
) -> None:
    wanted = Wanted(
        line=data.draw(st.sampled_from(list(small.lines))),
        torch=data.draw(st.sampled_from(list(small.torch))),
        nccl=data.draw(st.sampled_from([None, "2.20.5", "2.21.5", "2.29.7", "2.30.7"])),
        os=data.draw(st.sampled_from(list(small.systems))),
        flavor=data.draw(st.sampled_from(list(small.flavors))),
        extras=data.draw(st.sampled_from([(), ("mpi",), ("torchvision",), ("mpi", "torchvision")])),
    )
    parts = [wanted.line, f"torch{wanted.torch}", wanted.os, wanted.flavor, *wanted.extras]
    parts += [f"nccl{wanted.nccl}"] if wanted.nccl else []
    name = "-".join(parts)
    answer = one(small, name)
    try:
        (found,) = select(small, name)
    except WrongInput:
        assert answer.cell is None
        assert answer.denials
        if wanted.torch in small.lines[wanted.line].torch:
            assert not rules.possible(small, cell(small, wanted))
        assert all(rules.possible(small, near.cell) for near in answer.near)
    else:
        assert answer.cell == found
