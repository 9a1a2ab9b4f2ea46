"""Which host and which network a copy of the self-test is on, and by which interface.

Reads the machine and decides nothing. Two containers of one machine are one host with two
networks: they share a kernel, and have no loopback in common.
"""

import fcntl
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_RUNNING = 0x41  # IFF_UP and IFF_RUNNING
# How long a name service may take, in seconds.
_NAMES = 2.0


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
    """The address of an interface, of IPv4 where it has one, or nothing: an address of IPv6 that is
    only good for one link is none."""
    by_name = {
        name: address
        for address, name in _interfaces_of_ipv6(root).items()
        if not address.startswith("fe80:")
    }
    return _ipv4_of(interface) or by_name.get(interface, "")


def is_running(interface: str) -> bool:
    """Whether it is up and has a carrier."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFFLAGS, request)
        except OSError:
            return False
    flags: int = struct.unpack_from("H", answer, 16)[0]
    return flags & _RUNNING == _RUNNING


def interface_of(address: str, root: Path = Path("/")) -> str:
    """The interface that has an address, or nothing. A second IPv4 address is not found."""
    plain = address.partition("%")[0].removeprefix("::ffff:")
    if ":" in plain:
        return _interfaces_of_ipv6(root).get(plain, "")
    return next((name for _, name in socket.if_nameindex() if _ipv4_of(name) == plain), "")


def is_own(address: str) -> bool:
    """Whether this host can listen at an address or a name."""
    try:
        found = resolve(address, _NAMES)
    except OSError:
        return False
    for one in found:
        try:
            with socket.socket(socket.AF_INET6 if ":" in one else socket.AF_INET) as trying:
                trying.bind((one, 0))
        except OSError:
            continue
        return True
    return False


def resolve(name: str, within: float) -> list[str]:
    """The addresses of a name. The name service has its own idea of time, and is not waited for
    longer. Raises OSError."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM))
        except OSError as error:
            answer.append(error)
        except UnicodeError:
            answer.append(OSError(f"{name} is no name of a host"))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(within)
    if not answer:
        raise TimeoutError(f"the name service does not answer for {name}")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return list(dict.fromkeys(str(where[0]) for *_, where in answer[0]))


def state_of(pid: int, root: Path = Path("/")) -> str:
    """The letter of /proc/PID/stat, after the name, which may contain anything."""
    return _read(root / f"proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def is_rank_process(pid: int, root: Path = Path("/")) -> bool:
    return "gpucomm_selftest.rank" in _read(root / f"proc/{pid}/cmdline").split("\0")
