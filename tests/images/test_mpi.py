"""The extra `mpi`: mpirun on one host and over SSH, mpi4py in the venv, no server unasked."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cable import ADDRESSES, can_be_laid, lay_cable

WAYS = {
    "default": [],
    "root": ["--user", "root"],
    "read-only": ["--read-only", "--tmpfs", "/tmp"],
    "no network": ["--network", "none"],
}
FOLDER = "/run/gpucomm-ssh"
# Large enough to leave the path for small messages.
ALLREDUCE = """
import json, os
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
mine, total = numpy.full(1_000_000, world.rank + 1.0), numpy.empty(1_000_000)
world.Allreduce(mine, total)
assert (total == world.size * (world.size + 1) / 2).all()
os.write(1, (json.dumps([world.rank, world.size, numpy.__file__]) + "\\n").encode())
"""
GLOO = """
import os, torch, torch.distributed as dist
rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
store = dist.TCPStore(os.environ["MASTER_ADDR"], 29500, size, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
value = torch.full((5,), float(rank + 1))
dist.all_reduce(value)
assert value.tolist() == [size * (size + 1) / 2.0] * 5, value
os.write(1, f"{os.uname().nodename} rank {rank} ok\\n".encode())
dist.destroy_process_group()
"""


SELFTEST = ("gpucomm-selftest", "--backend", "gloo", "--json")


def one_world(out: str, hosts: int) -> None:
    """Rank 0 alone reports, and for both ranks."""
    report = json.loads(out)
    assert report["settings"]["launcher"]["family"] == "Open MPI"
    assert report["world"]["size"] == 2
    assert {stage["status"] for stage in report["stages"]} == {"pass"}
    assert len({row["host"] for row in report["stages"][0]["rows"]}) == hosts
    assert [one for one in report["findings"] if one["level"] in ("warn", "fail")] == []


@pytest.fixture(autouse=True, scope="module")
def has_mpi(expected: Any) -> None:
    if "mpi" not in expected.cell.extras:
        pytest.skip("this cell has no extra mpi")


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=check, timeout=300
    )


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_mpirun_starts_the_selftest(run: Callable[..., Any], options: list[str]) -> None:
    done = run("mpirun", "-n", "2", *SELFTEST, options=options)
    assert done.code == 0, done.out + done.err
    one_world(done.out, hosts=1)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_mpi4py_with_the_venvs_numpy(run: Callable[..., Any], options: list[str]) -> None:
    done = run("mpirun", "-n", "2", "python", "-c", ALLREDUCE, options=options)
    # What Open MPI cannot do in a container, such as binding memory, it says on stderr.
    assert (done.code, done.err) == (0, ""), done.out
    rows = sorted(json.loads(line) for line in done.out.splitlines())
    assert [row[:2] for row in rows] == [[0, 2], [1, 2]]
    assert all(row[2].startswith("/opt/venv/") for row in rows)


def test_nothing_else_of_the_systems_python_is_seen(host: Any) -> None:
    code = (
        "import importlib.metadata as m, json, mpi4py, pathlib, sys; "
        "links = [p.name for p in pathlib.Path(mpi4py.__file__).parents[1].iterdir() "
        "if p.is_symlink()]; "
        "print(json.dumps([m.version('mpi4py') in ' '.join(links), len(links), "
        "[e for e in sys.path if 'dist-packages' in e]]))"
    )
    assert json.loads(host.check_output("python -c %s", code)) == [True, 2, []]


def test_ranks_are_not_bound_to_one_core(run: Callable[..., Any]) -> None:
    done = run("mpirun", "-n", "2", "grep", "Cpus_allowed_list", "/proc/self/status")
    alone = run("grep", "Cpus_allowed_list", "/proc/self/status")
    assert done.out.splitlines() == alone.out.splitlines() * 2


def test_ucx_is_there(host: Any) -> None:
    assert "Transport: tcp" in host.check_output("ucx_info -d")


def test_no_server_unasked(run: Callable[..., Any]) -> None:
    done = run("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6; cat /proc/[0-9]*/comm")
    rows = [line.split() for line in done.out.splitlines()]
    assert [row for row in rows if len(row) > 3 and row[3] == "0A"] == []  # 0A: LISTEN
    assert "sshd" not in done.out.split()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], f"no {FOLDER}/authorized_keys; mount it"),
        (["--user", "root"], "does not run as root"),
        (["--user", "12345:0"], "user 12345 has no name here"),
        (["--env", "GPUCOMM_SSH_PORT=22"], "give a port from 1024 to 65535"),
    ],
    ids=["no keys", "root", "unknown user", "port"],
)
def test_the_server_refuses(run: Callable[..., Any], options: list[str], says: str) -> None:
    done = run("gpucomm-sshd", options=options)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("gpucomm-sshd: ")
    assert says in done.err
    assert len(done.err.splitlines()) == 1


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two containers with servers on a network of their own."""

    names: tuple[str, str]
    addresses: tuple[str, str]  # at which they reach each other
    hosts: str  # for mpirun -H

    def on_first(self, *command: str) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.names[0], *command, check=False)

    def logs(self, which: int) -> str:
        done = docker("logs", self.names[which])
        return done.stdout + done.stderr


