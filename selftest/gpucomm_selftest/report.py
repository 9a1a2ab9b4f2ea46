"""The report of one run as plain data, and its verdict. Everything shown comes out of it.

Pure: it is given the session and the results. The text for people is in text.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpucomm_selftest import __version__
from gpucomm_selftest.environment import shown
from gpucomm_selftest.errors import FAILED, HUNG, PASSED, UNUSABLE
from gpucomm_selftest.findings import FAIL, UNSUPPORTED, WARN, Finding
from gpucomm_selftest.stage import HUNG as STAGE_HUNG
from gpucomm_selftest.stage import INTERRUPTED, Session, StageResult
from gpucomm_selftest.stage import PASSED as STAGE_PASSED

# The number of docs/selftest.schema.json: another one where a reader must change.
SCHEMA = 2

# How much of the output of failed ranks goes into the text.
_SHOWN_RANKS = 3
_FRAMES = 6
_LAST_LINES = 12

Report = dict[str, Any]


def verdict(
    results: Sequence[StageResult], after: Sequence[Finding], interrupted_by: int | None
) -> tuple[str, int]:
    """The verdict and the exit code; no stage at all is no pass.

    What decides, in this order: a place that cannot run the test, a hang, an interrupt, a failure.
    """
    if any(result.unusable for result in results):
        return "unusable", UNUSABLE
    if any(result.status == STAGE_HUNG for result in results):
        return "hang", HUNG
    findings = [finding for result in results for finding in result.findings] + list(after)
    interrupted = interrupted_by is not None or any(r.status == INTERRUPTED for r in results)
    if interrupted:
        # What a shell reports of a program that a signal ended.
        return "interrupted", 128 + (interrupted_by or 0)
    ran = [result for result in results if result.status == STAGE_PASSED]
    if any(finding.level == FAIL for finding in findings) or not ran:
        return "fail", FAILED
    return "pass", PASSED


def _sentence(
    name: str, results: Sequence[StageResult], findings: Sequence[Finding], functional_only: bool
) -> str:
    if name == "pass":
        said = [result.summary for result in results if result.status == STAGE_PASSED]
        sentence = said[-1]
        remarks = [
            f"{count} {word}"
            for word, count in (
                ("unsupported", sum(row.get("level") == UNSUPPORTED for row in _rows(results))),
                ("warning(s)", sum(finding.level == WARN for finding in findings)),
            )
            if count
        ]
        if functional_only:
            remarks.append("functional test only: ranks share a GPU")
        return f"{sentence} ({', '.join(remarks)})" if remarks else sentence
    failed = [finding for finding in findings if finding.level == FAIL]
    return f"{failed[0].id}: {failed[0].measured}" if failed else "no stage ran"


def _rows(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    return [row for result in results for row in result.rows]


def settings(session: Session) -> dict[str, Any]:
    """Everything that was asked for, and everything in the environment that matters."""
    options = session.options
    return {
        "backend": options.backend,
        "nproc": options.nproc,
        "ranks_per_gpu": options.ranks_per_gpu,
        "launcher": session.launch.as_json(),
        "budget": options.budget,
        "timeout": options.timeout,
        "stages": options.stage_ids,
        "added_stages": options.added_ids,
        "deadlines": options.deadlines,
        "environment": shown(options.environ),
    }


def describe_world(session: Session) -> dict[str, Any] | None:
    world = session.world
    if world is None:
        return None
    environments = [world.environment_of(rank) for rank in range(world.size)]
    by_rank = [
        name
        for name in sorted({name for one in environments for name in one})
        if len({one.get(name) for one in environments}) > 1
    ]
    return {
        "size": world.size,
        "backend": world.backend,
        "why_backend": world.why_backend,
        "gpus": world.gpus,
        "functional_only": world.shares_gpus,
        "environment_set": {
            name: value for name, value in environments[0].items() if name not in by_rank
        }
        | dict.fromkeys(by_rank, "its own on every rank"),
        "ranks": [
            {
                "rank": rank,
                "pid": pid,
                "gpu": world.gpu_of(rank),
                "host": session.crew.hosts[rank] if session.crew else "",
            }
            for rank, pid in sorted((session.crew.pids if session.crew else {}).items())
        ],
    }


def stage_as_json(result: StageResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "deadline": result.deadline,
        "summary": result.summary,
        "rows": result.rows,
        "stopped_ranks": result.ranks,
        "evidence": result.evidence,
    }


def head(session: Session) -> Report:
    """The part that is known before the ranks start."""
    return {
        "schema": SCHEMA,
        "program": "gpucomm-selftest",
        "version": __version__,
        "settings": settings(session),
        "versions": session.probe,
        "world": describe_world(session),
    }


def build(
    session: Session,
    results: Sequence[StageResult],
    after: Sequence[Finding],
    seconds: float,
) -> Report:
    name, code = verdict(results, after, session.interrupt.signal)
    findings = [finding for result in results for finding in result.findings] + list(after)
    report = head(session)
    report.update(
        verdict=name,
        exit_code=code,
        summary=_sentence(
            name, results, findings, session.world is not None and session.world.shares_gpus
        ),
        stages=[stage_as_json(result) for result in results],
        findings=[
            {**finding.as_json(), "stage": stage}
            for stage, of_stage in [*((one.id, one.findings) for one in results), ("", after)]
            for finding in of_stage
        ],
        seconds=round(seconds, 3),
    )
    return report


def _telling(output: Sequence[str]) -> list[str]:
    """The lines worth showing: the innermost frames of a stack, or else the last words."""
    starts = [at for at, line in enumerate(output) if line.endswith("(most recent call first):")]
    if starts:
        return list(output[max(0, starts[-1] - 2) : starts[-1] + _FRAMES])
    return list(output[-_LAST_LINES:])


def failed_output(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What the ranks said last, of the stage that did not come to its end, for a person to read.

    Of ranks that died or raised, or else of some that hang; JSON has all of them.
    """
    for stage in report["stages"]:
        ranks = stage["stopped_ranks"]
        if stage["status"] in ("fail", "hang") and ranks:
            named = [
                one for one in ranks if one["error"] or one["signal"] or one["exit_status"]
            ] or ranks
            spoken = [one for one in named if one["output"]]
            return [(one["name"], _telling(one["output"])) for one in spoken[:_SHOWN_RANKS]]
    return []
