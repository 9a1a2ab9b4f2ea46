"""matrix + lock + templates -> images/<cell>/: Dockerfiles and pin lists, and the drift gate.

Rendering is pure text in, text out; only `write` touches images/. The gate compares bytes, never
times, and a file under images/ that no cell asks for is drift too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpucomm.cell import Cell, cells_of
from gpucomm.errors import WorkFailed
from gpucomm.layers import layers_of
from gpucomm.lock import Lock, Wheel
from gpucomm.schema import Matrix

FOLDER = "images"
LABEL_PREFIX = "io.gpucomm"


def labels_of(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """The labels of a cell's image: the OCI ones, and its facts under one prefix."""
    facts = {
        "cell": cell.id,
        "line": cell.line,
        "torch": cell.torch,
        "cuda": cell.cuda,
        "nccl": cell.nccl,
        "python": cell.python,
        "os": cell.os,
        "flavor": cell.flavor,
    }
    collective = f" with NCCL {cell.nccl}" if cell.nccl else " with Gloo"
    return {
        "org.opencontainers.image.title": cell.id,
        "org.opencontainers.image.description": f"PyTorch {cell.torch}{collective}",
        "org.opencontainers.image.source": matrix.source,
    } | {f"{LABEL_PREFIX}.{name}": value for name, value in facts.items() if value is not None}


def render(matrix: Matrix, lock: Lock, templates: Path) -> dict[str, str]:
    """Every file of images/ as path (relative to images/) -> text."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  Dockerfiles are not HTML
    )
    template = environment.get_template("Dockerfile.j2")
    files: dict[str, str] = {}
    for cell in cells_of(matrix):
        for name, text in _files(matrix, lock, cell).items():
            files[f"{cell.id}/{name}"] = text
        files[f"{cell.id}/Dockerfile"] = (
            template.render(_context(matrix, lock, cell)).strip() + "\n"
        )
    return dict(sorted(files.items()))


def _context(matrix: Matrix, lock: Lock, cell: Cell) -> Mapping[str, object]:
    line = matrix.lines[cell.line]
    return {
        "cell": cell,
        "line": line,
        "flavor": matrix.flavors[cell.flavor],
        "layers": layers_of(lock.wheels(cell, matrix)),
        "labels": labels_of(matrix, cell),
        "site_packages": f"/opt/venv/lib/python{cell.python}/site-packages",
        "torch_page": torch_page(matrix, cell),
    }


def torch_page(matrix: Matrix, cell: Cell) -> str | None:
    """The page that lists torch's wheels of a line that the default index does not have."""
    index = matrix.lines[cell.line].index
    return None if index == "default" else f"{matrix.pytorch_index}/{index}/torch/"


def _files(matrix: Matrix, lock: Lock, cell: Cell) -> dict[str, str]:
    wheels = lock.wheels(cell, matrix)
    files = {f"requirements/{layer.name}.txt": _pins(layer.wheels) for layer in layers_of(wheels)}
    files["requirements/tools.txt"] = _pins(lock.tools[cell.python])
    files["pins/constraints.txt"] = _lines(constraints_of(wheels))
    files["pins/overrides.txt"] = _lines(overrides_of(matrix, cell))
    return files


def constraints_of(wheels: tuple[Wheel, ...]) -> list[str]:
    """What a later install may not change: torch and everything that is loaded with it."""
    fixed = [
        wheel for layer in layers_of(wheels) if layer.name != "python" for wheel in layer.wheels
    ]
    return [f"{wheel.name}=={wheel.version}" for wheel in sorted(fixed, key=lambda w: w.name)]


def overrides_of(matrix: Matrix, cell: Cell) -> list[str]:
    """The requirement that replaces torch's own on NCCL, where the cell overrides it."""
    if not cell.nccl_overridden:
        return []
    return [f"{matrix.lines[cell.line].nccl_wheel}=={cell.nccl}"]


def _pins(wheels: tuple[Wheel, ...]) -> str:
    return _lines([wheel.pin for wheel in wheels])


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def drift(files: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Every difference between what the matrix renders and what lies in `folder`."""
    for name, text in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{FOLDER}/{name}: missing"
        elif path.read_bytes() != text.encode():
            yield f"{FOLDER}/{name}: differs from what the matrix renders"
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in files and name not in folders:
            yield f"{FOLDER}/{name}: belongs to no cell"


def check(files: Mapping[str, str], folder: Path) -> None:
    """The drift gate. Raises WorkFailed with one fault per file."""
    if faults := list(drift(files, folder)):
        raise WorkFailed([f"{fault}; run gpucomm render" for fault in faults])


def write(files: Mapping[str, str], folder: Path) -> int:
    """Make `folder` hold exactly `files`; unchanged files are not touched. Returns the changes."""
    changes = 0
    for name, text in files.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == text.encode():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(text.encode())
        temporary.replace(path)
        changes += 1
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if name not in files and name not in folders:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            changes += 1
    return changes
