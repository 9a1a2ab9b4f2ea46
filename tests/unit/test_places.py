"""places.py and project.py: the checkout that is found, the cache, and the name of an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucomm import lock as locks
from gpucomm import places, project
from gpucomm.errors import WrongInput
from gpucomm.lock import EMPTY, Lock
from gpucomm.project import Project
from gpucomm.standard import cells_of, on_demand


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a matrix.yaml and folders below."""
    root = tmp_path / "checkout"
    (root / "images" / "deep").mkdir(parents=True)
    (root / "matrix.yaml").write_text("version: 2\n")
    return root


def test_the_checkout_is_found_from_any_folder_in_it(checkout: Path) -> None:
    for start in (checkout, checkout / "images", checkout / "images" / "deep"):
        assert places.find({}, start).root == checkout


def test_the_working_directory_is_where_it_starts(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout / "images")
    assert places.find({}).root == checkout


def test_the_nearest_checkout_is_taken(checkout: Path) -> None:
    inner = checkout / "images"
    (inner / "matrix.yaml").write_text("")
    assert places.find({}, inner / "deep").root == inner


def test_outside_of_a_checkout_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"no matrix\.yaml in .* or above it") as caught:
        places.find({}, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_folders_of_a_checkout(checkout: Path) -> None:
    found = places.find({}, checkout)
    assert found.templates == checkout / "templates"
    assert found.images == checkout / "images"
    assert found.image_tests == checkout / "tests" / "images"
    assert found.selftest == checkout / "selftest"
    assert found.logs == checkout / ".gpucomm" / "logs"
    assert found.on_demand == checkout / ".gpucomm" / "on-demand"


def test_the_cache_is_chosen_by_the_environment(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for env, cache in (
        ({}, tmp_path / "home" / ".cache" / "gpucomm"),
        ({"XDG_CACHE_HOME": "", "GPUCOMM_CACHE": ""}, tmp_path / "home" / ".cache" / "gpucomm"),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/gpucomm")),
        ({"XDG_CACHE_HOME": "/xdg", "GPUCOMM_CACHE": "/own"}, Path("/own")),
        ({"GPUCOMM_CACHE": "~/own"}, tmp_path / "home" / "own"),
    ):
        assert places.find(env, checkout).cache == cache


def test_a_relative_cache_is_made_absolute(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.find({"GPUCOMM_CACHE": "own"}, checkout).cache == tmp_path / "own"


def test_a_project_is_read_from_its_files(
    small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_project.places.root)
    found = project.load({"GPUCOMM_CACHE": str(small_project.places.cache)})
    assert found.matrix.model_dump() == small_project.matrix.model_dump()
    assert (found.lock, found.places, found.repository) == (
        small_project.lock, small_project.places, small_project.repository,
    )  # fmt: skip
    cell = cells_of(found.matrix)[-1]
    assert found.reference(cell) == "registry.example/team/gpucomm:cpu-torch2.13.0"


def test_registry_takes_the_place_of_the_matrixs(
    small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_project.places.root)
    found = project.load({"REGISTRY": "127.0.0.1:5000/x"})
    assert found.reference(cells_of(found.matrix)[-1]) == "127.0.0.1:5000/x:cpu-torch2.13.0"
    assert project.load({"REGISTRY": ""}).repository == "registry.example/team/gpucomm"
    with pytest.raises(WrongInput, match="REGISTRY 'nothing'"):
        project.load({"REGISTRY": "nothing"})


def test_the_wheels_of_a_project_are_those_of_this_builders_platform(
    small_project: Project,
) -> None:
    for cell in cells_of(small_project.matrix):
        assert small_project.wheels(cell) == small_project.lock.wheels(
            cell, small_project.matrix, "amd64"
        )


def test_a_cell_on_demand_has_its_files_and_its_lock_outside_of_what_is_committed(
    small_project: Project, small_lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, where = small_project.matrix, small_project.places
    standard, one = cells_of(matrix)[0], on_demand(matrix, "cpu-torch2.13.0-ubuntu24.04")
    assert small_project.recipe(standard) == where.images / standard.id
    assert small_project.recipe(one) == where.on_demand / one.id
    wheels = small_lock.cells["cpu-torch2.13.0-py3.11"]
    more = Lock(cells={one.pins_id: wheels}, tools={"3.12": small_lock.tools["3.11"]}, bases={})
    locks.write(where.on_demand / locks.FILE, more)
    monkeypatch.chdir(where.root)
    found = project.load({"GPUCOMM_CACHE": str(where.cache)})
    assert found.wheels(one) == wheels
    assert found.lock.cells == {**small_lock.cells, one.pins_id: wheels}
    assert found.lock.aliases == small_lock.aliases
    found.write_recipes([standard, one])
    assert (where.on_demand / one.id / "Dockerfile").is_file()
    assert not (where.images / one.id).exists()
    assert found.write_recipes([standard, one]) == 0


def test_a_broken_lock_of_cells_on_demand_is_told(
    small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_project.places.on_demand / locks.FILE
    locks.write(path, EMPTY)
    path.write_text(path.read_text().replace("{}", "[]", 1))
    monkeypatch.chdir(small_project.places.root)
    with pytest.raises(WrongInput, match=r"matrix\.lock: "):
        project.load({})
