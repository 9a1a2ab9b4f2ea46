"""One `docker buildx bake` call per cell: an explicit JSON file in, an image digest out.

Owns: the bake file (pure), the subprocess with its signals, and the class of a failed build. The
docker SDK cannot drive BuildKit, so this is a subprocess.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from gpucomm import engine
from gpucomm.base import Base
from gpucomm.buildsecrets import PROXY_VARIABLES, BuildSecrets
from gpucomm.cell import Cell
from gpucomm.child import running
from gpucomm.errors import Unusable, WorkFailed
from gpucomm.places import Places
from gpucomm.progress import LOG_TAIL, Progress, show
from gpucomm.render import LABEL_PREFIX

BASE_TARGET = "base"
IMAGE_TARGET = "image"  # a cell id has dots, which bake does not take in a name
# Loading compresses and unpacks again; gzip alone would be most of a cold build.
OUTPUT = "type=image,unpack=true,compression=zstd,compression-level=1,oci-mediatypes=true"


def bake_file(
    cell: Cell,
    places: Places,
    recipe: Path,
    base: Base,
    *,
    epoch: int,
    name: str,
    secrets: Mapping[str, Path],
    wheelhouse: Path | None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The bake definition of one cell, with absolute paths and nothing implied."""
    # Predefined by BuildKit: they enter neither the history nor a cache key.
    proxies = {
        name: value
        for variable in PROXY_VARIABLES
        for name in (variable, variable.upper())
        if (value := env.get(variable) or env.get(variable.upper()))
    }
    args = {"SOURCE_DATE_EPOCH": str(epoch)}
    contexts = {
        "base": f"target:{BASE_TARGET}" if base.kind == "bootstrap" else base.context,
        "files": str(places.templates / "files"),
        "selftest-source": str(places.selftest),
    }
    if wheelhouse is not None:
        contexts["wheelhouse"] = str(wheelhouse)
    targets: dict[str, Any] = {
        IMAGE_TARGET: {
            "context": str(recipe),
            "dockerfile": "Dockerfile",
            "contexts": contexts,
            "args": args | proxies,
            "labels": {f"{LABEL_PREFIX}.base": base.identity},
            "secret": [f"id={key},src={path}" for key, path in secrets.items()],
            "attest": ["type=provenance,disabled=true"],
            "output": [f"{OUTPUT},name={name}"],
        }
    }
    if base.kind == "bootstrap":
        targets[BASE_TARGET] = {
            "context": base.context,
            "dockerfile": "Dockerfile",
            "args": args,
            "attest": ["type=provenance,disabled=true"],
        }
    return {"target": targets}


def bake(
    cell: Cell,
    places: Places,
    recipe: Path,
    base: Base,
    *,
    epoch: int,
    name: str,
    secrets: BuildSecrets,
    wheelhouse: Path | None,
    console: Console,
) -> str:
    """Build `cell` into the engine under `name`; returns the image's digest.

    Raises WorkFailed with the failing step's last lines and the log's path, Unusable when the
    engine went away.
    """
    places.logs.mkdir(parents=True, exist_ok=True)
    log = places.logs / f"{cell.id}.build.log"
    with secrets.on_disk() as files, tempfile.TemporaryDirectory(prefix="gpucomm-bake-") as folder:
        definition, metadata = Path(folder) / "bake.json", Path(folder) / "metadata.json"
        definition.write_text(
            json.dumps(
                bake_file(
                    cell, places, recipe, base,
                    epoch=epoch, name=name, secrets=files, wheelhouse=wheelhouse,
                ),
                indent=1,
            )
        )  # fmt: skip
        readable = [places.root, Path(base.context), wheelhouse, *files.values()]
        command = [
            "docker", "buildx", "bake", "--file", str(definition), "--progress=rawjson",
            "--metadata-file", str(metadata),
            *(f"--allow=fs.read={path}" for path in readable if path and path.is_absolute()),
            IMAGE_TARGET,
        ]  # fmt: skip
        # --progress=rawjson goes to stderr; stdout stays empty.
        with (
            log.open("w", encoding="utf-8") as stream,
            show(console, stream) as shower,
            running(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process,
        ):
            for line in process.stderr or ():
                shower.feed(line)
        if process.returncode != 0:
            raise _failure(cell, process.returncode, shower.progress, log)
        return str(json.loads(metadata.read_text())[IMAGE_TARGET]["containerimage.digest"])


def _failure(cell: Cell, code: int, progress: Progress, log: Path) -> WorkFailed | Unusable:
    if engine.probe() is None:
        return Unusable(
            f"{cell.id}: the engine went away during the build; start it (gpucomm engine ensure) "
            f"and run the same command again, finished steps are kept; log: {log}"
        )
    return WorkFailed(f"{cell.id}: {failure_text(code, progress)}; full log: {log}")


def failure_text(code: int, progress: Progress) -> str:
    """The failing step with its last lines, or buildx's own last words."""
    step = progress.failed()
    if step is None:
        return _last(progress.other) or f"docker buildx bake ended with {code}"
    tail = "".join(f"\n    {line}" for line in step.log[-LOG_TAIL:])
    return f"{step.name}: {step.error}{tail}\n  {cell_advice(step.log)}".rstrip()


def cell_advice(log: Iterable[str]) -> str:
    """What to do about the common causes, by what the step printed."""
    text = "\n".join(log).lower()
    if "no space left on device" in text:
        return "the disk is full: docker builder prune, or free space under the engine's root"
    if "hash mismatch" in text or "do not match the hashes" in text:
        return "a wheel is not the locked one: a truncated download, or run gpucomm lock"
    if "certificate" in text:
        return "TLS failed: name the CA bundle of this network with --ca or SSL_CERT_FILE"
    if "name resolution" in text or "dns error" in text or "could not resolve" in text:
        return "a host name was not resolved: check the network, proxies and index mirrors"
    return ""


def _last(lines: list[str]) -> str:
    return " ".join(lines[-1].removeprefix("ERROR: ").split()) if lines else ""
