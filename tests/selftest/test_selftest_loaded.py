"""The stage libraries: who brought a file, what it needs, and what is wrong with a set of them."""

from __future__ import annotations

import copy
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucomm_selftest import elf, libraries, owners
from gpucomm_selftest.kinds.libraries import KINDS
from gpucomm_selftest.stages.libraries import judge, owner, unpinned

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

SITE = "/opt/venv/lib/python3.11/site-packages"
OWN = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def library(path: str, kind: str, major: str, label: str, **more: Any) -> dict[str, Any]:
    packages = [{"label": label, "size": 100}] if label else []
    made = {"path": path, "kind": kind, "major": major, "deleted": False, "size": 100, "by": ""}
    return {**made, "packages": packages, **more}


def healthy() -> dict[str, Any]:
    cudart = f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"
    return {
        "loaded": [
            library(OWN, "nccl", "2", "wheel nvidia-nccl-cu12 2.20.5"),
            library(cudart, "cudart", "12", "wheel nvidia-cuda-runtime-cu12 12.1.105"),
            library("/usr/lib/libcuda.so.580.159.04", "driver", "580", ""),
            library("/usr/lib/libibverbs.so.1", "ibverbs", "1", "distribution libibverbs1 44.0"),
            library(f"{SITE}/torch/lib/libcudart.so.11.0", "cudart", "11", "wheel other 1.0"),
        ],
        "own": OWN,
        "symbols": {"needed": 41, "missing": {}, "unreadable": []},
        "told": "",
        "not_preloaded": [],
        "unpinned": [],
    }


def changed(**changes: Any) -> dict[str, Any]:
    return {**healthy(), **changes}


def with_library(**changes: Any) -> dict[str, Any]:
    """The first library otherwise."""
    made = copy.deepcopy(healthy())
    made["loaded"][0].update(changes)
    return made


def and_library(*more: dict[str, Any]) -> dict[str, Any]:
    return {**healthy(), "loaded": [*healthy()["loaded"], *more]}


PRELOADED = {"path": "/tmp/libnccl.so.2", "by": "LD_PRELOAD=/tmp/libnccl.so.2", "packages": []}
SECOND = library("/opt/conda/lib/libcudart.so.12", "cudart", "12", "")
TWO = [{"label": "wheel nvidia-nccl-cu12 2.20.5", "size": 100}, {"label": "wheel b 1", "size": 100}]

FAULTS = [
    ("GC0120", with_library(**PRELOADED), "no package, by LD_PRELOAD=/tmp/libnccl.so.2); torch's"),
    ("GC0121", and_library(SECOND), "/opt/conda/lib/libcudart.so.12 (no package)"),
    ("GC0122", changed(told="2.19.3-1"), "NCCL_VERSION=2.19.3-1, loaded 2.20.5"),
    (
        "GC0123",
        changed(
            symbols={"needed": 9, "missing": {f"nccl{n}": "/x/libtorch_cuda.so" for n in "abcdef"}}
        ),
        "nccla, ncclb, ncclc, nccld and 2 more, called by libtorch_cuda.so",
    ),
    ("GC0124", with_library(deleted=True), "libnccl.so.2 (wheel nvidia-nccl-cu12 2.20.5)"),
    ("GC0125", with_library(size=99), "99 bytes, recorded 100"),
    (
        "GC0127",
        changed(unpinned=[[f"p{n}", "1.0", "2.0"] for n in range(6)]),
        "p0 2.0, locked 1.0, p1 2.0, locked 1.0, p2 2.0, locked 1.0, p3 2.0, locked 1.0 and 2 more",
    ),
    ("GC0128", changed(not_preloaded=["/gone.so"]), "LD_PRELOAD names /gone.so"),
    ("GC0126", with_library(packages=TWO), "wheel nvidia-nccl-cu12 2.20.5 and wheel b 1"),
]


