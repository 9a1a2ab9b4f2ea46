"""Messages between the copies of the self-test: one JSON object on a line, over TCP.

It carries and does not understand. A link trusts its network as torch's own store does: the token
of a launch tells jobs apart, it keeps nobody out.
"""

import json
import select
import socket
import struct
import threading
import time
from typing import Any

Message = dict[str, Any]

PROTOCOL = 1
# How often each side says that it is there, and how long it may say nothing.
BEAT = 1.0
SILENCE = 20.0
# After this it is called silent where somebody asks, and before that nothing is done about it.
QUIET = 4.0
_SEND_LIMIT = int(SILENCE)
_LONGEST = 64 * 2**20
# A read of the line that greets: nobody else's protocol begins with so long a line.
_GREETING = 2**20


class Link:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = ""  # why nothing comes any more
        self.greeted = False
        self.heard = time.monotonic()
        self._lock = threading.Lock()
        self._partial = b""
        self._unread: list[Message] = []
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_LIMIT, 0))

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def silent(self) -> float:
        """For how long it has said nothing, in seconds."""
        return time.monotonic() - self.heard

    @property
    def address(self) -> str:
        """The address of this end."""
        return str(self.sock.getsockname()[0]).removeprefix("::ffff:")

    @property
    def peer(self) -> str:
        """The address of the other end."""
        try:
            return str(self.sock.getpeername()[0]).removeprefix("::ffff:")
        except OSError:
            return "a peer that has gone"

    def send(self, **message: Any) -> bool:
        """Whether it could be sent. The other end may be stopped: then this gives up."""
        with self._lock:
            return self._send(message)

    def beat(self, **message: Any) -> None:
        """Says that this end is there, unless something is being said already."""
        if self._lock.acquire(blocking=False):
            try:
                self._send({"beat": True, **message})
            finally:
                self._lock.release()

    def _send(self, message: Message) -> bool:
        if self.closed:
            return False
        try:
            self.sock.sendall((json.dumps(message) + "\n").encode())
        except OSError as error:
            self.closed = error.strerror or str(error) or "the connection is closed"
            return False
        return True

    def receive(self) -> list[Message]:
        """What has come, without waiting."""
        messages, self._unread = self._unread, []
        while not self.closed:
            try:
                data = self.sock.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                self.closed = error.strerror or str(error)
                break
            if not data:
                self.closed = "the connection was closed"
                break
            self.heard = time.monotonic()
            *lines, self._partial = (self._partial + data).split(b"\n")
            try:
                messages += [self._parse(line) for line in lines]
            except ValueError:
                self.closed = "it does not speak like a self-test"
            if len(self._partial) > (_LONGEST if self.greeted else _GREETING):
                self.closed = "it does not speak like a self-test"
        return messages

    def give_back(self, messages: list[Message]) -> None:
        """What came with another message and is for whoever reads next."""
        self._unread += messages

    @staticmethod
    def _parse(line: bytes) -> Message:
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("no object")
        return message

    def wait(self, seconds: float) -> list[Message]:
        """What comes within a time; nothing where nothing does."""
        if not self.closed and not self._unread:
            waiting = select.poll()
            waiting.register(self.sock, select.POLLIN)
            waiting.poll(max(0.0, seconds) * 1000)
        return self.receive()

    def close(self) -> None:
        self.closed = self.closed or "closed here"
        self.sock.close()
