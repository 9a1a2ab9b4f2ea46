"""Runs the image tests against one image and remembers what passed.

Owns: the pytest call and the verification record. A record is kept by image digest, by the content
of the tests and by what the matrix expects, so a changed test or expectation verifies again. The
tests themselves, in tests/images, take every expectation from the matrix.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gpucomm.cell import Cell
from gpucomm.child import running
from gpucomm.errors import WorkFailed
from gpucomm.places import Places
from gpucomm.project import Project
from gpucomm.render import labels_of, packages_of
from gpucomm.schema import Matrix
from gpucomm.standard import size_budget


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A passed verification. `seconds` is what the tests took."""

    image: str
    cell: str
    seconds: float
    passed: int


def suite_hash(project: Project, cell: Cell) -> str:
    """Content of the image tests and of what they expect of `cell`."""
    places, matrix = project.places, project.matrix
    digest = hashlib.sha256()
    for path in sorted(places.image_tests.rglob("*.py")):
        digest.update(f"{path.relative_to(places.image_tests)}\0".encode())
        digest.update(path.read_bytes())
    expected = {
        "cell": asdict(cell),
        "labels": labels_of(matrix, cell),
        "line": _line_facts(matrix, cell),
        "packages": packages_of(matrix, cell),
        "wheels": [asdict(wheel) for wheel in project.wheels(cell)],
    }
    digest.update(json.dumps(expected, sort_keys=True).encode())
    return digest.hexdigest()


def _line_facts(matrix: Matrix, cell: Cell) -> dict[str, object]:
    """What a line says of `cell`: a torch or a flavor beside it changes nothing here."""
    line = matrix.lines[cell.line]
    own = line.model_dump(include={"accelerator", "nvidia_require", "environment"})
    return own | {"size_budget_mb": size_budget(matrix, cell)}


def _record(places: Places, image: str, suite: str) -> Path:
    name = f"{image.removeprefix('sha256:')[:24]}-{suite[:24]}.json"
    return places.cache / "verified" / name


def recorded(places: Places, image: str, suite: str) -> Verified | None:
    """The record of a verification of exactly this image by exactly these tests."""
    try:
        data = json.loads(_record(places, image, suite).read_text(encoding="utf-8"))
        found = Verified(**data)
    except (OSError, ValueError, TypeError):
        return None
    return found if found.image == image else None


def record(places: Places, verified: Verified, suite: str) -> None:
    """Remember that the tests of `suite` passed on exactly this image."""
    path = _record(places, verified.image, suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(verified)) + "\n", encoding="utf-8")
    temporary.replace(path)


def verify(project: Project, cell: Cell, image: str, only: str | None = None) -> Verified:
    """Run the image tests against `image` (a digest), record a pass.

    `only` picks tests as pytest's -k does; such a partial run is never recorded.

    Raises WorkFailed that names every failed test and the log.
    """
    places, suite = project.places, suite_hash(project, cell)
    places.logs.mkdir(parents=True, exist_ok=True)
    log = places.logs / f"{cell.id}.verify.log"
    report = places.logs / f"{cell.id}.verify.json"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", str(places.image_tests), "--rootdir", str(places.root),
        "--image", image, "--cell", cell.id, "--report", str(report), "-q",
        *(["-k", only] if only else []),
    ]  # fmt: skip
    started = time.monotonic()
    with log.open("wb") as output:
        # Interrupted, pytest still stops the containers that it started.
        environ = os.environ | {"COLUMNS": "100"}
        with running(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=places.root, env=environ
        ) as process:
            process.wait()
    code = process.returncode
    seconds = time.monotonic() - started
    try:
        outcome = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        outcome = {"passed": [], "failed": {}}
    if code != 0 or outcome["failed"] or not outcome["passed"]:
        faults = [f"{test}: {why}" for test, why in outcome["failed"].items()]
        faults = faults or [f"the tests did not run (pytest ended with {code})"]
        raise WorkFailed([*(f"{cell.id}: {fault}" for fault in faults), f"full log: {log}"])
    result = Verified(
        image=image, cell=cell.id, seconds=round(seconds, 1), passed=len(outcome["passed"])
    )
    if only is None:
        record(places, result, suite)
    return result
