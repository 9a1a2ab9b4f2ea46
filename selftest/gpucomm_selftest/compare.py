"""Makes the tensors of a check, and judges one output bit for bit, and the memory around it.

Runs only inside a rank. It knows nothing of processes: it is given tensors and returns a sentence
about the first difference, or nothing. There is no tolerance to set.
"""

import math
from collections.abc import Sequence
from typing import Any

from gpucomm_selftest.collectives import COLLECTIVES, Check, Layout
from gpucomm_selftest.values import specials_expected, specials_sent

Tensor = Any

# Elements before and after a tensor that nobody may write. 64 keeps it aligned as torch's own
# allocations are.
GUARD = 64

_TORCH_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
# The integers that a dtype is compared as.
_BITS = {
    "fp32": "int32",
    "fp16": "int16",
    "bf16": "int16",
    "fp64": "int64",
    "bool": "uint8",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
    "complex64": "int64",
}
# A value that no correct output has: what nobody wrote must not look right. All bits set is NaN
# in every floating type, and 255 is neither of the two values of a bool.
_UNWRITTEN = {"int8": -(2**7), "int32": -(2**31), "int64": -(2**63), "uint8": 255}


def torch_name(dtype: str) -> str:
    return _TORCH_DTYPES.get(dtype, dtype)


def torch_dtype(dtype: str) -> Any:
    """The dtype of this torch, or nothing where it has no such one."""
    import torch

    return getattr(torch, torch_name(dtype), None)


def bits(tensor: Tensor, dtype: str) -> Tensor:
    """The same memory as integers."""
    import torch

    return tensor.view(getattr(torch, _BITS.get(dtype, dtype)))


def made(integers: Tensor, dtype: str) -> Tensor:
    """Integers as numbers of a dtype. A complex number is made of two of them."""
    import torch

    if dtype == "complex64":
        return torch.view_as_complex(integers.to(torch.float32).view(-1, 2))
    if dtype.startswith("fp8"):
        return integers.to(torch.float32).to(torch_dtype(dtype))
    return integers.to(torch_dtype(dtype))


def _blocks(
    check: Check, layout: Layout, sizes: Sequence[int], rank: int, world: int, device: Any
) -> Tensor:
    """The blocks of a rank, one after the other."""
    import torch

    parts = 2 if check.dtype == "complex64" else 1
    integers = [
        layout(check, world, rank, block, torch.arange(size * parts, device=device))
        for block, size in enumerate(sizes)
    ]
    return made(torch.cat(integers), check.dtype)


def _place(flat: Tensor, specials: dict[int, float]) -> Tensor:
    for residue, value in specials.items():
        flat[residue::4] = value
    return flat


def source_blocks(check: Check, rank: int, world: int, device: Any) -> Tensor:
    """What this rank puts in."""
    collective = COLLECTIVES[check.collective]
    sizes = collective.sizes_in(check, world, rank)
    flat = _blocks(check, collective.sent, sizes, rank, world, device)
    return _place(flat, specials_sent(check.values, rank, world))


def expected_blocks(check: Check, rank: int, world: int, device: Any) -> Tensor:
    """What this rank must hold afterwards."""
    collective = COLLECTIVES[check.collective]
    sizes = collective.sizes_out(check, world, rank)
    flat = _blocks(check, collective.expected, sizes, rank, world, device)
    return _place(flat, specials_expected(check.values, check.op))


def _start(check: Check) -> int:
    return GUARD + check.unaligned


def guarded(check: Check, size: int, device: Any) -> tuple[Tensor, Tensor]:
    """Memory that is marked as unwritten, and the part of it that is a tensor of this check."""
    import torch

    marks = getattr(torch, _BITS.get(check.dtype, check.dtype))
    mark = _UNWRITTEN.get(check.dtype, 255 if marks == torch.uint8 else -1)
    memory = torch.full((size + 2 * GUARD + 1,), mark, dtype=marks, device=device)
    buffer = memory.view(torch_dtype(check.dtype))
    return buffer, buffer[_start(check) : _start(check) + size]


def guarded_target(check: Check, rank: int, world: int, device: Any) -> tuple[Tensor, Tensor]:
    sizes = COLLECTIVES[check.collective].sizes_out(check, world, rank)
    return guarded(check, sum(sizes), device)


def guarded_source(check: Check, rank: int, world: int, device: Any) -> tuple[Tensor, Tensor]:
    flat = source_blocks(check, rank, world, device)
    buffer, view = guarded(check, flat.numel(), device)
    bits(view, check.dtype).copy_(bits(flat, check.dtype))
    return buffer, view


def _place_of(first: int, sizes: Sequence[int]) -> tuple[int, int]:
    for block, size in enumerate(sizes):
        if first < size:
            return block, first
        first -= size
    raise IndexError(first)


def difference(check: Check, got: Tensor, expected: Tensor, rank: int, world: int) -> str | None:
    """Where two outputs differ in any bit. A NaN may have any of its bits."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return (
            f"shape {tuple(got.shape)} {got.dtype}, "
            f"expected {tuple(expected.shape)} {expected.dtype}"
        )
    unequal = bits(got, check.dtype) != bits(expected, check.dtype)
    if any(math.isnan(value) for value in specials_expected(check.values, check.op).values()):
        unequal &= ~(got.isnan() & expected.isnan())
    wrong = int(unequal.sum().item())
    if not wrong:
        return None
    first = int(unequal.nonzero()[0].item())
    sizes = COLLECTIVES[check.collective].sizes_out(check, world, rank)
    block, index = _place_of(first, sizes)
    return (
        f"{wrong} of {got.numel()} elements wrong, first in block {block} at index {index}: "
        f"got {got[first].item()!r}, expected {expected[first].item()!r}"
    )


def overrun(check: Check, buffer: Tensor) -> str | None:
    """Whether anything was written outside the output."""
    import torch

    start = _start(check)
    end = start + buffer.numel() - 2 * GUARD - 1
    marks = bits(buffer, check.dtype)
    outside = torch.cat([marks[:start], marks[end:]])
    mark, _ = guarded(check, 0, buffer.device)
    wrong = int((outside != bits(mark, check.dtype)[0]).sum().item())
    if not wrong:
        return None
    return f"{wrong} elements outside the output were overwritten"


def touched(check: Check, before: Tensor, after: Tensor) -> str | None:
    """Whether an input was changed that is not also the output."""
    changed = bits(before, check.dtype) != bits(after, check.dtype)
    wrong = int(changed.sum().item())
    return f"{wrong} elements of the input were overwritten" if wrong else None
