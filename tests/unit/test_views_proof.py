"""proof.py and docs/evidence/proofs.json: how far a cell was proved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucomm import proof
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.proof import Proof, Proofs
from gpucomm.schema import Matrix
from gpucomm.standard import on_demand

T24 = "cu121-torch2.4.1-nccl2.20.5"
GPU = {"level": "gpu", "device": "NVIDIA X1", "date": "2026-01-02", "evidence": "docs/evidence/x"}
CPU = {"level": "cpu", "date": "2026-01-03", "evidence": "docs/evidence/x"}


def checkout(root: Path, content: object, evidence: str = T24) -> Path:
    folder = root / "docs" / "evidence"
    folder.mkdir(parents=True)
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    (root / proof.FILE).write_text(text)
    (folder / "x").write_text(evidence)
    return root


def entry(level: str, date: str, device: str | None = None) -> Proof:
    return Proof.model_validate(
        {"level": level, "date": date, "device": device, "evidence": "docs/evidence/x"}
    )


def test_the_highest_level_counts_and_of_it_the_newest() -> None:
    rows = (
        entry("cpu", "2026-03-01"),
        entry("gpu", "2026-01-01", "NVIDIA X1"),
        entry("gpu", "2026-02-01", "NVIDIA X2"),
        entry("built", "2026-04-01"),
    )
    assert Proofs(by_cell={T24: rows}).said(T24) == "verified on GPU (NVIDIA X2, 2026-02-01)"
    assert Proofs(by_cell={T24: rows[::3]}).said(T24) == "verified on CPU"
    assert Proofs(by_cell={T24: rows[3:]}).said(T24) == "built"
    assert Proofs(by_cell={T24: ()}).said(T24) == "rendered"
    assert Proofs().said(T24) == "rendered"
    assert Proofs().highest(T24) is None


def test_a_checkout_without_the_file_proves_nothing(small: Matrix, tmp_path: Path) -> None:
    assert proof.load(tmp_path, small) == Proofs()
    assert list(proof.evidence_faults(tmp_path, small)) == []


def test_proofs_are_read(small: Matrix, tmp_path: Path) -> None:
    root = checkout(tmp_path, {T24: [CPU, GPU], f"{T24}-mpi": [CPU]}, f"{T24} {T24}-mpi")
    found = proof.load(root, small)
    assert found.said(T24) == "verified on GPU (NVIDIA X1, 2026-01-02)"
    assert found.said(f"{T24}-mpi") == "verified on CPU"
    assert list(proof.evidence_faults(root, small)) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "docs/evidence/proofs.json:1:2: not JSON"),
        ('{"a": [],\n"a": []}', "docs/evidence/proofs.json:2:1: a: duplicate key"),
        ({"cu121-torch2.13.0": []}, ":2:2: cu121-torch2.13.0: cu121-torch2.13.0 cannot exist"),
        ({"cu12-torch2.4.1": []}, "'cu12' is not a line"),
        ({"cu121-torch2.4.1": []}, f"the id of this cell is {T24}"),
        ({T24: {}}, ":2:2: "),
        ({T24: [{**CPU, "level": "tpu"}]}, "level: input should be 'built', 'cpu' or 'gpu'"),
        ({T24: [{**CPU, "date": "soon"}]}, "date: 'soon' is not a date"),
        ({T24: [{**CPU, "devise": "x"}]}, "devise: extra inputs are not permitted"),
        ({T24: [{**CPU, "evidence": "../x"}]}, "'../x' is not a path inside the checkout"),
        ({T24: [{**CPU, "evidence": "/x"}]}, "'/x' is not a path inside the checkout"),
        ({T24: [{**CPU, "device": "NVIDIA X1"}]}, "device: without meaning where the level is cpu"),
        ({T24: [{**GPU, "device": None}]}, "device: needed where the level is gpu"),
    ],
)
def test_a_wrong_file_is_located(content: object, said: str, small: Matrix, tmp_path: Path) -> None:
    root = checkout(tmp_path, content)
    with pytest.raises(WrongInput) as caught:
        proof.load(root, small)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{proof.FILE}:")
    assert said in fault


def test_every_fault_is_named_at_once(small: Matrix, tmp_path: Path) -> None:
    root = checkout(tmp_path, {"one": [], T24: [{**GPU, "device": None}]})
    with pytest.raises(WrongInput) as caught:
        proof.load(root, small)
    assert len(caught.value.faults) == 2


def test_evidence_must_be_there_and_name_the_cell(small: Matrix, tmp_path: Path) -> None:
    root = checkout(tmp_path, {T24: [GPU, {**CPU, "evidence": "docs/y"}]}, "another cell")
    assert list(proof.evidence_faults(root, small)) == [
        f"{proof.FILE}:7:4: {T24}.0.evidence: docs/evidence/x does not mention {T24}",
        f"{proof.FILE}:12:4: {T24}.1.evidence: there is no file docs/y",
    ]


def test_the_real_proofs_hold(real: Project) -> None:
    root, matrix = real.places.root, real.matrix
    proofs = proof.load(root, matrix)
    assert list(proof.evidence_faults(root, matrix)) == []
    for name, rows in proofs.by_cell.items():
        assert on_demand(matrix, name).id == name
        assert rows
        for row in rows:
            assert name in (root / row.evidence).read_text()
    assert proofs.said("cu121-torch2.4.1-nccl2.20.5").startswith("verified on GPU (NVIDIA H200, ")
