"""The probe: the one process in which the stages before the ranks look around.

It lives from the first stage that asks until the ranks start, so that torch is imported once. A
stage that hangs or crashes it costs the next stage a new probe, and nothing else. Runs in the
launcher and must not know what any stage asks.
"""

from collections.abc import Mapping
from typing import Any

from gpucomm_selftest.crew import Crew, Outcome
from gpucomm_selftest.findings import Finding
from gpucomm_selftest.stage import Session


def ask(session: Session, stage: str, args: Mapping[str, Any], deadline: float) -> Outcome:
    """What `work` of a stage returns in the probe; `results[0]` where `ended` is empty."""
    if session.probe_crew is None:
        session.probe_crew = Crew(
            size=1,
            role="probe",
            environment_of=lambda rank: {},
            interrupt=session.interrupt,
            log=session.log,
        )
        session.probe_crew.start()
    outcome = session.probe_crew.work(stage, lambda rank: args, deadline)
    if outcome.ended:
        session.probe_crew = None
    return outcome


def end(session: Session) -> list[Finding]:
    """Ends the probe, and says so where it could not be ended."""
    crew, session.probe_crew = session.probe_crew, None
    return [] if crew is None else crew.end()
