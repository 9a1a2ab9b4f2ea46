"""The client of NCCL's RAS service: whatever is behind the port, it ends in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpucomm_selftest import ras

ANSWER = "NCCL version 2.28.9 compiled with CUDA 13.0\nJob summary\n  2 ranks, 1 missing\n"


@contextmanager
def service(behave: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A server on the loopback that takes one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ("127.0.0.1", server.getsockname()[1])
        thread.join(5)


def test_it_sends_the_command_and_takes_all_of_the_answer() -> None:
    heard: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        heard.append(connection.recv(100))
        connection.settimeout(0.2)
        try:
            gone = connection.recv(1) == b""
        except TimeoutError:
            gone = False
        if gone:
            return  # as NCCL does: an end of input is a client that has gone
        for part in ("SERVER PROTOCOL 2\nO", "K\n", ANSWER[:20], ANSWER[20:]):
            connection.sendall(part.encode())

    with service(answer) as where:
        assert ras.status(where) == ANSWER.splitlines()
    assert heard == [b"CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n"]


def test_one_that_never_answers_costs_the_deadline_and_no_more() -> None:
    done = threading.Event()

    def wait(connection: socket.socket) -> None:
        done.wait(10)

    with service(wait) as where:
        begin = time.monotonic()
        assert ras.status(where, 0.3) == []
        assert time.monotonic() - begin < 3
        done.set()


def test_one_that_stops_in_the_middle_gives_what_it_said() -> None:
    done = threading.Event()

    def stop(connection: socket.socket) -> None:
        connection.sendall(b"Job summary\n")
        done.wait(10)

    with service(stop) as where:
        said = ras.status(where, 0.3)
        done.set()
    assert said[0] == "Job summary"
    assert said[-1].startswith("(no more: ")


def test_one_that_talks_without_end_is_cut() -> None:
    def flood(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(b"\xff" * 65536)
        except OSError:
            return

    with service(flood) as where:
        assert 64 * 1024 <= len("\n".join(ras.status(where))) < 128 * 1024


def test_a_port_that_is_closed_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = ("127.0.0.1", server.getsockname()[1])
    assert ras.status(where, 1) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("localhost", 28028)),
        ({"NCCL_RAS_ADDR": "node7:1234"}, ("node7", 1234)),
        ({"NCCL_RAS_ADDR": "[::1]:1234"}, ("::1", 1234)),
        ({"NCCL_RAS_ENABLE": "0"}, None),
        ({"NCCL_RAS_ADDR": "nonsense"}, None),
        ({"NCCL_RAS_ADDR": "x:99999"}, None),
    ],
)
def test_where_it_listens(environ: dict[str, str], expected: tuple[str, int] | None) -> None:
    assert ras.address(environ) == expected
