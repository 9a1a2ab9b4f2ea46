"""project.py: one checkout, what its cells are called and where their files lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucomm import lock as locks
from gpucomm import project
from gpucomm.cell import Cell
from gpucomm.errors import WrongInput
from gpucomm.lock import Lock
from gpucomm.project import Project
from gpucomm.standard import cells_of, on_demand

T24 = "cu121-torch2.4.1-nccl2.20.5"
DEMAND = "cu121-torch2.2.2-nccl2.19.3-torchvision"
KEY = "cu121-torch2.2.2-nccl2.19.3-py3.11-torchvision"


@pytest.fixture
def cell(small_project: Project) -> Cell:
    """A cell that is not standard and has wheels of its own."""
    return on_demand(small_project.matrix, DEMAND)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def loaded(of: Project, **env: str) -> Project:
    return project.load({"GPUCOMM_CACHE": str(of.places.cache)} | env, of.places.root)


def on_demand_lock(of: Project, lock: Lock) -> Path:
    path = of.places.on_demand / locks.FILE
    locks.write(path, lock)
    return path


# ---------------------------------------------------------------- reading a checkout


def test_a_checkout_is_read_from_anywhere_in_it(small_project: Project) -> None:
    found = project.load(
        {"GPUCOMM_CACHE": str(small_project.places.cache)}, small_project.places.images
    )
    assert found.matrix == small_project.matrix
    assert found.lock == small_project.lock
    assert found.places == small_project.places
    assert found.repository == "registry.example/team/gpucomm"
    assert found.rendered() == small_project.rendered()


def test_registry_takes_the_place_of_the_matrixs(small_project: Project, cell: Cell) -> None:
    assert small_project.reference(cell) == f"registry.example/team/gpucomm:{DEMAND}"
    own = loaded(small_project, REGISTRY="127.0.0.1:5000/own")
    assert own.reference(cell) == f"127.0.0.1:5000/own:{DEMAND}"
    assert loaded(small_project, REGISTRY="").repository == small_project.repository
    with pytest.raises(WrongInput, match="REGISTRY"):
        loaded(small_project, REGISTRY="no registry")


def test_what_was_locked_on_demand_is_known_beside_the_lock(
    small_project: Project, cell: Cell
) -> None:
    wheels = small_project.wheels(on_demand(small_project.matrix, T24))
    assert small_project.never_resolved(cell)
    assert small_project.wheels(cell) == ()
    on_demand_lock(small_project, Lock(cells={KEY: wheels}, tools={}, bases={}))
    found = loaded(small_project)
    assert found.wheels(cell) == wheels
    assert not found.never_resolved(cell)
    assert found.rendered() == small_project.rendered()


def test_what_could_not_be_locked_on_demand_was_resolved_all_the_same(
    small_project: Project, cell: Cell
) -> None:
    on_demand_lock(small_project, Lock(cells={}, tools={}, bases={}, unlocked={KEY: "no index"}))
    found = loaded(small_project)
    assert not found.never_resolved(cell)
    assert found.lock.reason(cell, found.matrix) == "no index"


def test_the_committed_lock_counts_before_the_one_on_demand(small_project: Project) -> None:
    standard = on_demand(small_project.matrix, T24)
    on_demand_lock(small_project, Lock(cells={standard.pins_id: ()}, tools={"3.11": ()}, bases={}))
    assert loaded(small_project).wheels(standard) == small_project.wheels(standard)
    assert loaded(small_project).lock.tools["3.11"] == small_project.lock.tools["3.11"]


def test_a_broken_lock_on_demand_is_wrong_input(small_project: Project) -> None:
    path = on_demand_lock(small_project, Lock(cells={}, tools={}, bases={}))
    path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(WrongInput, match="seal"):
        loaded(small_project)


# ---------------------------------------------------------------- where files lie


def test_every_standard_cell_lies_in_images_and_any_other_on_demand(
    small_project: Project, cell: Cell
) -> None:
    where = small_project.places
    for standard in cells_of(small_project.matrix):
        assert small_project.recipe(standard) == where.root / "images" / standard.id
        assert (small_project.recipe(standard) / "Dockerfile").is_file()
    assert small_project.recipe(cell) == where.root / ".gpucomm" / "on-demand" / DEMAND


def test_the_files_of_a_cell_on_demand_are_written_beside_those_of_the_checkout(
    small_project: Project,
) -> None:
    images = tree(small_project.places.images)
    standard, slim = (
        cells_of(small_project.matrix)[0],
        on_demand(small_project.matrix, f"{T24}-mpi"),
    )
    assert small_project.write_recipes((standard, slim)) == 0
    files = tree(small_project.recipe(slim))
    assert {"Dockerfile", "requirements/torch.txt", "pins/constraints.txt"} <= files.keys()
    assert b"openmpi-bin" in files["Dockerfile"]
    assert tree(small_project.places.images) == images
    # A second time nothing is written anew, and what does not belong there goes.
    dockerfile = small_project.recipe(slim) / "Dockerfile"
    (small_project.recipe(slim) / "stray").write_text("")
    before = dockerfile.stat().st_mtime_ns
    assert small_project.write_recipes((slim,)) == 0
    assert tree(small_project.recipe(slim)) == files
    assert dockerfile.stat().st_mtime_ns == before


def test_the_files_of_images_are_mended_and_the_changes_counted(small_project: Project) -> None:
    images = small_project.places.images
    before = tree(images)
    standard = cells_of(small_project.matrix)[0]
    (images / standard.id / "Dockerfile").write_text("FROM other\n")
    (images / "stray").mkdir()
    assert small_project.write_recipes(()) == 2
    assert tree(images) == before
    assert not small_project.places.on_demand.exists()


def test_a_cell_on_demand_that_is_not_locked_says_so_in_its_files(
    small_project: Project, cell: Cell
) -> None:
    unlocked = replace(small_project.lock, unlocked={KEY: "the index was silent"})
    replace(small_project, lock=unlocked).write_recipes((cell,))
    dockerfile = (small_project.recipe(cell) / "Dockerfile").read_text()
    assert "# unlocked: the index was silent" in dockerfile
    asked = (small_project.recipe(cell) / "requirements" / "unlocked.txt").read_text()
    assert asked.splitlines() == ["torch==2.2.2", "numpy", "torchvision==0.17.2"]
