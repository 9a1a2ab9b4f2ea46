"""`gpucomm build`: cells, one after another, from rendered files to verified, tagged images.

An image is built under a name of its own, verified by digest, and only then given the cell's tag
and its aliases: a failed build or check leaves every tag where it was.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import docker
from docker.errors import APIError, ImageNotFound
from rich.console import Console

from gpucomm import bake, buildsecrets, disk, engine, render, report, verify
from gpucomm import base as bases
from gpucomm.cell import DEFAULT_INDEX, Cell, base_image
from gpucomm.daemon import Say
from gpucomm.errors import GpucommError, WorkFailed, WrongInput
from gpucomm.lock import Wheel, cell_faults, tools_key
from gpucomm.project import Project
from gpucomm.registry import Reachable, reachable
from gpucomm.rules import platforms
from gpucomm.selector import select_one
from gpucomm.standard import aliases_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line or the environment chose for one run."""

    ca: Path | None = None
    apt_mirror: str | None = None
    base: str | None = None
    wheelhouse: Path | None = None
    allow_unlocked: bool = False


def image_of(client: docker.DockerClient, reference: str) -> str | None:
    """The digest of a local image, None when there is none."""
    try:
        return str(client.images.get(reference).id)
    except ImageNotFound:
        return None


def local_image(client: docker.DockerClient, project: Project, cell: Cell) -> str:
    """The digest of the local image of `cell`. Raises WorkFailed when there is none."""
    digest = image_of(client, project.reference(cell))
    if digest is None:
        raise WorkFailed(
            f"{project.reference(cell)} is not here: make build TARGET={cell.id}, or make pull"
        )
    return digest


def verified_image(client: docker.DockerClient, project: Project, cell: Cell) -> str:
    """The digest of the local image of `cell`, if these tests passed on exactly that image."""
    digest = local_image(client, project, cell)
    if verify.recorded(project.places, digest, verify.suite_hash(project, cell)) is None:
        raise WorkFailed(
            f"{project.reference(cell)} ({digest[:19]}) is not verified: "
            f"make build TARGET={cell.id}"
        )
    return digest


def local_state(project: Project) -> Callable[[Cell], str]:
    """A function that tells `built` or `absent` of a cell, `unknown` without an engine."""
    try:
        with closing(engine.client()) as client:
            # One call; `images.list` inspects every image of the machine by a call of its own.
            tags = {tag for image in client.api.images() for tag in image["RepoTags"] or ()}
    except GpucommError:
        return lambda _: "unknown"
    return lambda cell: "built" if project.reference(cell) in tags else "absent"


def remove_local(client: docker.DockerClient, project: Project, cell: Cell) -> list[str]:
    """Remove the cell's tag and those aliases that point at the same image; returns the names."""
    digest = image_of(client, project.reference(cell))
    names = [f"{project.repository}:{tag}" for tag in tags_of(project, cell)]
    ours = [name for name in names if digest is not None and image_of(client, name) == digest]
    for name in ours:
        client.images.remove(name)
    return ours


def check_options(project: Project, cells: tuple[Cell, ...], options: Options) -> None:
    """Raises WrongInput with every fault of `options` for `cells`. Writes and starts nothing."""
    faults: list[str] = []
    for cell in cells:
        try:
            _check_lock(project, cell, options)
            _wheels_in(project, cell, options.wheelhouse)
        except WrongInput as error:
            faults += error.faults
    bases_of = {(cell.os, base_image(project.matrix, cell)): cell for cell in cells}
    for cell in bases_of.values():
        try:
            _base_kind(project, cell, options, lambda _: Reachable(ok=True))
            _secrets(project, cell, options)
        except WrongInput as error:
            faults += error.faults
    systems = dict.fromkeys(project.matrix.systems[cell.os].distribution for cell in cells)
    if options.apt_mirror is not None and len(systems) > 1:
        faults.append(f"--apt-mirror serves one of {' and '.join(systems)}: build them apart")
    if faults:
        raise WrongInput(faults)


