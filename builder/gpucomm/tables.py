"""Rows of text as a table: aligned for a person, or in Markdown.

Nothing is ever cut: a cell id that a person copies must be whole. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def plain(rows: Sequence[Row], header: Row | None = None, indent: str = "") -> list[str]:
    """Lines with aligned columns, two spaces between them."""
    lines = [*([header] if header else []), *rows]
    if not lines:
        return []
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        indent
        + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def markdown(header: Row, rows: Sequence[Row]) -> list[str]:
    """The lines of a Markdown table."""
    return [
        _joined(header),
        "|" + "---|" * len(header),
        *(_joined(row) for row in rows),
    ]


def _joined(row: Row) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |"
