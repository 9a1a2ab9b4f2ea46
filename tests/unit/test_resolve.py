"""resolve.py: the call of uv, against a folder of tiny wheels and without any index."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpucomm import lock as locks
from gpucomm import registry, resolve
from gpucomm.cell import cells_of
from gpucomm.errors import WorkFailed
from gpucomm.lock import EMPTY, Lock, Wheel
from gpucomm.registry import Reachable
from gpucomm.schema import Matrix

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]
T22, T24 = "cu121-torch2.2.2-nccl2.19.3", "cu121-torch2.4.1-nccl2.20.5"
OVERRIDDEN = "cu121-torch2.4.1-nccl2.21.5"
CPU = "cpu-torch2.13.0"


class Wheels:
    """A folder of wheels that have nothing inside but their metadata."""

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
    folder.add("torch", "2.13.0+cpu", ["filelock"], tag="cp311-cp311-manylinux_2_28_x86_64")
    for version in ("2.19.3", "2.20.5", "2.21.5"):
        folder.add("nvidia-nccl-cu12", version, tag="py3-none-manylinux1_x86_64")
    folder.add("nvidia-cuda-runtime-cu12", "12.1.105")
    for version in ("12.1.105", "12.9.86"):
        folder.add("nvidia-nvjitlink-cu12", version)
    for version in ("1.26.4", "2.4.6"):
        folder.add("numpy", version)
    for name in ("filelock", "uv", "flit-core"):
        folder.add(name, "1.0")
    return folder


@pytest.fixture
def one(parse_matrix: ParseMatrix, small_text: str) -> Matrix:
    """The small matrix with one torch and its override, and no other line."""
    head, cpu = small_text.split("  cpu:\n    accelerator")
    text = head.replace('      "2.2.2": {nccl: "2.19.3"}\n', "")
    return parse_matrix(text + cpu[cpu.index("aliases:") :].replace("  cpu: cpu-torch2.13.0\n", ""))


def resolved(
    matrix: Matrix,
    before: Lock = EMPTY,
    *,
    upgrade: bool = False,
    wheelhouse: Path | None = None,
    said: list[str] | None = None,
) -> Lock:
    """`resolve_all` without bases."""
    say = said.append if said is not None else lambda _: None
    return resolve.resolve_all(
        matrix, before, say, upgrade=upgrade, bases={}, wheelhouse=wheelhouse
    )


def versions(lock: Lock, key: str) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.cells[key]}


def test_every_cell_gets_its_own_torch_and_nccl_and_keeps_the_rules(
    wheels: Wheels, small: Matrix
) -> None:
    said: list[str] = []
    lock = resolved(small, wheelhouse=wheels.folder, said=said)
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
    assert [wheel.name for wheel in lock.tools["3.11"]] == ["flit-core", "uv"]
    assert said == [f"lock  {name}" for name in dict.fromkeys(c.pins_id for c in cells_of(small))]


def test_a_wheel_is_known_by_its_file_hash_and_size(wheels: Wheels, one: Matrix) -> None:
    lock = resolved(one)
    nccl = next(wheel for wheel in lock.cells[OVERRIDDEN] if wheel.name == "nvidia-nccl-cu12")
    path = wheels.folder / "nvidia_nccl_cu12-2.21.5-py3-none-manylinux1_x86_64.whl"
    assert nccl == Wheel(
        name="nvidia-nccl-cu12",
        version="2.21.5",
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
    )


def test_what_is_locked_is_kept_until_an_upgrade(wheels: Wheels, one: Matrix) -> None:
    first = resolved(one)
    wheels.add("filelock", "2.0")
    wheels.add("uv", "2.0")
    said: list[str] = []
    again = resolved(one, first, said=said)
    assert again == first
    assert said == []
    newest = resolved(one, first, upgrade=True)
    assert versions(newest, T24) == versions(first, T24) | {"filelock": "2.0"}
    assert {wheel.name: wheel.version for wheel in newest.tools["3.11"]}["uv"] == "2.0"


def test_a_cell_that_must_change_keeps_all_else(wheels: Wheels, one: Matrix) -> None:
    first = resolved(one)
    wheels.add("filelock", "2.0")
    wheels.add("extra", "1.0")
    said: list[str] = []
    wider = one.model_copy(update={"with_": ["numpy", "extra"]})
    lock = resolved(wider, first, said=said)
    assert said == [f"lock  {T24}", f"lock  {OVERRIDDEN}"]
    assert versions(lock, T24) == versions(first, T24) | {"extra": "1.0"}


def test_only_the_cell_that_does_not_answer_is_resolved(wheels: Wheels, one: Matrix) -> None:
    first = resolved(one)
    said: list[str] = []
    rest = {key: rows for key, rows in first.cells.items() if key != OVERRIDDEN}
    assert resolved(one, replace(first, cells=rest), said=said) == first
    assert said == [f"lock  {OVERRIDDEN}"]


def test_every_cell_without_a_solution_is_one_fault(wheels: Wheels, one: Matrix) -> None:
    for path in wheels.folder.glob("nvidia_nccl_cu12-*"):
        path.unlink()
    with pytest.raises(WorkFailed) as caught:
        resolved(one)
    assert [fault.split(": ")[0] for fault in caught.value.faults] == [T24, OVERRIDDEN]
    assert all("nvidia-nccl-cu12" in fault for fault in caught.value.faults)
    assert all("\n" not in fault for fault in caught.value.faults)
    assert caught.value.exit_code == 1


def test_one_cell_without_a_solution_stops_no_other_but_locks_nothing(
    wheels: Wheels, one: Matrix
) -> None:
    (wheels.folder / "nvidia_nccl_cu12-2.21.5-py3-none-manylinux1_x86_64.whl").unlink()
    said: list[str] = []
    with pytest.raises(WorkFailed) as caught:
        resolved(one, said=said)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{OVERRIDDEN}: ")
    assert said == [f"lock  {T24}", f"lock  {OVERRIDDEN}"]


def test_wheels_of_another_cuda_are_refused_after_resolving(wheels: Wheels, one: Matrix) -> None:
    (wheels.folder / "nvidia_cuda_runtime_cu12-12.1.105-py3-none-any.whl").unlink()
    wheels.add("nvidia-cuda-runtime-cu12", "12.4.127")
    wheels.add("torch", "2.4.1", ["nvidia-nccl-cu12==2.20.5", "nvidia-cuda-runtime-cu12"])
    with pytest.raises(WorkFailed) as caught:
        resolved(one)
    assert len(caught.value.faults) == 2
    for fault in caught.value.faults:
        assert "the wheel requires CUDA runtime 12.4.127, the line is CUDA 12.1" in fault


def test_a_newer_source_distribution_is_never_taken(wheels: Wheels, one: Matrix) -> None:
    metadata = b"Metadata-Version: 2.2\nName: filelock\nVersion: 2.0\n"
    with tarfile.open(wheels.folder / "filelock-2.0.tar.gz", "w:gz") as archive:
        for name, data in (
            ("PKG-INFO", metadata),
            ("pyproject.toml", b"[build-system]\nrequires=[]\n"),
        ):
            member = tarfile.TarInfo(f"filelock-2.0/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert versions(resolved(one), T24)["filelock"] == "1.0"


def test_the_best_wheel_for_the_python_of_the_image_is_taken(wheels: Wheels, one: Matrix) -> None:
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
    (found,) = (wheel for wheel in resolved(one).cells[T24] if wheel.name == "filelock")
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
        assert resolve._wheel(entry, "3.11").file == files[best]


def test_a_package_without_a_fitting_wheel_is_a_fault_of_its_cell(
    wheels: Wheels, one: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform that uv takes and these tags do not have must not hide the other cells."""
    monkeypatch.setattr(resolve, "_tags", lambda _: [])
    with pytest.raises(WorkFailed) as caught:
        resolved(one)
    assert [fault.split(": ")[0] for fault in caught.value.faults] == [T24, OVERRIDDEN]
    assert all("has no wheel for Python 3.11" in fault for fault in caught.value.faults)


