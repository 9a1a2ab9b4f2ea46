"""What the ranks of one world must have in common, held against each other: the odd one is named.

Pure: it is given what each rank's copy and each site's probe told. It must not look at a machine.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucomm_selftest.attribution import numbered
from gpucomm_selftest.findings import Finding, found

# NCCL computes how data flows on each rank for itself, and takes for granted that all come to the
# same end: with these it does not. RCCL's documents say so of RCCL_HIERARCHICAL_*; the others
# choose what each rank derives by itself (src/graph/connect.cc, paths.cc and tuning.cc of NCCL).
MUST_AGREE = re.compile(
    r"NCCL_(ALGO|PROTO|(MIN_|MAX_)?(P2P_)?(NCHANNELS|CTAS)|NCHANNELS_PER_\w+|(MIN|MAX)_NRINGS"
    r"|(LL_|LL128_)?BUFFSIZE|P2P_LEVEL|TUNER_PLUGIN|TUNER_CONFIG_FILE"
    r"|(LL128_)?NTHREADS|CROSS_NIC|COLLNET_ENABLE|NVLS_ENABLE|MNNVL_\w+|CUMEM_\w+"
    r"|P2P_\w*CHUNKSIZE|PXN_\w+|NET|NET_PLUGIN|SHM_DISABLE|P2P_DISABLE|IB_DISABLE"
    r"|IB_QPS_PER_CONNECTION|IB_SPLIT_DATA_ON_QPS|IB_MERGE_NICS)|RCCL_HIERARCHICAL_\w+"
)
# What is about one host or one process.
MAY_DIFFER = re.compile(
    r"\w+_SOCKET_IFNAME|NCCL_OOB_NET_IFNAME|NCCL_IB_HCA|NCCL_IB_GID_INDEX|NCCL_DEBUG\w*|NCCL_HOSTID"
    r"|NCCL_(TOPO|GRAPH)\w*_FILE|NCCL_CONF_FILE|(TORCH|NCCL)_\w*_(TEMP|PIPE)_FILE"
    r"|\w+_VISIBLE_DEVICES|OMP_NUM_THREADS|UCX_NET_DEVICES|HSA_OVERRIDE_GFX_VERSION"
)
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What is known of one rank. Ranks of one site share what its probe told."""

    rank: int
    host: str  # as people call it
    boot: str  # the same for all ranks of one host
    settings: Mapping[str, str]
    torch: str
    python: str
    library: str  # the collective library: `nccl 2.20.5`
    files: Mapping[str, str]  # what decides about communication, by kind: its sha256
    packages: Mapping[str, str]  # every distribution of the environment, by name
    driver: str
    gpu: str  # of this rank: name and memory; empty on the CPU


Facts = Sequence[RankFacts]
UNSET = "not set"


def odd(ranks: Facts, value_of: Callable[[RankFacts], str]) -> str:
    """Who has another value than the most: `rank 3: Ring; ranks 0,1,2: not set`, or nothing."""
    groups: dict[str, list[int]] = {}
    for one in ranks:
        groups.setdefault(value_of(one), []).append(one.rank)
    if len(groups) < 2:
        return ""
    # The few first: they are what a person has to look at.
    fewest = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
    said = [f"{numbered(alike)}: {value}" for value, alike in fewest[:_SHOWN]]
    more = len(fewest) - _SHOWN
    return "; ".join(said) + (f"; {more} more values" if more > 0 else "")


def _settings(ranks: Facts, backend: str) -> Iterator[Finding]:
    for name in sorted({name for one in ranks for name in one.settings}):
        if MAY_DIFFER.fullmatch(name):
            continue

        def value(one: RankFacts, name: str = name) -> str:
            return one.settings.get(name, UNSET)

        said = odd(ranks, value)
        if said:
            strict = backend == "nccl" and MUST_AGREE.fullmatch(name)
            yield found("GC0801" if strict else "GC0802", f"{name}: {said}")


def _library(ranks: Facts, backend: str) -> Iterator[Finding]:
    said = odd(ranks, lambda one: one.library or "none")
    if said:
        yield found("GC0803" if backend == "nccl" else "GC0804", said)
    for kind in sorted({kind for one in ranks for kind in one.files}):
        # Of one version: else it has been said.
        if kind in ("nccl", "rccl") and said:
            continue

        def value(one: RankFacts, kind: str = kind) -> str:
            known = one.files.get(kind)
            return f"sha256 {known[:12]}" if known else "none"

        other = odd(ranks, value)
        if other:
            yield found("GC0804", f"{kind}: {other}")


