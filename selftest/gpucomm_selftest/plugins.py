"""Whether a plugin of the collective library that a setting names can be opened here.

Asked of the loader itself, in a process of its own: a plugin may do anything when it is opened.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence

# What a name is completed with (src/plugin/plugin_open.cc).
_PREFIXES = {
    "NCCL_NET_PLUGIN": "libnccl-net",
    "NCCL_TUNER_PLUGIN": "libnccl-tuner",
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler",
    "NCCL_ENV_PLUGIN": "libnccl-env",
    "NCCL_GIN_PLUGIN": "libnccl-gin",
    "NCCL_RMA_PLUGIN": "libnccl-rma",
}
# Values that mean no file.
_NONE = ("none", "static_plugin")
_LIMIT = 10.0
_PROGRAM = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def plugin_names(setting: str, value: str) -> list[str]:
    """What the library asks the loader for, in this order; a path is looked at as a file is."""
    if not value or value.lower() in _NONE or "/" in value:
        return []
    names = [value]
    if not (value.startswith("lib") and value.endswith(".so")):
        names.append(f"{_PREFIXES[setting]}-{value}.so")
    return names


def can_open(names: Sequence[str], environ: Mapping[str, str]) -> str:
    """Why none of these can be opened, or nothing."""
    absent = broken = ""
    for name in names:
        command = [sys.executable, "-I", "-c", _PROGRAM, name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT, env=dict(environ)
            )
        except subprocess.TimeoutExpired:
            return f"{name} did not open within {_LIMIT:g} s"
        if done.returncode == 0:
            return ""
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        why = said.removeprefix("OSError: ")
        if why.startswith(f"{name}: ") and "No such file" in why:
            absent = why
        else:
            broken = broken or why
    # Where one is there and cannot be opened, that is what a person has to know.
    return broken or absent
