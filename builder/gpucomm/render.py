"""matrix + lock + templates -> images/<cell>/: Dockerfiles and pin lists, and the drift gate.

Rendering is pure text in, text out; only `write` touches the disk. The gate compares bytes, never
times, and a file under images/ that no cell asks for is drift too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from gpucomm import pages
from gpucomm.cell import Cell, base_image, toolkit_image
from gpucomm.errors import WorkFailed
from gpucomm.layers import Layer, Pin, layers_of
from gpucomm.lock import Lock, Wheel, tools_key
from gpucomm.requirements import Requirements, requirements_of
from gpucomm.rules import platforms
from gpucomm.schema import Architecture, Matrix
from gpucomm.standard import cells_of

FOLDER = "images"
LABEL_PREFIX = "io.gpucomm"
CELL_LABEL = f"{LABEL_PREFIX}.cell"
DOCKERFILE = "Dockerfile"
NVCC = "nvidia-cuda-nvcc"
"""The wheel that makes an image's CUDA wheels a toolkit; that of CUDA 12 holds no nvcc."""


def labels_of(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """The labels of a cell's image: the OCI ones, and its facts under one prefix."""
    facts = {
        "cell": cell.id,
        "line": cell.line,
        "torch": cell.torch,
        "cuda": cell.cuda,
        "rocm": cell.rocm,
        "nccl": cell.nccl,
        "rccl": cell.rccl,
        "python": cell.python,
        "os": cell.os,
        "flavor": cell.flavor,
        "extras": ",".join(cell.extras) or None,
        "gpu-targets": ",".join(cell.gpu_targets) or None,
    }
    library = "Gloo"
    if cell.accelerator == "cuda":
        library = f"NCCL {cell.nccl}" if cell.nccl else "the NCCL inside it"
    elif cell.rccl:
        library = f"RCCL {cell.rccl}"
    return {
        "org.opencontainers.image.title": cell.id,
        "org.opencontainers.image.description": f"PyTorch {cell.torch} with {library}",
        "org.opencontainers.image.source": matrix.source,
    } | {f"{LABEL_PREFIX}.{name}": value for name, value in facts.items() if value is not None}


def render(matrix: Matrix, lock: Lock, templates: Path) -> dict[str, str]:
    """Every file of images/ as path (relative to images/) -> text."""
    template = _template(templates)
    files: dict[str, str] = {}
    for cell in cells_of(matrix):
        for name, text in _files(matrix, lock, template, cell).items():
            files[f"{cell.id}/{name}"] = text
    return dict(sorted(files.items()))


def render_cell(matrix: Matrix, lock: Lock, templates: Path, cell: Cell) -> dict[str, str]:
    """Every file of one cell, standard or not, as path (relative to its folder) -> text."""
    return _files(matrix, lock, _template(templates), cell)


def _template(templates: Path) -> Template:
    environment = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  Dockerfiles are not HTML
    )
    return environment.get_template(f"{DOCKERFILE}.j2")


def _files(matrix: Matrix, lock: Lock, template: Template, cell: Cell) -> dict[str, str]:
    wheels = {arch: lock.wheels(cell, matrix, arch) for arch in lock.locked(cell, matrix)}
    reason = lock.reason(cell, matrix)
    layers = layers_of(wheels)
    wanted = requirements_of(matrix, cell)
    files = {f"requirements/{layer.name}.txt": _pins(layer.pins) for layer in layers}
    if reason is not None:
        files["requirements/unlocked.txt"] = _lines(wanted.wanted)
        files["requirements/overrides.txt"] = _lines(wanted.overrides)
        files["requirements/constraints.txt"] = _lines(wanted.constraints)
    files["requirements/tools.txt"] = _pins(_tools(matrix, lock, cell))
    files["pins/constraints.txt"] = _lines(constraints_of(layers, wanted))
    files["pins/overrides.txt"] = _lines(wanted.overrides)
    context = _context(matrix, cell, layers) | {"unlocked": reason}
    files[DOCKERFILE] = template.render(context).strip() + "\n"
    return files


def _tools(matrix: Matrix, lock: Lock, cell: Cell) -> tuple[Pin, ...]:
    """What unpacks the wheels, on every platform that the cell can have."""
    tools: dict[Architecture, tuple[Wheel, ...]] = {
        arch: lock.tools[tools_key(cell.python, arch)] for arch in platforms(matrix, cell)
    }
    return tuple(pin for layer in layers_of(tools) for pin in layer.pins)


