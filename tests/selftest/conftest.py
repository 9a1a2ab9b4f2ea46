"""Runs the real self-test with a real torch, by a local Python or in a built image.

GPUCOMM_TEST_PYTHON names a Python that has torch, GPUCOMM_TEST_IMAGE an image; without either it
is the real cu121 image, built if need be. Both are driven alike and from the outside only: the
product has no hook for faults. The processes of a run are found by a token in their environment,
which works for a container as well, since its processes are visible to root on the host.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SELFTEST = Path(__file__).parents[2] / "selftest"
MARK = "GPUCOMM_TEST_RUN"
# nccl runs what can be run so on the GPUs of this machine.
BACKEND = os.environ.get("GPUCOMM_TEST_BACKEND", "gloo")


def docker_argv(
    image: str, command: Sequence[str], environ: dict[str, str], options: Sequence[str] = ()
) -> list[str]:
    """How a command runs in an image: the strictest container that the self-test supports."""
    settings = [part for name, value in environ.items() for part in ("--env", f"{name}={value}")]
    confined = ["--network", "none", "--read-only", "--tmpfs", "/tmp", "--user", "12345:12345"]
    return [
        "docker",
        "run",
        "--rm",
        "--interactive",
        *confined,
        *settings,
        *options,
        image,
        *command,
    ]


@dataclass(frozen=True)
class Process:
    pid: int
    role: str
    rank: int

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)


def marked(token: str) -> Iterator[tuple[int, list[str]]]:
    """Every process of one run, wherever it runs, with its command."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or it is somebody else's
        if f"{MARK}={token}".encode() in environ:
            yield int(entry.name), command


def processes(token: str) -> list[Process]:
    """The rank and probe processes of one run."""
    return [
        Process(
            pid,
            command[command.index("--role") + 1],
            int(command[command.index("--rank") + 1]),
        )
        for pid, command in marked(token)
        if "gpucomm_selftest.rank" in command
    ]


@dataclass
class Completed:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.out)
        return report


@dataclass
class Running:
    popen: "subprocess.Popen[str]"
    token: str
    begun: float = field(default_factory=time.monotonic)
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.popen.stdout, self.out), (self.popen.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(iter(stream.readline, ""))

    def wait_for_log(self, pattern: str, limit: float = 90.0) -> None:
        """Waits until --verbose has said something."""
        end = time.monotonic() + limit
        while not any(re.search(pattern, line) for line in list(self.err)):
            assert self.popen.poll() is None, f"it ended: {self.out} {self.err}"
            assert time.monotonic() < end, f"never said {pattern}: {self.err}"
            time.sleep(0.01)

    def rank(self, number: int) -> Process:
        return next(p for p in self.processes() if p.role == "rank" and p.rank == number)

    def processes(self) -> list[Process]:
        return processes(self.token)

    def finish(self, limit: float = 120.0) -> Completed:
        code = self.popen.wait(limit)
        for reader in self._readers:
            reader.join(10)
        seconds = time.monotonic() - self.begun
        return Completed(code, "".join(self.out), "".join(self.err), seconds)

    def end(self) -> None:
        for process in self.processes():
            process.kill(signal.SIGKILL)
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(10)
        for reader in self._readers:
            reader.join(10)


class Runner:
    """Starts the self-test, or a script, with one Python or in one image."""

    def __init__(self, *, python: str | None = None, image: str | None = None) -> None:
        self.python = python
        self.image = image
        self._running: list[Running] = []
        # Where the tests bring something along: it must be there in an image too.
        self.options: list[str] = []

    def bring(self, folder: Path) -> None:
        """Makes a folder of the tests readable where the self-test runs, under the same name."""
        folder.chmod(0o755)
        self.options += ["--volume", f"{folder}:{folder}:ro"]

    def _argv(self, command: Sequence[str], environ: dict[str, str]) -> list[str]:
        if self.image is not None:
            program = ["gpucomm-selftest"] if command[0] == "-m" else ["python"]
            rest = command[2:] if command[0] == "-m" else command
            return docker_argv(self.image, [*program, *rest], environ, self.options)
        return [str(self.python), *command]

    def _start(self, command: Sequence[str], environ: dict[str, str] | None) -> Running:
        token = secrets.token_hex(8)
        extra = {MARK: token, **(environ or {})}
        path = os.pathsep.join([*filter(None, [extra.get("PYTHONPATH")]), str(SELFTEST)])
        local = {**os.environ, **extra, "PYTHONPATH": path}
        popen = subprocess.Popen(
            self._argv(command, extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if self.image else local,
        )
        running = Running(popen, token)
        self._running.append(running)
        return running

    def start(self, *args: str, environ: dict[str, str] | None = None) -> Running:
        return self._start(["-m", "gpucomm_selftest", *args], environ)

    def run(self, *args: str, environ: dict[str, str] | None = None) -> Completed:
        return self.start(*args, environ=environ).finish()

    def script(self, text: str, *args: str, environ: dict[str, str] | None = None) -> Completed:
        """Runs a Python script beside torch and the self-test's package."""
        return self._start(["-c", text, *args], environ).finish()

    def end(self) -> None:
        for running in self._running:
            running.end()


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and that is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def torch_run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    python, image = os.environ.get("GPUCOMM_TEST_PYTHON"), os.environ.get("GPUCOMM_TEST_IMAGE")
    if python:
        runner = Runner(python=python)
    else:
        runner = Runner(image=image or request.getfixturevalue("real_image"))
    yield runner
    runner.end()


@pytest.fixture
def plain_run() -> Iterator[Runner]:
    """The self-test with this Python: for tests that bring a stand-in for torch."""
    runner = Runner(python=sys.executable)
    yield runner
    runner.end()
