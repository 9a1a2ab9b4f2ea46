"""The one real image that heavy tests share: cu121, built by the real command and kept."""

from __future__ import annotations

import pytest
from tests.command import gpucomm


@pytest.fixture(scope="session")
def real_image() -> str:
    """Reference of the built and verified cu121 image. Building it needs about 25 GB of disk; the
    build says so itself when they are not there."""
    built = gpucomm("build", "cu121")
    assert built.returncode == 0, built.stdout + built.stderr
    return gpucomm("image", "cu121").stdout.strip()
