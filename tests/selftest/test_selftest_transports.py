"""What NCCL said it chose, and where that contradicts what is there. Pure, on real lines.

The lines of the H200 and of the sockets are from runs there; those of InfiniBand, shared memory
and NVLS have the form that NCCL's sources give them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucomm_selftest import transports
from gpucomm_selftest.transports import Folder, active_ports, judge, parse, summary

H200 = """\
gpuhost:583:583 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
gpuhost:583:583 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.10<0>
gpuhost:583:583 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
gpuhost:583:583 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
gpuhost:583:583 [0] NCCL INFO NET/IB : No device found.
gpuhost:583:583 [0] NCCL INFO Using network Socket
gpuhost:583:583 [0] NCCL INFO ncclCommInitRankConfig comm 0x223d2da0 rank 0 nranks 2 cudaDev 0 \
nvmlDev 0 busId 60 commId 0x9e9c9ec79b27fc5f - Init START
gpuhost:583:583 [0] NCCL INFO GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) \
NVS/0-0 (1/370.8/NVL) CPU/0-ffffffffffffff (1/48.0/PHB) NET/0-0 (3/1.2/PHB)
gpuhost:583:583 [0] NCCL INFO GPU/0-70 :GPU/0-60 (2/370.8/NVL) GPU/0-70 (0/5000.0/LOC)
gpuhost:583:583 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
gpuhost:583:583 [0] NCCL INFO comm 0x223d2da0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 \
MNNVL 0
gpuhost:583:583 [0] NCCL INFO Channel 00/24 : 0 1
gpuhost:583:583 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1
gpuhost:583:583 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p \
channels, 32 p2p channels per peer
gpuhost:583:583 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpuhost:583:583 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
gpuhost:583:583 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""

SOCKETS = """\
gpuhost:1108:1124 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)
gpuhost:1108:1124 [0] NCCL INFO Failed to open libibverbs.so[.1]
gpuhost:1108:1124 [0] NCCL INFO Using network Socket
gpuhost:1108:1124 [0] NCCL INFO ncclCommInitRank comm 0xc422280 rank 1 nranks 2 cudaDev 0 nvmlDev \
0 busId 60 commId 0x200b584db71c05ad - Init START
gpuhost:1108:1124 [0] NCCL INFO comm 0xc422280 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 \
MNNVL 0
gpuhost:1108:1124 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0
gpuhost:1108:1124 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0
gpuhost:1108:1131 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[0] [receive] via NET/Socket/0/Shared
"""


def test_the_log_of_two_h200() -> None:
    log = parse(H200)
    assert (log.version, log.host, log.network) == ("2.28.9+cuda13.0", "gpuhost", "Socket")
    assert (log.rank, log.ranks, log.nodes, log.bus) == (0, 2, 1, "60")
    assert log.ways == {"0->1": ["P2P/CUMEM"]}
    assert log.paths["60"] == {"60": "LOC", "70": "NVL"}
    assert (log.nvls_channels, log.nvls_offered, log.nvls_tree) == (0, None, False)
    assert log.missing_plugins == ["libnccl-env.so", "libnccl-net.so"]
    assert log.warnings == log.hints == []


def test_the_log_of_two_ranks_on_one_gpu() -> None:
    log = parse(SOCKETS)
    assert log.ways == {"0->1": ["NET/Socket"], "1->0": ["NET/Socket"]}
    assert (log.rank, log.nodes, log.network) == (1, 2, "Socket")
    assert log.missing_plugins == ["libnccl-net.so"]


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
        ("Channel 02 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 02 : 0[c3000] -> 1[3000] via SHM/direct/direct comm 0x5575 nRanks 02",
         "SHM/direct/direct"),
        ("Channel 00 : 0[1b000] -> 1[41000] via direct shared memory", "SHM"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/0(9)/GDRDMA(PCI)/Shared",
         "NET/IB/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1", "NET/IB"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IBext_v8/1/GDRDMA", "NET/IBext_v8/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/0/GDRDMA",
         "NET/AWS Libfabric/GDRDMA"),
    ],
)  # fmt: skip
def test_ways(said: str, way: str) -> None:
    assert parse(f"node:1:2 [0] NCCL INFO {said}").ways == {"0->1": [way]}