@pytest.mark.parametrize(("finding", "data", "said"), FAULTS)
def test_a_fault_has_its_own_finding(finding: str, data: dict[str, Any], said: str) -> None:
    (found,) = judge(data, "2.20.5")
    assert found.id == finding
    assert said in found.measured


def test_every_kind_has_a_fault_and_a_healthy_set_has_none() -> None:
    assert set(KINDS) == {finding for finding, *_ in FAULTS}
    assert judge(healthy(), "2.20.5") == []
    assert judge(changed(told="2.20.5-1"), "2.20.5") == []
    assert judge(changed(told="2.20.5-1"), None) == []


def test_a_variable_that_leads_to_torchs_own_library_is_fine() -> None:
    assert judge(with_library(by=f"LD_LIBRARY_PATH={SITE}/nvidia/nccl/lib"), "2.20.5") == []
    assert owner(healthy()["loaded"][2]) == "no package"


# ---------------------------------------------------------------- who brought a file


def test_the_wheel_of_a_file_is_that_whose_record_has_it(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    file = site / "nvidia/nccl/lib/libnccl.so.2"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"12345")
    for name, record in (
        ("nvidia_nccl_cu12-2.20.5", "nvidia/nccl/lib/libnccl.so.2,sha256=x,5\n"),
        ("other-1.0", "other.py,sha256=y,7\nnvidia/nccl/lib/libnccl.so.20,,\n"),
        ("bare-1.0", 'a.py,,\n"nvidia/nccl/lib/libnccl.so.2",,\n'),
    ):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info/RECORD").write_text(record)
    (site / "none-1.0.dist-info").mkdir()
    assert [(one.label, one.size) for one in owners.wheels_of(file)] == [
        ("wheel bare 1.0", None),
        ("wheel nvidia-nccl-cu12 2.20.5", 5),
    ]


def test_what_ld_preload_names_in_vain(tmp_path: Path) -> None:
    real, link = tmp_path / "libreal.so.1", tmp_path / "libreal.so"
    real.touch()
    link.symlink_to(real)
    mapped = [str(real), "/usr/lib/libc.so.6"]

    def missed(value: str) -> list[str]:
        return owners.not_preloaded({"LD_PRELOAD": value}, mapped)

    assert missed(f"{link}:libc.so.6") == []
    assert missed(f"libc.so.6 {tmp_path}/gone.so") == [f"{tmp_path}/gone.so"]
    assert missed("libnone.so") == ["libnone.so"]
    assert owners.not_preloaded({}, mapped) == []


def test_the_versions_that_constraints_ask_for() -> None:
    text = "# ours\ntorch==2.4.1+cu121 ; python_version > '3'\nNumPy_x[extra] == 2.1\nloose>=1\n"
    assert owners.pinned(text) == {"torch": "2.4.1+cu121", "numpy-x": "2.1"}


def test_a_package_that_differs_from_its_lock_is_told(tmp_path: Path) -> None:
    here = version("pytest")
    (tmp_path / "constraints.txt").write_text(f"pytest==0.1\nclick=={version('click')}\nnone==1\n")
    assert unpinned(tmp_path) == [["pytest", "0.1", here]]
    (tmp_path / "overrides.txt").write_text(f"pytest=={here}+local\n")
    assert unpinned(tmp_path) == []
    assert unpinned(tmp_path / "gone") == []


def test_the_package_of_the_distribution(tmp_path: Path) -> None:
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / "libibverbs1:amd64.list").write_text("/.\n/usr/lib/x/libibverbs.so.1.14\n")
    (info / "libc6.list").write_text("/lib/x/libc.so.6\n")
    (tmp_path / "var/lib/dpkg/status").write_text(
        "Package: libc6\nVersion: 2.36\n\nPackage: libibverbs1\nStatus: ok\nVersion: 44.0-2\n\n"
    )
    verbs, libc = Path("/usr/lib/x/libibverbs.so.1.14"), Path("/usr/lib/x/libc.so.6")
    found = owners.distribution_packages([verbs, libc, Path("/usr/lib/x/other.so")], tmp_path)
    assert {path: one.label for path, one in found.items()} == {
        verbs: "distribution libibverbs1 44.0-2",
        libc: "distribution libc6 2.36",
    }


