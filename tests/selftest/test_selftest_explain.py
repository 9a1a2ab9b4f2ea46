"""`gpucomm-selftest explain`, docs/findings.md, and what every kind of finding must say."""

from pathlib import Path

import pytest

from gpucomm_selftest import explain
from gpucomm_selftest.cli import main
from gpucomm_selftest.kinds import KINDS
from gpucomm_selftest.kinds.kind import LEVELS, PASS

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"


@pytest.mark.parametrize("finding_id", KINDS)
def test_a_kind_says_everything_and_fits_the_terminal(
    finding_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = KINDS[finding_id]
    assert finding_id[:2] == "GC"
    assert finding_id[2:].isdigit()
    assert len(finding_id) == 6
    assert kind.level in LEVELS
    assert all((kind.title, kind.expected, kind.action))
    assert bool(kind.cause) == (kind.level != PASS)
    assert explain.group_of(finding_id)
    assert main(["explain", finding_id.lower()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(len(line) for line in out.splitlines()) <= 100
    said = " ".join(out.split())
    for text in (kind.title, kind.expected, kind.cause, kind.action, kind.kubernetes, kind.slurm):
        assert " ".join(text.split()) in said


def test_two_kinds_never_share_a_title() -> None:
    assert len({kind.title for kind in KINDS.values()}) == len(KINDS)


def test_without_an_id_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {finding_id}  " in out for finding_id in KINDS)
    assert max(len(line) for line in out.splitlines()) <= 100


def test_several_are_explained_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "GC0302", "GC0901", "GC0302"]) == 0
    heads = [line[:6] for line in capsys.readouterr().out.splitlines() if line.startswith("GC")]
    assert heads == ["GC0302", "GC0901"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["GC302"], "explain GC302: no such finding; did you mean GC0302?"),
        (["x", "GC0302"], "explain X: no such finding; `explain` alone lists all"),
        (["x", "y"], "explain X: no such finding; `explain` alone lists all; explain Y: no such"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_the_page_has_every_kind_and_is_the_rendered_one() -> None:
    page = explain.markdown()
    assert page == PAGE.read_text(encoding="utf-8"), "run gpucomm render"
    for finding_id, kind in KINDS.items():
        assert f"### {finding_id}: {kind.title}\n" in page
