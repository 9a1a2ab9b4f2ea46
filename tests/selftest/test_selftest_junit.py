"""The report as JUnit XML: valid for any report, and with the failures of the report."""

from typing import Any
from xml.etree import ElementTree

import pytest
from tests.selftest.test_selftest_text import REPORTS, passed, told

from gpucomm_selftest.junit import junit


def parsed(report: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(junit(report))  # noqa: S314  written by us


@pytest.mark.parametrize("name", REPORTS)
def test_the_counts_are_those_of_the_cases(name: str) -> None:
    report = REPORTS[name]()
    root = parsed(report)
    assert [suite.get("name") for suite in root] == [one["id"] for one in report["stages"]]
    for element in [root, *root]:
        cases = list(element.iter("testcase"))
        assert element.get("tests") == str(len(cases)) != "0"
        assert element.get("failures") == str(sum(c.find("failure") is not None for c in cases))
        assert element.get("skipped") == str(sum(c.find("skipped") is not None for c in cases))
    assert (root.get("failures") == "0") == (report["verdict"] == "pass")


def test_each_check_is_a_case_and_what_is_wrong_names_its_rank() -> None:
    report = REPORTS["wrong"]()
    root = parsed(report)
    suite = next(suite for suite in root if suite.get("name") == "correctness")
    assert len(suite) == 1 + len(report["stages"][2]["rows"])
    case = next(c for c in suite if c.get("name") == "all_gather fp32 n=1021")
    failure = case.find("failure")
    assert failure is not None
    assert "rank 1: fail: 7 of 2042 elements wrong" in (failure.text or "")
    refused = next(c for c in suite if c.get("name") == "broadcast bf16 n=1")
    assert refused.find("skipped") is not None


def test_a_stage_that_was_not_reached_is_skipped_and_a_hang_fails() -> None:
    root = parsed(REPORTS["hung"]())
    init, correctness = root[1], root[2]
    assert init[0].find("failure") is not None
    skipped = correctness[0].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not reached: needs init"


def test_a_finding_after_the_last_stage_has_a_suite_of_its_own() -> None:
    report = passed()
    report["findings"] = [told("GC0905", "rank 1", "")]
    suite = parsed(report)[-1]
    assert suite.get("name") == "tear-down"
    assert suite[0].find("failure") is not None


def test_what_xml_cannot_hold_is_replaced() -> None:
    report = passed()
    dirty = "a\x00b\x1b[31m\ud800\ufffe<&>\"'"
    report["findings"] = [told("GC0903", dirty, "init")]
    failure = parsed(report)[1][0].find("failure")
    assert failure is not None
    assert "a?b?[31m??<&>\"'" in (failure.text or "")
