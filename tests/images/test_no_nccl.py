"""A line without NCCL carries none."""

from __future__ import annotations

from typing import Any

import pytest


def test_nothing_of_nccl_or_cuda_is_installed(root_host: Any, expected: Any) -> None:
    if expected.cell.accelerator != "cpu":
        pytest.skip("this line has an accelerator")
    assert root_host.check_output("find / -xdev -name 'libnccl*' -o -xdev -name 'libcudart*'") == ""
