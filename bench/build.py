"""bench/build: our cu121 build beside the recipe that people write by hand, in one run.

Both start from the same base, download every wheel, and end in an image loaded into the same
engine. Then only the self-test's source changes, and both build again. Ratios are printed; nothing
is verified here. Took 27 GB of disk and eight minutes: `.venv/bin/python bench/build.py`.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from gpucomm import bake, base, buildsecrets, engine
from gpucomm import project as projects
from gpucomm.places import Places
from gpucomm.selector import select_one

BY_HAND = """FROM base
ARG RUN_OF_THE_BENCHMARK
RUN --mount=type=secret,id=ca,target=/run/gpucomm/ca.crt \\
    --mount=type=secret,id=env,target=/run/gpucomm/env \\
    --mount=type=secret,id=apt,target=/run/gpucomm/apt.conf \\
    --mount=type=secret,id=apt-sources,target=/run/gpucomm/sources.list \\
    export APT_CONFIG=/run/gpucomm/apt.conf; \\
    if [ -s /run/gpucomm/env ]; then . /run/gpucomm/env; fi; \\
    apt-get update && apt-get install -y python3 python3-venv \\
    && python3 -m venv /opt/venv && /opt/venv/bin/pip install torch=={torch} numpy
COPY gpucomm_selftest /opt/venv/lib/python{python}/site-packages/gpucomm_selftest
"""


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of `work`."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def main() -> int:
    """Run both recipes cold and changed; print a table and the two ratios."""
    project = projects.load()
    cell = select_one(project.matrix, "cu121")
    engine.ensure(print)
    token = secrets.token_hex(4)
    system = project.matrix.systems[cell.os]
    sources = buildsecrets.machine_apt_sources(system.release, None)
    epoch = project.matrix.source_date_epoch
    root = base.bootstrap(system, cell.os, project.places.cache / "bases", sources, epoch, print)
    lent = buildsecrets.gather(release=system.release, ca=None, apt_mirror=None)
    console = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory(prefix="gpucomm-bench-") as folder:
        places = _cold_copy(project.places, Path(folder) / "ours", token)
        ours, by_hand = f"gpucomm-bench:{token}", f"gpucomm-bench:{token}-by-hand"

        def build_ours() -> object:
            return bake.bake(
                cell, places, places.images / cell.id, root,
                epoch=epoch, name=ours, secrets=lent, wheelhouse=None, console=console,
            )  # fmt: skip

        context = Path(folder) / "by-hand"
        shutil.copytree(project.places.selftest / "gpucomm_selftest", context / "gpucomm_selftest")
        text = BY_HAND.format(torch=cell.torch, python=cell.python)
        (context / "Dockerfile").write_text(text)

        def build_by_hand() -> None:
            _by_hand(context, root, lent, by_hand, token)

        try:
            rows = [("cold", seconds(build_ours), seconds(build_by_hand))]
            for folder_of in (places.selftest / "gpucomm_selftest", context / "gpucomm_selftest"):
                with (folder_of / "__init__.py").open("a") as stream:
                    stream.write(f"\n# {token}\n")
            rows.append(("self-test changed", seconds(build_ours), seconds(build_by_hand)))
        finally:
            with closing(engine.client()) as client:
                for name in (ours, by_hand):
                    client.images.remove(name, force=True)
    print(f"{'':<20}{'gpucomm':>10}{'by hand':>10}{'ratio':>8}")
    cold_by_hand = rows[0][2]
    for name, mine, theirs in rows:
        print(f"{name:<20}{mine:>8.1f} s{theirs:>8.1f} s{mine / theirs:>8.2f}")
    print(f"changed, against the cold recipe by hand: {rows[1][1] / cold_by_hand:.3f}")
    print(json.dumps({"rows": rows, "docker": engine.client().version()["Version"]}))
    return 0


def _cold_copy(places: Places, root: Path, token: str) -> Places:
    """The checkout with a wheel cache of its own and a first step that nothing has cached."""
    for name in ("images", "selftest", "templates"):
        shutil.copytree(places.root / name, root / name)
    for path in (root / "images").rglob("Dockerfile"):
        text = path.read_text().replace("id=gpucomm-uv", f"id=gpucomm-bench-{token}")
        first = "FROM base AS system\n"
        path.write_text(text.replace(first, f"{first}RUN echo {token} >/etc/bench\n"))
    return replace(places, root=root)


def _by_hand(
    context: Path, root: base.Base, lent: buildsecrets.BuildSecrets, name: str, token: str
) -> None:
    with lent.on_disk() as files:
        # The same base by the same means: a first build of it costs both recipes nothing.
        definition = {
            "target": {
                "base": {"context": root.context, "dockerfile": "Dockerfile"},
                "image": {
                    "context": str(context),
                    "contexts": {"base": "target:base"},
                    "args": {"RUN_OF_THE_BENCHMARK": token},
                    "secret": [f"id={key},src={path}" for key, path in files.items()],
                    "tags": [name],
                    "output": ["type=docker"],
                },
            }
        }
        bake_file = context / "bake.json"
        bake_file.write_text(json.dumps(definition))
        command = ["docker", "buildx", "bake", "--file", str(bake_file), "--allow=fs.read=/",
                   "--provenance=false", "image"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
