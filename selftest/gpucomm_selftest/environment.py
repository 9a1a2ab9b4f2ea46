"""The environment of a rank process, and the part of it that belongs in a report.

Adds what a process needs to start anywhere: as a uid without a passwd entry, in a directory with
files named like modules, from a checkout. It must not set anything that changes what torch or the
collective library do: that is decided in world.py.
"""

import os
import pwd
import site
import socket
from collections.abc import Mapping
from pathlib import Path

# Every setting that can change a result is shown in the header.
_SHOWN_PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_", "TORCH_FR_"),
    *("OFI_NCCL_", "FI_", "HSA_", "UCX_"),
)
_SHOWN = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a result."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_SHOWN_PREFIXES) or name in _SHOWN
    }


def loopback() -> str:
    """The name of the loopback interface, or nothing where it cannot be told."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "")


def loopback_works() -> str | None:
    """Why two processes cannot meet on 127.0.0.1, or nothing."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return f"127.0.0.1: {error.strerror or error}"
    return None


def _has_user_name(environ: Mapping[str, str]) -> bool:
    if any(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        return True
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _python_path(environ: Mapping[str, str]) -> str:
    """Where the rank finds this package, by absolute names: its path has no current directory."""
    given = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    entries = [str(Path(entry).absolute()) for entry in given]
    root = str(Path(__file__).absolute().parent.parent)
    if root not in [*entries, *site.getsitepackages(), site.getusersitepackages()]:
        entries.append(root)
    return os.pathsep.join(entries)


def rank_environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    made = {**environ, **extra}
    made["PYTHONPATH"] = _python_path(environ)
    if not made["PYTHONPATH"]:
        del made["PYTHONPATH"]
    # Where stdout is a pipe: what a killed rank wrote before it died is worth having.
    made["PYTHONUNBUFFERED"] = "1"
    if not _has_user_name(environ):
        # getpass.getuser() fails without one, and torch's compiler calls it.
        made["LOGNAME"] = f"uid{os.getuid()}"
    return made