def _check_lock(project: Project, cell: Cell, options: Options) -> None:
    reason = project.lock.reason(cell, project.matrix)
    if reason is not None and not options.allow_unlocked:
        raise WrongInput(
            f"{cell.id} is unlocked: {reason}; run gpucomm lock {cell.id} where it can be reached, "
            "or build what can be found today with --allow-unlocked"
        )
    # The lock of what is made on demand may be older than the matrix.
    for arch in project.lock.locked(cell, project.matrix):
        if faults := list(cell_faults(project.matrix, project.lock, cell, arch)):
            raise WrongInput([f"{cell.id}: {f}; run gpucomm lock {cell.id}" for f in faults])
    for arch in platforms(project.matrix, cell):
        if (key := tools_key(cell.python, arch)) not in project.lock.tools:
            raise WrongInput(
                f"{cell.id}: the tools for Python {key} are not locked; run gpucomm lock {cell.id}"
            )


def build(
    project: Project,
    cells: tuple[Cell, ...],
    options: Options,
    console: Console,
) -> None:
    """Build and verify every cell; ends with a table. A failed cell does not stop the others.

    Raises WrongInput before anything is done, and the first failure's class with all faults when
    any cell failed.
    """
    check_options(project, cells, options)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if changed := project.write_recipes(cells):
        say(f"rendered {changed} files under {render.FOLDER}/")
    info = engine.ensure(say)
    rows: list[report.Row] = []
    failures: list[GpucommError] = []
    with closing(engine.client()) as client:
        try:
            for cell in cells:
                started = time.monotonic()
                try:
                    digest, result = _build_one(
                        project, cell, options, client, info.root_dir, console, say
                    )
                except GpucommError as error:
                    failures.append(error)
                    seconds = time.monotonic() - started
                    rows.append(report.Row(cell=cell.id, result="failed", seconds=seconds))
                    for fault in error.faults:
                        say(f"FAILED  {fault}")
                    continue
                size = client.api.inspect_image(digest)["Size"]
                seconds = time.monotonic() - started
                rows.append(
                    report.Row(
                        cell=cell.id, result=result, seconds=seconds, size=size, digest=digest
                    )
                )
        finally:
            done = {row.cell for row in rows}
            rows += [
                report.Row(cell=cell.id, result="not reached", seconds=0)
                for cell in cells
                if cell.id not in done
            ]
            report.show(console, rows)
    if failures:
        names = ", ".join(row.cell for row in rows if row.result == "failed")
        raise type(failures[0])(f"{len(failures)} of {len(cells)} cells failed: {names}")


def _build_one(
    project: Project,
    cell: Cell,
    options: Options,
    client: docker.DockerClient,
    engine_root: Path,
    console: Console,
    say: Say,
) -> tuple[str, str]:
    before = image_of(client, project.reference(cell))
    present, beside = _images_here(client, project, cell)
    need = disk.needed(project.wheels(cell), present=present, beside=beside)
    disk.check(cell.id, need, engine_root)
    say(f"build {cell.id}")
    base = _base(project, cell, options, say)
    secrets = _secrets(project, cell, options)
    unverified = f"{project.repository}:unverified-{cell.id}"
    with _wheelhouse(project, cell, options.wheelhouse) as wheelhouse:
        digest = bake.bake(
            cell,
            project.places,
            project.recipe(cell),
            base,
            epoch=project.matrix.source_date_epoch,
            name=unverified,
            secrets=secrets,
            wheelhouse=wheelhouse,
            console=console,
        )
    try:
        reused = _verified(project, cell, digest, say)
    except WorkFailed as error:
        raise WorkFailed([*error.faults, f"the image is kept as {unverified}"]) from None
    tag_as(client, digest, project.repository, tags_of(project, cell))
    client.images.remove(unverified, noprune=True)
    return digest, "up to date" if digest == before and reused else "verified"


