"""Stage `preflight`: the contract between this machine, its container, and a training run.

The probe collects (machine/, nvml.py, driver.py); the checks below decide, each by one line. What
matters only with GPUs or RDMA cards is judged only where they are in use: a laptop has no alarm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucomm_selftest import nvml
from gpucomm_selftest.archs import has_amd_code, has_code, line_for
from gpucomm_selftest.driver import driver_version
from gpucomm_selftest.driver_table import (
    floor_of,
    goes_with,
    newest_cuda,
    rocm_of_driver,
    toolkit_driver,
    version,
)
from gpucomm_selftest.findings import LEVELS, PASS, Finding, found
from gpucomm_selftest.machine import amdgpu, devices, memory, network, rights
from gpucomm_selftest.probing import ask
from gpucomm_selftest.sites import over
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30

# NCCL issues 290, 342, 525: 64 MB is not enough for some machines, 1 GB is for all reported ones.
_SHM_WANTED = _GB
_SHM_FREE = 64 * _MB
_MEMLOCK_RDMA = _GB
_MEMLOCK_LEAST = 64 * _KB
_FILES = 1024
_STACK = _MB
_MEMORY_OF_RANK = {"nccl": 2 * _GB, "gloo": 256 * _MB}
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Use:
    """What the run will do here: it decides what matters."""

    backend: str
    ranks: int
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check: a line of the table, and what is wrong."""

    check: str
    value: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> str:
        levels = [finding.level for finding in self.findings]
        return max(levels, key=LEVELS.index, default=PASS)

    def as_row(self) -> dict[str, str]:
        return {"check": self.check, "value": self.value, "level": self.level}


def collect(root: Path = Path("/")) -> dict[str, Any]:
    return {
        "shm": memory.shared_memory(root),
        "cgroup": memory.control_group(root),
        "limits": rights.limits(),
        "rights": rights.rights(root),
        "nodes": devices.device_nodes(root),
        "groups": devices.groups(),
        "interfaces": network.interfaces(root),
        "route": network.default_interface(root),
        "rdma": network.rdma_ports(root),
        "numa": network.numa_nodes(root),
        "driver": driver_version(),
        "gpus": nvml.health(nvml.library()) or amdgpu.health(root),
    }


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    context.enter("look at the machine")
    return collect()


