"""A process that does not read, and one that writes without end: nobody waits for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucomm_selftest.crew import Crew
from gpucomm_selftest.interrupt import Interrupt
from gpucomm_selftest.places import Here
from gpucomm_selftest.seat import Child


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(rank=0, role="probe", size=1, environment={})
    yield made
    made.kill()
    end = time.monotonic() + 5
    while made.signal is None and made.status is None and time.monotonic() < end:
        made.look()
    made.close()


def test_a_stopped_process_is_told_more_than_its_pipe_holds(child: Child) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    begin = time.monotonic()
    assert child.tell({"command": "work", "stage": "none", "args": {"much": "x" * 2**20}})
    assert time.monotonic() - begin < 5
    assert child.sinks()
    os.kill(child.pid, signal.SIGCONT)
    said = b""
    end = time.monotonic() + 20
    while b'"error"' not in said and b"KeyError" not in said and time.monotonic() < end:
        part, printed = child.drain()
        said += part + printed
        time.sleep(0.01)
    # It got the whole line: it looks for a stage of this name.
    assert b"KeyError: 'none'" in said
    assert child.sinks() == []


def test_one_that_has_gone_takes_no_commands(child: Child) -> None:
    child.kill()
    end = time.monotonic() + 5
    while child.signal is None and time.monotonic() < end:
        child.look()
    assert child.signal == signal.SIGKILL
    assert not child.tell({"command": "leave"})


@pytest.fixture
def slow_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is never imported to its end."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def crew_of(count: int, interrupt: Interrupt | None = None) -> Crew:
    return Crew(
        places=[Here()] * count,
        role="rank",
        environment_of=lambda rank: {},
        interrupt=interrupt or Interrupt(),
        log=lambda words: None,
    )


@pytest.mark.usefixtures("slow_torch")
def test_a_rank_that_died_is_named_where_all_are_ended_for_it() -> None:
    """torchrun and mpirun send SIGTERM to all within a second."""
    interrupt = Interrupt()
    crew = crew_of(3, interrupt)
    crew.start()

    def end() -> None:
        os.kill(crew.pids[2], signal.SIGKILL)
        time.sleep(0.2)
        interrupt.signal = signal.SIGTERM

    ending = threading.Timer(0.5, end)
    ending.start()
    outcome = crew.work("versions", lambda rank: {}, 30.0)
    ending.join()
    assert outcome.ended == "interrupted"
    died, told = outcome.findings
    assert (died.id, told.id) == ("GC0901", "GC0906")
    assert died.measured.startswith(f"rank 2 (pid {crew.pids[2]}) was killed by SIGKILL")


@pytest.mark.usefixtures("slow_torch")
def test_an_interrupt_alone_accuses_nobody() -> None:
    interrupt = Interrupt()
    crew = crew_of(2, interrupt)
    crew.start()
    interrupt.signal = signal.SIGINT
    outcome = crew.work("versions", lambda rank: {}, 30.0)
    assert [one.id for one in outcome.findings] == ["GC0906"]


def test_a_crew_with_a_stopped_rank_ends_at_its_deadline_whatever_it_was_told() -> None:
    crew = crew_of(2)
    crew.start()
    os.kill(crew.pids[1], signal.SIGSTOP)
    begin = time.monotonic()
    outcome = crew.work("preflight", lambda rank: {"much": "x" * 2**20}, 3.0)
    assert time.monotonic() - begin < 3 + 5
    assert outcome.ended == "hang"
    assert outcome.findings[0].id == "GC0902"
    assert "rank 1 (pid" in outcome.findings[0].measured
    assert "stopped (process state T" in outcome.findings[0].measured