def _images_here(
    client: docker.DockerClient, project: Project, cell: Cell
) -> tuple[bool, list[tuple[Wheel, ...]]]:
    """Whether this engine has an image of `cell`, and the wheels of others that share layers.

    Told by their labels, whatever their names are.
    """
    images = client.api.images(filters={"label": render.CELL_LABEL})
    ids = {str((image["Labels"] or {})[render.CELL_LABEL]) for image in images}
    beside = []
    for other_id in sorted(ids - {cell.id}):
        try:
            other = select_one(project.matrix, other_id)
        except WrongInput:  # of another matrix
            continue
        if (other.os, other.flavor) == (cell.os, cell.flavor):
            beside.append(project.wheels(other))
    return cell.id in ids, beside


def tags_of(project: Project, cell: Cell) -> tuple[str, ...]:
    """The tags of a cell's image: its id, then its aliases."""
    return (cell.id, *aliases_of(project.matrix, cell))


def _verified(project: Project, cell: Cell, digest: str, say: Say) -> bool:
    """Verify an image unless these tests passed on it before; returns whether they had."""
    found = verify.recorded(project.places, digest, verify.suite_hash(project, cell))
    if found is None:
        say(f"verify {cell.id}")
        found = verify.verify(project, cell, digest)
        say(f"  {found.passed} image tests passed in {found.seconds:.0f} s")
        return False
    return True


def _secrets(project: Project, cell: Cell, options: Options) -> buildsecrets.BuildSecrets:
    system = project.matrix.systems[cell.os]
    return buildsecrets.gather(
        release=system.release,
        distribution=system.distribution,
        ca=options.ca,
        apt_mirror=options.apt_mirror,
    )


def _base_kind(
    project: Project, cell: Cell, options: Options, reach: Callable[[str], Reachable]
) -> tuple[Literal["registry", "bootstrap"], str | None]:
    system, image = project.matrix.systems[cell.os], base_image(project.matrix, cell)
    digest = project.lock.bases.get(image)
    wanted = options.base or system.base
    return bases.choose(system, image, cell.os, digest, wanted=wanted, reach=reach)


def _base(project: Project, cell: Cell, options: Options, say: Say) -> bases.Base:
    system, image = project.matrix.systems[cell.os], base_image(project.matrix, cell)
    digest = project.lock.bases.get(image)
    kind, note = _base_kind(project, cell, options, reachable)
    if note:
        say(note)
    if kind == "registry" and digest is not None:
        return bases.registry_base(image, digest)
    sources = buildsecrets.machine_apt_sources(system.release, options.apt_mirror)
    folder, epoch = project.places.cache / "bases", project.matrix.source_date_epoch
    return bases.bootstrap(system, cell.os, folder, sources, epoch, say)


@contextmanager
def _wheelhouse(project: Project, cell: Cell, folder: Path | None) -> Iterator[Path | None]:
    """A folder with only the locked wheels that WHEELHOUSE has: nothing else enters the build."""
    wheels = _wheels_in(project, cell, folder)
    if folder is None or not wheels:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="gpucomm-wheels-") as staged:
        for wheel in wheels:
            shutil.copyfile(folder / wheel.file, Path(staged) / wheel.file)
        yield Path(staged)


def _wheels_in(project: Project, cell: Cell, folder: Path | None) -> list[Wheel]:
    """The locked wheels that WHEELHOUSE has for a cell that takes torch from there."""
    if folder is None or cell.index == DEFAULT_INDEX:
        return []
    locked = project.wheels(cell)
    wheels = [wheel for wheel in locked if (folder / wheel.file).is_file()]
    torch = next((wheel for wheel in locked if wheel.name == "torch"), None)
    if torch is not None and torch not in wheels:
        raise WrongInput(f"WHEELHOUSE {folder} has no {torch.file}, which {cell.id} needs")
    return wheels


def tag_as(
    client: docker.DockerClient, digest: str, repository: str, tags: tuple[str, ...]
) -> None:
    """Point local tags at an image; each is moved by the engine at once."""
    try:
        image = client.images.get(digest)
        for tag in tags:
            image.tag(repository, tag)
    except APIError as error:
        raise WorkFailed(f"cannot tag {repository}: {error.explanation}") from None
