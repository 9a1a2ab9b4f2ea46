"""Copies that a real Slurm starts, on two hosts: its daemons in two containers of the image."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

SLURM = """
USER root
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge
"""
CONF = """
ClusterName=test
SlurmctldHost={first}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmdParameters=config_overrides
MpiDefault=none
NodeName={first},{second} CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""
START = """
chown munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd && chown munge /run/munge
setpriv --reuid munge --regid munge --clear-groups munged
"""
SELFTEST = ("gpucomm-selftest", "--backend", "gloo", "--json")


def docker(*words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=check, input=given, timeout=300
    )


class Cluster:
    def __init__(self, first: str) -> None:
        self.first = first

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.first, *words, check=False)

    def report(self, *words: str) -> dict[str, Any]:
        done = self.run(*words)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == report["exit_code"], done.stderr
        return report


def _put(name: str, path: str, text: str) -> None:
    docker("exec", "--interactive", name, "sh", "-c", f"cat > {path}", given=text)


@pytest.fixture(scope="module")
def cluster(real_image: str) -> Iterator[Cluster]:
    tag = f"gpucomm-test-{secrets.token_hex(4)}"
    names = [f"{tag}-a", f"{tag}-b"]
    docker("build", "--quiet", "--tag", tag, "-", given=f"FROM {real_image}{SLURM}")
    docker("network", "create", "--internal", tag)
    key = secrets.token_hex(32)
    try:
        for name in names:
            docker("run", "--detach", "--init", "--user", "root", "--name", name,
                   "--hostname", name, "--network", tag, tag, "sleep", "900")  # fmt: skip
            _put(name, "/etc/slurm/slurm.conf", CONF.format(first=names[0], second=names[1]))
            _put(name, "/etc/munge/munge.key", key)
            docker("exec", name, "sh", "-c", START)
        docker("exec", "--detach", names[0], "slurmctld")
        for name in names:
            docker("exec", "--detach", name, "slurmd", "-N", name)
        made = Cluster(names[0])
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if made.run("sinfo", "--noheader", "--format", "%D %t").stdout.split() == ["2", "idle"]:
                break
            time.sleep(0.5)
        yield made
    finally:
        docker("rm", "--force", *names, check=False)
        docker("network", "rm", tag, check=False)
        docker("rmi", tag, check=False)


def test_a_step_on_two_hosts_is_one_world(cluster: Cluster) -> None:
    report = cluster.report("srun", "-N2", "--ntasks-per-node", "2", *SELFTEST)
    assert (report["verdict"], report["world"]["size"]) == ("pass", 4)
    assert report["settings"]["launcher"]["family"] == "Slurm"
    assert len({row["host"] for row in report["stages"][0]["rows"]}) == 2
    assert [one for one in report["findings"] if one["level"] in ("warn", "fail")] == []


def test_a_step_on_one_host_meets_on_the_loopback(cluster: Cluster) -> None:
    report = cluster.report("srun", "-N1", "-n2", *SELFTEST, "--stages", "init")
    assert (report["verdict"], report["world"]["size"]) == ("pass", 2)
    assert report["settings"]["launcher"]["address"] == "127.0.0.1"


def test_two_jobs_at_a_time_do_not_meet(cluster: Cluster) -> None:
    both = "srun -n2 %s > /tmp/a & srun -n2 %s > /tmp/b; wait; cat /tmp/a; echo ,; cat /tmp/b"
    one = " ".join((*SELFTEST, "--stages", "init"))
    done = cluster.run("sh", "-c", both % (one, one))
    first, second = json.loads(f"[{done.stdout}]")
    assert [first["verdict"], second["verdict"]] == ["pass", "pass"], done.stderr
    assert first["world"]["size"] == second["world"]["size"] == 2


@pytest.mark.parametrize("shell", ["salloc -N2 -n4 {}", "sbatch --wait --output /tmp/out /tmp/job"])
def test_outside_a_step_it_starts_its_own_ranks(cluster: Cluster, shell: str) -> None:
    """The variables there describe the allocation and no process."""
    command = " ".join((*SELFTEST, "--stages", "init"))
    _put(cluster.first, "/tmp/job", f"#!/bin/sh\n#SBATCH -N2 -n4\n{command} > /tmp/report\n")
    done = cluster.run("sh", "-c", shell.format(f"sh -c '{command} > /tmp/report'"))
    assert done.returncode == 0, done.stderr
    report = json.loads(cluster.run("cat", "/tmp/report").stdout)
    assert report["settings"]["launcher"]["family"] == "none"
    assert report["verdict"] == "pass"


def test_a_task_that_ends_early_is_named(cluster: Cluster) -> None:
    script = "[ $SLURM_PROCID = 1 ] || exec " + " ".join((*SELFTEST, "--timeout", "5"))
    done = cluster.run("srun", "-N2", "-n2", "sh", "-c", script)
    report = json.loads(done.stdout)
    (finding,) = [one for one in report["findings"] if one["level"] == "fail"]
    assert (done.returncode, finding["id"]) == (1, "GC0702")
    assert finding["measured"].startswith("rank 1 of 2 did not come")
