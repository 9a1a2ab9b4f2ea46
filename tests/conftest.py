"""The one real image that heavy tests share: cu121, built by the real command and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPUCOMM = Path(sys.executable).parent / "gpucomm"


def gpucomm(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would, in the checkout."""
    return subprocess.run(
        [str(GPUCOMM), *arguments],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def real_image() -> str:
    """Reference of the built and verified cu121 image. Building it needs about 25 GB of disk; the
    build says so itself when they are not there."""
    built = gpucomm("build", "cu121")
    assert built.returncode == 0, built.stdout + built.stderr
    return gpucomm("image", "cu121").stdout.strip()
