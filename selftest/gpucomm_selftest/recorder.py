"""torch's flight recorder: what a rank that hangs has given to its backend, and how far it came.

Runs in a thread of the rank, which waits for a byte on a pipe: the main thread is in a library and
comes back to no signal handler of Python. Where it holds the interpreter's lock nothing is said.
"""

import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

# Entries that are kept; torch's own default is none at all before 2.6.
_ENTRIES = "2000"
_NAME = "TORCH_FR_BUFFER_SIZE"
# What it was called; a torch that has renamed it warns of the old name.
_OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RENAMED_IN = (2, 10)
_SHOWN = 4


def environment(torch: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What switches the recorder on in this version of torch; nothing where the user has."""
    if environ.get(_NAME) or environ.get(_OLD_NAME):
        return {}
    parts = torch.split(".")
    version = tuple(int(part) for part in parts[:2] if part.isdigit())
    return {_NAME: _ENTRIES} | ({} if version >= _RENAMED_IN else {_OLD_NAME: _ENTRIES})


def _said(entry: Mapping[str, Any]) -> str:
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
    dtypes = ",".join(str(one) for one in entry.get("input_dtypes") or [])
    return (
        f"#{number} {entry.get('profiling_name', '?')} {entry.get('input_sizes')} {dtypes}: "
        f"{entry.get('state', '?')}"
    )


def lines(dumped: Mapping[str, Any]) -> list[str]:
    """The last operation that ended and those that have not, of each process group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dumped.get("entries", []):
        name = str((entry.get("process_group") or ["?"])[-1])
        groups.setdefault(name, []).append(entry)
    made = []
    for name, entries in sorted(groups.items()):
        ended = [one for one in entries if one.get("retired") or one.get("state") == "completed"]
        pending = [one for one in entries if one not in ended]
        made += [f"{name}: ended: {_said(one)}" for one in ended[-1:]]
        made += [f"{name}: not ended: {_said(one)}" for one in pending[:_SHOWN]]
        if len(pending) > _SHOWN:
            made.append(f"{name}: {len(pending) - _SHOWN} more that have not ended")
    return made


def _dump(library: Any) -> Mapping[str, Any]:
    """What torch's library gives; its functions have had three names."""
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        if hasattr(library, name):
            made: Mapping[str, Any] = json.loads(getattr(library, name)())
            return made
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        if hasattr(library, name):
            # It comes from this process.
            loaded: Mapping[str, Any] = pickle.loads(getattr(library, name)())  # noqa: S301
            return loaded
    return {}


def answer(descriptor: int, send: Callable[[list[str]], None]) -> None:
    """Waits in the background for a byte, and then sends what the recorder has."""

    def wait() -> None:
        while os.read(descriptor, 1):
            library = sys.modules.get("torch._C._distributed_c10d")
            try:
                send(lines(_dump(library)) if library else [])
            except (RuntimeError, ValueError, TypeError, OSError, pickle.UnpicklingError):
                send([])

    threading.Thread(target=wait, daemon=True).start()
