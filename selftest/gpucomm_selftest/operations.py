"""How each collective is called in torch: blocks in, blocks out.

Runs only inside a rank. It must not judge: it returns when the operation is enqueued and lets
every error through.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpucomm_selftest.collectives import Check, payload
from gpucomm_selftest.values import PREMULTIPLIED_BY

Tensor = Any


@dataclass(kw_only=True)
class Call:
    """What one rank has for one check. `source` and `target` are flat: block after block."""

    check: Check
    rank: int
    world: int
    # What outlives a check: the process groups that were made, the store.
    kept: dict[str, Any]
    device: Any = None
    source: Tensor = None
    target: Tensor = None
    sizes_in: list[int]
    sizes_out: list[int]

    @property
    def inputs(self) -> list[Tensor]:
        return list(self.source.split(self.sizes_in))

    @property
    def outputs(self) -> list[Tensor]:
        return list(self.target.split(self.sizes_out))

    @property
    def op(self) -> Any:
        import torch.distributed as dist

        names = {"prod": "PRODUCT", "premul_sum": "PREMUL_SUM"}
        if self.check.op == "premul_sum":
            return dist._make_nccl_premul_sum(float(PREMULTIPLIED_BY))
        return getattr(dist.ReduceOp, names.get(self.check.op, self.check.op.upper()))


def _tensor_form(new: str, old: str) -> Callable[..., Any]:
    """Newer torch renamed the tensor forms and warns on each call by the old name."""
    import torch.distributed as dist

    form: Callable[..., Any] = getattr(dist, new, None) or getattr(dist, old)
    return form


def _group(call: Call, name: str, make: Callable[[], Any]) -> Any:
    """A process group that all ranks make at the same check, once."""
    groups = call.kept.setdefault("groups", {})
    if name not in groups:
        groups[name] = make()
    return groups[name]


def _all_reduce(call: Call) -> None:
    import torch.distributed as dist

    call.target.copy_(call.source)
    dist.all_reduce(call.target, op=call.op)


def _all_reduce_async(call: Call) -> None:
    import torch.distributed as dist

    call.target.copy_(call.source)
    # Two in flight: the first must not be waited for to start the second.
    half = call.target.numel() // 2
    works = [
        dist.all_reduce(part, op=call.op, async_op=True)
        for part in (call.target[:half], call.target[half:])
    ]
    for work in works:
        work.wait()


def _all_reduce_coalesced(call: Call) -> None:
    import torch.distributed as dist

    call.target.copy_(call.source)
    half = call.target.numel() // 2
    with warnings.catch_warnings():
        # Torch has been saying for years that it may go.
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_reduce_coalesced([call.target[:half], call.target[half:]], op=call.op)


def _all_reduce_batched(call: Call) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    call.target.copy_(call.source)
    half = call.target.numel() // 2
    with _coalescing_manager(device=call.device):
        for part in (call.target[:half], call.target[half:]):
            dist.all_reduce(part, op=call.op)


def _all_reduce_subgroup(call: Call) -> None:
    import torch.distributed as dist

    def halves() -> Any:
        # Every rank makes both, also the one that it does not belong to.
        made = [dist.new_group(list(range(first, call.world, 2))) for first in (0, 1)[: call.world]]
        return made[call.rank % 2]

    call.target.copy_(call.source)
    dist.all_reduce(call.target, op=call.op, group=_group(call, "halves", halves))


def _all_reduce_graph(call: Call) -> None:
    import torch
    import torch.distributed as dist

    static = torch.empty_like(call.target)
    static.copy_(call.source)
    # A graph takes no first call, which connects the ranks.
    dist.all_reduce(static, op=call.op)
    torch.cuda.synchronize(call.device)
    graph = torch.cuda.CUDAGraph()
    try:
        # Only what this thread does: the watchdog of the process group goes on.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(static, op=call.op)
        # Replayed with other numbers than those of the capture, twice.
        static.zero_()
        graph.replay()
        static.copy_(call.source)
        graph.replay()
        call.target.copy_(static)
        torch.cuda.synchronize(call.device)
    finally:
        # A process that still has a graph with a collective hangs in destroy_process_group.
        graph.reset()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _all_reduce_by(protocol: str) -> Callable[[Call], None]:
    def operation(call: Call) -> None:
        import torch.distributed as dist

        call.target.copy_(call.source)
        # Read when the communicator is made, which may be at the first call of a group.
        with _environment("NCCL_PROTO", protocol):
            group = _group(call, protocol, lambda: dist.new_group(list(range(call.world))))
            dist.all_reduce(call.target, op=call.op, group=group)

    return operation


def _broadcast(call: Call) -> None:
    import torch.distributed as dist

    outputs = call.outputs
    outputs[call.rank].copy_(call.inputs[call.rank])
    for root in range(call.world):
        dist.broadcast(outputs[root], src=root)


def _reduce(call: Call) -> None:
    import torch.distributed as dist

    for root, block in enumerate(call.inputs):
        # What the others hold afterwards is not defined.
        mine = call.target if root == call.rank else block.clone()
        mine.copy_(block)
        dist.reduce(mine, dst=root, op=call.op)


def _all_gather(call: Call) -> None:
    import torch.distributed as dist

    dist.all_gather(call.outputs, call.source)


def _all_gather_tensor(call: Call) -> None:
    _tensor_form("all_gather_single", "all_gather_into_tensor")(call.target, call.source)


def _all_gather_in_place(call: Call) -> None:
    mine = call.outputs[call.rank]
    mine.copy_(call.source)
    _tensor_form("all_gather_single", "all_gather_into_tensor")(call.target, mine)


def _reduce_scatter(call: Call) -> None:
    import torch.distributed as dist

    dist.reduce_scatter(call.target, call.inputs, op=call.op)


def _reduce_scatter_tensor(call: Call) -> None:
    form = _tensor_form("reduce_scatter_single", "reduce_scatter_tensor")
    form(call.target, call.source, op=call.op)


def _reduce_scatter_in_place(call: Call) -> None:
    both = call.source.clone()
    mine = both.split(call.sizes_in)[call.rank]
    form = _tensor_form("reduce_scatter_single", "reduce_scatter_tensor")
    form(mine, both, op=call.op)
    call.target.copy_(mine)


def _all_to_all(call: Call) -> None:
    import torch.distributed as dist

    dist.all_to_all(call.outputs, call.inputs)


def _all_to_all_tensor(call: Call) -> None:
    import torch.distributed as dist

    dist.all_to_all_single(call.target, call.source)


def _all_to_all_uneven(call: Call) -> None:
    import torch.distributed as dist

    dist.all_to_all_single(call.target, call.source, call.sizes_out, call.sizes_in)


def _gather(call: Call) -> None:
    import torch.distributed as dist

    for root, block in enumerate(call.inputs):
        dist.gather(block, call.outputs if root == call.rank else None, dst=root)


def _scatter(call: Call) -> None:
    import torch.distributed as dist

    for root, block in enumerate(call.outputs):
        dist.scatter(block, call.inputs if root == call.rank else None, src=root)


def _send_recv(call: Call) -> None:
    import torch.distributed as dist

    # One batch: no order of the pairs can dead-lock, and NCCL does not serialise it.
    inputs, outputs, batch = call.inputs, call.outputs, []
    for distance in range(1, call.world):
        to, sender = (call.rank + distance) % call.world, (call.rank - distance) % call.world
        batch.append(dist.P2POp(dist.isend, inputs[to], to))
        batch.append(dist.P2POp(dist.irecv, outputs[sender], sender))
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    outputs[call.rank].copy_(inputs[call.rank])


def _send_recv_ring(call: Call) -> None:
    import torch.distributed as dist

    after, before = (call.rank + 1) % call.world, (call.rank - 1) % call.world
    # In a ring of an odd number two senders are neighbours: the one waits for the other.
    if call.rank % 2 == 0:
        dist.send(call.source, after)
        dist.recv(call.target, before)
    else:
        dist.recv(call.target, before)
        dist.send(call.source, after)


def _barrier(call: Call) -> None:
    import torch.distributed as dist

    store, key = call.kept["store"], f"gpucomm-selftest/{call.check.label}"
    store.add(key, 1)
    dist.barrier()
    call.target.fill_(store.add(key, 0))


OPERATIONS: dict[str, Callable[[Call], None]] = {
    "all_reduce": _all_reduce,
    "all_reduce_async": _all_reduce_async,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_reduce_batched": _all_reduce_batched,
    "all_reduce_subgroup": _all_reduce_subgroup,
    "all_reduce_graph": _all_reduce_graph,
    "all_reduce_ll": _all_reduce_by("LL"),
    "all_reduce_simple": _all_reduce_by("Simple"),
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_tensor": _all_gather_tensor,
    "all_gather_in_place": _all_gather_in_place,
    "all_gather_uneven": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_in_place": _reduce_scatter_in_place,
    "reduce_scatter_uneven": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_tensor": _all_to_all_tensor,
    "all_to_all_uneven": _all_to_all_uneven,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "send_recv_ring": _send_recv_ring,
    "barrier": _barrier,
}


def _payload(call: Call, lane: int) -> Any:
    return payload(call.check.collective, lane, call.check.count)


def _all_gather_object(call: Call) -> list[Any]:
    import torch.distributed as dist

    held: list[Any] = [None] * call.world
    dist.all_gather_object(held, _payload(call, call.rank))
    return held


def _broadcast_object(call: Call) -> list[Any]:
    import torch.distributed as dist

    root = call.world - 1
    lanes = (root, root + call.world)
    held: list[Any] = [_payload(call, lane) if call.rank == root else None for lane in lanes]
    dist.broadcast_object_list(held, src=root, device=call.device)
    return held


def _gather_object(call: Call) -> list[Any]:
    import torch.distributed as dist

    held: list[Any] | None = [None] * call.world if call.rank == 0 else None
    dist.gather_object(_payload(call, call.rank), held, dst=0)
    return held or []


def _scatter_object(call: Call) -> list[Any]:
    import torch.distributed as dist

    root, held = call.world - 1, [None]
    given = [_payload(call, rank + root) for rank in range(call.world)]
    dist.scatter_object_list(held, given if call.rank == root else None, src=root)
    return list(held)


OBJECT_OPERATIONS: dict[str, Callable[[Call], list[Any]]] = {
    "all_gather_object": _all_gather_object,
    "broadcast_object": _broadcast_object,
    "gather_object": _gather_object,
    "scatter_object": _scatter_object,
}