def test_nvls_versions_warnings_and_hints() -> None:
    log = parse(
        "NCCL version 2.21.5+cuda12.4\n"
        "node:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0\n"
        "node:1:2 [0] NCCL INFO 24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p "
        "channels\n"
        "node:1:2 [0] NCCL INFO Connected NVLS tree\n"
        "[2026-11-30 18:57:37] node:1:2 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket "
        "interface found\n"
        "node:1:2 [0] NCCL INFO HINT: NICs are not cross-rail connected\n"
        "\n[W1130 a line of torch, and no line of the library at all\n"
    )
    assert (log.version, log.nvls_offered, log.nvls_channels) == ("2.21.5+cuda12.4", True, 16)
    assert log.nvls_tree
    assert log.warnings == ["Bootstrap : no socket interface found"]
    assert log.hints == ["HINT: NICs are not cross-rail connected"]
    missing = "node:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 0"
    assert parse(missing).nvls_offered is False
    (finding,) = judge({0: log.as_json()}, {}, False)
    assert (finding.id, finding.level) == ("GC0205", "info")
    assert finding.measured == (
        "rank 0: Bootstrap : no socket interface found; "
        "rank 0: HINT: NICs are not cross-rail connected"
    )


@pytest.mark.parametrize("text", ["", "\n", "no log\n", "a:b NCCL", "x" * 100_000, "NCCL INFO \0"])
def test_what_is_no_log_says_nothing(text: str) -> None:
    assert parse(text).as_json() == transports.Log().as_json()


