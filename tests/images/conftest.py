"""Fixtures of the image tests: a container of the image, and what the matrix expects of it.

Expectations come from the matrix and its lock alone. `gpucomm build` and `gpucomm test-image` call
these tests with --image and --cell; without them they are not collected.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra

from gpucomm import engine, project
from gpucomm.cell import Cell
from gpucomm.project import Project
from gpucomm.selector import select_one

TIMEOUT = 300  # seconds for one command in a container


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a `docker run` of the image gave."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the matrix and the lock say of the cell under test."""

    project: Project
    cell: Cell

    @property
    def nccl_wheel(self) -> str | None:
        """Name of the NCCL wheel of the cell's line."""
        family = self.project.matrix.lines[self.cell.line].nccl_family
        return self.project.matrix.nccl_families[family].wheel if family else None

    @property
    def library_code(self) -> int:
        """Version of the cell's NCCL or RCCL as ncclGetVersion gives it (nccl.h: NCCL_VERSION)."""
        version = self.cell.nccl or self.cell.rccl or ""
        major, minor, patch = (int(part) for part in version.split("."))
        return major * 10000 + minor * 100 + patch

    @property
    def apt(self) -> set[str]:
        """The Debian packages that the cell's flavor and extras ask for."""
        extras = (self.project.matrix.extras[extra].apt for extra in self.cell.extras)
        return {
            *self.project.matrix.flavors[self.cell.flavor].apt,
            *(p for row in extras for p in row),
        }


Run = Callable[..., Ran]


def pytest_addoption(parser: pytest.Parser) -> None:
    """--image and --cell choose what is tested; --report gets the outcome as JSON."""
    parser.addoption("--image", help="digest or reference of the image to test")
    parser.addoption("--cell", help="id of the cell that the image must be")
    parser.addoption("--report", help="file that gets the outcome as JSON")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without --image there is nothing to test: `make test` collects the rest."""
    if collection_path.parent == Path(__file__).parent and not config.getoption("--image"):
        return True
    return None


class _Report:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Only the folder of the file goes: the name of a test may hold a path.
        file, _, test = report.nodeid.partition("::")
        name = f"{Path(file).name}::{test}"
        if report.failed:
            self.failed[name] = _reason(report)
        elif report.passed and report.when == "call":
            self.passed.append(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = "could not be collected"

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps({"passed": self.passed, "failed": self.failed}))


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(str(text).split())[:300]


def pytest_configure(config: pytest.Config) -> None:
    """Write the outcome where the builder reads it."""
    if path := config.getoption("--report"):
        config.pluginmanager.register(_Report(Path(path)), "gpucomm-report")


@pytest.fixture(scope="session")
def expected(pytestconfig: pytest.Config) -> Expected:
    """What the image must be."""
    loaded = project.load()
    return Expected(
        project=loaded, cell=select_one(loaded.matrix, pytestconfig.getoption("--cell"))
    )


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config) -> str:
    """Digest or reference of the image under test."""
    return str(pytestconfig.getoption("--image"))


@pytest.fixture(scope="session")
def config(image: str) -> Iterator[dict[str, Any]]:
    """The image's own configuration, as the engine tells it."""
    with closing(engine.client()) as client:
        yield client.api.inspect_image(image)


@pytest.fixture(scope="session")
def gpu() -> bool:
    """Whether this engine can hand a GPU to a container."""
    found = engine.probe()
    return found is not None and found.nvidia


@pytest.fixture(scope="session")
def container(image: str, gpu: bool) -> Iterator[str]:
    """A running container of the image, as its default user."""
    gpus = ["--gpus", "all"] if gpu else []
    argv = ["docker", "run", "--detach", "--rm", "--shm-size=1g", *gpus, image, "sleep", "infinity"]
    name = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    yield name
    subprocess.run(["docker", "kill", name], check=True, capture_output=True)


@pytest.fixture(scope="session")
def host(container: str) -> Any:
    """testinfra's view of that container."""
    return testinfra.get_host(f"docker://{container}")


@pytest.fixture(scope="session")
def root_host(container: str) -> Any:
    """The same as root, who may read every file."""
    return testinfra.get_host(f"docker://root@{container}")


@pytest.fixture(scope="session")
def run(image: str) -> Run:
    """`docker run` through the image's own entrypoint: run("python", "-c", …, options=[…])."""

    def _run(*command: str, options: Sequence[str] = ()) -> Ran:
        argv = ["docker", "run", "--rm", "--shm-size=1g", *options, image, *command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    return _run
