"""Starts the rank processes, gives them work under a deadline, and ends every one of them.

The only module that handles processes. It must not import torch and must not know what a stage
does: it carries commands one way and JSON lines the other, and tells how the ranks ended.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucomm_selftest.attribution import RankView, explain_failure, explain_hang, signal_name
from gpucomm_selftest.environment import rank_environment
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.interrupt import Interrupt

# A json.py or torch.py in the current directory must not be taken for the real one, and before
# Python 3.11 nothing else keeps that directory off the path.
_PROGRAM = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from gpucomm_selftest.rank import main; main(sys.argv[2:])"
)

_TICK = 0.05
# How long the others may take to say what they saw after the first one died or raised.
_GRACE = 2.0
_STACKS = 0.5
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

    def __init__(
        self, rank: int, role: str, process: "subprocess.Popen[bytes]", channel: int
    ) -> None:
        self.rank = rank
        self.role = role
        self.process = process
        self.channel = channel
        self.partial = b""
        self.output = bytearray()
        self.greeted = False
        self.signal: int | None = None
        self.status: int | None = None
        self.ended_at = 0.0
        self.left = False
        self.start_work()

    def start_work(self) -> None:
        self.last = ""
        self.entered = 0
        self.result: dict[str, Any] | None = None
        self.error: Event | None = None
        self.error_at = 0.0

    @property
    def gone(self) -> bool:
        return self.signal is not None or self.status is not None

    def look(self, now: float) -> None:
        """Notes its end without reaping it: as long as it is a zombie, its process group id
        cannot become somebody else's."""
        if self.gone:
            return
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            info = os.waitid(os.P_PID, self.process.pid, options)
        except ChildProcessError:
            self.status, self.ended_at = -1, now
            return
        if info is None:
            return
        if info.si_code == os.CLD_EXITED:
            self.status = info.si_status
        else:
            self.signal = info.si_status
        self.ended_at = now

    def state(self) -> str:
        """The letter of /proc/PID/stat, after the name, which may contain anything."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text(errors="replace")
        except OSError:
            return ""
        return text.rpartition(")")[2].strip()[:1]

    def view(self) -> RankView:
        error = None
        if self.error is not None:
            text = " ".join(str(self.error["text"]).split())[:400]
            error = f"{self.error['kind']}: {text}"
        return RankView(
            rank=self.rank,
            role=self.role,
            pid=self.process.pid,
            last=self.last,
            entered=self.entered,
            done=self.result is not None,
            signal=self.signal,
            status=self.status,
            ended_at=self.ended_at,
            error=error,
            error_at=self.error_at,
            state="" if self.gone else self.state(),
        )

    def tail(self) -> list[str]:
        return self.output.decode("utf-8", "replace").splitlines()[-40:]


class Crew:
    def __init__(
        self,
        *,
        size: int,
        role: str,
        environment_of: Callable[[int], Mapping[str, str]],
        interrupt: Interrupt,
        log: Callable[[str], None],
        ask_of_hang: Callable[[], list[str]] = list,
    ) -> None:
        self.size = size
        self.role = role
        self._environment_of = environment_of
        self._interrupt = interrupt
        self._ask_of_hang = ask_of_hang
        self._log = log
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._ended = False

    @property
    def pids(self) -> dict[int, int]:
        return {member.rank: member.process.pid for member in self._members}

    def start(self) -> None:
        for rank in range(self.size):
            self._members.append(self._start_one(rank))
            self._log(f"{self.role} {rank} pid {self._members[-1].process.pid}")

    def _start_one(self, rank: int) -> _Member:
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _PROGRAM,
                    "gpucomm_selftest.rank",
                    *("--role", self.role),
                    *("--rank", str(rank)),
                    *("--world", str(self.size)),
                    *("--channel", str(writing)),
                    *("--parent", str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
                env=rank_environment(os.environ, self._environment_of(rank)),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        member = _Member(rank, self.role, process, reading)
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ, (member, True))
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, (member, False))
        return member

    def tell(self, rank: int, **command: Any) -> None:
        stdin = self._members[rank].process.stdin
        if stdin is None:
            return
        try:
            stdin.write((json.dumps(command) + "\n").encode())
            stdin.flush()
        except OSError:
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
            member.start_work()
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
        # Before the stacks are asked for: what is seen now is what the ranks ended with.
        views = [member.view() for member in self._members]
        evidence: list[str] = []
        if ended == "hang":
            self._ask_stacks()
            evidence = self._ask_of_hang()
        if ended == "failed":
            finding = found(*explain_failure(views, stage))
        elif ended == "hang":
            finding = found(*explain_hang(views, stage, deadline))
        else:
            name = signal_name(self._interrupt.signal or 0)
            finding = found("GC0906", f"the self-test got {name} during {stage}")
        findings = [finding, *self.end()]
        ranks = [
            {
                "rank": view.rank,
                "name": view.name,
                "pid": view.pid,
                "last_entered": view.last,
                "entered": view.entered,
                "done": view.done,
                "signal": None if view.signal is None else signal_name(view.signal),
                "exit_status": view.status,
                "state": view.state,
                "error": view.error,
                "traceback": member.error and member.error.get("traceback"),
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

    def _ask_stacks(self) -> None:
        for member in self._members:
            # Before its greeting it has no handler and would die of the signal.
            if member.greeted and not member.gone:
                os.kill(member.process.pid, signal.SIGUSR1)
        end = time.monotonic() + _STACKS
        while time.monotonic() < end:
            self._turn(None)

    def _turn(self, on_event: OnEvent | None) -> None:
        """Reads what there is, waiting a moment at most."""
        if not self._selector.get_map():
            time.sleep(_TICK)
        for key, _ in self._selector.select(_TICK):
            member, is_channel = key.data
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
            elif is_channel:
                self._take(member, data, on_event)
            else:
                member.output += data
                del member.output[:-_OUTPUT_KEPT]
        now = time.monotonic()
        for member in self._members:
            member.look(now)

    def _take(self, member: _Member, data: bytes, on_event: OnEvent | None) -> None:
        *lines, member.partial = (member.partial + data).split(b"\n")
        for line in lines:
            event: Event = json.loads(line)
            kind = event["event"]
            if kind == "hello":
                member.greeted = True
            elif kind == "enter":
                member.last = event["operation"]
                member.entered += 1
            elif kind == "done":
                member.result = event["result"]
            elif kind == "error":
                member.error, member.error_at = event, time.monotonic()
            elif kind == "left":
                member.left = True
            elif on_event is not None:
                on_event(member.rank, event)

    def leave(self, deadline: float) -> list[Finding]:
        """Lets the ranks tear down and exit, then ends what is left."""
        if self._ended:
            return []
        for member in self._members:
            member.start_work()
            self.tell(member.rank, command="leave")
        end = time.monotonic() + deadline
        while time.monotonic() < end and self._interrupt.signal is None:
            if all(member.gone for member in self._members):
                break
            self._turn(None)
        unclean = []
        for member in self._members:
            where = "after destroy_process_group" if member.left else "in destroy_process_group"
            name = member.view().name
            if not member.gone:
                unclean.append(f"{name} was still there after {deadline:g} s, {where}")
            elif member.signal is not None:
                unclean.append(f"{name} was killed by {signal_name(member.signal)} {where}")
            elif member.status != 0:
                unclean.append(f"{name} exited with status {member.status} {where}")
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
            # The whole group, also where its leader has gone: a rank may have started others.
            try:
                os.killpg(member.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._log(f"{self.role} {member.rank}: its process group has gone")
        end = time.monotonic() + _KILL
        while not all(m.gone for m in self._members) and time.monotonic() < end:
            self._turn(None)
        left = []
        for member in self._members:
            if member.gone:
                member.process.wait()
            else:
                left.append(member.view().name)
            self._close(member)
        self._selector.close()
        if left:
            return [found("GC0905", f"{', '.join(left)} still there {_KILL:g} s after SIGKILL")]
        return []

    @staticmethod
    def _close(member: _Member) -> None:
        os.close(member.channel)
        for stream in (member.process.stdin, member.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    # Unwritten commands for a process that has gone.
                    continue
