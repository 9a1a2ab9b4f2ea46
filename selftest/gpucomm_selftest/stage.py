"""The one interface of a stage, and what its two sides are given.

A stage is one module in stages/: `run` is called in the launcher, which may not import torch;
`work` is called inside each rank process, which may hang or die at any moment. This module must
not know any particular stage.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucomm_selftest.findings import FAIL, Finding

if TYPE_CHECKING:
    from gpucomm_selftest.crew import Crew, Outcome
    from gpucomm_selftest.crumbs import Writer
    from gpucomm_selftest.errors import UnusableError
    from gpucomm_selftest.interrupt import Interrupt
    from gpucomm_selftest.launcher import Launch
    from gpucomm_selftest.meeting import Meeting
    from gpucomm_selftest.places import Here
    from gpucomm_selftest.sites import Site
    from gpucomm_selftest.world import World

# What a stage can end with. The last three mean that it decided nothing.
PASSED, FAILED, HUNG = "pass", "fail", "hang"
# The stage of a rank that tears down.
LEAVING = "leave"
SKIPPED, NOT_REACHED, INTERRUPTED = "skipped", "not reached", "interrupted"


@dataclass(kw_only=True)
class StageResult:
    id: str
    status: str
    deadline: float
    seconds: float = 0.0
    summary: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    # What the launcher saw of each rank, where the stage did not come to its end.
    ranks: list[dict[str, Any]] = field(default_factory=list)
    # What the library said of itself while the ranks hung.
    evidence: list[str] = field(default_factory=list)
    # The environment has no way to run the test: another exit code than a failed check.
    unusable: bool = False


@dataclass(kw_only=True)
class Session:
    """What the stages of one run share in the launcher."""

    options: argparse.Namespace
    interrupt: "Interrupt"
    log: Callable[[str], None]
    # What a person who waits should know, also without --verbose.
    notice: Callable[[str], None]
    here: "Here"
    # Who started this copy, or what is wrong with what it was told of that.
    launch: "Launch"
    partial: "UnusableError | None" = None
    meeting: "Meeting | None" = None
    # Where the stages before the ranks look around, and what torch is at each.
    sites: "tuple[Site, ...]" = ()
    probes: list[dict[str, Any]] = field(default_factory=list)
    world: "World | None" = None
    crew: "Crew | None" = None
    probe_crew: "Crew | None" = None

    @property
    def met(self) -> bool:
        """Whether all ranks are where this copy can start them."""
        if self.meeting is not None:
            return self.meeting.whole
        return self.partial is None and not self.launch.meets

    @property
    def probe(self) -> dict[str, Any] | None:
        """What torch is in this copy, once that is known."""
        return self.probes[0] if self.probes else None


@dataclass(kw_only=True)
class RankContext:
    """What a rank process has: its place, its channel to the launcher, and what earlier stages
    left for later ones."""

    rank: int
    world: int
    channel: int
    crumbs: "Writer"
    kept: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, event: str, **content: Any) -> None:
        data = (json.dumps({"event": event, **content}) + "\n").encode()
        with self._lock:
            while data:
                data = data[os.write(self.channel, data) :]

    def enter(self, operation: str) -> None:
        """Leaves word where this rank is, before it may hang or die there."""
        self.crumbs.enter(operation)

    def receive(self) -> dict[str, Any]:
        """The next command of the launcher. Ends the process where the launcher has gone."""
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        command: dict[str, Any] = json.loads(line)
        return command


@dataclass(frozen=True, kw_only=True)
class Stage:
    id: str
    title: str
    needs: tuple[str, ...]  # stages that must have passed
    deadline: float  # seconds, unless --timeout says otherwise
    run: Callable[[Session, float], StageResult]
    work: Callable[[RankContext, Mapping[str, Any]], dict[str, Any]]
    # Whether it only has something to do where a launcher started several copies.
    of_launches: bool = False


def stopped(stage_id: str, deadline: float, outcome: "Outcome") -> StageResult:
    """The result of a stage whose ranks did not all come to its end."""
    return StageResult(
        id=stage_id,
        status={"hang": HUNG, "interrupted": INTERRUPTED}.get(outcome.ended, FAILED),
        deadline=deadline,
        summary=outcome.findings[0].measured,
        findings=outcome.findings,
        ranks=outcome.ranks,
        evidence=outcome.evidence,
    )


def status_of(findings: list[Finding]) -> str:
    return FAILED if any(finding.level == FAIL for finding in findings) else PASSED
