"""The image works for the users and under the restrictions that clusters impose."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

WAYS = {
    "default": [],
    "root": ["--user", "root"],
    "arbitrary": ["--user", "12345:0"],
    "nobody's group": ["--user", "12345:12345"],
    "read-only": ["--read-only", "--tmpfs", "/tmp"],
    "no network": ["--network", "none"],
}
ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.full((5,), float(rank + 1))
dist.all_reduce(value)
assert value.tolist() == [size * (size + 1) / 2.0] * 5, value
os.write(1, f"rank {rank} ok\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_selftest_passes(run: Callable[..., Any], options: list[str]) -> None:
    done = run("gpucomm-selftest", "--backend", "gloo", "--nproc", "2", options=options)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("way", ["default", "no network"])
def test_torchrun_all_reduce(run: Callable[..., Any], way: str) -> None:
    write = f"cat > /tmp/r.py <<'E'\n{ALL_REDUCE}\nE\n"
    # --standalone asks the host name, which does not resolve under --network none.
    launch = "torchrun --nnodes 1 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500"
    script = f"{write}cd / && {launch} /tmp/r.py"
    done = run("env", "GLOO_SOCKET_IFNAME=lo", "sh", "-c", script, options=WAYS[way])
    assert done.code == 0, done.out + done.err
    # Gloo of some versions says itself how many peers it found, in the midst of our own lines.
    assert sorted(re.findall(r"rank \d ok", done.out)) == ["rank 0 ok", "rank 1 ok"], done.out


def test_default_user_is_not_root(run: Callable[..., Any]) -> None:
    done = run("id", "-u")
    assert done.code == 0
    assert int(done.out) != 0


def test_unknown_user_has_a_name(run: Callable[..., Any]) -> None:
    done = run("python", "-c", "import getpass; print(getpass.getuser())",
               options=["--user", "12345:12345"])  # fmt: skip
    assert (done.code, done.out) == (0, "uid12345\n")


@pytest.mark.parametrize("program", ["python", "torchrun", "gpucomm-selftest", "uv"])
@pytest.mark.parametrize("folder", ["/", "/tmp", "/workspace"])
def test_commands_work_from_any_folder(host: Any, program: str, folder: str) -> None:
    done = host.run("cd %s && command -v %s && %s --help", folder, program, program)
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"/opt/venv/bin/{program}"
