"""A clock that jumps (a time service, a resumed machine) moves no deadline: none is read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpucomm_selftest

PACKAGE = Path(gpucomm_selftest.__file__).parent
# What tells the time of day. Nothing of the self-test needs it.
OF_DAY = {"time", "time_ns", "now", "utcnow", "today", "fromtimestamp", "localtime", "gmtime"}


def uses(source: str) -> list[str]:
    """Where a module asks a clock that can be set, as `line: name`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in OF_DAY:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in ("time", "datetime", "date"):
                found.append(f"{node.lineno}: {name}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            names = {alias.name for alias in node.names} & OF_DAY
            # The class of the module `datetime` that has these functions.
            names |= {alias.name for alias in node.names} & {"datetime", "date"}
            found += [f"{node.lineno}: from {node.module} import {one}" for one in sorted(names)]
    return found


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_asks_what_time_it_is(module: Path) -> None:
    assert uses(module.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nend = time.time() + 5",
        "import datetime\ndatetime.datetime.now()",
        "from time import time",
        "from datetime import datetime",
        "import time\nstart = time.time_ns",
    ],
)
def test_one_that_does_is_found(source: str) -> None:
    assert len(uses(source)) == 1


def test_a_clock_that_only_goes_on_is_right() -> None:
    assert uses("import time, datetime\ntime.monotonic()\ndatetime.timedelta(seconds=1)") == []
