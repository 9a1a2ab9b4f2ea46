"""Lines between two self-tests over a real socket, and what of a host is read from it."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpucomm_selftest import host
from gpucomm_selftest.wire import Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    link = Link(near)
    yield link, far
    link.close()
    far.close()


def test_a_line_comes_whole_or_not_yet(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    assert link.receive() == []
    far.sendall(b'{"a":1}\n{"b"')
    assert link.wait(5) == [{"a": 1}]
    far.sendall(b":2}\n")
    assert link.wait(5) == [{"b": 2}]
    assert link.send(c=3)
    assert far.recv(100) == b'{"c": 3}\n'


def test_what_came_too_early_is_read_later(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    far.sendall(b'{"a":1}\n{"b":2}\n')
    first, second = link.wait(5)
    far.close()
    link.give_back([second])
    assert link.wait(5) == [second]
    assert first == {"a": 1}
    assert link.closed


@pytest.mark.parametrize(
    "noise", [b"SSH-2.0-x\r\n", b"[1]\n", b"\xff\xfe\n", b"[" * 200_000 + b"\n"]
)
def test_a_stranger_is_not_understood(ends: tuple[Link, socket.socket], noise: bytes) -> None:
    link, far = ends
    far.sendall(noise)
    assert link.wait(5) == []
    assert link.closed == "it does not speak like a self-test"
    assert not link.send(a=1)


def test_an_end_that_has_gone_is_seen(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    far.sendall(b'{"last":1}\n')
    far.close()
    assert link.wait(5) == [{"last": 1}]
    assert link.closed == "the connection was closed"


def test_one_that_sends_without_end_is_read_in_portions(
    ends: tuple[Link, socket.socket],
) -> None:
    link, far = ends
    stop = threading.Event()

    def flood() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                far.sendall(b'{"x":"' + b"y" * 100_000 + b'"}\n')

    writer = threading.Thread(target=flood, daemon=True)
    writer.start()
    begin = time.monotonic()
    read = 0
    while read < 50:
        read += len(link.wait(5))
        assert time.monotonic() - begin < 30
    stop.set()
    link.close()
    writer.join(5)


def test_what_has_come_is_read_though_nothing_can_be_sent(
    ends: tuple[Link, socket.socket],
) -> None:
    link, far = ends
    far.sendall(b'{"end":0}\n')
    far.shutdown(socket.SHUT_WR)
    link.sock.shutdown(socket.SHUT_WR)
    assert not link.send(late=True)
    assert link.wait(5) == [{"end": 0}]


def test_a_name_that_nobody_knows_is_an_error_and_a_wrong_one_too() -> None:
    for name in ("no-such-host.invalid", "a" * 70 + ".example", ".."):
        with pytest.raises(OSError):  # noqa: PT011  each resolver has its own words
            host.resolve(name, 5)
        assert not host.is_own(name)
    assert host.resolve("127.0.0.1", 5) == ["127.0.0.1"]


def test_this_host() -> None:
    here = host.identity()
    assert host.same_network(here, here)
    assert host.same_processes(here, here)
    assert not host.same_network(here, {**here, "network": "net:[1]"})
    assert host.interface_of("127.0.0.1") == "lo"
    assert host.is_own("127.0.0.1")
    assert not host.is_own("192.0.2.1")  # kept for documents: no host has it
    assert host.state_of(here["pid"]) == "R"
    assert not host.is_rank_process(here["pid"])
