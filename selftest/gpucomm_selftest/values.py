"""The numbers that go over the wire, and the numbers that must come back.

Pure integer arithmetic that means the same for a Python int and for an int64 tensor, so the
expected output is computed by the same few lines that the unit tests check against an independent
oracle. Must not import torch.

Every value is an integer that its dtype represents exactly, and so is every partial sum and
product in whatever order a library reduces: results are compared bit for bit, without tolerance.
"""

import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any

# An int or an int64 tensor. Only operators that both define alike are used on it.
Integers = Any

# Every integer of at most this magnitude is exact. For int64 well above what a double holds, so
# that a path through floating point shows, and low enough that sums cannot overflow. A complex
# number is two fp32. No integer type uses its lowest or highest value: that one marks memory
# that nobody wrote.
LIMITS = {
    "fp32": 1 << 24,
    "fp16": 1 << 11,
    "bf16": 1 << 8,
    "int64": 1 << 60,
    "fp64": 1 << 53,
    "int32": (1 << 31) - 1,
    "int8": 127,
    "uint8": 254,
    "bool": 1,
    "fp8_e4m3": 1 << 4,
    "fp8_e5m2": 1 << 3,
    "complex64": 1 << 24,
}
UNSIGNED = ("uint8", "bool")
FLOATING = ("fp32", "fp16", "bf16", "fp64")

# Products: 2**14 is the largest power of two that leaves room for its sign and fits fp16.
PRODUCT_BITS = {"int8": 6, "uint8": 7, "fp8_e4m3": 8}
_PRODUCT_BITS = 14

_MASK = 0xFFFFFFFF
# Coprime to the number of values of every dtype, so lanes never coincide.
_LANE_STEP = 7

# What premul_sum multiplies by before it adds: exact in every dtype.
PREMULTIPLIED_BY = 2


def salt(*parts: object) -> int:
    """A 32-bit number that is another one for every check and lane, and the same in all runs."""
    return zlib.crc32("/".join(str(part) for part in parts).encode())


def scatter(index: Integers, salted: int) -> Integers:
    """A 32-bit hash of an index below 2**30: no period, so a shifted chunk cannot look right."""
    mixed = (index * 0x9E3779B1 + salted) & _MASK
    mixed = ((mixed ^ (mixed >> 16)) * 0x21F0AAAD) & _MASK
    mixed = ((mixed ^ (mixed >> 15)) * 0x735A2D97) & _MASK
    return mixed ^ (mixed >> 15)


def spread(index: Integers, salted: int, limit: int, dtype: str) -> Integers:
    """A hash of the index in [-limit, limit], or in [0, limit] where there is no sign."""
    wide = (scatter(index, salted) << 30) ^ scatter(index, salted ^ 0x5BD1E995)
    return wide % (limit + 1) if dtype in UNSIGNED else wide % (2 * limit + 1) - limit


def copied(index: Integers, name: str, dtype: str, lane: int) -> Integers:
    """An element that is only moved: different on every lane at the same index, or where there
    are more lanes than values, drawn anew."""
    limit = LIMITS[dtype]
    low = 0 if dtype in UNSIGNED else limit
    span = limit + low + 1
    salted = salt(name, dtype, *([lane // span] if lane >= span else []))
    return (spread(index, salted, limit, dtype) + low + lane * _LANE_STEP) % span - low


def contributed(index: Integers, name: str, op: str, dtype: str, rank: int, world: int) -> Integers:
    """What one rank puts into a reduction."""
    salted = salt(name, op, dtype, rank)
    limit = LIMITS[dtype]
    if op in ("min", "max", "band", "bor", "bxor"):
        return spread(index, salted, limit, dtype)
    if op == "prod":
        # +-1 or +-2; at each index only so many ranks may double that the product is exact.
        most = PRODUCT_BITS.get(dtype, _PRODUCT_BITS)
        doubles = ((rank + index) % world < most) * (scatter(index, salted) >> 7 & 1)
        sign = 1 - 2 * (scatter(index, salted) >> 3 & 1) * (dtype not in UNSIGNED)
        return sign * (1 + doubles)
    # Sums: no partial sum may leave the exact range. In a world wider than that range only as
    # many ranks as fit contribute at each index, in rotation, so that all of them are tested.
    room = limit // PREMULTIPLIED_BY if op == "premul_sum" else limit
    share = spread(index, salted, max(1, room // world), dtype)
    if world > room:
        share = share * ((rank + index) % world < room)
    # A library may divide before it adds, or after: both are exact.
    return share * world if op == "avg" else share


def averages_exactly(world: int, dtype: str) -> bool:
    """Whether avg has one right answer: division by a power of two, without overflow of fp16."""
    return world & (world - 1) == 0 and (dtype != "fp16" or world <= 16)


def _smaller(one: Integers, other: Integers) -> Integers:
    return one * (one < other) + other * (one >= other)


def _larger(one: Integers, other: Integers) -> Integers:
    return one * (one > other) + other * (one <= other)


_COMBINE: dict[str, Callable[[Integers, Integers], Integers]] = {
    "sum": lambda one, other: one + other,
    "avg": lambda one, other: one + other,
    "premul_sum": lambda one, other: one + other,
    "prod": lambda one, other: one * other,
    "min": _smaller,
    "max": _larger,
    "band": lambda one, other: one & other,
    "bor": lambda one, other: one | other,
    "bxor": lambda one, other: one ^ other,
}


def reduced(
    index: Integers,
    name: str,
    op: str,
    dtype: str,
    world: int,
    members: Iterable[int] | None = None,
) -> Integers:
    """What every rank must hold after the reduction over all ranks, or over some."""
    combine = _COMBINE[op]
    total: Integers = None
    for rank in range(world) if members is None else members:
        part = contributed(index, name, op, dtype, rank, world)
        total = part if total is None else combine(total, part)
    if op == "avg":
        return total // world
    return total * PREMULTIPLIED_BY if op == "premul_sum" else total


def specials_sent(values: str, rank: int, world: int) -> dict[int, float]:
    """Which indexes modulo 4 a rank sets to NaN or infinity. Needs two ranks."""
    if values == "nan":
        return {1: math.nan} if rank == world - 1 else {}
    if values == "inf":
        return {0: {1: math.inf, 2: math.inf}, world - 1: {2: -math.inf}}.get(rank, {})
    return {}


def specials_expected(values: str, op: str) -> dict[int, float]:
    """What they must have become, for the reductions that define it: IEEE 754, clause 6."""
    if values == "nan":
        return {1: math.nan}
    if values == "inf":
        return {1: math.inf, 2: math.inf if op == "max" else math.nan}
    return {}
