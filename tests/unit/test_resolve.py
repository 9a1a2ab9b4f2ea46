"""resolve.py: the call of uv, against a folder of tiny wheels and without any index."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.wheelindex import NotFound, Stalled, TinyWheel, TooMany, Unauthorized, serve

from gpucomm import lock as locks
from gpucomm import registry, resolve
from gpucomm.cell import Cell
from gpucomm.lock import EMPTY, Lock, Wheel
from gpucomm.registry import Reachable
from gpucomm.schema import Architecture, Matrix
from gpucomm.standard import cells_of, on_demand

T22, T24 = "cu121-torch2.2.2-nccl2.19.3-py3.11", "cu121-torch2.4.1-nccl2.20.5-py3.11"
OVERRIDDEN = "cu121-torch2.4.1-nccl2.21.5-py3.11"
CPU, ROCM = "cpu-torch2.13.0-py3.11", "rocm6.1-torch2.4.1-rccl2.18.6-py3.11"
ARCHITECTURES: tuple[Architecture, ...] = ("amd64", "arm64")
NEW = "cu130-torch2.13.0-nccl2.29.7-py3.11"


class Wheels:
    """A folder of wheels that have nothing inside but their metadata."""

    beside: Wheels
    """What WHEELHOUSE names; uv sees it only then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(
        self, name: str, version: str, requires: Sequence[str] = (), tag: str = "py3-none-any"
    ) -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        rows = [f"Requires-Dist: {requirement}\n" for requirement in requires]
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        texts = {
            "METADATA": head + "".join(rows),
            "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
            "RECORD": "",
        }
        path = self.folder / f"{stem}-{tag}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in texts.items():
                wheel.writestr(zipfile.ZipInfo(f"{stem}.dist-info/{file}"), text)
        return path


@pytest.fixture
def wheels(tmp_path: Path, bare_env: pytest.MonkeyPatch) -> Wheels:
    """Wheels that solve every cell of the small matrix; uv sees them and nothing else."""
    folder = Wheels(tmp_path / "wheels")
    config = tmp_path / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{folder.folder}"]\n')
    bare_env.setenv("UV_CONFIG_FILE", str(config))
    bare_env.setenv("UV_OFFLINE", "1")
    bare_env.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    cuda = ["nvidia-cuda-runtime-cu12==12.1.105", "nvidia-nvjitlink-cu12", "filelock"]
    folder.add("torch", "2.2.2", ["nvidia-nccl-cu12==2.19.3", *cuda])
    folder.add("torch", "2.4.1", ["nvidia-nccl-cu12==2.20.5", *cuda])
    folder.beside = Wheels(tmp_path / "wheelhouse")
    folder.beside.add("torch", "2.13.0+cpu", ["filelock"], tag="cp311-cp311-manylinux_2_28_x86_64")
    for version in ("2.19.3", "2.20.5", "2.21.5"):
        folder.add("nvidia-nccl-cu12", version, tag="py3-none-manylinux1_x86_64")
    folder.add("torchvision", "0.17.2", ["torch==2.2.2"])
    folder.add("torchvision", "0.19.1", ["torch==2.4.1"])
    for machine in ("x86_64", "aarch64"):
        requires = ["nvidia-nccl-cu13==2.29.7", "nvidia-cuda-runtime", "filelock"]
        folder.add("torch", "2.13.0", requires, tag=f"cp311-cp311-manylinux_2_28_{machine}")
        folder.add("nvidia-nccl-cu13", "2.29.7", tag=f"py3-none-manylinux_2_18_{machine}")
    folder.add("nvidia-cuda-runtime", "13.0.96")
    folder.add("nvidia-cuda-runtime-cu12", "12.1.105")
    for version in ("12.1.105", "12.9.86"):
        folder.add("nvidia-nvjitlink-cu12", version)
    for version in ("1.26.4", "2.4.6"):
        folder.add("numpy", version)
    for name in ("filelock", "uv", "flit-core"):
        folder.add(name, "1.0")
    return folder


