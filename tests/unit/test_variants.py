"""The torch and line table of matrix.yaml, held against what PyTorch published.

tests/data/published-variants.json was typed by hand from primary sources and is never made from
matrix.yaml: a pair that only one of the two knows is a mistake in one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from gpucomm.cell import DEFAULT_INDEX, Wanted, cell
from gpucomm.project import Project
from gpucomm.rules import platforms
from gpucomm.schema import Matrix
from gpucomm.standard import alias_rule, cells_of

ParseMatrix = Callable[[str], Matrix]
Rows = Mapping[str, Mapping[str, Any]]
KINDS = {"cuda", "cuda_arm64", "rocm", "cpu", "source", "unconfirmed"}
DEFAULT_INDEX_HAS_ARM64 = Version("2.11")
"""From here on the aarch64 wheel of the default index is a CUDA build."""


@pytest.fixture(scope="module")
def rows(root: Path) -> Rows:
    path = root / "tests" / "data" / "published-variants.json"
    found: Rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return found


def minor(torch: str) -> str:
    """`2.10` of `2.10.0`."""
    return ".".join(torch.split(".")[:2])


def published(rows: Rows) -> set[tuple[str, str]]:
    """(line, minor version of torch) of every published build."""
    return {
        (line, torch)
        for torch, row in rows.items()
        for line in [*row["cuda"], *row["rocm"], *(["cpu"] if row["cpu"] else [])]
    }


def carried(matrix: Matrix) -> set[tuple[str, str]]:
    """(line, minor version of torch) of every pair of the matrix."""
    return {(name, minor(torch)) for name, line in matrix.lines.items() for torch in line.torch}


def pair_faults(matrix: Matrix, rows: Rows) -> list[str]:
    """Every pair that only one side knows."""
    left_out = {(row.line, minor(row.torch)) for row in matrix.left_out}
    here, there = carried(matrix), published(rows)
    return [
        *(
            f"torch {torch} on {line} is published: carry it in matrix.yaml, or name it in "
            "left_out with a reason"
            for line, torch in sorted(there - here - left_out)
        ),
        *(
            f"torch {torch} on {line} is in matrix.yaml and not in tests/data/"
            "published-variants.json: where was it published?"
            for line, torch in sorted(here - there)
        ),
        *(
            f"torch {torch} on {line} is in left_out, and was not published"
            for line, torch in sorted(left_out - there)
        ),
    ]


def arm64_faults(matrix: Matrix, rows: Rows) -> list[str]:
    """Every CUDA cell with a platform that has no such build."""
    faults = []
    for one in cells_of(matrix):
        if one.cuda is None or "arm64" not in platforms(matrix, one):
            continue
        by_default = (
            one.index == DEFAULT_INDEX and Version(minor(one.torch)) >= DEFAULT_INDEX_HAS_ARM64
        )
        if not by_default and one.line not in rows[minor(one.torch)]["cuda_arm64"]:
            faults.append(f"{one.id}: torch {minor(one.torch)} has no aarch64 build of {one.line}")
    return faults


def alias_faults(matrix: Matrix) -> Iterator[str]:
    """Every alias that is not what the rule of aliases says."""
    for line in matrix.lines:
        target, torch = matrix.aliases.get(line), alias_rule(matrix, line)
        defaults = matrix.defaults
        plain = cell(matrix, Wanted(line=line, torch=torch, os=defaults.os, flavor=defaults.flavor))
        if target is None:
            yield f"alias {line} is missing: every line has one of its own name"
        elif target != plain.id:
            yield f"alias {line} is {target}, and must be {plain.id}"
    newest = max((t for t, row in matrix.torch.items() if row.default is not None), key=Version)
    latest = matrix.aliases.get("latest")
    if latest is None or latest != matrix.aliases.get(matrix.torch[newest].default or ""):
        yield f"alias latest is {latest}, the newest default torch is {newest}"
    for alias in matrix.aliases:
        if alias != "latest" and alias not in matrix.lines:
            yield f"alias {alias} is the name of no line"


# ---------------------------------------------------------------- the committed matrix


def test_every_published_pair_is_carried_or_left_out_and_no_other(
    real: Project, rows: Rows
) -> None:
    faults = pair_faults(real.matrix, rows)
    assert not faults, "\n".join(faults)


def test_torch_is_the_newest_patch_of_each_published_minor(real: Project, rows: Rows) -> None:
    minors = [minor(torch) for torch in real.matrix.torch]
    assert len(set(minors)) == len(minors), "one patch of each minor"
    assert set(minors) == set(rows)
    assert minors == sorted(minors, key=Version)


def test_what_is_left_out_has_a_reason_and_a_source(real: Project) -> None:
    for row in real.matrix.left_out:
        assert len(row.reason) > 20, f"torch {row.torch} on {row.line}: say why it is left out"
        assert row.source in real.matrix.sources


def test_arm64_cells_have_an_aarch64_build(real: Project, rows: Rows) -> None:
    faults = arm64_faults(real.matrix, rows)
    assert not faults, "\n".join(faults)
    assert any("arm64" in platforms(real.matrix, one) for one in cells_of(real.matrix))


def test_arm64_has_gpus_where_it_has_cells(real: Project) -> None:
    """A line with a platform says which GPUs that platform's wheels have code for."""
    matrix = real.matrix
    for one in cells_of(matrix):
        for arch in platforms(matrix, one) if one.accelerator != "cpu" else ():
            rows = [
                row for row in matrix.lines[one.line].gpus
                if not row.arch or arch in row.arch
            ]  # fmt: skip
            assert rows, f"{one.id} on {arch}: {one.line} names no GPU"


