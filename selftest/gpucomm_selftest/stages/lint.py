"""Stage `lint`: the settings of NCCL, RCCL, Gloo and torch, held against what is really here.

The probe collects: the settings in force, the names that the loaded library knows, and what they
may name on this machine. lint.py decides. A setting that nobody reads is the fault that no library
tells of.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucomm_selftest import lint, lintdata
from gpucomm_selftest.elf import ElfError
from gpucomm_selftest.findings import LEVELS, PASS, Finding
from gpucomm_selftest.machine.network import interfaces, rdma_ports
from gpucomm_selftest.names import known_names
from gpucomm_selftest.plugins import can_open, plugin_names
from gpucomm_selftest.probing import ask
from gpucomm_selftest.settings import Reader, Setting, Unread, home_of_user, settings
from gpucomm_selftest.sites import over
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    context.enter("read the settings")
    reader = Reader(family=args["family"] or "nccl", code=args["code"])
    found, unread = settings(os.environ, reader=reader, home=home_of_user())
    names: frozenset[str] = frozenset()
    problem = ""
    if args["library"]:
        context.enter("read the names that the library knows")
        try:
            names = known_names(Path(args["library"]))
        except (OSError, ElfError) as error:
            problem = str(error)
    context.enter("look for plugins")
    plugins = {
        one.name: can_open(plugin_names(one.name, one.value), os.environ)
        for one in found
        if one.name in lintdata.PLUGINS and args["library"] and plugin_names(one.name, one.value)
    }
    ports = rdma_ports()
    return {
        "plugins": plugins,
        "settings": [vars(one) for one in found],
        "unread": [vars(one) for one in unread],
        "names": sorted(names),
        "problem": problem,
        "interfaces": [one["name"] for one in interfaces()],
        "hcas": {
            port["device"]: [one["port"] for one in ports if one["device"] == port["device"]]
            for port in ports
        },
        "gids": max((port["gids"] for port in ports), default=None),
    }


def run(session: Session, deadline: float) -> StageResult:
    loaded: list[dict[str, Any]] = [next(iter(probe["libraries"]), {}) for probe in session.probes]
    outcome = ask(
        session,
        STAGE.id,
        lambda site: {
            "library": loaded[site].get("path", ""),
            "family": loaded[site].get("family", ""),
            "code": loaded[site].get("code"),
        },
        deadline,
    )
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)

    def judge(site: int) -> list[tuple[str, Finding]]:
        data, library = outcome.results[site], loaded[site]
        return lint.judge(
            [Setting(**one) for one in data["settings"]],
            [Unread(**one) for one in data["unread"]],
            frozenset(data["names"]),
            lint.Host(
                interfaces=data["interfaces"],
                hcas=data["hcas"],
                gids=data["gids"],
                plugins=data["plugins"],
            ),
            lint.Use(
                backend=session.world.backend if session.world else session.options.backend,
                library=library.get("code"),
                family=library.get("family", ""),
            ),
        )

    # The table is that of rank 0's site.
    data, named = outcome.results[0], judge(0)
    found = [Setting(**one) for one in data["settings"]]
    rows = []
    for setting in found:
        levels = [finding.level for name, finding in named if name == setting.name]
        rows.append({**vars(setting), "level": max(levels, key=LEVELS.index, default=PASS)})
    findings = over(session.sites, lambda site: [finding for _, finding in judge(site)])
    names = f"{len(data['names'])} names known" if data["names"] else "no names to compare with"
    summary = f"{len(found)} settings, {names}" + (f" ({data['problem']})" * bool(data["problem"]))
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=summary,
        rows=rows,
        findings=findings,
    )


STAGE = Stage(
    id="lint",
    title="settings of the communication libraries",
    needs=("versions",),
    deadline=20.0,
    run=run,
    work=work,
)
