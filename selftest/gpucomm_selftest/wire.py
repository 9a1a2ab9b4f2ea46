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
_FIRST_LINE = 2**20
# As much as is read before the caller looks at its deadline again.
_AT_ONCE = 4 * 2**20


class Link:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = ""  # why nothing comes any more
        self.understood = False  # whether the other end has said that it is a self-test
        self._mute = False  # what is sent does not arrive; what has come can still be read
        self.heard = time.monotonic()
        self._lock = threading.Lock()
        self._partial = bytearray()
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
        if self.closed or self._mute:
            return False
        try:
            self.sock.sendall((json.dumps(message) + "\n").encode())
        except OSError:
            # Half a message may have gone: nothing can follow it.
            self._mute = True
        return not self._mute

    def receive(self) -> list[Message]:
        """What has come, without waiting."""
        messages, self._unread = self._unread, []
        much = 0
        while not self.closed and much < _AT_ONCE:
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
            much += len(data)
            self._partial += data
            if b"\n" in data:
                *lines, self._partial = self._partial.split(b"\n")
                try:
                    messages += [self._parse(line) for line in lines]
                except (ValueError, RecursionError):
                    self.closed = "it does not speak like a self-test"
            if len(self._partial) > (_LONGEST if self.understood else _FIRST_LINE):
                self.closed = "it does not speak like a self-test"
        return messages

    def give_back(self, messages: list[Message]) -> None:
        """What came with another message and is for whoever reads next."""
        self._unread += messages

    @staticmethod
    def _parse(line: bytearray) -> Message:
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
