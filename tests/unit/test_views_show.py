"""show.py and facts.py: everything about a cell, as data and as text."""

from __future__ import annotations

import json
import re

import pytest

from gpucomm import facts, show
from gpucomm.project import Project
from gpucomm.proof import Proof, Proofs
from gpucomm.standard import by_id, cells_of, on_demand

T24 = "cu121-torch2.4.1-nccl2.20.5"
NONE = Proofs()


def text(project: Project, name: str, proofs: Proofs = NONE) -> str:
    cell = on_demand(project.matrix, name)
    return "\n".join(show.text_of(show.data_of(project, proofs, cell)))


def test_a_locked_cell(small_project: Project) -> None:
    data = show.data_of(small_project, NONE, by_id(small_project.matrix)[T24])
    assert data["image"] == f"registry.example/team/gpucomm:{T24}"
    assert data["tags"] == [T24, "cu121", "latest"]
    assert data["standard"] == ["every torch on every line"]
    assert data["platforms"] == ["amd64"]
    reason = "these aarch64 wheels are CPU builds"
    assert data["not_on"] == [{"platform": "arm64", "rule": "arm64-early", "reason": reason}]
    assert data["driver"] == {"floor": "525.60.13", "toolkit": "530.30.02"}
    assert data["gpus"] == {"amd64": ["7.0", "9.0"]}
    assert data["packages"] == ["tini", "gcc", "libc6-dev"]
    assert data["unlocked"] == {}
    versions = {row["name"]: row["version"] for row in data["wheels"]["amd64"]}
    assert (versions["torch"], versions["nvidia-nccl-cu12"]) == ("2.4.1", "2.20.5")
    assert data["download"] == {"amd64": 1_000_000 * len(versions)}
    assert data["proof"] == "rendered"
    assert data["run"] == (
        f"docker run --rm -it --ipc=host --gpus all registry.example/team/gpucomm:{T24}"
    )


def test_where_each_value_comes_from(small_project: Project) -> None:
    matrix = small_project.matrix

    def origin(name: str, value: str) -> str:
        values = facts.values_of(matrix, on_demand(matrix, name))
        return next(one.origin for one in values if one.name == value)

    assert origin(T24, "NCCL") == "lines.cu121.torch.2.4.1.nccl: what the wheel requires"
    override = origin("cu121-torch2.4.1-nccl2.21.5", "NCCL")
    assert override.startswith("the cell id, one of lines.cu121.torch.2.4.1.overrides")
    assert override.endswith("the wheel requires 2.20.5")
    assert origin(T24, "os") == "defaults.os"
    assert origin("cu121-torch2.4.1-ubuntu24.04", "os") == "the cell id"
    assert origin(T24, "flavor") == "defaults.flavor"
    assert origin(f"{T24}-slim", "flavor") == "the cell id"
    assert origin(f"{T24}-mpi", "extra") == "the cell id"
    assert origin(T24, "base") == "systems.debian12.image"
    assert origin("cu121-torch2.4.1-ubuntu24.04-devel", "base") == "systems.ubuntu24.04.devel_image"
    assert origin(T24, "index") == "default index; torch.2.4.1.default is cu121"
    assert origin("rocm6.1-torch2.4.1", "index").endswith("https://wheels.example/whl/rocm6.1")
    assert origin("rocm6.1-torch2.4.1", "RCCL").startswith("lines.rocm6.1.rccl")
    assert "no GPU" in origin("cpu-torch2.13.0", "Gloo")


def test_gpu_targets_and_linked_nccl_of_the_real_matrix(real: Project) -> None:
    matrix = real.matrix

    def values(name: str) -> dict[str, tuple[str, str]]:
        found = facts.values_of(matrix, on_demand(matrix, name))
        return {one.name: (one.value, one.origin) for one in found}

    default, chosen = values("rocm7.14-torch2.14.1"), values("rocm7.14-torch2.14.1-gfx942")
    assert default["GPU targets"][1] == "lines.rocm7.14.gpu_targets.default"
    assert chosen["GPU targets"] == ("gfx942", "the cell id")
    assert values("cu118-torch2.1.2")["NCCL"][0] == "inside torch"


def test_an_unlocked_cell_says_why_and_what_it_wants(small_project: Project) -> None:
    said = text(small_project, "rocm6.1-torch2.4.1")
    assert "wheels on amd64 are unlocked: the PyTorch index of rocm6.1 could not" in said
    assert "\n  torch==2.4.1+rocm6.1\n" in said
    assert "download" not in said


def test_how_rocm_is_run(small_project: Project) -> None:
    line = text(small_project, "rocm6.1-torch2.4.1").splitlines()[-1]
    for option in (
        "--device=/dev/kfd", "--device=/dev/dri", "--group-add video", "--ipc=host",
        '--group-add "$(stat -c %g /dev/kfd)"', "--security-opt seccomp=unconfined",
    ):  # fmt: skip
        assert option in line
    assert "--gpus" not in line
    assert "--gpus" not in text(small_project, "cpu-torch2.13.0")


def test_proof_and_known_faults_are_shown(small_project: Project) -> None:
    name = "cu121-torch2.2.2-nccl2.19.3"
    proof = Proof(level="gpu", device="NVIDIA X1", date="2026-01-02", evidence="docs/evidence/x.md")
    said = text(small_project, name, Proofs(by_cell={name: (proof,)}))
    assert "verified on GPU (NVIDIA X1, 2026-01-02), docs/evidence/x.md" in said
    assert "known fault, slow-start: its first collective is slow" in said
    assert "numpy is held: that torch was compiled for numpy 1" in said


def test_a_cell_on_demand_is_shown_as_such(small_project: Project) -> None:
    assert "no: it is made on demand" in text(small_project, f"{T24}-mpi")


@pytest.mark.parametrize("form", ["json", "text"])
def test_every_real_cell_can_be_shown(form: str, real: Project) -> None:
    for cell in cells_of(real.matrix):
        data = show.data_of(real, NONE, cell)
        if form == "json":
            assert json.loads(json.dumps(data)) == data
        else:
            lines = show.text_of(data)
            assert lines[0] == cell.id
            assert all(line == line.rstrip() for line in lines)
            assert not re.search(r"\bNone\b", "\n".join(lines)), cell.id
        assert set(data["wheels"]) | set(data["unlocked"]) == set(data["platforms"])
