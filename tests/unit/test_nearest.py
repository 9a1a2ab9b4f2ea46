"""nearest.py: a misspelt name is answered with the one that was meant, or with nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm.nearest import nearest

KEYS = ("release", "python", "image", "base", "nccl_wheel", "os")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("relase", "release"),
        ("pyhton", "python"),
        ("nccl-wheel", "nccl_wheel"),
        ("PYTHON", "python"),
        ("OS", "os"),
        ("images", "image"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(word: str, meant: str) -> None:
    assert nearest(word, KEYS) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("word", ["", "zzz", "flavor", "r" * 100_000])
def test_a_name_like_no_other_is_answered_with_nothing(word: str) -> None:
    assert nearest(word, KEYS) == ""


def test_no_name_is_known() -> None:
    assert nearest("release", ()) == ""


def test_a_name_is_not_answered_with_itself() -> None:
    assert nearest("cpu", ["cpu"]) == ""
    assert nearest("cpu", iter(["cpu", "cpux"])) == "; did you mean 'cpux'?"


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=6))
def test_the_answer_is_a_known_name_whatever_their_order(word: str, known: list[str]) -> None:
    answer = nearest(word, known)
    assert answer in {"", *(f"; did you mean {name!r}?" for name in known if name != word)}
    assert nearest(word, reversed(known)) == answer
