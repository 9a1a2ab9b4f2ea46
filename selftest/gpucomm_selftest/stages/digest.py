"""Stage `digest`: what all ranks must have in common, and the ways between their hosts.

Only under a launcher: ranks that this copy starts have one environment. Each copy sent its
variables when it came; the probe of each site adds its files, versions and a door at the interface
that the data will take. digest.py decides.
"""

import hashlib
import importlib.metadata
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucomm_selftest import digest, libraries, routes
from gpucomm_selftest.digest import Door, NoWay, RankFacts
from gpucomm_selftest.environment import shown
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.host import address_of
from gpucomm_selftest.probing import ask
from gpucomm_selftest.settings import Reader, home_of_user, settings
from gpucomm_selftest.stage import (
    PASSED,
    RankContext,
    Session,
    Stage,
    StageResult,
    status_of,
    stopped,
)

# The files that decide how data travels; everything else is told by the versions of packages.
_HASHED = ("nccl", "rccl")
# Among more sites than this not every one tries to reach every other one.
_ALL_WAYS = 32


def _sha256(path: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            made = hashlib.sha256()
            while data := stream.read(2**22):
                made.update(data)
            return made.hexdigest()
    except OSError:
        return ""


def _packages() -> dict[str, str]:
    made: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"] if one.metadata else None
        if name:
            made.setdefault(str(name).lower().replace("_", "-"), str(one.version))
    return made


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    if args["phase"] == "knock":
        context.enter("knock at the doors of the other hosts")
        reached = routes.knock(args["doors"])
        return {"failed": {str(number): why for number, why in reached.items() if why}}
    context.enter("import torch")
    import torch  # noqa: F401  a new probe has not imported it yet

    context.enter("read the files of the libraries")
    files = {one.kind: _sha256(one.path) for one in libraries.own_files() if one.kind in _HASHED}
    # Opened when NCCL starts, which it has not here.
    files |= {path.name: _sha256(str(path)) for path in libraries.plugin_files(os.environ)}
    context.enter("list the packages")
    reader = Reader(family=args["family"] or "nccl", code=args["code"])
    in_force, _ = settings(os.environ, reader=reader, home=home_of_user())
    told = {"files": files, "packages": _packages()}
    context.enter("open a door")
    # A file may set it too.
    setting = next((one.value for one in in_force if one.name == args["setting"]), "")
    interface = routes.interface_for(args["backend"], setting, args["usual"])
    address = address_of(interface) if interface else ""
    port = 0
    if args["door"] and address:
        try:
            context.kept["doors"] = doors = routes.Doors(address, args["door"])
            port = doors.port
        except OSError:
            port = 0  # the others say that they cannot reach it
    return {
        **told,
        "conf": {one.name: one.value for one in in_force if one.origin != "environment"},
        "interface": interface,
        "address": address,
        "port": port,
    }


def _library(probe: Mapping[str, Any]) -> str:
    return " and ".join(f"{one['family']} {one['version'] or '?'}" for one in probe["libraries"])


def _facts(session: Session, told: Mapping[int, Mapping[str, Any]]) -> list[RankFacts]:
    meeting, world = session.meeting, session.world
    if meeting is None or world is None:
        raise RuntimeError("digest runs after rendezvous and versions")
    made = []
    for number, site in enumerate(session.sites):
        probe, seen = session.probes[number], told[number]
        driver = probe["driver"]
        for rank in site.ranks:
            copy = meeting.copies.get(rank)
            environ = copy.environ if copy else shown(session.options.environ)
            index = world.gpu_of(rank)
            gpu = probe["gpus"][index] if index is not None else None
            made.append(
                RankFacts(
                    rank=rank,
                    host=str(site.identity["name"]),
                    boot=str(site.identity["boot"]),
                    settings={**seen["conf"], **environ},
                    torch=probe["torch"],
                    python=probe["python"],
                    library=_library(probe),
                    files=seen["files"],
                    packages=seen["packages"],
                    driver=driver["version"] if driver else "",
                    # Drivers keep a little of the memory, and not all the same.
                    gpu=f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB" if gpu else "",
                )
            )
    return sorted(made, key=lambda one: one.rank)


def _routes(
    session: Session, told: Mapping[int, Mapping[str, Any]], words: list[str], deadline: float
) -> "tuple[list[Finding], str] | StageResult":
    """Whether the sites reach each other, and how many of the ways that were tried are open."""
    count = len(session.sites)
    ways = digest.ways(count, _ALL_WAYS)
    doors = [
        {
            "number": number,
            "address": told[number]["address"],
            "port": told[number]["port"],
            "word": words[number],
        }
        for number in range(count)
    ]
    outcome = ask(
        session,
        STAGE.id,
        lambda site: {"phase": "knock", "doors": [doors[b] for a, b in ways if a == site]},
        deadline,
    )
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    failed = [
        NoWay(start=site, end=int(end), why=why)
        for site, result in sorted(outcome.results.items())
        for end, why in result["failed"].items()
    ]
    named = [
        Door(
            name=site.name,
            interface=told[number]["interface"],
            address=told[number]["address"],
        )
        for number, site in enumerate(session.sites)
    ]
    findings = digest.judge_routes(named, failed, ways)
    return findings, f"{len(ways) - len(failed)} of {len(ways)} ways between hosts open"


def run(session: Session, deadline: float) -> StageResult:
    meeting, world = session.meeting, session.world
    if meeting is None or world is None:
        said = "one copy: nothing to compare"
        return StageResult(id=STAGE.id, status=PASSED, deadline=deadline, summary=said)
    apart = not meeting.one_network
    # Each run has words of its own: nobody else answers with them.
    words = [secrets.token_hex(8) for _ in session.sites]
    name = "NCCL_SOCKET_IFNAME" if world.backend == "nccl" else "GLOO_SOCKET_IFNAME"

    def args(number: int) -> dict[str, Any]:
        site = session.sites[number]
        copy = meeting.copies.get(site.ranks[0])
        library: dict[str, Any] = next(iter(session.probes[number]["libraries"]), {})
        return {
            "phase": "tell",
            "backend": world.backend,
            "setting": name,
            "family": library.get("family", ""),
            "code": library.get("code"),
            "usual": copy.interface if copy else meeting.interface,
            "door": words[number] if apart else "",
        }

    begin = time.monotonic()
    outcome = ask(session, STAGE.id, args, deadline)
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    told = outcome.results
    ranks = _facts(session, told)
    findings = digest.judge(ranks, world.backend)
    said = f"{len(ranks)} ranks compared"
    if apart:
        # At least as long as the knocks take, and in all as long as the stage may.
        left = max(deadline - (time.monotonic() - begin), routes.LIMIT + 1)
        routed = _routes(session, told, words, left)
        if isinstance(routed, StageResult):
            return routed
        findings += routed[0]
        said += f", {routed[1]}"
    if not findings:
        findings = [found("GC0800", said)]
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=said,
        rows=[digest.facts_as_row(one) for one in ranks],
        findings=findings,
    )


STAGE = Stage(
    id="digest",
    title="differences between ranks",
    needs=("rendezvous", "versions"),
    deadline=30.0,
    run=run,
    work=work,
    of_launches=True,
)
