"""Which collectives are checked, and who must hold which element afterwards.

A collective reads `blocks_in` blocks of `count` elements and writes `blocks_out` blocks. This
module gives each element of both, for any rank, as pure arithmetic (see values.py). It must not
import torch: how torch is called is in operations.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpucomm_selftest.values import EXACT_BITS, REDUCTIONS, Integers, contributed, copied, reduced

# (check, world, rank, block, index) -> elements
Layout = Callable[["Check", int, int, int, Integers], Integers]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One collective with one reduction, dtype and number of elements per block."""

    collective: str
    op: str  # empty where nothing is reduced
    dtype: str
    count: int

    @property
    def row(self) -> str:
        """The line of the table that it belongs to."""
        return f"{self.collective} {self.op}".strip()

    @property
    def label(self) -> str:
        return f"{self.row} {self.dtype} n={self.count}"


@dataclass(frozen=True, kw_only=True)
class Collective:
    name: str
    sent: Layout
    expected: Layout
    ops: tuple[str, ...] = ("",)
    # Blocks are one, or one per rank.
    spread_in: bool = False
    spread_out: bool = False
    smallest_world: int = 1

    def blocks_in(self, world: int) -> int:
        return world if self.spread_in else 1

    def blocks_out(self, world: int) -> int:
        return world if self.spread_out else 1


def _contribution(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    at = index + block * check.count
    return contributed(at, check.collective, check.op, check.dtype, rank, world)


def _reduction(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return reduced(index, check.collective, check.op, check.dtype, world)


def _reduced_chunk(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    at = index + rank * check.count
    return reduced(at, check.collective, check.op, check.dtype, world)


def _own(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, rank)


def _of_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, block)


def _to_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, rank * world + block)


def _from_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, block * world + rank)


# The list form and the tensor form of a collective take different paths through torch.
COLLECTIVES: dict[str, Collective] = {
    one.name: one
    for one in (
        Collective(name="all_reduce", sent=_contribution, expected=_reduction, ops=REDUCTIONS),
        # Block r is the broadcast from rank r: every rank is root once.
        Collective(
            name="broadcast", sent=_own, expected=_of_block, spread_in=True, spread_out=True
        ),
        Collective(name="all_gather", sent=_own, expected=_of_block, spread_out=True),
        Collective(name="all_gather_tensor", sent=_own, expected=_of_block, spread_out=True),
        Collective(
            name="reduce_scatter",
            sent=_contribution,
            expected=_reduced_chunk,
            ops=("sum",),
            spread_in=True,
        ),
        Collective(
            name="reduce_scatter_tensor",
            sent=_contribution,
            expected=_reduced_chunk,
            ops=("sum",),
            spread_in=True,
        ),
        Collective(
            name="all_to_all",
            sent=_to_block,
            expected=_from_block,
            spread_in=True,
            spread_out=True,
        ),
        Collective(
            name="all_to_all_tensor",
            sent=_to_block,
            expected=_from_block,
            spread_in=True,
            spread_out=True,
        ),
        # Every rank sends to every other one, so each directed pair is used.
        Collective(
            name="send_recv",
            sent=_to_block,
            expected=_from_block,
            spread_in=True,
            spread_out=True,
            smallest_world=2,
        ),
    )
}

DTYPES = tuple(EXACT_BITS)

# One element, a prime (no chunking divides it), and enough to fill the library's pipeline.
SMALL_COUNTS = (1, 1021, 1 << 16)
LARGE_COUNTS = (1, 1021, 1 << 20)


def plan(world: int, counts: tuple[int, ...]) -> list[Check]:
    """All checks of a world, in the order in which every rank makes them."""
    return [
        Check(collective=one.name, op=op, dtype=dtype, count=count)
        for one in COLLECTIVES.values()
        if world >= one.smallest_world
        for op in one.ops
        for dtype in DTYPES
        for count in counts
    ]