def _packages(ranks: Facts) -> Iterator[Finding]:
    names = sorted({name for one in ranks for name in one.packages} - {"torch"})
    differ = []
    for name in names:

        def value(one: RankFacts, name: str = name) -> str:
            return one.packages.get(name, "none")

        said = odd(ranks, value)
        if said:
            differ.append(f"{name} ({said})")
    python = odd(ranks, lambda one: one.python)
    if python:
        differ.insert(0, f"Python ({python})")
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        yield found("GC0806", ", ".join(differ[:_SHOWN]) + more)


def _hosts(ranks: Facts, backend: str) -> Iterator[Finding]:
    """One NCCL_HOSTID on two hosts: NCCL would share memory between them."""
    by_id: dict[str, dict[str, list[int]]] = {}
    for one in ranks:
        name = one.settings.get("NCCL_HOSTID")
        if name:
            by_id.setdefault(name, {}).setdefault(one.boot, []).append(one.rank)
    for name, hosts in sorted(by_id.items()):
        if len(hosts) > 1 and backend == "nccl":
            where = " and ".join(numbered(there) for there in hosts.values())
            yield found("GC0809", f"NCCL_HOSTID={name} on {where}, which are on different hosts")


def judge(ranks: Facts, backend: str) -> list[Finding]:
    """Every difference that matters, the worst first."""
    torch = odd(ranks, lambda one: one.torch)
    driver = odd(ranks, lambda one: one.driver or "none")
    gpu = odd(ranks, lambda one: one.gpu)
    return [
        *_library(ranks, backend),
        *([found("GC0805", torch)] if torch else []),
        *_settings(ranks, backend),
        *_hosts(ranks, backend),
        *_packages(ranks),
        *([found("GC0807", driver)] if driver and backend == "nccl" else []),
        *([found("GC0808", gpu)] if gpu else []),
    ]


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where a site can be reached by the data of its ranks."""

    name: str  # of the site, for people
    interface: str
    address: str  # empty where it has none


@dataclass(frozen=True, kw_only=True)
class NoWay:
    """One site that could not reach another one, and why."""

    start: int
    end: int
    why: str


def _door(door: Door) -> str:
    return f"{door.name} at {door.address or 'no address'} ({door.interface or 'no interface'})"


def judge_routes(
    doors: Sequence[Door], failed: Sequence[NoWay], tried: Sequence[tuple[int, int]]
) -> list[Finding]:
    """Whether the sites reach each other; one that nobody reaches, or that reaches nobody, is
    named once for all of its ways."""
    findings = []
    left = list(failed)
    for number, door in enumerate(doors):
        for into, said in ((True, f"nobody reaches {_door(door)}"), (False, "")):
            bad = [one for one in left if (one.end if into else one.start) == number]
            all_ways = [way for way in tried if way[into] == number]
            if len(bad) > 1 and len(bad) == len(all_ways):
                why = ", ".join(dict.fromkeys(one.why for one in bad))
                said = said or f"{door.name} reaches nobody by {door.interface or 'no interface'}"
                findings.append(found("GC0811", f"{said}: {why}"))
                left = [one for one in left if one not in bad]
    for one in left[:_SHOWN]:
        said = f"{doors[one.start].name} does not reach {_door(doors[one.end])}: {one.why}"
        findings.append(found("GC0811", said))
    if len(left) > _SHOWN:
        findings.append(found("GC0811", f"{len(left) - _SHOWN} more ways"))
    return findings


def ways(count: int, whole: int) -> list[tuple[int, int]]:
    """Which site tries to reach which: each one each other, or in a large world its neighbours in
    a ring and rank 0's."""
    if count <= whole:
        return [(a, b) for a in range(count) for b in range(count) if a != b]
    ring = {(at, (at + step) % count) for at in range(count) for step in (1, count - 1)}
    star = {pair for at in range(1, count) for pair in ((0, at), (at, 0))}
    return sorted(ring | star)


def facts_as_row(one: RankFacts) -> dict[str, Any]:
    """For JSON: without what is long and the same everywhere."""
    return {
        "rank": one.rank,
        "host": one.host,
        "torch": one.torch,
        "python": one.python,
        "library": one.library,
        "files": dict(one.files),
        "driver": one.driver,
        "gpu": one.gpu,
        "settings": dict(one.settings),
    }
