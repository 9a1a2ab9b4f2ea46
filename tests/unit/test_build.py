"""build.py: what is known of local images, and options that are wrong before anything is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucomm import build, disk, engine, render
from gpucomm.build import Options
from gpucomm.errors import Unusable, WrongInput
from gpucomm.lock import Wheel
from gpucomm.project import Project
from gpucomm.selector import select_one
from gpucomm.standard import cells_of, on_demand

REPOSITORY = "registry.example/team/gpucomm"


class Engine:
    """The part of the docker client that lists images, and how often it was asked."""

    def __init__(self, images: list[dict[str, Any]]) -> None:
        self._images = images
        self.api = self
        self.asked = 0
        self.closed = False

    def images(self, filters: dict[str, str] | None = None) -> list[dict[str, Any]]:
        self.asked += 1
        wanted = (filters or {}).get("label")
        return [row for row in self._images if wanted in (None, *(row.get("Labels") or ()))]

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


def test_images_are_known_by_their_label_whatever_their_name_is(small_project: Project) -> None:
    matrix = small_project.matrix
    cell = select_one(matrix, "cu121-torch2.4.1-nccl2.20.5")
    overridden = select_one(matrix, "cu121-torch2.4.1-nccl2.21.5")
    slim = select_one(matrix, "cu121-torch2.4.1-nccl2.20.5-slim")

    def here(*ids: str | None) -> tuple[bool, list[tuple[Wheel, ...]]]:
        rows = [{"Labels": {render.CELL_LABEL: name} if name else None} for name in ids]
        return build._images_here(Engine(rows), small_project, cell)  # type: ignore[arg-type]

    assert here(None) == (False, [])
    assert here(cell.id, None) == (True, [])
    assert here(slim.id, "cu99-torch9.9.9") == (False, [])
    assert here(overridden.id) == (False, [small_project.wheels(overridden)])


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


def faults(project: Project, target: str, **options: Any) -> tuple[str, ...]:
    """What is wrong with building one cell."""
    with pytest.raises(WrongInput) as caught:
        build.check_options(project, (on_demand(project.matrix, target),), Options(**options))
    assert caught.value.exit_code == 2
    return caught.value.faults


def test_a_cell_that_was_never_resolved_is_refused_unless_it_is_allowed(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    name = "cu121-torch2.2.2-nccl2.19.3-torchvision"
    (fault,) = faults(small_project, name)
    assert fault.startswith(f"{name} is unlocked: it was never resolved; run gpucomm lock {name} ")
    one = on_demand(small_project.matrix, name)
    build.check_options(small_project, (one,), Options(allow_unlocked=True))


def test_an_old_lock_of_a_cell_on_demand_is_refused(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    """matrix.lock is held against the matrix when it is read; what lies beside it is not."""
    name = "cu121-torch2.4.1-nccl2.20.5-mpi"
    lock = small_project.lock
    old = tuple(w for w in lock.cells[f"{name[:-4]}-py3.11"] if w.name != "numpy")
    stale = replace(lock, cells={**lock.cells, f"{name[:-4]}-py3.11": old})
    project = replace(small_project, lock=stale)
    for allowed in (False, True):
        (fault,) = faults(project, name, allow_unlocked=allowed)
        assert fault == f"{name}: numpy is missing; run gpucomm lock {name}"


def test_a_python_without_locked_tools_is_refused(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    name = "cu121-torch2.4.1-nccl2.20.5-ubuntu24.04"
    base = {"registry.example/library/ubuntu:24.04": f"sha256:{'ab' * 32}"}
    project = replace(small_project, lock=replace(small_project.lock, bases=base))
    (fault,) = faults(project, name, allow_unlocked=True)
    assert fault == f"{name}: the tools for Python 3.12 are not locked; run gpucomm lock {name}"


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ("ubuntu24.04", "registry.example/library/ubuntu:24.04"),
        ("ubuntu24.04-devel", "registry.example/nvidia/cuda:12.1.1-devel-ubuntu24.04"),
    ],
)
def test_ubuntu_and_the_vendors_images_come_from_their_registry_or_not_at_all(
    words: str, image: str, small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    tools = {**small_project.lock.tools, "3.12": small_project.lock.tools["3.11"]}
    lock = replace(small_project.lock, tools=tools)
    project = replace(small_project, lock=lock)
    name = f"cu121-torch2.4.1-nccl2.20.5-{words}"
    (fault,) = faults(project, name, allow_unlocked=True)
    assert fault == (
        f"base ubuntu24.04: the lock has no digest of {image}: "
        "run gpucomm lock where its registry can be reached"
    )
    (fault,) = faults(project, name, allow_unlocked=True, base="bootstrap")
    assert fault == (
        "base ubuntu24.04: noble cannot be bootstrapped here; "
        f"it comes from {image}: take --base registry"
    )
    known = replace(project, lock=replace(lock, bases={image: f"sha256:{'ab' * 32}"}))
    one = on_demand(known.matrix, name)
    build.check_options(known, (one,), Options(allow_unlocked=True))
    base = build._base(known, one, Options(base="registry"), lambda _: None)
    assert base.context == f"docker-image://{image.rsplit(':', 1)[0]}@sha256:{'ab' * 32}"


def test_one_mirror_serves_one_distribution(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    digest = f"sha256:{'ab' * 32}"
    bases = {**small_project.lock.bases, "registry.example/library/ubuntu:24.04": digest}
    tools = {**small_project.lock.tools, "3.12": small_project.lock.tools["3.11"]}
    project = replace(small_project, lock=replace(small_project.lock, bases=bases, tools=tools))
    debian, ubuntu = (
        on_demand(project.matrix, f"cu121-torch2.4.1{words}") for words in ("", "-ubuntu24.04")
    )
    options = Options(apt_mirror="https://mirror.example/x", allow_unlocked=True)
    for cells in ((debian,), (ubuntu,)):
        build.check_options(project, cells, options)
    with pytest.raises(WrongInput, match="--apt-mirror serves one of debian and ubuntu"):
        build.check_options(project, (debian, ubuntu), options)
    build.check_options(project, (debian, ubuntu), Options(allow_unlocked=True))


def test_the_distribution_of_the_cell_decides_what_its_mirror_is_asked_for(
    small_project: Project, bare_env: pytest.MonkeyPatch
) -> None:
    options = Options(apt_mirror="https://mirror.example/x")
    for words, release in (("", "bookworm"), ("-ubuntu24.04", "noble")):
        one = on_demand(small_project.matrix, f"cu121-torch2.4.1{words}")
        files = build._secrets(small_project, one, options).files
        first = files["apt-sources"].decode().splitlines()[0]
        assert first.split("] ")[1].split()[:2] == ["https://mirror.example/x", release]
        assert ("ubuntu-archive" in first) == (release == "noble")


def test_a_wheel_whose_size_is_not_known_breaks_nothing(small_project: Project) -> None:
    one = on_demand(small_project.matrix, "cu121-torch2.4.1")
    wheels = tuple(replace(wheel, size=0) for wheel in small_project.wheels(one))
    assert disk.needed(wheels, present=False) == disk.needed((), present=False) > 0
