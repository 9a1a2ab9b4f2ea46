"""The lint against a real RCCL: that of Debian's package, which a GPU is not needed to read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpucomm_selftest import lint
from gpucomm_selftest.names import known_names
from gpucomm_selftest.settings import Setting

pytestmark = [pytest.mark.heavy]

PACKAGE = "librccl1"
HOST = lint.Host(interfaces=["lo"], hcas={})


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    folder = tmp_path_factory.mktemp("rccl")
    folder.chmod(0o777)  # apt downloads as a user of its own
    done = subprocess.run(
        ["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"no source of this machine has {PACKAGE} (Debian 13): {done.stderr.strip()}")
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", archive, folder / "root"], check=True, timeout=120)
    (library,) = [
        path for path in Path(folder / "root").rglob("librccl.so.*") if not path.is_symlink()
    ]
    return known_names(library)


def judged(names: frozenset[str], name: str, value: str) -> list[tuple[str, str]]:
    use = lint.Use(backend="nccl", library=21304, family="rccl")
    setting = Setting(name=name, value=value, origin="environment")
    return [(one.id, one.measured) for _, one in lint.judge([setting], [], names, HOST, use)]


def test_its_names_are_its_own(names: frozenset[str]) -> None:
    assert {"NCCL_ALGO", "NCCL_SOCKET_IFNAME", "NCCL_P2P_LEVEL"} <= names
    assert {"RCCL_LL128_FORCE_ENABLE", "RCCL_PIVOT_ALLTOALL_ENABLE"} <= names
    assert "NCCL_RAS_ENABLE" not in names  # NCCL has it since 2.24


@pytest.mark.parametrize(
    ("name", "value", "finding", "said"),
    [
        ("RCCL_LL128_FORCE_ENABEL", "1", "GC0501", "did you mean RCCL_LL128_FORCE_ENABLE?"),
        ("NCCL_NVLS_ENABLE", "1", "GC0501", "is not among the"),
        ("NCCL_LL_THRESHOLD", "1", "GC0502", "instead: NCCL_PROTO"),
        ("NCCL_SOCKET_IFNAME", "nope", "GC0508", "here are lo"),
    ],
)
def test_a_fault_is_named(
    names: frozenset[str], name: str, value: str, finding: str, said: str
) -> None:
    ((found, measured),) = judged(names, name, value)
    assert (found, said in measured) == (finding, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "ERROR"), ("RCCL_ENABLE_INTRANET", "1")],
)
def test_a_right_setting_is_not(names: frozenset[str], name: str, value: str) -> None:
    assert judged(names, name, value) == []