@pytest.fixture
def one(small: Matrix) -> list[Cell]:
    """The cells of one torch: with its own NCCL, and with the other."""
    return [cell for cell in cells_of(small) if cell.pins_id in (T24, OVERRIDDEN)][:2]


def attempt(
    matrix: Matrix,
    cells: Sequence[Cell],
    before: Lock = EMPTY,
    *,
    said: list[str] | None = None,
    upgrade: bool = False,
    wheelhouse: Path | None = None,
    pytorch_index: str | None = None,
) -> tuple[Lock, list[str]]:
    """`resolve` without bases; the PyTorch index is a closed port unless a test names one."""
    options = resolve.Options(
        upgrade=upgrade,
        wheelhouse=wheelhouse,
        pytorch_index=pytorch_index or "http://127.0.0.1:9",
    )
    say = said.append if said is not None else lambda _: None
    return resolve.resolve(matrix, before, cells, options, {}, say)


def resolved(
    matrix: Matrix,
    cells: Sequence[Cell],
    before: Lock = EMPTY,
    *,
    said: list[str] | None = None,
    upgrade: bool = False,
    wheelhouse: Path | None = None,
) -> Lock:
    """The lock of an attempt in which everything was found."""
    lock, faults = attempt(matrix, cells, before, said=said, upgrade=upgrade, wheelhouse=wheelhouse)
    assert faults == []
    return lock


def worked(said: Sequence[str]) -> set[str]:
    """The keys that uv was called for."""
    return {line.split()[2].removesuffix(":") for line in said if line.startswith("lock ")}


def versions(lock: Lock, key: str) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.cells[key]}


def test_every_cell_gets_its_own_torch_and_nccl_and_keeps_the_rules(
    wheels: Wheels, small: Matrix
) -> None:
    said: list[str] = []
    lock = resolved(small, cells_of(small), wheelhouse=wheels.beside.folder, said=said)
    assert list(locks.faults_of(small, lock)) == []
    assert versions(lock, T22) == {
        "filelock": "1.0",
        "numpy": "1.26.4",
        "nvidia-cuda-runtime-cu12": "12.1.105",
        "nvidia-nccl-cu12": "2.19.3",
        "nvidia-nvjitlink-cu12": "12.1.105",
        "torch": "2.2.2",
    }
    assert versions(lock, T24)["numpy"] == "2.4.6"
    assert versions(lock, OVERRIDDEN) == versions(lock, T24) | {"nvidia-nccl-cu12": "2.21.5"}
    assert versions(lock, CPU) == {"filelock": "1.0", "numpy": "2.4.6", "torch": "2.13.0+cpu"}
    assert versions(lock, f"{T24}-torchvision")["torchvision"] == "0.19.1"
    assert versions(lock, NEW)["nvidia-nccl-cu13"] == "2.29.7"
    assert [wheel.name for wheel in lock.tools["3.11"]] == ["flit-core", "uv"]
    assert lock.unlocked.keys() == {ROCM}
    assert lock.aliases == small.aliases
    assert worked(said) == {*lock.cells, "tools"}


def test_each_platform_has_its_own_files(wheels: Wheels, small: Matrix) -> None:
    cells = [cell for cell in cells_of(small) if cell.line == "cu130"]
    lock = resolved(small, cells)
    files = {
        arch: {w.file for w in lock.wheels(cells[0], small, arch) if w.name == "nvidia-nccl-cu13"}
        for arch in ARCHITECTURES
    }
    assert files == {
        "amd64": {"nvidia_nccl_cu13-2.29.7-py3-none-manylinux_2_18_x86_64.whl"},
        "arm64": {"nvidia_nccl_cu13-2.29.7-py3-none-manylinux_2_18_aarch64.whl"},
    }
    assert lock.tools.keys() == {"3.11", "3.11-arm64"}


# ---------------------------------------------------------------- an index that cannot be had


