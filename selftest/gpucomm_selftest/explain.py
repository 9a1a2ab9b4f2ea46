"""What each finding means, without a run: `gpucomm-selftest explain`, and docs/findings.md.

Reads the tables in kinds/ and nothing else, so it works offline and without torch.
"""

import difflib
import textwrap
from collections.abc import Iterator, Sequence

from gpucomm_selftest.errors import UsageError
from gpucomm_selftest.kinds import KINDS
from gpucomm_selftest.kinds.kind import Kind

# By the first two digits of an id.
GROUPS = {
    "01": "Versions, libraries and GPUs",
    "02": "Start of the process group",
    "03": "Data that collectives return",
    "04": "Machine and container",
    "05": "Environment variables",
    "06": "Topology",
    "07": "Launchers and rendezvous",
    "08": "Differences between ranks",
    "09": "Processes of the self-test",
}

_WIDTH = 100
_CLOSE = 0.6


def group_of(finding_id: str) -> str:
    return GROUPS[finding_id[2:4]]


def _parts(kind: Kind) -> Iterator[tuple[str, str]]:
    yield "expected", kind.expected
    for name, text in (
        ("cause", kind.cause),
        ("do", kind.action),
        ("Kubernetes", kind.kubernetes),
        ("Slurm", kind.slurm),
        ("source", kind.source),
    ):
        if text:
            yield name, text


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _whole(finding_id: str) -> list[str]:
    kind = KINDS[finding_id]
    lines = _wrapped(f"{finding_id}  ", f"{kind.level.upper()}: {kind.title}")
    for name, text in _parts(kind):
        lines += _wrapped(f"  {name.ljust(12)}", text)
    return lines


def _unknown(finding_id: str) -> str:
    close = difflib.get_close_matches(finding_id, KINDS, n=1, cutoff=_CLOSE)
    hint = f"; did you mean {close[0]}?" if close else "; `explain` alone lists all"
    return f"explain {finding_id}: no such finding{hint}"


def explain(finding_ids: Sequence[str]) -> list[str]:
    """The lines that explain these findings, or a list of all. Raises UsageError."""
    wanted = list(dict.fromkeys(one.strip().upper() for one in finding_ids))
    unknown = [one for one in wanted if one not in KINDS]
    if unknown:
        raise UsageError("; ".join(_unknown(one) for one in unknown))
    if wanted:
        return [line for one in wanted for line in [*_whole(one), ""]][:-1]
    lines: list[str] = []
    for prefix, title in GROUPS.items():
        members = [(one, kind) for one, kind in sorted(KINDS.items()) if one[2:4] == prefix]
        if members:
            lines += [*([""] if lines else []), title]
            for one, kind in members:
                lines += _wrapped(f"  {one}  {kind.level.ljust(11)}  ", kind.title)
    return lines


def markdown() -> str:
    """docs/findings.md, whole."""
    lines = [
        "# Findings",
        "",
        "Generated from `selftest/gpucomm_selftest/kinds/` by `gpucomm render`: do not edit.",
        "An id keeps its meaning for ever. Only the level `fail` changes the exit code.",
        "`gpucomm-selftest explain ID` prints the same without a network.",
    ]
    for prefix, title in GROUPS.items():
        members = [one for one in sorted(KINDS) if one[2:4] == prefix]
        if members:
            lines += ["", f"## {title}"]
        for one in members:
            kind = KINDS[one]
            lines += ["", f"### {one}: {kind.title}", "", f"- level: **{kind.level}**"]
            lines += [f"- {name}: {text}" for name, text in _parts(kind)]
    return "\n".join(lines) + "\n"
