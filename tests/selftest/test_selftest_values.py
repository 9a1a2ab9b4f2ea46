"""The numbers on the wire, checked against arithmetic that shares no code with the product."""

import itertools
import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucomm_selftest.collectives import COLLECTIVES, DTYPES, Check, plan
from gpucomm_selftest.values import EXACT_BITS, contributed, copied, reduced

WORLDS = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 64, 300])
INDEXES = st.integers(0, 2**26)
DTYPE = st.sampled_from(DTYPES)

ORACLES: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "prod": math.prod,
    "min": min,
    "max": max,
}


def survives(value: int, dtype: str) -> bool:
    """Whether a value is the same after a trip through the dtype, by the bits of IEEE 754."""
    if dtype == "int64":
        return -(2**63) <= value < 2**63
    if dtype == "fp16":
        return bool(struct.unpack("<e", struct.pack("<e", value))[0] == value)
    single = struct.pack("<f", value)
    if dtype == "bf16":
        return single[:2] == b"\0\0" and struct.unpack("<f", single)[0] == value
    return bool(struct.unpack("<f", single)[0] == value)


@given(INDEXES, DTYPE, st.integers(0, 4000))
def test_copied_values_are_exact(index: int, dtype: str, lane: int) -> None:
    assert survives(copied(index, "all_gather", dtype, lane), dtype)


@given(INDEXES, DTYPE, WORLDS, st.sampled_from(sorted(ORACLES)))
@settings(max_examples=60)
def test_reductions_agree_and_every_partial_result_is_exact(
    index: int, dtype: str, world: int, op: str
) -> None:
    parts = [contributed(index, "all_reduce", op, dtype, rank, world) for rank in range(world)]
    assert reduced(index, "all_reduce", op, dtype, world) == ORACLES[op](parts)
    # Any order: no subset of the positive or of the negative parts may leave the exact range.
    if op == "sum":
        assert survives(sum(part for part in parts if part > 0), dtype)
        assert survives(sum(part for part in parts if part < 0), dtype)
        assert sum(abs(part) for part in parts) <= 2 ** EXACT_BITS[dtype]
    elif op == "prod":
        assert survives(math.prod(abs(part) for part in parts), dtype)
    else:
        assert all(survives(part, dtype) for part in parts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_differ_at_every_index(dtype: str) -> None:
    for index in (0, 1, 1020, 65535):
        lanes = [copied(index, "all_gather", dtype, lane) for lane in range(256)]
        assert len(set(lanes)) == 256


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [1, 2, 4, 251, 256, 512, 1024, 4096, 65536])
def test_a_shifted_chunk_does_not_look_right(dtype: str, shift: int) -> None:
    same = sum(
        copied(index, "all_gather", dtype, 1) == copied(index + shift, "all_gather", dtype, 1)
        for index in range(4096)
    )
    assert same < 40  # chance alone gives 8 of 4096 with the 513 values of bf16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", [2, 4, 8, 300])
def test_a_missing_or_doubled_rank_shows_in_a_sum(dtype: str, world: int) -> None:
    for rank in (0, world - 1):
        parts = [contributed(i, "all_reduce", "sum", dtype, rank, world) for i in range(1021)]
        assert sum(part != 0 for part in parts) > 100


def test_int64_does_not_survive_a_double() -> None:
    """A path that moves integers as floating point must show."""
    lost = [
        value
        for index in range(100)
        if int(float(value := copied(index, "all_gather", "int64", 0))) != value
    ]
    assert len(lost) > 90


def simulate(check: Check, world: int) -> list[list[list[int]]]:
    """What every rank must hold, by the definition of the collective: [rank][block][index]."""
    collective = COLLECTIVES[check.collective]
    ranks = range(world)
    sent = [
        [
            [collective.sent(check, world, rank, block, i) for i in range(check.count)]
            for block in range(collective.blocks_in(world))
        ]
        for rank in ranks
    ]
    name = check.collective.removesuffix("_tensor")
    if name == "all_reduce":
        combine = ORACLES[check.op]
        total = [combine(list(column)) for column in zip(*(sent[r][0] for r in ranks), strict=True)]
        return [[total] for _ in ranks]
    if name == "reduce_scatter":
        return [
            [[sum(column) for column in zip(*(sent[r][to] for r in ranks), strict=True)]]
            for to in ranks
        ]
    if name == "all_gather":
        return [[sent[r][0] for r in ranks] for _ in ranks]
    if name == "broadcast":
        return [[sent[root][root] for root in ranks] for _ in ranks]
    assert name in ("all_to_all", "send_recv")
    return [[sent[sender][to] for sender in ranks] for to in ranks]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("count", [1, 7])
def test_expected_outputs_follow_the_definitions(world: int, count: int) -> None:
    for check in plan(world, (count,)):
        collective = COLLECTIVES[check.collective]
        expected = [
            [
                [collective.expected(check, world, rank, block, i) for i in range(count)]
                for block in range(collective.blocks_out(world))
            ]
            for rank in range(world)
        ]
        assert expected == simulate(check, world), check.label


def test_swapped_ranks_show_with_one_element() -> None:
    for check in plan(4, (1,)):
        collective = COLLECTIVES[check.collective]
        if collective.spread_out:
            for one, other in itertools.combinations(range(4), 2):
                left = collective.expected(check, 4, 0, one, 0)
                assert left != collective.expected(check, 4, 0, other, 0), check.label


def test_the_plan_has_each_check_once_and_no_pairs_without_a_pair() -> None:
    checks = plan(2, (1, 1021))
    assert len({check.label for check in checks}) == len(checks) == 12 * 4 * 2
    assert {check.collective for check in plan(1, (1,))} == set(COLLECTIVES) - {"send_recv"}
