"""The copies of the self-test besides rank 0's: each finds rank 0, and starts what it asks for.

It decides nothing and prints no report, unless rank 0 cannot be reached or has gone: then it has a
verdict of its own. It must not import torch.
"""

import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucomm_selftest import __version__, host
from gpucomm_selftest.attribution import signal_name
from gpucomm_selftest.environment import shown
from gpucomm_selftest.interrupt import Interrupt
from gpucomm_selftest.launcher import Launch
from gpucomm_selftest.places import Here
from gpucomm_selftest.seat import Child
from gpucomm_selftest.wire import BEAT, PROTOCOL, SILENCE, Link, Message

_TICK = 0.1
_CONNECT = 2.0
_ANSWER = 5.0
_PAUSE = 0.2
_KILL = 5.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended: with rank 0's exit code, or with a finding of its own."""

    code: int = 1
    finding: tuple[str, str] | None = None


def _hello(launch: Launch, link: Link, environ: Mapping[str, str]) -> Message:
    return {
        "hello": PROTOCOL,
        "token": launch.token,
        "rank": launch.rank,
        "size": launch.size,
        "local_rank": launch.local_rank,
        "version": __version__,
        "identity": host.identity(),
        "interface": host.interface_of(link.address),
        "environ": shown(environ),
    }


def find(
    launch: Launch, deadline: float, environ: Mapping[str, str], interrupt: Interrupt
) -> Link | Ended:
    """A link to rank 0, which may not be there yet."""
    end = time.monotonic() + deadline
    why = "no try was made"
    while interrupt.signal is None:
        left = end - time.monotonic()
        if left <= 0:
            ports = ", ".join(str(port) for port in launch.ports)
            return Ended(
                finding=(
                    "GC0703",
                    f"rank {launch.rank} on {host.identity()['name']} did not reach "
                    f"{launch.address} port {ports} within {deadline:g} s ({why})",
                )
            )
        try:
            addresses = host.resolve(launch.address, min(left, _ANSWER))
        except OSError as error:
            why = f"{launch.address}: {error.strerror or error}"
            time.sleep(_PAUSE)
            continue
        for port in launch.ports:
            for address in addresses:
                left = end - time.monotonic()
                if left <= 0 or interrupt.signal is not None:
                    break
                said = _try(launch, address, port, environ, interrupt, left)
                if isinstance(said, str):
                    why = said
                else:
                    return said
        time.sleep(_PAUSE)
    return Ended(code=128 + interrupt.signal)


def _try(
    launch: Launch,
    address: str,
    port: int,
    environ: Mapping[str, str],
    interrupt: Interrupt,
    left: float,
) -> Link | Ended | str:
    """A link to rank 0 at this address, or why not. What rank 0 refuses is final."""
    try:
        sock = socket.create_connection((address, port), timeout=min(_CONNECT, left))
    except OSError as error:
        return f"{address} port {port}: {error.strerror or error}"
    if sock.getsockname() == sock.getpeername():
        # Nobody listens, and the kernel took the very port for this end as well.
        sock.close()
        return f"{address} port {port}: nobody listens"
    link = Link(sock)
    link.send(**_hello(launch, link, environ))
    end = time.monotonic() + min(_ANSWER, left)
    while time.monotonic() < end and not link.closed and interrupt.signal is None:
        messages = link.wait(_TICK)
        for at, message in enumerate(messages):
            if message.get("welcome"):
                link.understood = True
                link.give_back(messages[at + 1 :])
                return link
            if "refused" in message:
                link.close()
                finding_id, measured = message["refused"]
                return Ended(finding=(finding_id, measured))
            if message.get("stranger"):
                link.close()
                return f"{address} port {port}: rank 0 of another launch"
    why = link.closed or "no answer"
    link.close()
    return f"{address} port {port}: {why}"