def test_an_index_that_cannot_be_reached_leaves_its_cells_unlocked_and_the_rest_goes_on(
    wheels: Wheels, small: Matrix
) -> None:
    lock, faults = attempt(small, cells_of(small))
    assert faults == []
    assert lock.unlocked == {
        key: f"the PyTorch index of {line} could not be reached when this was locked"
        for key, line in ((ROCM, "rocm6.1"), (CPU, "cpu"))
    }
    assert {T22, T24, OVERRIDDEN, NEW} <= lock.cells.keys()
    assert list(locks.faults_of(small, lock)) == []
    assert "127.0.0.1" not in str(lock)


def test_what_was_locked_stays_when_its_index_cannot_be_reached_any_more(
    wheels: Wheels, small: Matrix
) -> None:
    first = resolved(small, cells_of(small), wheelhouse=wheels.beside.folder)
    for upgrade in (False, True):
        again, faults = attempt(small, cells_of(small), first, upgrade=upgrade)
        assert faults == []
        assert again.cells[CPU] == first.cells[CPU]
        assert again.unlocked.keys() == {ROCM}


def test_a_cell_is_locked_once_its_index_can_be_reached(wheels: Wheels, small: Matrix) -> None:
    before, _ = attempt(small, cells_of(small))
    lock = resolved(small, cells_of(small), before, wheelhouse=wheels.beside.folder)
    assert CPU in lock.cells
    assert lock.unlocked.keys() == {ROCM}


def test_a_page_that_an_index_does_not_have_is_said(small: Matrix, wheels: Wheels) -> None:
    cells = [cell for cell in cells_of(small) if cell.line == "rocm6.1"]
    with serve({"whl/cpu": [TinyWheel("torch", "2.13.0+cpu")]}) as index:
        lock, faults = attempt(small, cells, pytorch_index=index.url("whl"))
    assert faults == []
    said = "the PyTorch index has no page for rocm6.1 when this was locked"
    assert lock.unlocked == {ROCM: said}


def test_a_mirror_of_the_pytorch_index_serves(
    small: Matrix, wheels: Wheels, bare_env: pytest.MonkeyPatch
) -> None:
    bare_env.delenv("UV_OFFLINE")
    cells = [cell for cell in cells_of(small) if cell.line == "rocm6.1"]
    torch = TinyWheel(
        "torch", "2.4.1+rocm6.1", ("pytorch-triton-rocm==3.0.0", "filelock"),
        tag="cp311-cp311-linux_x86_64",
    )  # fmt: skip
    triton = TinyWheel("pytorch-triton-rocm", "3.0.0", tag="cp311-cp311-linux_x86_64")
    config = wheels.folder.parent / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{wheels.folder}"]\n')
    with serve({"whl/rocm6.1": [torch, triton]}) as index:
        lock, faults = attempt(small, cells, pytorch_index=index.url("whl"))
    assert faults == []
    assert versions(lock, ROCM) == {
        "filelock": "1.0",
        "numpy": "2.4.6",
        "pytorch-triton-rocm": "3.0.0",
        "torch": "2.4.1+rocm6.1",
    }


def test_credentials_in_the_address_of_a_mirror_are_given_to_it(
    small: Matrix, wheels: Wheels, bare_env: pytest.MonkeyPatch
) -> None:
    bare_env.delenv("UV_OFFLINE")
    bare_env.setenv("UV_HTTP_RETRIES", "0")
    cells = [cell for cell in cells_of(small) if cell.line == "rocm6.1"]
    torch = TinyWheel("torch", "2.4.1+rocm6.1", tag="cp311-cp311-linux_x86_64")
    triton = TinyWheel("pytorch-triton-rocm", "3.0.0", tag="cp311-cp311-linux_x86_64")
    with serve({"whl/rocm6.1": [torch, triton]}) as index:
        index.fault("/whl/*", Unauthorized("someone", "p@ss word"))
        address = index.url("whl").replace("//", "//someone:p%40ss%20word@")
        lock, faults = attempt(small, cells, pytorch_index=address)
        refused, _ = attempt(small, cells, pytorch_index=index.url("whl"))
    assert faults == []
    assert versions(lock, ROCM)["torch"] == "2.4.1+rocm6.1"
    said = "the PyTorch index answered 401 for rocm6.1 when this was locked"
    assert refused.unlocked == {ROCM: said}


