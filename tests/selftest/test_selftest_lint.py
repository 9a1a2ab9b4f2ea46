"""The stage lint: each fault of a setting has its own finding, and right settings have none."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucomm_selftest import lint, lintdata, plugins
from gpucomm_selftest.elf import ElfError
from gpucomm_selftest.kinds.lint import KINDS
from gpucomm_selftest.names import known_names
from gpucomm_selftest.settings import Reader, Setting, Unread, settings

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

# Some of the names of NCCL 2.28 (its documentation).
KNOWN = frozenset(
    {
        *lintdata.WORDS,
        *lintdata.RANGES,
        *lintdata.INTERFACES,
        *lintdata.FILES,
        *lintdata.PLUGINS,
        *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
        *("NCCL_GDR_FLUSH_DISABLE", "NCCL_IGNORE_DISABLED_P2P", "RCCL_MSCCL_ENABLE"),
    }
)

HOST = lint.Host(
    interfaces=["lo", "eth0", "eth1", "ib0"],
    hcas={"mlx5_0": ["1"], "mlx5_1": ["1"], "mlx5_10": ["1"]},
    gids=4,
    plugins={"NCCL_TUNER_PLUGIN": "libnccl-tuner-gone.so: cannot open", "NCCL_NET_PLUGIN": ""},
    exists=lambda name: name == "/here.xml",
)


NCCL = lint.Use(backend="nccl", library=22809)
GLOO = lint.Use(backend="gloo", library=None)


def findings(*pairs: str, use: lint.Use = NCCL) -> dict[str, str]:
    made = [
        Setting(name=pair.partition("=")[0], value=pair.partition("=")[2], origin="environment")
        for pair in pairs
    ]
    named = lint.judge(made, [], KNOWN, HOST, use)
    return {finding.id: finding.measured for _, finding in named}


FAULTS = [
    ("GC0501", ["NCCL_SOCKET_IFNAM=eth0"], "did you mean NCCL_SOCKET_IFNAME?"),
    ("GC0501", ["NCCL_IB_DISABLED=0"], "did you mean NCCL_IB_DISABLE?"),
    ("GC0501", ["NCCL_XYZZY=1"], f"not among the {len(KNOWN)} names it knows"),
    ("GC0501", ["RCCL_MSCL_ENABLE=1"], "did you mean RCCL_MSCCL_ENABLE?"),
    ("GC0502", ["NCCL_LL_THRESHOLD=1"], "instead: NCCL_PROTO"),
    ("GC0502", ["NCCL_IB_CUDA_SUPPORT=1"], "instead: NCCL_NET_GDR_LEVEL"),
    ("GC0503", ["NCCL_ASYNC_ERROR_HANDLING=1"], "torch reads TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ("GC0504", ["NCCL_TIMEOUT=1800"], "init_process_group"),
    ("GC0505", ["NCCL_ALGO=bogus"], "bogus is none of Ring, Tree"),
    ("GC0505", ["NCCL_ALGO=allreduce:tree;broadcast:rong"], "rong is none of"),
    ("GC0505", ["NCCL_PROTO=^LL129"], "LL129 is none of"),
    ("GC0505", ["NCCL_ALGO=Ring, Tree"], "' Tree' is none of Ring, Tree"),
    ("GC0505", ["NCCL_ALGO=allredoce:tree"], "allredoce is none of Broadcast"),
    ("GC0505", ["NCCL_ALGO=allreduce:tree;ring"], "only the first part may be without"),
    ("GC0506", ["NCCL_DEBUG=verbose"], "verbose is none of"),
    ("GC0506", ["NCCL_DEBUG=ERROR"], "ERROR is none of VERSION, WARN"),
    ("GC0506", ["NCCL_DEBUG_SUBSYS=INIT,NETT"], "NETT is none of INIT"),
    ("GC0506", ["NCCL_P2P_LEVEL=nvl"], "nvl is none of LOC, NVL"),
    ("GC0506", ["NCCL_SOCKET_FAMILY=af_inet6"], "af_inet6 is none of AF_INET"),
    ("GC0506", ["NCCL_P2P_LEVEL=NVLINK"], "NVLINK is none of"),
    ("GC0506", ["NCCL_IB_TIMEOUT=long"], "is no number"),
    ("GC0507", ["NCCL_IB_RETRY_CNT=15"], "not within 0 to 7"),
    ("GC0507", ["NCCL_IB_TIMEOUT=0"], "not within 1 to 31"),
    ("GC0508", ["NCCL_SOCKET_IFNAME=wlan"], "here are lo, eth0, eth1, ib0"),
    ("GC0508", ["NCCL_SOCKET_IFNAME==eth"], "here are"),
    ("GC0508", ["NCCL_SOCKET_IFNAME=^lo,eth,ib"], "here are"),
    ("GC0509", ["NCCL_IB_HCA=bnxt"], "here are mlx5_0"),
    ("GC0510", ["NCCL_TOPO_FILE=/gone.xml"], "no such file"),
    ("GC0510", ["NCCL_NET_PLUGIN=/gone/libnccl-net.so"], "no such file"),
    ("GC0511", ["NCCL_P2P_DISABLE=1"], "12.7 times slower"),
    ("GC0511", ["TORCH_NCCL_ASYNC_ERROR_HANDLING=0"], "waiting"),
    ("GC0512", ["NCCL_DEBUG=trace"], "a line for every call"),
    ("GC0512", ["CUDA_LAUNCH_BLOCKING=1"], "no kernel overlaps"),
    ("GC0513", ["NCCL_SOCKET_NTHREADS=16", "NCCL_NSOCKS_PERTHREAD=8"], "above 64"),
    ("GC0513", ["NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL_NVLS_ENABLE=1"], "init fails"),
    ("GC0513", ["TORCH_NCCL_DUMP_ON_TIMEOUT=1", "TORCH_FR_BUFFER_SIZE=0"], "nothing is dumped"),
    ("GC0515", ["NCCL_IB_HCA=mlx5_1"], "takes mlx5_10 too"),
    ("GC0517", ["NCCL_TUNER_PLUGIN=gone"], "libnccl-tuner-gone.so: cannot open"),
    ("GC0518", ["NCCL_GRAPH_FILE=/gone.xml"], "no such file"),
    ("GC0516", ["NCCL_IB_GID_INDEX=9"], "more than 4 GIDs"),
]


@pytest.mark.parametrize(("finding", "pairs", "said"), FAULTS)
def test_a_fault_has_its_own_finding(finding: str, pairs: list[str], said: str) -> None:
    found = findings(*pairs)
    assert list(found) == [finding]
    assert said in found[finding]
    assert pairs[0] in found[finding]


def test_a_line_that_is_no_setting() -> None:
    unread = [Unread(where="/etc/nccl.conf:3", text="NCCL_DEBUG INFO")]
    ((_, finding),) = lint.judge([], unread, KNOWN, HOST, NCCL)
    assert (finding.id, finding.measured) == ("GC0514", "/etc/nccl.conf:3: NCCL_DEBUG INFO")


def test_every_kind_has_a_fault() -> None:
    assert set(KINDS) == {finding for finding, *_ in FAULTS} | {"GC0514"}


@pytest.mark.parametrize(
    "pair",
    [
        "NCCL_ALGO=Ring,Tree",
        "NCCL_ALGO=^NVLS,NVLSTree",
        "NCCL_ALGO=allreduce:tree,ring;broadcast:ring",
        "NCCL_ALGO=",
        "NCCL_PROTO=simple",
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG=info",
        "NCCL_DEBUG_SUBSYS=^init,env",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_P2P_LEVEL=3",
        "NCCL_NET_GDR_LEVEL=SYS",
        "NCCL_BUFFSIZE=8388608",
        "NCCL_BUFFSIZE=0x400000",
        "NCCL_IB_TIMEOUT=22",
        "NCCL_NTHREADS=-2",
        "NCCL_SOCKET_IFNAME=eth",
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_SOCKET_IFNAME=^lo,docker",
        "NCCL_SOCKET_IFNAME=x",
        "NCCL_P2P_LEVEL=NVB",
        "NCCL_P2P_LEVEL=PXN",
        "NCCL_P2P_DISABLE=00",
        "NCCL_MIN_NCHANNELS=112",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=true",
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_HCA==mlx5_1:1",
        "NCCL_IB_HCA=^mlx5_10",
        "NCCL_IB_GID_INDEX=3",
        "NCCL_TOPO_FILE=/here.xml",
        "NCCL_NET_PLUGIN=none",
        "NCCL_NET_PLUGIN=ofi",
        "NCCL_P2P_DISABLE=0",
        "NCCL_VERSION=2.19.3-1",
        "NCCL_HOSTID=x",
        "NCCL_TESTS_DEVICE=0",
        "NCCL_INSPECTOR_ENABLE=1",
        "OFI_NCCL_PROTOCOL=SENDRECV",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
        "TORCH_DISTRIBUTED_DEBUG=INFO",
        "CUDA_LAUNCH_BLOCKING=0",
    ],
)
def test_a_right_setting_has_no_finding(pair: str) -> None:
    assert findings(pair) == {}


def test_without_a_library_its_variables_are_left_alone() -> None:
    assert findings("NCCL_ALGO=bogus", "NCCL_XYZZY=1", use=GLOO) == {}
    for wrong in ("nope", "eth", "eth0,nope"):
        assert list(findings(f"GLOO_SOCKET_IFNAME={wrong}", use=GLOO)) == ["GC0508"]
    assert findings("GLOO_SOCKET_IFNAME=eth0,eth1", use=GLOO) == {}


def test_only_what_the_backend_reads_ends_a_run() -> None:
    """A CUDA build that runs on Gloo has NCCL loaded, and does not start it."""
    both = lint.Use(backend="gloo", library=22809)
    assert findings("NCCL_SOCKET_IFNAME=nope", use=both) == {}
    assert findings("GLOO_SOCKET_IFNAME=nope", use=NCCL) == {}
    assert list(findings("NCCL_ALGO=bogus", use=both)) == ["GC0506"]


def test_an_old_library_passes_over_an_algorithm_that_it_does_not_know() -> None:
    old = lint.Use(backend="nccl", library=22005)
    assert list(findings("NCCL_ALGO=bogus", use=old)) == ["GC0506"]
    assert list(findings("NCCL_ALGO=bogus", use=NCCL)) == ["GC0505"]


def test_a_machine_without_rdma_takes_any_name_of_a_card() -> None:
    bare = lint.Host(interfaces=["lo"], hcas={})
    setting = Setting(name="NCCL_IB_HCA", value="mlx5_0", origin="environment")
    assert lint.judge([setting], [], KNOWN, bare, NCCL) == []


def test_names_that_were_renamed_in_this_library_are_judged_by_it() -> None:
    """An old library knows a name that newer ones have removed."""
    setting = Setting(name="NCCL_LL_THRESHOLD", value="1", origin="environment")
    assert lint.judge([setting], [], KNOWN | {setting.name}, HOST, NCCL) == []


# ---------------------------------------------------------------- where settings come from


def test_variables_win_over_files_and_the_user_over_the_system(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    home.mkdir()
    (root / "etc/nccl.conf").write_text("# ours\nNCCL_DEBUG=WARN\nNCCL_NTHREADS=256\n\nbad line\n")
    (home / ".nccl.conf").write_text("NCCL_NTHREADS=512\nNCCL_ALGO=Ring\n")
    environ = {"HOME": str(home), "NCCL_DEBUG": "INFO", "PATH": "/bin", "GLOO_X": "1"}
    found, unread = settings(environ, root)
    assert [(one.name, one.value, one.origin) for one in found] == [
        ("GLOO_X", "1", "environment"),
        ("NCCL_ALGO", "Ring", f"{home}/.nccl.conf:2"),
        ("NCCL_DEBUG", "INFO", "environment"),
        ("NCCL_NTHREADS", "512", f"{home}/.nccl.conf:1"),
    ]
    assert unread == [Unread(where=f"{root}/etc/nccl.conf:5", text="bad line")]


def test_blanks_are_part_of_the_name_and_of_the_value(tmp_path: Path) -> None:
    """As in the library: nothing reads the one, and the other is compared with its blank."""
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/nccl.conf"
    file.write_text("NCCL_ALGO = Ring\n #NCCL_DEBUG=INFO\nNCCL_PROTO=Simple \n")
    found, unread = settings({}, tmp_path)
    assert [(one.name, one.value) for one in found] == [("NCCL_PROTO", "Simple ")]
    assert [one.where for one in unread] == [f"{file}:1", f"{file}:2"]
    assert "'Simple ' is none of LL" in findings("NCCL_PROTO=Simple ")["GC0505"]


def test_each_library_has_files_of_its_own_and_old_ones_look_in_another_home(
    tmp_path: Path,
) -> None:
    account, variable = tmp_path / "account", tmp_path / "variable"
    (tmp_path / "etc").mkdir()
    for folder in (account, variable):
        folder.mkdir()
        for family in ("nccl", "rccl"):
            (folder / f".{family}.conf").write_text(f"NCCL_ALGO={folder.name}-{family}\n")
    (tmp_path / "etc/rccl.conf").write_text("RCCL_MSCCL_ENABLE=0\n")
    other = tmp_path / "other.conf"
    other.write_text("NCCL_ALGO=named\n")

    def read(family: str, code: int, **environ: str) -> dict[str, str]:
        found, _ = settings(
            {"HOME": str(variable), **environ},
            tmp_path,
            Reader(family=family, code=code),
            str(account),
        )
        return {one.name: one.value for one in found if one.name != "NCCL_CONF_FILE"}

    assert read("nccl", 23004) == {"NCCL_ALGO": "variable-nccl"}
    assert read("nccl", 22005) == {"NCCL_ALGO": "account-nccl"}
    rccl = {"NCCL_ALGO": "account-rccl", "RCCL_MSCCL_ENABLE": "0"}
    assert read("rccl", 22105) == rccl
    assert read("nccl", 22304, NCCL_CONF_FILE=str(other)) == {"NCCL_ALGO": "named"}
    assert read("nccl", 22205, NCCL_CONF_FILE=str(other)) == {"NCCL_ALGO": "account-nccl"}


@pytest.mark.parametrize(
    ("setting", "value", "names"),
    [
        ("NCCL_NET_PLUGIN", "ofi", ["ofi", "libnccl-net-ofi.so"]),
        ("NCCL_NET_PLUGIN", "libnccl-net-x.so", ["libnccl-net-x.so"]),
        ("NCCL_TUNER_PLUGIN", "a", ["a", "libnccl-tuner-a.so"]),
        ("NCCL_NET_PLUGIN", "none", []),
        ("NCCL_NET_PLUGIN", "/opt/x.so", []),
        ("NCCL_NET_PLUGIN", "", []),
    ],
)
def test_what_the_loader_is_asked_for(setting: str, value: str, names: list[str]) -> None:
    assert plugins.plugin_names(setting, value) == names


def test_a_plugin_is_opened_by_the_loader_in_another_process(tmp_path: Path) -> None:
    environ = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert plugins.can_open(["libc.so.6"], environ) == ""
    assert "libnccl-net-none.so: cannot open" in plugins.can_open(
        ["none", "libnccl-net-none.so"], environ
    )
    # It is there and no library: that is what is said, and not that the other name is missing.
    (tmp_path / "libnccl-net-bad.so").write_text("no library")
    said = plugins.can_open(["bad", "libnccl-net-bad.so"], environ)
    assert "libnccl-net-bad.so: file too short" in said or "invalid ELF header" in said


def test_rccl_knows_words_of_its_own() -> None:
    rccl = lint.Use(backend="nccl", library=22105, family="rccl")
    assert findings("NCCL_DEBUG=ERROR", "NCCL_DEBUG_SUBSYS=VERBS", use=rccl) == {}


def test_a_named_file_replaces_that_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\n")
    other = tmp_path / "other.conf"
    other.write_text("NCCL_ALGO=Tree\n")
    environ = {"HOME": str(tmp_path), "NCCL_CONF_FILE": str(other)}
    found, _ = settings(environ, tmp_path)
    assert [one.value for one in found if one.name == "NCCL_ALGO"] == ["Tree"]
    assert settings({}, tmp_path / "none") == ([], [])


# ---------------------------------------------------------------- names of a library


def elf(rodata: bytes) -> bytes:
    """A 64-bit ELF file with the sections .rodata, .text and .shstrtab, and no more."""
    names = b"\0.rodata\0.text\0.shstrtab\0"
    text = b"NCCL_IN_CODE\0"
    start = 64
    parts = [(1, rodata), (9, text), (15, names)]
    body, offsets = b"", []
    for _, part in parts:
        offsets.append(start + len(body))
        body += part
    table = start + len(body)
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", table) + bytes(10)
    header += struct.pack("<HHH", 64, 4, 3)
    sections = bytes(64)
    for (name, part), offset in zip(parts, offsets, strict=True):
        sections += struct.pack("<IIQQQQ", name, 1, 0, 0, offset, len(part)) + bytes(24)
    return header + body + sections


def test_the_names_are_those_of_the_constants(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(
        elf(
            b"\0NCCL_ALGO\0NCCL_DEBUG set by environment\0xNCCL_HIDDEN\0NCCL_lower\0"
            b"NCCL_PARAM_%s\0RCCL_MSCCL_ENABLE\0libNCCL_NOT\0NCCL_\0"
        )
    )
    assert known_names(library) == {"NCCL_ALGO", "NCCL_DEBUG", "RCCL_MSCCL_ENABLE"}


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + bytes(200)]
)
def test_what_is_no_library_is_an_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(content)
    with pytest.raises(ElfError):
        known_names(file)


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(elf(b"\0NCCL_ALGO\0")[:-100])
    with pytest.raises(ElfError, match="cut short"):
        known_names(file)


# ---------------------------------------------------------------- a real run


@pytest.mark.parametrize(
    ("environ", "finding", "code"),
    [
        ({"GLOO_SOCKET_IFNAME": "nope0"}, "GC0508", 1),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "GC0512", 0),
        ({"NCCL_SOCKET_IFNAM": "eth0"}, "GC0501", 0),
        ({"NCCL_TREE_THRESHOLD": "0"}, "GC0502", 0),
        ({"NCCL_ALGO": "bogus"}, "GC0506", 0),
    ],
)
def test_a_run_names_the_fault(
    torch_run: Runner, environ: dict[str, str], finding: str, code: int
) -> None:
    if "NCCL" in next(iter(environ)) and os.environ.get("GPUCOMM_TEST_PYTHON"):
        versions = torch_run.run("--stages", "versions", "--backend", "gloo", "--json").json
        if not versions["versions"]["libraries"]:
            pytest.skip("this torch has no collective library")
    done = torch_run.run("--stages", "lint", "--backend", "gloo", "--json", environ=environ)
    raised = [one["id"] for one in done.json["findings"] if one["level"] in ("warn", "fail")]
    assert raised == [finding]
    assert done.code == code
