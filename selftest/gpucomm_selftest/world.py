"""Decides how many ranks run where, with which backend and which environment.

Pure: it is given what the probe saw and what the user asked for. It must not start anything and
must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucomm_selftest.errors import UnusableError

# Since this NCCL several ranks may share a GPU by a switch; before it only by looking like
# ranks of different hosts.
MULTI_RANK_GPU_SINCE = 23000

DEFAULT_CPU_RANKS = 2


@dataclass(frozen=True, kw_only=True)
class World:
    size: int
    backend: str
    why_backend: str
    gpus: int  # GPUs in use; 0 on the CPU
    library_code: int | None
    # What the self-test sets for every rank, and what it sets for each one.
    environment: Mapping[str, str]

    @property
    def shares_gpus(self) -> bool:
        """Whether the run is a functional test only."""
        return self.gpus > 0 and self.size > self.gpus

    def gpu_of(self, rank: int) -> int | None:
        return rank % self.gpus if self.gpus else None

    def environment_of(self, rank: int) -> dict[str, str]:
        extra = dict(self.environment)
        if self.shares_gpus:
            if self.library_code is not None and self.library_code >= MULTI_RANK_GPU_SINCE:
                extra["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            else:
                extra["NCCL_HOSTID"] = f"gpucomm-selftest-rank{rank}"
        return extra


# Variables by which GPUs are chosen, or hidden.
CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def _no_gpu(probe: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    built = f"CUDA {probe['cuda']}" if probe["cuda"] else f"ROCm {probe['hip']}"
    chosen = [f"{name}={environ[name]!r}" for name in CHOOSING if name in environ]
    nodes = ", ".join(probe["device_nodes"]) or "none"
    said = f"torch {probe['torch']} for {built}; device nodes: {nodes}"
    return said + (f"; set: {', '.join(chosen)}" if chosen else "")


def decide(
    probe: Mapping[str, Any],
    *,
    backend: str,
    nproc: int | None,
    ranks_per_gpu: int | None = None,
    environ: Mapping[str, str],
    loopback: str,
) -> World:
    """The world to start. Raises UnusableError where what was asked for cannot exist here."""
    seen = len(probe["gpus"])
    if backend == "auto" and not seen and (probe["cuda"] or probe["hip"]):
        hidden = any(name in environ for name in CHOOSING)
        broken = probe["device_nodes"] and not hidden
        raise UnusableError("GC0106" if broken else "GC0114", _no_gpu(probe, environ))
    if backend == "auto":
        backend = "nccl" if seen else "gloo"
        why = f"auto: torch sees {seen} GPU{'' if seen == 1 else 's'}"
    else:
        why = "asked for"
    if backend == "nccl" and not seen:
        built_for = probe["cuda"] or probe["hip"]
        because = "sees no GPU" if built_for else "is a CPU build"
        nodes = ", ".join(probe["device_nodes"]) or "none"
        raise UnusableError("GC0111", f"torch {probe['torch']} {because}; device nodes: {nodes}")
    if ranks_per_gpu and backend != "nccl":
        raise UnusableError("GC0111", f"--ranks-per-gpu {ranks_per_gpu}, and torch sees no GPU")
    if backend not in probe["backends"]:
        offered = ", ".join(probe["backends"]) or "none"
        raise UnusableError("GC0112", f"asked for {backend}, offered: {offered}")

    extra: dict[str, str] = {}
    if "OMP_NUM_THREADS" not in environ:
        # As torchrun does: ranks that each take all cores slow each other down.
        extra["OMP_NUM_THREADS"] = "1"
    gpus = seen if backend == "nccl" else 0
    if backend == "gloo" and "GLOO_SOCKET_IFNAME" not in environ and loopback:
        # Gloo would otherwise look up the host name, which fails or hangs without a network.
        extra["GLOO_SOCKET_IFNAME"] = loopback
    size = nproc or gpus * (ranks_per_gpu or 1) or DEFAULT_CPU_RANKS
    libraries = probe["libraries"]
    return World(
        size=size,
        backend=backend,
        why_backend=why,
        gpus=min(gpus, size),
        library_code=libraries[0]["code"] if libraries else None,
        environment=extra,
    )
