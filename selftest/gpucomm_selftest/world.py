"""Decides how many ranks run where, with which backend and which environment.

Pure: it is given what the probe saw and what the user asked for. It must not start anything and
must not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.sites import CHOOSING

# Since this NCCL several ranks may share a GPU by a switch; before it only by looking like
# ranks of different hosts.
MULTI_RANK_GPU_SINCE = 23000

DEFAULT_CPU_RANKS = 2


@dataclass(frozen=True, kw_only=True)
class World:
    size: int
    backend: str
    why_backend: str
    gpus: int  # GPUs in use on all hosts; 0 on the CPU
    gpu_indexes: tuple[int | None, ...]  # by rank, as torch counts them there
    library_code: int | None
    # What the self-test sets for every rank, and what it sets for each one.
    environment: Mapping[str, str]
    interfaces: tuple[str, ...] = ()  # by rank, for Gloo, where they are on several networks

    @property
    def shares_gpus(self) -> bool:
        """Whether the run is a functional test only."""
        return self.gpus > 0 and self.size > self.gpus

    def gpu_of(self, rank: int) -> int | None:
        return self.gpu_indexes[rank]

    def environment_of(self, rank: int) -> dict[str, str]:
        extra = dict(self.environment)
        if self.interfaces and self.interfaces[rank]:
            extra["GLOO_SOCKET_IFNAME"] = self.interfaces[rank]
        if self.shares_gpus:
            if self.library_code is not None and self.library_code >= MULTI_RANK_GPU_SINCE:
                extra["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            else:
                extra["NCCL_HOSTID"] = f"gpucomm-selftest-rank{rank}"
        return extra


def _no_gpu(probe: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    built = f"CUDA {probe['cuda']}" if probe["cuda"] else f"ROCm {probe['hip']}"
    chosen = [f"{name}={environ[name]!r}" for name in CHOOSING if name in environ]
    nodes = ", ".join(probe["device_nodes"]) or "none"
    said = f"torch {probe['torch']} for {built}; device nodes: {nodes}"
    if probe.get("why_no_gpu") and probe["device_nodes"]:
        said += f"; CUDA says: {probe['why_no_gpu']}"
    return said + (f"; set: {', '.join(chosen)}" if chosen else "")


def backend_of(
    probe: Mapping[str, Any], *, backend: str, environ: Mapping[str, str]
) -> tuple[str, str]:
    """The backend for what one probe saw, and why. Raises UnusableError where there is none."""
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
    if backend not in probe["backends"]:
        offered = ", ".join(probe["backends"]) or "none"
        raise UnusableError("GC0112", f"asked for {backend}, offered: {offered}")
    return backend, why


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    """What every rank needs that was not set."""
    # As torchrun does: ranks that each take all cores slow each other down.
    return {} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": "1"}


def _code(probe: Mapping[str, Any]) -> int | None:
    libraries = probe["libraries"]
    return libraries[0]["code"] if libraries else None


def _by_loopback(environ: Mapping[str, str], loopback: str) -> dict[str, str]:
    """Gloo would otherwise look up the host name, which fails or hangs without a network."""
    taken = "GLOO_SOCKET_IFNAME" in environ or not loopback
    return {} if taken else {"GLOO_SOCKET_IFNAME": loopback}


def decide(
    probe: Mapping[str, Any],
    *,
    backend: str,
    nproc: int | None,
    ranks_per_gpu: int | None = None,
    environ: Mapping[str, str],
    loopback: str,
) -> World:
    """The world that this copy starts by itself. Raises UnusableError where what was asked for
    cannot exist here."""
    seen = len(probe["gpus"])
    chosen, why = backend_of(probe, backend=backend, environ=environ)
    if ranks_per_gpu and chosen != "nccl":
        raise UnusableError("GC0111", f"--ranks-per-gpu {ranks_per_gpu}, and torch sees no GPU")
    gpus = seen if chosen == "nccl" else 0
    size = nproc or gpus * (ranks_per_gpu or 1) or DEFAULT_CPU_RANKS
    gloo = _by_loopback(environ, loopback) if chosen == "gloo" else {}
    return World(
        size=size,
        backend=chosen,
        why_backend=why,
        gpus=min(gpus, size),
        gpu_indexes=tuple(rank % gpus if gpus else None for rank in range(size)),
        library_code=_code(probe),
        environment={**_common(environ), **gloo},
    )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """One rank of a launcher, as its site's probe and its own copy know it."""

    probe: Mapping[str, Any]
    environ: Mapping[str, str]
    host: str  # the same text for all ranks of one host
    site: int  # the number of the probe that looked at its GPUs
    name: str  # for people
    local: int  # its place among the ranks of its site
    interface: str = ""  # towards the other networks, where there are any


def _gpu_key(one: Launched, index: int) -> tuple[str, str]:
    gpu = one.probe["gpus"][index]
    return one.host, str(gpu.get("uuid") or f"site {one.site}:{index}")


def decide_launched(
    ranks: Sequence[Launched], *, backend: str, one_network: bool, loopback: str
) -> World:
    """The world of copies that a launcher started, by rank: one rank for each copy.

    A rank takes the GPU that its local rank names among those that it sees, as training does.
    Raises UnusableError where a rank cannot be, or cannot be with the others.
    """
    chosen = []
    for one in ranks:
        try:
            chosen.append(backend_of(one.probe, backend=backend, environ=one.environ))
        except UnusableError as error:
            raise UnusableError(error.finding_id, f"{one.name}: {error.measured}") from None
    name, why = chosen[0]
    for one, (other, because) in zip(ranks, chosen, strict=True):
        if other != name:
            measured = f"{ranks[0].name}: {name} ({why}); {one.name}: {other} ({because})"
            raise UnusableError("GC0116", measured)
    indexes: list[int | None] = [None] * len(ranks)
    used = set()
    if name == "nccl":
        for at, one in enumerate(ranks):
            indexes[at] = index = one.local % len(one.probe["gpus"])
            used.add(_gpu_key(one, index))
    gloo = _by_loopback(ranks[0].environ, loopback) if name == "gloo" and one_network else {}
    interfaces = (
        ()
        if one_network
        else tuple("" if "GLOO_SOCKET_IFNAME" in one.environ else one.interface for one in ranks)
    )
    return World(
        size=len(ranks),
        backend=name,
        why_backend=why,
        gpus=len(used),
        gpu_indexes=tuple(indexes),
        library_code=_code(ranks[0].probe),
        environment={**_common(ranks[0].environ), **gloo},
        interfaces=interfaces if name == "gloo" else (),
    )
