"""Which way the data of each pair of ranks goes, read from what NCCL or RCCL says at INFO.

Gives the environment that makes the library write its log to files, parses the text, and finds
contradictions between what was chosen and what is there. It must not start anything; the one
effect is a folder for the logs, which goes when the folder object does.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpucomm_selftest.findings import Finding, found

# INIT has the lines of the channels; GRAPH has the paths between the GPUs; the hints of the
# library are in NET and GRAPH. P2P and PROXY would say a line for every buffer.
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,NVLS"

# What keeps the library from the fastest way, by the kind of way.
_BYPASSES = {
    "P2P": ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_TOPO_FILE", "NCCL_HOSTID"),
    "IB": ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_CONF_FILE"),
    "GDR": ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"),
}
# Two GPUs this near reach each other's memory, unless somebody keeps them from it: NVLink, or one
# PCIe switch. Farther apart the library itself may prefer host memory, and no fault is seen.
_NEAR = ("NVL", "NVB", "PIX")

_PREFIX = re.compile(
    r"^(?:\[[^\]]+\] )?(?P<host>[^\s:]+):\d+:\d+ (?:\[\S+\] )?(?:\S+:\d+ )?NCCL (?P<level>[A-Z]+) ?"
    r"(?P<said>.*)$"
)
_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<sender>\d+)\[\w+\] -> (?P<receiver>\d+)\[\w+\]"
    r"(?: \[(?:send|receive)\])? via (?P<way>direct shared memory|NET/\S[^/]*\S*|\S+)"
)
_NET = re.compile(r"^NET/(?P<net>[^/]+)/\d+(?:\(\d+\))?(?P<rest>.*)$")
_COMM = re.compile(r"comm \w+ rank (?P<rank>\d+) nranks (?P<ranks>\d+) .*busId (?P<bus>[0-9a-f]+)")
_NODES = re.compile(r"nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+) localRanks")
_VERSION = re.compile(r"(?P<library>NCCL|RCCL) version ?:? ?(?P<version>\d[\w.+-]*)")
_PATHS = re.compile(r"^GPU/(?P<bus>\S+) :(?P<paths>.*)$")
_PATH = re.compile(r"GPU/(?P<bus>\S+) \(\d+/[\d.]+/(?P<kind>[A-Z]+)\)")
_NVLS = re.compile(r"\b(?P<count>\d+) nvls channels")
_PLUGIN = re.compile(r"(?P<kind>NET|TUNER|PROFILER|ENV)/Plugin ?: Could not find: (?P<name>\S+)")
_OLD_PLUGIN = re.compile(r"(?P<kind>NET|TUNER)/Plugin: No plugin found \((?P<name>[^)]+)\)")


@dataclass(kw_only=True)
class Log:
    """What one rank's log says. Every field may be missing: versions say different things."""

    version: str = ""
    host: str = ""
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    bus: str = ""
    network: str = ""
    # "0->1": the ways between two ranks, without the number of a NIC.
    ways: dict[str, list[str]] = field(default_factory=dict)
    # Bus id: bus id: how near, as the library names it.
    paths: dict[str, dict[str, str]] = field(default_factory=dict)
    nvls_offered: bool | None = None
    nvls_channels: int = 0
    nvls_tree: bool = False
    missing_plugins: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _bus(text: str) -> str:
    """Without the number of the host, which only one of the two places has."""
    return text.rpartition("-")[2]


def _way(text: str) -> str:
    """`NET/IB/3(9)/GDRDMA/Shared` is NET/IB/GDRDMA: which NIC and whose buffers is no matter."""
    if text == "direct shared memory":
        return "SHM"
    net = _NET.match(text)
    if net is None:
        return text
    return f"NET/{net['net']}" + ("/GDRDMA" if "GDRDMA" in net["rest"] else "")


