"""The numbers on the wire, checked against arithmetic that shares no code with the product."""

import functools
import itertools
import math
import operator
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucomm_selftest.collectives import COLLECTIVES, OBJECTS, Check, expected_objects
from gpucomm_selftest.plan import DEEP, DTYPES, QUICK, STANDARD, Setting, plan, reductions
from gpucomm_selftest.values import (
    LIMITS,
    UNSIGNED,
    averages_exactly,
    contributed,
    copied,
    reduced,
    specials_expected,
    specials_sent,
)

WORLDS = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 64, 300])
INDEXES = st.integers(0, 2**26)
DTYPE = st.sampled_from(DTYPES)

ORACLES: dict[str, Callable[[Sequence[int]], int | Fraction]] = {
    "sum": sum,
    "prod": math.prod,
    "min": min,
    "max": max,
    "avg": lambda parts: Fraction(sum(parts), len(parts)),
    "premul_sum": lambda parts: sum(2 * part for part in parts),
    "band": lambda parts: functools.reduce(operator.and_, parts),
    "bor": lambda parts: functools.reduce(operator.or_, parts),
    "bxor": lambda parts: functools.reduce(operator.xor, parts),
}

# Bits of the significand, with the one that is not stored, and the largest exponent.
FLOATS = {
    "fp32": (24, 127),
    "fp16": (11, 15),
    "bf16": (8, 127),
    "fp64": (53, 1023),
    "fp8_e4m3": (4, 8),
    "fp8_e5m2": (3, 15),
    "complex64": (24, 127),
}
INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "bool": (0, 1),
}


def survives(value: int, dtype: str) -> bool:
    """Whether an integer is the same after a trip through the dtype."""
    if dtype in INTEGERS:
        low, high = INTEGERS[dtype]
        return low <= value <= high
    bits, exponent = FLOATS[dtype]
    if value == 0:
        return True
    odd = abs(value) // (abs(value) & -abs(value))
    # Fp8 e4m3 gives its largest significand to NaN: 448 is the largest number, not 480.
    return (
        odd < 2**bits
        and abs(value).bit_length() - 1 <= exponent
        and (dtype != "fp8_e4m3" or abs(value) <= 448)
    )


@pytest.mark.parametrize(("code", "dtype"), [("e", "fp16"), ("f", "fp32"), ("d", "fp64")])
@given(value=st.integers(-(2**17), 2**17) | st.integers(-(2**60), 2**60))
def test_the_oracle_of_exactness_agrees_with_ieee_754(code: str, dtype: str, value: int) -> None:
    try:
        (through,) = struct.unpack(code, struct.pack(code, value))
    except (OverflowError, struct.error):
        through = None
    assert survives(value, dtype) == (through == value)


def settings_of(budget: str, world: int = 2) -> list[Setting]:
    return [
        Setting(world=world, backend="gloo", budget=budget),
        Setting(world=world, backend="nccl", gpu=True, budget=budget),
        Setting(world=world, backend="nccl", gpu=True, shared=True, budget=budget),
    ]


@given(INDEXES, DTYPE, st.integers(0, 4000))
def test_copied_values_are_exact(index: int, dtype: str, lane: int) -> None:
    value = copied(index, "all_gather", dtype, lane)
    assert survives(value, dtype)
    assert dtype in UNSIGNED or abs(value) <= LIMITS[dtype]


