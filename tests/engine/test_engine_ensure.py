"""`ensure` and `start` against real daemons. The engine of the machine is used, never touched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from gpucomm import engine
from gpucomm.errors import Unusable

pytestmark = pytest.mark.engine

ENSURE = """
import dataclasses, json
from gpucomm import engine
said = []
info = engine.ensure(said.append)
print(json.dumps([said, dataclasses.asdict(info)], default=str))
"""
# A system containerd would be taken by the second daemon as well: it must not see that socket.
START = """
import sys
from pathlib import Path
from gpucomm import engine
config = engine.DaemonConfig.under(Path(sys.argv[1]))
engine.write_daemon_config(config, print)
engine.start(config, print)
engine.start(config, print)
print(engine.started_by_us(config))
"""
HIDE_CONTAINERD = (
    'if [ -d /run/containerd ]; then mount -t tmpfs none /run/containerd; fi; exec "$@"'
)


@pytest.fixture(scope="module")
def running() -> engine.EngineInfo:
    info = engine.probe()
    if info is None:
        pytest.skip("no engine answers")
    return info


def can_unshare() -> bool:
    if os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def root() -> Iterator[Path]:
    # Not tmp_path: the sockets of containerd must stay under 108 characters.
    with tempfile.TemporaryDirectory(prefix="gc-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_twice_and_at_once_is_one_engine(running: engine.EngineInfo, tmp_path: Path) -> None:
    called = tmp_path / "called"
    for name in ("apt-get", "dockerd", "systemctl"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho $0 >> {called}\nexit 1\n")
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    processes = [
        subprocess.Popen([sys.executable, "-c", ENSURE], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert [said for said, _ in answers] == [[], [], []]
    assert all(info == answers[0][1] for _, info in answers)
    assert answers[0][1]["version"] == running.version
    assert engine.ensure(pytest.fail) == engine.ensure(pytest.fail)
    assert not called.exists()


def test_the_client_talks_to_that_engine(running: engine.EngineInfo) -> None:
    with contextlib.closing(engine.client()) as connection:
        assert connection.version()["Version"] == running.version


@pytest.mark.skipif(not can_unshare(), reason="needs root and new network namespaces")
def test_a_second_daemon_starts_over_stale_pid_files(
    running: engine.EngineInfo, root: Path
) -> None:
    config = engine.DaemonConfig.under(root)
    for path in config.pid_files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(os.getpid()))
    command = ["unshare", "-n", "-m", "sh", "-c", HIDE_CONTAINERD, "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", START, str(root)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    pid = engine.running_daemon(config)
    try:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("removing stale") == 2
        assert done.stdout.count("started dockerd") == 1
        assert "waiting for the dockerd that is already running" in done.stdout
        assert done.stdout.splitlines()[-1] == "True"
        assert engine.started_by_us(config)
        private = docker.DockerClient(base_url=f"unix://{config.socket}")
        with contextlib.closing(private) as connection:
            info = connection.info()
        assert info["DockerRootDir"] == str(root / "data")
        assert dict(info["DriverStatus"])["driver-type"] == "io.containerd.snapshotter.v1"
    finally:
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 20
            while engine.start_time(pid) is not None and time.monotonic() < deadline:
                time.sleep(0.1)
    assert not engine.started_by_us(config)
    assert engine.probe() == running


@pytest.mark.skipif(os.geteuid() != 0, reason="dockerd runs as root")
def test_a_daemon_that_dies_at_once_shows_its_log(running: engine.EngineInfo, root: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unusable) as caught:
        engine.start(engine.DaemonConfig.under(root, "--no-such-flag"), lambda _: None)
    first, *tail = str(caught.value).splitlines()
    assert "dockerd ended at once" in first
    assert str(root / "dockerd.log") in first
    assert any("--no-such-flag" in line for line in tail)
    assert time.monotonic() - began < 10
    assert engine.probe() == running
