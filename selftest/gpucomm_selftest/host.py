"""Which host and which network a copy of the self-test is on, and by which interface.

Reads the machine and decides nothing. Two containers of one machine are one host with two
networks: they share a kernel, and have no loopback in common.
"""

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any

_SIOCGIFADDR = 0x8915


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def identity(root: Path = Path("/")) -> dict[str, Any]:
    name = socket.gethostname()
    return {
        "name": name,
        "boot": _read(root / "proc/sys/kernel/random/boot_id") or name,
        "network": _link(root / "proc/self/ns/net"),
        "pids": _link(root / "proc/self/ns/pid"),
        "files": _link(root / "proc/self/ns/mnt"),
        # A scheduler gives each task its devices by a group of its own.
        "group": _read(root / "proc/self/cgroup"),
        "pid": os.getpid(),
    }


def same_network(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two copies can meet on the loopback interface."""
    return (one["boot"], one["network"]) == (other["boot"], other["network"])


def same_host(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two copies share the hardware."""
    return bool(one["boot"] == other["boot"])


def same_surroundings(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two copies see the same files, network and devices."""
    names = ("boot", "network", "pids", "files", "group")
    return all(one[name] == other[name] for name in names)


def same_processes(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a process id means the same process to both."""
    return bool(one["pids"]) and (one["boot"], one["pids"]) == (other["boot"], other["pids"])


def _interfaces_of_ipv6(root: Path) -> dict[str, str]:
    found = {}
    for line in _read(root / "proc/net/if_inet6").splitlines():
        digits, *_, name = line.split()
        found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return found


def _ipv4_of(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return ""  # it has no such address
    return socket.inet_ntoa(answer[20:24])


def address_of(interface: str, root: Path = Path("/")) -> str:
    """The address of an interface, of IPv4 where it has one, or nothing."""
    by_name = {name: address for address, name in _interfaces_of_ipv6(root).items()}
    return _ipv4_of(interface) or by_name.get(interface, "")


def interface_of(address: str, root: Path = Path("/")) -> str:
    """The interface that has an address, or nothing. A second IPv4 address is not found."""
    plain = address.partition("%")[0].removeprefix("::ffff:")
    if ":" in plain:
        return _interfaces_of_ipv6(root).get(plain, "")
    return next((name for _, name in socket.if_nameindex() if _ipv4_of(name) == plain), "")


def is_own(address: str) -> bool:
    """Whether this host can listen at an address or a name."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, where in found:
        with socket.socket(family, kind) as trying:
            try:
                trying.bind(where)
            except OSError:
                continue
            return True
    return False


def state_of(pid: int, root: Path = Path("/")) -> str:
    """The letter of /proc/PID/stat, after the name, which may contain anything."""
    return _read(root / f"proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def is_rank_process(pid: int, root: Path = Path("/")) -> bool:
    return "gpucomm_selftest.rank" in _read(root / f"proc/{pid}/cmdline").split("\0")
