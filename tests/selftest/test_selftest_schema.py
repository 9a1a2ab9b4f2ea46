"""docs/selftest.schema.json holds for what the self-test prints, and refuses other things."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from tests.selftest.test_selftest_processes import stand_in
from tests.selftest.test_selftest_text import REPORTS

from gpucomm_selftest.report import SCHEMA

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

FILE = Path(__file__).parents[2] / "docs" / "selftest.schema.json"
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))


def check(report: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(DOCUMENT).validate(report)


def complete(name: str) -> dict[str, Any]:
    return {"schema": SCHEMA, **REPORTS[name]()}


def test_the_schema_is_one_and_has_the_number_of_the_report() -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["properties"]["schema"]["const"] == SCHEMA


@pytest.mark.parametrize("name", REPORTS)
def test_reports_of_every_verdict(name: str) -> None:
    check(complete(name))


@pytest.mark.parametrize(
    "source",
    ["raise ImportError('no')\n", "import os\nos.kill(os.getpid(), 11)\n"],
    ids=["unusable", "crashed"],
)
def test_a_real_report(source: str, plain_run: Runner, tmp_path: Path) -> None:
    report = plain_run.run("--json", environ=stand_in(tmp_path, source)).json
    check(report)
    assert all(one["stage"] == "versions" for one in report["findings"])


@pytest.mark.parametrize(
    "path",
    [
        ("verdict",),
        ("settings", "budget"),
        ("world", "size"),
        ("stages", 0, "status"),
        ("findings", 0, "id"),
        ("findings", 0, "cause"),
    ],
)
@pytest.mark.parametrize("change", ["taken away", "nonsense"])
def test_another_document_is_refused(path: tuple[Any, ...], change: str) -> None:
    report = copy.deepcopy(complete("wrong"))
    inner: Any = report
    for name in path[:-1]:
        inner = inner[name]
    if change == "taken away":
        del inner[path[-1]]
    else:
        inner[path[-1]] = -1
    with pytest.raises(jsonschema.ValidationError):
        check(report)