def _take(log: Log, said: str) -> None:
    channel = _CHANNEL.search(said)
    if channel:
        way = _way(channel["way"])
        ways = log.ways.setdefault(f"{channel['sender']}->{channel['receiver']}", [])
        if way not in ways:
            ways.append(way)
        return
    comm = _COMM.search(said)
    if comm and log.rank is None:
        log.rank, log.ranks, log.bus = int(comm["rank"]), int(comm["ranks"]), _bus(comm["bus"])
    nodes = _NODES.search(said)
    if nodes and log.nodes is None:
        log.nodes = int(nodes["nodes"])
    version = _VERSION.search(said)
    if version and not log.version:
        log.version = version["version"]
    paths = _PATHS.match(said)
    if paths:
        log.paths[_bus(paths["bus"])] = {
            _bus(path["bus"]): path["kind"] for path in _PATH.finditer(paths["paths"])
        }
    if said.startswith("Using network ") and not log.network:
        log.network = said.removeprefix("Using network ").strip()
    if "NVLS multicast support is" in said:
        log.nvls_offered = "not available" not in said
    if "Connected NVLS tree" in said:
        log.nvls_tree = True
    nvls = _NVLS.search(said)
    if nvls:
        log.nvls_channels = int(nvls["count"])
    plugin = _PLUGIN.search(said) or _OLD_PLUGIN.search(said)
    if plugin:
        log.missing_plugins.append(plugin["name"].rstrip("."))


def parse(text: str) -> Log:
    """The first communicator of a log; what it does not say stays empty."""
    log = Log()
    for line in text.splitlines():
        match = _PREFIX.match(line)
        if match is None:
            version = _VERSION.search(line)
            if version and not log.version:
                log.version = version["version"]
            continue
        log.host = log.host or match["host"]
        said = match["said"].strip()
        if match["level"] == "WARN" and said and said not in log.warnings:
            log.warnings.append(said)
        if said.startswith("HINT") and said not in log.hints:
            log.hints.append(said)
        _take(log, said)
    return log


