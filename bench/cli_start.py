"""bench/cli_start: how long `gpucomm --help` takes, beside what importing click alone takes.

Both start a Python of their own, in turn, so that whatever else the machine does meets both. Ends
with 1 when the medians' ratio is above the limit: `.venv/bin/python bench/cli_start.py`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 2.5
ROUNDS = 40


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of one run of `command`."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    """Measure both in turn; print the medians and their ratio."""
    ours = [str(Path(sys.executable).parent / "gpucomm"), "--help"]
    click = [sys.executable, "-c", "import click"]
    for command in (ours, click):  # byte code and the disk's cache
        seconds(command)
    pairs = [(seconds(ours), seconds(click)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = mine / theirs
    print(f"gpucomm --help  {mine * 1000:6.1f} ms")
    print(f"import click    {theirs * 1000:6.1f} ms")
    print(f"ratio           {ratio:6.2f}    (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
