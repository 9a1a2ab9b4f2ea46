"""Run inside an image with a GPU: torch.compile of a small model against eager, both directions.

Prints one JSON line; exits 1 when the results differ. Triton compiles its launcher with the image's
C compiler here, which is what the runtime flavor carries it for.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import time

import torch


def main() -> int:
    """Compare a compiled step with the same step in eager mode."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 8)
    ).cuda()
    data = torch.randn(64, 256, device="cuda")
    eager = torch.autograd.grad(model(data).square().mean(), list(model.parameters()))
    started = time.monotonic()
    compiled = torch.compile(model)
    found = torch.autograd.grad(compiled(data).square().mean(), list(model.parameters()))
    seconds = time.monotonic() - started
    worst = max((a - b).abs().max().item() for a, b in zip(eager, found, strict=True))
    from torch._inductor import metrics

    facts = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "user": getpass.getuser(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "triton_kernels": metrics.generated_kernel_count,
        "seconds": round(seconds, 1),
        "largest_difference": worst,
    }
    print(json.dumps(facts))
    # fp32 sums in another order: bound of a 512-term sum of values near 1e-3.
    return 0 if worst < 1e-5 and facts["triton_kernels"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
