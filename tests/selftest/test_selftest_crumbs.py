"""Crumbs in shared memory: whole or not there, whatever happens to the one who writes."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator

import pytest

from gpucomm_selftest import crumbs
from gpucomm_selftest.crumbs import Crumb


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = crumbs.create()
    yield descriptor
    os.close(descriptor)


def test_the_last_operation_and_how_many_there_were(memory: int) -> None:
    writer, reader = crumbs.Writer(memory), crumbs.Reader(memory)
    assert reader.read() == Crumb()
    writer.begin("init")
    assert reader.read() == Crumb(stage="init", entered=0, operation="")
    writer.enter("open the store")
    writer.enter("first all_reduce é")
    assert reader.read() == Crumb(stage="init", entered=2, operation="first all_reduce é")
    writer.begin("pairs")
    assert reader.read() == Crumb(stage="pairs")


def test_a_python_without_memfd_has_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of conda is built against an old C library."""
    monkeypatch.delattr(os, "memfd_create")
    descriptor = crumbs.create()
    crumbs.Writer(descriptor).begin("init")
    assert crumbs.Reader(descriptor).read().stage == "init"
    os.close(descriptor)


def test_a_long_name_is_cut_and_still_whole(memory: int) -> None:
    writer, reader = crumbs.Writer(memory), crumbs.Reader(memory)
    writer.begin("s" * 200)
    writer.enter("x" * 5000)
    read = reader.read()
    assert set(read.stage) == {"s"}
    assert set(read.operation) == {"x"}
    assert len(read.operation) > 400


def test_one_that_was_half_written_does_not_count(memory: int) -> None:
    writer, reader = crumbs.Writer(memory), crumbs.Reader(memory)
    writer.begin("init")
    writer.enter("the last whole one")
    with mmap.mmap(memory, 0) as raw:
        other = 1 + (1 - raw[0]) * 512
        raw[other : other + 100] = b"\xff" * 100
    assert reader.read().operation == "the last whole one"


def test_nonsense_is_no_crumb(memory: int) -> None:
    with mmap.mmap(memory, 0) as raw:
        raw[1:1025] = b"\xff" * 1024
    assert crumbs.Reader(memory).read() == Crumb()


def test_a_reader_beside_a_fast_writer_never_sees_a_mixture(memory: int) -> None:
    """One name is short and the other long: a mixture of both would have neither's length."""
    reader = crumbs.Reader(memory)
    pid = os.fork()
    if pid == 0:
        writer = crumbs.Writer(memory)
        writer.begin("s")
        while True:
            writer.enter("a" * 10)
            writer.enter("b" * 400)
    try:
        seen = {reader.read().operation for _ in range(20000)}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert seen - {""} == {"a" * 10, "b" * 400}
    assert crumbs.Reader(memory).read().stage == "s"
