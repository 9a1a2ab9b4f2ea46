"""cell.py: which cells a matrix has, in which order, and what they are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from gpucomm.cell import aliases_of, cells_of
from gpucomm.project import Project
from gpucomm.schema import Matrix

ParseMatrix = Callable[[str], Matrix]


def test_ids_leave_out_defaults_and_always_name_nccl_on_cuda(small: Matrix) -> None:
    assert [cell.id for cell in cells_of(small)] == [
        "cu121-torch2.2.2-nccl2.19.3",
        "cu121-torch2.2.2-nccl2.19.3-slim",
        "cu121-torch2.2.2-nccl2.21.5",
        "cu121-torch2.2.2-nccl2.21.5-slim",
        "cu121-torch2.4.1-nccl2.20.5",
        "cu121-torch2.4.1-nccl2.20.5-slim",
        "cu121-torch2.4.1-nccl2.21.5",
        "cu121-torch2.4.1-nccl2.21.5-slim",
        "cpu-torch2.13.0",
    ]


def test_torch_is_ordered_by_version_not_by_text(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace('"2.2.2"', '"2.10.0"')
    torches = [cell.torch for cell in cells_of(parse_matrix(text)) if cell.line == "cu121"]
    assert torches == ["2.4.1"] * 4 + ["2.10.0"] * 4


def test_the_facts_of_a_cell(small: Matrix) -> None:
    cell = cells_of(small)[7]
    assert (cell.line, cell.accelerator, cell.torch, cell.nccl) == (
        "cu121", "cuda", "2.4.1", "2.21.5",
    )  # fmt: skip
    assert (cell.cuda, cell.os, cell.python, cell.flavor) == ("12.1", "debian12", "3.11", "slim")
    assert cell.nccl_overridden
    assert cell.pins_id == "cu121-torch2.4.1-nccl2.21.5"
    with pytest.raises(FrozenInstanceError):
        cell.torch = "1"  # type: ignore[misc]


def test_only_an_override_is_overridden(small: Matrix) -> None:
    overridden = {cell.nccl for cell in cells_of(small) if cell.nccl_overridden}
    assert overridden == {"2.21.5"}


def test_a_cpu_cell_has_no_nccl_and_no_cuda(small: Matrix) -> None:
    cell = cells_of(small)[-1]
    assert (cell.id, cell.nccl, cell.cuda) == ("cpu-torch2.13.0", None, None)
    assert not cell.nccl_overridden


def test_an_override_equal_to_the_bundled_version_is_no_second_cell(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace('nccl_overrides: ["2.21.5"]', 'nccl_overrides: ["2.20.5"]')
    cells = [cell for cell in cells_of(parse_matrix(text)) if cell.line == "cu121"]
    assert [(cell.torch, cell.nccl, cell.nccl_overridden) for cell in cells[::2]] == [
        ("2.2.2", "2.19.3", False),
        ("2.2.2", "2.20.5", True),
        ("2.4.1", "2.20.5", False),
    ]


def test_another_default_flavor_is_the_one_left_out(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace("flavor: runtime", "flavor: slim")
    text = text.replace("  cpu: cpu-torch2.13.0", "  cpu: cpu-torch2.13.0-runtime")
    ids = {cell.id: cell.flavor for cell in cells_of(parse_matrix(text))}
    assert ids["cu121-torch2.4.1-nccl2.20.5"] == "slim"
    assert ids["cu121-torch2.4.1-nccl2.20.5-runtime"] == "runtime"


def test_ids_are_unique_and_flavors_share_a_pins_id(real: Project, small: Matrix) -> None:
    for matrix in (small, real.matrix):
        cells = cells_of(matrix)
        assert len({cell.id for cell in cells}) == len(cells)
        assert all(cell.id.removesuffix(f"-{cell.flavor}") == cell.pins_id for cell in cells)


def test_aliases_of_a_cell_in_the_order_of_the_matrix(small: Matrix) -> None:
    found = {cell.id: aliases_of(small, cell) for cell in cells_of(small)}
    assert found.pop("cu121-torch2.4.1-nccl2.20.5") == ("cu121", "latest")
    assert found.pop("cpu-torch2.13.0") == ("cpu",)
    assert set(found.values()) == {()}
