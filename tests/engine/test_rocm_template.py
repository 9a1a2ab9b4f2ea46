"""The ROCm Dockerfile template, built for real with the RCCL that Debian has.

No wheel of torch for ROCm lies on the default index, so a stand-in takes torch's place: a wheel
that carries Debian's librccl where torch's own wheels carry theirs, loads it on import, and tells
the HIP version that the library itself reports. Nothing else of torch is pretended. So the image
tests that need a tensor are left out, and each of the others is the real file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest
from jinja2 import Environment, FileSystemLoader
from tests.command import GPUCOMM, ROOT
from tests.wheelindex import TinyWheel

from gpucomm import base, buildsecrets, lock, matrix
from gpucomm import project as projects

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

REAL = projects.load(start=ROOT)
DEBIAN = REAL.matrix.systems["debian13"]
TIMEOUT = 420  # seconds for one command; a cold build is the longest
# No dash in the name of a line. What follows is what Debian's librccl1 says of itself.
LINE, TORCH, ROCM, RCCL, CODE = "debian.rccl", "0.1", "5.7", "2.13.4", 21304
OTHER_RCCL = "2.13.5"
LIBRARY = "librccl.so.1"

# ---------------------------------------------------------------- what the checkouts hold

# The registry is closed, so that only the bootstrapped base is left.
MATRIX = """\
version: 2
registry: 127.0.0.1:1/gpucomm
source: https://source.example/gpucomm
source_date_epoch: {epoch}
pytorch_index: https://wheels.example/whl
defaults: {{os: debian13, flavor: runtime}}
systems:
  debian13:
    distribution: debian
    release: {release}
    python: "{python}"
    glibc: "{glibc}"
    image: 127.0.0.1:1/debian:{release}
    base: bootstrap
    architectures: [amd64]
flavors:
  runtime: {{apt: {apt}, without: []}}
extras: {{}}
torch:
  "{torch}": {{python: ">=3.13", glibc: "2.28", triton_rocm: triton-rocm}}
nccl_families: {{}}
lines:
  {line}:
    accelerator: rocm
    rocm: "{rocm}"
    rccl: "{rccl}"
    environment: {{HSA_NO_SCRATCH_RECLAIM: "1"}}
    torch: {{"{torch}": {{}}}}
left_out: []
standard: [{{reason: the only cell there is}}]
aliases: {{}}
checks: {{{checks}}}
rules: {{}}
sources: {{debian: {{read: what librccl1 says of itself}}}}
with: []
tools: {tools}
holds: []
"""
# Those that need no tensor. `gpucomm build` must pass the whole folder.
IMAGE_TESTS = (
    "conftest.py", "test_contract.py", "test_entrypoint.py", "test_hygiene.py", "test_no_nccl.py",
    "test_rccl.py",
)  # fmt: skip
# Of test_users.py, what calls neither torch.distributed nor torchrun.
USERS = "test_users and not test_selftest_passes and not torchrun"

# ---------------------------------------------------------------- the stand-in for torch

# dlsym on a library also looks through those that it needs: hipRuntimeGetVersion is libamdhip64's.
STAND_IN = {
    "torch/__init__.py": f'''"""Not torch: Debian's RCCL where torch's wheels carry theirs."""

import ctypes
from pathlib import Path

rccl = ctypes.CDLL(str(Path(__file__).parent / "lib" / "{LIBRARY}"), mode=ctypes.RTLD_GLOBAL)

from torch import version
''',
    "torch/version.py": '''"""What the loaded library says."""

import ctypes

from torch import rccl

_number = ctypes.c_int()
assert rccl.hipRuntimeGetVersion(ctypes.byref(_number)) == 0
hip = "{}.{}.{}".format(
    _number.value // 10_000_000, _number.value // 100_000 % 100, _number.value % 100_000
)
''',
}  # fmt: skip

# No image comes of it: its files are written to a folder.
TAKE = """\
{% from "macros.j2" import secrets %}
FROM scratch AS system
ADD {{ tar }} /
FROM system AS taken
RUN {{ secrets(["ca", "apt", "apt-sources"]) }}    set -eu; \\
    export APT_CONFIG=/run/gpucomm/apt.conf; mkdir /deb /out; cd /deb; \\
    apt-get update -qq; apt-get download -qq librccl1; dpkg-deb -x *.deb .; \\
    dpkg-deb -f *.deb Depends >/out/depends; \\
    cp usr/lib/x86_64-linux-gnu/{{ library }} /out/
FROM scratch
COPY --from=taken /out/ /
"""


@dataclass(frozen=True, kw_only=True)
class Debians:
    """What Debian's librccl1 is: the library, and the packages that it needs."""

    library: Path
    needs: tuple[str, ...]


