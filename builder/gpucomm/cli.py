"""The command `gpucomm`: options in, one call per command, exit codes out.

Owns: what a person types and how errors are printed. Every command is a few lines over modules that
it imports itself: the help of a command, or a wrong option, must not wait for Docker's SDK.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpucomm.errors import GpucommError, Unusable, WorkFailed, WrongInput

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from gpucomm.cell import Cell
    from gpucomm.places import Places
    from gpucomm.project import Project
    from gpucomm.schema import Matrix

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
# "A matrix will generate a maximum of 256 jobs per workflow run":
# https://docs.github.com/en/actions/reference/limits
GITHUB_JOBS = 256


def say(text: str) -> None:
    """One line for the person, on standard output."""
    click.echo(text)


def note(text: str) -> None:
    """One line for the person where standard output belongs to a program."""
    click.echo(text, err=True)


def console() -> Console:
    """Where a build draws its progress and its table."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 100)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="gpucomm")
def gpucomm(debug: bool) -> None:
    """Build, check and publish images of PyTorch with its collective library.

    TARGET is an alias (cu121), a cell id, a glob with braces (cu12{1,4}-*), several of these
    separated by commas, or all.
    """


target = click.argument("target")


def _build_options(function: F) -> F:
    """One option for each field of build.Options, which takes them as they come."""
    for option in (
        click.option("--wheelhouse", type=click.Path(exists=True, file_okay=False, path_type=Path),
                     envvar="WHEELHOUSE", help="Folder with wheels no reachable index has."),
        click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="CA bundle for TLS inside the build (default: SSL_CERT_FILE)."),
        click.option("--apt-mirror", metavar="URL",
                     help="Mirror of the distribution (default for Debian: this machine's)."),
        click.option("--allow-unlocked", is_flag=True,
                     help="Build cells whose wheels are not locked; nothing is pinned."),
        click.option("--base", type=click.Choice(["auto", "registry", "bootstrap"]),
                     help="Where the base comes from (default: matrix.yaml)."),
    ):  # fmt: skip
        function = option(function)
    return function


@gpucomm.command()
@target
@_build_options
def build(target: str, **chosen: Any) -> None:
    """Render, build and verify images; ends with a table."""
    from gpucomm import build as builds
    from gpucomm import project as projects
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    if new := [cell for cell in cells if project.never_resolved(cell)]:
        if faults := _lock(project.places, project.matrix, new, wheelhouse=chosen["wheelhouse"]):
            raise WorkFailed(faults)
        project = projects.load()
    builds.build(project, cells, builds.Options(**chosen), console())


@gpucomm.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per cell or line.")
@click.option("--markdown", is_flag=True, help="A Markdown table, without the local state.")
@click.option("--lines", is_flag=True, help="One row for each line instead of each cell.")
@click.argument("target", default="all")
def list_(target: str, as_json: bool, markdown: bool, lines: bool) -> None:
    """List cells with platforms, lock, proof and state (built: a local image exists)."""
    from gpucomm import listing, proof
    from gpucomm import project as projects
    from gpucomm.selector import select

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    form: listing.Form = "json" if as_json else "markdown" if markdown else "text"
    project = projects.load()
    cells = select(project.matrix, target)
    if lines:
        said = listing.by_line(project.matrix, cells, form)
    else:
        proofs = proof.load(project.places.root, project.matrix)
        state = None if markdown else _local_state(project)
        said = listing.by_cell(project, proofs, cells, form, state)
    click.echo("\n".join(said))


def _local_state(project: Project) -> Callable[[Cell], str]:
    from gpucomm import build as builds

    return builds.local_state(project)


@gpucomm.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per cell.")
@target
def show(target: str, as_json: bool) -> None:
    """Show everything about cells: values and their origin, GPUs, wheels, how to run them."""
    import json

    from gpucomm import project as projects
    from gpucomm import proof
    from gpucomm import show as shows
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    proofs = proof.load(project.places.root, project.matrix)
    for index, cell in enumerate(cells):
        data = shows.data_of(project, proofs, cell)
        lines = [json.dumps(data)] if as_json else shows.text_of(data)
        gap = [] if as_json or index == 0 else [""]
        click.echo("\n".join([*gap, *lines]))