def test_a_wheel_that_uv_takes_is_taken_or_the_fault_names_the_cell(
    wheels: Wheels, one: Matrix
) -> None:
    """uv takes linux_x86_64 wheels for its manylinux platforms; older CPU wheels of torch are."""
    (wheels.folder / "filelock-1.0-py3-none-any.whl").unlink()
    wheels.add("filelock", "1.0", tag="cp311-cp311-linux_x86_64")
    try:
        cells = [key for key in resolved(one).cells if key.startswith("cu121")]
    except WorkFailed as error:
        cells = [fault.split(": ")[0] for fault in error.faults]
    assert cells == [T24, OVERRIDDEN]


def test_torch_is_asked_for_with_the_local_version_of_its_index(small: Matrix) -> None:
    asked = {cell.id: resolve.torch_requirement(small, cell) for cell in cells_of(small)}
    assert asked[T24] == "torch==2.4.1"
    assert asked[CPU] == "torch==2.13.0+cpu"


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
    said: list[str] = []
    locked = dict(small_lock.bases)
    assert resolve.base_digests(small, small_lock, said.append, upgrade=False) == locked
    assert (asked, said) == ([], [])
    new = {"debian12": "sha256:new"}
    assert resolve.base_digests(small, small_lock, said.append, upgrade=True) == new
    assert resolve.base_digests(small, EMPTY, said.append, upgrade=False) == new
    assert asked == ["registry.example/library/debian:bookworm-slim"] * 2
    answer = Reachable(ok=False, reason="registry registry.example cannot be reached")
    assert resolve.base_digests(small, small_lock, said.append, upgrade=True) == locked
    assert resolve.base_digests(small, EMPTY, said.append, upgrade=True) == {}
    assert said == [
        "base  debian12: registry registry.example cannot be reached; kept",
        "base  debian12: registry registry.example cannot be reached; no digest locked",
    ]
