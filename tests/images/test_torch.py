"""torch in the image is the cell's torch, and importing it prints nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
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


COMPILED = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
data = torch.randn(8, 16)
same = torch.allclose(model(data), torch.compile(model)(data), atol=1e-6)
from torch._inductor import metrics
print(json.dumps([same, metrics.generated_kernel_count > 0]))
"""


def test_cpp_extensions_can_be_imported(host: Any) -> None:
    done = host.run("python -W ignore -c 'import torch.utils.cpp_extension'")
    assert done.rc == 0, done.stderr


def test_triton_imports(host: Any, expected: Any) -> None:
    """Triton needs packages that it does not require; a missing one shows only on a GPU."""
    wheels = {wheel.name for wheel in expected.project.wheels(expected.cell)}
    if not wheels & {"triton", "triton-rocm", "pytorch-triton-rocm"}:
        assert host.run("python -c 'import triton'").rc != 0
        return
    done = host.run("python -W ignore -c 'import triton'")
    assert done.rc == 0, done.stderr


@pytest.mark.parametrize("user", ["1000:1000", "12345:0", "12345:12345"])
def test_torch_compile_on_the_cpu(run: Any, expected: Any, user: str) -> None:
    if "g++" not in expected.apt:
        pytest.skip("this flavor has no compiler")
    done = run("python", "-c", COMPILED, options=["--user", user])
    assert done.code == 0, done.err
    assert json.loads(done.out) == [True, True]