@pytest.mark.parametrize("op", sorted(ORACLES))
@given(INDEXES, DTYPE, WORLDS)
@settings(max_examples=60)
def test_reductions_agree_and_every_partial_result_is_exact(
    op: str, index: int, dtype: str, world: int
) -> None:
    setting = Setting(world=world, backend="nccl", gpu=True)
    gloo = Setting(world=world, backend="gloo")
    if op not in [*reductions(dtype, setting), *reductions(dtype, gloo)]:
        return
    parts = [contributed(index, "all_reduce", op, dtype, rank, world) for rank in range(world)]
    result = reduced(index, "all_reduce", op, dtype, world)
    assert result == ORACLES[op](parts)
    assert all(survives(part, dtype) for part in [*parts, result])
    # Any order: no subset of the positive or of the negative parts may leave the exact range.
    if op in ("sum", "avg", "premul_sum"):
        weight = 2 if op == "premul_sum" else 1
        for sign in (1, -1):
            assert survives(sum(weight * part for part in parts if part * sign > 0), dtype)
    if op == "avg":
        # Also where each part is divided before it is added.
        assert all(part % world == 0 for part in parts)
    if op == "prod":
        assert survives(math.prod(abs(part) for part in parts), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_part_of_the_ranks_stays_exact_and_shows_who_is_missing(dtype: str) -> None:
    members = (0, 2, 4)
    for index in range(200):
        parts = [contributed(index, "x", "sum", dtype, rank, 5) for rank in members]
        assert reduced(index, "x", "sum", dtype, 5, members) == sum(parts)


def test_which_worlds_average_exactly() -> None:
    assert [world for world in range(1, 40) if averages_exactly(world, "fp32")] == [
        1, 2, 4, 8, 16, 32,
    ]  # fmt: skip
    assert not averages_exactly(32, "fp16")


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_lanes_differ_at_every_index(dtype: str) -> None:
    values = LIMITS[dtype] * (1 if dtype in UNSIGNED else 2) + 1
    for index in (0, 1, 1020, 65535):
        for first in (0, values, 5 * values):
            lanes = range(first, first + min(values, 256))
            assert len({copied(index, "all_gather", dtype, lane) for lane in lanes}) == len(lanes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_lanes_are_the_same_everywhere(dtype: str) -> None:
    """More lanes than values of the dtype, as 32 ranks in an all_to_all of fp8 are."""
    lanes = {tuple(copied(i, "all_to_all", dtype, lane) for i in range(1021)) for lane in range(80)}
    assert len(lanes) == 80


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [1, 2, 4, 251, 256, 512, 1024, 4096, 65536])
def test_a_shifted_chunk_does_not_look_right(dtype: str, shift: int) -> None:
    same = sum(
        copied(index, "all_gather", dtype, 1) == copied(index + shift, "all_gather", dtype, 1)
        for index in range(4096)
    )
    # Chance alone gives one in as many as the dtype has values.
    values = LIMITS[dtype] * (1 if dtype in UNSIGNED else 2) + 1
    assert same < 4096 / values * 1.2 + 40


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
@pytest.mark.parametrize("world", [2, 4, 8, 300])
def test_a_missing_or_doubled_rank_shows_in_a_sum(dtype: str, world: int) -> None:
    for rank in (0, world - 1):
        parts = [contributed(i, "all_reduce", "sum", dtype, rank, world) for i in range(1021)]
        # In a world wider than the dtype only some ranks contribute at an index.
        assert sum(part != 0 for part in parts) > 100 * min(1, 4 * LIMITS[dtype] / world)


def test_int64_does_not_survive_a_double() -> None:
    """A path that moves integers as floating point must show."""
    lost = [
        value
        for index in range(100)
        if int(float(value := copied(index, "all_gather", "int64", 0))) != value
    ]
    assert len(lost) > 90


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize(
    ("values", "op"), [("nan", "sum"), ("nan", "prod"), ("inf", "sum"), ("inf", "max")]
)
def test_specials_follow_ieee_754(world: int, values: str, op: str) -> None:
    combine: dict[str, Callable[[list[float]], float]] = {
        "sum": sum,
        "prod": math.prod,
        "max": max,
    }
    expected = specials_expected(values, op)
    for residue in range(4):
        parts = [specials_sent(values, rank, world).get(residue, 1.0) for rank in range(world)]
        result = combine[op](parts)
        if residue in expected:
            assert str(result) == str(expected[residue])
        else:
            assert math.isfinite(result)
    assert expected


def simulate(check: Check, world: int) -> list[list[list[int]]]:
    """What every rank must hold, by the definition of the collective: [rank][block][index]."""
    collective = COLLECTIVES[check.collective]
    ranks = range(world)
    sent = [
        [
            [collective.sent(check, world, rank, block, i) for i in range(size)]
            for block, size in enumerate(collective.sizes_in(check, world, rank))
        ]
        for rank in ranks
    ]

    def over(members: Sequence[int], block: int) -> list[int]:
        columns = zip(*(sent[rank][block] for rank in members), strict=True)
        return [int(ORACLES[check.op](column)) for column in columns]

    name = check.collective
    if name == "all_reduce_subgroup":
        return [[over([r for r in ranks if r % 2 == rank % 2], 0)] for rank in ranks]
    if name.startswith("all_reduce"):
        return [[over(ranks, 0)] for _ in ranks]
    if name.startswith("reduce"):
        return [[over(ranks, to)] for to in ranks]
    if name.startswith("all_gather"):
        return [[sent[r][0] for r in ranks] for _ in ranks]
    if name == "broadcast":
        return [[sent[root][root] for root in ranks] for _ in ranks]
    if name == "send_recv_ring":
        return [[sent[rank - 1][0]] for rank in ranks]
    if name == "barrier":
        return [[[world] * check.count] for _ in ranks]
    assert name in ("all_to_all", "all_to_all_tensor", "all_to_all_uneven", "send_recv") or (
        name in ("gather", "scatter")
    )
    return [[sent[sender][to] for sender in ranks] for to in ranks]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_expected_outputs_follow_the_definitions(world: int, count: int) -> None:
    checks = [
        Check(collective=one.name, op=op, dtype=dtype, count=count)
        for one in COLLECTIVES.values()
        if world >= one.smallest_world
        for op in one.ops
        for dtype in ("fp32", "int32")
        if op != "avg" or averages_exactly(world, dtype)
    ]
    for check in checks:
        collective = COLLECTIVES[check.collective]
        expected = [
            [
                [collective.expected(check, world, rank, block, i) for i in range(size)]
                for block, size in enumerate(collective.sizes_out(check, world, rank))
            ]
            for rank in range(world)
        ]
        assert expected == simulate(check, world), check.label


def test_swapped_ranks_show_with_one_element() -> None:
    for name, collective in COLLECTIVES.items():
        if collective.spread_out:
            check = Check(collective=name, op="", dtype="fp32", count=3)
            for one, other in itertools.combinations(range(4), 2):
                left = collective.expected(check, 4, 0, one, 0)
                assert left != collective.expected(check, 4, 0, other, 0), check.label


def test_objects_have_another_size_and_content_for_each_lane() -> None:
    for name, lanes in OBJECTS.items():
        check = Check(collective=name, op="", dtype="object", count=3)
        for world in (1, 2, 5):
            for rank in range(world):
                held = expected_objects(check, world, rank)
                assert len(held) == len(lanes(world, rank))
                assert len({str(one) for one in held}) == len(held)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("budget", [QUICK, STANDARD, DEEP])
def test_a_plan_has_every_collective_that_the_place_offers_and_each_check_once(
    budget: str, world: int
) -> None:
    for setting in settings_of(budget, world):
        checks = plan(setting)
        assert len({check.label for check in checks}) == len(checks)
        offered = {
            one.name
            for one in COLLECTIVES.values()
            if setting.backend in one.backends and world >= one.smallest_world
        }
        forced = {"all_reduce_ll", "all_reduce_simple"} if budget != DEEP else set()
        assert {check.collective for check in checks} == (offered - forced) | set(OBJECTS)
        reduces = [check for check in checks if check.collective == "all_reduce"]
        assert {check.count for check in reduces} >= {0, 1, 1021, setting.large}
        assert any(check.unaligned for check in reduces)
        assert {check.values for check in checks} == ({"", "nan", "inf"} if world > 1 else {""})
        fp8 = {"fp8_e4m3", "fp8_e5m2"} if setting.backend == "gloo" else set()
        assert {check.dtype for check in reduces} == set(DTYPES) - fp8


def test_a_quick_plan_is_short_and_shortest_where_ranks_share_a_gpu() -> None:
    """Two ranks on one GPU need 5 ms for an operation, four 27 ms (measured on an H200)."""
    cpu, gpu, shared = (len(plan(setting)) for setting in settings_of(QUICK, 4))
    assert max(cpu, gpu) <= 130
    assert shared <= 75
    for setting in settings_of(STANDARD, 4):
        assert len(plan(setting)) > 1000


def test_a_plan_has_no_reduction_that_the_backend_does_not_know() -> None:
    for setting in settings_of(DEEP):
        ops = {check.op for check in plan(setting)}
        bitwise = {"band", "bor", "bxor"}
        assert ops & bitwise == (bitwise if setting.backend == "gloo" else set())
        assert ("premul_sum" in ops) == (setting.backend == "nccl")


@pytest.mark.parametrize("budget", [QUICK, STANDARD, DEEP])
def test_a_plan_never_asks_for_what_leaves_a_process_unfit(budget: str) -> None:
    checks = plan(Setting(world=2, backend="nccl", gpu=True, budget=budget))
    assert not [
        check
        for check in checks
        if (check.collective, check.dtype) == ("reduce_scatter_uneven", "complex64")
        or (check.collective == "all_reduce_graph" and check.count == 0)
    ]
    assert [check for check in checks if check.op == "premul_sum"]
    alone = plan(Setting(world=1, backend="nccl", gpu=True, budget=budget))
    assert not [check for check in alone if check.op == "premul_sum"]
