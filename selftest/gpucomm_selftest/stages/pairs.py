"""Stage `pairs`: each rank sends to each other one, so that a bad link has two names.

A collective over all ranks that returns wrong numbers says that something is broken; this says
where. In a longer run each two ranks also reduce in a group of their own, which uses the
library's protocols on that link alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped

_SMALL = 1021
_LARGE = {"gpu": 1 << 22, "cpu": 1 << 18}
_DTYPE = "int64"
# Each group of two is a communicator of its own: as many as make a run of this size worthwhile.
_MOST_GROUPS = 28
_SHOWN = 4

Wrong = Mapping[str, Any]  # kind, sender, receiver, count, said


def distances(world: int) -> Iterator[int]:
    """In the round of a distance every rank sends to the one that far on: all pairs at once."""
    return iter(range(1, world))


def two_by_two(world: int) -> list[tuple[int, int]]:
    """Every pair of ranks, in the order in which all make their groups."""
    return [(one, other) for one in range(world) for other in range(one + 1, world)]


def _sent(sender: int, receiver: int, count: int, device: Any, world: int) -> Any:
    import torch

    from gpucomm_selftest.values import copied

    index = torch.arange(count, dtype=torch.int64, device=device)
    return copied(index, "pairs", _DTYPE, sender * world + receiver)


def difference(got: Any, expected: Any) -> str:
    """Where the first of two equally long tensors differs, or nothing."""
    unequal = got != expected
    wrong = int(unequal.sum().item())
    if not wrong:
        return ""
    first = int(unequal.nonzero()[0].item())
    return (
        f"{wrong} of {got.numel()} elements wrong, first at index {first}: "
        f"got {got[first].item()}, expected {expected[first].item()}"
    )


def _exchange(context: RankContext, device: Any, count: int) -> Iterator[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    rank, world = context.rank, context.world
    for distance in distances(world):
        to, sender = (rank + distance) % world, (rank - distance) % world
        context.enter(f"send {count} elements to the rank {distance} further on")
        target = torch.full((count,), -1, dtype=torch.int64, device=device)
        batch = [
            dist.P2POp(dist.isend, _sent(rank, to, count, device, world), to),
            dist.P2POp(dist.irecv, target, sender),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        said = difference(target, _sent(sender, rank, count, device, world))
        if said:
            yield {"kind": "sent", "sender": sender, "receiver": rank, "said": said}


def _reduce_alone(context: RankContext, device: Any, count: int) -> Iterator[dict[str, Any]]:
    import torch.distributed as dist

    for one, other in two_by_two(context.world):
        context.enter(f"group of ranks {one} and {other}")
        group = dist.new_group([one, other])
        if context.rank not in (one, other):
            continue
        mine = _sent(context.rank, context.rank, count, device, context.world) >> 2
        expected = sum(
            _sent(rank, rank, count, device, context.world) >> 2 for rank in (one, other)
        )
        context.enter(f"all_reduce of ranks {one} and {other}")
        dist.all_reduce(mine, group=group)
        said = difference(mine, expected)
        if said:
            peer = other if context.rank == one else one
            yield {"kind": "reduced", "sender": peer, "receiver": context.rank, "said": said}


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    device = context.kept["device"]
    wrong: list[dict[str, Any]] = []
    for count in args["counts"]:
        wrong += _exchange(context, device, count)
    if args["groups"]:
        wrong += _reduce_alone(context, device, _SMALL)
    return {"wrong": wrong}


def judge(wrong: Sequence[Wrong], world: int) -> list[Finding]:
    findings = []
    for kind, finding in (("sent", "GC0308"), ("reduced", "GC0310")):
        of_kind = [one for one in wrong if one["kind"] == kind]
        pairs: dict[tuple[int, int], str] = {}
        for one in of_kind:
            pairs.setdefault((one["sender"], one["receiver"]), one["said"])
        if pairs:
            said = [
                f"rank {sender} to rank {receiver}: {words}"
                for (sender, receiver), words in sorted(pairs.items())
            ]
            more = len(said) - _SHOWN
            findings.append(
                found(finding, "; ".join(said[:_SHOWN]) + (f"; and {more} more" * (more > 0)))
            )
    if not findings:
        findings.append(found("GC0307", f"{world * (world - 1)} directed pairs"))
    return findings


def run(session: Session, deadline: float) -> StageResult:
    world, crew = session.world, session.crew
    if world is None or crew is None:
        raise RuntimeError("pairs runs after init")
    if world.size == 1:
        return StageResult(
            id=STAGE.id, status="pass", deadline=deadline, summary="one rank: there are no pairs"
        )
    shared = world.shares_gpus
    counts = [_SMALL] if shared else [_SMALL, _LARGE["gpu" if world.gpus else "cpu"]]
    groups = session.options.budget != "quick" and len(two_by_two(world.size)) <= _MOST_GROUPS
    outcome = crew.work(STAGE.id, lambda rank: {"counts": counts, "groups": groups}, deadline)
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    wrong = [one for _, result in sorted(outcome.results.items()) for one in result["wrong"]]
    findings = judge(wrong, world.size)
    pairs = world.size * (world.size - 1)
    bad = len({(one["sender"], one["receiver"]) for one in wrong})
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=f"{pairs - bad} of {pairs} directed pairs exact"
        + (", and in groups of two" if groups else ""),
        rows=wrong,
        findings=findings,
    )


STAGE = Stage(
    id="pairs", title="every pair of ranks", needs=("init",), deadline=60.0, run=run, work=work
)
