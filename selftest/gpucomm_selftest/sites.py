"""The surroundings in which ranks are: one container, host or task each, looked at by one probe.

Pure. Ranks of one site see the same files, network and devices, so that one process with torch
tells of all of them; what is found at one site is said once, with its name where there are others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucomm_selftest import host
from gpucomm_selftest.attribution import numbered
from gpucomm_selftest.findings import Finding
from gpucomm_selftest.meeting import Meeting
from gpucomm_selftest.places import Place

# Variables by which GPUs are chosen, or hidden.
CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Of more sites than this, each with its own figures, the first are told.
_TOLD = 4


@dataclass(frozen=True, kw_only=True)
class Site:
    place: Place
    identity: Mapping[str, Any]
    environ: Mapping[str, str]
    ranks: tuple[int, ...] = ()  # none where the self-test starts its own ranks
    local_ranks: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        where = f" on {self.place.host}" if self.place.host else ""
        return numbered(self.ranks) + where if self.ranks else "here"


def _alike(one: Site, identity: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    return host.same_surroundings(dict(one.identity), dict(identity)) and all(
        one.environ.get(name) == environ.get(name) for name in CHOOSING
    )


def sites_of(
    here: Place, environ: Mapping[str, str], local_rank: int | None, meeting: Meeting | None
) -> tuple[Site, ...]:
    """This copy's site first, the others by their lowest rank."""
    own = host.identity() if meeting is None else meeting.identity
    if meeting is None:
        return (Site(place=here, identity=own, environ=environ),)
    made = [
        Site(place=here, identity=own, environ=environ, ranks=(0,), local_ranks=(local_rank,)),
    ]
    for rank, copy in sorted(meeting.copies.items()):
        for at, site in enumerate(made):
            if _alike(site, copy.identity, copy.environ):
                made[at] = replace(
                    site,
                    ranks=(*site.ranks, rank),
                    local_ranks=(*site.local_ranks, copy.local_rank),
                )
                break
        else:
            made.append(
                Site(
                    place=copy,
                    identity=copy.identity,
                    environ=copy.environ,
                    ranks=(rank,),
                    local_ranks=(copy.local_rank,),
                )
            )
    return tuple(made)


def over(sites: Sequence[Site], judge: Callable[[int], Sequence[Finding]]) -> list[Finding]:
    """What `judge` finds at each site, by its number; what all sites share is said once, and what
    many have in their own figures is one finding."""
    where: dict[Finding, list[int]] = {}
    for number in range(len(sites)):
        for finding in dict.fromkeys(judge(number)):
            where.setdefault(finding, []).append(number)
    made = [
        finding
        if len(numbers) == len(sites)
        else replace(
            finding,
            measured=f"{' and '.join(sites[number].name for number in numbers)}: "
            f"{finding.measured}",
        )
        for finding, numbers in where.items()
    ]
    return _merge(made, list(where.values()))


def _merge(findings: list[Finding], numbers: list[list[int]]) -> list[Finding]:
    """Where more sites than a person reads have one finding each of a kind, the first are told."""
    by_kind: dict[str, list[int]] = {}
    for at, finding in enumerate(findings):
        by_kind.setdefault(finding.id, []).append(at)
    made = []
    for places in by_kind.values():
        seen = [number for at in places for number in numbers[at]]
        if len(places) <= _TOLD or len(set(seen)) < len(seen):
            made += [findings[at] for at in places]
            continue
        told = "; ".join(findings[at].measured for at in places[:_TOLD])
        more = len(seen) - sum(len(numbers[at]) for at in places[:_TOLD])
        first = findings[places[0]]
        made.append(replace(first, measured=f"{told}; and {more} more with figures of their own"))
    return made
