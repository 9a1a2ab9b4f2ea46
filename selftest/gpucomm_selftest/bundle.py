"""The support bundle: one archive with the report and what a reader of it asks for next.

Everything in it is redacted (see redact.py). It looks at the machine only by reading small files of
/proc and by nvidia-smi or rocm-smi with a time limit. The same report gives the same bytes but for
what the machine says.
"""

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucomm_selftest import text
from gpucomm_selftest.junit import junit
from gpucomm_selftest.redact import redact, redact_all, redact_environment, secret_values

_FILES = (
    "/etc/os-release",
    "/proc/version",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/proc/self/limits",
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/net/route",
    "/proc/driver/nvidia/version",
    "/sys/fs/cgroup/memory.max",
    "/etc/nccl.conf",
)
_COMMANDS = {
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "rocm-smi.txt": ("rocm-smi", "--showall"),
}
_LONGEST = 512 * 1024
_LIMIT = 20.0

FOLDER = "gpucomm-selftest"


def _read(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return None


def _output(command: tuple[str, ...]) -> str | None:
    """What a tool says, or that it did not end; nothing where it is not there."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not end within {_LIMIT:g} s\n"
    except OSError:
        return None
    return (done.stdout + done.stderr)[:_LONGEST].decode("utf-8", "replace")


def machine_files() -> dict[str, str]:
    """Name in the bundle -> text, of what this machine has."""
    read = {f"machine{path}": _read(path) for path in _FILES}
    asked = {f"machine/{name}": _output(command) for name, command in _COMMANDS.items()}
    return {name: said for name, said in {**read, **asked}.items() if said is not None}


def bundle(
    report: Mapping[str, Any], environ: Mapping[str, str], machine: Mapping[str, str]
) -> bytes:
    """The archive. `machine` is what `machine_files` returned."""
    secrets = secret_values(environ)
    clean = redact_all(report, secrets)
    members = {
        "report.json": json.dumps(clean, indent=2) + "\n",
        "report.txt": text.whole(clean),
        "junit.xml": junit(clean).decode(),
        "environment.json": json.dumps(redact_environment(environ, secrets), indent=2) + "\n",
        **{name: redact(said, secrets) for name, said in machine.items()},
    }
    for stage in clean["stages"]:
        for rank in stage["stopped_ranks"]:
            lines = [*rank["output"], *(rank.get("traceback") or "").splitlines()]
            members[f"output/{stage['id']}-rank{rank['rank']}.txt"] = "\n".join(lines) + "\n"
    packed = io.BytesIO()
    # No time in the headers: the same report gives the same archive.
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped:  # noqa: SIM117
        with tarfile.open(fileobj=zipped, mode="w") as archive:
            for name, said in sorted(members.items()):
                data = said.encode("utf-8", "replace")
                info = tarfile.TarInfo(f"{FOLDER}/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()
