"""Copies on two hosts: two containers of the image, each with a network of its own.

They are joined by a network of Docker, or have nothing but a cable that the test lays between their
network namespaces: then they also share host name, processes and memory, as two namespaces on one
machine do. Nothing leaves them.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.cable import ADDRESSES, OTHERS, lay_cable
from tests.selftest.conftest import MARK, Completed, Process, Running, marked

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

PORT = 29500


def docker(*words: str) -> str:
    done = subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


@dataclass
class Hosts:
    names: list[str]
    addresses: Sequence[str]  # at which they reach each other
    running: list[Running] = field(default_factory=list)

    def start(self, which: int, *command: str, **environ: str) -> Running:
        token = secrets.token_hex(8)
        settings = [
            part
            for name, value in {**environ, MARK: token}.items()
            for part in ("--env", f"{name}={value}")
        ]
        popen = subprocess.Popen(
            ["docker", "exec", *settings, self.names[which], *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(Running(popen, token))
        return self.running[-1]

    def bare(self, rank: int, *args: str, **environ: str) -> Running:
        """One copy on each host, by the variables that torch reads."""
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(PORT),
        }
        command = ("gpucomm-selftest", "--verbose", "--json", "--backend", "gloo", *args)
        return self.start(rank, *command, **{**place, **environ})

    def both(self, *args: str, **environ: str) -> list[Running]:
        return [self.bare(rank, *args, **environ) for rank in (0, 1)]


@pytest.fixture
def image(torch_run: Runner) -> str:
    if torch_run.image is None:
        pytest.skip("the hosts are containers of an image; a Python has none")
    return torch_run.image


def containers(image: str, tag: str, options: Sequence[Sequence[str]]) -> list[str]:
    names = [f"{tag}-a", f"{tag}-b"]
    for name, more in zip(names, options, strict=True):
        docker("run", "--detach", "--init", "--name", name, *more, image, "sleep", "600")
    return names


@pytest.fixture(params=["a network of Docker", "two namespaces"])
def hosts(image: str, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    tag = f"gpucomm-test-{secrets.token_hex(4)}"
    names = [f"{tag}-a", f"{tag}-b"]
    made = Hosts(names=names, addresses=names)
    try:
        if request.param == "two namespaces":
            same = ("--network", "none", "--hostname", "one")
            first = f"container:{names[0]}"
            shared = ("--ipc", first, "--pid", first)
            containers(image, tag, [(*same, "--ipc", "shareable"), (*same, *shared)])
            lay_cable(names, 24)
            made.addresses = ADDRESSES
        else:
            docker("network", "create", "--internal", tag)
            networks = [("--network", tag, "--hostname", name) for name in names]
            containers(image, tag, networks)
        yield made
        for one in made.running:
            one.end()
    finally:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)
        if request.param != "two namespaces":
            subprocess.run(["docker", "network", "rm", tag], capture_output=True, check=False)


@pytest.fixture
def cut_off(image: str) -> Iterator[Hosts]:
    """Joined by a cable, and without a route to each other."""
    tag = f"gpucomm-test-{secrets.token_hex(4)}"
    names = [f"{tag}-a", f"{tag}-b"]
    made = Hosts(names=names, addresses=ADDRESSES)
    try:
        containers(image, tag, [("--network", "none")] * 2)
        lay_cable(names, 32)
        yield made
        for one in made.running:
            one.end()
    finally:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)


def finish(running: Sequence[Running]) -> list[Completed]:
    return [one.finish() for one in running]


def loud(done: Completed) -> list[tuple[str, str]]:
    """The findings that are more than a remark."""
    return [
        (one["id"], one["measured"])
        for one in done.json["findings"]
        if one["level"] in ("warn", "fail")
    ]


def nothing_is_left(running: Sequence[Running], limit: float = 5.0) -> bool:
    end = time.monotonic() + limit
    while any(one.processes() for one in running) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(one.processes() for one in running)


def test_bare_variables(hosts: Hosts) -> None:
    running = hosts.both()
    first, second = finish(running)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert second.out == ""
    report = first.json
    assert {one["status"] for one in report["stages"]} == {"pass"}
    assert loud(first) == []
    assert report["world"]["size"] == 2
    assert report["settings"]["launcher"]["family"] == "bare variables"
    interface = report["world"]["environment_set"]["GLOO_SOCKET_IFNAME"]
    assert interface in ("eth0", "veth0", "its own on every rank")
    assert nothing_is_left(running)


def test_torchrun_with_two_ranks_on_each_host(hosts: Hosts) -> None:
    running = [
        hosts.start(
            node,
            *("torchrun", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"),
            *("--master-addr", hosts.addresses[0], "--master-port", str(PORT), "--no-python"),
            *("gpucomm-selftest", "--json", "--backend", "gloo"),
        )
        for node in (0, 1)
    ]
    first, second = finish(running)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    report = first.json
    assert report["world"]["size"] == 4
    launcher = report["settings"]["launcher"]
    assert (launcher["family"], launcher["copies"]) == ("torchrun", 4)
    assert PORT not in launcher["ports"]
    assert {one["status"] for one in report["stages"]} == {"pass"}
    assert loud(first) == []
    assert nothing_is_left(running)


def rank_process(running: Running, limit: float = 60.0) -> Process:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        for process in running.processes():
            if process.role == "rank":
                return process
        time.sleep(0.01)
    raise AssertionError(f"no rank: {running.out} {running.err}")


def copy_pids(running: Running) -> list[int]:
    """The copies themselves: what runs the program and is no rank."""
    return [
        pid
        for pid, command in marked(running.token)
        if any(word.endswith("/gpucomm-selftest") for word in command)
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_on_the_other_host_is_named(hosts: Hosts, number: signal.Signals) -> None:
    running = hosts.both("--budget", "deep", "--timeout", "25")
    running[0].wait_for_log("stage correctness: begins")
    rank_process(running[1]).kill(number)
    begun = time.monotonic()
    first, second = finish(running)
    assert time.monotonic() - begun < 25 + 5
    ((finding_id, measured),) = loud(first)
    if number == signal.SIGKILL:
        assert (first.code, finding_id) == (1, "GC0901")
        assert "rank 1 (pid" in measured
        assert "was killed by SIGKILL during correctness" in measured
    else:
        assert (first.code, finding_id) == (124, "GC0902")
        assert "stopped (process state T" in measured
        assert "rank 1 (pid" in measured
    assert second.code == first.code
    assert nothing_is_left(running)


def test_a_copy_that_was_killed_is_named_and_its_rank_ends(hosts: Hosts) -> None:
    running = hosts.both("--budget", "deep", "--timeout", "60")
    running[0].wait_for_log("stage correctness: begins")
    (copy,) = copy_pids(running[1])
    os.kill(copy, signal.SIGKILL)
    first, _ = finish(running)
    ((finding_id, measured),) = loud(first)
    assert (first.code, finding_id) == (1, "GC0706")
    assert "rank 1 (pid" in measured
    assert "the copy of rank 1" in measured
    assert "has gone: " in measured
    assert nothing_is_left(running)


def test_a_copy_that_is_stopped_is_named(hosts: Hosts) -> None:
    running = hosts.both("--budget", "deep", "--timeout", "60")
    running[0].wait_for_log("stage correctness: begins")
    (copy,) = copy_pids(running[1])
    os.kill(copy, signal.SIGSTOP)
    begun = time.monotonic()
    first = running[0].finish()
    assert time.monotonic() - begun < 20 + 10
    ((finding_id, measured),) = [one for one in loud(first) if one[0] != "GC0905"]
    assert (first.code, finding_id) == (1, "GC0706")
    assert "the copy of rank 1" in measured
    assert "has said nothing for 20 s" in measured
    # When it goes on it finds that it was given up, and leaves nothing behind.
    os.kill(copy, signal.SIGCONT)
    assert running[1].finish(20).code == 1
    assert nothing_is_left(running)


def test_a_rank_0_that_was_killed_leaves_nothing_behind(hosts: Hosts) -> None:
    running = hosts.both("--budget", "deep", "--timeout", "60")
    running[0].wait_for_log("stage correctness: begins")
    (copy,) = copy_pids(running[0])
    os.kill(copy, signal.SIGKILL)
    second = running[1].finish(15)
    assert (second.code, loud(second)[0][0]) == (1, "GC0706")
    assert nothing_is_left(running)


def test_an_interface_that_only_one_rank_has_wrong_is_named(hosts: Hosts) -> None:
    running = [
        hosts.bare(0, "--timeout", "30"),
        hosts.bare(1, "--timeout", "30", GLOO_SOCKET_IFNAME="bogus0"),
    ]
    first, second = finish(running)
    assert (first.code, second.code) == (1, 1)
    lint, way, raised = loud(first)
    assert [lint[0], way[0], raised[0]] == ["GC0508", "GC0811", "GC0903"]
    assert lint[1].startswith("rank 1")
    assert "GLOO_SOCKET_IFNAME=bogus0; here are " in lint[1]
    assert way[1].startswith("rank 0")
    assert "at no address (bogus0)" in way[1]
    assert raised[1].startswith("rank 1 (pid")
    assert nothing_is_left(running)


def test_a_setting_of_one_host_is_named(hosts: Hosts) -> None:
    """Gloo does not read it: a warning here, and a failure with NCCL."""
    running = [hosts.bare(0), hosts.bare(1, NCCL_ALGO="Ring", NCCL_DEBUG="VERSION")]
    first, second = finish(running)
    assert (first.code, second.code) == (0, 0)
    assert ("GC0802", "NCCL_ALGO: rank 0: not set; rank 1: Ring") in loud(first)
    assert "NCCL_DEBUG: rank" not in str(loud(first))


def test_another_file_of_the_library_on_one_host_is_named(hosts: Hosts) -> None:
    own = "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"
    # A byte at the end of the file changes its hash and nothing else.
    script = f"mkdir /other && cp {own} /other && printf x >> /other/libnccl.so.2"
    docker("exec", "--user", "root", hosts.names[1], "sh", "-c", script)
    running = [hosts.bare(0), hosts.bare(1, LD_PRELOAD="/other/libnccl.so.2")]
    first, _ = finish(running)
    said = dict(loud(first))
    assert said["GC0804"].startswith("nccl: rank 0: sha256 ")
    assert "; rank 1: sha256 " in said["GC0804"]
    assert said["GC0120"].startswith("rank 1")


def test_an_interface_without_a_way_is_named_before_anything_uses_it(cut_off: Hosts) -> None:
    """The copies meet by one cable; the data shall take another one, which leads nowhere."""
    lay_cable(cut_off.names, 24, card="veth1", addresses=OTHERS)
    cut_off.addresses = OTHERS
    running = cut_off.both("--stages", "digest", GLOO_SOCKET_IFNAME="veth0")
    first, second = finish(running)
    assert (first.code, second.code) == (1, 1), first.err
    assert [name for name, _ in loud(first)] == ["GC0811", "GC0811"]
    measured = loud(first)[0][1]
    assert re.match(r"rank 0 on \w+ does not reach rank 1 on \w+ at ", measured)
    assert f"at {ADDRESSES[1]} (veth0): Network is unreachable" in measured


def test_no_route_to_rank_0(cut_off: Hosts) -> None:
    running = cut_off.both("--stages", "init", "--timeout", "4")
    first, second = finish(running)
    assert (first.code, loud(first)[0][0]) == (1, "GC0702")
    ((finding_id, measured),) = loud(second)
    assert (second.code, finding_id) == (1, "GC0703")
    assert "Network is unreachable" in measured
    assert max(first.seconds, second.seconds) < 4 + 10
