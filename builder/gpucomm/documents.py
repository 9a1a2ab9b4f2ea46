"""What `gpucomm render` writes beside images/: the tables of docs/MATRIX.md, the JSON schema, and
docs/findings.md, which the self-test makes of its own tables.

docs/MATRIX.md is written by hand; what lies between a pair of markers is generated, and everything
else in it stays as it is. A checkout without docs/ has no documents.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpucomm import gpus, listing, proof, render, tables
from gpucomm.errors import WorkFailed, WrongInput
from gpucomm.facts import source_of
from gpucomm.project import Project
from gpucomm.rules import platforms
from gpucomm.schema import Matrix, Rule, json_schema
from gpucomm.standard import cells_of

FOLDER = "docs"
MATRIX = f"{FOLDER}/MATRIX.md"
SCHEMA = f"{FOLDER}/matrix.schema.json"
FINDINGS = f"{FOLDER}/findings.md"
ADVICE = "run gpucomm render"
_MARKER = re.compile(r"^<!-- gpucomm:(begin|end) ([a-z-]+) -->$", re.MULTILINE)


def documents(project: Project) -> Mapping[str, str]:
    """Every generated document as path (relative to the root) -> text.

    Raises WrongInput, all faults of the markers at once.
    """
    root = project.places.root
    if not (root / FOLDER).is_dir():
        return {}
    path = root / MATRIX
    if not path.is_file():
        raise WrongInput(f"{MATRIX}: missing; its text is written by hand, take it back from git")
    tables_of = {name: "\n".join(lines) for name, lines in _tables(project)}
    made = {
        MATRIX: fill(path.read_text(encoding="utf-8"), tables_of),
        SCHEMA: json.dumps(json_schema(), indent=2) + "\n",
    }
    if project.places.selftest.is_dir():
        made[FINDINGS] = _findings(project.places.selftest)
    return made


def _findings(selftest: Path) -> str:
    """The page that the self-test makes of its tables. It is a package of its own, for images, so
    it is asked and not imported."""
    asked = subprocess.run(
        [sys.executable, "-m", "gpucomm_selftest", "explain", "--markdown"],
        env={**os.environ, "PYTHONPATH": str(selftest)},
        capture_output=True,
        check=False,
    )
    if asked.returncode != 0:
        said = asked.stderr.decode(errors="replace").strip().splitlines()
        raise WorkFailed(f"{FINDINGS}: {selftest} does not explain its findings: {said[-1:]}")
    return asked.stdout.decode()


def fill(text: str, tables_of: Mapping[str, str]) -> str:
    """`text` with each table between its markers. Raises WrongInput, all faults at once."""
    faults: list[str] = []
    marks = [
        (match[1], match[2], text.count("\n", 0, match.start()) + 1, match)
        for match in _MARKER.finditer(text)
    ]
    for kind, name, line, _ in marks:
        if name not in tables_of:
            known = ", ".join(tables_of)
            faults.append(f"{MATRIX}:{line}: there is no table {name!r}; there is {known}")
        if sum(mark[:2] == (kind, name) for mark in marks) > 1:
            faults.append(f"{MATRIX}:{line}: the marker gpucomm:{kind} {name} stands twice")
    pieces: list[str] = []
    done = 0
    for name in tables_of:
        begin = next((mark[3] for mark in marks if mark[:2] == ("begin", name)), None)
        end = next((mark[3] for mark in marks if mark[:2] == ("end", name)), None)
        if begin is None or end is None or begin.start() > end.start():
            want = f"<!-- gpucomm:begin {name} --> and, after it, <!-- gpucomm:end {name} -->"
            faults.append(f"{MATRIX}: give {want} a line each; the table goes between them")
    if faults:
        raise WrongInput(faults)
    for (kind, name, line, match), (after, _, _, closing) in itertools.pairwise(marks):
        if kind == "begin" and after == "begin":
            faults.append(f"{MATRIX}:{line}: the table {name} is not ended before the next begins")
        elif kind == "begin":
            pieces.append(f"{text[done : match.end()]}\n{tables_of[name]}\n")
            done = closing.start()
    if faults:
        raise WrongInput(faults)
    return "".join([*pieces, text[done:]])


def drift(project: Project) -> Iterator[str]:
    """Every document that is not what the matrix renders, every proof without its evidence."""
    for name, text in documents(project).items():
        path = project.places.root / name
        if not path.is_file():
            yield f"{name}: missing; {ADVICE}"
        elif path.read_bytes() != text.encode():
            yield f"{name}: differs from what the matrix renders; {ADVICE}"
    yield from proof.evidence_faults(project.places.root, project.matrix)


def write(project: Project) -> list[str]:
    """Write what differs; returns the paths, relative to the root."""
    root = project.places.root
    return [name for name, text in documents(project).items() if render.put(root / name, text)]


# ---------------------------------------------------------------- the tables
def _tables(project: Project) -> Iterator[tuple[str, list[str]]]:
    matrix = project.matrix
    proofs = proof.load(project.places.root, matrix)
    yield (
        "lines",
        tables.markdown(
            [*listing.LINES, "GPUs"],
            [[*listing.line_row(matrix, name), _gpus(matrix, name)] for name in matrix.lines],
        ),
    )
    rows = [listing.cell_row(project, proofs, one) for one in cells_of(matrix)]
    yield "cells", tables.markdown(listing.CELLS, rows)
    yield (
        "checks",
        tables.markdown(
            ("check", "reason", "source"),
            [
                (name, fact.reason, source_of(matrix, fact.source))
                for name, fact in matrix.checks.items()
            ],
        ),
    )
    yield (
        "rules",
        tables.markdown(
            ("rule", "what it does", "reason", "source", "look again"),
            [
                (
                    name,
                    _effect(rule),
                    rule.reason,
                    source_of(matrix, rule.source),
                    rule.expires or "",
                )
                for name, rule in matrix.rules.items()
            ],
        ),
    )
    yield (
        "left-out",
        tables.markdown(
            ("line", "torch", "reason", "source"),
            [
                (row.line, row.torch, row.reason, source_of(matrix, row.source))
                for row in matrix.left_out
            ],
        ),
    )


def _gpus(matrix: Matrix, name: str) -> str:
    """The GPUs of the cell that the alias of a line names, by platform where they differ."""
    alias = matrix.aliases.get(name)
    cells = [one for one in cells_of(matrix) if one.line == name]
    one = next((one for one in cells if one.id == alias), cells[-1])
    by_arch = {arch: " ".join(gpus.archs_of(matrix, one, arch)) for arch in platforms(matrix, one)}
    if len(set(by_arch.values())) == 1:
        return next(iter(by_arch.values()))
    return "; ".join(f"{arch}: {names}" for arch, names in by_arch.items())


def _effect(rule: Rule) -> str:
    if rule.effect == "warn":
        return "warns"
    return f"no {', '.join(rule.when.arch)}" if rule.when.arch else "no such cell"
