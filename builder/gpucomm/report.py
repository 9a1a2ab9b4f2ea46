"""The table that ends `gpucomm build`: cell, result, time, size, digest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from gpucomm.progress import human_size


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell's outcome. `size` in bytes, `seconds` of the whole."""

    cell: str
    result: str
    seconds: float
    size: int | None = None
    digest: str = ""


_STYLE = {"failed": "red", "not reached": "yellow"}


def table(rows: Iterable[Row]) -> Table:
    """The rows as a table. Nothing is ever cut: a long cell id makes a long line."""
    titles = ("cell", "result", "time", "size", "digest")
    texts = [
        (
            row.cell,
            row.result,
            f"{row.seconds:.1f} s" if row.seconds else "",
            human_size(row.size) if row.size is not None else "",
            row.digest.removeprefix("sha256:")[:12],
        )
        for row in rows
    ]
    result = Table(box=None, pad_edge=False, header_style="bold")
    for title, column in zip(titles, zip(titles, *texts, strict=True), strict=True):
        justify: Literal["left", "right"] = "right" if title in ("time", "size") else "left"
        width = max(map(len, column))
        result.add_column(title, justify=justify, no_wrap=True, min_width=width)
    for text in texts:
        result.add_row(*text, style=_STYLE.get(text[1], ""))
    return result


def show(console: Console, rows: Iterable[Row]) -> None:
    """Print an empty line, which parts it from the build's own lines, and the table."""
    console.print()
    console.print(table(rows), crop=False)
