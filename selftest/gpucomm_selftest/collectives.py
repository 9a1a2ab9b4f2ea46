"""Which collectives are checked, and who must hold which element afterwards.

A collective reads some blocks and writes some, each of `count` elements unless it is an uneven
one. This module gives each element of both, for any rank, as pure arithmetic (see values.py). It
must not import torch: how torch is called is in operations.py, what is checked when in plan.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpucomm_selftest.values import Integers, contributed, copied, reduced

# (check, world, rank, block, index) -> elements
Layout = Callable[["Check", int, int, int, Integers], Integers]
# (check, world, rank, block) -> number of elements
Sizes = Callable[["Check", int, int, int], int]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One collective with one reduction, dtype and number of elements per block."""

    collective: str
    op: str  # empty where nothing is reduced
    dtype: str
    count: int
    unaligned: bool = False  # tensors begin at an odd element of their memory
    values: str = ""  # nan or inf: some of the numbers are no numbers

    @property
    def row(self) -> str:
        """The line of the table that it belongs to."""
        return f"{self.collective} {self.op}".strip()

    @property
    def label(self) -> str:
        how = (" unaligned" if self.unaligned else "") + (f" {self.values}" if self.values else "")
        return f"{self.row} {self.dtype} n={self.count}{how}"


def _even(check: Check, world: int, rank: int, block: int) -> int:
    return check.count


@dataclass(frozen=True, kw_only=True)
class Collective:
    name: str
    sent: Layout
    expected: Layout
    ops: tuple[str, ...] = ("",)
    # Blocks are one, or one per rank.
    spread_in: bool = False
    spread_out: bool = False
    size_in: Sizes = _even
    size_out: Sizes = _even
    smallest_world: int = 1
    # The backends that offer it, the devices that can run it.
    backends: tuple[str, ...] = ("nccl", "gloo")
    needs_gpu: bool = False
    # All ranks call torch with the same dtype and number of elements.
    uniform: bool = True
    # The number of elements means nothing: a barrier has no data.
    plain: bool = False

    def sizes_in(self, check: Check, world: int, rank: int) -> list[int]:
        blocks = world if self.spread_in else 1
        return [self.size_in(check, world, rank, block) for block in range(blocks)]

    def sizes_out(self, check: Check, world: int, rank: int) -> list[int]:
        blocks = world if self.spread_out else 1
        return [self.size_out(check, world, rank, block) for block in range(blocks)]


