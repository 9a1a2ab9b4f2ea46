"""The probes: the processes in which the stages before the ranks look around, one at each site.

They live from the first stage that asks until the ranks start, so that torch is imported once. A
stage that hangs or crashes one costs the next stage new probes, and nothing else. Runs in the
launcher and must not know what any stage asks.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gpucomm_selftest.crew import Crew, Outcome
from gpucomm_selftest.findings import Finding
from gpucomm_selftest.sites import sites_of
from gpucomm_selftest.stage import Session


def ask(
    session: Session, stage: str, args: Callable[[int], Mapping[str, Any]], deadline: float
) -> Outcome:
    """What `work` of a stage returns in the probe of each site, by the number of the site, where
    `ended` is empty. There is one site unless several copies of the self-test have met."""
    if session.probe_crew is None:
        options = session.options
        session.sites = session.sites or sites_of(
            session.here, options.environ, session.launch.local_rank, session.meeting
        )
        crew = Crew(
            places=[site.place for site in session.sites],
            stands_for=[site.ranks for site in session.sites],
            role="probe",
            environment_of=lambda rank: {},
            interrupt=session.interrupt,
            log=session.log,
        )
        try:
            crew.start()
        except BaseException:
            crew.end()
            raise
        session.probe_crew = crew
    outcome = session.probe_crew.work(stage, args, deadline)
    if outcome.ended:
        session.probe_crew = None
    return outcome


def end(session: Session) -> list[Finding]:
    """Ends the probes, and says so where one could not be ended."""
    crew, session.probe_crew = session.probe_crew, None
    return [] if crew is None else crew.end()
