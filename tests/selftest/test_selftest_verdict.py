"""From what ranks report to a verdict: pure, and each verdict can come out."""

from typing import Any

import pytest

from gpucomm_selftest.collectives import Check
from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.findings import KINDS, LEVELS, found
from gpucomm_selftest.report import verdict
from gpucomm_selftest.stage import StageResult
from gpucomm_selftest.stages.correctness import judge, merge
from gpucomm_selftest.stages.init import judge as judge_init
from gpucomm_selftest.stages.versions import judge_choice, judge_devices, judge_libraries
from gpucomm_selftest.world import World, decide

CHECKS = [
    Check(collective="all_reduce", op="sum", dtype="fp32", count=1),
    Check(collective="all_gather", op="", dtype="bf16", count=1),
]
REFUSED = (1, "unsupported", "Invalid scalar type")

Said = dict[int, list[tuple[int, str, str]]]


def ids(reports: Said, backend: str = "gloo") -> list[str]:
    return [finding.id for finding in judge(merge(CHECKS, reports), reports, backend)]


def test_all_exact() -> None:
    assert ids({rank: [(0, "pass", ""), (1, "pass", "")] for rank in (0, 1)}) == ["GC0301"]


def test_one_rank_with_wrong_numbers_fails_and_is_named() -> None:
    reports: Said = {
        0: [(0, "pass", ""), (1, "pass", "")],
        1: [(0, "pass", ""), (1, "fail", "1 of 2 elements wrong")],
    }
    rows = merge(CHECKS, reports)
    assert [row["level"] for row in rows] == ["pass", "fail"]
    (finding,) = judge(rows, reports, "gloo")
    assert finding.id == "GC0302"
    assert finding.measured == (
        "1 of 2 checks wrong on rank 1; first all_gather bf16 n=1: "
        "rank 1: fail: 1 of 2 elements wrong"
    )


def test_a_refusal_is_neither_passed_nor_failed_on_gloo_and_a_failure_on_nccl() -> None:
    reports: Said = {rank: [(0, "pass", ""), REFUSED] for rank in (0, 1)}
    assert merge(CHECKS, reports)[1]["level"] == "unsupported"
    assert ids(reports) == ["GC0301", "GC0303"]
    assert ids(reports, "nccl") == ["GC0304"]
    (_, finding) = judge(merge(CHECKS, reports), reports, "gloo")
    assert finding.measured == "all_gather bf16 (Invalid scalar type)"


def test_refused_on_one_rank_only_is_a_failure() -> None:
    assert "GC0302" in ids({0: [(0, "pass", ""), REFUSED], 1: [(0, "pass", ""), (1, "pass", "")]})


def test_a_missing_report_is_a_failure() -> None:
    assert ids({0: [(0, "pass", ""), (1, "pass", "")], 1: [(0, "pass", "")]}) == ["GC0305"]
    assert "GC0305" in ids({0: [], 1: []})


def test_nothing_checked_is_no_pass() -> None:
    reports: Said = {0: [(0, "unsupported", "x"), (1, "unsupported", "x")]}
    assert ids(reports) == ["GC0303", "GC0306"]


def stage(status: str, *finding_ids: str, **more: Any) -> StageResult:
    findings = [found(one, "measured") for one in finding_ids]
    return StageResult(id="init", status=status, deadline=1.0, findings=findings, **more)


@pytest.mark.parametrize(
    ("results", "signal", "expected"),
    [
        ([stage("pass", "GC0201")], None, ("pass", 0)),
        ([stage("pass", "GC0107", "GC0303", "GC0108")], None, ("pass", 0)),
        ([stage("pass"), stage("fail", "GC0302")], None, ("fail", 1)),
        ([stage("fail", "GC0901"), stage("not reached")], None, ("fail", 1)),
        ([stage("not reached")], None, ("fail", 1)),
        ([], None, ("fail", 1)),
        ([stage("fail", "GC0110", unusable=True)], None, ("unusable", 3)),
        ([stage("pass"), stage("hang", "GC0902")], None, ("hang", 124)),
        ([stage("fail", "GC0302"), stage("hang", "GC0902")], None, ("hang", 124)),
        ([stage("interrupted", "GC0906")], 15, ("interrupted", 143)),
        ([stage("pass", "GC0201")], 2, ("interrupted", 130)),
    ],
)
def test_verdict(results: list[StageResult], signal: int | None, expected: tuple[str, int]) -> None:
    assert verdict(results, [], signal) == expected


