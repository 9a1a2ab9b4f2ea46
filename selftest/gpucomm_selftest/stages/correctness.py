"""Stage `correctness`: every collective, reduction and dtype through torch, by exact values.

What is called is in operations.py, which numbers must come back in collectives.py, what is checked
in plan.py, and how outputs are compared in compare.py. Here the ranks go through the plan in step,
and the launcher makes one verdict of what they report. A check that the backend refuses is
`unsupported`, never passed.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from gpucomm_selftest.attribution import numbered
from gpucomm_selftest.collectives import COLLECTIVES, OBJECT, Check, expected_objects
from gpucomm_selftest.crew import Event
from gpucomm_selftest.findings import FAIL, PASS, UNSUPPORTED, Finding, found
from gpucomm_selftest.plan import DEEP, QUICK, STANDARD, Setting, plan
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped
from gpucomm_selftest.unsupported import is_refusal

# How much longer than a quick run the others may take.
_LONGER = {QUICK: 1, STANDARD: 3, DEEP: 10}

# What every NCCL and RCCL since 2.10 offers: a refusal of it is a fault.
_SURE = ("fp32", "fp16", "bf16", "fp64", "int8", "uint8", "int32", "int64")

# number of the check -> what this rank asked of the process group in it
Calls = Mapping[int, Sequence[str]]


def _call(context: RankContext, check: Check, device: Any) -> Any:
    from gpucomm_selftest.operations import Call

    sizes = [check.count], [check.count]
    if check.dtype != OBJECT:
        collective = COLLECTIVES[check.collective]
        sizes = (
            collective.sizes_in(check, context.world, context.rank),
            collective.sizes_out(check, context.world, context.rank),
        )
    return Call(
        check=check,
        rank=context.rank,
        world=context.world,
        kept=context.kept,
        device=device,
        sizes_in=sizes[0],
        sizes_out=sizes[1],
    )


def _missing(check: Check, device: Any) -> str:
    """Why this torch or this GPU cannot make a check, or nothing."""
    import torch

    from gpucomm_selftest.compare import torch_dtype, torch_name

    if check.dtype != OBJECT and torch_dtype(check.dtype) is None:
        return f"this torch has no {torch_name(check.dtype)}"
    if check.dtype.startswith("fp8") and check.op and device.type == "cuda":
        if torch.version.hip:
            return "RCCL reduces fp8 on some GPUs only"
        if torch.cuda.get_device_capability(device) < (9, 0):
            return "NCCL reduces fp8 from compute capability 9.0 on"
    return ""


def _wrong_objects(context: RankContext, check: Check, held: Sequence[Any]) -> str | None:
    expected = expected_objects(check, context.world, context.rank)
    if len(held) != len(expected):
        return f"{len(held)} objects, expected {len(expected)}"
    wrong = [at for at, pair in enumerate(zip(held, expected, strict=True)) if pair[0] != pair[1]]
    if not wrong:
        return None
    at = wrong[0]
    return (
        f"{len(wrong)} of {len(expected)} objects wrong, first at index {at}: "
        f"got {str(held[at])[:80]}, expected {str(expected[at])[:80]}"
    )


def _make(context: RankContext, check: Check, device: Any, watch: Any) -> str | None:
    """Makes one check, and says what is wrong with what came back."""
    from gpucomm_selftest.compare import (
        difference,
        expected_blocks,
        guarded_source,
        guarded_target,
        overrun,
        touched,
    )
    from gpucomm_selftest.operations import OBJECT_OPERATIONS, OPERATIONS

    rank, world = context.rank, context.world
    call = _call(context, check, device)
    if check.dtype == OBJECT:
        with watch:
            held = OBJECT_OPERATIONS[check.collective](call)
        return _wrong_objects(context, check, held)
    _, call.source = guarded_source(check, rank, world, device)
    buffer, call.target = guarded_target(check, rank, world, device)
    before = call.source.clone()
    with watch:
        OPERATIONS[check.collective](call)
    expected = expected_blocks(check, rank, world, device)
    return (
        difference(check, call.target, expected, rank, world)
        or overrun(check, buffer)
        or touched(check, before, call.source)
    )


def _one(context: RankContext, number: int, check: Check, device: Any) -> tuple[str, str]:
    """One check on this rank: its level, and what is to be said about it."""
    from gpucomm_selftest.calls import watching

    missing = _missing(check, device)
    if missing:
        return UNSUPPORTED, missing

    def tell(what: str) -> None:
        context.send("call", number=number, what=what)

    # A graph is captured from these calls: nothing may stand between.
    captured = check.dtype != OBJECT and COLLECTIVES[check.collective].needs_gpu
    try:
        wrong = _make(context, check, device, nullcontext() if captured else watching(tell))
    except Exception as error:
        if not is_refusal(type(error).__name__, str(error)):
            raise
        return UNSUPPORTED, " ".join(str(error).split("\n")[0].split())[:200]
    return (FAIL, wrong) if wrong else (PASS, "")


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    device = context.kept["device"]
    checks = plan(Setting(**args))
    for number, check in enumerate(checks):
        context.enter(check.label)
        level, detail = _one(context, number, check, device)
        context.send("check", number=number, level=level, detail=detail)
    return {"checks": len(checks)}


def _is_uniform(check: Check) -> bool:
    return check.dtype != OBJECT and COLLECTIVES[check.collective].uniform


def _as_planned(check: Check, calls: Sequence[str]) -> bool:
    """Whether they are what this program asks for, so far as can be told."""
    from gpucomm_selftest.compare import torch_name

    if not _is_uniform(check):
        return bool(calls)
    size = check.count
    kinds = [f"{torch_name(check.dtype)}[{size}]"]
    if check.dtype == "complex64":
        kinds.append(f"float32[{2 * size}]")
    return bool(calls) and all(any(kind in call for kind in kinds) for call in calls)


def odd_ranks(check: Check, calls: Mapping[int, Sequence[str]], ended: Sequence[int]) -> list[int]:
    """The ranks that called torch otherwise than the others in one check.

    As long as a rank is still in it, all are compared by as many calls as that one has made.
    """
    limit = min((len(made) for rank, made in calls.items() if rank not in ended), default=None)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, made in sorted(calls.items()):
        said = tuple(made[:limit])
        if not _is_uniform(check):
            # Each rank has a part of its own, but none of them calls nothing.
            said = ("something",) * bool(said)
        groups.setdefault(said, []).append(rank)
    if len(groups) < 2:
        return []
    right = max(groups, key=lambda made: (_as_planned(check, made), len(groups[made])))
    return sorted(rank for made, ranks in groups.items() if made != right for rank in ranks)


def judge_calls(
    checks: Sequence[Check],
    calls: Mapping[int, Calls],
    reports: Mapping[int, Sequence[tuple[int, str, str]]],
) -> list[Finding]:
    """Names the ranks that called a collective with another type or size, or not at all."""
    ended = {rank: {number for number, _, _ in of_rank} for rank, of_rank in reports.items()}
    for number, check in enumerate(checks):
        made = {
            rank: list(calls.get(rank, {}).get(number, ()))
            for rank in reports
            if number in ended[rank] or number in calls.get(rank, {})
        }
        if not any(made.values()):
            continue
        odd = odd_ranks(check, made, [rank for rank in made if number in ended[rank]])
        if odd:
            others = [rank for rank in made if rank not in odd]
            said = [
                f"{numbered(ranks)} called {'; '.join(made[ranks[0]]) or 'nothing'}"
                for ranks in [*([rank] for rank in odd), others]
            ]
            return [found("GC0309", f"{check.label}: {'; '.join(said)}")]
    return []


def merge(
    checks: Sequence[Check], reports: Mapping[int, Sequence[tuple[int, str, str]]]
) -> list[dict[str, Any]]:
    """One row per check out of what every rank said of it: the worst of them counts."""
    said: list[dict[int, tuple[str, str]]] = [{} for _ in checks]
    for rank, of_rank in reports.items():
        for number, level, detail in of_rank:
            said[number][rank] = (level, detail)
    rows = []
    for check, by_rank in zip(checks, said, strict=True):
        levels = {level for level, _ in by_rank.values()}
        worst = next((one for one in (FAIL, UNSUPPORTED, PASS) if one in levels), FAIL)
        if len(levels) > 1 and FAIL not in levels:
            # Refused on one rank and right on another cannot be: a collective takes all ranks.
            worst = FAIL
        details = {
            str(rank): f"{level}: {detail}" if detail else level
            for rank, (level, detail) in sorted(by_rank.items())
            if level != PASS or worst == FAIL
        }
        rows.append(
            {
                "check": check.label,
                "collective": check.collective,
                "op": check.op,
                "dtype": check.dtype,
                "count": check.count,
                "unaligned": check.unaligned,
                "values": check.values,
                "level": worst,
                "ranks": details,
            }
        )
    return rows


def _refusals(refused: Sequence[Mapping[str, Any]]) -> str:
    """`reduce_scatter sum fp32,fp16 (what torch said); ...`"""
    groups: dict[str, dict[str, list[str]]] = {}
    for row in refused:
        why = next(iter(row["ranks"].values())).partition(": ")[2]
        what = f"{row['collective']} {row['op']}".strip()
        dtypes = groups.setdefault(why, {}).setdefault(what, [])
        if row["dtype"] not in dtypes:
            dtypes.append(row["dtype"])
    return "; ".join(
        ", ".join(f"{what} {','.join(dtypes)}" for what, dtypes in whats.items()) + f" ({why})"
        for why, whats in groups.items()
    )


def judge(
    rows: Sequence[Mapping[str, Any]],
    reports: Mapping[int, Sequence[tuple[int, str, str]]],
    backend: str,
) -> list[Finding]:
    findings = []
    short = [
        f"rank {rank} reported {len({number for number, _, _ in of_rank})}"
        for rank, of_rank in sorted(reports.items())
        if {number for number, _, _ in of_rank} != set(range(len(rows)))
    ]
    if short:
        findings.append(found("GC0305", f"of {len(rows)} checks {', '.join(short)}"))
    wrong = [row for row in rows if row["level"] == FAIL]
    if wrong:
        ranks = sorted(
            {int(rank) for row in wrong for rank, said in row["ranks"].items() if said != PASS}
        )
        first = next(
            (f"rank {rank}: {said}" for rank, said in wrong[0]["ranks"].items() if said != PASS),
            "no rank said why",
        )
        on = f" on {numbered(ranks)}" if ranks else ""
        findings.append(
            found(
                "GC0302",
                f"{len(wrong)} of {len(rows)} checks wrong{on}; first {wrong[0]['check']}: {first}",
            )
        )
    refused = [row for row in rows if row["level"] == UNSUPPORTED]
    faults = [row for row in refused if backend == "nccl" and row["dtype"] in _SURE]
    offered_not = [row for row in refused if row not in faults]
    if offered_not:
        findings.append(found("GC0303", _refusals(offered_not)))
    if faults:
        findings.append(found("GC0304", _refusals(faults)))
    passed = sum(row["level"] == PASS for row in rows)
    if not passed and not wrong:
        findings.append(found("GC0306", f"0 of {len(rows)} checks could be made"))
    if status_of(findings) == PASS:
        findings.insert(0, found("GC0301", f"{passed} of {len(rows)} checks exact"))
    return findings


def run(session: Session, deadline: float) -> StageResult:
    world, crew = session.world, session.crew
    if world is None or crew is None:
        raise RuntimeError("correctness runs after init")
    budget = getattr(session.options, "budget", QUICK)
    if getattr(session.options, "timeout", None) is None:
        deadline *= _LONGER[budget]
    setting = Setting(
        world=world.size,
        backend=world.backend,
        gpu=world.gpus > 0,
        shared=world.shares_gpus,
        budget=budget,
    )
    checks = plan(setting)
    reports: dict[int, list[tuple[int, str, str]]] = {rank: [] for rank in range(world.size)}
    calls: dict[int, dict[int, list[str]]] = {rank: {} for rank in range(world.size)}

    def collect(rank: int, event: Event) -> None:
        if event["event"] == "check":
            reports[rank].append((event["number"], event["level"], event["detail"]))
        elif event["event"] == "call":
            calls[rank].setdefault(event["number"], []).append(event["what"])

    outcome = crew.work(STAGE.id, lambda rank: vars(setting), deadline, collect)
    odd = judge_calls(checks, calls, reports)
    if outcome.ended:
        result = stopped(STAGE.id, deadline, outcome)
        # What all ranks had reported before it stopped.
        common = min(len(of_rank) for of_rank in reports.values())
        done = {rank: of_rank[:common] for rank, of_rank in reports.items()}
        result.rows = merge(checks[:common], done)
        judged = judge(result.rows, done, world.backend)
        result.findings += [finding for finding in judged if finding.id == "GC0302"]
        # The cause comes before what it led to.
        result.findings[:0] = odd
        return result
    rows = merge(checks, reports)
    findings = [*odd, *judge(rows, reports, world.backend)]
    passed = sum(row["level"] == PASS for row in rows)
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=f"{passed} of {len(rows)} checks exact on {world.size} ranks",
        rows=rows,
        findings=findings,
    )


STAGE = Stage(
    id="correctness",
    title="collectives by exact values",
    needs=("init",),
    deadline=120.0,
    run=run,
    work=work,
)