@gpucomm.command()
@click.option("--gpu", metavar="GPU", help="Does it run on this GPU? 9.0, sm_90 or gfx942.")
@click.argument("selector", required=False)
def why(selector: str | None, gpu: str | None) -> None:
    """Say why a cell is as it is, or every reason why it cannot exist.

    SELECTOR is a TARGET, or the id of a cell that does not exist. Ends with 1 when a cell cannot
    exist or does not run on the GPU.
    """
    from gpucomm import gpus, matrix, places
    from gpucomm import why as whys

    if selector is None and gpu is None:
        raise click.UsageError("give a SELECTOR, or --gpu for the lines that run on a GPU")
    found = matrix.load(places.find().root)
    asked = gpus.parse(found, gpu) if gpu is not None else None
    if asked is not None and selector is None:
        click.echo("\n".join(whys.lines_for(found, asked)))
        return
    answers = whys.answers(found, selector or "all", asked)
    click.echo("\n\n".join("\n".join(answer.lines) for answer in answers))
    if any(answer.cell is None or answer.gpu_ok is False for answer in answers):
        sys.exit(WorkFailed.exit_code)


@gpucomm.command()
@click.option("--max-jobs", metavar="N", default=GITHUB_JOBS, show_default=True,
              type=click.IntRange(1, GITHUB_JOBS), help="At most so many jobs.")  # fmt: skip
@click.option("--plan", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="Leave out what this plan says needs no work.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Also cells that are not locked.")
@click.argument("target", default="all")
def ci(target: str, max_jobs: int, plan: Path | None, everything: bool) -> None:
    """Print the cells as a GitHub workflow matrix: {"include": [...]}, a line's cells together."""
    import json

    from gpucomm import project as projects
    from gpucomm import shards
    from gpucomm.selector import select

    project = projects.load()
    cells: Sequence[Cell] = select(project.matrix, target)
    if plan is not None:
        cells = shards.needed(plan, cells)
    reasons = {cell.id: project.lock.reason(cell, project.matrix) for cell in cells}
    unlocked = [name for name, reason in reasons.items() if reason is not None]
    if unlocked and not everything:
        note(f"left out {len(unlocked)} unlocked cells (--all takes them): {', '.join(unlocked)}")
        cells = [cell for cell in cells if reasons[cell.id] is None]
    if not cells:
        note("nothing is left to do: GitHub refuses an empty matrix, skip the job")
    jobs = shards.jobs_of(project.matrix, cells, max_jobs)
    click.echo(json.dumps({"include": [job.entry() for job in jobs]}))


@gpucomm.command()
@click.option("--check", is_flag=True, help="Fail when an axis value has no standard cell.")
def coverage(check: bool) -> None:
    """Report axis values, and pairs of them, that no standard cell has."""
    from gpucomm import coverage as coverages
    from gpucomm import matrix, places

    found = coverages.coverage_of(matrix.load(places.find().root))
    click.echo("\n".join(coverages.lines_of(found)))
    if check and found.missing:
        sys.exit(WorkFailed.exit_code)


@gpucomm.command()
@target
def image(target: str) -> None:
    """Print the image reference of one cell and nothing else."""
    from gpucomm import project as projects
    from gpucomm.selector import select_one

    project = projects.load()
    click.echo(project.reference(select_one(project.matrix, target)))


@gpucomm.command()
@click.argument("selector", default="all")
@click.option(
    "--check", is_flag=True, help="Change nothing, ask nobody; fail when it is not right."
)
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the rules allow.")
@click.option("--wheelhouse", type=click.Path(exists=True, file_okay=False, path_type=Path),
              envvar="WHEELHOUSE", help="Folder with wheels no reachable index has.")  # fmt: skip
def lock(selector: str, check: bool, upgrade: bool, wheelhouse: Path | None) -> None:
    """Resolve every wheel of the cells of SELECTOR (default: all) into matrix.lock.

    A cell that is not standard is locked below .gpucomm/on-demand and can then be built.
    """
    from datetime import date

    from gpucomm import lock as locks
    from gpucomm import matrix as matrices
    from gpucomm import places
    from gpucomm.selector import select

    where = places.find()
    matrix = matrices.load(where.root)
    if check:
        found = locks.load(where.root, matrix)
        if soon := list(locks.expiring(matrix, date.today())):
            raise WorkFailed(soon)
        say(
            f"{locks.FILE} answers the matrix: {len(found.cells)} locked, {len(found.unlocked)} not"
        )
        return
    cells = select(matrix, selector)
    if faults := _lock(where, matrix, cells, upgrade=upgrade, wheelhouse=wheelhouse):
        raise WorkFailed(faults)


