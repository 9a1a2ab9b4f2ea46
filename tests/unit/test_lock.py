"""lock.py: matrix.lock read and written, and every way in which it fails to answer the matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from gpucomm import lock as locks
from gpucomm.cell import additions, cell, wanted_of
from gpucomm.errors import WrongInput
from gpucomm.lock import EMPTY, Lock, Wheel
from gpucomm.project import Project
from gpucomm.rules import platforms
from gpucomm.schema import Architecture, Matrix
from gpucomm.standard import by_id, cells_of

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]
T22, T24 = "cu121-torch2.2.2-nccl2.19.3", "cu121-torch2.4.1-nccl2.20.5"
CU130, CPU, ROCM = (
    "cu130-torch2.13.0-nccl2.29.7",
    "cpu-torch2.13.0",
    "rocm6.1-torch2.4.1-rccl2.18.6",
)
K22, K24, K130, KCPU, KROCM = (f"{name}-py3.11" for name in (T22, T24, CU130, CPU, ROCM))
VISION = f"{K24}-torchvision"
BASE = "registry.example/library/debian:bookworm-slim"


def with_version(lock: Lock, key: str, package: str, version: str | None) -> Lock:
    """`lock` with another version of one package in one cell, or without it."""
    rows = [
        replace(wheel, version=version) if wheel.name == package and version else wheel
        for wheel in lock.cells[key]
        if version or wheel.name != package
    ]
    return replace(lock, cells={**lock.cells, key: tuple(rows)})


def without_key(lock: Lock, key: str) -> Lock:
    return replace(lock, cells={name: row for name, row in lock.cells.items() if name != key})


def written(lock: Lock, folder: Path) -> Path:
    path = folder / locks.FILE
    locks.write(path, lock)
    return path


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("text", "arch", "key"),
    [
        (T24, "amd64", K24),
        (f"{T24}-slim-mpi", "amd64", K24),
        (f"{T24}-torchvision", "amd64", VISION),
        (CU130, "amd64", K130),
        (CU130, "arm64", f"{K130}-arm64"),
        (f"{CU130}-devel", "arm64", f"{K130}-devel-arm64"),
    ],
)
def test_the_key_of_a_platform(text: str, arch: Architecture, key: str, small: Matrix) -> None:
    assert locks.key_of(cell(small, wanted_of(small, text)), arch) == key


def test_the_key_of_the_tools() -> None:
    assert locks.tools_key("3.11", "amd64") == "3.11"
    assert locks.tools_key("3.11", "arm64") == "3.11-arm64"


def test_the_keys_that_the_cells_need(small: Matrix) -> None:
    keys = locks.wanted_keys(small, cells_of(small))
    assert list(keys) == [
        K22, "cu121-torch2.2.2-nccl2.21.5-py3.11", K24, "cu121-torch2.4.1-nccl2.21.5-py3.11",
        VISION, K130, f"{K130}-arm64", KROCM, KCPU,
    ]  # fmt: skip
    assert {arch for _, arch in keys.values()} == {"amd64", "arm64"}
    for key, (one, arch) in keys.items():
        assert locks.key_of(one, arch) == key
    assert list(locks.wanted_keys(small, [by_id(small)[CU130]])) == [K130, f"{K130}-arm64"]


def test_keys_are_unique_in_the_committed_matrix(real: Project) -> None:
    """Two cells of one key install the same wheels, whatever the platform."""
    found: dict[str, object] = {}
    for one in cells_of(real.matrix):
        for arch in platforms(real.matrix, one):
            added = additions(real.matrix, line=one.line, flavor=one.flavor, os=one.os)
            wheels = [e for e in one.extras if real.matrix.extras[e].wheel]
            facts = (one.line, one.torch, one.nccl, one.python, arch, added, wheels,
                     one.gpu_targets)  # fmt: skip
            assert found.setdefault(locks.key_of(one, arch), facts) == facts


# ---------------------------------------------------------------- the file


def test_the_committed_lock_answers_the_committed_matrix(root: Path, real: Project) -> None:
    lock = locks.load(root, real.matrix)
    assert list(locks.faults_of(real.matrix, lock)) == []
    keys = locks.wanted_keys(real.matrix, cells_of(real.matrix))
    for key, (one, arch) in keys.items():
        assert (lock.version(one, "torch", arch) is None) == (key in lock.unlocked)
    sums = [wheel.sha256 for rows in lock.cells.values() for wheel in rows]
    assert sums
    assert all(len(digest) == 64 and int(digest, 16) for digest in sums)
    assert all(len(reason) > 20 for reason in lock.unlocked.values())


def test_what_is_written_is_read_again(tmp_path: Path, small_lock: Lock) -> None:
    path = written(small_lock, tmp_path / "deep" / "er")
    assert locks.read(path) == small_lock
    before = path.read_bytes()
    locks.write(path, locks.read(path))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [locks.FILE]


def test_a_file_that_cells_share_is_written_once(tmp_path: Path, small_lock: Lock) -> None:
    text = written(small_lock, tmp_path).read_text()
    digests = {wheel.sha256 for rows in small_lock.cells.values() for wheel in rows}
    assert all(text.count(digest) == 1 for digest in digests)


def test_a_lock_names_no_index_and_no_host(root: Path) -> None:
    assert "://" not in (root / locks.FILE).read_text()


def test_an_absent_lock_is_empty_and_does_not_answer(tmp_path: Path, small: Matrix) -> None:
    assert locks.read(tmp_path / locks.FILE) == EMPTY
    with pytest.raises(WrongInput) as caught:
        locks.load(tmp_path, small)
    faults = caught.value.faults
    assert f"matrix.lock: {K24}: not locked; run gpucomm lock" in faults
    assert "matrix.lock: the tools for Python 3.11-arm64 are not locked; run gpucomm lock" in faults
    assert f"matrix.lock: alias cpu: absent when it was locked, now {CPU}; run gpucomm lock" in (
        faults
    )
    assert len(faults) == 9 + 2 + 5  # lists of wheels, tools of two platforms, aliases


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"wheels": []}',
        '{"wheels": {}, "cells": {"a": ["absent.whl"]}, "tools": {}, "bases": {}}',
        '{"wheels": {"a.whl": {"name": "a"}}, "cells": {}, "tools": {}, "bases": {}}',
        '{"wheels": {}, "cells": {}, "tools": {}, "bases": {}}',  # of before, without a seal
        '{"wheels": {}, "cells": {}, "tools": {}, "bases": {}, "unlocked": {}, "aliases": {}}',
        '<<<<<<< HEAD\n{"version": 1}\n=======\n',
    ],
)
def test_a_broken_lock_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / locks.FILE).write_text(text)
    with pytest.raises(WrongInput) as caught:
        locks.read(tmp_path / locks.FILE)
    (fault,) = caught.value.faults
    assert fault.startswith("matrix.lock: not a lock (")
    assert fault.endswith("run gpucomm lock")
    assert "\n" not in fault


def test_a_lock_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / locks.FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(WrongInput, match=r"matrix\.lock: not a lock"):
        locks.read(tmp_path / locks.FILE)


# ---------------------------------------------------------------- the seal


def edited(lock: Lock, folder: Path, old: str, new: str) -> Path:
    """The file of `lock` with one place changed by hand, as with an editor."""
    path = written(lock, folder)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert json.loads(path.read_text())
    return path


@pytest.mark.parametrize("what", ["hash", "version", "size", "name", "base", "alias", "reason",
                                  "seal", "list", "tools"])  # fmt: skip
def test_what_is_edited_by_hand_is_refused(
    what: str, tmp_path: Path, small: Matrix, small_lock: Lock
) -> None:
    numpy = next(wheel for wheel in small_lock.cells[K24] if wheel.name == "numpy")
    seal = json.loads(written(small_lock, tmp_path).read_text())["seal"]
    edits = {
        "hash": (numpy.sha256, f"{'0' * 8}{numpy.sha256[8:]}"),
        "version": ('"version": "2.4.6"', '"version": "2.4.7"'),
        "size": ('"size": 1000000', '"size": 999999'),
        "name": ('"name": "filelock"', '"name": "filelocks"'),
        "base": ("sha256:abab", "sha256:cdcd"),
        "alias": (f'"latest": "{T24}"', f'"latest": "{T22}"'),
        "reason": ("could not be reached when", "could be reached when"),
        "seal": (seal, f"{'0' * 8}{seal[8:]}"),
        "list": (f'   "{numpy.file}",\n', ""),
        "tools": ('"3.11-arm64"', '"3.12-arm64"'),
    }
    path = edited(small_lock, tmp_path, *edits[what])
    for read in (lambda: locks.read(path), lambda: locks.load(tmp_path, small)):
        with pytest.raises(WrongInput) as caught:
            read()
        assert caught.value.faults == (
            "matrix.lock: edited by hand, its seal does not fit; take the committed file back, "
            "or run gpucomm lock --upgrade to resolve everything anew",
        )


def test_a_lock_that_is_only_laid_out_differently_is_read(tmp_path: Path, small_lock: Lock) -> None:
    path = written(small_lock, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert locks.read(path) == small_lock


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "sha256:" + "0" * 57])
def test_what_is_no_hash_is_a_fault(digest: str, small: Matrix, small_lock: Lock) -> None:
    first, *rest = small_lock.cells[KCPU]
    wrong = replace(
        small_lock, cells={**small_lock.cells, KCPU: (replace(first, sha256=digest), *rest)}
    )
    assert list(locks.faults_of(small, wrong)) == [f"{KCPU}: {first.name} has no sha256"]


# ---------------------------------------------------------------- does it answer the matrix?


def test_the_small_lock_answers(small: Matrix, small_lock: Lock) -> None:
    assert list(locks.faults_of(small, small_lock)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param(
            f"  latest: {T24}\n", f"  latest: {T22}\n",
            f"alias latest: {T24} when it was locked, now {T22}", id="moved",
        ),
        pytest.param(
            f"  cpu: {CPU}\n", "", f"alias cpu: {CPU} when it was locked, now absent", id="gone",
        ),
        pytest.param(
            "aliases:\n", f"aliases:\n  newest: {CPU}\n",
            f"alias newest: absent when it was locked, now {CPU}", id="new",
        ),
    ],
)  # fmt: skip
def test_an_alias_that_is_edited_in_the_matrix_is_named(
    old: str, new: str, fault: str, tmp_path: Path, parse_matrix: ParseMatrix, small_text: str,
    small_lock: Lock,
) -> None:  # fmt: skip
    written(small_lock, tmp_path)
    assert small_text.count(old) == 1
    matrix = parse_matrix(small_text.replace(old, new))
    with pytest.raises(WrongInput) as caught:
        locks.load(tmp_path, matrix)
    assert caught.value.faults == (f"matrix.lock: {fault}; run gpucomm lock",)


@pytest.mark.parametrize(
    ("key", "package", "version", "message"),
    [
        pytest.param(K24, "torch", "2.4.0", "torch is 2.4.0, the matrix says 2.4.1", id="torch"),
        pytest.param(K24, "torch", None, "torch is None, the matrix says 2.4.1", id="no-torch"),
        pytest.param(
            K24, "nvidia-nccl-cu12", "2.21.5", "NCCL is 2.21.5, the matrix says 2.20.5", id="nccl"
        ),
        pytest.param(
            K24, "nvidia-nccl-cu12", None, "NCCL is None, the matrix says 2.20.5", id="no-nccl"
        ),
        pytest.param(
            f"{K130}-arm64", "nvidia-nccl-cu13", "2.30.7", "NCCL is 2.30.7, the matrix says 2.29.7",
            id="nccl-of-the-other-platform",
        ),
        pytest.param(
            K24, "nvidia-cuda-runtime-cu12", "12.4.127",
            "the wheel requires CUDA runtime 12.4.127, the line is CUDA 12.1", id="other-cuda",
        ),
        pytest.param(
            K24, "nvidia-cuda-runtime-cu12", "11.8.89",
            "the wheel requires CUDA runtime 11.8.89, the line is CUDA 12.1", id="older-cuda",
        ),
        pytest.param(
            K24, "nvidia-cuda-runtime-cu12", "12.10.1",
            "the wheel requires CUDA runtime 12.10.1, the line is CUDA 12.1",
            id="a-prefix-is-not-enough",
        ),
        pytest.param(
            K24, "nvidia-cuda-runtime-cu12", None,
            "the wheel requires CUDA runtime None, the line is CUDA 12.1", id="no-cuda",
        ),
        pytest.param(
            K24, "nvidia-nvjitlink-cu12", "12.9.86",
            "nvidia-nvjitlink-cu12 is 12.9.86, held at ==12.1.*: left alone it floats to the "
            "newest CUDA", id="hold-nvjitlink",
        ),
        pytest.param(
            K22, "numpy", "2.4.6",
            "numpy is 2.4.6, held at <2: that torch was compiled for numpy 1",
            id="hold-numpy",
        ),
        pytest.param(K24, "numpy", None, "numpy is missing", id="with"),
        pytest.param(
            VISION, "torchvision", "0.19.0", "torchvision is 0.19.0, the matrix says 0.19.1",
            id="extra",
        ),
        pytest.param(
            VISION, "torchvision", None, "torchvision is None, the matrix says 0.19.1",
            id="no-extra",
        ),
        pytest.param(
            KCPU, "torch", "2.12.0+cpu", "torch is 2.12.0+cpu, the matrix says 2.13.0",
            id="cpu-torch",
        ),
        pytest.param(
            KCPU, "torch", "2.13.0+cu128", "torch is a CUDA build (+cu128), the line is cpu",
            id="cuda-build-on-cpu",
        ),
    ],
)  # fmt: skip
def test_one_wrong_wheel_is_one_fault(
    key: str, package: str, version: str | None, message: str, small: Matrix, small_lock: Lock
) -> None:
    wrong = with_version(small_lock, key, package, version)
    assert list(locks.faults_of(small, wrong)) == [f"{key}: {message}"]


def test_a_local_version_is_no_other_version(small: Matrix, small_lock: Lock) -> None:
    local = with_version(small_lock, K24, "torch", "2.4.1+cu121")
    local = with_version(local, VISION, "torchvision", "0.19.1+cu121")
    assert list(locks.faults_of(small, local)) == []


def rocm_lock(lock: Lock, *wheels: Wheel) -> Lock:
    return replace(lock, cells={**lock.cells, KROCM: wheels}, unlocked={})


@pytest.mark.parametrize(
    ("torch", "more", "message"),
    [
        ("2.4.1+rocm6.1", (), None),
        ("2.4.1+rocm6.0", (), "torch is +rocm6.0, the line is rocm6.1"),
        ("2.4.1", (), "torch is +None, the line is rocm6.1"),
        ("2.4.1+rocm6.1", ("nvidia-cublas-cu12",),
         "torch is a CUDA build (nvidia-cublas-cu12), the line is rocm6.1"),
    ],
)  # fmt: skip
def test_the_torch_of_a_rocm_line_is_known_by_its_version(
    torch: str, more: tuple[str, ...], message: str | None, small: Matrix, small_lock: Lock,
    make_wheel: MakeWheel,
) -> None:  # fmt: skip
    rows = [make_wheel("numpy", "2.4.6"), *(make_wheel(name, "12.1") for name in more)]
    lock = rocm_lock(small_lock, *rows, make_wheel("torch", torch))
    faults = [f"{KROCM}: {message}"] if message else []
    assert list(locks.faults_of(small, lock)) == faults


def test_a_cuda_build_of_torch_is_refused_on_a_cpu_line(
    small: Matrix, small_lock: Lock, make_wheel: MakeWheel
) -> None:
    cuda = (
        make_wheel("numpy", "2.4.6"),
        make_wheel("nvidia-cuda-runtime-cu12", "12.8.90"),
        make_wheel("nvidia-nccl-cu12", "2.28.9"),
        make_wheel("torch", "2.13.0"),
    )
    wrong = replace(small_lock, cells={**small_lock.cells, KCPU: cuda})
    (fault,) = locks.faults_of(small, wrong)
    assert fault == (
        f"{KCPU}: torch is a CUDA build (nvidia-cuda-runtime-cu12, nvidia-nccl-cu12), "
        "the line is cpu"
    )


def test_an_nccl_that_is_linked_into_torch_is_no_wheel(
    small_lock: Lock, parse_matrix: ParseMatrix, small_text: str
) -> None:
    old = '"2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}'
    assert small_text.count(old) == 1
    matrix = parse_matrix(small_text.replace(old, '"2.2.2": {nccl: static}'))
    one = by_id(matrix)["cu121-torch2.2.2"]
    wheels = small_lock.cells[K22]
    lock = replace(small_lock, cells={one.pins_id: wheels})
    assert list(locks.cell_faults(matrix, lock, one)) == ["NCCL is 2.19.3, the matrix says None"]
    lock = with_version(lock, one.pins_id, "nvidia-nccl-cu12", None)
    assert list(locks.cell_faults(matrix, lock, one)) == []
    # Without the wheel of a runtime, the local version is what tells the CUDA inside.
    lock = with_version(lock, one.pins_id, "nvidia-cuda-runtime-cu12", None)
    assert list(locks.cell_faults(matrix, lock, one)) == ["torch is +None, the line is cu121"]
    for local, faults in (("cu121", []), ("cu118", ["torch is +cu118, the line is cu121"])):
        told = with_version(lock, one.pins_id, "torch", f"2.2.2+{local}")
        assert list(locks.cell_faults(matrix, told, one)) == faults


@pytest.mark.parametrize(
    ("version", "faults"),
    [
        ("13.0.88", []),
        ("13.1.80", ["nvidia-cuda-nvcc is 13.1.80, the flavor devel adds =={cuda}.*"]),
        (None, ["nvidia-cuda-nvcc is None, the flavor devel adds =={cuda}.*"]),
    ],
)
def test_what_a_flavor_adds_is_locked(
    version: str | None, faults: list[str], small: Matrix, small_lock: Lock, make_wheel: MakeWheel
) -> None:
    one = cell(small, wanted_of(small, f"{CU130}-devel"))
    rows = small_lock.cells[K130]
    rows += (make_wheel("nvidia-cuda-nvcc", version),) if version else ()
    lock = Lock(cells={one.pins_id: rows}, tools={}, bases={})
    assert list(locks.cell_faults(small, lock, one)) == faults


def test_a_hold_holds_only_where_it_says(small: Matrix, small_lock: Lock) -> None:
    newer = with_version(small_lock, K24, "numpy", "2.9.0")
    assert list(locks.faults_of(small, newer)) == []
    holds = {
        one.id: [hold.package for hold in locks.holds_for(small, one)]
        for one in cells_of(small)
        if one.flavor == "runtime" and not one.nccl_overridden and not one.extras
    }
    assert holds == {
        T22: ["nvidia-nvjitlink-cu12", "numpy"],
        T24: ["nvidia-nvjitlink-cu12"],
        CU130: [],
        ROCM: [],
        CPU: [],
    }


def test_a_hold_on_what_a_cell_does_not_have_says_nothing(small: Matrix, small_lock: Lock) -> None:
    without = with_version(small_lock, K24, "nvidia-nvjitlink-cu12", None)
    assert list(locks.faults_of(small, without)) == []


REAL_HOLDS = {
    # a hold of the real matrix -> a version that it must refuse
    "nvidia-nvjitlink-cu12": "12.99.86",
    "nvidia-nvjitlink": "13.99.1",
    "numpy": "2.0.0",
    "setuptools": "70.0.0",
}


def test_every_hold_of_the_real_matrix_refuses_something(real: Project) -> None:
    matrix, lock = real.matrix, real.lock
    assert {hold.package for hold in matrix.holds} == REAL_HOLDS.keys(), (
        "a new hold needs a version here that it refuses"
    )
    for hold in matrix.holds:
        ruled = [one for one in cells_of(matrix) if hold in locks.holds_for(matrix, one)]
        assert ruled, f"no cell is under the hold for {hold.package}"
        tried = 0
        for one in ruled:
            if lock.version(one, hold.package) is not None:
                tried += 1
                wrong = with_version(lock, one.pins_id, hold.package, REAL_HOLDS[hold.package])
                faults = list(locks.cell_faults(matrix, wrong, one))
                assert any(hold.reason in fault for fault in faults), (one.id, faults)
        assert tried, f"no locked cell has {hold.package}"


def test_a_wheel_of_another_cuda_is_refused_on_every_locked_cuda_cell(real: Project) -> None:
    matrix, tried = real.matrix, 0
    for one in cells_of(matrix):
        family = matrix.lines[one.line].nccl_family
        if family is None or one.pins_id not in real.lock.cells:
            continue
        tried += 1
        other = "12.4.127" if one.cuda != "12.4" else "12.1.105"
        runtime = matrix.nccl_families[family].runtime
        wrong = with_version(real.lock, one.pins_id, runtime, other)
        faults = list(locks.cell_faults(matrix, wrong, one))
        assert [f"the line is CUDA {one.cuda}" in fault for fault in faults] == [True]
    assert tried


def test_missing_and_stray_entries_are_named_at_once(small: Matrix, small_lock: Lock) -> None:
    cells = dict(small_lock.cells)
    cells["cu124-torch9"] = cells.pop(K24)
    cells[f"{K22}-arm64"] = cells[K22]  # a platform that the cell does not have
    del cells[f"{K130}-arm64"]
    lock = replace(
        small_lock, cells=cells, unlocked={**small_lock.unlocked, "xpu-torch9": "some reason"}
    )
    assert list(locks.faults_of(small, lock)) == [
        f"{K24}: not locked",
        f"{K130}-arm64: not locked",
        f"{K22}-arm64: in the lock but not in the matrix",
        "cu124-torch9: in the lock but not in the matrix",
        "xpu-torch9: in the lock but not in the matrix",
    ]


def test_a_new_cell_of_the_matrix_is_not_locked(
    parse_matrix: ParseMatrix, small_text: str, small_lock: Lock
) -> None:
    row = "  - {reason: every torch on every line}\n"
    more = '  - {reason: the newest system, torch: ">=2.4", os: [ubuntu24.04]}\n'
    matrix = parse_matrix(small_text.replace(row, row + more))
    assert list(locks.faults_of(matrix, small_lock)) == [
        *(f"{name}-py3.12: not locked" for name in (T24, CU130, ROCM, CPU)),
        "the tools for Python 3.12 are not locked",
    ]


@pytest.mark.parametrize(
    "locked", [(), ("uv",), ("uv", "other"), ("other",), ("uv", "other", "third")]
)
def test_a_missing_tool_is_named(
    locked: tuple[str, ...], small: Matrix, small_lock: Lock, make_wheel: MakeWheel
) -> None:
    few = tuple(make_wheel(name, "1.0") for name in locked)
    tools = {**small_lock.tools, "3.11": few}
    faults = list(locks.faults_of(small, replace(small_lock, tools=tools)))
    assert faults == ["the tools for Python 3.11 are not locked"]
    tools = {**small_lock.tools, "3.11-arm64": few}
    faults = list(locks.faults_of(small, replace(small_lock, tools=tools)))
    assert faults == ["the tools for Python 3.11-arm64 are not locked"]


# ---------------------------------------------------------------- unlocked cells, platforms


def test_an_unlocked_cell_is_no_fault_and_has_its_reason(small: Matrix, small_lock: Lock) -> None:
    one = by_id(small)[ROCM]
    assert list(locks.cell_faults(small, small_lock, one)) == []
    assert small_lock.wheels(one, small) == ()
    assert small_lock.version(one, "torch") is None
    assert small_lock.locked(one, small) == ()
    assert small_lock.reason(one, small) == small_lock.unlocked[KROCM]
    never = replace(small_lock, unlocked={})
    assert never.reason(one, small) == "it was never resolved"
    assert list(locks.faults_of(small, never)) == [f"{KROCM}: not locked"]


def test_the_platforms_of_a_cell_are_locked_each_for_itself(
    small: Matrix, small_lock: Lock
) -> None:
    one = by_id(small)[CU130]
    assert small_lock.locked(one, small) == ("amd64", "arm64")
    assert small_lock.reason(one, small) is None
    no_arm = without_key(small_lock, f"{K130}-arm64")
    assert no_arm.locked(one, small) == ("amd64",)
    assert no_arm.wheels(one, small, "arm64") == ()
    assert no_arm.reason(one, small) is None  # one platform is enough to build it
    neither = without_key(no_arm, K130)
    neither = replace(neither, unlocked={f"{K130}-arm64": "no index for it"})
    assert neither.locked(one, small) == ()
    assert neither.reason(one, small) == "no index for it"


def test_a_platform_that_the_cell_does_not_have_is_not_locked(
    small: Matrix, small_lock: Lock
) -> None:
    stray = replace(small_lock, cells={**small_lock.cells, f"{K24}-arm64": small_lock.cells[K24]})
    assert stray.locked(by_id(small)[T24], small) == ("amd64",)


def test_the_versions_of_a_platform(small: Matrix, small_lock: Lock) -> None:
    one = by_id(small)[CU130]
    lock = with_version(small_lock, f"{K130}-arm64", "triton", "3.7.2")
    assert lock.version(one, "triton") == "3.7.1"
    assert lock.version(one, "triton", "arm64") == "3.7.2"
    assert lock.version(one, "absent") is None


def test_a_flavor_leaves_its_wheels_out(small: Matrix, small_lock: Lock) -> None:
    runtime = small_lock.wheels(by_id(small)[T24], small)
    slim = small_lock.wheels(by_id(small)[f"{T24}-slim"], small)
    assert {wheel.name for wheel in runtime} - {wheel.name for wheel in slim} == {"triton"}
    assert set(slim) < set(runtime)


# ---------------------------------------------------------------- two locks


def test_joined_is_this_lock_and_what_only_the_other_has(
    small_lock: Lock, make_wheel: MakeWheel
) -> None:
    mine, theirs = (make_wheel("torch", "1.0"),), (make_wheel("torch", "2.0"),)
    this = Lock(
        cells={"both": mine, "mine": mine},
        tools={"3.11": mine},
        bases={"image": "sha256:aa"},
        unlocked={"u-both": "my reason", "u-resolved": "my reason", "u-mine": "mine"},
        aliases={"cpu": "x"},
    )
    other = Lock(
        cells={"both": theirs, "theirs": theirs, "u-resolved": theirs},
        tools={"3.11": theirs, "3.12": theirs},
        bases={"image": "sha256:bb", "more": "sha256:cc"},
        unlocked={"u-both": "their reason", "mine": "their reason", "u-theirs": "theirs"},
        aliases={"cpu": "y", "latest": "y"},
    )
    joined = this.joined(other)
    assert joined == Lock(
        cells={"both": mine, "mine": mine, "theirs": theirs, "u-resolved": theirs},
        tools={"3.11": mine, "3.12": theirs},
        bases={"image": "sha256:aa", "more": "sha256:cc"},
        unlocked={"u-both": "my reason", "u-mine": "mine", "u-theirs": "theirs"},
        aliases={"cpu": "x"},
    )
    assert small_lock.joined(EMPTY) == small_lock
    assert not joined.cells.keys() & joined.unlocked.keys()


def test_differences_are_one_line_per_version(small_lock: Lock, make_wheel: MakeWheel) -> None:
    after = with_version(small_lock, K24, "numpy", "2.5.0")
    after = with_version(after, KCPU, "filelock", None)
    extra = (*after.cells[K22], make_wheel("new", "1.0"))
    after = replace(after, cells={**after.cells, K22: extra})
    before = replace(
        small_lock,
        cells={**small_lock.cells, "old": extra},
        unlocked={**small_lock.unlocked, "old-arm64": "no index"},
    )
    assert locks.differences(before, after) == [
        f"{K22}: new absent -> 1.0",
        f"{K24}: numpy 2.4.6 -> 2.5.0",
        f"{KCPU}: filelock 4.3.1 -> absent",
        "old: no longer in the matrix",
        "old-arm64: no longer in the matrix",
    ]
    assert locks.differences(after, after) == []


def test_another_file_of_the_same_version_is_told(small_lock: Lock) -> None:
    first, *rest = small_lock.cells[K24]
    other = replace(first, sha256="f" * 64)
    after = replace(small_lock, cells={**small_lock.cells, K24: (other, *rest)})
    assert locks.differences(small_lock, after) == [
        f"{K24}: {first.name} {first.version}: another file of the same version"
    ]


def test_what_is_locked_now_and_what_is_not_any_more_is_told(
    small_lock: Lock, make_wheel: MakeWheel
) -> None:
    torch = make_wheel("torch", "2.4.1+rocm6.1")
    after = rocm_lock(small_lock, torch)
    assert locks.differences(small_lock, after) == [f"{KROCM}: locked, 1 wheels"]
    reason = small_lock.unlocked[KROCM]
    assert locks.differences(after, small_lock) == [f"{KROCM}: unlocked: {reason}"]
    why = replace(small_lock, unlocked={KROCM: "uv found no solution when this was locked"})
    assert locks.differences(small_lock, why) == [
        f"{KROCM}: unlocked: uv found no solution when this was locked"
    ]


def test_moved_aliases_bases_and_tools_are_told(small_lock: Lock, make_wheel: MakeWheel) -> None:
    tools = tuple(make_wheel(wheel.name, "9.0") for wheel in small_lock.tools["3.11"])
    after = replace(
        small_lock,
        tools={**small_lock.tools, "3.11": tools, "3.12": tools},
        bases={BASE: "sha256:cd", "new": "sha256:ef"},
        aliases={"cpu": CPU, "latest": T22} | {"newest": CPU},
    )
    assert locks.differences(small_lock, after) == [
        "tools for Python 3.11: flit-core 4.2.0 -> 9.0",
        "tools for Python 3.11: uv 0.13.9 -> 9.0",
        "tools for Python 3.12: locked, 2 wheels",
        "base new: absent -> sha256:ef",
        f"base {BASE}: sha256:{'ab' * 32} -> sha256:cd",
        f"alias cu121: {T24} -> absent",
        f"alias cu130: {CU130} -> absent",
        f"alias latest: {T24} -> {T22}",
        f"alias newest: absent -> {CPU}",
        f"alias rocm6.1: {ROCM} -> absent",
    ]


# ---------------------------------------------------------------- dates


def test_a_rule_is_to_be_looked_at_again_from_its_day_on(small: Matrix) -> None:
    assert list(locks.expiring(small, date(2098, 12, 31))) == []
    said = ["rule slow-start was to be looked at again on 2099-01-01: its first collective is slow"]
    assert list(locks.expiring(small, date(2099, 1, 1))) == said
    assert list(locks.expiring(small, date(2100, 1, 1))) == said


def test_a_signing_key_is_told_before_it_ends(parse_matrix: ParseMatrix, small_text: str) -> None:
    base = "    base: auto\n"
    assert small_text.count(base) == 1
    key, other = "AB" * 20, "CD" * 20
    keys = (
        f'    signing_keys:\n      - {{fingerprint: {key}, expires: "2031-06-30"}}\n'
        f'      - {{fingerprint: {other}, expires: "2033-01-01"}}\n'
    )
    matrix = parse_matrix(small_text.replace(base, base + keys))
    said = [f"debian12: the signing key {key} ends on 2031-06-30"]
    early = date(2031, 6, 30) - locks.EXPIRY_NOTICE
    assert list(locks.expiring(matrix, early - timedelta(days=1))) == []
    assert list(locks.expiring(matrix, early)) == said
    assert list(locks.expiring(matrix, date(2031, 7, 1))) == said
    assert len(list(locks.expiring(matrix, date(2099, 1, 1)))) == 3


def test_every_debian_system_of_the_committed_matrix_has_its_keys(real: Project) -> None:
    for name, system in real.matrix.systems.items():
        bootstrapped = system.base != "registry"
        assert bool(system.signing_keys) == bootstrapped, name
