"""bench/plan: what a command does before it builds, on matrices of 100, 1,000 and 10,000 cells.

Times reading and validating matrix.yaml, expanding it, holding the lock against it, rendering every
cell, and the drift gate; `gpucomm plan` belongs here when it exists. The sizes are taken in turn,
so that whatever else the machine does meets all of them. Ends with 1 when a bound is broken:
`.venv/bin/python -m bench.plan`.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests import matrixes
from tests.matrixes import Shape

from gpucomm import located, lock, matrix, render
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

ROUNDS = 3
GROWTH = 1.2
"""Time per cell of the largest matrix, over that of the middle one."""
SECONDS = 2.0
"""For the whole of the middle one."""
SHAPES = {
    100: Shape(lines=5, torches=5, systems=2, flavors=2),
    1_000: Shape(lines=20, torches=5, overrides=1, systems=5),
    10_000: Shape(lines=100, torches=5, overrides=3, systems=5),
}
STEPS = ("read and validate", "expand", "hold the lock", "render", "drift gate")
TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of `work`, without a collection that others' garbage would start."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    finally:
        gc.enable()


def measure(shape: Shape, folder: Path) -> dict[str, float]:
    """Seconds of each step for one matrix; its rendered files lie in `folder`."""
    text = matrixes.text_of(shape)
    locks = matrixes.lock_of(matrix.check(located.parse(text, matrix.FILE)))
    found: list[Matrix] = []
    times = {STEPS[0]: seconds(lambda: found.append(_read(text)))}
    (fresh,) = found
    times[STEPS[1]] = seconds(lambda: cells_of(fresh))
    if faults := list(lock.faults_of(fresh, locks)):
        raise SystemExit(f"the made lock does not answer: {faults[0]}")
    times[STEPS[2]] = seconds(lambda: list(lock.faults_of(fresh, locks)))
    files: dict[str, str] = {}
    times[STEPS[3]] = seconds(lambda: files.update(render.render(fresh, locks, TEMPLATES)))
    render.write(files, folder)
    times[STEPS[4]] = seconds(lambda: render.check(files, folder))
    return times


def _read(text: str) -> Matrix:
    """A matrix that nothing was derived from yet: checking expands it, which is timed apart."""
    read = matrix.check(located.parse(text, matrix.FILE))
    read.memo.clear()
    return read


def main() -> int:
    """Measure the sizes in turn; print seconds, time per cell, growth."""
    runs: dict[int, list[dict[str, float]]] = {cells: [] for cells in SHAPES}
    with tempfile.TemporaryDirectory(prefix="gpucomm-plan-") as folder:
        for _ in range(ROUNDS):
            for cells, shape in SHAPES.items():
                if shape.cells != cells:
                    raise SystemExit(f"{shape} has {shape.cells} cells")
                runs[cells].append(measure(shape, Path(folder) / str(cells)))
    medians = {
        cells: {step: statistics.median(run[step] for run in row) for step in STEPS}
        for cells, row in runs.items()
    }
    print(f"{'step':<20}" + "".join(f"{cells:>10,}" for cells in SHAPES))
    for step in STEPS:
        print(f"{step:<20}" + "".join(f"{medians[cells][step]:>8.3f} s" for cells in SHAPES))
    totals = {cells: sum(row.values()) for cells, row in medians.items()}
    print(f"{'together':<20}" + "".join(f"{total:>8.3f} s" for total in totals.values()))
    each = {cells: total / cells for cells, total in totals.items()}
    print(f"{'per cell':<20}" + "".join(f"{1e6 * one:>7.0f} µs" for one in each.values()))
    growth = each[10_000] / each[1_000]
    print(f"per cell, 10,000 over 1,000: {growth:.2f} (limit {GROWTH})")
    print(f"1,000 cells together: {totals[1_000]:.2f} s (limit {SECONDS})")
    return int(growth > GROWTH or totals[1_000] > SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
