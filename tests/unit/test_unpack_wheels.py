"""templates/files/unpack-wheels: what a build step leaves in /out, with the real uv and an index.

The script runs here with its paths below a folder of the test; everything else of it is as it is.
"""

from __future__ import annotations

import marshal
import os
import platform
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.wheelindex import ChangedBytes, Fault, Index, NotFound, TinyWheel, Truncated, serve
from uv import find_uv_bin

SCRIPT = Path(__file__).resolve().parents[2] / "templates" / "files" / "unpack-wheels"
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
CLOSED = "http://127.0.0.1:9/whl"

NUMPY = TinyWheel("numpy", "1.26.4", files={"numpy/__init__.py": "NAME = 'numpy'\n"})
NEW_NUMPY = TinyWheel("numpy", "2.4.6")
NCCL = TinyWheel("nvidia-nccl-cu12", "2.20.5")
NEW_NCCL = TinyWheel("nvidia-nccl-cu12", "2.21.5")
TORCH = TinyWheel(
    "torch",
    "2.4.1+rocm6.1",
    ("numpy", "nvidia-nccl-cu12==2.20.5", "triton-rocm==3.0.0"),
    files={"torch/__init__.py": "VERSION = '2.4.1'\n"},
)
TRITON = TinyWheel("triton-rocm", "3.0.0")
PAGES = ("--page=rocm6.1/torch/", "--page=rocm6.1/triton-rocm/")


class Step:
    """The script in a folder that has what a build step has: a venv, uv, secrets, requirements."""

    def __init__(self, root: Path) -> None:
        self.venv, self.out, self.run = root / "opt/venv", root / "out", root / "run/gpucomm"
        self.run.mkdir(parents=True)
        venv.create(self.venv, with_pip=False, symlinks=True)
        tool = root / "opt/tool/bin"
        tool.mkdir(parents=True)
        (tool / "uv").symlink_to(find_uv_bin())
        here, found = re.subn(
            r"/opt/tool|/opt/venv|/run/gpucomm|/out\b",
            lambda path: f"{root}{path[0]}",
            SCRIPT.read_text(),
        )
        assert found > 5
        self._script = root / "unpack-wheels"
        self._script.write_text(here)
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "home"),
            "UV_CACHE_DIR": str(root / "uv"),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_RETRIES": "0",
        }

    def secret(self, **values: str) -> None:
        """The build secret `env`: what this machine lends to the step."""
        lines = (f"export {name}='{value}'\n" for name, value in values.items())
        (self.run / "env").write_text("".join(lines))

    def require(self, *lines: str) -> None:
        """The requirement file of a locked layer."""
        (self.run / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))

    def ask(self, *, unlocked: str, overrides: str = "", constraints: str = "") -> None:
        """The three files of a cell that is not locked."""
        folder = self.run / "requirements"
        folder.mkdir()
        for name, text in (
            ("unlocked", unlocked), ("overrides", overrides), ("constraints", constraints)
        ):  # fmt: skip
            (folder / f"{name}.txt").write_text(f"{text}\n" if text else "")

    def __call__(self, *words: str, default: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(self._script), *words],
            env=self._environ | ({"PYTORCH_INDEX_DEFAULT": default} if default else {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def installed(self) -> dict[str, str]:
        """Package and version of what lies in /out."""
        names = (path.name for path in (self.out / SITE).glob("*.dist-info"))
        pairs = (name.removesuffix(".dist-info").split("-") for name in names)
        return {name.replace("_", "-"): version for name, version in pairs}


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


@pytest.fixture
def index() -> Iterator[Index]:
    """numpy and NCCL on the default index, torch and its Triton on pages of their own."""
    folders = {"simple": [NUMPY, NEW_NUMPY, NCCL, NEW_NCCL], "whl/rocm6.1": [TORCH, TRITON]}
    with serve(folders) as served:
        yield served


def pin(wheel: TinyWheel, *others: str, marker: str = "") -> str:
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in (wheel.sha256, *others))
    return f"{wheel.name}=={wheel.version}{marker} {hashes}"


# ---------------------------------------------------------------- locked


def test_what_is_locked_is_unpacked_and_nothing_beside_it(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(NUMPY, "ab" * 32), pin(NEW_NCCL))
    done = step()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert step.installed() == {"numpy": "1.26.4", "nvidia-nccl-cu12": "2.21.5"}
    assert sorted(path.name for path in step.out.iterdir()) == ["lib"]
    assert not list((step.venv / SITE).glob("*.dist-info"))


def test_byte_code_is_there_that_depends_on_no_file_time_and_tells_the_final_path(
    step: Step, index: Index
) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(NUMPY))
    assert step().returncode == 0
    (found,) = (step.out / SITE / "numpy" / "__pycache__").iterdir()
    data = found.read_bytes()
    assert int.from_bytes(data[4:8], "little") == 1  # by hash, not checked at import
    code = marshal.loads(data[16:])  # noqa: S302  our own
    assert code.co_filename == str(step.venv / SITE / "numpy" / "__init__.py")


def test_a_module_for_another_python_is_left_without_byte_code(step: Step) -> None:
    wheel = TinyWheel("odd", "1.0", files={"odd/new.py": "this is no Python\n", "odd/old.py": ""})
    with serve({"simple": [wheel]}) as index:
        step.secret(UV_DEFAULT_INDEX=index.url())
        step.require(pin(wheel))
        done = step()
    assert done.returncode == 0
    assert "left without byte code" in done.stdout
    names = [path.name for path in (step.out / SITE / "odd" / "__pycache__").iterdir()]
    assert [name.split(".")[0] for name in names] == ["old"]


