"""The stage pairs: every pair has its round, and a bad one is named by both ends."""

import pytest

from gpucomm_selftest.stages.pairs import distances, judge, two_by_two


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_directed_pair_has_one_round(world: int) -> None:
    sent = [(rank, (rank + d) % world) for d in distances(world) for rank in range(world)]
    assert len(sent) == len(set(sent)) == world * (world - 1)
    assert all(one != other for one, other in sent)
    assert {frozenset(pair) for pair in sent} == {frozenset(pair) for pair in two_by_two(world)}


def wrong(kind: str, sender: int, receiver: int) -> dict[str, object]:
    return {"kind": kind, "sender": sender, "receiver": receiver, "said": f"{sender} is wrong"}


def test_no_wrong_pair_passes() -> None:
    (finding,) = judge([], 4)
    assert (finding.id, finding.measured) == ("GC0307", "12 directed pairs")


def test_a_wrong_pair_is_named_once_however_often_it_is_wrong() -> None:
    (finding,) = judge([wrong("sent", 2, 5), wrong("sent", 2, 5)], 8)
    assert (finding.id, finding.measured) == ("GC0308", "rank 2 to rank 5: 2 is wrong")


def test_a_pair_that_only_reduces_wrongly_is_another_finding() -> None:
    (finding,) = judge([wrong("reduced", 0, 1)], 2)
    assert finding.id == "GC0310"


def test_many_pairs_are_not_all_listed() -> None:
    (finding,) = judge([wrong("sent", 0, to) for to in range(1, 8)], 8)
    assert finding.measured.count("is wrong") == 4
    assert finding.measured.endswith("; and 3 more")