@contextmanager
def servers(image: str, *, cabled: bool) -> Iterator[Pair]:
    """A volume with one key, and no folder of this machine: the engine may be elsewhere."""
    tag = f"gpucomm-test-{uuid.uuid4().hex[:8]}"
    names = (f"{tag}-a", f"{tag}-b")
    keys = ["--volume", f"{tag}:{FOLDER}"]
    make = (
        f"cd {FOLDER} && ssh-keygen -q -t ed25519 -N '' -f id_ed25519 && "
        "cp id_ed25519.pub authorized_keys && chown 1000 id_ed25519"
    )
    if not cabled:
        docker("network", "create", tag)
    try:
        docker("run", "--rm", "--user", "root", *keys, image, "sh", "-c", make)
        for name in names:
            docker("run", "--detach", "--name", name, "--hostname", name,
                   "--network", "none" if cabled else tag, "--env", "GPUCOMM_MARK=a b", *keys,
                   image, "gpucomm-sshd")  # fmt: skip
        if cabled and not can_be_laid(names[0]):
            pytest.skip("a cable needs root on the machine of the engine")
        if cabled:
            lay_cable(names, 24)
        addresses = ADDRESSES if cabled else names
        made = Pair(
            names=names,
            addresses=addresses,
            hosts=",".join(f"{address}:1" for address in addresses),
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if all("Server listening" in made.logs(which) for which in (0, 1)):
                break
            time.sleep(0.1)
        yield made
    finally:
        docker("rm", "--force", *names, check=False)
        docker("network", "rm", tag, check=False)
        docker("volume", "rm", tag, check=False)


@pytest.fixture(scope="module")
def pair(image: str) -> Iterator[Pair]:
    with servers(image, cabled=False) as made:
        yield made


@pytest.fixture(params=["a network of Docker", "two namespaces"])
def either(image: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Joined by a network of Docker, or by nothing but a cable between their namespaces."""
    if request.param == "a network of Docker":
        yield request.getfixturevalue("pair")
        return
    with servers(image, cabled=True) as made:
        yield made


def test_mpirun_reaches_the_other_host(pair: Pair) -> None:
    done = pair.on_first("mpirun", "-H", pair.hosts, "hostname")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == list(pair.names)


def test_the_environment_of_the_image_holds_on_the_other_host(pair: Pair) -> None:
    asks = "command -v python; echo $VIRTUAL_ENV; echo $GPUCOMM_MARK; id -u"
    done = pair.on_first("gpucomm-ssh", pair.names[1], asks)
    wanted = ["/opt/venv/bin/python", "/opt/venv", "a b", "1000"]
    assert (done.returncode, done.stdout.splitlines()) == (0, wanted)


def test_gloo_between_the_hosts(pair: Pair) -> None:
    first = f"MASTER_ADDR={pair.names[0]}"
    done = pair.on_first("mpirun", "-H", pair.hosts, "-x", first, "python", "-c", GLOO)
    assert done.returncode == 0, done.stderr
    # Gloo of some versions writes lines of its own in between.
    for rank, name in enumerate(pair.names):
        assert done.stdout.count(f"{name} rank {rank} ok") == 1, done.stdout


def test_the_selftest_between_the_hosts(either: Pair) -> None:
    first = f"MASTER_ADDR={either.addresses[0]}"
    done = either.on_first("mpirun", "-H", either.hosts, "-x", first, *SELFTEST)
    assert done.returncode == 0, done.stdout + done.stderr
    one_world(done.stdout, hosts=2)


def test_the_selftest_says_that_the_address_is_missing(pair: Pair) -> None:
    done = pair.on_first("mpirun", "-H", pair.hosts, *SELFTEST, "--stages", "rendezvous")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "GC0701" in done.stdout
    assert "MASTER_ADDR is not set" in done.stdout


def test_mpi4py_between_the_hosts(pair: Pair) -> None:
    done = pair.on_first("mpirun", "-H", pair.hosts, "python", "-c", ALLREDUCE)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(line)[0] for line in done.stdout.splitlines()) == [0, 1]


def test_keys_only(pair: Pair) -> None:
    bare = ("ssh", "-v", "-p", "2222", "-o", "StrictHostKeyChecking=no")
    done = pair.on_first(*bare, "-o", "PubkeyAuthentication=no", pair.names[1], "true")
    offers = [line for line in done.stderr.splitlines() if "that can continue" in line]
    assert done.returncode == 255
    assert {line.split(": ")[-1].strip() for line in offers} == {"publickey"}


def test_root_is_refused(pair: Pair) -> None:
    done = pair.on_first("gpucomm-ssh", f"root@{pair.names[1]}", "true")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_another_key_is_refused(pair: Pair) -> None:
    key = f"/tmp/{uuid.uuid4().hex}"
    pair.on_first("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    done = pair.on_first("ssh", "-p", "2222", "-i", key, "-o", "IdentitiesOnly=yes",
                         "-o", "StrictHostKeyChecking=no", pair.names[1], "true")  # fmt: skip
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_nothing_is_forwarded(pair: Pair) -> None:
    done = pair.on_first("gpucomm-ssh", "-W", "localhost:2222", pair.names[1])
    assert done.returncode == 255


def test_every_container_has_its_own_host_key(pair: Pair) -> None:
    keys = pair.on_first("ssh-keyscan", "-p", "2222", *pair.names).stdout.split("\n")
    found = [line.split()[-1] for line in keys if "ssh-ed25519" in line]
    assert len(set(found)) == 2


def test_the_server_ends_when_told(image: str, pair: Pair) -> None:
    volume = pair.names[0].removesuffix("-a")
    name = f"{volume}-c"
    docker("run", "--detach", "--name", name, "--volume", f"{volume}:{FOLDER}", image,
           "gpucomm-sshd")  # fmt: skip
    try:
        time.sleep(1)
        docker("stop", "--time", "10", name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip() == "0"
        # Its key went with it.
        assert "tmp." not in docker("diff", name).stdout
    finally:
        docker("rm", "--force", name)
