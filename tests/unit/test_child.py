"""A child ends when its parent is interrupted: by itself if it can, by force if it does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpucomm import child

POLITE = """
import pathlib, signal, sys, time
try:
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1]).write_text("cleaned up")
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(inner.pid, file=sys.stderr, flush=True)
time.sleep(60)
"""


def _interrupt(code: str, *arguments: str) -> tuple[str, int]:
    """Interrupt the block after the child's first line; returns that line and the exit status."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        with child.running(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            line = process.stderr.readline().strip()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return line, process.returncode
    raise AssertionError("the interrupt was swallowed")


def test_a_child_gets_to_clean_up(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert _interrupt(POLITE, str(mark)) == ("ready", 0)
    assert mark.read_text() == "cleaned up"


def test_a_child_that_does_not_end_is_killed_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE", 0.5)
    pid, status = _interrupt(STUBBORN)
    assert status == -9
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: str) -> bool:
    """Whether a process is alive; a killed orphan stays as a zombie where nothing reaps it."""
    try:
        state = (Path("/proc") / pid / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_exit_status_is_there_afterwards() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with child.running(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        pass
    assert process.returncode == 3
