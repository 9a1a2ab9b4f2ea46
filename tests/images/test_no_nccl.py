"""A cell without an NCCL wheel carries no NCCL beside torch, and a CPU cell nothing of CUDA."""

from __future__ import annotations

from typing import Any

import pytest


def test_no_nccl_is_installed(root_host: Any, expected: Any) -> None:
    if expected.cell.nccl is not None:
        pytest.skip("this cell has an NCCL wheel")
    assert root_host.check_output("find / -xdev -name 'libnccl*'") == ""


def test_nothing_of_cuda_is_installed(root_host: Any, expected: Any) -> None:
    if expected.cell.accelerator == "cuda":
        pytest.skip("this line is CUDA")
    assert (
        root_host.check_output("find / -xdev -name 'libcudart*' -o -xdev -name 'libcublas*'") == ""
    )
