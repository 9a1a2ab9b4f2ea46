"""A cable between two containers that have no network: a pair of virtual cards, one in each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pyroute2 import NetNS

# Kept for documents (RFC 5737): they exist in the namespaces alone.
ADDRESSES = ("192.0.2.1", "192.0.2.2")
OTHERS = ("198.51.100.1", "198.51.100.2")


def _inspect(name: str, what: str) -> str:
    done = subprocess.run(
        ["docker", "inspect", "--format", f"{{{{.{what}}}}}", name],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def can_be_laid(name: str) -> bool:
    """Whether this is root on the machine on which the container runs."""
    try:
        group = Path(f"/proc/{_inspect(name, 'State.Pid')}/cgroup").read_text()
    except OSError:
        return False
    return os.getuid() == 0 and _inspect(name, "Id") in group


def lay_cable(
    names: Sequence[str],
    length: int,
    *,
    card: str = "veth0",
    addresses: Sequence[str] = ADDRESSES,
) -> None:
    """The containers then have these addresses; `length` of the prefix says whom each takes for
    near: with 32 there is a cable and no route.

    Needs root, and an engine on this machine.
    """
    pids = [int(_inspect(name, "State.Pid")) for name in names]
    with NetNS(f"/proc/{pids[0]}/ns/net") as first:
        first.link(
            "add",
            ifname=card,
            kind="veth",
            peer={"ifname": card, "net_ns_pid": pids[1]},
        )
    for pid, address in zip(pids, addresses, strict=True):
        with NetNS(f"/proc/{pid}/ns/net") as one:
            index = one.link_lookup(ifname=card)[0]
            one.addr("add", index=index, address=address, prefixlen=length)
            one.link("set", index=index, state="up")
