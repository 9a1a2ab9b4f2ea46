"""Rank 0's side of a world of several copies: it lets them come, and starts processes in them.

One connection to each copy carries everything (wire.py; the other side is agent.py). A copy that
breaks off, or says nothing for long, takes its rank with it: the crew sees that as an end.
"""

import errno
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpucomm_selftest import __version__, host
from gpucomm_selftest.attribution import numbered
from gpucomm_selftest.crumbs import Crumb
from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.interrupt import Interrupt
from gpucomm_selftest.launcher import Launch
from gpucomm_selftest.places import Place
from gpucomm_selftest.wire import BEAT, PROTOCOL, QUIET, SILENCE, Link, Message

_TICK = 0.1
# How long a connection may take to say who it is, and the copies to hang up at the end.
_GREETING = 5.0
_FAREWELL = 2.0
# Copies that come in the same moment, before the first is greeted.
_BACKLOG = 1024
# When a person is first told for whom rank 0 waits.
_NOTICE = 5.0


class There:
    """A process for one rank, in another copy: a Seat of the crew."""

    def __init__(self, copy: "Copy", number: int) -> None:
        self.host = copy.host
        self.pid = 0
        self.signal: int | None = None
        self.status: int | None = None
        self.lost = ""
        self.said_bye = False
        self._copy = copy
        self._number = number
        self._said = b""
        self._printed = b""
        self._state = ""
        self._crumb = Crumb()
        self._log = ""

    def sources(self) -> list[int]:
        return self._copy.sources()

    def sinks(self) -> list[int]:
        return []

    def drain(self) -> tuple[bytes, bytes]:
        self._copy.pump()
        got = self._said, self._printed
        self._said = self._printed = b""
        return got

    def take(self, message: Message) -> None:
        self._said += message.get("said", "").encode("latin-1")
        self._printed += message.get("printed", "").encode("latin-1")
        self.pid = message.get("pid", self.pid)
        self._log = message.get("log", self._log)
        self._state = message.get("state", self._state)
        if "crumb" in message:
            stage, entered, operation = message["crumb"]
            self._crumb = Crumb(stage=stage, entered=entered, operation=operation)
        if "ended" in message:
            self.signal, self.status = message["ended"]

    def tell(self, command: Mapping[str, Any]) -> bool:
        return self._copy.link.send(to=self._number, tell=dict(command))

    def look(self) -> None:
        self._copy.pump()
        if self.signal is None and self.status is None:
            self.lost = self._copy.lost()
            self.said_bye = bool(self._copy.bye)

    def state(self) -> str:
        return "?" if self._copy.link.silent > QUIET else self._state

    def crumb(self) -> Crumb:
        return self._crumb

    def ask_state(self) -> bool:
        return self._copy.link.send(to=self._number, do="state")

    def ask_stacks(self) -> None:
        self._copy.link.send(to=self._number, do="stacks")

    def kill(self) -> None:
        self._copy.link.send(to=self._number, do="kill")
        if not self._copy.link.closed and self._copy.link.silent <= QUIET:
            return
        # Its copy is stopped or out of reach, and cannot do it.
        self.lost = self.lost or f"the copy {self._copy.name} did not answer"
        if self._copy.shares_processes and host.is_rank_process(self.pid):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return

    def log(self) -> str:
        return self._log

    def close(self) -> None:
        self._copy.seats.pop(self._number, None)