def _lock(
    where: Places,
    matrix: Matrix,
    cells: Sequence[Cell],
    *,
    upgrade: bool = False,
    wheelhouse: Path | None = None,
) -> list[str]:
    """Lock standard cells in matrix.lock, others beside it; returns what found no solution."""
    from gpucomm import lock as locks
    from gpucomm import pages, resolve
    from gpucomm.cell import base_image
    from gpucomm.standard import by_id

    standard = by_id(matrix)
    faults: list[str] = []
    for path, chosen in (
        (where.root / locks.FILE, [cell for cell in cells if cell.id in standard]),
        (where.on_demand / locks.FILE, [cell for cell in cells if cell.id not in standard]),
    ):
        if not chosen:
            continue
        options = resolve.Options(
            upgrade=upgrade,
            wheelhouse=wheelhouse,
            pytorch_index=os.environ.get(pages.MIRROR) or None,
            keep_others=path.parent == where.on_demand,
        )
        before = locks.read(path)
        images = dict.fromkeys(base_image(matrix, cell) for cell in chosen)
        found = resolve.base_digests(images, before, say, upgrade=upgrade)
        after, new = resolve.resolve(
            matrix, before, chosen, options, dict(before.bases) | found, say
        )
        locks.write(path, after)
        for line in locks.differences(before, after) or ["no version changed"]:
            say(line)
        faults += new
    return faults


@gpucomm.command(name="render")
@click.option("--check", is_flag=True, help="Change nothing; fail when something differs.")
def render_(check: bool) -> None:
    """Write images/ and the tables of docs/ from matrix.yaml, matrix.lock and templates/."""
    from gpucomm import documents, render
    from gpucomm import project as projects

    project = projects.load()
    files = project.rendered()
    if check:
        faults: list[str] = []
        try:
            render.check(files, project.places.images)
        except WorkFailed as error:
            faults += error.faults
        faults += documents.drift(project)
        if faults:
            raise WorkFailed(faults)
        say(f"{render.FOLDER}/ is what the matrix renders: {len(files)} files")
        return
    changed = render.write(files, project.places.images)
    say(f"{changed} files changed under {render.FOLDER}/")
    for name in documents.write(project):
        say(f"{name} changed")


@gpucomm.group()
def engine() -> None:
    """The Docker engine that builds and runs the images."""


@engine.command()
def ensure() -> None:
    """Use the engine that answers, else install and start one (ENGINE=none forbids that)."""
    from gpucomm import engine as engines

    info = engines.ensure(say)
    limit = engines.cache_limit() or "not told"
    say(f"Docker {info.version}, buildx {info.buildx}, store {info.storage_driver}")
    say(f"build cache kept: {limit}")


@gpucomm.command(name="test-image")
@target
@click.option("--only", metavar="EXPR", help="Run only the tests that match, as pytest's -k.")
def test_image(target: str, only: str | None) -> None:
    """Run the image tests against the local image of each cell, whatever was recorded."""
    from gpucomm import build as builds
    from gpucomm import engine as engines
    from gpucomm import project as projects
    from gpucomm import verify
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    engines.ensure(say)
    faults: list[str] = []
    with closing(engines.client()) as client:
        for cell in cells:
            try:
                digest = builds.local_image(client, project, cell)
                result = verify.verify(project, cell, digest, only)
                say(f"{cell.id}: {result.passed} tests passed in {result.seconds:.0f} s")
            except WorkFailed as error:
                faults += error.faults
    if faults:
        raise WorkFailed(faults)


@gpucomm.command()
@target
def push(target: str) -> None:
    """Send verified images to the registry byte for byte, the cell's tag before its aliases."""
    from gpucomm import build as builds
    from gpucomm import engine as engines
    from gpucomm import project as projects
    from gpucomm import registry
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    engines.ensure(say)
    with closing(engines.client()) as client:
        chosen = [(cell, builds.verified_image(client, project, cell)) for cell in cells]
        for cell, digest in chosen:
            builds.tag_as(client, digest, project.repository, builds.tags_of(project, cell))
            for tag in builds.tags_of(project, cell):
                got = registry.push(client, project.repository, tag)
                if got != digest:
                    raise WorkFailed(f"push {tag}: the registry has {got}, the image is {digest}")
                say(f"pushed {project.repository}:{tag}@{digest}")


