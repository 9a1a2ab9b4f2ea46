"""selector.py: what TARGET= names, and what is said when it names nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm.errors import WrongInput
from gpucomm.schema import Matrix
from gpucomm.selector import expand_braces, select, select_one
from gpucomm.standard import cells_of

T22, T24 = "cu121-torch2.2.2-nccl", "cu121-torch2.4.1-nccl"
CPU = "cpu-torch2.13.0"
ROCM = "rocm6.1-torch2.4.1-rccl2.18.6"


def ids(matrix: Matrix, selector: str) -> list[str]:
    return [cell.id for cell in select(matrix, selector)]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("cu121", [f"{T24}2.20.5"]),
        ("latest", [f"{T24}2.20.5"]),
        ("cpu", [CPU]),
        (f"{T22}2.19.3-slim", [f"{T22}2.19.3-slim"]),
        ("*nccl2.21.5", [f"{T22}2.21.5", f"{T24}2.21.5"]),
        ("cu121-torch2.?.1-*-slim", [f"{T24}2.20.5-slim"]),
        ("cu121-torch2.4.[0-9]-nccl2.20.5", [f"{T24}2.20.5"]),
        ("{cpu,cu124}-*", [CPU]),
        ("*-torch2.4.1-?ccl2.18.6", [ROCM]),
        ("*-torch2.{2.2,4.1}-nccl2.{19,20}.?", [f"{T22}2.19.3", f"{T24}2.20.5"]),
        (f"{T24}2.20.5{{,-slim}}", [f"{T24}2.20.5", f"{T24}2.20.5-slim"]),
        (f"cpu,{T22}2.19.3", [f"{T22}2.19.3", CPU]),
        (f" cpu , {T22}2.19.3 ", [f"{T22}2.19.3", CPU]),
        ("cpu,cpu,cpu-*", [CPU]),
        ("{cpu,xpu}-*,latest", [f"{T24}2.20.5", CPU]),
        # another order of the parts, or a default that is written out
        (
            f"cu121-slim-torch2.2.2,{T24}2.20.5-runtime-debian12",
            [f"{T22}2.19.3-slim", f"{T24}2.20.5"],
        ),
        # cells on demand come last, in the order of the request
        (f"{CPU}-mpi,{CPU}-slim,cpu", [CPU, f"{CPU}-mpi", f"{CPU}-slim"]),
        (f"cpu-mpi-torch2.13.0,{CPU}-mpi", [f"{CPU}-mpi"]),
    ],
)
def test_selectors(selector: str, expected: list[str], small: Matrix) -> None:
    assert ids(small, selector) == expected


def test_all_is_every_standard_cell(small: Matrix) -> None:
    assert select(small, "all") == cells_of(small)
    assert ids(small, "*") == ids(small, "all")
    assert ids(small, "cpu,all") == ids(small, "all")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,b}{c,d}", ["ac", "bc", "ad", "bd"]),
        ("x{a,{b,c}}", ["xa", "xb", "xc"]),
        ("{a,{b,{c,d}}}", ["a", "b", "c", "d"]),
        ("a{,b}", ["a", "ab"]),
        ("a{b}", ["ab"]),
        ("a{b", ["a{b"]),
        ("a}b", ["a}b"]),
    ],
)
def test_braces(pattern: str, expected: list[str]) -> None:
    assert sorted(set(expand_braces(pattern))) == sorted(expected)


def test_nested_braces_select(small: Matrix) -> None:
    assert ids(small, "cu121-torch2.{2.2,{4.1,5.0}}-nccl2.21.5") == [
        f"{T22}2.21.5",
        f"{T24}2.21.5",
    ]


@pytest.mark.parametrize("selector", ["", " ", ",", "cpu,", ",cpu", "cpu,,cu121"])
def test_an_empty_part_is_wrong_input(selector: str, small: Matrix) -> None:
    with pytest.raises(WrongInput, match="has an empty part") as caught:
        select(small, selector)
    assert caught.value.exit_code == 2


def test_an_unknown_target_names_the_nearest(small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        select(small, "cu121-torch2.4.1-nccl2.20.6*")
    (fault,) = caught.value.faults
    assert "TARGET 'cu121-torch2.4.1-nccl2.20.6*' names no cell" in fault
    assert "cu121-torch2.4.1-nccl2.20.5" in fault.split("nearest:")[1]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (f"{T24}2.20.6", f"{T24}2.20.6 cannot exist; why: gpucomm why {T24}2.20.6"),
        ("cu121-torch2.13.0", "cu121-torch2.13.0 cannot exist; why: gpucomm why cu121-torch2.13.0"),
        (f"{CPU}-slum", f"'slum' in '{CPU}-slum' is no value of any axis; did you mean 'slim'?"),
        ("cpx-torch2.13.0", "'cpx' is not a line; did you mean 'cpu'?"),
        ("cpu-torch", "'torch' in 'cpu-torch' is no value of any axis"),
        ("rocm6.0-torch2.4.1", "'rocm6.0' is not a line here: the matrix starts at 6.1"),
    ],
)
def test_an_id_that_cannot_be_is_one_line(target: str, fault: str, small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        select(small, target)
    (said,) = caught.value.faults
    assert said.startswith(fault)


def test_a_misspelt_alias_names_the_alias(small: Matrix) -> None:
    with pytest.raises(WrongInput, match="nearest: latest"):
        select(small, "lastest")


def test_a_target_like_nothing_lists_the_aliases(small: Matrix) -> None:
    with pytest.raises(WrongInput, match=r"try one of: cu121, cpu, cu130, rocm6\.1, latest \("):
        select(small, "zzzzzzzzzzzzzzzzzzzzzzzz")


def test_every_unknown_part_is_named_at_once(small: Matrix) -> None:
    with pytest.raises(WrongInput) as caught:
        select(small, "one,cpu,tw{o,p},cpu-torch1,xpu*")
    assert [fault.split(" names")[0].split(" cannot")[0] for fault in caught.value.faults] == [
        "TARGET 'one'", "TARGET 'tw{o,p}'", "cpu-torch1", "TARGET 'xpu*'",
    ]  # fmt: skip


def test_select_one(small: Matrix) -> None:
    assert select_one(small, "cpu").id == CPU
    with pytest.raises(WrongInput) as caught:
        select_one(small, "*-slim")
    (fault,) = caught.value.faults
    assert "names 2 cells" in fault
    assert f"{T22}2.19.3-slim, {T24}2.20.5-slim" in fault
    assert select_one(small, f"{CPU}-mpi-slim").id == f"{CPU}-slim-mpi"
    with pytest.raises(WrongInput, match="names no cell"):
        select_one(small, "nothing")


@given(data=st.data())
def test_select_keeps_the_order_of_the_matrix_and_gives_each_once(
    data: st.DataObject, small: Matrix
) -> None:
    every = ids(small, "all")
    parts = data.draw(
        st.lists(
            st.sampled_from([*every, *small.aliases, "all", "*slim", "c*", "cu121-torch2.{2,4}*"]),
            min_size=1,
            max_size=6,
        )
    )
    chosen = ids(small, ",".join(parts))
    assert chosen == [name for name in every if name in set(chosen)]
    wanted = {name for part in parts for name in ids(small, part)}
    assert set(chosen) == wanted


@given(selector=st.text(alphabet="cu12{},*?[]-. atorhp", max_size=20))
def test_any_text_selects_or_is_wrong_input(selector: str, small: Matrix) -> None:
    try:
        said = [cell.id for cell in select(small, selector)]
    except WrongInput as error:
        said = [fault for fault in error.faults if fault.isprintable()]
    assert said
