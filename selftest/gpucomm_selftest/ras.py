"""Asks NCCL's own service for reliability (RAS) what it knows of the ranks of a job that hangs.

NCCL since 2.24 answers on one TCP port per host, in text, whatever state its collectives are in:
`verbose status` is one of the commands of its protocol (NCCL user guide, "RAS"; the others stand
in src/ras/client_support.cc). A client here only reads, within a deadline, and takes any answer or
none.
"""

import socket
import time
from collections.abc import Mapping

SINCE = 22400
DEFAULT = ("localhost", 28028)
DEADLINE = 3.0

# The service asks the other ranks, and waits five seconds for one that is stopped unless it is told
# otherwise: longer than a report may take. It answers line by line, so that all go at once.
_COMMAND = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n"
_REPLIES = ("SERVER PROTOCOL ", "OK")
_MOST = 64 * 1024


def address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the service listens; nothing where it is switched off or its address is no address."""
    if environ.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    given = environ.get("NCCL_RAS_ADDR", "").strip()
    if not given:
        return DEFAULT
    host, colon, port = given.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


def status(where: tuple[str, int], deadline: float = DEADLINE) -> list[str]:
    """What the service says, line by line: no lines where nobody answers."""
    end = time.monotonic() + deadline
    answer = b""
    try:
        with socket.create_connection(where, timeout=deadline) as connection:
            # Without half-closing: the service takes an end of input for a client that has gone.
            connection.sendall(_COMMAND)
            while len(answer) < _MOST and (left := end - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(8192)
                if not part:
                    break
                answer += part
    except OSError as error:
        # Nobody there, or it went away in the middle: what it said until then is worth having.
        answer += f"\n(no more: {error})".encode() if answer else b""
    lines = [line.rstrip() for line in answer.decode("utf-8", "replace").splitlines()]
    replies = 0
    while replies < min(2, len(lines)) and lines[replies].startswith(_REPLIES):
        replies += 1
    return lines[replies:]
