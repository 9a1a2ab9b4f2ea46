"""A child process that is ended in order when its parent is interrupted.

The child has a session of its own, so a terminal's Ctrl-C reaches it once, through here: it gets
SIGINT, time to clean up, and only then SIGKILL for its whole group.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

GRACE = 20.0  # seconds that an interrupted child gets to end by itself


@contextmanager
def running(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start `command` and hand it on; an exception in the block ends it before it is raised."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
        process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    finally:
        if process.stderr is not None:
            process.stderr.close()
