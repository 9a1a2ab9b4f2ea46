"""The numbers that go over the wire, and the numbers that must come back.

Pure integer arithmetic that means the same for a Python int and for an int64 tensor, so the
expected output is computed by the same few lines that the unit tests check against an independent
oracle. Must not import torch.

Every value is an integer that its dtype represents exactly, and so is every partial sum and
product in whatever order a library reduces: results are compared bit for bit, without tolerance.
"""

import zlib
from collections.abc import Callable
from typing import Any

# An int or an int64 tensor. Only operators that both define alike are used on it.
Integers = Any

# Bits n such that every integer in [-2**n, 2**n] is exact. For int64 well above what a double
# holds, so that a path through floating point shows, and low enough that sums cannot overflow.
EXACT_BITS = {"fp32": 24, "fp16": 11, "bf16": 8, "int64": 60}

# Products: 2**14 is the largest power of two that leaves room for its sign and fits fp16.
PRODUCT_BITS = 14

_MASK = 0xFFFFFFFF
# Coprime to every 2**n + 1 (powers of two are 1, 2 or 4 modulo 7), so lanes never coincide.
_LANE_STEP = 7

REDUCTIONS = ("sum", "min", "max", "prod")


def salt(*parts: object) -> int:
    """A 32-bit number that is another one for every check and lane, and the same in all runs."""
    return zlib.crc32("/".join(str(part) for part in parts).encode())


def scatter(index: Integers, salted: int) -> Integers:
    """A 32-bit hash of an index below 2**30: no period, so a shifted chunk cannot look right."""
    mixed = (index * 0x9E3779B1 + salted) & _MASK
    mixed = ((mixed ^ (mixed >> 16)) * 0x21F0AAAD) & _MASK
    mixed = ((mixed ^ (mixed >> 15)) * 0x735A2D97) & _MASK
    return mixed ^ (mixed >> 15)


def spread(index: Integers, salted: int, limit: int) -> Integers:
    """A hash of the index in [-limit, limit]."""
    wide = (scatter(index, salted) << 30) ^ scatter(index, salted ^ 0x5BD1E995)
    return wide % (2 * limit + 1) - limit


def copied(index: Integers, name: str, dtype: str, lane: int) -> Integers:
    """An element that is only moved: different on every lane at the same index."""
    limit = 1 << EXACT_BITS[dtype]
    span = 2 * limit + 1
    return (spread(index, salt(name, dtype), limit) + limit + lane * _LANE_STEP) % span - limit


def contributed(index: Integers, name: str, op: str, dtype: str, rank: int, world: int) -> Integers:
    """What one rank puts into a reduction."""
    salted = salt(name, op, dtype, rank)
    limit = 1 << EXACT_BITS[dtype]
    if op in ("min", "max"):
        return spread(index, salted, limit)
    if op == "prod":
        # +-1 or +-2; at each index at most PRODUCT_BITS ranks may double.
        doubles = ((rank + index) % world < PRODUCT_BITS) * (scatter(index, salted) >> 7 & 1)
        sign = 1 - 2 * (scatter(index, salted) >> 3 & 1)
        return sign * (1 + doubles)
    # Sums: no partial sum may leave the exact range. In a world wider than that range only as
    # many ranks as fit contribute at each index, in rotation, so that all of them are tested.
    share = spread(index, salted, max(1, limit // world))
    if world > limit:
        share = share * ((rank + index) % world < limit)
    return share


def _smaller(one: Integers, other: Integers) -> Integers:
    return one * (one < other) + other * (one >= other)


def _larger(one: Integers, other: Integers) -> Integers:
    return one * (one > other) + other * (one <= other)


_COMBINE: dict[str, Callable[[Integers, Integers], Integers]] = {
    "sum": lambda one, other: one + other,
    "prod": lambda one, other: one * other,
    "min": _smaller,
    "max": _larger,
}


def reduced(index: Integers, name: str, op: str, dtype: str, world: int) -> Integers:
    """What every rank must hold after the reduction."""
    combine = _COMBINE[op]
    total = contributed(index, name, op, dtype, 0, world)
    for rank in range(1, world):
        total = combine(total, contributed(index, name, op, dtype, rank, world))
    return total
