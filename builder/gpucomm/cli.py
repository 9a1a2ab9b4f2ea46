"""The command `gpucomm`: options in, one call per command, exit codes out.

Owns: what a person types and how errors are printed. Every command is a few lines over a module.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
import requests
from docker.errors import DockerException
from rich.console import Console
from urllib3.exceptions import HTTPError

from gpucomm import build as builds
from gpucomm import engine as engines
from gpucomm import lock as locks
from gpucomm import matrix as matrices
from gpucomm import places, registry, render, resolve, verify
from gpucomm import project as projects
from gpucomm.cell import aliases_of
from gpucomm.errors import GpucommError, Unusable, WorkFailed, WrongInput
from gpucomm.selector import select, select_one

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130

out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 100)


def say(text: str) -> None:
    """One line for the person, on standard output."""
    out.print(text, markup=False, highlight=False)


def note(text: str) -> None:
    """One line for the person where standard output belongs to a program."""
    click.echo(text, err=True)


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
    for option in (
        click.option("--wheelhouse", type=click.Path(exists=True, file_okay=False, path_type=Path),
                     envvar="WHEELHOUSE", help="Folder with wheels no reachable index has."),
        click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="CA bundle for TLS inside the build (default: SSL_CERT_FILE)."),
        click.option("--apt-mirror", metavar="URL", help="Debian mirror, else this machine's."),
        click.option("--base", type=click.Choice(["auto", "registry", "bootstrap"]),
                     help="Where the base comes from (default: matrix.yaml)."),
    ):  # fmt: skip
        function = option(function)
    return function


@gpucomm.command()
@target
@_build_options
def build(
    target: str, wheelhouse: Path | None, ca: Path | None, apt_mirror: str | None, base: str | None
) -> None:
    """Render, build and verify images; ends with a table."""
    project = projects.load()
    cells = select(project.matrix, target)
    options = builds.Options(ca=ca, apt_mirror=apt_mirror, base=base, wheelhouse=wheelhouse)
    builds.build(project, cells, options, out)


@gpucomm.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per cell.")
@click.argument("target", default="all")
def list_(target: str, as_json: bool) -> None:
    """List cells with their images and state (built: a local image exists)."""
    project = projects.load()
    cells = select(project.matrix, target)
    state = builds.local_state(project)
    for cell in cells:
        aliases = list(aliases_of(project.matrix, cell))
        if as_json:
            row = {
                "id": cell.id,
                "line": cell.line,
                "torch": cell.torch,
                "library": "nccl" if cell.nccl else "gloo",
                "library_version": cell.nccl,
                "image": project.reference(cell),
                "aliases": aliases,
                "state": state(cell),
            }
            click.echo(json.dumps(row))
        else:
            click.echo(f"{cell.id:<36} {state(cell):<8} {' '.join(aliases)}".rstrip())


@gpucomm.command()
@target
def image(target: str) -> None:
    """Print the image reference of one cell and nothing else."""
    project = projects.load()
    click.echo(project.reference(select_one(project.matrix, target)))


@gpucomm.command()
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the rules allow.")
@click.option("--wheelhouse", type=click.Path(exists=True, file_okay=False, path_type=Path),
              envvar="WHEELHOUSE", help="Folder with wheels no reachable index has.")  # fmt: skip
def lock(upgrade: bool, wheelhouse: Path | None) -> None:
    """Resolve every wheel of every cell into matrix.lock."""
    where = places.find()
    matrix = matrices.load(where.root)
    before = locks.read(where.root)
    bases = resolve.base_digests(matrix, before, say, upgrade=upgrade)
    after = resolve.resolve_all(
        matrix, before, say, upgrade=upgrade, bases=bases, wheelhouse=wheelhouse
    )
    locks.write(where.root, after)
    for line in locks.differences(before, after) or ["no version changed"]:
        say(line)


@gpucomm.command(name="render")
@click.option("--check", is_flag=True, help="Change nothing; fail when images/ differs.")
def render_(check: bool) -> None:
    """Write images/ from matrix.yaml, matrix.lock and templates/."""
    project = projects.load()
    if check:
        render.check(project.rendered(), project.places.images)
        say(f"{render.FOLDER}/ is what the matrix renders: {len(project.rendered())} files")
    else:
        changed = render.write(project.rendered(), project.places.images)
        say(f"{changed} files changed under {render.FOLDER}/")


@gpucomm.group()
def engine() -> None:
    """The Docker engine that builds and runs the images."""


@engine.command()
def ensure() -> None:
    """Use the engine that answers, else install and start one (ENGINE=none forbids that)."""
    info = engines.ensure(say)
    limit = engines.cache_limit() or "not told"
    say(f"Docker {info.version}, buildx {info.buildx}, store {info.storage_driver}")
    say(f"build cache kept: {limit}")


@gpucomm.command(name="test-image")
@target
@click.option("--only", metavar="EXPR", help="Run only the tests that match, as pytest's -k.")
def test_image(target: str, only: str | None) -> None:
    """Run the image tests against the local image of each cell, whatever was recorded."""
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
    project = projects.load()
    cell = select_one(project.matrix, target)
    info = engines.ensure(note)
    with closing(engines.client()) as client:
        builds.local_image(client, project, cell)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = [
        "docker", "run", "--rm", "--ipc=host", *(["--interactive", "--tty"] if terminal else []),
        *(["--gpus", "all"] if info.nvidia else []), project.reference(cell), *command,
    ]  # fmt: skip
    sys.stdout.flush()
    sys.exit(subprocess.run(argv, check=False).returncode)


@gpucomm.command()
@click.option("--bases", is_flag=True, help="Also forget the bootstrapped bases.")
@target
def clean(target: str, bases: bool) -> None:
    """Remove the local images of TARGET and its logs; nothing else of the engine is touched."""
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
    except (DockerException, requests.RequestException, HTTPError) as error:
        if debug:
            raise
        note(f"gpucomm: the engine did not answer ({error}); run gpucomm engine ensure, then again")
        sys.exit(Unusable.exit_code)
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
