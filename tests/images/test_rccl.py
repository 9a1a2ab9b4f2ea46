"""The RCCL inside torch's wheel is the one that the matrix says of this ROCm version."""

from __future__ import annotations

import json
from typing import Any

import pytest

LOADED = """
import ctypes, json, os, torch
names = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
files = sorted({os.path.realpath(name) for name in names if "librccl.so" in name})
version = ctypes.c_int()
if files:
    assert ctypes.CDLL(files[0]).ncclGetVersion(ctypes.byref(version)) == 0
print(json.dumps({"files": files, "version": version.value, "hip": torch.version.hip}))
"""


@pytest.fixture(scope="module")
def loaded(host: Any, expected: Any) -> dict[str, Any]:
    """What a process has mapped after `import torch`."""
    if expected.cell.rccl is None:
        pytest.skip("this line has no RCCL")
    return dict(json.loads(host.check_output("python -c %s", LOADED)))


def test_one_librccl_is_mapped(loaded: dict[str, Any]) -> None:
    assert len(loaded["files"]) == 1
    assert loaded["files"][0].startswith("/opt/venv/")


def test_loaded_version(loaded: dict[str, Any], expected: Any) -> None:
    assert loaded["version"] == expected.library_code


def test_torch_is_built_for_this_rocm(loaded: dict[str, Any], expected: Any) -> None:
    assert loaded["hip"].startswith(f"{expected.cell.rocm}.")
