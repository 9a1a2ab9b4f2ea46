"""report.py: the table that ends a command, for a person and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpucomm import report
from gpucomm.project import Project
from gpucomm.report import Row
from gpucomm.standard import cells_of

DIGEST = f"sha256:{'0123456789ab' * 6}"[:71]
ROWS = [
    Row(cell="one", result="built, verified", seconds=123.44, size=5_600_000_000, digest=DIGEST),
    Row(cell="two", result="failed", seconds=3.0),
    Row(cell="three", result="not reached", seconds=0),
]


def shown(rows: list[Row], *, terminal: bool = False, width: int = 100) -> list[str]:
    text = io.StringIO()
    report.show(Console(file=text, force_terminal=terminal, width=width), rows)
    return [line for line in text.getvalue().splitlines() if line.strip()]


def test_an_empty_line_parts_the_table_from_what_came_before() -> None:
    text = io.StringIO()
    report.show(Console(file=text, width=100), ROWS)
    first, second, *rest = text.getvalue().splitlines()
    assert first == ""
    assert second.startswith("cell ")
    assert len(rest) == len(ROWS)


def test_a_row_has_result_time_size_and_short_digest() -> None:
    lines = shown(ROWS)
    assert lines[0].split() == ["cell", "result", "time", "size", "digest"]
    words = ["one", "built,", "verified", "123.4", "s", "5.60", "GB", "0123456789ab"]
    assert lines[1].replace("sha256:", "").split() == words
    assert lines[2].split() == ["two", "failed", "3.0", "s"]
    assert lines[3].split() == ["three", "not", "reached"]
    assert len(lines) == 4


def test_a_log_has_no_colours_and_a_terminal_has() -> None:
    assert "\x1b" not in "".join(shown(ROWS))
    colours = shown(ROWS, terminal=True)
    assert "\x1b[31m" in next(line for line in colours if "failed" in line)
    assert "\x1b[33m" in next(line for line in colours if "not reached" in line)
    assert "\x1b[31m" not in next(line for line in colours if "one" in line)


@pytest.mark.parametrize(
    ("result", "seconds"),
    [("verified", 1234.5), ("up to date", 123.4)],
)
def test_no_real_cell_is_cut_and_the_aliases_fit_100_columns(
    result: str, seconds: float, real: Project
) -> None:
    ids = [cell.id for cell in cells_of(real.matrix)]
    rows = [
        Row(cell=name, result=result, seconds=seconds, size=6_400_000_000, digest=DIGEST)
        for name in ids
    ]
    lines = shown(rows)[1:]
    assert len(lines) == len(ids)
    for name, line in zip(ids, lines, strict=True):
        assert line.startswith(f"{name} ")
        assert result in line
        assert line.endswith("0123456789ab")
    aliases = [row for row in rows if row.cell in real.matrix.aliases.values()]
    assert max(map(len, shown(aliases))) <= 100
