"""Bit-exact judgement of one output, and of the memory around it.

Runs only inside a rank. It knows nothing of processes: it is given tensors and returns a sentence
about the first difference, or nothing. There is no tolerance to set.
"""

from typing import Any

from gpucomm_selftest.collectives import COLLECTIVES, Check

Tensor = Any

# Elements before and after the output that nobody may write. 64 keeps the output aligned as
# torch's own allocations are.
GUARD = 64

_TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int64": "int64"}
_BITS = {"fp32": "int32", "fp16": "int16", "bf16": "int16", "int64": "int64"}


def torch_dtype(dtype: str) -> Any:
    import torch

    return getattr(torch, _TORCH_DTYPES[dtype])


def source_blocks(check: Check, rank: int, world: int, device: Any) -> Tensor:
    """What this rank puts in."""
    import torch

    collective = COLLECTIVES[check.collective]
    index = torch.arange(check.count, dtype=torch.int64, device=device)
    blocks = [
        collective.sent(check, world, rank, block, index)
        for block in range(collective.blocks_in(world))
    ]
    return torch.stack(blocks).to(torch_dtype(check.dtype))


def expected_blocks(check: Check, rank: int, world: int, device: Any) -> Tensor:
    """What this rank must hold afterwards."""
    import torch

    collective = COLLECTIVES[check.collective]
    index = torch.arange(check.count, dtype=torch.int64, device=device)
    blocks = [
        collective.expected(check, world, rank, block, index)
        for block in range(collective.blocks_out(world))
    ]
    return torch.stack(blocks).to(torch_dtype(check.dtype))


def _poison(dtype: str) -> float | int:
    """A value that no correct output has: what nobody wrote must not look right."""
    return -(2**62) if dtype == "int64" else float("nan")


def guarded_target(check: Check, world: int, device: Any) -> tuple[Tensor, Tensor]:
    """A poisoned buffer, and the view of it that is the output."""
    import torch

    blocks = COLLECTIVES[check.collective].blocks_out(world)
    size = blocks * check.count
    buffer = torch.full(
        (size + 2 * GUARD,), _poison(check.dtype), dtype=torch_dtype(check.dtype), device=device
    )
    return buffer, buffer[GUARD : GUARD + size].view(blocks, check.count)


def _bits(tensor: Tensor, dtype: str) -> Tensor:
    import torch

    return tensor.contiguous().view(getattr(torch, _BITS[dtype]))


def difference(check: Check, got: Tensor, expected: Tensor) -> str | None:
    """Where two outputs differ in any bit."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return (
            f"shape {tuple(got.shape)} {got.dtype}, "
            f"expected {tuple(expected.shape)} {expected.dtype}"
        )
    unequal = _bits(got, check.dtype) != _bits(expected, check.dtype)
    wrong = int(unequal.sum().item())
    if not wrong:
        return None
    first = int(unequal.view(-1).nonzero()[0].item())
    block, index = divmod(first, check.count)
    return (
        f"{wrong} of {got.numel()} elements wrong, first in block {block} at index {index}: "
        f"got {got.view(-1)[first].item()!r}, expected {expected.view(-1)[first].item()!r}"
    )


def overrun(check: Check, buffer: Tensor) -> str | None:
    """Whether anything was written outside the output."""
    import torch

    outside = torch.cat([buffer[:GUARD], buffer[-GUARD:]])
    untouched = torch.full_like(outside, _poison(check.dtype))
    touched = _bits(outside, check.dtype) != _bits(untouched, check.dtype)
    wrong = int(touched.sum().item())
    if not wrong:
        return None
    return f"{wrong} elements outside the output were overwritten"
