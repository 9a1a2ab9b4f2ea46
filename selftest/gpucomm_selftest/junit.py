"""The report as JUnit XML: one suite for each stage, one case for each check.

Pure: the JSON report in, bytes out. A stage that was not reached is skipped; what it found
stands in a case of the stage itself.
"""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

# What XML 1.0 cannot hold, even escaped: https://www.w3.org/TR/xml/#charsets
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_DECIDED = ("pass", "fail", "hang")


def _clean(text: object) -> str:
    return _ILLEGAL.sub("?", str(text))


def _told(finding: Mapping[str, Any]) -> str:
    parts = [("measured", "measured"), ("expected", "expected"), ("cause", "cause")]
    parts += [("do", "action"), ("Kubernetes", "kubernetes"), ("Slurm", "slurm")]
    return "\n".join(f"{name}: {finding[key]}" for name, key in parts if finding.get(key))


def _case(suite: ElementTree.Element, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite,
        "testcase",
        {
            "name": _clean(name),
            "classname": f"gpucomm_selftest.{suite.get('name')}",
            "time": f"{seconds:.3f}",
        },
    )


def _stage_case(
    suite: ElementTree.Element, stage: Mapping[str, Any], found: list[Mapping[str, Any]]
) -> None:
    case = _case(suite, stage["id"], stage["seconds"])
    failed = [one for one in found if one["level"] == "fail"]
    for one in failed:
        title = _clean(f"{one['id']}: {one['title']}")
        ElementTree.SubElement(
            case, "failure", {"message": title, "type": one["id"]}
        ).text = _clean(_told(one))
    if stage["status"] not in _DECIDED:
        message = _clean(f"{stage['status']}: {stage['summary']}".rstrip(": "))
        ElementTree.SubElement(case, "skipped", {"message": message})
    elif stage["status"] != "pass" and not failed:
        ElementTree.SubElement(case, "failure", {"message": _clean(stage["summary"])})
    said = [
        f"{one['level'].upper()} {one['id']}: {one['title']}: {one['measured']}"
        for one in found
        if one["level"] not in ("fail", "pass")
    ]
    if said:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(said))


def _row_case(suite: ElementTree.Element, row: Mapping[str, Any]) -> None:
    case = _case(suite, row["check"], 0.0)
    ranks = row.get("ranks", {})
    said = "\n".join(f"rank {rank}: {words}" for rank, words in ranks.items())
    if row["level"] == "fail":
        ElementTree.SubElement(case, "failure", {"message": "not exact"}).text = _clean(said)
    elif row["level"] == "unsupported":
        ElementTree.SubElement(case, "skipped", {"message": _clean(said) or "unsupported"})


def junit(report: Mapping[str, Any]) -> bytes:
    """One document. Its failures are those of the report; its skipped cases were not decided."""
    root = ElementTree.Element("testsuites", {"name": report["program"]})
    stages = [*report["stages"]]
    known = {stage["id"] for stage in stages}
    after = [one for one in report["findings"] if one.get("stage") not in known]
    if after:
        level = "fail" if any(one["level"] == "fail" for one in after) else "pass"
        stages.append(
            {"id": "tear-down", "status": level, "seconds": 0.0, "summary": "", "rows": []}
        )
    for stage in stages:
        suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(stage["id"])})
        own = (
            after
            if stage["id"] == "tear-down"
            else [one for one in report["findings"] if one.get("stage") == stage["id"]]
        )
        _stage_case(suite, stage, own)
        for row in stage["rows"]:
            if "check" in row and "level" in row:
                _row_case(suite, row)
    for suite in root:
        _count(suite, suite)
        suite.set("time", f"{float(suite[0].get('time', '0')):.3f}")
    _count(root, root)
    root.set("time", f"{report['seconds']:.3f}")
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _count(element: ElementTree.Element, within: ElementTree.Element) -> None:
    cases = list(within.iter("testcase"))
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    element.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    element.set("errors", "0")
