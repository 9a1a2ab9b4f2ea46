"""Copies that a launcher started meet, or each says why not. Real processes, no torch."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.selftest.conftest import SELFTEST

from gpucomm_selftest import __version__, host, launcher
from gpucomm_selftest.wire import PROTOCOL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.selftest.conftest import Completed, Runner, Running

ADDRESS = "127.0.0.1"


@pytest.fixture
def port() -> int:
    """A free one of this test: it is bound and given back."""
    with socket.socket() as trying:
        trying.bind((ADDRESS, 0))
        return int(trying.getsockname()[1])


def place(rank: int, size: int, port: int, **changes: str) -> dict[str, str]:
    bare = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": ADDRESS, "MASTER_PORT": port}
    return {name: str(value) for name, value in bare.items()} | changes


def copies(
    run: Runner, size: int, port: int, *args: str, of: dict[int, dict[str, str]] | None = None
) -> list[Running]:
    changes = of or {}
    return [
        run.start(*args, environ=place(rank, size, port, **changes.get(rank, {})))
        for rank in range(size)
    ]


MEET = ("--json", "--stages", "rendezvous", "--timeout")


def ids(done: Completed) -> list[str]:
    return [finding["id"] for finding in done.json["findings"]]


def measured(done: Completed, finding_id: str) -> str:
    (one,) = [one for one in done.json["findings"] if one["id"] == finding_id]
    return str(one["measured"])


def test_all_copies_meet_and_rank_0_alone_reports(plain_run: Runner, port: int) -> None:
    done = [one.finish() for one in copies(plain_run, 3, port, *MEET, "30")]
    assert [one.code for one in done] == [0, 0, 0]
    assert [one.out for one in done[1:]] == ["", ""]
    assert ids(done[0]) == ["GC0700"]
    report = done[0].json
    assert report["settings"]["launcher"]["family"] == "bare variables"
    assert [row["rank"] for row in report["stages"][0]["rows"]] == [0, 1, 2]


def test_the_text_says_who_met(plain_run: Runner, port: int) -> None:
    first, _ = copies(plain_run, 2, port, "--stages", "rendezvous", "--timeout", "30")
    out = first.finish().out
    assert "  launcher   bare variables: 2 copies, they meet at 127.0.0.1\n" in out
    assert f"bare variables: 2 copies on one host, at 127.0.0.1:{port}" in out


@pytest.mark.parametrize(("family", "coloured"), [("Open MPI", False), ("none", True)])
def test_the_terminal_of_a_launcher_is_not_a_persons(family: str, coloured: bool) -> None:
    """Open MPI 5 runs each process on a terminal of its own, and passes on what is written."""
    place = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    near, far = pty.openpty()
    command = [sys.executable, "-m", "gpucomm_selftest", "--stages", "rendezvous"]
    environ = {
        **os.environ,
        "TERM": "xterm",
        "PYTHONPATH": str(SELFTEST),
        **(place if family == "Open MPI" else {}),
    }
    environ.pop("NO_COLOR", None)
    subprocess.run(command, stdout=far, stderr=far, env=environ, timeout=60, check=True)
    os.close(far)
    text = os.read(near, 65536).decode()
    os.close(near)
    assert "PASS" in text
    assert ("\033[" in text) == coloured


def test_a_rank_that_never_comes_is_named(plain_run: Runner, port: int) -> None:
    running = copies(plain_run, 2, port, *MEET, "6", of={})
    third = [plain_run.start(*MEET, "6", environ=place(rank, 4, port + 1)) for rank in (0, 2)]
    assert [one.finish().code for one in running] == [0, 0]
    done = [one.finish() for one in third]
    # The copy that came ends as rank 0 does.
    assert [one.code for one in done] == [1, 1]
    assert done[0].seconds < 6 + 5
    assert measured(done[0], "GC0702").startswith(f"ranks 1,3 of 4 did not come to {ADDRESS}")
    assert "rank 0 waits for ranks 1,3" in done[0].err


def test_a_wrong_address_is_named_on_both_sides(plain_run: Runner, port: int) -> None:
    elsewhere = {1: {"MASTER_ADDR": "127.0.0.2"}}
    first, second = (one.finish() for one in copies(plain_run, 2, port, *MEET, "3", of=elsewhere))
    assert (first.code, ids(first)) == (1, ["GC0702"])
    assert (second.code, ids(second)) == (1, ["GC0703"])
    assert "rank 1 on " in measured(second, "GC0703")
    assert "127.0.0.2" in measured(second, "GC0703")
    assert "Connection refused" in measured(second, "GC0703")
    assert max(first.seconds, second.seconds) < 3 + 5


def test_an_address_that_no_name_service_knows(plain_run: Runner, port: int) -> None:
    unknown = "no-such-host.invalid"
    done = plain_run.run(*MEET, "2", environ=place(1, 2, port, MASTER_ADDR=unknown))
    assert (done.code, ids(done)) == (1, ["GC0703"])
    assert unknown in measured(done, "GC0703")
    assert done.seconds < 2 + 5


@pytest.fixture
def taken(port: int) -> Iterator[int]:
    with socket.create_server((ADDRESS, port)):
        yield port


def test_a_port_in_use_is_unusable(plain_run: Runner, taken: int) -> None:
    done = plain_run.run(*MEET, "20", environ=place(0, 2, taken))
    assert (done.code, ids(done)) == (3, ["GC0704"])
    assert f"port {taken}: Address already in use" in measured(done, "GC0704")
    assert done.seconds < 5


def test_where_no_port_is_given_the_next_free_one_is_taken(plain_run: Runner) -> None:
    """Two jobs whose ports begin at the same number: the token tells them apart."""

    def step(rank: int, job: str) -> dict[str, str]:
        return {
            "PMI_RANK": str(rank),
            "PMI_SIZE": "2",
            "MPI_LOCALNRANKS": "2",
            "PMI_JOBID": job,
        }

    begun = [plain_run.start(*MEET, "20", environ=step(rank, "one")) for rank in (0, 1)]
    done = [one.finish() for one in begun]
    ports = done[0].json["settings"]["launcher"]["ports"]
    with contextlib.ExitStack() as stack:
        for number in ports[:2]:
            server = stack.enter_context(socket.create_server((ADDRESS, number)))
            assert server
        begun = [plain_run.start(*MEET, "20", environ=step(rank, "one")) for rank in (0, 1)]
        again = [one.finish() for one in begun]
    assert [one.code for one in done + again] == [0] * 4
    assert f":{ports[0]}" in done[0].json["summary"]
    assert f":{ports[2]}" in again[0].json["summary"]


def test_two_copies_with_one_rank_are_unusable(plain_run: Runner, port: int) -> None:
    first = plain_run.start(*MEET, "20", environ=place(0, 3, port))
    twice = [plain_run.start(*MEET, "20", environ=place(1, 3, port)) for _ in range(2)]
    done = first.finish()
    assert (done.code, ids(done)) == (3, ["GC0705"])
    assert "rank 1 is claimed by pid" in measured(done, "GC0705")
    codes = [one.finish() for one in twice]
    assert [one.code for one in codes] == [3, 3]


def test_copies_that_count_the_ranks_differently(plain_run: Runner, port: int) -> None:
    other = {1: {"WORLD_SIZE": "3"}}
    first, second = (one.finish() for one in copies(plain_run, 2, port, *MEET, "20", of=other))
    assert (first.code, ids(first)) == (1, ["GC0707"])
    assert "3 ranks, rank 0 knows of 2" in measured(first, "GC0707")
    assert (second.code, ids(second)) == (1, ["GC0707"])


def token_of(port: int) -> str:
    return launcher.detect(place(1, 2, port)).token


def hello(**changes: Any) -> bytes:
    known = {
        "hello": PROTOCOL,
        "token": "",
        "rank": 1,
        "size": 2,
        "local_rank": None,
        "version": __version__,
        "identity": {**host.identity(), "name": "other", "pid": 7},
        "interface": "",
        "environ": {},
    }
    return (json.dumps(known | changes) + "\n").encode()


def test_another_version_of_the_self_test_is_refused(plain_run: Runner, port: int) -> None:
    running = plain_run.start("--verbose", *MEET, "20", environ=place(0, 2, port))
    running.wait_for_log("waits at")
    with socket.create_connection((ADDRESS, port)) as link:
        link.sendall(hello(version="0.0.9", token=token_of(port)))
        assert b"GC0707" in link.recv(4096)
    done = running.finish()
    assert (done.code, ids(done)) == (1, ["GC0707"])
    assert f"gpucomm-selftest 0.0.9, rank 0 is {__version__}" in measured(done, "GC0707")


def test_another_protocol_is_refused(plain_run: Runner, port: int) -> None:
    running = plain_run.start("--verbose", *MEET, "20", environ=place(0, 2, port))
    running.wait_for_log("waits at")
    with socket.create_connection((ADDRESS, port)) as link:
        link.sendall(b'{"hello": 99, "token": "' + token_of(port).encode() + b'"}\n')
        assert b"GC0707" in link.recv(4096)
    assert "protocol 99, not 1" in measured(running.finish(), "GC0707")


def test_each_copy_may_call_rank_0_by_another_name(plain_run: Runner, port: int) -> None:
    """As the operators of Kubernetes do: localhost in the pod of rank 0."""
    names = {0: {"MASTER_ADDR": "localhost"}, 1: {"MASTER_ADDR": "127.0.0.1"}}
    done = [one.finish() for one in copies(plain_run, 2, port, *MEET, "20", of=names)]
    assert [one.code for one in done] == [0, 0]


def test_two_jobs_at_neighbouring_ports_do_not_mix(plain_run: Runner, port: int) -> None:
    """As two torchruns on one host, of one user and without an id: the ports they try overlap."""

    def torchrun(rank: int, at: int) -> dict[str, str]:
        return place(rank, 2, at) | {
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    begun = [
        [plain_run.start(*MEET, "30", environ=torchrun(rank, port + job)) for rank in (0, 1)]
        for job in (0, 1)
    ]
    done = [[one.finish() for one in job] for job in begun]
    assert [[one.code for one in job] for job in done] == [[0, 0], [0, 0]]
    for job, running in zip(done, begun, strict=True):
        pids = [row["pid"] for row in job[0].json["stages"][0]["rows"]]
        assert pids == [one.popen.pid for one in running]


def test_strangers_are_sent_away_and_the_copies_still_meet(plain_run: Runner, port: int) -> None:
    running = plain_run.start("--verbose", *MEET, "20", environ=place(0, 2, port))
    running.wait_for_log("waits at")
    with contextlib.ExitStack() as stack:
        silent, noisy, lost = (
            stack.enter_context(socket.create_connection((ADDRESS, port))) for _ in range(3)
        )
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        lost.sendall(hello(token="another job"))  # noqa: S106
        assert b"stranger" in lost.recv(4096)
        assert noisy.recv(4096) == b""
        silent.sendall(b'{"hello"')
        ours = token_of(port)
        for wrong in ({"rank": "1"}, {"environ": None}, {"identity": {"name": "x"}}):
            half = stack.enter_context(socket.create_connection((ADDRESS, port)))
            half.sendall(hello(token=ours, **wrong))
            assert b"stranger" in half.recv(4096)
        second = plain_run.run(*MEET, "20", environ=place(1, 2, port))
    assert (running.finish().code, second.code) == (0, 0)


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0"},
        {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESS, "MASTER_PORT": "1"},
        {"OMPI_COMM_WORLD_RANK": "1"},
    ],
)
def test_half_a_launch_is_unusable(plain_run: Runner, environ: dict[str, str]) -> None:
    done = plain_run.run("--json", "--stages", "rendezvous", environ=environ)
    assert (done.code, ids(done)) == (3, ["GC0701"])
    ignored = plain_run.run("--json", "--launcher", "none", "--stages", "rendezvous",
                            environ=environ)  # fmt: skip
    assert ignored.code == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--nproc", "2"], "--nproc 2: bare variables started 2 copies"),
        (["--ranks-per-gpu", "2"], "--ranks-per-gpu 2: bare variables started 2 copies"),
        (["--skip", "rendezvous"], "--skip rendezvous: a launcher started this copy"),
        (["--launcher", "bogus"], "invalid choice: 'bogus'"),
    ],
)
def test_what_a_launcher_decides_cannot_be_asked_for(
    plain_run: Runner, port: int, args: list[str], says: str
) -> None:
    done = plain_run.run(*args, environ=place(0, 2, port))
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) == 1


@pytest.fixture
def held(plain_run: Runner, port: int, tmp_path: Path) -> list[Running]:
    """Two copies that have met, and whose rank 0 waits for a torch that never comes."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(300)\n")
    slow = {"PYTHONPATH": str(tmp_path)}
    running = copies(
        plain_run, 2, port, "--verbose", "--json", "--timeout", "60", of={0: slow, 1: slow}
    )
    running[0].wait_for_log(r"probe 0 pid \d+")
    running[1].wait_for_log("rank 0 is at")
    return running


