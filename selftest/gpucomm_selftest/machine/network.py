"""Network interfaces and routes, and RDMA devices with their ports."""

from pathlib import Path
from typing import Any

from gpucomm_selftest.machine.files import names_in, text_of

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def interfaces(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Every interface: its state, and its speed in Mb/s where the driver tells it."""
    found = []
    for name in names_in(root / "sys/class/net"):
        folder = root / "sys/class/net" / name
        speed = text_of(folder / "speed")
        found.append(
            {
                "name": name,
                "state": text_of(folder / "operstate") or "unknown",
                "mtu": int(text_of(folder / "mtu") or 0),
                "speed": int(speed) if speed.isdigit() and int(speed) > 0 else None,
            }
        )
    return found


def default_interface(root: Path = Path("/")) -> str:
    """The interface of the default route of IPv4, or nothing."""
    for line in text_of(root / "proc/net/route").splitlines()[1:]:
        parts = line.split()
        if len(parts) > 7 and parts[1] == parts[7] == "00000000":
            return parts[0]
    return ""


def rdma_ports(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Every port of every RDMA device: link layer, state, rate, and how many GIDs it has."""
    found = []
    base = root / "sys/class/infiniband"
    for device in names_in(base):
        for port in names_in(base / device / "ports"):
            folder = base / device / "ports" / port
            gids = [text_of(folder / "gids" / name) for name in names_in(folder / "gids")]
            found.append(
                {
                    "device": device,
                    "port": port,
                    "layer": text_of(folder / "link_layer"),
                    "state": text_of(folder / "state").rpartition(": ")[2],
                    "rate": text_of(folder / "rate"),
                    "gids": sum(gid not in ("", _NO_GID) for gid in gids),
                }
            )
    return found


def numa_nodes(root: Path = Path("/")) -> dict[str, Any]:
    """How many NUMA nodes there are, and the processors and nodes this process may use."""
    status = text_of(root / "proc/self/status")
    allowed = dict(
        line.split(":", 1) for line in status.splitlines() if line.startswith(("Cpus_", "Mems_"))
    )
    nodes = [name for name in names_in(root / "sys/devices/system/node") if name[4:].isdigit()]
    return {
        "nodes": len([name for name in nodes if name.startswith("node")]),
        "cpus": allowed.get("Cpus_allowed_list", "").strip(),
        "mems": allowed.get("Mems_allowed_list", "").strip(),
    }
