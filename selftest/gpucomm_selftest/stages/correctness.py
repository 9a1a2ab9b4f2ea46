"""Stage `correctness`: every collective, reduction and dtype through torch, by exact values.

What is called is in operations.py, which numbers must come back in collectives.py, and how they
are compared in compare.py. Here the ranks go through the plan in step, and the launcher makes one
verdict of what they report. A check that the backend refuses is `unsupported`, never passed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpucomm_selftest.attribution import numbered
from gpucomm_selftest.collectives import LARGE_COUNTS, SMALL_COUNTS, Check, plan
from gpucomm_selftest.crew import Event
from gpucomm_selftest.findings import FAIL, PASS, UNSUPPORTED, Finding, found
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped
from gpucomm_selftest.unsupported import is_refusal


def _one(context: RankContext, check: Check, device: Any) -> tuple[str, str]:
    """One check on this rank: its level, and what is to be said about it."""
    from gpucomm_selftest.compare import (
        difference,
        expected_blocks,
        guarded_target,
        overrun,
        source_blocks,
    )
    from gpucomm_selftest.operations import OPERATIONS

    source = source_blocks(check, context.rank, context.world, device)
    buffer, target = guarded_target(check, context.world, device)
    try:
        OPERATIONS[check.collective](check, source, target, context.rank, context.world)
    except Exception as error:
        if not is_refusal(type(error).__name__, str(error)):
            raise
        return UNSUPPORTED, " ".join(str(error).split("\n")[0].split())[:200]
    expected = expected_blocks(check, context.rank, context.world, device)
    wrong = difference(check, target, expected) or overrun(check, buffer)
    return (FAIL, wrong) if wrong else (PASS, "")


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    device = context.kept["device"]
    made = 0
    for check in plan(context.world, tuple(args["counts"])):
        context.enter(check.label)
        level, detail = _one(context, check, device)
        context.send("check", number=made, level=level, detail=detail)
        made += 1
    return {"checks": made}


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
    if refused:
        measured = _refusals(refused)
        findings.append(found("GC0303" if backend == "gloo" else "GC0304", measured))
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
    counts = LARGE_COUNTS if world.gpus and not world.shares_gpus else SMALL_COUNTS
    checks = plan(world.size, counts)
    reports: dict[int, list[tuple[int, str, str]]] = {rank: [] for rank in range(world.size)}

    def collect(rank: int, event: Event) -> None:
        if event["event"] == "check":
            reports[rank].append((event["number"], event["level"], event["detail"]))

    outcome = crew.work(STAGE.id, lambda rank: {"counts": counts}, deadline, collect)
    if outcome.ended:
        result = stopped(STAGE.id, deadline, outcome)
        # What all ranks had reported before it stopped.
        common = min(len(of_rank) for of_rank in reports.values())
        done = {rank: of_rank[:common] for rank, of_rank in reports.items()}
        result.rows = merge(checks[:common], done)
        judged = judge(result.rows, done, world.backend)
        result.findings += [finding for finding in judged if finding.id == "GC0302"]
        return result
    rows = merge(checks, reports)
    findings = judge(rows, reports, world.backend)
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
