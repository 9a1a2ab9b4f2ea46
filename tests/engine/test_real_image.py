"""Faults planted in the real cu121 images, and what people build on top of them.

The images are the real ones; each fault is a small layer on top, tagged by hand under a registry
name of the test. Everything that a test tags is removed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.command import GPUCOMM, ROOT
from tests.command import gpucomm as run
from tests.wheelindex import TinyWheel

from gpucomm import buildsecrets, engine
from gpucomm import project as projects
from gpucomm.selector import select_one
from gpucomm.standard import cells_of

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

PROJECT = projects.load(start=ROOT)
CELL = select_one(PROJECT.matrix, "cu121")
OTHER = next(
    cell
    for cell in cells_of(PROJECT.matrix)
    if (cell.line, cell.torch) == (CELL.line, CELL.torch) and cell.nccl_overridden
)
BUNDLED, OVERRIDDEN = CELL.id, OTHER.id
NCCL = PROJECT.matrix.nccl_families[PROJECT.matrix.lines[CELL.line].nccl_family or ""].wheel
SITE = f"/opt/venv/lib/python{CELL.python}/site-packages"

Child = Callable[..., str]


@pytest.fixture(scope="module")
def overridden_image(real_image: str) -> str:
    """The cell whose NCCL is not torch's own: one more layer than `real_image`."""
    built = run("build", OVERRIDDEN)
    assert built.returncode == 0, built.stdout + built.stderr
    return run("image", OVERRIDDEN).stdout.strip()


@pytest.fixture
def repository() -> Iterator[str]:
    """A registry name that only this test uses; its local tags are removed afterwards."""
    name = f"127.0.0.1:1/gpucomm-{secrets.token_hex(6)}"
    yield name
    with closing(engine.client()) as client:
        for image in client.api.images(name=name):
            for tag in image["RepoTags"]:
                client.images.remove(tag, force=True)


