"""Gives the rank processes work under a deadline, and ends every one of them.

It must not import torch and must not know what a stage does or where a process sits: it carries
commands one way and JSON lines the other, and tells how the ranks ended.
"""

import json
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucomm_selftest.attribution import RankView, explain_failure, explain_hang, signal_name
from gpucomm_selftest.crumbs import Crumb
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.interrupt import Interrupt
from gpucomm_selftest.places import Place
from gpucomm_selftest.seat import Seat
from gpucomm_selftest.stage import LEAVING

_TICK = 0.05
# How long the others may take to say what they saw after the first one died or raised.
_GRACE = 2.0
_STACKS = 0.5
_STATES = 0.3
_KILL = 5.0
_OUTPUT_KEPT = 32 * 1024

Event = dict[str, Any]
OnEvent = Callable[[int, Event], None]


@dataclass(kw_only=True)
class Outcome:
    """How a piece of work ended. `ended` is empty where every rank finished it."""

    ended: str  # "", failed, hang, interrupted
    results: dict[int, dict[str, Any]]
    findings: list[Finding] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    # What the library said of itself while the ranks hung.
    evidence: list[str] = field(default_factory=list)


class _Member:
    """One rank process and what it has said so far."""

    def __init__(self, rank: int, role: str, seat: Seat, stands_for: tuple[int, ...]) -> None:
        self.rank = rank
        self.stands_for = stands_for
        self.role = role
        self.seat = seat
        self.partial = b""
        self.output = bytearray()
        self.greeted = False
        self.ended_at = 0.0
        self.left = False
        self.recorded: list[str] = []
        self.start_work("")

    def start_work(self, stage: str) -> None:
        self.stage = stage
        self.result: dict[str, Any] | None = None
        self.error: Event | None = None
        self.error_at = 0.0

    @property
    def gone(self) -> bool:
        seat = self.seat
        return seat.signal is not None or seat.status is not None or bool(seat.lost)

    def look(self, now: float) -> None:
        if not self.gone:
            self.seat.look()
            self.ended_at = now

    def view(self) -> RankView:
        error = None
        if self.error is not None:
            text = " ".join(str(self.error["text"]).split())[:400]
            error = f"{self.error['kind']}: {text}"
        crumb = self.seat.crumb()
        if crumb.stage != self.stage:
            # Of the stage before: it has not begun this one.
            crumb = Crumb()
        return RankView(
            rank=self.rank,
            role=self.role,
            pid=self.seat.pid,
            host=self.seat.host,
            stands_for=self.stands_for,
            said_bye=self.seat.said_bye,
            last=crumb.operation,
            entered=crumb.entered,
            done=self.result is not None,
            signal=self.seat.signal,
            status=self.seat.status,
            lost=self.seat.lost,
            ended_at=self.ended_at,
            error=error,
            error_at=self.error_at,
            state="" if self.gone else self.seat.state(),
        )

    def tail(self) -> list[str]:
        return self.output.decode("utf-8", "replace").splitlines()[-40:]


