"""documents.py, docs/MATRIX.md and docs/matrix.schema.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from gpucomm import documents, located, schema
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.standard import cells_of

TABLES = {"one": "ONE", "two": "TWO\nTWO"}
TEXT = """\
# Title

<!-- gpucomm:begin one -->
<!-- gpucomm:end one -->

by hand

<!-- gpucomm:begin two -->
old
old
<!-- gpucomm:end two -->
the end
"""


@pytest.fixture
def documented(small_project: Project, root: Path) -> Project:
    """The small checkout with the real docs/MATRIX.md."""
    (small_project.places.root / "docs").mkdir()
    shutil.copyfile(root / documents.MATRIX, small_project.places.root / documents.MATRIX)
    return small_project


def test_fill_replaces_what_is_between_the_markers_alone() -> None:
    filled = documents.fill(TEXT, TABLES)
    assert filled == TEXT.replace("begin one -->\n", "begin one -->\nONE\n").replace(
        "old\nold", "TWO\nTWO"
    )
    assert documents.fill(filled, TABLES) == filled


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<!-- gpucomm:begin one -->\n", "", "give <!-- gpucomm:begin one --> and, after it"),
        ("<!-- gpucomm:end two -->\n", "", "<!-- gpucomm:end two --> a line each"),
        ("begin one", "begin won", "docs/MATRIX.md:3: there is no table 'won'; there is one, two"),
        ("# Title", "<!-- gpucomm:begin one -->", "the marker gpucomm:begin one stands twice"),
        ("<!-- gpucomm:begin two", "> <!-- gpucomm:begin two", "begin two"),
    ],
)
def test_wrong_markers_are_a_clear_fault(old: str, new: str, said: str) -> None:
    with pytest.raises(WrongInput) as caught:
        documents.fill(TEXT.replace(old, new), TABLES)
    assert said in str(caught.value)
    assert all(fault.startswith("docs/MATRIX.md:") for fault in caught.value.faults)


def test_markers_in_the_wrong_order() -> None:
    a, b = "<!-- gpucomm:begin one -->", "<!-- gpucomm:end one -->"
    with pytest.raises(WrongInput, match="after it"):
        documents.fill(f"{b}\n{a}\n", {"one": "ONE"})


def test_tables_inside_of_each_other() -> None:
    lines = ["begin one", "begin two", "end one", "end two"]
    text = "\n".join(f"<!-- gpucomm:{line} -->" for line in lines)
    with pytest.raises(WrongInput, match="the table one is not ended before"):
        documents.fill(text, TABLES)


def test_a_checkout_without_docs_has_no_documents(small_project: Project) -> None:
    assert documents.documents(small_project) == {}
    assert list(documents.drift(small_project)) == []
    assert documents.write(small_project) == []


def test_the_hand_written_part_cannot_be_rendered(small_project: Project) -> None:
    (small_project.places.root / "docs").mkdir()
    with pytest.raises(WrongInput, match="missing; its text is written by hand"):
        documents.documents(small_project)


def test_write_then_no_drift(documented: Project) -> None:
    assert [fault.split(":")[0] for fault in documents.drift(documented)] == [
        documents.MATRIX,
        documents.SCHEMA,
    ]
    assert documents.write(documented) == [documents.MATRIX, documents.SCHEMA]
    assert list(documents.drift(documented)) == []
    assert documents.write(documented) == []
    path = documented.places.root / documents.MATRIX
    text = path.read_text()
    for cell in cells_of(documented.matrix):
        assert f"| {cell.id} |" in text
    path.write_text(text.replace("| arm64-early |", "| arm64-late |"))
    assert list(documents.drift(documented)) == [
        "docs/MATRIX.md: differs from what the matrix renders; run gpucomm render"
    ]


def test_a_proof_without_evidence_is_drift(documented: Project) -> None:
    documents.write(documented)
    folder = documented.places.root / "docs" / "evidence"
    folder.mkdir()
    rows = {"cpu-torch2.13.0": [{"level": "cpu", "date": "2026-01-02", "evidence": "docs/no"}]}
    (folder / "proofs.json").write_text(json.dumps(rows))
    documents.write(documented)
    assert list(documents.drift(documented)) == [
        "docs/evidence/proofs.json:1:61: cpu-torch2.13.0.0.evidence: there is no file docs/no"
    ]
    assert "verified on CPU" in (documented.places.root / documents.MATRIX).read_text()


def test_every_rule_and_source_is_in_the_real_page(real: Project) -> None:
    text = documents.documents(real)[documents.MATRIX]
    matrix = real.matrix
    for name, rule in matrix.rules.items():
        assert f"| {name} | " in text
        assert rule.reason in text
    for name in (*matrix.checks, *matrix.lines):
        assert f"| {name} | " in text
    for source in matrix.sources.values():
        assert source.read in text
        assert source.url is None or source.url in text
    for row in matrix.left_out:
        assert f"| {row.line} | {row.torch} | {row.reason} |" in text


def test_the_schema_takes_the_real_matrix_and_refuses_a_wrong_one(real: Project) -> None:
    json_schema = json.loads(documents.documents(real)[documents.SCHEMA])
    jsonschema.Draft202012Validator.check_schema(json_schema)
    data = located.read(real.places.root / "matrix.yaml").data
    validator = jsonschema.Draft202012Validator(json_schema)
    assert list(validator.iter_errors(data)) == []
    wrong = {**data, "colour": "red"}
    assert [error.validator for error in validator.iter_errors(wrong)] == ["additionalProperties"]
    wrong = {**data, "version": 1}
    assert len(list(validator.iter_errors(wrong))) == 1


def test_the_schema_does_not_depend_on_the_run() -> None:
    assert json.dumps(schema.json_schema()) == json.dumps(schema.json_schema())