@gpucomm.command()
@target
def pull(target: str) -> None:
    """Take published images from the registry, under the cell's tag and its aliases."""
    from gpucomm import build as builds
    from gpucomm import engine as engines
    from gpucomm import project as projects
    from gpucomm import registry
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    engines.ensure(say)
    faults: list[GpucommError] = []
    with closing(engines.client()) as client:
        for cell in cells:
            try:
                digest = registry.pull(client, project.repository, cell.id)
            except GpucommError as error:
                faults.append(error)
                continue
            builds.tag_as(client, digest, project.repository, builds.tags_of(project, cell))
            say(f"pulled {project.reference(cell)}@{digest}")
    if faults:
        raise type(faults[0])([fault for error in faults for fault in error.faults])


@gpucomm.command(context_settings={"ignore_unknown_options": True})
@target
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(target: str, command: tuple[str, ...]) -> None:
    """Run a command (default: a shell) in the image, with the GPUs if there are any."""
    _run_image(target, command)


@gpucomm.command(context_settings={"ignore_unknown_options": True})
@target
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def selftest(target: str, options: tuple[str, ...]) -> None:
    """Run gpucomm-selftest in the image; OPTIONS go to it."""
    _run_image(target, ("gpucomm-selftest", *options))


def _run_image(target: str, command: tuple[str, ...]) -> None:
    import subprocess

    from gpucomm import build as builds
    from gpucomm import devices
    from gpucomm import engine as engines
    from gpucomm import project as projects
    from gpucomm.selector import select_one

    project = projects.load()
    cell = select_one(project.matrix, target)
    info = engines.ensure(note)
    with closing(engines.client()) as client:
        builds.local_image(client, project, cell)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = [
        "docker", "run", "--rm", "--ipc=host", *(["--interactive", "--tty"] if terminal else []),
        *devices.options_here(cell.accelerator, nvidia=info.nvidia),
        project.reference(cell), *command,
    ]  # fmt: skip
    sys.stdout.flush()
    sys.exit(subprocess.run(argv, check=False).returncode)


@gpucomm.command()
@click.option("--bases", is_flag=True, help="Also forget the bootstrapped bases.")
@target
def clean(target: str, bases: bool) -> None:
    """Remove the local images of TARGET and its logs; nothing else of the engine is touched."""
    import shutil

    from gpucomm import build as builds
    from gpucomm import engine as engines
    from gpucomm import project as projects
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target)
    with closing(engines.client()) as client:
        for cell in cells:
            for name in builds.remove_local(client, project, cell):
                say(f"removed {name}")
            for log in project.places.logs.glob(f"{cell.id}.*"):
                log.unlink()
    if bases:
        shutil.rmtree(project.places.cache / "bases", ignore_errors=True)
        say("removed the bootstrapped bases")


@gpucomm.command()
@click.argument("target", required=False)
@click.option("--keep", is_flag=True, help="Leave the images of the cells here.")
@click.option("--evidence", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the table to FILE, as Markdown.")  # fmt: skip
@_build_options
def sweep(target: str | None, keep: bool, evidence: Path | None, **chosen: Any) -> None:
    """Build and verify the alias cell of every line that can be had here, one after another.

    What passed is remembered: run it again after an interrupt and it goes on.
    """
    from gpucomm import build as builds
    from gpucomm import project as projects
    from gpucomm import sweep as sweeps
    from gpucomm.selector import select

    project = projects.load()
    cells = select(project.matrix, target) if target else sweeps.real_cells(project)
    options = builds.Options(**chosen)
    rows = sweeps.sweep(project, cells, options, console(), keep=keep)
    if evidence is not None:
        evidence.write_text(sweeps.document(rows), encoding="utf-8")
        say(f"wrote {evidence}")


def main() -> None:
    """Entry point: one line per fault, the class's exit code, no traceback without --debug."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    debug = "--debug" in sys.argv
    try:
        gpucomm(standalone_mode=False)
    except GpucommError as error:
        if debug:
            raise
        for fault in error.faults:
            note(f"gpucomm: {fault}")
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(WrongInput.exit_code)
    except (KeyboardInterrupt, click.Abort):
        note("gpucomm: interrupted; finished steps are kept, run the same command to go on")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except _engine_errors() as error:
        if debug:
            raise
        note(f"gpucomm: the engine did not answer ({error}); run gpucomm engine ensure, then again")
        sys.exit(Unusable.exit_code)


def _engine_errors() -> tuple[type[Exception], ...]:
    """What Docker's SDK and the libraries below it raise; nothing where no command loaded it."""
    if "docker" not in sys.modules:
        return ()
    import requests
    from docker.errors import DockerException
    from urllib3.exceptions import HTTPError

    return DockerException, requests.RequestException, HTTPError
