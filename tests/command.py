"""The command `gpucomm` as a person runs it in this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GPUCOMM = Path(sys.executable).parent / "gpucomm"


def gpucomm(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in the checkout, without a terminal."""
    return subprocess.run(
        [str(GPUCOMM), *arguments],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
