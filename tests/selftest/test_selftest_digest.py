"""The odd rank out is named by what it has otherwise: facts as data, and doors on the loopback."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucomm_selftest import digest, host, routes
from gpucomm_selftest.digest import Door, NoWay, RankFacts

BASE = RankFacts(
    rank=0,
    host="a",
    boot="1",
    settings={"NCCL_DEBUG": "WARN"},
    torch="2.5.1",
    python="3.11.2",
    library="nccl 2.21.5",
    files={"nccl": "f" * 64},
    packages={"torch": "2.5.1", "numpy": "2.1.0"},
    driver="550.54.15",
    gpu="H200, 143771 MiB",
)


def ranks(**third: Any) -> list[RankFacts]:
    """Four ranks on two hosts, of which the third is changed."""
    made = [
        replace(BASE, rank=rank, host="ab"[rank // 2], boot="12"[rank // 2]) for rank in range(4)
    ]
    made[2] = replace(made[2], **third)
    return made


def judged(facts: list[RankFacts], backend: str = "nccl") -> list[tuple[str, str]]:
    return [(one.id, one.measured) for one in digest.judge(facts, backend)]


@pytest.mark.parametrize(
    ("changes", "finding", "measured"),
    [
        (
            {"settings": {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}},
            "GC0801",
            "NCCL_ALGO: rank 2: Ring; ranks 0,1,3: not set",
        ),
        (
            {"settings": {"NCCL_DEBUG": "WARN", "NCCL_MAX_NCHANNELS": "4"}},
            "GC0801",
            "NCCL_MAX_NCHANNELS: rank 2: 4; ranks 0,1,3: not set",
        ),
        (
            {"settings": {"TORCH_NCCL_BLOCKING_WAIT": "1"}},
            "GC0802",
            "TORCH_NCCL_BLOCKING_WAIT: rank 2: 1; ranks 0,1,3: not set",
        ),
        ({"library": "nccl 2.20.5"}, "GC0803", "rank 2: nccl 2.20.5; ranks 0,1,3: nccl 2.21.5"),
        (
            {"files": {"nccl": "0" * 64}},
            "GC0804",
            "nccl: rank 2: sha256 000000000000; ranks 0,1,3: sha256 ffffffffffff",
        ),
        (
            {"files": {**BASE.files, "plugin": "1" * 64}},
            "GC0804",
            "plugin: rank 2: sha256 111111111111; ranks 0,1,3: none",
        ),
        ({"torch": "2.4.1"}, "GC0805", "rank 2: 2.4.1; ranks 0,1,3: 2.5.1"),
        (
            {"packages": {"torch": "2.5.1", "numpy": "1.26.4"}},
            "GC0806",
            "numpy (rank 2: 1.26.4; ranks 0,1,3: 2.1.0)",
        ),
        ({"python": "3.12.1"}, "GC0806", "Python (rank 2: 3.12.1; ranks 0,1,3: 3.11.2)"),
        ({"driver": "535.1"}, "GC0807", "rank 2: 535.1; ranks 0,1,3: 550.54.15"),
        (
            {"settings": {**BASE.settings, "NCCL_P2P_LEVEL": "SYS"}},
            "GC0801",
            "NCCL_P2P_LEVEL: rank 2: SYS; ranks 0,1,3: not set",
        ),
        ({"gpu": "H100"}, "GC0808", "rank 2: H100; ranks 0,1,3: H200, 143771 MiB"),
    ],
)
def test_the_odd_rank_is_named(changes: dict[str, Any], finding: str, measured: str) -> None:
    assert judged(ranks(**changes)) == [(finding, measured)]


def test_ranks_that_agree_have_no_finding() -> None:
    assert judged(ranks()) == []


def test_of_two_versions_the_files_are_not_compared() -> None:
    other = ranks(library="nccl 2.20.5", files={"nccl": "0" * 64})
    assert [one for one, _ in judged(other)] == ["GC0803"]


@pytest.mark.parametrize(
    "name",
    ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG_FILE", "NCCL_HOSTID",
     "CUDA_VISIBLE_DEVICES", "NCCL_TOPO_FILE", "TORCH_FR_DUMP_TEMP_FILE"],
)  # fmt: skip
def test_what_is_about_one_host_may_differ(name: str) -> None:
    assert judged(ranks(settings={**BASE.settings, name: "x"})) == []


def test_on_the_cpu_what_nccl_needs_is_a_warning() -> None:
    algo = ranks(settings={**BASE.settings, "NCCL_ALGO": "Ring"}, library="nccl 2.20.5")
    assert [one for one, _ in judged(algo, "gloo")] == ["GC0804", "GC0802"]


def test_one_host_id_on_two_hosts_is_named_and_on_one_host_it_is_not() -> None:
    same = [replace(one, settings={"NCCL_HOSTID": "x"}) for one in ranks()]
    assert judged(same) == [
        ("GC0809", "NCCL_HOSTID=x on ranks 0,1 and ranks 2,3, which are on different hosts")
    ]
    own = [replace(one, settings={"NCCL_HOSTID": one.boot}) for one in ranks()]
    assert judged(own) == []


def test_many_values_and_many_packages_are_cut_short() -> None:
    many = [replace(BASE, rank=rank, torch=f"2.{rank}") for rank in range(9)]
    assert judged(many)[0][1].endswith("; rank 3: 2.3; 5 more values")
    packages = {f"p{number}": "1" for number in range(9)}
    ((_, said),) = judged(ranks(packages={**BASE.packages, **packages}))
    assert said.endswith(" and 5 more")
    assert len(re.findall(r"p\d ", said)) == 4


DOORS = [Door(name=f"rank {at}", interface="eth0", address=f"192.0.2.{at}") for at in range(1, 4)]

ALL = digest.ways(3, whole=9)


def test_a_site_that_nobody_reaches_is_named_once() -> None:
    failed = [NoWay(start=at, end=2, why="No route to host") for at in (0, 1)]
    (finding,) = digest.judge_routes(DOORS, failed, ALL)
    assert finding.id == "GC0811"
    assert finding.measured == "nobody reaches rank 3 at 192.0.2.3 (eth0): No route to host"


def test_a_site_that_reaches_nobody_is_named_once() -> None:
    failed = [NoWay(start=2, end=at, why="No route to host") for at in (0, 1)]
    (finding,) = digest.judge_routes(DOORS, failed, ALL)
    assert finding.measured == "rank 3 reaches nobody by eth0: No route to host"


def test_in_a_large_world_the_ways_that_were_tried_count() -> None:
    tried = digest.ways(40, whole=32)
    doors = [Door(name=f"s{at}", interface="e", address="x") for at in range(40)]

    def judged(failed: list[tuple[int, int]]) -> list[str]:
        bad = [NoWay(start=start, end=end, why="w") for start, end in failed]
        return [one.measured for one in digest.judge_routes(doors, bad, tried)]

    into_7 = [way for way in tried if way[1] == 7]
    assert judged(into_7) == ["nobody reaches s7 at x (e): w"]
    some_of_0 = [way for way in tried if way[1] == 0][:4]
    assert not any("nobody" in said for said in judged(some_of_0))


def test_a_single_way_is_named_with_both_ends() -> None:
    (finding,) = digest.judge_routes(DOORS, [NoWay(start=0, end=1, why="x")], ALL)
    assert finding.measured == "rank 1 does not reach rank 2 at 192.0.2.2 (eth0): x"
    nowhere = [replace(DOORS[0], address="", interface=""), DOORS[1]]
    (finding,) = digest.judge_routes(nowhere, [NoWay(start=1, end=0, why="x")], digest.ways(2, 9))
    assert finding.measured == "rank 2 does not reach rank 1 at no address (no interface): x"
    assert digest.judge_routes(DOORS, [], ALL) == []


def test_in_a_large_world_each_site_is_tried_and_not_every_pair() -> None:
    assert len(digest.ways(4, whole=4)) == 12
    large = digest.ways(100, whole=32)
    assert len(large) < 400
    assert {end for _, end in large} == {start for start, _ in large} == set(range(100))


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("", "ib0"),
        ("eth", "eth0"),
        ("eth1,eth0", "eth0"),
        ("=eth", ""),
        ("=eth1", "eth1"),
        ("^ib,docker,lo", "eth0"),
        ("^=eth0,ib0,lo", "docker0"),
        ("wlan", ""),
    ],
)
def test_the_interface_that_nccl_takes(setting: str, chosen: str) -> None:
    assert routes.nccls_choice(["lo", "docker0", "eth0", "eth1", "ib0"], setting) == chosen


def test_without_better_ones_nccl_takes_docker_and_then_the_loopback() -> None:
    assert routes.nccls_choice(["lo", "docker0"], "") == "docker0"
    assert routes.nccls_choice(["lo"], "") == "lo"
    assert routes.nccls_choice([], "") == ""


def test_an_address_of_one_link_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    rows = (
        ("fe80" + "0" * 27 + "1", "20", "none0"),
        ("20010db8" + "0" * 23 + "7", "00", "none1"),
        ("fe80" + "0" * 27 + "2", "20", "none1"),
    )
    (tmp_path / "proc/net/if_inet6").write_text(
        "".join(f"{digits} 02 40 {scope} 80 {name}\n" for digits, scope, name in rows)
    )
    assert host.address_of("none0", tmp_path) == ""
    assert host.address_of("none1", tmp_path) == "2001:db8::7"


def test_the_interface_of_gloo_is_the_one_that_is_set_or_that_by_which_the_copies_met() -> None:
    assert routes.interface_for("gloo", "eth1,eth2", "eth0") == "eth1"
    assert routes.interface_for("gloo", "", "eth0") == "eth0"
    assert routes.interface_for("nccl", "=lo", "eth0") == "lo"
    assert host.address_of("lo") == "127.0.0.1"
    assert host.address_of("none0") == ""
    assert host.is_running("lo")
    assert not host.is_running("none0")
    assert "lo" in routes.usable()


def door(number: int, port: int, word: str, address: str = "127.0.0.1") -> dict[str, Any]:
    return {"number": number, "address": address, "port": port, "word": word}


def test_doors_open_to_those_who_expect_their_word() -> None:
    opened = routes.Doors("127.0.0.1", "right")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen: a closed port
        answers = routes.knock(
            [
                door(0, opened.port, "right"),
                door(1, opened.port, "of another host"),
                door(2, bound.getsockname()[1], "x"),
                door(3, server.getsockname()[1], "x"),
                door(4, 1, "x", address=""),
                door(5, 0, "x"),
            ],
            limit=1.0,
        )
    assert answers == {
        0: "",
        1: "another host or service answers there",
        2: "Connection refused",
        3: "another host or service answers there",
        4: "it has no address there",
        5: "it cannot listen there",
    }