def test_a_process_that_cannot_be_ended_fails_the_run() -> None:
    assert verdict([stage("pass")], [found("GC0905", "rank 1")], None) == ("fail", 1)
    assert verdict([stage("pass")], [found("GC0904", "rank 1")], None) == ("pass", 0)


def test_every_finding_says_everything() -> None:
    for finding_id, kind in KINDS.items():
        assert finding_id.startswith("GC0")
        assert len(finding_id) == 6
        assert kind.level in LEVELS
        assert kind.title
        assert kind.expected
        assert kind.action


GPU = {"index": 0, "name": "H200", "memory_bytes": 1}


def probe(**changes: Any) -> dict[str, Any]:
    library = {"path": "/x/libnccl.so.2", "family": "nccl", "code": 22105, "version": "2.21.5"}
    base: dict[str, Any] = {
        "torch": "2.4.1+cu121",
        "cuda": "12.1",
        "hip": None,
        "backends": ["nccl", "gloo"],
        "gpus": [GPU, GPU],
        "device_nodes": [],
        "libraries": [{**library, "error": None}],
        "compiled_for": "2.21.5",
    }
    return base | changes


def world(
    seen: dict[str, Any],
    backend: str = "auto",
    nproc: int | None = None,
    environ: dict[str, str] | None = None,
) -> World:
    return decide(seen, backend=backend, nproc=nproc, environ=environ or {}, loopback="lo")


def test_one_rank_per_gpu() -> None:
    made = world(probe())
    assert (made.size, made.backend, made.gpus, made.shares_gpus) == (2, "nccl", 2, False)
    assert [made.gpu_of(rank) for rank in range(2)] == [0, 1]
    assert made.environment_of(1) == {"OMP_NUM_THREADS": "1"}


def test_ranks_that_share_a_gpu_look_like_ranks_of_other_hosts_before_nccl_2_30() -> None:
    made = world(probe(), nproc=4)
    assert made.shares_gpus
    assert [made.gpu_of(rank) for rank in range(4)] == [0, 1, 0, 1]
    assert len({made.environment_of(rank)["NCCL_HOSTID"] for rank in range(4)}) == 4
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in made.environment_of(0)
    assert [one.id for one in judge_devices(made)] == ["GC0108"]


def test_ranks_per_gpu_are_that_many_on_each() -> None:
    made = decide(probe(), backend="auto", nproc=None, ranks_per_gpu=3, environ={}, loopback="lo")
    assert (made.size, made.gpus, made.shares_gpus) == (6, 2, True)
    with pytest.raises(UnusableError) as caught:
        decide(
            probe(gpus=[], cuda=None),
            backend="auto",
            nproc=None,
            ranks_per_gpu=2,
            environ={},
            loopback="lo",
        )
    assert caught.value.finding_id == "GC0111"


