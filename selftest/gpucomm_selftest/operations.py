"""How each collective is called in torch: blocks in, blocks out.

Runs only inside a rank. `source` and `target` are contiguous tensors of shape (blocks, count).
It must not judge: it returns when the operation is enqueued and lets every error through.
"""

from collections.abc import Callable
from typing import Any

from gpucomm_selftest.collectives import Check

Tensor = Any

_TORCH_OPS = {"sum": "SUM", "min": "MIN", "max": "MAX", "prod": "PRODUCT"}


def _reduce_op(op: str) -> Any:
    import torch.distributed as dist

    return getattr(dist.ReduceOp, _TORCH_OPS[op])


def _tensor_form(new: str, old: str) -> Callable[..., Any]:
    """Newer torch renamed the tensor forms and warns on each call by the old name."""
    import torch.distributed as dist

    form: Callable[..., Any] = getattr(dist, new, None) or getattr(dist, old)
    return form


def _all_reduce(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    target.copy_(source)
    dist.all_reduce(target[0], op=_reduce_op(check.op))


def _broadcast(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    target[rank].copy_(source[rank])
    for root in range(world):
        dist.broadcast(target[root], src=root)


def _all_gather(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    dist.all_gather(list(target), source[0])


def _all_gather_tensor(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    gather = _tensor_form("all_gather_single", "all_gather_into_tensor")
    gather(target.view(-1), source[0])


def _reduce_scatter(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    dist.reduce_scatter(target[0], list(source), op=_reduce_op(check.op))


def _reduce_scatter_tensor(
    check: Check, source: Tensor, target: Tensor, rank: int, world: int
) -> None:
    reduce_scatter = _tensor_form("reduce_scatter_single", "reduce_scatter_tensor")
    reduce_scatter(target[0], source.view(-1), op=_reduce_op(check.op))


def _all_to_all(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    dist.all_to_all(list(target), list(source))


def _all_to_all_tensor(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    dist.all_to_all_single(target.view(-1), source.view(-1))


def _send_recv(check: Check, source: Tensor, target: Tensor, rank: int, world: int) -> None:
    import torch.distributed as dist

    # One batch: no order of the pairs can dead-lock, and NCCL does not serialise it.
    batch = []
    for distance in range(1, world):
        to, sender = (rank + distance) % world, (rank - distance) % world
        batch.append(dist.P2POp(dist.isend, source[to], to))
        batch.append(dist.P2POp(dist.irecv, target[sender], sender))
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    target[rank].copy_(source[rank])


OPERATIONS: dict[str, Callable[[Check, Tensor, Tensor, int, int], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_tensor": _all_gather_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_tensor": _all_to_all_tensor,
    "send_recv": _send_recv,
}