def log(
    rank: int,
    ways: Mapping[str, Sequence[str]],
    *,
    host: str = "a",
    path: str = "NVL",
    ports: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    made = transports.Log(rank=rank, host=host, bus=f"{rank}0", network="IB").as_json()
    paths = {f"{one}0": {f"{other}0": path for other in range(4)} for one in range(4)}
    return {**made, "ways": ways, "paths": paths, "active_ports": list(ports), **more}


def judged(
    way: str, environ: Mapping[str, str] | None = None, shared: bool = False, **how: Any
) -> list[tuple[str, str]]:
    """Two ranks of one host."""
    logs = {rank: log(rank, {f"{rank}->{1 - rank}": [way]}, **how) for rank in (0, 1)}
    return [(one.id, one.measured) for one in judge(logs, environ or {}, shared)]


def far(
    way: str, environ: Mapping[str, str] | None = None, ports: Sequence[str] = ("mlx5_0:1",)
) -> list[tuple[str, str]]:
    """Two hosts of one rank each."""
    logs = {
        rank: log(rank, {f"{rank}->{1 - rank}": [way]}, host="ab"[rank], ports=ports)
        for rank in (0, 1)
    }
    return [(one.id, one.measured) for one in judge(logs, environ or {}, False)]


def test_healthy_places_are_no_finding() -> None:
    assert judged("P2P/CUMEM") == []
    assert judged("P2P/IPC", path="PIX") == []
    # A board where the library itself prefers host memory.
    assert judged("SHM/direct/direct", path="SYS") == []
    assert judged("SHM/direct/direct", path="PHB") == []
    assert judged("SHM/direct/direct", path="") == []
    # Ranks that share a GPU look like hosts of their own, and have no choice.
    assert judged("NET/Socket", shared=True, ports=["mlx5_0:1"]) == []
    assert far("NET/IB/GDRDMA") == []
    assert far("NET/Socket", ports=()) == []
    assert judge({0: parse(H200).as_json()}, {"NCCL_DEBUG": "INFO"}, False) == []
    assert judge({1: {**parse(SOCKETS).as_json(), "active_ports": []}}, {}, False) == []
    assert judge({}, {}, False) == []


@pytest.mark.parametrize("path", ["NVL", "NVB", "PIX"])
@pytest.mark.parametrize("way", ["SHM/direct/direct", "NET/Socket", "NET/IB"])
def test_near_gpus_that_do_not_use_it(way: str, path: str) -> None:
    assert judged(way, path=path) == [
        ("GC0204", f"ranks 0->1 {way} (path {path}), 1->0 {way} (path {path})")
    ]
    (finding,) = judged(way, {"NCCL_P2P_DISABLE": "1"}, path=path)
    assert finding == (
        "GC0208",
        f"NCCL_P2P_DISABLE=1: ranks 0->1 {way} (path {path}), 1->0 {way} (path {path})",
    )


def test_sockets_between_hosts_with_active_ports() -> None:
    assert far("NET/Socket") == [
        (
            "GC0203",
            "ranks 0->1 NET/Socket, 1->0 NET/Socket; active on the host of the first: mlx5_0:1",
        )
    ]
    for name, value in {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}.items():
        ((finding_id, measured),) = far("NET/Socket", {name: value})
        assert finding_id == "GC0208"
        assert measured.startswith(f"{name}={value}: ranks 0->1 NET/Socket")


def test_infiniband_without_gpudirect() -> None:
    assert [one[0] for one in far("NET/IB")] == ["GC0206"]
    assert [one[0] for one in far("NET/IBext_v8")] == ["GC0206"]
    assert [one[0] for one in far("NET/IB", {"NCCL_NET_GDR_LEVEL": "LOC"})] == ["GC0208"]


def test_a_plugin_that_was_asked_for_and_is_not_there() -> None:
    lost: dict[str, Any] = {"missing_plugins": ["libnccl-env.so", "libnccl-net-fast.so"]}
    assert judged("P2P/CUMEM", {"NCCL_NET_PLUGIN": "fast"}, **lost) == [
        ("GC0207", "NCCL_NET_PLUGIN=fast; not found: libnccl-net-fast.so")
    ]
    assert judged("P2P/CUMEM", {"NCCL_NET_PLUGIN": "none"}, **lost) == []
    assert judged("P2P/CUMEM", **lost) == []


def test_the_summary_says_what_was_chosen() -> None:
    logs: dict[int, dict[str, Any]] = {
        0: log(0, {"0->1": ["P2P/CUMEM"], "0->2": ["NET/IB/GDRDMA"]}, nvls_channels=16),
        1: log(1, {"1->0": ["P2P/CUMEM"], "0->1": ["P2P/CUMEM"]}),
    }
    assert summary(logs) == (
        "P2P/CUMEM on 2 pairs; NET/IB/GDRDMA on 1 pair; network IB; NVLS with 16 channels"
    )
    assert summary({}) == ""


def test_ports_are_read_from_the_host(tmp_path: Path) -> None:
    for name, port, state in (
        ("mlx5_0", "1", "4: ACTIVE"),
        ("mlx5_1", "1", "1: DOWN"),
        ("mlx5_2", "2", "4: ACTIVE"),
    ):
        folder = tmp_path / "sys/class/infiniband" / name / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n", encoding="utf-8")
    assert active_ports(tmp_path) == ["mlx5_0:1", "mlx5_2:2"]
    assert active_ports(tmp_path / "nothing") == []


def test_the_folder_of_the_logs_goes_and_the_user_is_not_overruled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Folder()
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        assert folder.environment({name: "x"}) == {}
    given = folder.environment({"NCCL_PROTO": "LL"})
    assert given["NCCL_DEBUG"] == "INFO"
    made = Path(given["NCCL_DEBUG_FILE"].replace("%h", "node.example").replace("%p", "4711"))
    made.write_text(H200, encoding="utf-8")
    assert folder.texts() == {4711: H200}
    monkeypatch.setattr("os.getpid", lambda: 4711)
    assert transports.own(given, tmp_path)["rank"] == 0
    monkeypatch.setattr("os.getpid", lambda: 4712)
    assert transports.own(given, tmp_path) == {}
    folder.close()
    assert list(tmp_path.iterdir()) == []
    assert folder.texts() == {}


def test_where_nothing_can_be_written_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    folder = Folder()
    assert folder.environment({}) == {}
    assert folder.texts() == {}
    folder.close()
