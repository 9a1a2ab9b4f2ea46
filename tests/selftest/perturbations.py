"""Feeds right and then damaged outputs to the checker, and prints what it made of them as JSON.

A script, not a test: test_torch.py runs it in the Python or image that has torch. The right output
is not the product's prediction: it is computed here from what the ranks send, by the definition of
each collective.
"""

import json
from typing import Any

import torch

from gpucomm_selftest.collectives import COLLECTIVES, plan
from gpucomm_selftest.compare import (
    GUARD,
    difference,
    expected_blocks,
    guarded_target,
    overrun,
    source_blocks,
    torch_dtype,
)

WORLD = 3
BITS = {"fp32": torch.int32, "fp16": torch.int16, "bf16": torch.int16, "int64": torch.int64}


def right_outputs(check: Any) -> list[Any]:
    """What each rank must hold, from what all ranks send."""
    sent = [source_blocks(check, rank, WORLD, "cpu") for rank in range(WORLD)]
    name = check.collective.removesuffix("_tensor")
    dtype = torch_dtype(check.dtype)
    if name in ("all_reduce", "reduce_scatter"):
        stack = torch.stack(sent).to(torch.int64)
        combine = {
            "sum": lambda x: x.sum(0),
            "prod": lambda x: x.prod(0),
            "min": lambda x: x.amin(0),
            "max": lambda x: x.amax(0),
        }[check.op]
        total = combine(stack).to(dtype)
        if name == "all_reduce":
            return [total] * WORLD
        return [total[rank : rank + 1] for rank in range(WORLD)]
    if name == "all_gather":
        return [torch.cat(sent)] * WORLD
    if name == "broadcast":
        return [torch.stack([sent[root][root] for root in range(WORLD)])] * WORLD
    return [torch.stack([sent[s][to] for s in range(WORLD)]) for to in range(WORLD)]


def one_bit(output: Any, dtype: str, block: int, index: int) -> Any:
    """The last bit of one element, which is one unit in the last place."""
    damaged = output.clone()
    damaged.view(BITS[dtype])[block, index] ^= 1
    return damaged


def damages(check: Any, output: Any, outputs: list[Any], rank: int) -> dict[str, Any]:
    """Outputs that are wrong, each in one way."""
    made = {
        "last bit, first element": one_bit(output, check.dtype, 0, 0),
        "last bit, last element": one_bit(output, check.dtype, -1, -1),
        "nothing written": guarded_target(check, WORLD, "cpu")[1].clone(),
        "all zero": torch.zeros_like(output),
    }
    if check.count > 1:
        made["shifted by one"] = output.roll(1, dims=1)
        made["last element missing"] = output.clone()
        made["last element missing"][-1, -1] = guarded_target(check, WORLD, "cpu")[0][0]
        other = outputs[(rank + 1) % WORLD]
        if not torch.equal(other, output):
            made["the output of another rank"] = other
    if COLLECTIVES[check.collective].spread_out:
        made["swapped ranks"] = output.flip(0)
    if check.op == "sum" and check.count > 1:
        made["a rank left out"] = output - source_blocks(check, 1, WORLD, "cpu")[: len(output)]
    if check.dtype != "int64":
        made["another dtype"] = output.to(torch.float64)
    made["a block too few"] = output[:, :0]
    return made


def main() -> None:
    accepted, missed, tried = 0, [], 0
    for check in plan(WORLD, (1, 1021)):
        outputs = right_outputs(check)
        for rank in range(WORLD):
            output = outputs[rank]
            expected = expected_blocks(check, rank, WORLD, "cpu")
            said = difference(check, output, expected)
            if said is None:
                accepted += 1
            else:
                missed.append(f"{check.label} rank {rank}: right output refused: {said}")
            for name, damaged in damages(check, output, outputs, rank).items():
                tried += 1
                if difference(check, damaged, expected) is None:
                    missed.append(f"{check.label} rank {rank}: {name} not seen")
            buffer, target = guarded_target(check, WORLD, "cpu")
            target.copy_(output)
            if overrun(check, buffer) is not None:
                missed.append(f"{check.label} rank {rank}: overrun seen where none is")
            for at in (0, GUARD - 1, -GUARD, -1):
                tried += 1
                damaged = buffer.clone()
                damaged[at] = 1
                if overrun(check, damaged) is None:
                    missed.append(f"{check.label} rank {rank}: overrun at {at} not seen")
    print(json.dumps({"accepted": accepted, "tried": tried, "missed": missed}))


if __name__ == "__main__":
    main()
