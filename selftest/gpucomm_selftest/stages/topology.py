"""Stage `topology`: how the GPUs and network cards of this machine are joined, and what hurts.

The probe collects (links.py), judge decides. It needs no GPU context, no ranks, and no GPU: where
there is none it passes and says so. A healthy machine has no finding, whatever it looks like.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.links import collect
from gpucomm_selftest.probing import ask
from gpucomm_selftest.sites import over
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped
from gpucomm_selftest.topology import (
    ACCESS,
    Gpu,
    Topology,
    bus_id,
    is_fabric,
    nvlinks,
    rows_of,
)

# Refused by design on the GPUs of consumers, over PCIe.
_CONSUMER = ("GeForce", "TITAN", "Radeon")
# Their links become narrower while they rest.
_MOBILE = ("Laptop", "Max-Q", "Mobile")
_SHOWN = 4


def _bus_in_torch(device: Any) -> str:
    """The PCI address of a device, where this torch tells it."""
    parts = [getattr(device, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return ""
    return bus_id(f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0")


def _torch_access(count: int) -> dict[str, Any] | None:
    """Peer access as torch sees it, in the probe that has imported torch anyway."""
    torch: Any = sys.modules.get("torch")
    if torch is None or count < 2:
        return None
    pairs = [
        [
            one == other or bool(torch.cuda.can_device_access_peer(one, other))
            for other in range(count)
        ]
        for one in range(count)
    ]
    buses = [_bus_in_torch(torch.cuda.get_device_properties(index)) for index in range(count)]
    return {"access": pairs, "buses": buses}


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    context.enter("look at the topology")
    topology = collect()
    context.enter("look at peer access")
    return {"topology": topology, "torch": _torch_access(int(args["torch_gpus"]))}


def _few(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN
    return "; ".join(words[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _name(gpu: Gpu) -> str:
    return f"GPU{gpu['index']}"


def _up(topology: Topology, at: int) -> int:
    """The links of a GPU that are up; from the matrix where their states are not told."""
    told = topology["gpus"][at]["links_up"]
    if told is not None:
        return told
    row = topology["paths"][at]
    return max((nvlinks(path) or int(path == "XGMI") for path in row), default=0)


def judge_links(topology: Topology) -> list[Finding]:
    """Links that are down, by comparison of GPUs of one model: nothing else says how many a
    board should have."""
    models: dict[str, list[int]] = {}
    for at, gpu in enumerate(topology["gpus"]):
        models.setdefault(gpu["name"], []).append(at)
    down, without, alike = [], [], []
    for members in models.values():
        counts = {at: _up(topology, at) for at in members}
        most = max(counts.values())
        for at, count in counts.items():
            gpu = topology["gpus"][at]
            numbers = ", ".join(str(link) for link in gpu["links_down"])
            if 0 < count < most:
                which = f" (down: {numbers})" if numbers else ""
                down.append(f"{_name(gpu)} has {count} links up{which}, others {most}")
            elif count < most:
                without.append(_name(gpu))
            elif count and numbers and len(members) == sum(c == most for c in counts.values()):
                alike.append(f"{_name(gpu)}: {count} up, down {numbers}")
    return [
        found(finding_id, _few(said))
        for finding_id, said in (("GC0601", down), ("GC0602", without), ("GC0609", alike))
        if said
    ]


def _pairs(topology: Topology) -> Iterator[tuple[int, int]]:
    count = len(topology["gpus"])
    return ((one, other) for one in range(count) for other in range(one + 1, count))


def _access_of(topology: Topology, one: int, other: int) -> str:
    """The worse of both directions; empty where it is not told."""
    if not topology["access"]:
        return ""
    both = topology["access"][one][other], topology["access"][other][one]
    refused = [status for status in both if status not in ("OK", "U")]
    return refused[0] if refused else "OK" if "OK" in both else ""


def _places(topology: Topology, torch: Mapping[str, Any] | None) -> dict[int, int]:
    """Which GPU of the topology is which of torch: CUDA_VISIBLE_DEVICES may hide and reorder."""
    if torch is None:
        return {}
    buses = [gpu["bus"] for gpu in topology["gpus"]]
    if all(bus and bus in buses for bus in torch["buses"]):
        return {buses.index(bus): index for index, bus in enumerate(torch["buses"])}
    alike = len({gpu["name"] for gpu in topology["gpus"]}) == 1
    if len(torch["access"]) == len(buses) and alike:
        return {index: index for index in range(len(buses))}
    return {}


def judge_access(topology: Topology, torch: Mapping[str, Any] | None) -> list[Finding]:
    """Pairs that are joined well and cannot use it."""
    place = _places(topology, torch)
    refused, unseen = [], []
    for one, other in _pairs(topology):
        gpus = topology["gpus"][one], topology["gpus"][other]
        path = topology["paths"][one][other]
        near = path in ("PIX", "PXB") and not any(
            word in gpu["name"] for gpu in gpus for word in _CONSUMER
        )
        if any(gpu["mig"] for gpu in gpus):
            continue  # between MIG instances there is no peer access, on any machine
        told = _access_of(topology, one, other)
        in_torch = True
        if torch is not None and one in place and other in place:
            pairs = torch["access"]
            a, b = place[one], place[other]
            in_torch = pairs[a][b] and pairs[b][a]
        pair = f"{_name(gpus[0])}-{_name(gpus[1])} ({path})"
        if told == "OK" and not in_torch:
            unseen.append(pair)
        elif (is_fabric(path) or near) and told not in ("", "OK", "GNS"):
            refused.append(f"{pair}: {ACCESS.get(told, told)}")
        elif is_fabric(path) and told == "GNS":
            refused.append(f"{pair}: {ACCESS[told]}")
        elif (is_fabric(path) or near) and told == "" and not in_torch:
            refused.append(f"{pair}: torch says no")
    return [
        found(finding_id, _few(said))
        for finding_id, said in (("GC0603", refused), ("GC0604", unseen))
        if said
    ]


def judge_width(topology: Topology) -> list[Finding]:
    narrow, wired = [], []
    for gpu in topology["gpus"]:
        width, most, slot = gpu["width"], gpu["width_max"], gpu["slot_width"]
        if not width or not most or any(word in gpu["name"] for word in _MOBILE):
            continue
        possible = min(most, slot or most)
        if width < possible:
            narrow.append(f"{_name(gpu)} x{width} of x{possible}")
        elif width < most:
            wired.append(f"{_name(gpu)} x{width} of x{most}")
    return [
        found(finding_id, _few(said))
        for finding_id, said in (("GC0605", narrow), ("GC0611", wired))
        if said
    ]


def judge_nics(topology: Topology) -> list[Finding]:
    """Cards that are all far from the GPUs, and GPUs far from all cards while others are near.

    One far card beside near ones is no finding: storage and management have theirs there.
    """
    nics = [nic for nic in topology["nics"] if nic["active"] is not False]
    far = [nic for nic in nics if nic["paths"] and all(path == "SYS" for path in nic["paths"])]
    near = [nic for nic in nics if any(path not in ("SYS", "-") for path in nic["paths"])]
    findings = []
    if far and len(far) == len(nics):
        findings.append(found("GC0606", _few([nic["name"] for nic in far])))
    alone = [
        _name(gpu)
        for at, gpu in enumerate(topology["gpus"])
        if near and all(nic["paths"][at] == "SYS" for nic in near)
    ]
    if alone:
        findings.append(found("GC0607", _few(alone)))
    return findings


def judge_places(topology: Topology) -> list[Finding]:
    """A GPU that is alone on its NUMA node, where the others are together."""
    if len(topology["gpus"]) < 3:
        return []
    others = [[path for path in row if path != "X"] for row in topology["paths"]]
    if any(is_fabric(path) for row in others for path in row):
        return []
    alone = [
        _name(gpu)
        for gpu, row in zip(topology["gpus"], others, strict=True)
        if all(path == "SYS" for path in row)
    ]
    together = any(path not in ("SYS", "-") for row in others for path in row)
    return [found("GC0608", _few(alone))] if alone and together else []


def judge(topology: Topology, torch: Mapping[str, Any] | None) -> list[Finding]:
    problems = [found("GC0610", problem) for problem in topology["problems"]]
    return [
        *problems,
        *judge_links(topology),
        *judge_access(topology, torch),
        *judge_width(topology),
        *judge_nics(topology),
        *judge_places(topology),
    ]


def summary(topology: Topology) -> str:
    gpus = topology["gpus"]
    if not gpus:
        return "no GPU"
    kinds = list(dict.fromkeys(topology["paths"][a][b] for a, b in _pairs(topology)))
    parts = [f"{len(gpus)} GPUs" if len(gpus) > 1 else "1 GPU"]
    if kinds:
        parts.append("joined by " + " and ".join(kinds))
    if topology["nics"]:
        count = len(topology["nics"])
        parts.append(f"{count} RDMA device" + ("s" if count > 1 else ""))
    return ", ".join(parts) + f" ({topology['source']})"


def run(session: Session, deadline: float) -> StageResult:
    visible = {site: len(probe["gpus"]) for site, probe in enumerate(session.probes)}
    outcome = ask(session, STAGE.id, lambda site: {"torch_gpus": visible.get(site, 0)}, deadline)
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    findings = over(
        session.sites,
        lambda site: judge(outcome.results[site]["topology"], outcome.results[site]["torch"]),
    )
    # The table is that of rank 0's site.
    data = outcome.results[0]
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=summary(data["topology"]),
        rows=rows_of(data["topology"]),
        findings=findings,
    )


STAGE = Stage(
    id="topology", title="topology of GPUs and cards", needs=(), deadline=20.0, run=run, work=work
)