def test_a_pin_of_another_machine_is_left_out(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    other = "s390x" if platform.machine() != "s390x" else "aarch64"
    step.require(
        pin(NUMPY, marker=f" ; platform_machine == '{platform.machine()}'"),
        pin(NCCL, marker=f" ; platform_machine == '{other}'"),
    )
    assert step().returncode == 0
    assert step.installed() == {"numpy": "1.26.4"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ChangedBytes(), "Hash mismatch"),
        (Truncated(), "end of file before message length"),
        (NotFound(), "404"),
    ],
    ids=["changed", "cut", "gone"],
)
def test_a_file_that_is_not_the_locked_one_ends_the_step(
    step: Step, index: Index, fault: Fault, says: str
) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(NUMPY))
    with index.fault("numpy", fault) as planted:
        done = step()
    assert planted.hits
    assert done.returncode != 0
    assert says in done.stderr
    assert not (step.out / SITE / "numpy").exists()


def test_a_pin_without_a_hash_is_refused(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require("numpy==1.26.4")
    done = step()
    assert done.returncode != 0
    assert "hash" in done.stderr
    assert step.installed() == {}


def test_the_cache_of_the_build_is_used_where_there_is_one(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(NUMPY))
    (step.run / "cache").mkdir()
    assert step().returncode == 0
    assert list((step.run / "cache").iterdir())


def test_the_wheel_of_the_self_test_needs_no_index(step: Step, tmp_path: Path) -> None:
    wheel = TinyWheel("selftest", "0.1.0", ("numpy",))
    path = tmp_path / wheel.file
    path.write_bytes(wheel.content())
    done = step("--no-index", "--no-cache", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert step.installed() == {"selftest": "0.1.0"}


# ---------------------------------------------------------------- pages of the PyTorch index


def test_a_page_is_read_at_the_default_index_of_wheels(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(TORCH), pin(TRITON))
    done = step(*PAGES, default=index.url("whl"))
    assert (done.returncode, done.stderr) == (0, "")
    assert step.installed() == {"torch": "2.4.1+rocm6.1", "triton-rocm": "3.0.0"}


def test_a_mirror_takes_the_place_of_the_default_index_of_wheels(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url(), PYTORCH_INDEX=index.url("whl"))
    step.require(pin(TORCH))
    assert step(*PAGES, default=CLOSED).returncode == 0
    assert step.installed() == {"torch": "2.4.1+rocm6.1"}


def test_without_its_page_a_wheel_is_not_found(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url(), PYTORCH_INDEX=index.url("whl"))
    step.require(pin(TORCH))
    done = step(default=CLOSED)
    assert done.returncode != 0
    assert "torch" in done.stderr


@pytest.fixture
def wheelhouse(step: Step) -> Path:
    folder = step.run / "wheelhouse"
    folder.mkdir()
    return folder


def test_a_wheelhouse_takes_the_place_of_every_page(
    step: Step, index: Index, wheelhouse: Path
) -> None:
    (wheelhouse / TORCH.file).write_bytes(TORCH.content())
    (wheelhouse / TRITON.file).write_bytes(TRITON.content())
    step.secret(UV_DEFAULT_INDEX=index.url(), PYTORCH_INDEX=index.url("whl"))
    step.require(pin(TORCH), pin(TRITON), pin(NUMPY))
    assert step(*PAGES, default=CLOSED).returncode == 0
    assert step.installed() == {
        "numpy": "1.26.4", "torch": "2.4.1+rocm6.1", "triton-rocm": "3.0.0",
    }  # fmt: skip
    assert not any(request.path.startswith("/whl/") for request in index.requests)


def test_a_wheelhouse_is_held_to_the_hashes_as_well(
    step: Step, index: Index, wheelhouse: Path
) -> None:
    (wheelhouse / TORCH.file).write_bytes(TORCH.content(year=1981))
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(TORCH))
    done = step(*PAGES, default=CLOSED)
    assert done.returncode != 0
    assert "ash" in done.stderr


def test_an_empty_wheelhouse_changes_nothing(step: Step, index: Index, wheelhouse: Path) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.require(pin(TORCH))
    assert step(*PAGES, default=index.url("whl")).returncode == 0
    assert step.installed() == {"torch": "2.4.1+rocm6.1"}


# ---------------------------------------------------------------- a cell that is not locked


def test_unlocked_is_resolved_with_the_nccl_and_the_holds_of_the_matrix(
    step: Step, index: Index
) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.ask(
        unlocked="torch==2.4.1+rocm6.1",
        overrides="nvidia-nccl-cu12==2.21.5",
        constraints="numpy<2",
    )
    done = step("--unlocked", *PAGES, default=index.url("whl"))
    assert (done.returncode, done.stderr) == (0, "")
    assert step.installed() == {
        "torch": "2.4.1+rocm6.1",
        "triton-rocm": "3.0.0",
        "nvidia-nccl-cu12": "2.21.5",
        "numpy": "1.26.4",
    }
    assert (step.out / SITE / "torch" / "__pycache__").is_dir()


def test_unlocked_without_anything_to_override_takes_what_torch_requires(
    step: Step, index: Index
) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.ask(unlocked="torch==2.4.1+rocm6.1")
    assert step(*PAGES, "--unlocked", default=index.url("whl")).returncode == 0
    found = step.installed()
    assert (found["nvidia-nccl-cu12"], found["numpy"]) == ("2.20.5", "2.4.6")


def test_unlocked_without_a_solution_ends_the_step(step: Step, index: Index) -> None:
    step.secret(UV_DEFAULT_INDEX=index.url())
    step.ask(unlocked="torch==2.4.2+rocm6.1")
    done = step("--unlocked", *PAGES, default=index.url("whl"))
    assert done.returncode != 0
    assert "No solution found" in done.stderr
