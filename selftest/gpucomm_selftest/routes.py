"""Whether the data of ranks on different hosts finds its way: the interface that the library will
take, a door there, and knocks at the doors of the others.

Runs in the probe of a site. The word behind a door tells that it is the right one: two hosts often
have one address, such as that of a bridge, and each then reaches itself.
"""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from gpucomm_selftest import host
from gpucomm_selftest.lint import matches

# How long all knocks together may take, in seconds.
LIMIT = 4.0
_ANSWER = 2.0


def nccls_choice(names: Sequence[str], setting: str) -> str:
    """The first interface that NCCL would take, or nothing. `names` in the order of the kernel."""
    # It passes over a value of one letter.
    if len(setting) > 1:
        return next(iter(matches(setting, names)), "")
    local = ("lo", "docker", "virbr")
    ranks = (
        [name for name in names if name.startswith("ib")],
        [name for name in names if not name.startswith(local)],
        [name for name in names if name.startswith("docker")],
        [name for name in names if name.startswith("lo")],
    )
    return next((names[0] for names in ranks if names), "")


def interface_for(backend: str, setting: str, usual: str) -> str:
    """The interface of this host for the data; `usual` is that by which the copies met."""
    if backend != "nccl":
        return setting.partition(",")[0] or usual
    return nccls_choice(usable(), setting)


def usable() -> list[str]:
    """The interfaces that NCCL looks at, in its order: those that run and have an address, those of
    IPv4 first."""
    found = [
        (":" in host.address_of(name), index, name)
        for index, name in socket.if_nameindex()
        if host.address_of(name) and host.is_running(name)
    ]
    return [name for *_, name in sorted(found)]


class Doors:
    """Listens at an address until the process ends, and says a word to who comes."""

    def __init__(self, address: str, word: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=1024)
        self._word = (word + "\n").encode()
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._server.accept()
                with guest:
                    guest.sendall(self._word)
            except OSError:
                continue


def _read(guest: socket.socket, end: float) -> str:
    guest.settimeout(max(0.1, min(_ANSWER, end - time.monotonic())))
    try:
        return guest.recv(256).decode("ascii", "replace").strip()
    except OSError:
        return ""


def knock(doors: Sequence[dict[str, Any]], limit: float = LIMIT) -> dict[int, str]:
    """Why a door could not be reached, by its number: nothing where it opens. All at once."""
    end = time.monotonic() + limit
    answers: dict[int, str] = {}
    waiting: dict[int, tuple[int, str, socket.socket]] = {}
    for one in doors:
        number, address = one["number"], one["address"]
        if not address:
            answers[number] = "it has no address there"
            continue
        if not one["port"]:
            answers[number] = "it cannot listen there"
            continue
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            sock.setblocking(False)
            failed = sock.connect_ex((address, one["port"]))
        except OSError as error:
            answers[number] = error.strerror or str(error)
            continue
        if failed not in (0, errno.EINPROGRESS):
            answers[number] = os.strerror(failed)
            sock.close()
            continue
        waiting[sock.fileno()] = (number, one["word"], sock)
    while waiting and time.monotonic() < end:
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(100):
            number, word, sock = waiting.pop(descriptor)
            with sock:
                failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failed:
                    answers[number] = os.strerror(failed)
                    continue
                said = _read(sock, end)
                right = said == word
                answers[number] = "" if right else "another host or service answers there"
    for number, _, sock in waiting.values():
        answers[number] = f"no answer within {limit:g} s"
        sock.close()
    return answers
