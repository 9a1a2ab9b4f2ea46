"""One rank that calls a collective otherwise than the others is named, within the deadline.

The fault comes from outside: a `sitecustomize` on the path of the run that replaces a function of
torch.distributed in one rank. The product has no hook for faults.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.selftest.conftest import BACKEND

if TYPE_CHECKING:
    from tests.selftest.conftest import Runner

# Runs in every Python of the run, and acts in the rank named by FAULT_RANK, at the first call of
# all_reduce on more than one element: the first of the stage `correctness`.
SITECUSTOMIZE = """
import os, sys

def arguments():
    with open("/proc/self/cmdline", "rb") as stream:
        return stream.read().decode().split("\\0")

def damage(dist, torch):
    real = dist.all_reduce
    state = {"left": 1}

    def all_reduce(tensor, *args, **kwargs):
        if tensor.numel() <= 1 or not state["left"]:
            return real(tensor, *args, **kwargs)
        state["left"] -= 1
        fault = os.environ["FAULT"]
        if fault == "dtype":
            return real(tensor.to(torch.float64), *args, **kwargs)
        if fault == "smaller dtype":
            return real(tensor.to(torch.float16), *args, **kwargs)
        if fault == "size":
            return real(torch.cat([tensor, tensor]), *args, **kwargs)
        if fault == "smaller size":
            return real(tensor[:1000], *args, **kwargs)
        if fault == "bit":
            done = real(tensor, *args, **kwargs)
            tensor.view(torch.int32)[7] ^= 1
            return done
        assert fault == "skip"

    if os.environ["FAULT"] == "skip last":
        dist.scatter_object_list = lambda *args, **kwargs: None
    else:
        dist.all_reduce = all_reduce

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "gpucomm_selftest.operations":
            return None
        # Torch is there by now, and nothing of it has been called for the stage.
        import torch, torch.distributed
        damage(torch.distributed, torch)
        sys.meta_path.remove(self)
        return None

def damage_a_pair():
    # What one rank gets of another is changed, as a link that damages data does.
    import threading, time

    def patch():
        dist = None
        while not hasattr(dist, "batch_isend_irecv"):
            time.sleep(0.001)
            dist = sys.modules.get("torch.distributed")
        real = dist.batch_isend_irecv

        def batch_isend_irecv(batch):
            works = real(batch)
            for work in works:
                work.wait()
            receive = batch[1]
            if receive.peer == 0:
                receive.tensor.view(-1)[7] ^= 1
            return []

        dist.batch_isend_irecv = batch_isend_irecv

    threading.Thread(target=patch, daemon=True).start()

argv = arguments()
if "gpucomm_selftest.rank" in argv and argv[argv.index("--role") + 1] == "rank":
    if argv[argv.index("--rank") + 1] == os.environ.get("FAULT_RANK"):
        if os.environ["FAULT"] == "pair":
            damage_a_pair()
        else:
            sys.meta_path.insert(0, Finder())
