"""coverage.py: what no standard cell has."""

from __future__ import annotations

from collections.abc import Callable

from gpucomm.cell import cell, wanted_of
from gpucomm.coverage import coverage_of, lines_of
from gpucomm.project import Project
from gpucomm.rules import possible
from gpucomm.schema import Matrix

ParseMatrix = Callable[[str], Matrix]
ROW = "  - {reason: every torch on every line}\n"


def test_what_the_small_matrix_leaves_out(small: Matrix) -> None:
    found = coverage_of(small)
    assert found.missing == (("os", "ubuntu24.04"), ("flavor", "devel"), ("extra", "mpi"))
    lines = lines_of(found)
    assert lines[:3] == [
        "no standard cell has os ubuntu24.04",
        "no standard cell has flavor devel",
        "no standard cell has extra mpi",
    ]
    assert "no standard cell has line cu121 with os ubuntu24.04" in lines
    assert "no standard cell has line cpu with flavor slim, devel" in lines
    assert lines[-1] == (
        f"3 of {len(found.values)} axis values and {len(found.missing_pairs)} of "
        f"{len(found.pairs)} pairs have no standard cell"
    )


def test_an_override_that_no_cell_takes_is_a_missing_pair(
    small_text: str, parse_matrix: ParseMatrix
) -> None:
    text = small_text.replace(
        "lines: [cu121], nccl: overrides", "only_alias: true, nccl: overrides"
    )
    pair = (("line", "cu121"), ("override", "2.21.5 of torch 2.2.2"))
    assert pair in coverage_of(parse_matrix(text)).missing_pairs
    assert pair not in coverage_of(parse_matrix(small_text)).missing_pairs


def test_nothing_is_missing_of_a_full_product(small_text: str, parse_matrix: ParseMatrix) -> None:
    everything = (
        "  - {reason: really everything, os: [debian12, ubuntu24.04], "
        "flavor: [runtime, slim, devel], extras: [[], [mpi], [torchvision]]}\n"
    )
    found = coverage_of(parse_matrix(small_text.replace(ROW, ROW + everything)))
    assert (found.missing, found.missing_pairs) == ((), ())
    (line,) = lines_of(found)
    assert line.startswith("0 of ")


def test_a_value_that_can_never_exist_is_missing(
    small_text: str, parse_matrix: ParseMatrix
) -> None:
    rules = """\
  no-mpi:
    when: {extras: [mpi]}
    reason: it cannot be had anywhere
    source: metadata
"""
    found = coverage_of(parse_matrix(small_text.replace("rules:\n", f"rules:\n{rules}")))
    assert ("extra", "mpi") in found.missing
    assert not any(("extra", "mpi") in pair for pair in found.pairs)


def test_a_pair_that_cannot_exist_is_not_missing(small: Matrix) -> None:
    found = coverage_of(small)
    # torchvision is not for torch 2.13.0, the only one of these lines
    for line in ("cu130", "cpu"):
        assert (("line", line), ("extra", "torchvision")) not in found.pairs
        assert (("line", line), ("extra", "mpi")) in found.missing_pairs


def test_the_real_matrix(real: Project) -> None:
    found = coverage_of(real.matrix)
    assert set(found.missing) <= set(found.values)
    assert set(found.missing_pairs) < set(found.pairs)
    # No line, torch, NCCL, system, flavor, extra or platform may be without a standard cell.
    assert [axis for axis, _ in found.missing if not axis.startswith("GPU target")] == []
    for (axis, line), (other, value) in found.pairs:
        if axis == "line" and other == "os":
            torches = real.matrix.lines[line].torch
            assert any(exists(real.matrix, f"{line}-torch{torch}-{value}") for torch in torches)


def exists(matrix: Matrix, name: str) -> bool:
    """Whether an id without a flavor can exist, in any flavor."""
    ids = (f"{name}-{flavor}" for flavor in matrix.flavors)
    return any(possible(matrix, cell(matrix, wanted_of(matrix, one))) for one in ids)


def test_values_and_pairs_are_named_once(real: Project) -> None:
    found = coverage_of(real.matrix)
    assert len(set(found.values)) == len(found.values)
    assert len(set(found.pairs)) == len(found.pairs)
