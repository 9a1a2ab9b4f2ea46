"""Stage `libraries`: the files behind torch, who brought each, and whether they fit together.

The probe, which has imported torch, collects from its own maps (libraries.py, owners.py, elf.py).
Versions of the collective library are judged in `versions`, those of other ranks in `init`.
"""

import importlib.metadata
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucomm_selftest import libraries
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.owners import not_preloaded, pinned
from gpucomm_selftest.probing import ask
from gpucomm_selftest.sites import over
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped

_COLLECTIVE = ("nccl", "rccl")
# Of these a process may not have two of one major version.
_SINGLE = ("cudart", "cudnn", "ibverbs", "driver", "hip")
_SHOWN = 4
# What an image of gpucomm was locked with.
_PINS = Path("/opt/gpucomm/pins")


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    context.enter("import torch")
    import torch  # noqa: F401  a new probe has not imported it yet

    context.enter("look at loaded libraries")
    environ = dict(os.environ)
    files = libraries.own_files()
    symbols = libraries.describe_symbols(files)
    _, own = libraries.own_choice(symbols.pop("objects"), environ)
    return {
        "loaded": libraries.with_owners(libraries.describe_loaded(files), environ),
        "own": os.path.realpath(own) if own else "",
        "symbols": symbols,
        "told": environ.get("NCCL_VERSION", ""),
        "not_preloaded": not_preloaded(environ, libraries.own_paths()),
        "unpinned": unpinned(),
    }


def unpinned(root: Path = _PINS) -> list[list[str]]:
    """Packages of the image that have another version than it was locked with: name, pin, version
    (empty where it is gone). Without the files of an image of ours there are none."""
    pins: dict[str, str] = {}
    # Overrides win over constraints, as they do in the resolver.
    for name in ("constraints.txt", "overrides.txt"):
        try:
            pins.update(pinned((root / name).read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
    made = []
    for name, pin in sorted(pins.items()):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here = ""
        # A local part such as +cu121 tells the index it came from.
        if here and here.partition("+")[0] != pin.partition("+")[0]:
            made.append([name, pin, here])
    return made


def owner(one: Mapping[str, Any]) -> str:
    """`wheel nvidia-nccl-cu12 2.20.5, by LD_PRELOAD=…`."""
    labels = [package["label"] for package in one["packages"]] or ["no package"]
    return " and ".join(labels) + (f", by {one['by']}" if one["by"] else "")


def _named(one: Mapping[str, Any]) -> str:
    return f"{one['path']} ({owner(one)})"


def _others(loaded: Sequence[Mapping[str, Any]], own: str) -> Iterator[Finding]:
    """A collective library that a variable brought in place of, or beside, torch's own."""
    for one in loaded:
        brought = one["kind"] in _COLLECTIVE and one["by"] and own
        if brought and os.path.realpath(one["path"]) != own:
            yield found("GC0120", f"{_named(one)}; torch's own is {own}")


def _doubles(loaded: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    by_kind: dict[tuple[str, str], list[str]] = {}
    for one in loaded:
        if one["kind"] in _SINGLE:
            by_kind.setdefault((one["kind"], one["major"]), []).append(_named(one))
    for (_, _), named in sorted(by_kind.items()):
        if len(named) > 1:
            yield found("GC0121", " and ".join(named))


def _files(loaded: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for one in loaded:
        sizes = {package["size"] for package in one["packages"]} - {None}
        if one["deleted"]:
            yield found("GC0124", _named(one))
        elif sizes and one["size"] is not None and one["size"] not in sizes:
            recorded = ", ".join(str(size) for size in sorted(sizes))
            yield found("GC0125", f"{_named(one)}: {one['size']} bytes, recorded {recorded}")
        if len(one["packages"]) > 1:
            yield found("GC0126", _named(one))


def judge(data: Mapping[str, Any], version: str | None) -> list[Finding]:
    """`version` is that of the loaded collective library."""
    loaded = data["loaded"]
    findings = [*_others(loaded, data["own"]), *_doubles(loaded), *_files(loaded)]
    missing = data["symbols"]["missing"]
    if missing:
        names = list(missing)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        asks = Path(missing[names[0]]).name
        findings.append(found("GC0123", f"{', '.join(names[:_SHOWN])}{more}, called by {asks}"))
    if data["not_preloaded"]:
        findings.append(found("GC0128", f"LD_PRELOAD names {', '.join(data['not_preloaded'])}"))
    if data["unpinned"]:
        said = [f"{name} {here}, locked {pin}" for name, pin, here in data["unpinned"]]
        more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
        findings.append(found("GC0127", ", ".join(said[:_SHOWN]) + more))
    told = data["told"].partition("-")[0]
    if told and version and told != version:
        findings.append(found("GC0122", f"NCCL_VERSION={data['told']}, loaded {version}"))
    return findings


def run(session: Session, deadline: float) -> StageResult:
    outcome = ask(session, STAGE.id, lambda site: {}, deadline)
    if outcome.ended:
        return stopped(STAGE.id, deadline, outcome)
    known = [next(iter(probe["libraries"]), None) for probe in session.probes]

    def judge_site(site: int) -> list[Finding]:
        one = known[site]
        return judge(outcome.results[site], one["version"] if one else None)

    findings = over(session.sites, judge_site)
    # The table is that of rank 0's site.
    data = outcome.results[0]
    rows = [{**one, "owner": owner(one)} for one in data["loaded"]]
    needed = data["symbols"]["needed"]
    has = f"{needed - len(data['symbols']['missing'])} of {needed} symbols found"
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=f"{len(rows)} libraries" + (f", {has}" if needed else ""),
        rows=rows,
        findings=findings,
    )


STAGE = Stage(
    id="libraries",
    title="loaded libraries",
    needs=("versions",),
    deadline=30.0,
    run=run,
    work=work,
)