class Crew:
    """One process at each of `places`, by rank; or for several ranks each, where `stands_for` says
    which."""

    def __init__(
        self,
        *,
        places: Sequence[Place],
        role: str,
        environment_of: Callable[[int], Mapping[str, str]],
        interrupt: Interrupt,
        log: Callable[[str], None],
        stands_for: Sequence[tuple[int, ...]] = (),
        capture: bool = False,
        ask_of_hang: Callable[[], list[str]] = list,
    ) -> None:
        self.size = len(places)
        self.role = role
        self._places = places
        self._stands_for = stands_for or [()] * len(places)
        self._environment_of = environment_of
        self._capture = capture
        self._interrupt = interrupt
        self._ask_of_hang = ask_of_hang
        self._log = log
        self._members: list[_Member] = []
        self._ended = False
        # What the collective library wrote on each rank of a crew that was stopped.
        self.logs: dict[int, str] = {}

    @property
    def pids(self) -> dict[int, int]:
        return {member.rank: member.seat.pid for member in self._members}

    @property
    def hosts(self) -> dict[int, str]:
        return {member.rank: member.seat.host for member in self._members}

    def start(self) -> None:
        for rank, place in enumerate(self._places):
            seat = place.start(
                rank=rank,
                role=self.role,
                size=self.size,
                environment=self._environment_of(rank),
                capture=self._capture,
            )
            self._members.append(_Member(rank, self.role, seat, self._stands_for[rank]))
            # Of another copy it is not known yet.
            self._log(f"{self.role} {rank} {f'pid {seat.pid}' if seat.pid else 'is asked for'}")

    def tell(self, rank: int, **command: Any) -> None:
        if not self._members[rank].seat.tell(command):
            # It has gone: the loop will see how.
            self._log(f"{self.role} {rank} does not take commands any more")

    def work(
        self,
        stage: str,
        args: Callable[[int], Mapping[str, Any]],
        deadline: float,
        on_event: OnEvent | None = None,
    ) -> Outcome:
        """Lets every rank do its part of a stage. Whatever ends it early ends the crew."""
        for member in self._members:
            member.start_work(stage)
            self.tell(member.rank, command="work", stage=stage, args=dict(args(member.rank)))
        end = time.monotonic() + deadline
        trouble_since: float | None = None
        while True:
            self._turn(on_event)
            now = time.monotonic()
            if self._interrupt.signal is not None:
                return self._stop("interrupted", stage, deadline)
            if all(member.result is not None for member in self._members):
                return Outcome(ended="", results=self._results())
            if any(member.gone or member.error for member in self._members):
                trouble_since = trouble_since or now
                spoken = all(m.gone or m.error or m.result is not None for m in self._members)
                if spoken or now - trouble_since > _GRACE or now > end:
                    return self._stop("failed", stage, deadline)
            elif now > end:
                return self._stop("hang", stage, deadline)

    def _results(self) -> dict[int, dict[str, Any]]:
        return {m.rank: m.result for m in self._members if m.result is not None}

    def _stop(self, ended: str, stage: str, deadline: float) -> Outcome:
        if ended == "hang":
            self._refresh()
        # Before the stacks are asked for: what is seen now is what the ranks ended with.
        views = [member.view() for member in self._members]
        evidence: list[str] = []
        if ended == "hang":
            self._ask_stacks()
            evidence = [
                f"rank {member.rank}: {line}"
                for member in self._members
                for line in member.recorded
            ] + self._ask_of_hang()
        if ended == "failed":
            finding = found(*explain_failure(views, stage))
        elif ended == "hang":
            finding = found(*explain_hang(views, stage, deadline))
        else:
            name = signal_name(self._interrupt.signal or 0)
            finding = found("GC0906", f"the self-test got {name} during {stage}")
        findings = [finding, *self.end()]
        if ended == "interrupted" and any(view.fell for view in views):
            # A launcher ends all when one has gone: that one is the news.
            findings.insert(0, found(*explain_failure(views, stage)))
        texts = {member.rank: member.seat.log() for member in self._members}
        self.logs = {rank: text for rank, text in texts.items() if text}
        ranks = [
            {
                "rank": view.ranks[0],
                "name": view.name,
                "pid": view.pid,
                "host": view.host,
                "last_entered": view.last,
                "entered": view.entered,
                "done": view.done,
                "signal": None if view.signal is None else signal_name(view.signal),
                "exit_status": view.status,
                "lost": view.lost,
                "state": view.state,
                "error": view.error,
                "traceback": member.error and member.error.get("traceback"),
                "recorded": member.recorded,
                "output": member.tail(),
            }
            for view, member in zip(views, self._members, strict=True)
        ]
        return Outcome(
            ended=ended,
            results=self._results(),
            findings=findings,
            ranks=ranks,
            evidence=evidence,
        )

    def _refresh(self) -> None:
        """Of other copies what is known may be as old as their last beat."""
        asked = [member for member in self._members if member.seat.ask_state()]
        end = time.monotonic() + _STATES
        while asked and time.monotonic() < end:
            self._turn(None)

    def _ask_stacks(self) -> None:
        for member in self._members:
            # Before its greeting it has no handler and would die of the signal.
            if member.greeted and not member.gone:
                member.seat.ask_stacks()
        end = time.monotonic() + _STACKS
        while time.monotonic() < end:
            self._turn(None)

    def _turn(self, on_event: OnEvent | None) -> None:
        """Reads what there is, waiting a moment at most."""
        waiting = select.poll()
        sources = {source for member in self._members for source in member.seat.sources()}
        for source in sources:
            waiting.register(source, select.POLLIN)
        for sink in {sink for member in self._members for sink in member.seat.sinks()}:
            waiting.register(sink, select.POLLOUT)
        # With nothing to wait for this is a pause.
        waiting.poll(_TICK * 1000)
        now = time.monotonic()
        # Before the pipes are read: of what has ended, everything it said is there by now.
        for member in self._members:
            member.look(now)
        for member in self._members:
            said, printed = member.seat.drain()
            self._take(member, said, on_event)
            member.output += printed
            del member.output[:-_OUTPUT_KEPT]

    def _take(self, member: _Member, data: bytes, on_event: OnEvent | None) -> None:
        *lines, member.partial = (member.partial + data).split(b"\n")
        for line in lines:
            event: Event = json.loads(line)
            kind = event["event"]
            if kind == "hello":
                member.greeted = True
            elif kind == "done":
                member.result = event["result"]
            elif kind == "error":
                member.error, member.error_at = event, time.monotonic()
            elif kind == "recorder":
                member.recorded = event["lines"]
            elif kind == "left":
                member.left = True
            elif on_event is not None:
                on_event(member.rank, event)

    def leave(self, deadline: float) -> list[Finding]:
        """Lets the ranks tear down and exit, then ends what is left."""
        if self._ended:
            return []
        for member in self._members:
            member.start_work(LEAVING)
            self.tell(member.rank, command="leave")
        end = time.monotonic() + deadline
        while time.monotonic() < end and self._interrupt.signal is None:
            if all(member.gone for member in self._members):
                break
            self._turn(None)
        unclean = []
        for member in self._members:
            where = "after destroy_process_group" if member.left else "in destroy_process_group"
            view = member.view()
            if not member.gone:
                unclean.append(f"{view.name} was still there after {deadline:g} s, {where}")
            elif view.status != 0:
                unclean.append(f"{view.name} {view.end} {where}")
        findings = self.end()
        if unclean and self._interrupt.signal is None:
            findings.insert(0, found("GC0904", "; ".join(unclean)))
        return findings

    def end(self) -> list[Finding]:
        """Kills every process of every rank, and says which could not be killed."""
        if self._ended:
            return []
        self._ended = True
        for member in self._members:
            # Also where it has gone itself: it may have started others.
            member.seat.kill()
        end = time.monotonic() + _KILL
        while not all(m.gone for m in self._members) and time.monotonic() < end:
            self._turn(None)
        left = []
        for member in self._members:
            if not member.gone:
                left.append(member.view().name)
            member.seat.close()
        if left:
            return [found("GC0905", f"{', '.join(left)} still there {_KILL:g} s after SIGKILL")]
        return []
