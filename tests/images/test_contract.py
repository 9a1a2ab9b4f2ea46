"""Labels, environment and installed wheels are the matrix's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucomm.render import labels_of

# test_nccl.py checks those that name NCCL, so that a wrong NCCL fails there and only there.
NCCL_LABELS = {
    "io.gpucomm.nccl",
    "io.gpucomm.cell",
    "org.opencontainers.image.title",
    "org.opencontainers.image.description",
}


def test_labels(config: dict[str, Any], expected: Any) -> None:
    found = config["Config"]["Labels"]
    wanted = labels_of(expected.project.matrix, expected.cell)
    checked = {name: value for name, value in wanted.items() if name not in NCCL_LABELS}
    assert len(checked) > 5
    assert {name: found.get(name) for name in checked} == checked


def test_base_is_named_by_digest(config: dict[str, Any]) -> None:
    assert config["Config"]["Labels"]["io.gpucomm.base"].startswith("sha256:")


def test_nvidia_variables(config: dict[str, Any], expected: Any) -> None:
    env = dict(item.split("=", 1) for item in config["Config"]["Env"])
    found = {name: value for name, value in env.items() if name.startswith("NVIDIA_")}
    require = expected.project.matrix.lines[expected.cell.line].nvidia_require
    wanted = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": require,
    }
    assert found == (wanted if expected.cell.accelerator == "cuda" else {})


def test_library_path_is_left_alone(config: dict[str, Any]) -> None:
    names = {item.split("=", 1)[0] for item in config["Config"]["Env"]}
    assert names.isdisjoint({"LD_LIBRARY_PATH", "LD_PRELOAD"})


def test_platform(config: dict[str, Any]) -> None:
    assert (config["Os"], config["Architecture"]) == ("linux", "amd64")


def test_installed_wheels_are_the_locked_ones(host: Any, expected: Any) -> None:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps(sorted([d.name.lower().replace('_', '-'), d.version] "
        "for d in m.distributions())))"
    )
    found = [tuple(row) for row in json.loads(host.check_output("python -c %s", code))]
    wanted = [(wheel.name, wheel.version) for wheel in expected.project.wheels(expected.cell)]
    # test_nccl.py owns NCCL, test_mpi.py what the extra links in from the system
    others = {
        "gpucomm-selftest",
        expected.nccl_wheel,
        "mpi4py" if "mpi" in expected.cell.extras else None,
    }
    rows = [row for row in found if row[0] not in others]
    assert rows == sorted(row for row in wanted if row[0] != expected.nccl_wheel)


def test_compiler_follows_the_flavor(host: Any, expected: Any) -> None:
    flavor = expected.project.matrix.flavors[expected.cell.flavor]
    assert host.exists("gcc") == ("gcc" in flavor.apt)


def test_the_compiler_compiles_python_extensions(host: Any, expected: Any) -> None:
    """What Triton does when torch.compile runs: a C file against Python's headers."""
    if "gcc" not in expected.project.matrix.flavors[expected.cell.flavor].apt:
        pytest.skip("this flavor has no compiler")
    script = (
        "printf '#include <Python.h>\\nint main(void){return Py_IsInitialized();}' >/tmp/x.c && "
        "gcc -fsyntax-only $(python -c 'import sysconfig; "
        'print("-I" + sysconfig.get_paths()["include"])\') /tmp/x.c && rm /tmp/x.c'
    )
    done = host.run("sh -c %s", script)
    assert done.rc == 0, done.stderr
