"""The entrypoint executes what it is given: arguments, signals and exit codes pass through."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any


def test_arguments_with_spaces(run: Callable[..., Any]) -> None:
    done = run("printf", "%s|", "a b", "", "c'd\"e", "*")
    assert (done.code, done.out) == (0, "a b||c'd\"e|*|")


def test_exit_codes(run: Callable[..., Any]) -> None:
    assert [run("sh", "-c", f"exit {code}").code for code in (0, 3, 124)] == [0, 3, 124]


def test_unknown_command_is_127(run: Callable[..., Any]) -> None:
    assert run("no-such-command").code == 127


def test_nothing_is_printed_on_the_way(run: Callable[..., Any]) -> None:
    done = run("true")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_signal_reaches_the_command(image: str) -> None:
    script = "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    argv = ["docker", "run", "--detach", image, "sh", "-c", script]
    name = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    try:
        deadline = time.monotonic() + 20
        while "ready" not in _logs(name) and time.monotonic() < deadline:
            time.sleep(0.1)
        subprocess.run(["docker", "stop", "--time", "10", name], check=True, capture_output=True)
        waited = subprocess.run(
            ["docker", "wait", name], check=True, capture_output=True, text=True
        )
        assert waited.stdout.strip() == "7"
        assert "got it" in _logs(name)
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


def _logs(name: str) -> str:
    done = subprocess.run(["docker", "logs", name], check=True, capture_output=True, text=True)
    return done.stdout


def test_orphans_are_reaped(host: Any) -> None:
    host.check_output("sh -c '(sleep 0.2 &) ; true'")
    time.sleep(1)
    assert host.check_output("ps -eo stat= 2>/dev/null || cat /proc/[0-9]*/stat").count(" Z ") == 0