@pytest.mark.parametrize("index", ["http://127.0.0.1:port/whl", "http://[half/whl", "https:///whl"])
def test_an_address_that_is_none_leaves_its_cells_unlocked(
    small: Matrix, wheels: Wheels, index: str
) -> None:
    cells = [cell for cell in cells_of(small) if cell.line == "rocm6.1"]
    lock, faults = attempt(small, cells, pytorch_index=index)
    assert faults == []
    said = "the PyTorch index of rocm6.1 could not be reached when this was locked"
    assert lock.unlocked == {ROCM: said}


def test_why_a_cell_failed_is_told_apart(
    wheels: Wheels, one: list[Cell], small: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels.folder / "nvidia_cuda_runtime_cu12-12.1.105-py3-none-any.whl").unlink()
    wheels.add("nvidia-cuda-runtime-cu12", "12.4.127")
    wheels.add("torch", "2.4.1", ["nvidia-nccl-cu12==2.20.5", "nvidia-cuda-runtime-cu12"])
    unfit, _ = attempt(small, one)
    said = "the resolved wheels do not answer the matrix when this was locked"
    assert unfit.unlocked == dict.fromkeys((T24, OVERRIDDEN), said)
    monkeypatch.setattr(resolve, "_tags", lambda *_: [])
    failed, _ = attempt(small, one)
    assert set(failed.unlocked.values()) == {"uv failed when this was locked"}


# ---------------------------------------------------------------- an index that asks to wait

FOREVER = 1_000_000
PAGES = {
    "whl/rocm6.1": [
        TinyWheel(
            "torch", "2.4.1+rocm6.1", ("pytorch-triton-rocm==3.0.0", "filelock"),
            "cp311-cp311-linux_x86_64",
        ),
        TinyWheel("pytorch-triton-rocm", "3.0.0", tag="cp311-cp311-linux_x86_64"),
    ],
    "whl/cpu": [TinyWheel("torch", "2.13.0+cpu", ("filelock",), "cp311-cp311-linux_x86_64")],
}  # fmt: skip