def test_a_rank_0_that_was_killed_ends_the_others(held: list[Running]) -> None:
    held[0].popen.send_signal(signal.SIGKILL)
    done = held[1].finish(10)
    assert (done.code, ids(done)) == (1, ["GC0706"])
    assert "rank 0: the connection was closed" in measured(done, "GC0706")
    end = time.monotonic() + 5
    while held[0].processes() and time.monotonic() < end:
        time.sleep(0.02)
    assert held[0].processes() == []


def test_a_rank_0_that_is_stopped_ends_the_others(held: list[Running]) -> None:
    held[0].popen.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    done = held[1].finish(40)
    assert 15 < time.monotonic() - begun < 25
    assert (done.code, ids(done)) == (1, ["GC0706"])
    assert "has said nothing for 20 s" in measured(done, "GC0706")


def test_an_interrupt_of_rank_0_reaches_all(held: list[Running]) -> None:
    held[0].popen.send_signal(signal.SIGTERM)
    assert [one.finish(15).code for one in held] == [143, 143]
    assert held[0].processes() == []


def test_a_copy_that_is_interrupted_says_so_and_ends(held: list[Running]) -> None:
    held[1].popen.send_signal(signal.SIGINT)
    done = held[1].finish(10)
    assert (done.code, done.out) == (130, "")
    # Nothing of rank 0 has asked it for anything yet.
    assert held[0].popen.poll() is None
    os.kill(held[0].popen.pid, signal.SIGINT)
    assert held[0].finish(15).code == 130
