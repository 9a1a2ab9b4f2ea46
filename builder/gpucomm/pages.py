"""Where the wheels of a line lie that the default index does not have: pages of the PyTorch index.

Owns: the addresses, and which packages are looked for there. Everything else comes from the default
index, so that no package can be taken from the wrong one. Pure.
"""

from __future__ import annotations

from gpucomm.cell import DEFAULT_INDEX, Cell
from gpucomm.schema import Matrix

MIRROR = "PYTORCH_INDEX"
"""Environment variable that names a mirror of the PyTorch index, here and inside a build."""


def page_path(cell: Cell, package: str) -> str:
    """The page of one package below an index."""
    return f"{cell.index}/{package}/"


def torch_page(index: str, folder: str) -> str:
    """The page that lists torch's wheels in one folder of an index."""
    return f"{index.rstrip('/')}/{folder}/torch/"


def packages_of(matrix: Matrix, cell: Cell) -> list[str]:
    """The packages that `cell` takes from its own folder of the PyTorch index; torch is first."""
    if cell.index == DEFAULT_INDEX:
        return []
    packages = ["torch"]
    packages += [wheel for extra in cell.extras if (wheel := matrix.extras[extra].wheel)]
    if cell.accelerator == "rocm" and (triton := matrix.torch[cell.torch].triton_rocm):
        packages.append(triton)
    if (targets := matrix.lines[cell.line].gpu_targets) is not None:
        packages += [targets.package, *targets.wheels]
        packages += [f"{targets.device_wheel}{name}" for name in cell.gpu_targets]
    return packages


def pages_of(matrix: Matrix, cell: Cell, mirror: str | None = None) -> list[str]:
    """The pages that `cell` needs beside the default index."""
    index = (mirror or matrix.pytorch_index).rstrip("/")
    return [f"{index}/{page_path(cell, package)}" for package in packages_of(matrix, cell)]