@pytest.fixture
def paged(wheels: Wheels, small: Matrix, bare_env: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that have pages of their own; uv asks once and gpucomm waits for moments."""
    bare_env.delenv("UV_OFFLINE")
    bare_env.setenv("UV_HTTP_RETRIES", "0")
    bare_env.setattr(resolve, "_WAITS", (0.02, 0.03, 0.04))
    bare_env.setattr(resolve, "_AT_ONCE", 1)
    return [cell for cell in cells_of(small) if cell.index != "default"]


def waited(said: Sequence[str]) -> int:
    return sum(line == "lock  an index answers 429; asking again in 0 s" for line in said)


def test_an_index_that_asks_to_wait_is_asked_again_later(paged: list[Cell], small: Matrix) -> None:
    said: list[str] = []
    with serve(PAGES) as index:
        # The first is the question whether there is a page; the rest are two calls of uv.
        index.fault("/whl/rocm6.1/torch/", TooMany(times=3))
        lock, faults = attempt(small, paged, said=said, pytorch_index=index.url("whl"))
    assert faults == []
    assert lock.cells.keys() == {ROCM, CPU}
    assert waited(said) == 2


def test_after_one_wait_in_vain_no_other_cell_waits(paged: list[Cell], small: Matrix) -> None:
    said: list[str] = []
    with serve(PAGES) as index, index.fault("/whl/*/torch/", TooMany(times=FOREVER)) as planted:
        lock, faults = attempt(small, paged, said=said, pytorch_index=index.url("whl"))
    assert [fault.split(": ")[0] for fault in faults] == [ROCM, CPU]
    assert all("429 Too Many Requests" in fault and "\n" not in fault for fault in faults)
    assert lock.unlocked == dict.fromkeys((ROCM, CPU), "uv failed when this was locked")
    assert waited(said) == 3
    assert planted.hits == 2 + 4 + 1


def test_only_a_429_is_waited_for(paged: list[Cell], small: Matrix) -> None:
    said: list[str] = []
    with serve(PAGES) as index, index.fault("/whl/*/torch-*.whl", NotFound()):
        _, faults = attempt(small, paged, said=said, pytorch_index=index.url("whl"))
    assert len(faults) == 2
    assert waited(said) == 0


def test_an_interrupt_ends_every_wait(
    paged: list[Cell], small: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_WAITS", (600.0,))
    monkeypatch.setattr(resolve, "_AT_ONCE", 2)
    waits = threading.Event()

    def say(text: str) -> None:
        if "429" in text:
            waits.set()
        elif CPU in text:
            assert waits.wait(20)
            raise KeyboardInterrupt

    with serve(PAGES) as index, index.fault("/whl/rocm6.1/torch/", TooMany(times=FOREVER)):
        options = resolve.Options(pytorch_index=index.url("whl"))
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            resolve.resolve(small, EMPTY, paged, options, {}, say)
    assert time.monotonic() - started < 60


# ---------------------------------------------------------------- what pages do not tell


@pytest.fixture(autouse=True)
def no_sizes_known() -> None:
    resolve._size_there.cache_clear()


def test_a_size_that_no_page_tells_is_asked_of_the_file(paged: list[Cell], small: Matrix) -> None:
    with serve(PAGES) as index:
        lock, faults = attempt(small, paged, pytorch_index=index.url("whl"))
        heads = [request.path for request in index.requests if request.method == "HEAD"]
    assert faults == []
    sizes = {wheel.file: len(wheel.content()) for row in PAGES.values() for wheel in row}
    locked = {w.file: w.size for key in (ROCM, CPU) for w in lock.cells[key] if w.file in sizes}
    assert locked == sizes
    assert {path.rpartition("/")[2] for path in heads} >= {
        file.replace("+", "%2B") for file in sizes
    }


def test_a_size_that_nobody_tells_counts_as_nothing(bare_env: pytest.MonkeyPatch) -> None:
    bare_env.setattr(resolve, "_PAGE_SECONDS", 0.2)
    (torch,) = PAGES["whl/cpu"]
    with serve(PAGES) as index:
        index.fault("/whl/cpu/torch-*", Unauthorized("some", "body"))
        assert resolve._size_there(index.url(f"whl/cpu/{torch.file}")) == 0
        assert resolve._size_there(index.url("whl/cpu/absent.whl")) == 0
        index.heal()
        assert resolve._size_there(index.url("whl/cpu/absent.whl?anew")) == 0
        known = resolve._size_there(index.url(f"whl/cpu/{torch.file}?anew"))
    assert known == len(torch.content())
    assert resolve._size_there("http://127.0.0.1:9/whl/torch.whl") == 0
    assert resolve._size_there("http://127.0.0.1:port/whl/torch.whl") == 0


def test_a_page_without_hashes_is_locked_by_the_hash_of_what_it_has(
    paged: list[Cell], small: Matrix
) -> None:
    """As PyTorch's index tells none of the files of ROCm 7.14."""
    names = ("cp311-cp311-linux_x86_64", "cp38-abi3-linux_x86_64", "cp312-cp312-linux_x86_64")
    torches = [TinyWheel("torch", "2.13.0+cpu", tag=tag, hashed=False) for tag in names]
    cells = [cell for cell in paged if cell.line == "cpu"]
    with serve({"whl/cpu": torches}) as index:
        lock, faults = attempt(small, cells, pytorch_index=index.url("whl"))
    assert faults == []
    (torch,) = (wheel for wheel in lock.cells[CPU] if wheel.name == "torch")
    assert (torch.file, torch.sha256) == (torches[0].file, torches[0].sha256)


def test_an_index_that_stalls_is_a_fault_and_no_wait(
    paged: list[Cell], small: Matrix, bare_env: pytest.MonkeyPatch
) -> None:
    bare_env.setenv("UV_HTTP_TIMEOUT", "1")
    said: list[str] = []
    with serve(PAGES) as index, index.fault("/whl/rocm6.1/pytorch-triton-rocm/", Stalled()):
        lock, (fault,) = attempt(small, paged, said=said, pytorch_index=index.url("whl"))
    assert fault.startswith(f"{ROCM}: ")
    assert lock.cells.keys() == {CPU}
    assert waited(said) == 0


# ---------------------------------------------------------------- some cells, and what is told


def test_only_what_is_chosen_is_resolved_and_the_rest_stays(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    gone = {"cu121-torch1.13-py3.11": first.cells[T24]}
    before = replace(first, cells={**first.cells, **gone}, unlocked={ROCM: "not tried"})
    wheels.add("filelock", "2.0")
    new = [cell for cell in cells_of(small) if cell.line == "cu130"]
    said: list[str] = []
    lock = resolved(small, new, before, said=said)
    assert worked(said) == {NEW, f"{NEW}-arm64", "tools"}
    known = locks.wanted_keys(small, cells_of(small))
    assert list(lock.cells) == [key for key in known if key in {*worked(said), T24, OVERRIDDEN}]
    assert lock.cells[T24] == first.cells[T24]
    assert versions(lock, NEW)["filelock"] == "2.0"
    assert lock.unlocked == {ROCM: "not tried"}


def test_an_upgrade_of_some_cells_leaves_the_others(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    wheels.add("filelock", "2.0")
    lock = resolved(small, one[:1], first, upgrade=True)
    chosen, other = one[0].pins_id, one[1].pins_id
    assert versions(lock, chosen)["filelock"] == "2.0"
    assert lock.cells[other] == first.cells[other]


def test_progress_tells_the_count_the_cell_and_what_came_of_it(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    (wheels.folder / "nvidia_nccl_cu12-2.21.5-py3-none-manylinux1_x86_64.whl").unlink()
    said: list[str] = []
    attempt(small, one, said=said)
    assert [line.split()[1] for line in said] == ["1/3", "2/3", "3/3"]
    assert {line.split("  ")[-1] for line in said} == {
        f"{T24}: 6 wheels", f"{OVERRIDDEN}: FAILED", "tools 3.11: 2 wheels",
    }  # fmt: skip
    assert said[0].startswith("lock    1/3  ")


def test_what_is_made_on_demand_stays_beside_what_is_new(wheels: Wheels, small: Matrix) -> None:
    options = resolve.Options(keep_others=True)
    slim, devel = (on_demand(small, f"cu121-torch2.{n}-torchvision") for n in ("2.2", "4.1"))
    first, _ = resolve.resolve(small, EMPTY, [slim], options, {}, lambda _: None)
    second, _ = resolve.resolve(small, first, [devel], options, {}, lambda _: None)
    assert list(second.cells) == [f"{T24}-torchvision", f"{T22}-torchvision"]
    assert second.aliases == {}


# ---------------------------------------------------------------- what is kept, what is found


def test_a_wheel_is_known_by_its_file_hash_and_size(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    lock = resolved(small, one)
    nccl = next(wheel for wheel in lock.cells[OVERRIDDEN] if wheel.name == "nvidia-nccl-cu12")
    path = wheels.folder / "nvidia_nccl_cu12-2.21.5-py3-none-manylinux1_x86_64.whl"
    assert nccl == Wheel(
        name="nvidia-nccl-cu12",
        version="2.21.5",
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
    )


def test_what_is_locked_is_kept_until_an_upgrade(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    wheels.add("filelock", "2.0")
    wheels.add("uv", "2.0")
    said: list[str] = []
    again = resolved(small, one, first, said=said)
    assert again == first
    assert said == []
    newest = resolved(small, one, first, upgrade=True)
    assert versions(newest, T24) == versions(first, T24) | {"filelock": "2.0"}
    assert {wheel.name: wheel.version for wheel in newest.tools["3.11"]}["uv"] == "2.0"


def test_a_cell_that_must_change_keeps_all_else(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    wheels.add("filelock", "2.0")
    wheels.add("extra", "1.0")
    said: list[str] = []
    wider = small.model_copy(update={"with_": ["numpy", "extra"]})
    lock = resolved(wider, one, first, said=said)
    assert worked(said) == {T24, OVERRIDDEN}
    assert versions(lock, T24) == versions(first, T24) | {"extra": "1.0"}


def test_only_the_cell_that_does_not_answer_is_resolved(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    said: list[str] = []
    rest = {key: rows for key, rows in first.cells.items() if key != OVERRIDDEN}
    assert resolved(small, one, replace(first, cells=rest), said=said) == first
    assert worked(said) == {OVERRIDDEN}


def test_every_cell_without_a_solution_is_one_fault(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    for path in wheels.folder.glob("nvidia_nccl_cu12-*"):
        path.unlink()
    lock, faults = attempt(small, one)
    assert [fault.split(": ")[0] for fault in faults] == [T24, OVERRIDDEN]
    assert all("nvidia-nccl-cu12" in fault for fault in faults)
    assert all("\n" not in fault for fault in faults)
    assert lock.unlocked == dict.fromkeys(
        (T24, OVERRIDDEN), "uv found no solution when this was locked"
    )


def test_one_cell_without_a_solution_stops_no_other_and_keeps_what_it_had(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    first = resolved(small, one)
    (wheels.folder / "nvidia_nccl_cu12-2.21.5-py3-none-manylinux1_x86_64.whl").unlink()
    wheels.add("filelock", "2.0")
    lock, (fault,) = attempt(small, one, first, upgrade=True)
    assert fault.startswith(f"{OVERRIDDEN}: ")
    assert versions(lock, T24)["filelock"] == "2.0"
    assert lock.cells[OVERRIDDEN] == first.cells[OVERRIDDEN]
    assert lock.unlocked == {}


def test_wheels_of_another_cuda_are_refused_after_resolving(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    (wheels.folder / "nvidia_cuda_runtime_cu12-12.1.105-py3-none-any.whl").unlink()
    wheels.add("nvidia-cuda-runtime-cu12", "12.4.127")
    wheels.add("torch", "2.4.1", ["nvidia-nccl-cu12==2.20.5", "nvidia-cuda-runtime-cu12"])
    _, faults = attempt(small, one)
    assert len(faults) == 2
    for fault in faults:
        assert "the wheel requires CUDA runtime 12.4.127, the line is CUDA 12.1" in fault


def test_a_newer_source_distribution_is_never_taken(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    metadata = b"Metadata-Version: 2.2\nName: filelock\nVersion: 2.0\n"
    with tarfile.open(wheels.folder / "filelock-2.0.tar.gz", "w:gz") as archive:
        for name, data in (
            ("PKG-INFO", metadata),
            ("pyproject.toml", b"[build-system]\nrequires=[]\n"),
        ):
            member = tarfile.TarInfo(f"filelock-2.0/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert versions(resolved(small, one), T24)["filelock"] == "1.0"


def test_the_best_wheel_for_the_python_of_the_image_is_taken(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    (wheels.folder / "filelock-1.0-py3-none-any.whl").unlink()
    for tag in (
        "py3-none-any",
        "cp39-abi3-manylinux_2_17_x86_64",
        "cp311-cp311-manylinux2014_x86_64",
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp311-cp311-manylinux_2_34_x86_64",
        "cp311-cp311-manylinux_2_28_aarch64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp311-cp311-win_amd64",
    ):
        wheels.add("filelock", "1.0", tag=tag)
    (found,) = (wheel for wheel in resolved(small, one).cells[T24] if wheel.name == "filelock")
    assert found.file == "filelock-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("tags", "best"),
    [
        (["py3-none-any", "cp311-cp311-manylinux1_x86_64"], 1),
        (["cp311-cp311-manylinux1_x86_64", "cp311-cp311-manylinux_2_17_x86_64"], 1),
        (["cp312-cp312-manylinux1_x86_64", "py3-none-any"], 1),
        (["cp38-abi3-manylinux2014_x86_64", "cp311-cp311-manylinux2014_x86_64"], 1),
        (["cp38-abi3-manylinux2014_x86_64", "py3-none-any"], 0),
        (["py2.py3-none-any"], 0),
        (["cp311-none-any", "py3-none-any"], 0),
        (["cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"], 0),
        (["cp311-cp311-linux_x86_64"], 0),
        (["cp311-cp311-linux_x86_64", "cp311-cp311-manylinux1_x86_64"], 1),
    ],
)
def test_wheel_choice_by_tags(tags: list[str], best: int) -> None:
    files = [f"pack-1.0-{tag}.whl" for tag in tags]
    for order in (files, files[::-1]):
        entry = {
            "name": "pack",
            "version": "1.0",
            "wheels": [
                {"url": f"https://mirror.example/{file}", "hashes": {"sha256": file}, "size": 1}
                for file in order
            ],
        }
        assert resolve._wheel(entry, "3.11", "amd64").file == files[best]


def test_a_package_without_a_fitting_wheel_is_a_fault_of_its_cell(
    wheels: Wheels, one: list[Cell], small: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform that uv takes and these tags do not have must not hide the other cells."""
    monkeypatch.setattr(resolve, "_tags", lambda *_: [])
    _, faults = attempt(small, one)
    assert [fault.split(": ")[0] for fault in faults] == [T24, OVERRIDDEN, "tools 3.11"]
    assert all("has no wheel for Python 3.11" in fault for fault in faults)


def test_a_wheel_that_names_no_glibc_is_taken_as_uv_takes_it(
    wheels: Wheels, one: list[Cell], small: Matrix
) -> None:
    """uv takes linux_x86_64 wheels for its manylinux platforms; older CPU wheels of torch are."""
    (wheels.folder / "filelock-1.0-py3-none-any.whl").unlink()
    wheels.add("filelock", "1.0", tag="cp311-cp311-linux_x86_64")
    lock = resolved(small, one)
    files = {w.file for key in (T24, OVERRIDDEN) for w in lock.cells[key] if w.name == "filelock"}
    assert files == {"filelock-1.0-cp311-cp311-linux_x86_64.whl"}


def test_the_base_digest_is_kept_or_asked_for(
    small: Matrix, small_lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answer = Reachable(ok=True)

    def digest_of(reference: str) -> str:
        asked.append(reference)
        return "sha256:new"

    monkeypatch.setattr(registry, "reachable", lambda _: answer)
    monkeypatch.setattr(registry, "digest_of", digest_of)
    image = "registry.example/library/debian:bookworm-slim"
    said: list[str] = []

    def digests(before: Lock, *, upgrade: bool) -> dict[str, str]:
        return resolve.base_digests([image], before, said.append, upgrade=upgrade)

    locked = dict(small_lock.bases)
    assert digests(small_lock, upgrade=False) == locked
    assert (asked, said) == ([], [])
    assert digests(small_lock, upgrade=True) == {image: "sha256:new"}
    assert digests(EMPTY, upgrade=False) == {image: "sha256:new"}
    assert asked == [image] * 2
    answer = Reachable(ok=False, reason="registry registry.example cannot be reached")
    assert digests(small_lock, upgrade=True) == locked
    assert digests(EMPTY, upgrade=True) == {}
    assert said == [
        "base  registry registry.example cannot be reached; kept",
        "base  registry registry.example cannot be reached; no digest locked",
    ]


def test_a_registry_that_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def silent(reference: str) -> Reachable:
        asked.append(reference)
        return Reachable(ok=False, reason="no answer")

    monkeypatch.setattr(registry, "reachable", silent)
    images = ["registry.example/debian:12", "registry.example/ubuntu:24.04"]
    assert resolve.base_digests(images, EMPTY, lambda _: None, upgrade=False) == {}
    assert asked == images[:1]
