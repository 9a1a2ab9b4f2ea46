"""Who is named when a run stops, from views of ranks that no process stands behind."""

import signal
from typing import Any

import pytest

from gpucomm_selftest.attribution import RankView, explain_failure, explain_hang, first_causes
from gpucomm_selftest.unsupported import is_refusal

OP = "all_gather bf16 n=1021"


def view(rank: int, **changes: Any) -> RankView:
    base: dict[str, Any] = {
        "rank": rank,
        "pid": 100 + rank,
        "last": OP,
        "entered": 12,
        "state": "S",
    }
    return RankView(**(base | changes))


def test_a_killed_rank_is_named_with_its_signal_and_operation() -> None:
    views = [view(0), view(1), view(2, signal=9, ended_at=5.0), view(3)]
    assert explain_failure(views, "correctness") == (
        "GC0901",
        "rank 2 (pid 102) was killed by SIGKILL during correctness: all_gather bf16 n=1021; "
        "ranks 0,1,3 were waiting",
    )


def test_ranks_that_lost_their_peer_are_a_consequence() -> None:
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:3421"
    views = [
        view(0, error=lost, error_at=4.0),
        view(1, signal=signal.SIGABRT, ended_at=4.5),
        view(2, signal=signal.SIGKILL, ended_at=5.0),
        view(3, done=True),
    ]
    finding, sentence = explain_failure(views, "correctness")
    assert finding == "GC0901"
    assert sentence.startswith("rank 2 (pid 102) was killed by SIGKILL")
    assert sentence.endswith("; ranks 0,1 failed as a consequence, rank 3 had finished")


def test_a_rank_that_raises_is_named_and_not_the_one_that_noticed_first() -> None:
    views = [
        view(0, error="RuntimeError: Connection reset by peer", error_at=1.0),
        view(1, error="OutOfMemoryError: CUDA out of memory", error_at=2.0),
    ]
    finding, sentence = explain_failure(views, "init")
    assert finding == "GC0903"
    assert sentence.startswith("rank 1 (pid 101) raised during init")
    assert "CUDA out of memory" in sentence
    assert sentence.endswith("; rank 0 failed as a consequence")


def test_only_lost_peers_name_the_first() -> None:
    views = [
        view(0, error="RuntimeError: Connection closed by peer", error_at=2.0),
        view(1, error="RuntimeError: Broken pipe", error_at=1.0),
    ]
    assert [cause.rank for cause in first_causes(views)] == [1]


def test_an_exit_status_is_named() -> None:
    finding, sentence = explain_failure([view(0), view(1, status=3, ended_at=1.0)], "init")
    assert finding == "GC0901"
    assert "rank 1 (pid 101) exited with status 3 during init" in sentence


def test_all_ranks_that_a_signal_ended_are_named() -> None:
    views = [view(0), view(1, signal=9, ended_at=1.0), view(2, signal=9, ended_at=1.0)]
    assert [cause.rank for cause in first_causes(views)] == [1, 2]


def test_nothing_to_explain_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rank died"):
        explain_failure([view(0)], "init")


def test_a_stopped_rank_is_named_though_all_entered() -> None:
    finding, sentence = explain_hang([view(0), view(1, state="T"), view(2)], "correctness", 30.0)
    assert finding == "GC0902"
    assert sentence == (
        "correctness did not end within 30 s: rank 1 (pid 101) is stopped (process state T: "
        "SIGSTOP or a debugger), last entered: all_gather bf16 n=1021; ranks 0,2 were waiting"
    )


def test_the_rank_behind_the_others_is_named() -> None:
    views = [
        view(0, entered=13),
        view(1, entered=12, last="broadcast fp32 n=1"),
        view(2, done=True),
    ]
    _, sentence = explain_hang(views, "correctness", 30.0)
    assert "rank 1 (pid 101) is behind the others, last entered: broadcast fp32 n=1" in sentence
    assert "rank 0 was waiting, rank 2 had finished" in sentence


def test_the_few_that_are_ahead_of_most_are_named() -> None:
    views = [view(0, entered=13), view(1, entered=14, last="broadcast fp32 n=1")]
    views += [view(2, entered=13), view(3, entered=13)]
    finding, sentence = explain_hang(views, "correctness", 30.0)
    assert finding == "GC0902"
    assert "rank 1 (pid 101) is ahead of the others (skipped an operation" in sentence
    assert "ranks 0,2,3 were waiting" in sentence


def test_ranks_in_different_operations_at_the_same_step_are_told_apart() -> None:
    views = [view(0), view(1), view(2, last="broadcast fp32 n=1")]
    finding, sentence = explain_hang(views, "correctness", 30.0)
    assert finding == "GC0907"
    assert sentence.endswith(
        "rank 2 entered broadcast fp32 n=1; ranks 0,1 entered all_gather bf16 n=1021"
    )


def test_a_rank_in_the_kernel_is_named_unless_all_are() -> None:
    assert "state D" in explain_hang([view(0, state="D"), view(1)], "init", 5.0)[1]
    _, sentence = explain_hang([view(0, state="D"), view(1, state="D")], "init", 5.0)
    assert "every rank entered" in sentence


def test_nobody_is_accused_where_all_wait_in_the_same_operation() -> None:
    finding, sentence = explain_hang([view(0), view(1)], "correctness", 30.0)
    assert finding == "GC0908"
    assert sentence == (
        "correctness did not end within 30 s: every rank entered all_gather bf16 n=1021 and none "
        "came out: rank 0 (pid 100), rank 1 (pid 101)"
    )


def test_the_probe_is_not_called_a_rank() -> None:
    _, sentence = explain_hang([view(0, role="probe", last="import torch")], "versions", 5.0)
    assert sentence == "versions did not end within 5 s: the probe (pid 100) entered import torch"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("RuntimeError", "Invalid scalar type"),
        ("RuntimeError", "ProcessGroupGloo does not support reduce_scatter"),
        ("RuntimeError", "Backend gloo does not support alltoall"),
        ("RuntimeError", "no support for _allgather_base in Gloo process group"),
        ("RuntimeError", "Input tensor data type is not supported for NCCL process group: Half"),
        ("NotImplementedError", "anything"),
    ],
)
def test_what_a_backend_lacks(kind: str, text: str) -> None:
    assert is_refusal(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("RuntimeError", "ibv_reg_dmabuf_mr failed with error Operation not supported"),
        ("RuntimeError", "CUDA error: peer access is not supported between these two devices"),
        ("RuntimeError", "Socket creation failed : Address family not supported by protocol"),
        ("RuntimeError", "[pair.cc] Connection closed by peer"),
        ("DistBackendError", "NCCL error: unhandled system error, NCCL version 2.21.5"),
        ("AssertionError", "Invalid scalar type"),
        ("RuntimeError", ""),
    ],
)
def test_what_is_broken(kind: str, text: str) -> None:
    assert not is_refusal(kind, text)
