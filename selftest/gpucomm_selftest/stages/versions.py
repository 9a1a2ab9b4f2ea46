"""Stage `versions`: what this environment is, seen from one process that imports torch.

It decides nothing about collectives. It runs in a probe of its own, so that a torch whose import
crashes or hangs is still a verdict, and so that the launcher never creates a GPU context.
"""

import ctypes
import platform
import re
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from gpucomm_selftest.driver import device_nodes, driver_version
from gpucomm_selftest.environment import loopback, loopback_works
from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.host import same_network
from gpucomm_selftest.libraries import decode_version, describe_own, mapped_file
from gpucomm_selftest.probing import ask
from gpucomm_selftest.sites import CHOOSING, over
from gpucomm_selftest.stage import (
    FAILED,
    RankContext,
    Session,
    Stage,
    StageResult,
    status_of,
    stopped,
)
from gpucomm_selftest.world import Launched, World, backend_of, decide, decide_launched

# What the loader says of it, in the ImportError.
_LACKS_FUNCTION = re.compile(r"undefined symbol: p?nccl[A-Z]\w+")


def uuid_of(index: int, told: str) -> str:
    """What tells this GPU from every other one: torch's word, or that of the driver which it has
    loaded; nothing where neither knows. It creates no context."""
    library = mapped_file("driver")
    if told or library is None:
        return told.removeprefix("GPU-")
    driver, device = ctypes.CDLL(library), ctypes.c_int()
    raw = (ctypes.c_ubyte * 16)()
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid(raw, device):
        return ""
    return str(uuid.UUID(bytes=bytes(raw)))


def _gpus(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "name": device.name,
                "memory_bytes": device.total_memory,
                "capability": f"{device.major}.{device.minor}",
                "arch": getattr(device, "gcnArchName", None),
                "uuid": uuid_of(index, str(getattr(device, "uuid", ""))),
            }
        )
    return gpus