class _Agent:
    def __init__(self, link: Link, here: Here, log: Callable[[str], None]) -> None:
        self._link = link
        self._here = here
        self._log = log
        self._children: dict[int, Child] = {}
        self._beaten = 0.0

    def serve(self, interrupt: Interrupt) -> Ended:
        """Until rank 0 says the end, or is no longer there."""
        try:
            while True:
                code = self._turn()
                if code is not None:
                    return Ended(code=code)
                if interrupt.signal is not None:
                    self._link.send(bye=signal_name(interrupt.signal))
                    return Ended(code=128 + interrupt.signal)
                if self._link.closed:
                    return Ended(finding=("GC0706", f"that of rank 0: {self._link.closed}"))
                if self._link.silent > SILENCE:
                    said = f"that of rank 0 has said nothing for {SILENCE:g} s"
                    return Ended(finding=("GC0706", said))
        finally:
            self._end()

    def _turn(self) -> int | None:
        waiting = select.poll()
        for source in (
            self._link.fileno(),
            *(source for child in self._children.values() for source in child.sources()),
        ):
            waiting.register(source, select.POLLIN)
        for sink in (sink for child in self._children.values() for sink in child.sinks()):
            waiting.register(sink, select.POLLOUT)
        waiting.poll(_TICK * 1000)
        for message in self._link.receive():
            if "end" in message:
                return int(message["end"])
            if "to" in message:
                self._do(message["to"], message)
        for number in list(self._children):
            self._pass_on(number)
        if time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            self._link.beat()
            for number in self._children:
                self._say(number)
        return None

    def _do(self, number: int, message: Message) -> None:
        if "start" in message:
            asked = message["start"]
            try:
                child = self._here.start(**asked)
            except OSError as error:
                said = f"{error.strerror or error}\n"
                self._link.send(**{"from": number, "printed": said, "ended": [None, 127]})
                return
            self._children[number] = child
            self._log(f"{asked['role']} {asked['rank']} pid {child.pid}")
            self._link.send(**{"from": number, "pid": child.pid})
            return
        served = self._children.get(number)
        if served is None:
            return
        if "tell" in message:
            served.tell(message["tell"])
        elif message.get("do") == "state":
            self._say(number)
        elif message.get("do") == "stacks":
            served.ask_stacks()
        elif message.get("do") == "kill":
            text = served.log()
            if text:
                self._link.send(**{"from": number, "log": text})
            served.kill()

    def _say(self, number: int, **more: Any) -> None:
        """Something about a process, and in any case where it is."""
        child = self._children[number]
        crumb = child.crumb()
        self._link.send(
            **{
                "from": number,
                "state": child.state(),
                "crumb": [crumb.stage, crumb.entered, crumb.operation],
                **more,
            }
        )

    def _pass_on(self, number: int) -> None:
        """What a process said and printed, and then its end."""
        child = self._children[number]
        child.look()
        said, printed = child.drain()
        if said or printed:
            self._say(number, said=said.decode("latin-1"), printed=printed.decode("latin-1"))
        if child.signal is not None or child.status is not None:
            text = child.log() if child.status != 0 else ""
            if text:
                self._link.send(**{"from": number, "log": text})
            child.kill()
            self._say(number, ended=[child.signal, child.status])
            child.close()
            del self._children[number]

    def _end(self) -> None:
        for child in self._children.values():
            child.kill()
        end = time.monotonic() + _KILL
        while time.monotonic() < end:
            for child in self._children.values():
                child.look()
            if all(c.signal is not None or c.status is not None for c in self._children.values()):
                break
            time.sleep(0.01)
        for child in self._children.values():
            child.close()
        self._children.clear()
        self._link.close()
        self._here.close()


def run(
    launch: Launch,
    deadline: float,
    environ: Mapping[str, str],
    interrupt: Interrupt,
    log: Callable[[str], None],
) -> Ended:
    """Everything that such a copy does. `deadline` is how long rank 0 may take to be there."""
    found = find(launch, deadline, environ, interrupt)
    if isinstance(found, Ended):
        return found
    log(f"rank {launch.rank}: rank 0 is at {found.peer}")
    return _Agent(found, Here(), log).serve(interrupt)