class Folder:
    """A place for the logs of the ranks, or none where nothing can be written."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        # A read-only container with no tmpfs still has shared memory.
        for parent in (None, "/dev/shm"):
            try:
                # Gone at the latest when Python ends, however that comes about.
                self._folder = tempfile.TemporaryDirectory(
                    prefix="gpucomm-selftest-", dir=parent, ignore_cleanup_errors=True
                )
            except OSError:
                continue
            return

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What to set for the ranks: nothing where the user looks at the log himself."""
        taken = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
        if self._folder is None or any(environ.get(name) for name in taken):
            return {}
        return {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": f"{self._folder.name}/nccl.%h.%p.log",
            "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        }

    def texts(self) -> dict[int, str]:
        """What is there so far, by process id."""
        if self._folder is None:
            return {}
        made: dict[int, str] = {}
        for path in sorted(Path(self._folder.name).glob("nccl.*.log")):
            pid = path.name.split(".")[-2]
            if pid.isdigit():
                made[int(pid)] = _read(path)
        return made

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def active_ports(root: Path = Path("/")) -> list[str]:
    """InfiniBand and RoCE ports of this host that carry data: `mlx5_0:1`."""
    made = []
    for state in sorted(root.glob("sys/class/infiniband/*/ports/*/state")):
        if "ACTIVE" in _read(state):
            made.append(f"{state.parts[-4]}:{state.parts[-2]}")
    return made


def own(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """In a rank: what its own log says, and what there is on its host."""
    pattern = environ.get("NCCL_DEBUG_FILE", "")
    if "gpucomm-selftest-" not in pattern:
        return {}
    folder, pid = Path(pattern).parent, os.getpid()
    text = "".join(_read(path) for path in sorted(folder.glob(f"nccl.*.{pid}.log")))
    if not text:
        return {}
    return {**parse(text).as_json(), "active_ports": active_ports(root)}


# sender, receiver, ways
Pair = tuple[int, int, Sequence[str]]


def pairs(logs: Mapping[int, Mapping[str, Any]]) -> list[Pair]:
    """Every pair of ranks that is connected, as any of both says."""
    made: dict[tuple[int, int], list[str]] = {}
    for log in logs.values():
        for key, ways in log.get("ways", {}).items():
            sender, _, receiver = key.partition("->")
            known = made.setdefault((int(sender), int(receiver)), [])
            known += [way for way in ways if way not in known]
    return [(*key, ways) for key, ways in sorted(made.items())]


def summary(logs: Mapping[int, Mapping[str, Any]]) -> str:
    """`P2P/CUMEM on 2 pairs; network Socket; NVLS 16 channels`, or nothing."""
    counts: dict[str, int] = {}
    for _, _, ways in pairs(logs):
        for way in ways:
            counts[way] = counts.get(way, 0) + 1
    parts = [
        f"{way} on {count} pair{'' if count == 1 else 's'}"
        for way, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    networks = sorted({log["network"] for log in logs.values() if log.get("network")})
    if networks:
        parts.append(f"network {', '.join(networks)}")
    channels = max((log.get("nvls_channels", 0) for log in logs.values()), default=0)
    if channels:
        parts.append(f"NVLS with {channels} channels")
    return "; ".join(parts)


def _between(some: Iterable[Pair]) -> str:
    listed = [f"{sender}->{receiver} {'+'.join(ways)}" for sender, receiver, ways in some]
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return f"ranks {', '.join(listed[:4])}{more}"


def _set(environ: Mapping[str, str], *kinds: str) -> list[str]:
    names = [name for kind in kinds for name in _BYPASSES[kind]]
    return [f"{name}={environ[name]}" for name in names if environ.get(name)]


def judge_warnings(logs: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """What the library itself complains about."""
    warned = dict.fromkeys(
        f"rank {rank}: {warning}"
        for rank, log in sorted(logs.items())
        for warning in [*log.get("warnings", ()), *log.get("hints", ())]
    )
    if not warned:
        return []
    shown = list(warned)[:4]
    more = f"; and {len(warned) - 4} more" if len(warned) > 4 else ""
    return [found("GC0205", "; ".join(shown) + more)]


def judge(
    logs: Mapping[int, Mapping[str, Any]], environ: Mapping[str, str], shares_gpus: bool
) -> list[Finding]:
    """What was chosen against what is there. Ranks that share a GPU have no choice."""
    findings = judge_warnings(logs)
    if shares_gpus:
        return findings
    hosts = {rank: log.get("host", "") for rank, log in logs.items()}
    near, far = [], []
    for pair in pairs(logs):
        sender, receiver, ways = pair
        if sender not in logs or receiver not in logs:
            continue
        slow = [way for way in ways if not way.startswith("P2P")]
        if hosts[sender] == hosts[receiver]:
            one, other = logs[sender], logs[receiver]
            kind = one.get("paths", {}).get(one.get("bus"), {}).get(other.get("bus"), "")
            if slow and kind in _NEAR and one.get("bus") != other.get("bus"):
                near.append((sender, receiver, [f"{'+'.join(slow)} (path {kind})"]))
        else:
            far.append(pair)
    explained: list[str] = []
    if near:
        why = _set(environ, "P2P")
        if why:
            explained.append(f"{', '.join(why)}: {_between(near)}")
        else:
            findings.append(found("GC0204", _between(near)))
    ports = {rank: log.get("active_ports", []) for rank, log in logs.items()}
    sockets = [
        (sender, receiver, ways)
        for sender, receiver, ways in far
        if "NET/Socket" in ways and ports[sender] and ports[receiver]
    ]
    if sockets:
        why = _set(environ, "IB")
        if why:
            explained.append(f"{', '.join(why)}: {_between(sockets)}")
        else:
            there = ", ".join(ports[sockets[0][0]])
            findings.append(
                found("GC0203", f"{_between(sockets)}; active on the host of the first: {there}")
            )
    staged = [pair for pair in far if any(_is_staged(way) for way in pair[2])]
    if staged:
        why = _set(environ, "GDR")
        if why:
            explained.append(f"{', '.join(why)}: {_between(staged)}")
        else:
            findings.append(found("GC0206", _between(staged)))
    asked = environ.get("NCCL_NET_PLUGIN", "")
    lost = sorted(
        {
            name
            for log in logs.values()
            for name in log.get("missing_plugins", ())
            if asked and asked != "none" and name in (asked, f"libnccl-net-{asked}.so")
        }
    )
    if lost:
        findings.append(found("GC0207", f"NCCL_NET_PLUGIN={asked}; not found: {', '.join(lost)}"))
    if explained:
        findings.append(found("GC0208", "; ".join(explained)))
    return findings


def _is_staged(way: str) -> bool:
    """Over InfiniBand by way of host memory."""
    return way.startswith("NET/IB") and not way.endswith("/GDRDMA")
