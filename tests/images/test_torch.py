"""torch in the image is the cell's torch, and importing it prints nothing."""

from __future__ import annotations

import json
from typing import Any

from packaging.version import Version


def _facts(host: Any) -> dict[str, Any]:
    code = (
        "import json, sys, torch; "
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, "
        "'file': torch.__file__, 'python': '%d.%d' % sys.version_info[:2]}))"
    )
    return dict(json.loads(host.check_output("python -c %s", code)))


def test_import_is_silent(host: Any) -> None:
    done = host.run("python -c 'import torch'")
    assert (done.rc, done.stdout, done.stderr) == (0, "", "")


def test_versions_are_the_cells(host: Any, expected: Any) -> None:
    facts = _facts(host)
    assert Version(facts["torch"]).public == expected.cell.torch
    assert facts["cuda"] == expected.cell.cuda
    assert facts["python"] == expected.cell.python
    assert facts["file"].startswith("/opt/venv/")
