"""Feeds right and then damaged outputs to the checker, and prints what it made of them as JSON.

A script, not a test: test_torch.py runs it in the Python or image that has torch. The right output
is not the product's prediction: it is computed here from what the ranks send, by the definition of
each collective.
"""

import json
from typing import Any

import torch

from gpucomm_selftest.collectives import COLLECTIVES, OBJECT, Check
from gpucomm_selftest.compare import (
    GUARD,
    bits,
    difference,
    expected_blocks,
    guarded_source,
    guarded_target,
    overrun,
    source_blocks,
    torch_dtype,
    touched,
)
from gpucomm_selftest.plan import STANDARD, Setting, plan

WORLD = 3


def checks() -> list[Check]:
    """All that any backend is asked for, with few elements."""
    planned = [
        *plan(Setting(world=WORLD, backend="gloo", budget=STANDARD)),
        *plan(Setting(world=WORLD, backend="nccl", gpu=True, budget=STANDARD)),
    ]
    small = {one.label: one for one in planned if one.count <= 1021 and one.dtype != OBJECT}
    return [one for one in small.values() if torch_dtype(one.dtype) is not None]


def right_outputs(check: Check) -> list[Any]:
    """What each rank must hold, from what all ranks send, by the definition."""
    collective = COLLECTIVES[check.collective]
    sent = [
        source_blocks(check, rank, WORLD, "cpu").split(collective.sizes_in(check, WORLD, rank))
        for rank in range(WORLD)
    ]
    dtype = torch_dtype(check.dtype)
    combine = {
        "sum": lambda x: x.sum(0),
        "prod": lambda x: x.prod(0),
        "min": lambda x: x.amin(0),
        "max": lambda x: x.amax(0),
        "avg": lambda x: x.sum(0) / len(x),
        "premul_sum": lambda x: 2 * x.sum(0),
        "band": lambda x: x[0] & x[1] & x[2],
        "bor": lambda x: x[0] | x[1] | x[2],
        "bxor": lambda x: x[0] ^ x[1] ^ x[2],
    }

    def over(members: Any, block: int) -> Any:
        stack = torch.stack([sent[rank][block] for rank in members])
        if dtype.is_complex:
            return combine[check.op](stack.to(torch.complex128)).to(dtype)
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        return combine[check.op](stack.to(wide)).to(dtype)

    name, ranks = check.collective, range(WORLD)
    if name == "all_reduce_subgroup":
        return [over([0, 2], 0) if rank % 2 == 0 else sent[1][0] for rank in ranks]
    if name.startswith("all_reduce"):
        return [over(ranks, 0)] * WORLD
    if name.startswith("reduce"):
        return [over(ranks, to) for to in ranks]
    if name.startswith("all_gather"):
        return [together([sent[r][0] for r in ranks])] * WORLD
    if name == "broadcast":
        return [together([sent[root][root] for root in ranks])] * WORLD
    if name == "send_recv_ring":
        return [sent[rank - 1][0] for rank in ranks]
    if name == "barrier":
        return [torch.full((check.count,), WORLD, dtype=dtype)] * WORLD
    return [together([sent[s][to] for s in ranks]) for to in ranks]


def together(blocks: list[Any]) -> Any:
    """As bytes: older torch does not join every dtype."""
    return torch.cat([one.contiguous().view(torch.uint8) for one in blocks]).view(blocks[0].dtype)


def one_bit(output: Any, dtype: str, at: int) -> Any:
    """The last bit of one element, which is one unit in the last place."""
    damaged = output.clone()
    bits(damaged, dtype)[at] ^= 1
    return damaged


def rolled(output: Any, dtype: str) -> Any:
    return bits(output, dtype).roll(1).view(output.dtype)


def same(one: Any, other: Any, dtype: str) -> bool:
    return bool(torch.equal(bits(one, dtype), bits(other, dtype)))


def damages(check: Check, output: Any, outputs: list[Any], rank: int) -> dict[str, Any]:
    """Outputs that are wrong, each in one way."""
    other = torch.float32 if check.dtype == "fp64" else torch.float64
    made = {"another dtype": output.to(torch.complex128 if output.is_complex() else other)}
    made["an element too many"] = torch.cat([bits(output, check.dtype)] * 2)[: output.numel() + 1]
    made["an element too many"] = made["an element too many"].view(output.dtype)
    if output.numel() == 0:
        return {"another dtype": made["another dtype"]}
    dtype = check.dtype
    made["last bit, first element"] = one_bit(output, dtype, 0)
    made["last bit, last element"] = one_bit(output, dtype, -1)
    if not check.values:
        made["nothing written"] = guarded_target(check, rank, WORLD, "cpu")[1].clone()
    made["no element"] = output[:0]
    if check.count > 1:
        made["all zero"] = torch.zeros_like(output)
        made["shifted by one"] = rolled(output, dtype)
        made["last element missing"] = output.clone()
        unwritten = guarded_target(check, rank, WORLD, "cpu")[0]
        bits(made["last element missing"], dtype)[-1] = bits(unwritten, dtype)[0]
        if check.values:
            made["nothing special"] = expected_blocks(plain(check), rank, WORLD, "cpu")
        for one in outputs:
            if one.shape == output.shape and not same(one, output, dtype):
                made["the output of another rank"] = one
        collective = COLLECTIVES[check.collective]
        if collective.spread_out and len(set(collective.sizes_out(check, WORLD, rank))) == 1:
            blocks = output.split(collective.sizes_out(check, WORLD, rank))
            made["swapped ranks"] = together(list(blocks)[::-1])
    return {
        name: damaged
        for name, damaged in made.items()
        if damaged.dtype != output.dtype
        or damaged.shape != output.shape
        or not same(damaged, output, dtype)
    }


def plain(check: Check) -> Check:
    return Check(collective=check.collective, op=check.op, dtype=check.dtype, count=check.count)


def main() -> None:
    accepted, missed, tried = 0, [], 0
    for check in checks():
        outputs = right_outputs(check)
        for rank in range(WORLD):
            output = outputs[rank]
            expected = expected_blocks(check, rank, WORLD, "cpu")
            said = difference(check, output, expected, rank, WORLD)
            if said is None:
                accepted += 1
            else:
                missed.append(f"{check.label} rank {rank}: right output refused: {said}")
            for name, damaged in damages(check, output, outputs, rank).items():
                tried += 1
                if difference(check, damaged, expected, rank, WORLD) is None:
                    missed.append(f"{check.label} rank {rank}: {name} not seen")
            buffer, target = guarded_target(check, rank, WORLD, "cpu")
            bits(target, check.dtype).copy_(bits(output, check.dtype))
            if overrun(check, buffer) is not None:
                missed.append(f"{check.label} rank {rank}: overrun seen where none is")
            start = GUARD + check.unaligned
            for at in (0, start - 1, start + output.numel(), -1):
                tried += 1
                damaged = buffer.clone()
                bits(damaged, check.dtype)[at] ^= 1
                if overrun(check, damaged) is None:
                    missed.append(f"{check.label} rank {rank}: overrun at {at} not seen")
            _, source = guarded_source(check, rank, WORLD, "cpu")
            if touched(check, source, source.clone()) is not None:
                missed.append(f"{check.label} rank {rank}: a change of the input where none is")
            if source.numel():
                tried += 1
                if touched(check, source, one_bit(source, check.dtype, -1)) is None:
                    missed.append(f"{check.label} rank {rank}: a changed input not seen")
    made = len(checks())
    print(json.dumps({"checks": made, "accepted": accepted, "tried": tried, "missed": missed}))


if __name__ == "__main__":
    main()
