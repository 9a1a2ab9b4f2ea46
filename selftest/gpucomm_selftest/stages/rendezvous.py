"""Stage `rendezvous`: all copies of the self-test that a launcher started find each other.

Without a launcher there is nothing to find, and the stage only runs where it is asked for. It runs
in rank 0's copy and starts no process.
"""

from collections.abc import Mapping
from typing import Any

from gpucomm_selftest import meeting
from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.findings import found
from gpucomm_selftest.stage import (
    FAILED,
    INTERRUPTED,
    PASSED,
    RankContext,
    Session,
    Stage,
    StageResult,
)

# What says that the test was not set up, rather than that it failed.
_UNUSABLE = ("GC0701", "GC0704", "GC0705")


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    raise RuntimeError("rendezvous starts no process")


def failure(finding_id: str, measured: str, deadline: float) -> StageResult:
    return StageResult(
        id=STAGE.id,
        status=FAILED,
        deadline=deadline,
        summary=measured,
        findings=[found(finding_id, measured)],
        unusable=finding_id in _UNUSABLE,
    )


def run(session: Session, deadline: float) -> StageResult:
    launch = session.launch
    if session.partial is not None:
        return failure(session.partial.finding_id, session.partial.measured, deadline)
    if not launch.meets:
        alone = "one copy" if launch.family == "none" else f"{launch.family}, one copy"
        return StageResult(
            id=STAGE.id,
            status=PASSED,
            deadline=deadline,
            summary=f"{alone}: it starts its own ranks",
        )
    try:
        server = meeting.listen(launch)
    except UnusableError as error:
        return failure(error.finding_id, error.measured, deadline)
    made = session.meeting = meeting.Meeting(launch)
    with server:
        port = server.getsockname()[1]
        session.log(f"{launch.family}: rank 0 of {launch.size} waits at {launch.address}:{port}")
        problem = made.gather(
            server, deadline, session.interrupt, log=session.log, notice=session.notice
        )
    if problem is not None:
        return failure(*problem, deadline)
    if session.interrupt.signal is not None:
        return StageResult(id=STAGE.id, status=INTERRUPTED, deadline=deadline)
    session.here.host = made.name_hosts()
    names = {copy.identity["name"] for copy in made.copies.values()} | {made.identity["name"]}
    where = f"{len(names)} hosts" if len(names) > 1 else "one host"
    measured = f"{launch.family}: {launch.size} copies on {where}, at {launch.address}:{port}"
    return StageResult(
        id=STAGE.id,
        status=PASSED,
        deadline=deadline,
        summary=measured,
        rows=[
            {
                "rank": rank,
                "host": identity["name"],
                "pid": identity["pid"],
                "interface": interface,
            }
            for rank, identity, interface in (
                (0, made.identity, made.interface),
                *((rank, c.identity, c.interface) for rank, c in sorted(made.copies.items())),
            )
        ],
        findings=[found("GC0700", measured)],
    )


STAGE = Stage(
    id="rendezvous",
    title="copies of the self-test",
    needs=(),
    deadline=120.0,
    run=run,
    work=work,
    of_launches=True,
)
