"""Which rank called a collective otherwise, from what each rank was seen to call. Pure."""

from collections.abc import Mapping

import pytest

from gpucomm_selftest.collectives import Check
from gpucomm_selftest.stages.correctness import Calls, judge_calls

CHECKS = [
    Check(collective="all_reduce", op="sum", dtype="fp32", count=7),
    Check(collective="broadcast", op="", dtype="bf16", count=5),
    Check(collective="send_recv_ring", op="", dtype="bf16", count=5),
    Check(collective="all_reduce", op="sum", dtype="complex64", count=7),
]
SUM = "allreduce float32[7]"
CAST = "broadcast bfloat16[5]"
RIGHT: dict[int, list[str]] = {
    0: [SUM],
    1: [CAST] * 3,
    2: ["send bfloat16[5]", "recv bfloat16[5]"],
    3: ["allreduce float32[14]"],
}


def said(calls: Mapping[int, Calls], ended: dict[int, int]) -> list[str]:
    """What is measured, where each rank has ended so many checks."""
    reports = {rank: [(n, "pass", "") for n in range(count)] for rank, count in ended.items()}
    return [finding.measured for finding in judge_calls(CHECKS, calls, reports)]


def test_equal_calls_are_no_finding() -> None:
    other = {**RIGHT, 2: RIGHT[2][::-1]}
    assert said({0: RIGHT, 1: other, 2: RIGHT}, {0: 4, 1: 4, 2: 4}) == []


def test_nothing_seen_is_no_finding() -> None:
    """A torch in which the calls cannot be seen."""
    assert said({0: {}, 1: {}}, {0: 4, 1: 4}) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", ["allreduce float16[7]", "allreduce float32[8]", "barrier"])
def test_of_two_ranks_the_one_that_left_the_plan_is_named(rank: int, call: str) -> None:
    calls = {0: dict(RIGHT), 1: dict(RIGHT)}
    calls[rank][0] = [call]
    expected = f"all_reduce sum fp32 n=7: rank {rank} called {call}; rank {1 - rank} called {SUM}"
    assert said(calls, {0: 4, 1: 4}) == [expected]


def test_a_rank_that_is_still_in_a_check_is_compared_by_what_it_has_called() -> None:
    calls = {0: dict(RIGHT), 1: {0: [SUM], 1: [CAST]}}
    assert said(calls, {0: 4, 1: 1}) == []
    calls[1][1] = ["broadcast float32[5]"]
    assert said(calls, {0: 4, 1: 1}) == [
        f"broadcast bf16 n=5: rank 1 called broadcast float32[5]; rank 0 called {CAST}; {CAST}; "
        f"{CAST}"
    ]


def test_a_rank_that_has_not_come_to_a_check_is_not_held_against_it() -> None:
    assert said({0: RIGHT, 1: {0: [SUM]}}, {0: 1, 1: 1}) == []


@pytest.mark.parametrize("number", range(4))
def test_a_rank_that_called_nothing_is_named(number: int) -> None:
    calls = {rank: dict(RIGHT) for rank in range(3)}
    del calls[2][number]
    # The others wait in it, or have come out of it.
    for ended in (number, 4):
        (measured,) = said(calls, {0: ended, 1: ended, 2: 4})
        assert measured.startswith(
            f"{CHECKS[number].label}: rank 2 called nothing; ranks 0,1 called"
        )


def test_the_first_difference_is_the_cause() -> None:
    calls = {0: dict(RIGHT), 1: {**RIGHT, 1: ["broadcast float32[5]"], 3: ["barrier"]}}
    (measured,) = said(calls, {0: 4, 1: 4})
    assert measured.startswith("broadcast bf16 n=5: rank 1")