def test_the_variable_that_leads_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(b"")
    preload = {"LD_PRELOAD": f"/gone.so:{file}", "LD_LIBRARY_PATH": str(tmp_path)}
    assert owners.brought_by(file, preload) == f"LD_PRELOAD={file}"
    path = {"LD_LIBRARY_PATH": f"/gone:{tmp_path}"}
    assert owners.brought_by(file, path) == f"LD_LIBRARY_PATH={tmp_path}"
    assert owners.brought_by(file, {}) == ""


# ---------------------------------------------------------------- what a file needs


def libc() -> Path:
    with Path("/proc/self/maps").open() as maps:
        lines = [line.split()[-1] for line in maps if "libc.so" in line]
    return Path(lines[0])


def test_a_real_library_is_read() -> None:
    shared = elf.read(libc())
    assert shared.soname == "libc.so.6"
    assert {"printf", "malloc"} <= shared.defined
    assert not shared.defined & shared.undefined
    few = elf.read(libc(), ("print",))
    assert "printf" in few.defined
    assert "malloc" not in few.defined
    assert elf.section(libc().read_bytes(), ".nothing") == b""


def test_what_is_no_library_is_an_error(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", bytes(100), libc().read_bytes()[:5000]):
        file = tmp_path / "x.so"
        file.write_bytes(content)
        with pytest.raises(elf.ElfError):
            elf.read(file)


def test_torchs_own_choice_is_on_its_search_path(tmp_path: Path) -> None:
    lib = tmp_path / "torch/lib"
    own = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    lib.mkdir(parents=True)
    shared = elf.SharedObject(
        soname="libtorch_cuda.so",
        needs=("libc.so.6", "libnccl.so.2"),
        search=("$ORIGIN/../../nvidia/nccl/lib", "$ORIGIN"),
        build_id="",
        defined=frozenset(),
        undefined=frozenset(),
    )
    soname, path = libraries.own_choice({str(lib / "libtorch_cuda.so"): shared}, {})
    assert soname == "libnccl.so.2"
    assert os.path.realpath(path) == str(own)
    assert libraries.own_choice({}, {}) == ("", "")


# ---------------------------------------------------------------- a real run


def test_a_real_run_finds_owners_and_all_symbols(torch_run: Runner) -> None:
    done = torch_run.run("--stages", "libraries", "--backend", "gloo", "--json")
    assert done.code == 0
    (stage,) = [one for one in done.json["stages"] if one["id"] == "libraries"]
    for row in stage["rows"]:
        if row["kind"] == "nccl":
            assert row["owner"].startswith("wheel nvidia-nccl-cu")
            assert "symbols found" in stage["summary"]
    assert [one for one in done.json["findings"] if one["id"].startswith("GC012")] == []


SWAP = """
import glob, os, shutil, sys
own, = glob.glob("/opt/venv/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
shutil.copy(own, "/swap/libnccl.so.2")
os.environ["LD_PRELOAD"] = "/swap/libnccl.so.2"
os.execvp("gpucomm-selftest", ["gpucomm-selftest", *sys.argv[1:]])
"""


def test_another_libnccl_by_ld_preload_is_named(torch_run: Runner) -> None:
    if torch_run.image is None:
        pytest.skip("a Python with a CPU build of torch has no libnccl; the image has")
    # Shared memory and /tmp of a container hold no code.
    torch_run.options += ["--tmpfs", "/swap:exec,mode=1777,size=1g"]
    options = ("--stages", "libraries", "--backend", "gloo", "--json")
    done = torch_run.script(SWAP, *options)
    found = {one["id"]: one["measured"] for one in done.json["findings"]}
    assert "by LD_PRELOAD=/swap/libnccl.so.2" in found["GC0120"]
    assert "nvidia/nccl/lib/libnccl.so.2" in found["GC0120"]
