"""Reads BuildKit's rawjson progress and shows it: one line per stage, bytes and seconds.

`Progress` is a pure state machine over the lines. `show` draws it, live in a terminal and as plain
lines elsewhere. The full log is written as it comes.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_MOST_BYTES = 2**63  # of one file: Go's int64
LOG_TAIL = 15  # lines of a failing step that are shown
_STAGE = re.compile(
    r"^\[(?:(?P<target>\S+) )?(?P<stage>[^\s\]]+) +(?P<step>\d+/\d+)\] (?P<what>.*)$"
)
_EXPORT = re.compile(r"^(\[\S+\] )?exporting ")


@dataclass
class Step:
    """One vertex of the build graph."""

    name: str
    stage: str
    started: float | None = None
    completed: float | None = None
    cached: bool = False
    error: str = ""
    log: list[str] = field(default_factory=list)
    bytes_now: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StageLine:
    """What is shown of one stage. Times are Unix seconds, sizes bytes."""

    stage: str
    what: str
    state: str
    seconds: float
    size: int


class Progress:
    """The build graph as far as it has been told."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.other: list[str] = []
        """Lines of stderr that are not progress: buildx's own final error."""

    def feed(self, line: str) -> list[str]:
        """Take one line of stderr; returns the lines that belong into the full log.

        What has another shape than BuildKit's of today is left out, never an error: the build is
        worth more than its picture.
        """
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            text = line.rstrip()
            if text:
                self.other.append(text)
            return [text] if text else []
        written: list[str] = []
        for vertex in _rows(event, "vertexes"):
            written += self._vertex(vertex)
        for status in _rows(event, "statuses"):
            step, current = self.steps.get(_text(status, "vertex")), status.get("current")
            if step is not None and isinstance(current, int) and 0 < current < _MOST_BYTES:
                step.bytes_now[_text(status, "id")] = current
        for log in _rows(event, "logs"):
            written += self._log(log)
        return written

    def _vertex(self, vertex: dict[str, Any]) -> list[str]:
        digest, name = _text(vertex, "digest"), _text(vertex, "name")
        if not digest:
            return []
        step = self.steps.setdefault(digest, Step(name=name, stage=stage_of(name)))
        was = (step.started, step.completed, step.error)
        step.started = _seconds(_text(vertex, "started")) or step.started
        step.completed = _seconds(_text(vertex, "completed")) or step.completed
        step.cached = step.cached or bool(vertex.get("cached"))
        step.error = _text(vertex, "error") or step.error
        if (step.started, step.completed, step.error) == was:
            return []
        if step.error:
            return [f"ERROR  {name}: {step.error}"]
        if step.completed is not None:
            return [f"{'CACHED' if step.cached else 'DONE'}  {name}"]
        return [f"START  {name}"]

    def _log(self, log: dict[str, Any]) -> list[str]:
        try:
            text = base64.b64decode(_text(log, "data")).decode(errors="replace")
        except ValueError:
            return []
        lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
        step = self.steps.get(_text(log, "vertex"))
        if step is not None:
            step.log = [*step.log, *lines][-200:]
        return [f"    {line}" for line in lines]

    def lines(self, now: float) -> list[StageLine]:
        """One line per stage that has begun, in the order of beginning."""
        stages: dict[str, list[Step]] = {}
        for step in self.steps.values():
            if step.stage and (step.started is not None or step.cached):
                stages.setdefault(step.stage, []).append(step)
        return [_stage_line(stage, steps, now) for stage, steps in stages.items()]

    def failed(self) -> Step | None:
        """The step that failed first by itself; cancelled ones do not count."""
        failed = [s for s in self.steps.values() if s.error and "cancel" not in s.error.lower()]
        return min(failed, key=lambda s: s.completed or float("inf"), default=None)


def stage_of(name: str) -> str:
    """`[image torch 2/2] RUN …` -> `torch`, `[image] exporting to image` -> `export`.

    Internal vertices have no stage.
    """
    match = _STAGE.match(name)
    if match:
        return "image" if match["stage"].startswith("stage-") else match["stage"]
    return "export" if _EXPORT.match(name) else ""


def _stage_line(stage: str, steps: list[Step], now: float) -> StageLine:
    running = [step for step in steps if step.completed is None]
    shown = running[-1] if running else max(steps, key=lambda step: step.completed or 0)
    worked = [step for step in steps if not step.cached and step.started is not None]
    seconds = sum((step.completed or now) - (step.started or now) for step in worked)
    match = _STAGE.match(shown.name)
    state = "run" if running else "cached" if not worked else "done"
    if any(step.error for step in steps):
        state = "failed"
    return StageLine(
        stage=stage,
        what=(match["what"] if match else shown.name),
        state=state,
        seconds=seconds,
        size=sum(size for step in steps for size in step.bytes_now.values()),
    )


def human_size(size: int) -> str:
    """Bytes in decimal units, as registries and Docker count."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def format_line(line: StageLine, width: int) -> str:
    """`torch     12.3 s   967 MB  RUN unpack-wheels`, cut to `width`."""
    size = human_size(line.size) if line.size else ""
    what = " ".join(word for word in line.what.split() if not word.startswith("--"))
    return f"  {line.stage:<10} {line.state:<6} {line.seconds:6.1f} s {size:>9}  {what}"[:width]


class _Drawing:
    def __init__(self, progress: Progress, width: int) -> None:
        self.progress = progress
        self.width = width

    def __rich__(self) -> Group:
        styles = {"failed": "red", "run": "bold", "done": "green", "cached": "dim"}
        return Group(
            *(
                Text(format_line(line, self.width), style=styles[line.state])
                for line in self.progress.lines(time.time())
            )
        )


class Shower:
    """Draws one build's progress; `feed` takes the lines of stderr."""

    def __init__(self, progress: Progress, console: Console, log: TextIO) -> None:
        self.progress = progress
        self._console = console
        self._log = log
        self._told: dict[str, str] = {}

    def feed(self, line: str) -> None:
        """Take one line, write the log, and in plain mode tell of stages that began or ended."""
        for text in self.progress.feed(line):
            self._log.write(f"{text}\n")
        self._log.flush()
        if self._console.is_terminal:
            return
        for shown in self.progress.lines(time.time()):
            if self._told.get(shown.stage) != shown.state:
                self._told[shown.stage] = shown.state
                self._console.print(format_line(shown, 100), markup=False, highlight=False)


@contextmanager
def show(console: Console, log: TextIO) -> Iterator[Shower]:
    """A Shower that is live while the block runs, if `console` is a terminal."""
    progress = Progress()
    shower = Shower(progress, console, log)
    if not console.is_terminal:
        yield shower
        return
    drawing = _Drawing(progress, console.width)
    with Live(drawing, console=console, refresh_per_second=4, transient=False):
        yield shower


def _rows(event: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = event.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _seconds(stamp: str) -> float | None:
    """RFC 3339 with nanoseconds -> Unix seconds, None for anything else."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
