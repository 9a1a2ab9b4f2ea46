"""The values of a cell, each with the place in matrix.yaml that it comes from.

Pure. show.py and why.py put them into words.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucomm import cell as cells
from gpucomm.cell import DEFAULT_INDEX, Cell, base_image, toolkit_image
from gpucomm.schema import Matrix
from gpucomm.standard import wanted_by


@dataclass(frozen=True, kw_only=True)
class Value:
    """One axis value, or what follows from one. `origin` names the key, and why it is so."""

    name: str
    value: str
    origin: str


def values_of(matrix: Matrix, cell: Cell) -> tuple[Value, ...]:
    """Every value of `cell`, in the order in which one follows from the other."""
    line = matrix.lines[cell.line]
    here = f"lines.{cell.line}"
    index = (
        f"default index; torch.{cell.torch}.default is {cell.line}"
        if cell.index == DEFAULT_INDEX
        else f"PyTorch index, {matrix.pytorch_index}/{cell.index}"
    )
    found = [
        ("line", cell.line, f"{here}: {cell.accelerator}"),
        ("torch", cell.torch, f"{here}.torch"),
        ("index", cell.index, index),
    ]
    if cell.cuda:
        found.append(("CUDA", cell.cuda, f"{here}.cuda"))
    if cell.rocm:
        found.append(("ROCm", cell.rocm, f"{here}.rocm"))
    found.append(_library(matrix, cell))
    found += [
        ("os", cell.os, _origin(cell.os, matrix.defaults.os, "os")),
        ("python", cell.python, f"systems.{cell.os}.python: the distribution decides it"),
        ("glibc", cell.glibc, f"systems.{cell.os}.glibc"),
        ("flavor", cell.flavor, _origin(cell.flavor, matrix.defaults.flavor, "flavor")),
    ]
    found += [("extra", extra, "the cell id") for extra in cell.extras]
    if line.gpu_targets is not None:
        default = cell.gpu_targets == tuple(line.gpu_targets.default)
        origin = f"{here}.gpu_targets.default" if default else "the cell id"
        found.append(("GPU targets", " ".join(cell.gpu_targets), origin))
    vendor = toolkit_image(matrix, line=cell.line, flavor=cell.flavor, os=cell.os) is not None
    base = f"systems.{cell.os}.{'devel_image' if vendor else 'image'}"
    found.append(("base", base_image(matrix, cell), base))
    return tuple(Value(name=name, value=value, origin=origin) for name, value, origin in found)


def _library(matrix: Matrix, cell: Cell) -> tuple[str, str, str]:
    here = f"lines.{cell.line}"
    torch = matrix.lines[cell.line].torch[cell.torch]
    if cell.rccl:
        return "RCCL", cell.rccl, f"{here}.rccl: inside torch's wheel, it follows ROCm"
    if cell.accelerator == "cpu":
        return "Gloo", "inside torch", "no GPU: torch's own Gloo is the collective library"
    if cell.nccl is None:
        return "NCCL", "inside torch", f"{here}.torch.{cell.torch}.nccl: linked into torch"
    if cell.nccl_overridden:
        origin = f"the cell id, one of {here}.torch.{cell.torch}.overrides"
        return "NCCL", cell.nccl, f"{origin}; the wheel requires {torch.nccl}"
    return "NCCL", cell.nccl, f"{here}.torch.{cell.torch}.nccl: what the wheel requires"


def _origin(value: str, default: str, key: str) -> str:
    return f"defaults.{key}" if value == default else "the cell id"


def library_of(cell: Cell) -> tuple[str, str | None]:
    """The collective library of `cell` and its version; None where it is part of torch."""
    match cell.accelerator:
        case "cuda":
            return "nccl", cell.nccl
        case "rocm":
            return "rccl", cell.rccl
        case "cpu":
            return "gloo", None


def standard_reasons(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """The reasons of the rows of `standard` that `cell` is in; empty where it is on demand."""
    return tuple(
        row.reason
        for row in matrix.standard
        if any(cells.cell(matrix, wanted).id == cell.id for wanted in wanted_by(matrix, row))
    )


def source_of(matrix: Matrix, name: str) -> str:
    """One of the matrix's sources in words, with its address where it has one."""
    source = matrix.sources[name]
    return f"{source.read}; {source.url}" if source.url else source.read