def _contribution(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    at = index + block * check.count
    return contributed(at, check.collective, check.op, check.dtype, rank, world)


def _reduction(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return reduced(index, check.collective, check.op, check.dtype, world)


def _reduced_chunk(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    at = index + rank * check.count
    return reduced(at, check.collective, check.op, check.dtype, world)


def half_of(world: int, rank: int) -> tuple[int, ...]:
    """The even ranks, or the odd ones: the subgroup of a rank."""
    return tuple(range(rank % 2, world, 2))


def _reduced_in_half(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    members = half_of(world, rank)
    return reduced(index, check.collective, check.op, check.dtype, world, members)


def _own(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, rank)


def _of_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, block)


def _to_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, rank * world + block)


def _from_block(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, block * world + rank)


def _from_previous(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return copied(index, check.collective, check.dtype, (rank - 1) % world)


def _number_of_ranks(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    return index * 0 + world


def _uneven(check: Check, sender: int, receiver: int) -> int:
    """Nothing, half or all of a block, so that some ranks send nothing to some others."""
    return check.count * ((sender + 2 * receiver + 1) % 3) // 2


def _uneven_to(check: Check, world: int, rank: int, block: int) -> int:
    return _uneven(check, rank, block)


def _uneven_from(check: Check, world: int, rank: int, block: int) -> int:
    return _uneven(check, block, rank)


def _uneven_own(check: Check, world: int, rank: int, block: int) -> int:
    return check.count + rank


def _uneven_block(check: Check, world: int, rank: int, block: int) -> int:
    return check.count + block


def _uneven_contribution(
    check: Check, world: int, rank: int, block: int, index: Integers
) -> Integers:
    at = index + block * (check.count + world)
    return contributed(at, check.collective, check.op, check.dtype, rank, world)


def _uneven_chunk(check: Check, world: int, rank: int, block: int, index: Integers) -> Integers:
    at = index + rank * (check.count + world)
    return reduced(at, check.collective, check.op, check.dtype, world)


def _all_reduce(
    name: str,
    *,
    ops: tuple[str, ...] = ("sum",),
    expected: Layout = _reduction,
    backends: tuple[str, ...] = ("nccl", "gloo"),
    needs_gpu: bool = False,
) -> Collective:
    return Collective(
        name=name,
        sent=_contribution,
        expected=expected,
        ops=ops,
        backends=backends,
        needs_gpu=needs_gpu,
    )


def _gather(name: str, backends: tuple[str, ...] = ("nccl", "gloo")) -> Collective:
    return Collective(name=name, sent=_own, expected=_of_block, spread_out=True, backends=backends)


def _reduce_scatter(name: str) -> Collective:
    return Collective(
        name=name,
        sent=_contribution,
        expected=_reduced_chunk,
        ops=("sum", "min", "max"),
        spread_in=True,
    )


def _exchange(name: str, smallest_world: int = 1) -> Collective:
    return Collective(
        name=name,
        sent=_to_block,
        expected=_from_block,
        spread_in=True,
        spread_out=True,
        smallest_world=smallest_world,
        uniform=False,
    )


ALL_OPS = ("sum", "min", "max", "prod", "avg", "premul_sum", "band", "bor", "bxor")

# The list form and the tensor form of a collective take different paths through torch.
COLLECTIVES: dict[str, Collective] = {
    one.name: one
    for one in (
        _all_reduce("all_reduce", ops=ALL_OPS),
        _all_reduce("all_reduce_async"),
        _all_reduce("all_reduce_coalesced"),
        # The coalescing manager is how torch's own sharding batches collectives.
        _all_reduce("all_reduce_batched", backends=("nccl",)),
        _all_reduce("all_reduce_subgroup", expected=_reduced_in_half),
        _all_reduce("all_reduce_graph", backends=("nccl",), needs_gpu=True),
        # By one protocol of the library, in a group of its own.
        _all_reduce("all_reduce_ll", backends=("nccl",)),
        _all_reduce("all_reduce_simple", backends=("nccl",)),
        # Block r is the broadcast from rank r: every rank is root once.
        Collective(
            name="broadcast", sent=_own, expected=_of_block, spread_in=True, spread_out=True
        ),
        # Block r is reduced to rank r.
        Collective(
            name="reduce",
            sent=_contribution,
            expected=_reduced_chunk,
            ops=("sum", "max"),
            spread_in=True,
        ),
        _gather("all_gather"),
        _gather("all_gather_tensor"),
        _gather("all_gather_in_place"),
        Collective(
            name="all_gather_uneven",
            sent=_own,
            expected=_of_block,
            spread_out=True,
            size_in=_uneven_own,
            size_out=_uneven_block,
            backends=("nccl",),
            uniform=False,
        ),
        _reduce_scatter("reduce_scatter"),
        _reduce_scatter("reduce_scatter_tensor"),
        _reduce_scatter("reduce_scatter_in_place"),
        Collective(
            name="reduce_scatter_uneven",
            sent=_uneven_contribution,
            expected=_uneven_chunk,
            ops=("sum",),
            spread_in=True,
            size_in=_uneven_block,
            size_out=_uneven_own,
            backends=("nccl",),
            uniform=False,
        ),
        _exchange("all_to_all"),
        _exchange("all_to_all_tensor"),
        Collective(
            name="all_to_all_uneven",
            sent=_to_block,
            expected=_from_block,
            spread_in=True,
            spread_out=True,
            size_in=_uneven_to,
            size_out=_uneven_from,
            uniform=False,
        ),
        # Every rank is root once.
        _exchange("gather"),
        _exchange("scatter"),
        # Every rank sends to every other one, so each directed pair is used.
        _exchange("send_recv", smallest_world=2),
        # One transfer at a time, not in a batch.
        Collective(
            name="send_recv_ring",
            sent=_own,
            expected=_from_previous,
            smallest_world=2,
            uniform=False,
        ),
        # What comes out is how many ranks had come to it.
        Collective(name="barrier", sent=_own, expected=_number_of_ranks, plain=True),
    )
}

# Collectives of Python objects: which lanes (see `payload`) a rank must hold afterwards.
OBJECTS: dict[str, Callable[[int, int], list[int]]] = {
    "all_gather_object": lambda world, rank: list(range(world)),
    "broadcast_object": lambda world, rank: [world - 1, 2 * world - 1],
    "gather_object": lambda world, rank: list(range(world)) if rank == 0 else [],
    "scatter_object": lambda world, rank: [rank + world - 1],
}
OBJECT = "object"


def payload(name: str, lane: int, count: int) -> dict[str, object]:
    """An object that is another one on every lane, and of another size."""
    numbers = [copied(index, name, "int32", lane) for index in range(4)]
    return {"lane": lane, "numbers": numbers, "text": "\N{GREEK SMALL LETTER MU}" * (count + lane)}


def expected_objects(check: Check, world: int, rank: int) -> list[dict[str, object]]:
    lanes = OBJECTS[check.collective](world, rank)
    return [payload(check.collective, lane, check.count) for lane in lanes]