def test_every_alias_follows_its_rule(real: Project) -> None:
    faults = list(alias_faults(real.matrix))
    assert not faults, "\n".join(faults)


def test_the_rows_are_whole_and_have_their_source(rows: Rows) -> None:
    assert list(rows) == sorted(rows, key=Version)
    for torch, row in rows.items():
        assert row.keys() - {"unconfirmed"} == KINDS - {"unconfirmed"}, torch
        assert row["source"]["url"].startswith("https://github.com/pytorch/"), torch
        assert row["source"]["note"], torch
        assert all(line.startswith("cu") for line in [*row["cuda"], *row["cuda_arm64"]]), torch
        assert all(line.startswith("rocm") for line in row["rocm"]), torch
        for kind in ("cuda", "cuda_arm64", "rocm"):
            assert not set(row[kind]) & set(row.get("unconfirmed", {}).get(kind, ())), torch


# ---------------------------------------------------------------- the comparison itself

SMALL_ROWS: Rows = {
    "2.2": {"cuda": ["cu121"], "cuda_arm64": [], "rocm": [], "cpu": False},
    "2.4": {"cuda": ["cu121"], "cuda_arm64": [], "rocm": ["rocm6.0", "rocm6.1"], "cpu": False},
    "2.13": {"cuda": ["cu130"], "cuda_arm64": [], "rocm": [], "cpu": True},
}


def with_row(torch: str, **values: Any) -> Rows:
    return {**SMALL_ROWS, torch: {**SMALL_ROWS[torch], **values}}


def test_pairs_that_only_one_side_knows_are_named(small: Matrix) -> None:
    assert pair_faults(small, SMALL_ROWS) == []
    assert pair_faults(small, with_row("2.4", cuda=["cu121", "cu124"])) == [
        "torch 2.4 on cu124 is published: carry it in matrix.yaml, or name it in left_out with "
        "a reason"
    ]
    assert pair_faults(small, with_row("2.13", cpu=False)) == [
        "torch 2.13 on cpu is in matrix.yaml and not in tests/data/published-variants.json: "
        "where was it published?"
    ]
    assert pair_faults(small, with_row("2.4", rocm=["rocm6.1"])) == [
        "torch 2.4 on rocm6.0 is in left_out, and was not published"
    ]


def test_an_arm64_cell_without_a_build_is_named(
    parse_matrix: ParseMatrix, small_text: str, small: Matrix
) -> None:
    assert arm64_faults(small, SMALL_ROWS) == []  # torch 2.13 on its default line
    rule = 'when: {accelerator: [cuda], torch: "<2.11", arch: [arm64]}'
    assert small_text.count(rule) == 1
    matrix = parse_matrix(small_text.replace(rule, rule.replace("2.11", "2.4")))
    said = arm64_faults(matrix, SMALL_ROWS)
    assert said[0] == "cu121-torch2.4.1-nccl2.20.5: torch 2.4 has no aarch64 build of cu121"
    assert len(said) == 4
    assert arm64_faults(matrix, with_row("2.4", cuda_arm64=["cu121"])) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param(
            "  cpu: cpu-torch2.13.0\n", "", "alias cpu is missing: every line has one of its own",
            id="missing",
        ),
        pytest.param(
            "  cu121: cu121-torch2.4.1-nccl2.20.5\n", "  cu121: cu121-torch2.2.2-nccl2.19.3\n",
            "alias cu121 is cu121-torch2.2.2-nccl2.19.3, and must be cu121-torch2.4.1-nccl2.20.5",
            id="older",
        ),
        pytest.param(
            "  cu121: cu121-torch2.4.1-nccl2.20.5\n", "  cu121: cu121-torch2.4.1-nccl2.21.5\n",
            "alias cu121 is cu121-torch2.4.1-nccl2.21.5, and must be",
            id="override",
        ),
        pytest.param(
            "  cu121: cu121-torch2.4.1-nccl2.20.5\n", "  cu121: cu121-torch2.4.1-nccl2.20.5-slim\n",
            "alias cu121 is cu121-torch2.4.1-nccl2.20.5-slim, and must be", id="flavor",
        ),
        pytest.param(
            "latest: cu130-torch2.13.0-nccl2.29.7", "latest: cu121-torch2.4.1-nccl2.20.5",
            "alias latest is cu121-torch2.4.1-nccl2.20.5, the newest default torch is 2.13.0",
            id="latest",
        ),
        pytest.param(
            "aliases:\n", "aliases:\n  newest: cpu-torch2.13.0\n",
            "alias newest is the name of no line", id="no-line",
        ),
    ],
)  # fmt: skip
def test_an_alias_that_is_not_the_rules_is_named(
    old: str, new: str, fault: str, parse_matrix: ParseMatrix, small_text: str
) -> None:
    latest = "latest: cu121-torch2.4.1-nccl2.20.5"
    assert small_text.count(latest) == 1
    text = small_text.replace(latest, "latest: cu130-torch2.13.0-nccl2.29.7")
    assert list(alias_faults(parse_matrix(text))) == []
    assert text.count(old) == 1
    (said,) = alias_faults(parse_matrix(text.replace(old, new)))
    assert said.startswith(fault)
