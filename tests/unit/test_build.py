"""build.py: what is known of local images, and options that are wrong before anything is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucomm import build, engine
from gpucomm.build import Options
from gpucomm.errors import Unusable, WrongInput
from gpucomm.project import Project
from gpucomm.standard import cells_of, on_demand

REPOSITORY = "registry.example/team/gpucomm"


class Engine:
    """The part of the docker client that lists images, and how often it was asked."""

    def __init__(self, images: list[dict[str, Any]]) -> None:
        self._images = images
        self.api = self
        self.asked = 0
        self.closed = False

    def images(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self._images

    def close(self) -> None:
        self.closed = True


def test_the_state_of_every_cell_costs_one_call(
    small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = cells_of(small_project.matrix)
    fake = Engine(
        [
            {"Id": "sha256:a", "RepoTags": [f"{REPOSITORY}:{first.id}", "other:tag"]},
            {"Id": "sha256:b", "RepoTags": None},
            {"Id": "sha256:c", "RepoTags": [f"registry.example/other:{others[0].id}"]},
        ]
    )
    monkeypatch.setattr(engine, "client", lambda: fake)
    state = build.local_state(small_project)
    assert state(first) == "built"
    assert {state(cell) for cell in others} == {"absent"}
    assert (fake.asked, fake.closed) == (1, True)


def test_without_an_engine_the_state_is_unknown(
    small_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Unusable("no engine")

    monkeypatch.setattr(engine, "client", refuse)
    state = build.local_state(small_project)
    assert {state(cell) for cell in cells_of(small_project.matrix)} == {"unknown"}


def test_every_wrong_option_is_named_at_once(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    project = replace(small_project, lock=replace(small_project.lock, bases={}))
    cells = tuple(cell for cell in cells_of(project.matrix) if project.wheels(cell))
    build.check_options(project, cells, Options())
    with pytest.raises(WrongInput) as caught:
        build.check_options(
            project, cells, Options(base="registry", wheelhouse=project.places.root)
        )
    wheelhouse, base = caught.value.faults
    assert wheelhouse.endswith("which cpu-torch2.13.0 needs")
    assert base.startswith("base debian12: the lock has no digest of ")


def test_an_unlocked_cell_is_refused_unless_it_is_allowed(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    (cell,) = (one for one in cells_of(small_project.matrix) if one.accelerator == "rocm")
    with pytest.raises(WrongInput) as caught:
        build.check_options(small_project, (cell,), Options())
    (fault,) = caught.value.faults
    assert fault.startswith(f"{cell.id} is unlocked: the PyTorch index of rocm6.1 could not be")
    assert "--allow-unlocked" in fault
    build.check_options(small_project, (cell,), Options(allow_unlocked=True))


def test_what_is_made_on_demand_has_its_files_beside_the_checkouts_own(
    small_project: Project,
) -> None:
    matrix, where = small_project.matrix, small_project.places
    standard = cells_of(matrix)[0]
    cell = on_demand(matrix, "cu121-torch2.4.1-mpi")
    assert small_project.recipe(standard) == where.images / standard.id
    assert small_project.recipe(cell) == where.root / ".gpucomm" / "on-demand" / cell.id
    assert small_project.write_recipes((standard, cell)) == 0
    assert "openmpi-bin" in (small_project.recipe(cell) / "Dockerfile").read_text()
    assert not (where.images / cell.id).exists()
    # It shares the lock of the cell without the extra, so nothing has to be resolved for it.
    assert not small_project.never_resolved(cell)
    assert small_project.never_resolved(on_demand(matrix, "cu121-torch2.2.2-torchvision"))
