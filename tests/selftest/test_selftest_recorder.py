"""What torch's flight recorder tells of a hang: parsed as data, and asked of a real torch."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.selftest.conftest import BACKEND

from gpucomm_selftest import recorder

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner


def entry(number: int, name: str, **changes: Any) -> dict[str, Any]:
    """As torch 2.13 writes it."""
    base = {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[5]],
        "input_dtypes": ["Float"],
        "process_group": ["0", "default_pg"],
        "state": "completed",
        "retired": True,
    }
    return base | changes


def test_the_last_that_ended_and_those_that_have_not() -> None:
    pending = {"retired": False, "state": "started"}
    dumped = {
        "entries": [
            entry(1, "broadcast"),
            entry(2, "all_reduce"),
            entry(3, "all_gather", **pending),
            entry(4, "send 0->1", is_p2p=True, p2p_seq_id=9, **pending),
        ]
    }
    assert recorder.lines(dumped) == [
        "default_pg: ended: #2 nccl:all_reduce [[5]] Float: completed",
        "default_pg: not ended: #3 nccl:all_gather [[5]] Float: started",
        "default_pg: not ended: #9 nccl:send 0->1 [[5]] Float: started",
    ]


def test_many_are_cut_and_none_is_nothing() -> None:
    many = {"entries": [entry(n, "x", retired=False, state="scheduled") for n in range(9)]}
    assert recorder.lines(many)[-1] == "default_pg: 5 more that have not ended"
    assert recorder.lines({}) == []


@pytest.mark.parametrize(
    ("torch", "environ", "names"),
    [
        ("2.4.1+cu121", {}, {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}),
        ("2.13.0+cpu", {}, {"TORCH_FR_BUFFER_SIZE"}),
        ("2.4.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, set()),
    ],
)
def test_it_is_switched_on_unless_the_user_has_decided(
    torch: str, environ: dict[str, str], names: set[str]
) -> None:
    assert set(recorder.environment(torch, environ)) == names


def test_without_torch_it_has_nothing_to_say() -> None:
    reading, writing = os.pipe()
    said: list[list[str]] = []
    heard = threading.Event()

    def send(lines: list[str]) -> None:
        said.append(lines)
        heard.set()

    recorder.answer(reading, send)
    os.write(writing, b"x")
    assert heard.wait(5)
    assert said == [[]]
    os.close(writing)


def test_a_hang_shows_what_each_rank_had_in_flight(torch_run: Runner) -> None:
    has = torch_run.script(
        "import torch._C._distributed_c10d as c\nprint(hasattr(c, '_dump_fr_trace_json'))"
    )
    if BACKEND == "gloo" and "True" not in has.out:
        pytest.skip("this torch records nothing of Gloo")
    running = torch_run.start(
        *("--backend", BACKEND, "--nproc", "2", "--budget", "standard", "--stages", "correctness"),
        *("--timeout", "15", "--json", "--verbose"),
    )
    running.wait_for_log("stage correctness: begins")
    running.rank(1).kill(signal.SIGSTOP)
    done = running.finish(90)
    assert done.code == 124
    (stage,) = [one for one in done.json["stages"] if one["id"] == "correctness"]
    first, second = stage["stopped_ranks"]
    assert any("not ended: #" in line for line in first["recorded"])
    assert second["recorded"] == []  # it is stopped and says nothing
    assert any(line.startswith("rank 0: default_pg: ") for line in stage["evidence"])