@pytest.fixture
def child(tmp_path: Path, repository: str) -> Child:
    """Build `FROM image` + lines under a tag; fails the test with the build's output."""

    def build(image: str, lines: str, tag: str, ok: bool = True) -> str:
        (tmp_path / "Dockerfile").write_text(f"FROM {image}\n{lines}")
        lent = buildsecrets.gather(release="bookworm", ca=None, apt_mirror=None)
        with lent.on_disk() as files:
            done = subprocess.run(
                [
                    "docker", "buildx", "build", "--progress=plain",
                    "--provenance=false", "--load",
                    *(f"--secret=id={name},src={path}" for name, path in files.items()),
                    "--tag", f"{repository}:{tag}", str(tmp_path),
                ],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert (done.returncode == 0) == ok, done.stderr
        return f"{repository}:{tag}" if ok else done.stderr

    return build


def failed_tests(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The files of the image tests that `gpucomm test-image` reported as failed."""
    lines = [line.split(": ") for line in done.stderr.splitlines() if ".py::" in line]
    return {parts[2].split("::")[0] for parts in lines}


def test_building_again_does_nothing(real_image: str) -> None:
    done = run("build", "cu121")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith(f"{BUNDLED} "))
    assert "up to date" in row
    assert "verify" not in done.stdout


def test_another_nccl_fails_the_nccl_tests_and_no_others(real_image: str, repository: str) -> None:
    """The image with the bundled NCCL, tagged by hand as the cell of the override."""
    with closing(engine.client()) as client:
        client.images.get(real_image).tag(repository, OVERRIDDEN)
    done = run("test-image", OVERRIDDEN, REGISTRY=repository)
    assert done.returncode == 1
    assert failed_tests(done) == {"test_nccl.py"}
    assert "test_loaded_version: " in done.stderr.replace("AssertionError: ", "")


def test_a_second_dist_info_fails(real_image: str, child: Child, repository: str) -> None:
    stem = f"{SITE}/{NCCL.replace('-', '_')}"
    copy = f"cp -r {stem}-{CELL.nccl}.dist-info {stem}-1.0.dist-info"
    rename = f"sed -i 's/^Version: .*/Version: 1.0/' {stem}-1.0.dist-info/METADATA"
    child(real_image, f"USER root\nRUN {copy} && {rename}\nUSER 1000:1000\n", BUNDLED)
    done = run("test-image", BUNDLED, REGISTRY=repository)
    assert done.returncode == 1
    # The second is the self-test's own: two packages claim one library (GC0126).
    assert failed_tests(done) == {"test_nccl.py", "test_collectives.py"}
    assert "test_one_dist_info_of_that_version" in done.stderr


def test_an_import_that_prints_fails(real_image: str, child: Child, repository: str) -> None:
    line = "import sys; print('noise', file=sys.stderr)"
    script = f'sed -i "1i {line}" {SITE}/torch/version.py && rm {SITE}/torch/__pycache__/version.*'
    child(real_image, f"USER root\nRUN {script}\nUSER 1000:1000\n", BUNDLED)
    done = run("test-image", BUNDLED, "--only", "test_torch", REGISTRY=repository)
    assert done.returncode == 1
    assert "test_import_is_silent" in done.stderr


# ---------------------------------------------------------------- child images


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A package that depends on torch, and the NCCL that torch's own metadata would put back."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    TinyWheel(
        "needs-torch", "1.0", requires=("torch>=2",), files={"needs_torch.py": "import torch\n"}
    ).write(folder)
    TinyWheel(NCCL, str(CELL.nccl), files={"nvidia/nccl/lib/libnccl.so.2": "no ELF"}).write(folder)
    return folder


INSTALL = """COPY wheels /wheels
USER root
RUN {prefix} uv pip install --no-index --find-links /wheels needs-torch
USER 1000:1000
"""


def nccl_of(image: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{NCCL}'))"
    argv = ["docker", "run", "--rm", image, "python", "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_uv_in_a_child_image_keeps_the_cells_nccl(
    overridden_image: str, child: Child, wheels: Path, repository: str
) -> None:
    image = child(overridden_image, INSTALL.format(prefix=""), OVERRIDDEN)
    assert nccl_of(image) == OTHER.nccl
    done = run("test-image", OVERRIDDEN, "--only", "nccl", REGISTRY=repository)
    assert done.returncode == 0, done.stderr


def test_without_the_pins_the_bundled_nccl_would_come_back(
    overridden_image: str, child: Child, wheels: Path
) -> None:
    """The control arm: what the environment of the image prevents does happen without it."""
    bare = "env -u UV_OVERRIDE -u UV_CONSTRAINT"
    image = child(overridden_image, INSTALL.format(prefix=bare), "bare")
    assert nccl_of(image) == CELL.nccl


def test_pip_in_a_child_image_refuses_to_replace_nccl(
    overridden_image: str, child: Child, wheels: Path
) -> None:
    lines = """COPY wheels /wheels
USER root
RUN --mount=type=secret,id=env --mount=type=secret,id=ca,target=/run/gpucomm/ca.crt \\
    if [ -s /run/secrets/env ]; then . /run/secrets/env; fi; uv pip install --quiet pip
RUN pip install --no-index --find-links /wheels needs-torch
"""
    said = child(overridden_image, lines, "pip", ok=False)
    assert "ResolutionImpossible" in said
    assert NCCL in said


# ---------------------------------------------------------------- other cells and interrupts


def test_a_cpu_cell_is_built_from_a_wheelhouse() -> None:
    folders = os.environ.get("WHEELHOUSE") or os.environ.get("PIP_FIND_LINKS", "")
    locked = {
        cell: next(wheel.file for wheel in PROJECT.wheels(cell) if wheel.name == "torch")
        for cell in cells_of(PROJECT.matrix)
        if cell.line == "cpu" and PROJECT.wheels(cell)
    }
    served = [
        (cell.id, folder)
        for cell, file in locked.items()
        for folder in folders.split()
        if (Path(folder) / file).is_file()
    ]
    if not served:
        pytest.skip(f"name a wheelhouse in WHEELHOUSE with one of {', '.join(locked.values())}")
    cell, folder = served[0]
    built = run("build", cell, WHEELHOUSE=folder)
    assert built.returncode == 0, built.stdout + built.stderr
    tested = run("selftest", cell)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "gloo" in tested.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_build_and_its_children(
    real_image: str, repository: str, number: signal.Signals
) -> None:
    """An unknown registry name makes the export start over; the interrupt comes in the middle."""
    process = subprocess.Popen(
        [str(GPUCOMM), "build", "cu121"],
        cwd=ROOT,
        env=os.environ | {"REGISTRY": repository},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until(lambda: bool(_children(process.pid)), "buildx was started")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        # Left running, its pipes would fail another test.
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in err
    assert _children(process.pid) == []
    with closing(engine.client()) as client:
        tags = [tag for image in client.api.images(name=repository) for tag in image["RepoTags"]]
    assert f"{repository}:{BUNDLED}" not in tags


def test_an_interrupt_of_the_image_tests_leaves_no_container(
    real_image: str, repository: str
) -> None:
    with closing(engine.client()) as client:
        image = client.images.get(real_image)
        image.tag(repository, BUNDLED)
        of_image: dict[str, str | list[str] | bool] = {"ancestor": str(image.id)}
        before = {c.id for c in client.containers.list(filters=of_image)}
        process = subprocess.Popen(
            [str(GPUCOMM), "test-image", BUNDLED, "--only", "contract"],
            cwd=ROOT,
            env=os.environ | {"REGISTRY": repository},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

        def ours() -> set[str]:
            found = client.containers.list(filters=of_image)
            return {c.id for c in found if c.id} - before

        try:
            _wait_until(lambda: bool(ours()), "the image tests started a container")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 130, err
        _wait_until(lambda: not ours(), "the container was removed")


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def _children(parent: int) -> list[int]:
    """Processes named buildx that descend from `parent`, or did and were left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            status = (entry / "status").read_text()
        except OSError:
            continue
        if b"buildx" in command and f"\nPPid:\t{parent}\n" in status and b"bake" in command:
            found.append(int(entry.name))
    return found
