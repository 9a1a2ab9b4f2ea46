"""How long the names of a collective library take to read, beside reading the whole file.

    python -m bench.lint_names /path/to/libnccl.so.2

Prints the median of ten of each, and the ratio. PYTHONPATH must have selftest/.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpucomm_selftest.names import known_names


def median(run: Callable[[], object], times: int = 10) -> float:
    """Seconds of one run."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main() -> None:
    path = Path(sys.argv[1])
    names = median(lambda: known_names(path))
    whole = median(path.read_bytes)
    count = len(known_names(path))
    print(f"{count} names in {names * 1000:.1f} ms; whole file {whole * 1000:.1f} ms")
    print(f"ratio {names / whole:.3f}")


if __name__ == "__main__":
    main()
