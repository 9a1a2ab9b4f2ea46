"""`gpucomm sweep`: real cells built and verified one after another, with their table as evidence.

Owns: which cells, the record that lets an interrupted run go on, and the clean-up between cells:
an image that was not here before is removed once its row is kept, since together they do not fit
on most disks. How a cell is built and verified is build.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import docker
from rich.console import Console

from gpucomm import build, engine, tables, verify
from gpucomm.cell import DEFAULT_INDEX, Cell
from gpucomm.errors import GpucommError, WorkFailed
from gpucomm.lock import MAIN
from gpucomm.progress import human_size
from gpucomm.project import Project
from gpucomm.standard import by_id

_LIBRARY = "gpucomm-selftest --backend gloo --nproc 1 --stages versions --json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One built and verified cell. Sizes in bytes, times in seconds."""

    cell: str
    recipe: str
    """Hash of its rendered files and of what verifies it."""
    digest: str
    date: str
    build_seconds: float
    verify_seconds: float
    tests: int
    download: int
    compressed: int
    unpacked: int
    torch: str
    library: str
    """What a process really loads, such as `nccl 2.20.5`."""
    engine: str


def real_cells(project: Project) -> tuple[Cell, ...]:
    """The alias cell of every line whose wheels the default index has."""
    aliases = [name for name in project.matrix.lines if name in project.matrix.aliases]
    cells = (by_id(project.matrix)[project.matrix.aliases[name]] for name in aliases)
    return tuple(cell for cell in cells if cell.index == DEFAULT_INDEX)


def recipe_of(project: Project, cell: Cell) -> str:
    """What decides the result for `cell`: its files, the templates' own files, its image tests."""
    digest = hashlib.sha256(verify.suite_hash(project, cell).encode())
    for folder in (
        project.recipe(cell),
        project.places.templates / "files",
        project.places.selftest,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _record(project: Project, cell: Cell) -> Path:
    return project.places.cache / "sweep" / f"{cell.id}.json"


def recorded(project: Project, cell: Cell) -> Row | None:
    """The row of `cell` if exactly this recipe passed before."""
    try:
        row = Row(**json.loads(_record(project, cell).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return row if row.recipe == recipe_of(project, cell) else None


def sweep(
    project: Project,
    cells: Sequence[Cell],
    options: build.Options,
    console: Console,
    *,
    keep: bool,
) -> list[Row]:
    """Build and verify each of `cells` that has no record yet; returns the rows of all.

    Raises WorkFailed at the end when any failed; the others' records are kept.
    """
    project.write_recipes(cells)
    rows: list[Row] = []
    faults: list[str] = []
    for number, cell in enumerate(cells, start=1):
        console.print(f"sweep {number}/{len(cells)}  {cell.id}", markup=False, highlight=False)
        row = recorded(project, cell)
        if row is None:
            try:
                row = _one(project, cell, options, console, keep=keep)
            except GpucommError as error:
                faults += error.faults
                continue
        rows.append(row)
    console.print()
    console.print(table(rows), markup=False, highlight=False)
    if faults:
        raise WorkFailed(faults)
    return rows


def _one(
    project: Project, cell: Cell, options: build.Options, console: Console, *, keep: bool
) -> Row:
    with closing(engine.client()) as client:
        here = build.image_of(client, project.reference(cell)) is not None
        started = time.monotonic()
        build.build(project, (cell,), options, console)
        seconds = time.monotonic() - started
        digest = build.local_image(client, project, cell)
        row = _measured(project, cell, client, digest, seconds)
        path = _record(project, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(row), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
        if not here and not keep:
            for name in build.remove_local(client, project, cell):
                console.print(f"removed {name}", markup=False, highlight=False)
    return row


def _measured(
    project: Project, cell: Cell, client: docker.DockerClient, digest: str, seconds: float
) -> Row:
    verified = verify.recorded(project.places, digest, verify.suite_hash(project, cell))
    if verified is None:
        raise WorkFailed(f"{cell.id}: {digest[:19]} has no record of its verification")
    du = _run(digest, "du --one-file-system --summarize --block-size=1 /", "--user", "root")
    said = json.loads(_run(digest, _LIBRARY))["versions"]
    libraries = ", ".join(f"{row['family']} {row['version']}" for row in said["libraries"])
    info = client.version()
    return Row(
        cell=cell.id,
        recipe=recipe_of(project, cell),
        digest=digest,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        build_seconds=round(max(seconds - verified.seconds, 0), 1),
        verify_seconds=verified.seconds,
        tests=verified.passed,
        download=sum(wheel.size for wheel in project.lock.wheels(cell, project.matrix, MAIN)),
        compressed=int(client.api.inspect_image(digest)["Size"]),
        unpacked=int(du.split()[0]),
        torch=str(said["torch"]),
        library=libraries or "none",
        engine=f"Docker {info['Version']}",
    )


def _run(image: str, command: str, *options: str) -> str:
    argv = ["docker", "run", "--rm", *options, image, "sh", "-c", command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    if not done.stdout.strip():
        raise WorkFailed(
            f"{command.split()[0]} in {image[:19]} printed nothing: {done.stderr[-300:]}"
        )
    return done.stdout


_COLUMNS = (
    "cell",
    "loaded",
    "torch",
    "build",
    "verify",
    "wheels",
    "compressed",
    "unpacked",
    "digest",
)


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    texts = [
        (
            row.cell,
            row.library,
            row.torch,
            f"{row.build_seconds:.0f} s",
            f"{row.tests} tests, {row.verify_seconds:.0f} s",
            human_size(row.download),
            human_size(row.compressed),
            human_size(row.unpacked),
            row.digest.removeprefix("sha256:")[:12],
        )
        for row in rows
    ]
    return "\n".join(tables.markdown(_COLUMNS, texts))


def document(rows: Sequence[Row]) -> str:
    """The evidence file: what was run, on what, and the table."""
    dates = sorted({row.date for row in rows})
    engines = ", ".join(sorted({row.engine for row in rows}))
    return (
        "# Real cells, built and verified\n\n"
        f"`make test-matrix` on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {engines}. "
        "Each cell was built from its locked wheels and had all its image tests. `loaded` is what "
        "`ncclGetVersion` of the mapped library says in the image. `wheels` is the download, "
        "`compressed` the size in a registry, `unpacked` that of the root file system.\n\n"
        f"{table(rows)}\n"
    )