def test_ranks_that_share_a_gpu_since_nccl_2_30() -> None:
    new = probe(libraries=[{"path": "/x/libnccl.so.2", "code": 23004, "version": "2.30.4"}])
    extra = world(new, nproc=3).environment_of(0)
    assert extra["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert "NCCL_HOSTID" not in extra


def test_no_gpu_is_gloo_on_the_loopback_unless_the_user_chose_an_interface() -> None:
    seen = probe(gpus=[], cuda=None)
    made = world(seen)
    assert (made.size, made.backend, made.gpus) == (2, "gloo", 0)
    assert made.environment_of(0)["GLOO_SOCKET_IFNAME"] == "lo"
    chosen = world(seen, environ={"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "4"})
    assert chosen.environment_of(0) == {}
    assert [one.id for one in judge_devices(made)] == ["GC0107"]


@pytest.mark.parametrize(
    ("seen", "backend", "finding"),
    [
        (probe(gpus=[]), "nccl", "GC0111"),
        (probe(gpus=[], cuda=None, backends=["gloo"]), "nccl", "GC0111"),
        (probe(backends=["gloo"]), "nccl", "GC0112"),
        (probe(gpus=[], cuda=None, backends=[]), "auto", "GC0112"),
        (probe(gpus=[]), "auto", "GC0114"),
        (probe(gpus=[], cuda=None, hip="6.3"), "auto", "GC0114"),
        (probe(gpus=[], device_nodes=["/dev/nvidia0"]), "auto", "GC0106"),
    ],
)
def test_what_cannot_run(seen: dict[str, Any], backend: str, finding: str) -> None:
    with pytest.raises(UnusableError) as caught:
        world(seen, backend=backend)
    assert caught.value.finding_id == finding


def test_no_gpu_says_what_cuda_says_where_there_should_be_one() -> None:
    words = "forward compatibility was attempted on non supported HW"
    seen = probe(gpus=[], device_nodes=["/dev/nvidia0"], why_no_gpu=words)
    with pytest.raises(UnusableError) as caught:
        world(seen)
    assert caught.value.finding_id == "GC0106"
    assert caught.value.measured.endswith(f"; CUDA says: {words}")
    with pytest.raises(UnusableError) as caught:
        world(probe(gpus=[], why_no_gpu="Found no NVIDIA driver on your system"))
    assert "CUDA says" not in caught.value.measured


def test_no_gpu_says_what_hides_them_and_gloo_runs_all_the_same() -> None:
    seen = probe(gpus=[], device_nodes=["/dev/nvidia0"])
    with pytest.raises(UnusableError) as caught:
        world(seen, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert caught.value.finding_id == "GC0114"
    assert "/dev/nvidia0" in caught.value.measured
    assert "CUDA_VISIBLE_DEVICES=''" in caught.value.measured
    assert world(seen, backend="gloo").size == 2


@pytest.mark.parametrize(
    ("seen", "environ", "expected"),
    [
        (2, {}, []),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1"}, []),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, []),
        (1, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, []),
        (1, {"CUDA_VISIBLE_DEVICES": "0,7"}, ["GC0117"]),
        (1, {"CUDA_VISIBLE_DEVICES": "0,0"}, ["GC0117"]),
        (2, {"CUDA_VISIBLE_DEVICES": "0,0"}, ["GC0117"]),
        (1, {"HIP_VISIBLE_DEVICES": "0,9"}, ["GC0117"]),
        (1, {}, ["GC0118"]),
    ],
)
def test_the_gpus_that_torch_sees_are_those_that_are_named(
    seen: int, environ: dict[str, str], expected: list[str]
) -> None:
    nodes = ["/dev/nvidia0", "/dev/nvidia1"]
    made = probe(gpus=[GPU] * seen, device_nodes=nodes)
    assert [one.id for one in judge_choice(made, environ)] == expected


def test_one_rank_communicates_nothing() -> None:
    seen = probe(gpus=[GPU])
    assert [one.id for one in judge_devices(world(seen))] == ["GC0109"]


OTHER = {"path": "/y/libnccl.so.2", "code": 22005, "version": "2.20.5", "error": None}
SILENT = {"path": "/x/libnccl.so.2", "code": None, "version": None, "error": "no symbol"}


@pytest.mark.parametrize(
    ("changes", "backend", "expected"),
    [
        ({}, "nccl", []),
        ({"libraries": []}, "nccl", ["GC0101"]),
        ({"libraries": []}, "gloo", []),
        ({"libraries": [*probe()["libraries"], OTHER]}, "nccl", ["GC0102"]),
        ({"libraries": [*probe()["libraries"], OTHER]}, "gloo", ["GC0102"]),
        ({"libraries": [SILENT]}, "nccl", ["GC0103"]),
        ({"compiled_for": "2.20.5"}, "nccl", ["GC0104"]),
    ],
)
def test_judge_libraries(changes: dict[str, Any], backend: str, expected: list[str]) -> None:
    assert [one.id for one in judge_libraries(probe(**changes), backend)] == expected


def test_the_odd_rank_out_of_init_is_named() -> None:
    same = probe()["libraries"]
    results = {
        0: {"libraries": same, "first_result": 2.0},
        1: {"libraries": [OTHER], "first_result": 2.0},
    }
    (finding,) = judge_init(results, lambda rank: same)
    assert finding.id == "GC0105"
    assert "rank 1: /y/libnccl.so.2 (2.20.5)" in finding.measured
    assert "rank 0" not in finding.measured


def test_a_wrong_first_all_reduce_fails() -> None:
    same = probe()["libraries"]
    results = {rank: {"libraries": same, "first_result": 1.0} for rank in range(2)}
    assert [one.id for one in judge_init(results, lambda rank: same)] == ["GC0302"]