class Copy:
    """Another copy of the self-test, for one rank: a Place where processes can be started."""

    def __init__(self, link: Link, hello: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.link = link
        self.rank: int = hello["rank"]
        self.local_rank: int | None = hello["local_rank"]
        self.identity: dict[str, Any] = hello["identity"]
        self.interface: str = hello["interface"]
        self.environ: dict[str, str] = hello["environ"]
        self.shares_processes = host.same_processes(dict(own), self.identity)
        same = (own["boot"], own["name"]) == (self.identity["boot"], self.identity["name"])
        self.host = "" if same else str(self.identity["name"])
        self.seats: dict[int, There] = {}
        self._next = 0
        self.bye = ""  # the signal that it got

    @property
    def name(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"of rank {self.rank} (pid {self.identity['pid']}{where})"

    def start(
        self, *, rank: int, role: str, size: int, environment: Mapping[str, str], capture: bool
    ) -> There:
        self._next += 1
        seat = self.seats[self._next] = There(self, self._next)
        self.link.send(
            to=self._next,
            start={
                "rank": rank,
                "role": role,
                "size": size,
                "environment": dict(environment),
                "capture": capture,
            },
        )
        return seat

    def sources(self) -> list[int]:
        return [] if self.link.closed else [self.link.fileno()]

    def pump(self) -> None:
        """Gives what came to the processes it is about."""
        for message in self.link.receive():
            self.bye = message.get("bye", self.bye)
            seat = self.seats.get(message.get("from", -1))
            if seat is not None:
                seat.take(message)

    def lost(self) -> str:
        """Why this copy cannot be asked any more, or nothing."""
        if self.bye:
            return f"the copy {self.name} got {self.bye}"
        if self.link.closed:
            return f"the copy {self.name} has gone: {self.link.closed}"
        if self.link.silent > SILENCE:
            return f"the copy {self.name} has said nothing for {SILENCE:g} s"
        return ""


def _is_whole(hello: Message) -> bool:
    """Whether it has all that a copy says of itself."""
    identity = hello.get("identity")
    return (
        all(isinstance(hello.get(name), int) for name in ("rank", "size"))
        and all(isinstance(hello.get(name), str) for name in ("version", "interface"))
        and isinstance(hello.get("local_rank"), int | None)
        and isinstance(hello.get("environ"), dict)
        and isinstance(identity, dict)
        and set(host.identity()) <= set(identity)
    )


class _Beats(threading.Thread):
    """Says to every copy that this one is there, also while it is busy."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.links: list[Link] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(BEAT):
            for link in list(self.links):
                link.beat()


def _listen_at(port: int, loopback: bool) -> socket.socket:
    if loopback:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise
        # A kernel or a container without IPv6.
        return socket.create_server(("", port), backlog=_BACKLOG)


def listen(launch: Launch) -> socket.socket:
    """At the first port of the launch that is free, and at all addresses unless all copies go to
    the loopback: rank 0 may call itself localhost where the others have a name for it. Raises
    UnusableError where no port is free."""
    loopback = launch.address == "127.0.0.1"
    problems = []
    for port in launch.ports:
        try:
            return _listen_at(port, loopback)
        except OSError as error:
            # Not what the library says: it repeats the port and the number of the error.
            problems.append(f"port {port}: {os.strerror(error.errno or 0)}")
    raise UnusableError("GC0704", f"rank 0 ({launch.family}): {'; '.join(problems)}")


class Meeting:
    """All copies of one launch, as rank 0 has them."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.identity = host.identity()
        self.copies: dict[int, Copy] = {}
        self.interface = ""
        self._beats = _Beats()
        # Connections that have not said who they are, and since when.
        self._strangers: dict[Link, float] = {}
        self._heard: list[str] = []
        self._beats.start()

    @property
    def whole(self) -> bool:
        return len(self.copies) == self.launch.size - 1

    @property
    def one_network(self) -> bool:
        """Whether all copies can meet on the loopback interface."""
        return all(host.same_network(self.identity, c.identity) for c in self.copies.values())

    def places(self, here: Place) -> list[Place]:
        """By rank."""
        return [here, *(self.copies[rank] for rank in range(1, self.launch.size))]

    def name_hosts(self) -> str:
        """Where there are several hosts, each copy is called by its own; the name of this one."""
        if not any(copy.host for copy in self.copies.values()):
            return ""
        for copy in self.copies.values():
            copy.host = str(copy.identity["name"])
        return str(self.identity["name"])

    def address_for(self, rank: int) -> str:
        """Where a rank finds rank 0's processes: the way by which its copy came."""
        copy = self.copies.get(rank)
        if copy is None or host.same_network(self.identity, copy.identity):
            return "127.0.0.1"
        return copy.link.address

    def gather(
        self,
        server: socket.socket,
        deadline: float,
        interrupt: Interrupt,
        log: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> tuple[str, str] | None:
        """Lets every copy come. Returns the finding where they do not, or nothing."""
        end = time.monotonic() + deadline
        say = time.monotonic() + _NOTICE
        while not self.whole and interrupt.signal is None:
            now = time.monotonic()
            if now > end:
                return "GC0702", self._missing(deadline)
            if now > say:
                say = now + 3 * _NOTICE
                port = server.getsockname()[1]
                absent = numbered(self._absent())
                notice(f"rank 0 waits for {absent} at {self.launch.address} port {port}")
            waiting = select.poll()
            links = [*self._strangers, *(copy.link for copy in self.copies.values())]
            for number in (server.fileno(), *(link.fileno() for link in links if not link.closed)):
                waiting.register(number, select.POLLIN)
            ready = {number for number, _ in waiting.poll(_TICK * 1000)}
            if server.fileno() in ready:
                problem = self._accept(server)
                if problem:
                    return problem
            for link, since in list(self._strangers.items()):
                problem = self._greet(link, since, log)
                if problem:
                    return problem
            for rank, copy in list(self.copies.items()):
                if copy.link.fileno() in ready:
                    copy.pump()
                lost = copy.lost()
                if lost:
                    # It has no place in what is looked at without it.
                    del self.copies[rank]
                    return "GC0706", f"while the others came, {lost}"
        for link in self._strangers:
            link.close()
        self._strangers.clear()
        return None

    def _accept(self, server: socket.socket) -> tuple[str, str] | None:
        """All that have come in this moment."""
        server.setblocking(False)
        while True:
            try:
                sock, _ = server.accept()
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    have = f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files"
                    return "GC0407", f"{have}, and {self.launch.size} copies come to rank 0"
                # It has gone already.
                continue
            self._strangers[Link(sock)] = time.monotonic()

    def _greet(
        self, link: Link, since: float, log: Callable[[str], None]
    ) -> tuple[str, str] | None:
        messages = link.receive()
        if not messages:
            if link.closed or time.monotonic() - since > _GREETING:
                self._heard.append(f"{link.peer}: {link.closed or 'it said nothing'}")
                del self._strangers[link]
                link.close()
            return None
        del self._strangers[link]
        hello = messages[0]
        ours = hello.get("token") == self.launch.token
        if ours and hello.get("hello") != PROTOCOL:
            spoken = hello.get("hello")
            return self._refuse(link, "GC0707", f"a copy speaks protocol {spoken}, not {PROTOCOL}")
        if link.closed:
            # It has given up waiting; it will come again.
            return None
        if not ours or not _is_whole(hello):
            # Another job has this port among its own, or something else speaks JSON lines here.
            self._heard.append(f"{link.peer}: a copy of another launch")
            link.send(stranger=True)
            link.close()
            return None
        problem = self._judge(hello)
        if problem:
            return self._refuse(link, *problem)
        link.understood = True
        copy = Copy(link, hello, self.identity)
        self.copies[copy.rank] = copy
        if not host.same_network(self.identity, copy.identity):
            self.interface = self.interface or host.interface_of(link.address)
        link.send(welcome=True)
        self._beats.links.append(link)
        log(f"rank {copy.rank} has come from {link.peer}")
        return None

    @staticmethod
    def _refuse(link: Link, finding_id: str, measured: str) -> tuple[str, str]:
        link.send(refused=[finding_id, measured])
        link.close()
        return finding_id, measured

    def _judge(self, hello: Mapping[str, Any]) -> tuple[str, str] | None:
        rank, launch = hello["rank"], self.launch
        who = f"the copy on {hello['identity']['name']} (pid {hello['identity']['pid']})"
        if hello["size"] == launch.size and not 0 < rank < launch.size:
            return "GC0707", f"{who}: rank {rank} of {launch.size}"
        if hello["size"] != launch.size:
            return "GC0707", f"{who}: {hello['size']} ranks, rank 0 knows of {launch.size}"
        if hello["version"] != __version__:
            return "GC0707", f"{who}: gpucomm-selftest {hello['version']}, rank 0 is {__version__}"
        known = self.copies.get(rank)
        if known is not None and known.identity == hello["identity"]:
            # It gave up waiting for the answer and came again.
            known.link.close()
        elif known is not None:
            first = known.identity
            return "GC0705", (
                f"rank {rank} is claimed by pid {first['pid']} on {first['name']} and by pid "
                f"{hello['identity']['pid']} on {hello['identity']['name']}"
            )
        return None

    def _absent(self) -> list[int]:
        return [rank for rank in range(1, self.launch.size) if rank not in self.copies]

    def _missing(self, deadline: float) -> str:
        launch = self.launch
        said = (
            f"{numbered(self._absent())} of {launch.size} did not come to {launch.address} port "
            f"{launch.ports[0]} within {deadline:g} s"
        )
        if not host.is_own(launch.address):
            said += f"; {launch.address} is no address of this host ({self.identity['name']})"
        if self._heard:
            said += f"; others that called: {', '.join(dict.fromkeys(self._heard))}"
        return said

    def end(self, code: int) -> None:
        """Tells every copy how it ended, and waits a moment until they have heard it."""
        self._beats.stop.set()
        links = [copy.link for copy in self.copies.values()] + list(self._strangers)
        for link in links:
            link.send(end=code)
            try:
                link.sock.shutdown(socket.SHUT_WR)
            except OSError:
                link.close()
        end = time.monotonic() + _FAREWELL
        # What is unread when a socket closes takes along what was sent last.
        while time.monotonic() < end:
            waiting = {link.fileno(): link for link in links if not link.closed}
            if not waiting:
                break
            poll = select.poll()
            for number in waiting:
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll(_TICK * 1000):
                waiting[number].receive()
        for link in links:
            link.close()