# ---------------------------------------------------------------- fixtures


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards: the ones of pytest stay, and this has a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="gpucomm-rocm-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def repository(engine_client: docker.DockerClient) -> Iterator[str]:
    """A registry name that only this module uses; its images are removed afterwards."""
    name = f"127.0.0.1:1/gpucomm-test-{secrets.token_hex(6)}"
    yield name
    for image in engine_client.api.images(name=name):
        for tag in image["RepoTags"]:
            engine_client.images.remove(tag, force=True)
    assert engine_client.api.images(name=name) == []


@pytest.fixture(scope="module")
def debians(engine_client: docker.DockerClient, folder: Path) -> Debians:
    """Debian's librccl, taken from its signed package in a container of its own release."""
    sources = buildsecrets.machine_apt_sources(DEBIAN.release, None)
    system = base.bootstrap(
        DEBIAN, "debian13", folder / "cache" / "bases", sources,
        REAL.matrix.source_date_epoch, print,
    )  # fmt: skip
    templates = Environment(  # noqa: S701  Dockerfiles are not HTML
        loader=FileSystemLoader(REAL.places.templates), trim_blocks=True, lstrip_blocks=True
    )
    recipe, out = folder / "Dockerfile", folder / "debians"
    recipe.write_text(templates.from_string(TAKE).render(tar=base.TAR, library=LIBRARY))
    lent = buildsecrets.gather(release=DEBIAN.release, ca=None, apt_mirror=None)
    with lent.on_disk() as files:
        done = subprocess.run(
            [
                "docker", "buildx", "build", "--progress=plain", "--file", str(recipe),
                *(f"--secret=id={name},src={path}" for name, path in files.items()),
                "--output", f"type=local,dest={out}", system.context,
            ],
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    needs = (out / "depends").read_text().split(",")
    return Debians(
        library=out / LIBRARY, needs=tuple(re.split(r"[ :(]", one.strip())[0] for one in needs)
    )


@pytest.fixture(scope="module")
def wheelhouse(folder: Path, debians: Debians) -> Path:
    """The folder with the stand-in for torch."""
    path = folder / "wheels"
    path.mkdir()
    tag = f"cp{DEBIAN.python.replace('.', '')}"
    files = STAND_IN | {f"torch/lib/{LIBRARY}": debians.library.read_bytes()}
    TinyWheel("torch", f"{TORCH}+{LINE}", tag=f"{tag}-{tag}-linux_x86_64", files=files).write(path)
    return path


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout with the real templates, self-test and image tests, and a matrix of one cell."""

    root: Path
    wheelhouse: Path
    repository: str
    rccl: str = RCCL

    @property
    def cell(self) -> str:
        return f"{LINE}-torch{TORCH}-rccl{self.rccl}"

    @property
    def image(self) -> str:
        return f"{self.repository}:{self.cell}"

    def gpucomm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the real command; its caches are gone with the folder."""
        environment = os.environ | {
            "REGISTRY": self.repository,
            "WHEELHOUSE": str(self.wheelhouse),
            "GPUCOMM_CACHE": str(self.root.parent / "cache"),
            "ENGINE": "none",
            "UV_CACHE_DIR": str(self.root.parent / "uv"),
        }
        return subprocess.run(
            [str(GPUCOMM), *arguments], cwd=self.root, env=environment, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip

    def run(self, *command: str) -> str:
        """What a command in the image prints."""
        argv = ["docker", "run", "--rm", "--network=none", self.image, *command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    def outcome(self) -> dict[str, list[str]]:
        """Names of the image tests that passed and failed in the last run."""
        report = self.root / ".gpucomm" / "logs" / f"{self.cell}.verify.json"
        return {key: sorted(names) for key, names in json.loads(report.read_text()).items()}

    def prepared(self, debians: Debians) -> Checkout:
        """Fill the folder and lock the cell, with the tools as this project's lock has them."""
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("templates", "selftest"):
            shutil.copytree(ROOT / name, self.root / name, ignore=ignored)
        (self.root / "tests" / "images").mkdir(parents=True)
        for name in ("pyproject.toml", *(f"tests/images/{file}" for file in IMAGE_TESTS)):
            shutil.copyfile(ROOT / name, self.root / name)
        check = "{reason: it is not asked here, source: debian}"
        text = MATRIX.format(
            epoch=REAL.matrix.source_date_epoch, release=DEBIAN.release, python=DEBIAN.python,
            glibc=DEBIAN.glibc, apt=json.dumps(debians.needs), torch=TORCH, line=LINE, rocm=ROCM,
            rccl=self.rccl, tools=json.dumps(REAL.matrix.tools),
            checks=", ".join(f"{name}: {check}" for name in REAL.matrix.checks),
        )  # fmt: skip
        (self.root / matrix.FILE).write_text(text)
        tools = {DEBIAN.python: REAL.lock.tools[DEBIAN.python]}
        lock.write(self.root / lock.FILE, lock.Lock(cells={}, tools=tools, bases={}))
        locked = self.gpucomm("lock")
        assert locked.returncode == 0, locked.stdout + locked.stderr
        return self


@pytest.fixture(scope="module")
def built(folder: Path, wheelhouse: Path, debians: Debians, repository: str) -> Checkout:
    """The checkout in which `gpucomm build` made and verified the image."""
    checkout = Checkout(root=folder / "checkout", wheelhouse=wheelhouse, repository=repository)
    done = checkout.prepared(debians).gpucomm("build", checkout.cell)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


# ---------------------------------------------------------------- the image


def test_the_build_verified_its_rccl(built: Checkout) -> None:
    outcome = built.outcome()
    assert outcome["failed"] == []
    assert [name for name in outcome["passed"] if name.startswith("test_rccl.py")] == [
        "test_rccl.py::test_loaded_version",
        "test_rccl.py::test_one_librccl_is_mapped",
        "test_rccl.py::test_torch_is_built_for_this_rocm",
    ]
    assert {name.split("::")[0] for name in outcome["passed"]} == {
        name for name in IMAGE_TESTS if name.startswith("test_")
    }


def test_its_only_librccl_is_debians(built: Checkout, debians: Debians) -> None:
    code = (
        "import ctypes, torch; number = ctypes.c_int(); "
        "assert torch.rccl.ncclGetVersion(ctypes.byref(number)) == 0; "
        "print(number.value, torch.version.hip)"
    )
    version, hip = built.run("python", "-c", code).split()
    assert (int(version), hip.split(".")[:2]) == (CODE, ROCM.split("."))
    path = f"/opt/venv/lib/python{DEBIAN.python}/site-packages/torch/lib/{LIBRARY}"
    assert built.run("sh", "-c", "find / -xdev -name 'librccl*' 2>/dev/null; true") == path
    with debians.library.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    assert built.run("sha256sum", path).split()[0] == digest


def test_the_user_is_in_the_groups_of_the_devices(built: Checkout) -> None:
    assert built.run("id", "-un") == "gpucomm"
    assert set(built.run("id", "-Gn").split()) == {"gpucomm", "video", "render"}


def test_the_environment_of_the_line_is_in_the_image(built: Checkout) -> None:
    assert built.run("printenv", "HSA_NO_SCRATCH_RECLAIM") == "1"


def test_the_labels_name_the_rccl(built: Checkout, engine_client: docker.DockerClient) -> None:
    labels = engine_client.images.get(built.image).labels
    wanted = {"cell": built.cell, "line": LINE, "rocm": ROCM, "rccl": RCCL}
    assert {name: labels.get(f"io.gpucomm.{name}") for name in wanted} == wanted
    assert {"io.gpucomm.cuda", "io.gpucomm.nccl"}.isdisjoint(labels)
    assert labels["org.opencontainers.image.description"] == f"PyTorch {TORCH} with RCCL {RCCL}"


def test_it_works_for_its_users(built: Checkout) -> None:
    file = "tests/images/test_users.py"
    shutil.copyfile(ROOT / file, built.root / file)
    done = built.gpucomm("test-image", built.cell, "--only", USERS)
    assert done.returncode == 0, done.stderr
    passed = built.outcome()["passed"]
    names = ("test_default_user_is_not_root", "test_unknown_user_has_a_name")
    assert {f"test_users.py::{name}" for name in names} < set(passed)
    assert len(passed) > 10  # these, and each command from each folder


def test_another_rccl_than_the_matrix_says_is_found(
    built: Checkout, folder: Path, debians: Debians
) -> None:
    """The same library, a matrix that names another version: the build fails and tags nothing."""
    planted = replace(built, root=folder / "planted", rccl=OTHER_RCCL).prepared(debians)
    done = planted.gpucomm("build", planted.cell)
    assert done.returncode == 1, done.stdout + done.stderr
    assert planted.outcome()["failed"] == ["test_rccl.py::test_loaded_version"]
    assert f"FAILED  {planted.cell}: test_rccl.py::test_loaded_version: " in done.stdout
    assert f"the image is kept as {planted.repository}:unverified-{planted.cell}" in done.stdout
    assert f"{planted.image} is not here" in planted.gpucomm("test-image", planted.cell).stderr