"""

# A rank that shares a GPU takes some seconds to get there.
DEADLINE = 15 if BACKEND == "gloo" else 25


def run_with(
    runner: Runner, folder: Path, fault: str, rank: int, ranks: int, stages: str = "correctness"
) -> tuple[int, float, dict[str, str], dict[str, object]]:
    """The exit code, the seconds of the stage, what was measured by id, and the report."""
    runner.bring(folder)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    environ = {
        "PYTHONPATH": str(folder),
        "FAULT": fault,
        "FAULT_RANK": str(rank),
    }
    common = ("--backend", BACKEND, "--nproc", str(ranks), "--timeout", str(DEADLINE))
    running = runner.start(*common, "--stages", stages, "--json", environ=environ)
    done = running.finish(90)
    assert running.processes() == []
    report = done.json
    (stage,) = [one for one in report["stages"] if one["id"] == stages]
    measured = {one["id"]: one["measured"] for one in reversed(report["findings"])}
    return done.code, stage["seconds"], measured, report


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("fault", "called"),
    [
        ("dtype", "allreduce float64[1021]"),
        ("smaller dtype", "allreduce float16[1021]"),
        ("size", "allreduce float32[2042]"),
        ("smaller size", "allreduce float32[1000]"),
    ],
)
def test_another_type_or_size_is_named_with_its_rank(
    torch_run: Runner, tmp_path: Path, fault: str, called: str, rank: int, ranks: int
) -> None:
    code, seconds, measured, report = run_with(torch_run, tmp_path, fault, rank, ranks)
    assert code in (1, 124)
    assert seconds < DEADLINE + 5
    assert measured["GC0309"].startswith(
        f"all_reduce sum fp32 n=1021: rank {rank} called {called}; rank"
    )
    assert measured["GC0309"].endswith("called allreduce float32[1021]")
    assert "GC0309" in str(report["summary"])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_skips_a_collective_is_named(
    torch_run: Runner, tmp_path: Path, rank: int
) -> None:
    code, seconds, measured, _ = run_with(torch_run, tmp_path, "skip", rank, 2)
    assert code in (1, 124)
    assert seconds < DEADLINE + 5
    # How it ends is up to the backend: the next collective of this rank meets this one of the
    # other, which may raise, abort or wait.
    assert {"GC0901", "GC0902", "GC0903"} & set(measured)
    others = f"rank {1 - rank} called allreduce float32[1021]"
    assert measured["GC0309"] == (
        f"all_reduce sum fp32 n=1021: rank {rank} called nothing; {others}"
    )


def test_the_rank_that_skips_the_last_collective_lets_the_others_hang(
    torch_run: Runner, tmp_path: Path
) -> None:
    code, seconds, measured, _ = run_with(torch_run, tmp_path, "skip last", 1, 2)
    assert code == 124
    assert seconds < DEADLINE + 5
    assert "GC0902" in measured
    assert measured["GC0309"].startswith(
        "scatter_object object n=1021: rank 1 called nothing; rank 0 called "
    )


def test_one_wrong_bit_is_shown_with_its_rank_and_index(torch_run: Runner, tmp_path: Path) -> None:
    code, _, measured, _ = run_with(torch_run, tmp_path, "bit", 1, 2)
    assert code == 1
    assert "GC0309" not in measured
    assert "checks wrong on rank 1; first all_reduce sum fp32 n=1021: rank 1" in measured["GC0302"]
    assert "1 of 1021 elements wrong, first in block 0 at index 7: got " in measured["GC0302"]


@pytest.mark.parametrize("rank", [1, 2])
def test_a_link_that_damages_data_is_named_by_both_its_ends(
    torch_run: Runner, tmp_path: Path, rank: int
) -> None:
    code, _, measured, _ = run_with(torch_run, tmp_path, "pair", rank, 3, "pairs")
    assert code == 1
    assert measured["GC0308"].startswith(f"rank 0 to rank {rank}: 1 of 1021 elements wrong")
    assert "first at index 7: got " in measured["GC0308"]
    assert "; rank" not in measured["GC0308"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGSTOP, 124), (signal.SIGKILL, 1)])
def test_a_rank_that_is_stopped_or_killed_is_named(
    torch_run: Runner, number: signal.Signals, code: int
) -> None:
    running = torch_run.start(
        *("--backend", BACKEND, "--nproc", "2", "--budget", "standard", "--stages", "correctness"),
        *("--timeout", str(DEADLINE), "--json", "--verbose"),
    )
    running.wait_for_log("stage correctness: begins")
    running.rank(1).kill(number)
    done = running.finish(90)
    assert running.processes() == []
    assert done.code == code
    (stage,) = [one for one in done.json["stages"] if one["id"] == "correctness"]
    assert stage["seconds"] < DEADLINE + 5
    found = {one["id"]: one["measured"] for one in done.json["findings"]}
    if number == signal.SIGSTOP:
        assert "rank 1 (pid" in found["GC0902"]
        assert "is stopped" in found["GC0902"]
    else:
        assert "rank 1 (pid" in found["GC0901"]
        assert "was killed by SIGKILL" in found["GC0901"]
