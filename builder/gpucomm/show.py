"""`gpucomm show`: everything about one cell, as data and as text.

Owns: how a cell is run, and the words. Where values come from is facts.py, what was proved is
proof.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucomm import devices, gpus, render, rules, tables
from gpucomm.cell import Cell
from gpucomm.facts import library_of, source_of, standard_reasons, values_of
from gpucomm.lock import holds_for, key_of
from gpucomm.progress import human_size
from gpucomm.project import Project
from gpucomm.proof import Proofs
from gpucomm.requirements import requirements_of
from gpucomm.standard import aliases_of


def run_line(cell: Cell, reference: str) -> str:
    """The command that starts the image of `cell` with its GPUs."""
    options = ["--rm", "-it", "--ipc=host", *devices.OPTIONS[cell.accelerator]]
    return f"docker run {' '.join(options)} {reference}"


def data_of(project: Project, proofs: Proofs, cell: Cell) -> dict[str, Any]:
    """Everything about `cell`, ready for JSON."""
    matrix, lock = project.matrix, project.lock
    line = matrix.lines[cell.line]
    library, version = library_of(cell)
    platforms = rules.platforms(matrix, cell)
    proof = proofs.highest(cell.id)
    wanted = requirements_of(matrix, cell)
    wheels = {arch: lock.wheels(cell, matrix, arch) for arch in lock.locked(cell, matrix)}
    aliases = aliases_of(matrix, cell)
    return {
        "id": cell.id,
        "image": project.reference(cell),
        "standard": list(standard_reasons(matrix, cell)),
        "aliases": list(aliases),
        "tags": [cell.id, *aliases],
        "proof": proofs.said(cell.id),
        "evidence": proof.evidence if proof else None,
        "values": [
            {"name": value.name, "value": value.value, "origin": value.origin}
            for value in values_of(matrix, cell)
        ],
        "library": library,
        "library_version": version,
        "library_overridden": cell.nccl_overridden,
        "platforms": list(platforms),
        "not_on": [
            {"platform": denial.arch, "rule": denial.rule, "reason": denial.reason}
            for denial in rules.denials(matrix, cell)
        ],
        "driver": line.driver.model_dump() if line.driver else None,
        "gpus": {arch: list(gpus.archs_of(matrix, cell, arch)) for arch in platforms},
        "packages": render.packages_of(matrix, cell),
        "unlocked": {
            arch: lock.unlocked.get(key_of(cell, arch), "it was never resolved")
            for arch in platforms
            if arch not in wheels
        },
        "requirements": list(wanted.wanted),
        "overrides": list(wanted.overrides),
        "holds": [
            {"package": hold.package, "reason": hold.reason} for hold in holds_for(matrix, cell)
        ],
        "wheels": {
            arch: [
                {"name": wheel.name, "version": wheel.version, "size": wheel.size} for wheel in row
            ]
            for arch, row in wheels.items()
        },
        "download": {arch: sum(wheel.size for wheel in row) for arch, row in wheels.items()},
        "warnings": [
            {
                "rule": warning.rule,
                "reason": warning.reason,
                "source": source_of(matrix, warning.source),
            }
            for warning in rules.warnings(matrix, cell)
        ],
        "run": run_line(cell, project.reference(cell)),
    }


def text_of(data: Mapping[str, Any]) -> list[str]:
    """The same for a person, as lines."""
    standard = "; ".join(data["standard"]) or "no: it is made on demand, nobody publishes it"
    rows = [
        ("image", data["image"]),
        ("standard", standard),
        ("aliases", " ".join(data["aliases"]) or "none"),
        ("tags", " ".join(data["tags"])),
        ("proof", data["proof"] + (f", {data['evidence']}" if data["evidence"] else "")),
        ("platforms", " ".join(data["platforms"])),
        *((f"not {row['platform']}", f"{row['rule']}: {row['reason']}") for row in data["not_on"]),
    ]
    if data["driver"]:
        driver = data["driver"]
        rows.append(("driver", f"{driver['floor']} or newer; the toolkit's: {driver['toolkit']}"))
    rows += [(f"GPUs {arch}", " ".join(row)) for arch, row in data["gpus"].items() if row]
    rows += [
        (f"download {arch}", f"{human_size(size)} in {len(data['wheels'][arch])} wheels")
        for arch, size in data["download"].items()
    ]
    rows.append(("packages", " ".join(data["packages"])))
    lines = [data["id"], *tables.plain(rows, indent="  ")]
    lines += [f"  known fault, {row['rule']}: {row['reason']}" for row in data["warnings"]]
    values = [(row["name"], row["value"], row["origin"]) for row in data["values"]]
    lines += ["values, and where they come from", *tables.plain(values, indent="  ")]
    lines += _wheel_lines(data)
    return [*lines, "run it", f"  {data['run']}"]


def _wheel_lines(data: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for arch, row in data["wheels"].items():
        wheels = [(wheel["name"], wheel["version"], human_size(wheel["size"])) for wheel in row]
        lines += [f"wheels on {arch}", *tables.plain(wheels, indent="  ")]
    for arch, reason in data["unlocked"].items():
        wanted = [*data["requirements"], *data["overrides"]]
        lines.append(f"wheels on {arch} are unlocked: {reason}")
        lines += [f"  {requirement}" for requirement in wanted]
    return lines + [f"  {hold['package']} is held: {hold['reason']}" for hold in data["holds"]]
