"""The NCCL that the process really loads is the cell's, once, and nothing can swap it unnoticed.

`torch.cuda.nccl.version()` is the version torch was compiled with and says nothing about the
library in the process; ncclGetVersion of the mapped file does, with or without a GPU.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

LOADED = """
import ctypes, json, os, torch
names = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
files = sorted({os.path.realpath(name) for name in names if "libnccl.so" in name})
version = ctypes.c_int()
if files:
    assert ctypes.CDLL(files[0]).ncclGetVersion(ctypes.byref(version)) == 0
print(json.dumps({"files": files, "version": version.value}))
"""

DIST_INFOS = """
import importlib.metadata as m, json
found = [(d.name, d.version) for d in m.distributions()]
print(json.dumps([row for row in found if row[0].startswith("nvidia-nccl")]))
"""
RECORD = """
import base64, hashlib, importlib.metadata as m, json, sys
files = m.distribution(sys.argv[1]).files
def digest(file):
    raw = hashlib.new(file.hash.mode, file.read_binary()).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
changed = [str(file) for file in files if file.hash and digest(file) != file.hash.value]
print(json.dumps({"files": len(files), "changed": changed}))
"""


@pytest.fixture(autouse=True)
def has_nccl(expected: Any) -> None:
    """These tests are about NCCL as a wheel; what has none is covered by test_no_nccl.py."""
    if expected.cell.nccl is None:
        pytest.skip("this cell has no NCCL wheel")


@pytest.fixture(scope="module")
def loaded(host: Any) -> dict[str, Any]:
    """What a process has mapped after `import torch`."""
    return dict(json.loads(host.check_output("python -c %s", LOADED)))


def test_one_libnccl_is_mapped(loaded: dict[str, Any]) -> None:
    assert len(loaded["files"]) == 1
    assert loaded["files"][0].startswith("/opt/venv/")


def test_loaded_version(loaded: dict[str, Any], expected: Any) -> None:
    assert loaded["version"] == expected.library_code


def test_one_libnccl_on_disk(root_host: Any) -> None:
    found = root_host.check_output("find / -xdev -name 'libnccl.so*' -not -type d").splitlines()
    assert len(found) == 1


def test_one_dist_info_of_that_version(host: Any, expected: Any) -> None:
    printed = host.check_output("python -c %s", DIST_INFOS)
    assert json.loads(printed) == [[expected.nccl_wheel, expected.cell.nccl]]


def test_record_of_the_wheel_matches_its_files(host: Any, expected: Any) -> None:
    """NCCL is replaced as a whole: every file is the one that its dist-info lists."""
    printed = json.loads(host.check_output("python -c %s %s", RECORD, expected.nccl_wheel))
    assert printed["files"] > 3
    assert printed["changed"] == []


def test_label_and_pins_name_this_nccl(config: dict[str, Any], host: Any, expected: Any) -> None:
    pin = f"{expected.nccl_wheel}=={expected.cell.nccl}"
    assert config["Config"]["Labels"]["io.gpucomm.nccl"] == expected.cell.nccl
    assert config["Config"]["Labels"]["io.gpucomm.cell"] == expected.cell.id
    assert pin in host.file("/opt/gpucomm/pins/constraints.txt").content_string.splitlines()
    overrides = host.file("/opt/gpucomm/pins/overrides.txt").content_string.splitlines()
    assert overrides == ([pin] if expected.cell.nccl_overridden else [])


def test_selftest_names_this_nccl(host: Any, expected: Any) -> None:
    done = host.run("gpucomm-selftest --backend gloo --nproc 1 --stages versions --json")
    libraries = json.loads(done.stdout)["versions"]["libraries"]
    assert [(library["family"], library["version"]) for library in libraries] == [
        ("nccl", expected.cell.nccl)
    ]