def packages_of(matrix: Matrix, cell: Cell) -> list[str]:
    """The distribution's packages that are installed for `cell`."""
    extras = [package for extra in cell.extras for package in matrix.extras[extra].apt]
    return list(dict.fromkeys(["tini", *matrix.flavors[cell.flavor].apt, *extras]))


def toolkit_of(matrix: Matrix, cell: Cell, layers: tuple[Layer, ...]) -> str | None:
    """Where the toolkit of an image lies: the vendor's, or the one that its wheels become."""
    vendor = toolkit_image(matrix, line=cell.line, flavor=cell.flavor, os=cell.os)
    if vendor is None and not _has_nvcc(layers):
        return None
    return "/opt/rocm" if cell.accelerator == "rocm" else "/usr/local/cuda"


def _has_nvcc(layers: tuple[Layer, ...]) -> bool:
    return NVCC in {pin.name for layer in layers for pin in layer.pins}


def _context(matrix: Matrix, cell: Cell, layers: tuple[Layer, ...]) -> dict[str, object]:
    from_index = set(pages.packages_of(matrix, cell))
    return {
        "cell": cell,
        "line": matrix.lines[cell.line],
        "system": matrix.systems[cell.os],
        "base_image": base_image(matrix, cell),
        "packages": packages_of(matrix, cell),
        "nvcc": _has_nvcc(layers),
        "toolkit": toolkit_of(matrix, cell, layers),
        "layers": layers,
        "labels": labels_of(matrix, cell),
        "site_packages": f"/opt/venv/lib/python{cell.python}/site-packages",
        "pytorch_index": matrix.pytorch_index,
        "pages": {
            layer.name: [
                pages.page_path(cell, package)
                for package in pages.packages_of(matrix, cell)
                if package in {pin.name for pin in layer.pins}
            ]
            for layer in layers
            if from_index & {pin.name for pin in layer.pins}
        },
        "all_pages": [pages.page_path(cell, name) for name in pages.packages_of(matrix, cell)],
    }


def constraints_of(layers: tuple[Layer, ...], wanted: Requirements) -> list[str]:
    """What a later install may not change: torch and everything that is loaded with it.

    Of a cell that is not locked it is what the matrix states: its torch.
    """
    if not layers:
        return [line for line in wanted.wanted if line.startswith("torch")]
    fixed = [pin for layer in layers if layer.name != "python" for pin in layer.pins]
    return [pin.constraint for pin in sorted(fixed, key=lambda pin: (pin.name, pin.version))]


def _pins(pins: tuple[Pin, ...]) -> str:
    return _lines([pin.line for pin in pins])


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def drift(files: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Every difference between what the matrix renders and what lies in `folder`."""
    for name, text in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{FOLDER}/{name}: missing"
        elif path.read_bytes() != text.encode():
            yield f"{FOLDER}/{name}: differs from what the matrix renders"
    for name in _strangers(files, folder):
        yield f"{FOLDER}/{name}: belongs to no cell"


def _strangers(files: Mapping[str, str], folder: Path) -> list[str]:
    """What lies in `folder` and is neither one of `files` nor a folder of one, parents first."""
    folders = {
        name.rsplit("/", depth)[0] for name in files for depth in range(1, name.count("/") + 1)
    }
    names = _names(folder, "") if folder.is_dir() else ()
    return sorted(
        (name for name in names if name not in files and name not in folders),
        key=lambda name: name.split("/"),
    )


def _names(folder: Path, below: str) -> Iterator[str]:
    """Everything in `folder`. As text: a Path for each costs more than all the rest of the gate."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            yield name
            if entry.is_dir(follow_symlinks=False):
                yield from _names(folder, f"{name}/")


def check(files: Mapping[str, str], folder: Path) -> None:
    """The drift gate. Raises WorkFailed with one fault per file."""
    if faults := list(drift(files, folder)):
        raise WorkFailed([f"{fault}; run gpucomm render" for fault in faults])


def put(path: Path, text: str) -> bool:
    """Make a file hold `text`, as a whole; one that does is not touched. Returns the change."""
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(text.encode())
    temporary.replace(path)
    return True


def write(files: Mapping[str, str], folder: Path) -> int:
    """Make `folder` hold exactly `files`; unchanged files are not touched. Returns the changes."""
    changes = 0
    for name, text in files.items():
        changes += put(folder / name, text)
    for name in reversed(_strangers(files, folder)):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        changes += 1
    return changes