def _why_no_cuda(torch: Any) -> str:
    """What CUDA says where it does not start, such as that the compatibility library does not fit
    this kind of GPU (error 804); torch keeps it to itself."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def _compiled_for(torch: Any) -> str | None:
    """The NCCL that torch was compiled with. It is not what is loaded."""
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return None
    if isinstance(version, int):
        return decode_version(version)
    return ".".join(str(part) for part in version)


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    """Looks around in the probe. Raises whatever `import torch` raises."""
    context.enter("import torch")
    begin = time.monotonic()
    import torch
    import torch.distributed as dist

    imported = time.monotonic() - begin
    backends = []
    if dist.is_available():
        for name, offered in (("nccl", dist.is_nccl_available), ("gloo", dist.is_gloo_available)):
            if offered():
                backends.append(name)
    context.enter("look for GPUs")
    gpus = _gpus(torch)
    no_cuda = "" if gpus or not torch.version.cuda else _why_no_cuda(torch)
    context.enter("look at loaded libraries")
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "torch_file": torch.__file__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "arch_list": torch.cuda.get_arch_list() if gpus else [],
        "libcuda": mapped_file("driver"),
        "backends": backends,
        "gpus": gpus,
        "why_no_gpu": no_cuda,
        "device_nodes": device_nodes(),
        "driver": driver_version(),
        "libraries": describe_own(),
        "compiled_for": _compiled_for(torch) if "nccl" in backends else None,
        "import_seconds": round(imported, 3),
    }


def judge_libraries(probe: Mapping[str, Any], backend: str) -> list[Finding]:
    """What the loaded collective libraries mean for this backend."""
    findings = []
    libraries = probe["libraries"]
    if backend == "nccl" and not libraries:
        findings.append(found("GC0101", f"none mapped by torch {probe['torch']}"))
    if len(libraries) > 1:
        names = ", ".join(f"{one['path']} ({one['version']})" for one in libraries)
        findings.append(found("GC0102", names))
    findings += [found("GC0103", one["error"]) for one in libraries if one["version"] is None]
    compiled = probe["compiled_for"]
    if len(libraries) == 1 and compiled and libraries[0]["version"] not in (None, compiled):
        loaded = libraries[0]["version"]
        findings.append(found("GC0104", f"loaded {loaded}, compiled for {compiled}"))
    return findings


def named_gpus(value: str) -> list[str]:
    """The GPUs that a variable names, as CUDA reads it: up to the first that is negative."""
    names = [name.strip() for name in value.split(",")]
    end = next((at for at, name in enumerate(names) if not name or name.startswith("-")), None)
    return names[:end]


def judge_choice(probe: Mapping[str, Any], environ: Mapping[str, str]) -> list[Finding]:
    """Whether torch sees the GPUs that a variable names, or else those that are here."""
    seen = len(probe["gpus"])
    for name in CHOOSING:
        if name in environ:
            named = named_gpus(environ[name])
            if len(named) == seen and len(set(named)) == len(named):
                return []
            return [found("GC0117", f"{name}={environ[name]}; torch sees {seen} GPUs")]
    here = len([node for node in probe["device_nodes"] if "nvidia" in node])
    if here > seen > 0:
        return [found("GC0118", f"{here} device nodes; torch sees {seen} GPUs")]
    return []


def judge_devices(world: World) -> list[Finding]:
    """What the run can prove with these devices and ranks."""
    findings = []
    if world.backend == "gloo":
        findings.append(found("GC0107", f"{world.size} ranks on the CPU"))
    if world.shares_gpus:
        how = ", ".join(
            f"{name}={value}"
            for name, value in world.environment_of(0).items()
            if name in ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE")
        )
        findings.append(found("GC0108", f"{world.size} ranks on {world.gpus} GPU, by {how}"))
    if world.size == 1:
        findings.append(found("GC0109", "1 rank"))
    return findings


def _summary(probe: Mapping[str, Any]) -> str:
    libraries = " and ".join(
        f"{one['family']} {one['version'] or '?'}" for one in probe["libraries"]
    )
    return f"torch {probe['torch']}, {libraries or 'no collective library'} loaded"


def _unusable(finding_id: str, measured: str, deadline: float) -> StageResult:
    return StageResult(
        id=STAGE.id,
        status=FAILED,
        deadline=deadline,
        summary=measured,
        findings=[found(finding_id, measured)],
        unusable=True,
    )


def _launched(session: Session) -> list[Launched]:
    """Every rank of a launcher, by rank, with the GPU that its local rank chooses."""
    meeting = session.meeting
    if meeting is None:
        raise RuntimeError("no copies have met")
    made: dict[int, Launched] = {}
    # Ranks that see the same GPUs take them in turn, be they in one container or in several.
    seen: dict[tuple[str, ...], int] = {}
    order = {rank: number for number, site in enumerate(session.sites) for rank in site.ranks}
    for rank, number in sorted(order.items()):
        site, probe = session.sites[number], session.probes[number]
        local = site.local_ranks[site.ranks.index(rank)]
        uuids = tuple(str(gpu.get("uuid") or f"site {number}") for gpu in probe["gpus"])
        alike = (str(site.identity["boot"]), *uuids)
        at, seen[alike] = seen.get(alike, 0), seen.get(alike, 0) + 1
        copy = meeting.copies.get(rank)
        made[rank] = Launched(
            probe=probe,
            environ=copy.environ if copy else session.options.environ,
            host=site.identity["boot"],
            site=number,
            name=f"rank {rank}{f' on {copy.host}' if copy and copy.host else ''}",
            local=at if local is None else local,
            # A copy beside rank 0 may have come to it by the loopback.
            interface=copy.interface
            if copy and not same_network(meeting.identity, copy.identity)
            else meeting.interface,
        )
    return [made[rank] for rank in sorted(made)]


def _decide(session: Session) -> World:
    options = session.options
    if session.meeting is not None:
        return decide_launched(
            _launched(session),
            backend=options.backend,
            one_network=session.meeting.one_network,
            loopback=loopback(),
        )
    return decide(
        session.probes[0],
        backend=options.backend,
        nproc=options.nproc,
        ranks_per_gpu=options.ranks_per_gpu,
        environ=options.environ,
        loopback=loopback(),
    )


def run(session: Session, deadline: float) -> StageResult:
    outcome = ask(session, STAGE.id, lambda site: {}, deadline)
    failed = [number for number, one in enumerate(outcome.ranks) if one["error"]]
    if outcome.ended == "failed" and failed and not any(one["lost"] for one in outcome.ranks):
        # torch raised: that is no failed check, it is no place to check anything.
        raised = outcome.ranks[failed[0]]
        where = f"{session.sites[failed[0]].name}: " if len(session.sites) > 1 else ""
        lacks = _LACKS_FUNCTION.search(raised["error"])
        result = _unusable("GC0119" if lacks else "GC0110", f"{where}{raised['error']}", deadline)
        result.ranks = outcome.ranks
        return result
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    session.probes = [outcome.results[number] for number in sorted(outcome.results)]
    options = session.options
    try:
        backend, _ = backend_of(session.probes[0], backend=options.backend, environ=options.environ)
        # Of ranks that have not all met nothing can be said.
        world = _decide(session) if session.met else None
    except UnusableError as error:
        return _unusable(error.finding_id, error.measured, deadline)
    broken = loopback_works()
    if broken:
        return _unusable("GC0113", broken, deadline)
    session.world = world

    def judge(number: int) -> list[Finding]:
        probe, environ = session.probes[number], session.sites[number].environ
        return [
            *judge_libraries(probe, backend),
            *(judge_choice(probe, environ) if backend == "nccl" else []),
        ]

    findings = [*over(session.sites, judge), *(judge_devices(world) if world else [])]
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=_summary(session.probes[0]),
        findings=findings,
    )


STAGE = Stage(
    id="versions", title="versions and libraries", needs=(), deadline=60.0, run=run, work=work
)