def size(count: int | None) -> str:
    if count is None:
        return "unlimited"
    for unit, name in ((_GB, "GiB"), (_MB, "MiB"), (_KB, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def _few(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


Data = Mapping[str, Any]


def _ranks(use: Use) -> str:
    return "1 rank" if use.ranks == 1 else f"{use.ranks} ranks"


def _shm(data: Data, use: Use) -> Line:
    shm = data["shm"]
    stale = shm["stale"]
    value = f"{size(shm['size'])}, {size(shm['free'])} free" if shm["there"] else "missing"
    findings = []
    if use.backend == "nccl":
        if not shm["there"] or not shm["writable"]:
            findings.append(found("GC0404", "closed to this user" if shm["there"] else "missing"))
        elif shm["size"] < _SHM_WANTED:
            findings.append(found("GC0401", f"{value}, for {_ranks(use)}"))
        if shm["there"] and shm["writable"] and shm["free"] < min(_SHM_FREE, shm["size"] // 2):
            findings.append(found("GC0402", value))
    if stale:
        total = size(sum(one["size"] for one in stale))
        names = _few([one["name"] for one in stale])
        findings.append(found("GC0403", f"{len(stale)} of {total}: {names}"))
    return Line(check="/dev/shm", value=value, findings=findings)


def _memlock(data: Data, use: Use) -> Line:
    limit = data["limits"]["memlock"]
    held = "IPC_LOCK" in data["rights"]["capabilities"]
    findings = []
    if use.backend == "nccl" and limit is not None and not held:
        # Without their nodes the cards cannot be used, and nothing is locked for them.
        usable = any(name.startswith("infiniband/") for name in data["nodes"])
        if data["rdma"] and usable and limit < _MEMLOCK_RDMA:
            cards = len({port["device"] for port in data["rdma"]})
            findings.append(found("GC0405", f"{size(limit)}, no IPC_LOCK, {cards} RDMA cards"))
        elif limit <= _MEMLOCK_LEAST:
            findings.append(found("GC0406", f"{size(limit)}, no IPC_LOCK"))
    return Line(check="locked memory", value=size(limit), findings=findings)


def _files(data: Data, use: Use) -> Line:
    limit = data["limits"]["nofile"]
    low = limit is not None and limit < _FILES
    findings = [found("GC0407", f"{limit} open files")] if low else []
    return Line(check="open files", value=str(limit or "unlimited"), findings=findings)


def _stack(data: Data, use: Use) -> Line:
    limit = data["limits"]["stack"]
    low = limit is not None and limit < _STACK
    findings = [found("GC0408", size(limit))] if low else []
    return Line(check="stack", value=size(limit), findings=findings)


def _rights(data: Data, use: Use) -> Line:
    names = ", ".join(data["rights"]["capabilities"]) or "none of those that count"
    return Line(check="capabilities", value=f"{names}; seccomp {data['rights']['seccomp']}")


def _memory(data: Data, use: Use) -> Line:
    group = data["cgroup"]
    limit, used = group["limit"], group["used"] or 0
    findings = []
    wanted = _MEMORY_OF_RANK[use.backend] * use.ranks
    value = f"limit {size(limit)}" + (f", {size(used)} used" if used else "")
    if limit is not None and limit - used < wanted:
        findings.append(found("GC0417", f"{value}; {use.ranks} ranks want {size(wanted)}"))
    if group["killed"]:
        findings.append(found("GC0418", f"{group['killed']} processes"))
    return Line(check="memory", value=value, findings=findings)


def _nodes(data: Data, use: Use) -> Line:
    nodes: Mapping[str, Mapping[str, Any]] = data["nodes"]
    nvidia = [name for name in nodes if re.fullmatch(r"nvidia\d+", name)]
    render = [name for name in nodes if name.startswith("dri/")]
    findings = []
    if nvidia and use.backend == "nccl":
        missing = [name for name in ("nvidiactl", "nvidia-uvm") if name not in nodes]
        if missing:
            findings.append(found("GC0411", f"no /dev/{', no /dev/'.join(missing)}"))
    if data["hip"] and use.backend == "nccl" and render and "kfd" not in nodes:
        findings.append(found("GC0413", f"/dev/{render[0]} and no /dev/kfd"))
    wanted = [*nvidia, *(["kfd", *render] if "kfd" in nodes else [])]
    closed = [name for name in wanted if not nodes[name]["open"]]
    if closed and use.backend == "nccl":
        groups = sorted({nodes[name]["group"] for name in closed})
        mine = ",".join(str(group) for group in data["groups"])
        findings.append(
            found(
                "GC0412",
                f"{_few([f'/dev/{name}' for name in closed])} of group "
                f"{', '.join(str(group) for group in groups)}; this user is in {mine}",
            )
        )
    imex = sum(name.startswith("nvidia-caps-imex") for name in nodes)
    parts = [f"{len(nvidia)} NVIDIA"] if nvidia else []
    parts += [f"kfd and {len(render)} render"] if "kfd" in nodes else []
    parts += [f"{imex} IMEX channels"] if imex else []
    value = ", ".join(parts) or "none of a GPU"
    return Line(check="device nodes", value=value, findings=findings)


def _rdma(data: Data, use: Use) -> Line:
    ports = data["rdma"]
    if not ports:
        return Line(check="RDMA", value="no card")
    findings = []
    cards = sorted({port["device"] for port in ports})
    active = [port for port in ports if port["state"] == "ACTIVE"]
    if use.backend == "nccl":
        if active and not any(name.startswith("infiniband/") for name in data["nodes"]):
            findings.append(found("GC0414", f"{_few(cards)} and no /dev/infiniband/uverbs*"))
        down = [
            f"{one['device']}:{one['port']} {one['state']}" for one in ports if one not in active
        ]
        if active and down:
            findings.append(found("GC0415", f"{_few(down)}; {len(active)} are active"))
        bare = [
            f"{one['device']}:{one['port']}"
            for one in active
            if one["layer"] == "Ethernet" and not one["gids"]
        ]
        if bare:
            findings.append(found("GC0416", _few(bare)))
    rates = ", ".join(dict.fromkeys(port["rate"] for port in active if port["rate"]))
    value = f"{len(cards)} cards, {len(active)} of {len(ports)} ports active"
    return Line(check="RDMA", value=value + (f", {rates}" if rates else ""), findings=findings)


def _network(data: Data, use: Use) -> Line:
    names = [
        one["name"] + (" (default route)" if one["name"] == data["route"] else "")
        for one in data["interfaces"]
        if one["name"] != "lo"
    ]
    return Line(check="network", value=_few(names) or "the loopback alone")


def _numa(data: Data, use: Use) -> Line:
    numa = data["numa"]
    return Line(
        check="NUMA",
        value=f"{numa['nodes']} nodes; processors {numa['cpus'] or '?'}, "
        f"memory {numa['mems'] or '?'}",
    )


def _driver(data: Data, use: Use) -> Line:
    driver, cuda = data["driver"], data["cuda"]
    if not driver:
        return Line(check="driver", value="none to be seen")
    findings: list[Finding] = []
    value = f"{driver['name']} {driver['version']}"
    mine = version(driver["version"])
    if driver["name"] == "nvidia" and mine and cuda and use.backend == "nccl":
        least, own = floor_of(cuda), toolkit_driver(cuda)
        compat = data["libcuda"] and "compat" in Path(data["libcuda"]).parent.name
        library = version(re.sub(r".*\.so\.?", "", data["libcuda"] or ""))
        if compat and len(library) > 1 and library < mine:
            findings.append(found("GC0424", f"{data['libcuda']}, driver {driver['version']}"))
        elif compat:
            findings.append(found("GC0423", f"{data['libcuda']}, driver {driver['version']}"))
        elif least and mine < version(least):
            fits = newest_cuda(driver["version"])
            hint = f"; it reaches CUDA {fits}" if fits else ""
            findings.append(
                found("GC0421", f"driver {driver['version']}, CUDA {cuda} needs {least}{hint}")
            )
        elif own and mine < version(own):
            findings.append(found("GC0422", f"driver {driver['version']}, CUDA {cuda} has {own}"))
        value += f", CUDA {cuda} needs {least or '?'} and comes with {own or '?'}"
    rocm = rocm_of_driver(driver["version"]) if driver["name"] == "amdgpu" else None
    if rocm and data["hip"] and use.backend == "nccl":
        mine_is = ".".join(data["hip"].split(".")[:2])
        value += f", that of ROCm {rocm}; torch is for {mine_is}"
        if not goes_with(rocm, mine_is):
            said = f"amdgpu {driver['version']} is of ROCm {rocm}, torch for ROCm {mine_is}"
            findings.append(found("GC0425", said))
    return Line(check="driver", value=value, findings=findings)


def _health(data: Data, use: Use) -> Line:
    gpus = data["gpus"]
    findings = []
    if use.backend == "nccl":
        said: dict[str, list[str]] = {}
        for gpu in gpus:
            name, rows = f"GPU{gpu['index']}", gpu["remapped"] or {}
            if gpu["ecc_errors"]:
                said.setdefault("GC0431", []).append(f"{name}: {gpu['ecc_errors']} errors")
            if rows.get("pending"):
                said.setdefault("GC0432", []).append(name)
            if rows.get("failed"):
                said.setdefault("GC0433", []).append(name)
            if gpu["slowdowns"]:
                said.setdefault("GC0434", []).append(f"{name}: {', '.join(gpu['slowdowns'])}")
            shared = use.ranks > use.gpus > 0
            if gpu["compute_mode"] == "prohibited" or (
                gpu["compute_mode"] == "exclusive" and shared
            ):
                said.setdefault("GC0435", []).append(f"{name}: {gpu['compute_mode']}")
            if gpu["mig"]:
                said.setdefault("GC0436", []).append(name)
        findings = [found(one, _few(words)) for one, words in sorted(said.items())]
    value = f"{len(gpus)} looked at" if gpus else "none to be asked"
    off = sum(gpu["persistence"] == 0 for gpu in gpus)
    return Line(
        check="GPU health",
        value=value + (f", persistence off on {off}" if off else ""),
        findings=findings,
    )


def _code(data: Data, use: Use) -> Line:
    archs = data["arch_list"]
    missing = []
    for gpu in data["visible"] if use.backend == "nccl" and archs else ():
        amd = gpu.get("arch")
        if data["hip"]:
            fits = not amd or has_amd_code(amd, archs)
            mine, hint = str(amd), ""
        else:
            mine = gpu["capability"]
            fits = has_code(mine, archs)
            line = line_for(mine, data["driver"]["version"] if data["driver"] else "")
            hint = f"; the line {line} has" if line else ""
        if not fits:
            missing.append(f"GPU {gpu['index']} ({gpu['name']}) is {mine}{hint}")
    findings = []
    if missing:
        findings.append(found("GC0115", f"{_few(missing)}; torch has {' '.join(archs)}"))
    return Line(check="GPU code", value=" ".join(archs) or "none", findings=findings)


CHECKS: tuple[Callable[[Data, Use], Line], ...] = (
    _driver,
    _nodes,
    _health,
    _code,
    _shm,
    _memlock,
    _files,
    _stack,
    _rights,
    _memory,
    _numa,
    _network,
    _rdma,
)


def judge(data: Data, use: Use) -> list[Line]:
    """Every check, in the order of the table."""
    return [check(data, use) for check in CHECKS]


def _with_torch(data: Data, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What the probe's torch adds: nothing where it could not be imported."""
    return {
        **data,
        "cuda": seen.get("cuda"),
        "hip": seen.get("hip"),
        "arch_list": seen.get("arch_list") or [],
        "visible": seen.get("gpus") or [],
        "libcuda": seen.get("libcuda"),
    }


def _use(session: Session, site: int, nodes: Mapping[str, Any]) -> Use:
    world = session.world
    if world is None:
        # Nothing was decided. Where GPUs were meant, what is wrong with them may stand here.
        asked = session.options.backend
        built = session.probe and (session.probe["cuda"] or session.probe["hip"])
        meant = asked == "nccl" or (asked == "auto" and (built or nodes))
        return Use(backend="nccl" if meant else "gloo", ranks=1)
    # What a container gives is for the ranks in it.
    ranks = session.sites[site].ranks or tuple(range(world.size))
    indexes = {world.gpu_of(rank) for rank in ranks} - {None}
    return Use(backend=world.backend, ranks=len(ranks), gpus=len(indexes))


def run(session: Session, deadline: float) -> StageResult:
    outcome = ask(session, STAGE.id, lambda site: {}, deadline)
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    probes: list[dict[str, Any]] = session.probes or [{}] * len(session.sites)
    tables = [
        judge(
            _with_torch(outcome.results[site], probes[site]),
            _use(session, site, outcome.results[site]["nodes"]),
        )
        for site in range(len(session.sites))
    ]
    findings = over(
        session.sites,
        lambda site: [finding for line in tables[site] for finding in line.findings],
    )
    # The table is that of rank 0's site.
    lines = tables[0]
    bad = {line.check for table in tables for line in table if line.level in ("warn", "fail")}
    wrong = [line.check for line in lines if line.check in bad]
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=f"{len(lines)} checks" + (f"; look at {', '.join(wrong)}" if wrong else ""),
        rows=[line.as_row() for line in lines],
        findings=findings,
    )


STAGE = Stage(
    id="preflight", title="machine and container", needs=(), deadline=30.0, run=run, work=work
)
