"""lock.py: matrix.lock read and written, and every way in which it fails to answer the matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucomm import lock as locks
from gpucomm.cell import Cell, cells_of
from gpucomm.errors import WrongInput
from gpucomm.lock import EMPTY, Lock, Wheel
from gpucomm.project import Project
from gpucomm.schema import Matrix

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]
T22, T24 = "cu121-torch2.2.2-nccl2.19.3", "cu121-torch2.4.1-nccl2.20.5"
CPU = "cpu-torch2.13.0"


def cell_named(matrix: Matrix, name: str) -> Cell:
    return next(cell for cell in cells_of(matrix) if cell.id == name)


def with_version(lock: Lock, key: str, package: str, version: str | None) -> Lock:
    """`lock` with another version of one package in one cell, or without it."""
    rows = [
        replace(wheel, version=version) if wheel.name == package and version else wheel
        for wheel in lock.cells[key]
        if version or wheel.name != package
    ]
    return replace(lock, cells={**lock.cells, key: tuple(rows)})


def test_the_committed_lock_answers_the_committed_matrix(root: Path, real: Project) -> None:
    lock = locks.load(root, real.matrix)
    assert list(locks.faults_of(real.matrix, lock)) == []
    for cell in cells_of(real.matrix):
        assert lock.version(cell, "torch")
    sums = [wheel.sha256 for rows in lock.cells.values() for wheel in rows]
    assert all(len(digest) == 64 and int(digest, 16) for digest in sums)


def test_what_is_written_is_read_again(tmp_path: Path, small_lock: Lock) -> None:
    locks.write(tmp_path, small_lock)
    assert locks.read(tmp_path) == small_lock
    before = (tmp_path / "matrix.lock").read_bytes()
    locks.write(tmp_path, locks.read(tmp_path))
    assert (tmp_path / "matrix.lock").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["matrix.lock"]


def test_a_lock_names_no_index(root: Path) -> None:
    assert "://" not in (root / "matrix.lock").read_text()


def test_an_absent_lock_is_empty_and_does_not_answer(tmp_path: Path, small: Matrix) -> None:
    assert locks.read(tmp_path) == EMPTY
    with pytest.raises(WrongInput) as caught:
        locks.load(tmp_path, small)
    assert f"matrix.lock: {T24}: not locked; run gpucomm lock" in caught.value.faults
    assert len(caught.value.faults) == 6  # five pin lists and the tools


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
        '<<<<<<< HEAD\n{"version": 1}\n=======\n',
    ],
)
def test_a_broken_lock_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "matrix.lock").write_text(text)
    with pytest.raises(WrongInput) as caught:
        locks.read(tmp_path)
    (fault,) = caught.value.faults
    assert fault.startswith("matrix.lock: not a lock (")
    assert fault.endswith("run gpucomm lock")
    assert "\n" not in fault


def test_a_lock_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "matrix.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(WrongInput, match=r"matrix\.lock: not a lock"):
        locks.read(tmp_path)


def test_the_small_lock_answers(small: Matrix, small_lock: Lock) -> None:
    assert list(locks.faults_of(small, small_lock)) == []


@pytest.mark.parametrize(
    ("key", "package", "version", "message"),
    [
        pytest.param(T24, "torch", "2.4.0", "torch is 2.4.0, the matrix says 2.4.1", id="torch"),
        pytest.param(T24, "torch", None, "torch is None", id="no-torch"),
        pytest.param(
            T24, "nvidia-nccl-cu12", "2.21.5", "NCCL is 2.21.5, the matrix says 2.20.5", id="nccl"
        ),
        pytest.param(T24, "nvidia-nccl-cu12", None, "NCCL is None", id="no-nccl"),
        pytest.param(
            T24, "nvidia-cuda-runtime-cu12", "12.4.127",
            "requires CUDA runtime 12.4.127, the line is CUDA 12.1", id="other-cuda",
        ),
        pytest.param(
            T24, "nvidia-cuda-runtime-cu12", "11.8.89",
            "requires CUDA runtime 11.8.89, the line is CUDA 12.1", id="older-cuda",
        ),
        pytest.param(
            T24, "nvidia-cuda-runtime-cu12", "12.10.1",
            "requires CUDA runtime 12.10.1, the line is CUDA 12.1", id="a-prefix-is-not-enough",
        ),
        pytest.param(
            T24, "nvidia-cuda-runtime-cu12", None, "requires CUDA runtime None", id="no-cuda"
        ),
        pytest.param(
            T24, "nvidia-nvjitlink-cu12", "12.9.86",
            "nvidia-nvjitlink-cu12 is 12.9.86, held at ==12.1.*: left alone it floats",
            id="hold-nvjitlink",
        ),
        pytest.param(
            T22, "numpy", "2.4.6", "numpy is 2.4.6, held at <2: that torch was compiled",
            id="hold-numpy",
        ),
        pytest.param(T24, "numpy", None, "numpy is missing", id="with"),
        pytest.param(CPU, "torch", "2.12.0+cpu", "torch is 2.12.0+cpu, the matrix says 2.13.0",
                     id="cpu-torch"),
    ],
)  # fmt: skip
def test_one_wrong_wheel_is_one_fault(
    key: str, package: str, version: str | None, message: str, small: Matrix, small_lock: Lock
) -> None:
    (fault,) = locks.faults_of(small, with_version(small_lock, key, package, version))
    assert fault.startswith(f"{key}: ")
    assert message in fault


def test_a_rule_holds_only_where_it_says(small: Matrix, small_lock: Lock) -> None:
    newer = with_version(small_lock, T24, "numpy", "2.9.0")
    assert list(locks.faults_of(small, newer)) == []
    rules = {
        cell.id: [hold.package for hold in locks.holds_for(small, cell)]
        for cell in cells_of(small)
        if cell.flavor == "runtime" and not cell.nccl_overridden
    }
    assert rules == {
        T22: ["nvidia-nvjitlink-cu12", "numpy"],
        T24: ["nvidia-nvjitlink-cu12"],
        CPU: [],
    }


REAL_HOLDS = {
    # a rule of the real matrix -> a version that it must refuse
    "nvidia-nvjitlink-cu12": "12.9.86",
    "numpy": "2.0.0",
    "setuptools": "70.0.0",
}


def test_every_rule_of_the_real_matrix_refuses_something(real: Project) -> None:
    assert {hold.package for hold in real.matrix.holds} == REAL_HOLDS.keys(), (
        "a new rule needs a version here that it refuses"
    )
    for hold in real.matrix.holds:
        floating = REAL_HOLDS[hold.package]
        ruled = [
            cell for cell in cells_of(real.matrix) if hold in locks.holds_for(real.matrix, cell)
        ]
        assert ruled, f"no cell is under the rule for {hold.package}"
        for cell in ruled:
            wrong = with_version(real.lock, cell.pins_id, hold.package, floating)
            faults = list(locks.cell_faults(real.matrix, wrong, cell))
            assert any(hold.reason in fault for fault in faults), (cell.id, faults)


def test_a_wheel_of_another_cuda_is_refused_on_every_real_cuda_cell(real: Project) -> None:
    for cell in cells_of(real.matrix):
        if cell.cuda is None:
            continue
        other = "12.4.127" if cell.cuda != "12.4" else "12.1.105"
        wrong = with_version(real.lock, cell.pins_id, locks.CUDA_RUNTIME, other)
        faults = list(locks.cell_faults(real.matrix, wrong, cell))
        assert [f"the line is CUDA {cell.cuda}" in fault for fault in faults] == [True]


def test_a_cuda_build_of_torch_is_refused_on_a_cpu_line(
    small: Matrix, small_lock: Lock, make_wheel: MakeWheel
) -> None:
    cuda = (
        make_wheel("numpy", "2.4.6"),
        make_wheel("nvidia-cuda-runtime-cu12", "12.8.90"),
        make_wheel("nvidia-nccl-cu12", "2.28.9"),
        make_wheel("torch", "2.13.0"),
    )
    wrong = replace(small_lock, cells={**small_lock.cells, CPU: cuda})
    assert list(locks.faults_of(small, wrong)), "the gate takes CUDA wheels for the CPU line"


@pytest.mark.parametrize(
    ("version", "sign"), [("2.13.0+cu128", "+cu128"), ("2.13.0+cu118", "+cu118")]
)
def test_a_cuda_build_without_nvidias_wheels_is_known_by_its_version(
    version: str, sign: str, small: Matrix, small_lock: Lock
) -> None:
    wrong = with_version(small_lock, CPU, "torch", version)
    (fault,) = locks.faults_of(small, wrong)
    assert fault == f"{CPU}: torch is a CUDA build ({sign}), the line is CPU"


def test_missing_and_stray_entries_are_named_at_once(small: Matrix, small_lock: Lock) -> None:
    cells = dict(small_lock.cells)
    cells["cu124-torch9"] = cells.pop(T24)
    faults = list(locks.faults_of(small, replace(small_lock, cells=cells)))
    assert faults == [f"{T24}: not locked", "cu124-torch9: locked but not in the matrix"]


@pytest.mark.parametrize(
    "locked", [(), ("uv",), ("uv", "other"), ("other",), ("uv", "other", "third")]
)
def test_a_missing_tool_is_named(
    locked: tuple[str, ...], small: Matrix, small_lock: Lock, make_wheel: MakeWheel
) -> None:
    tools = {"3.11": tuple(make_wheel(name, "1.0") for name in locked)}
    faults = list(locks.faults_of(small, replace(small_lock, tools=tools)))
    assert faults == ["the tools for Python 3.11 are not locked"]


def test_a_flavor_leaves_its_wheels_out(small: Matrix, small_lock: Lock) -> None:
    runtime = small_lock.wheels(cell_named(small, T24), small)
    slim = small_lock.wheels(cell_named(small, f"{T24}-slim"), small)
    assert {wheel.name for wheel in runtime} - {wheel.name for wheel in slim} == {"triton"}


def test_a_pin_accepts_one_file(make_wheel: MakeWheel) -> None:
    wheel = make_wheel("torch", "2.4.1")
    assert wheel.pin == f"torch==2.4.1 --hash=sha256:{wheel.sha256}"


def test_differences_are_one_line_per_version(small_lock: Lock, make_wheel: MakeWheel) -> None:
    after = with_version(small_lock, T24, "numpy", "2.5.0")
    after = with_version(after, CPU, "filelock", None)
    extra = (*after.cells[T22], make_wheel("new", "1.0"))
    after = replace(after, cells={**after.cells, T22: extra}, bases={"debian12": "sha256:cd"})
    before = replace(small_lock, cells={**small_lock.cells, "old": ()})
    assert locks.differences(before, after) == [
        f"{T22}: new absent -> 1.0",
        f"{T24}: numpy 2.4.6 -> 2.5.0",
        f"{CPU}: filelock 4.3.1 -> absent",
        "old: no longer in the matrix",
        f"base debian12: sha256:{'ab' * 32} -> sha256:cd",
    ]
    assert locks.differences(after, after) == []
