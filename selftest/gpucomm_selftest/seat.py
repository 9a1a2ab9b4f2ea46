"""Where a rank process sits: what the crew can do with it, and the one that is a child of ours.

The other kind of seat is in another copy of the self-test (meeting.py). A seat carries bytes and
tells how its process ended; it must not know what a stage does, and must not import torch.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from gpucomm_selftest import crumbs
from gpucomm_selftest.crumbs import Crumb
from gpucomm_selftest.environment import rank_environment
from gpucomm_selftest.host import state_of
from gpucomm_selftest.transports import Folder

# A json.py or torch.py in the current directory must not be taken for the real one, and before
# Python 3.11 nothing else keeps that directory off the path.
_PROGRAM = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from gpucomm_selftest.rank import main; main(sys.argv[2:])"
)

# As much as is read of one pipe before the others have their turn.
_AT_ONCE = 2**20


class Seat(Protocol):
    """One process for one rank."""

    pid: int
    host: str  # empty where all processes are on one host
    signal: int | None
    status: int | None
    lost: str  # why nobody can tell any more
    said_bye: bool  # its copy got a signal and said so

    def sources(self) -> list[int]:
        """The descriptors to wait for; one that has come to its end is no longer among them."""

    def sinks(self) -> list[int]:
        """The descriptors that have not taken all that was told."""

    def drain(self) -> tuple[bytes, bytes]:
        """What came on its channel, and what it printed, without waiting."""

    def tell(self, command: Mapping[str, Any]) -> bool:
        """Whether it takes commands."""

    def look(self) -> None:
        """Notes its end without reaping it."""

    def state(self) -> str:
        """The letter of its /proc/PID/stat; `?` where its copy has gone silent."""

    def crumb(self) -> Crumb:
        """The last operation that it entered."""

    def ask_state(self) -> bool:
        """Whether its state and crumb come later, and have been asked for."""

    def ask_stacks(self) -> None:
        """Lets it print its Python stacks, and say what torch has recorded."""

    def kill(self) -> None:
        """Kills it and all that it started."""

    def log(self) -> str:
        """What the collective library wrote of itself, where that was kept."""

    def close(self) -> None:
        """After its end: gives back what it held."""


class Child:
    """A process of this copy, in a session of its own."""

    lost = ""
    said_bye = False

    def __init__(
        self,
        *,
        rank: int,
        role: str,
        size: int,
        environment: Mapping[str, str],
        host: str = "",
        folder: Folder | None = None,
    ) -> None:
        self.host = host
        self.signal: int | None = None
        self.status: int | None = None
        self._folder = folder
        memory = crumbs.create()
        channel, writing = os.pipe()
        waking, self._wake = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _PROGRAM,
                    "gpucomm_selftest.rank",
                    *("--role", role),
                    *("--rank", str(rank)),
                    *("--world", str(size)),
                    *("--channel", str(writing)),
                    *("--crumbs", str(memory)),
                    *("--wake", str(waking)),
                    *("--parent", str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writing, memory, waking),
                start_new_session=True,
                env=rank_environment(os.environ, environment),
            )
            self._crumbs = crumbs.Reader(memory)
        except BaseException:
            os.close(channel)
            os.close(self._wake)
            raise
        finally:
            os.close(writing)
            os.close(waking)
            os.close(memory)
        self.pid = self._process.pid
        # Two open pipes, each until its end.
        self._channel: int | None = channel
        self._output: int | None = None
        os.set_blocking(channel, False)
        if self._process.stdout is not None:
            self._output = self._process.stdout.fileno()
            os.set_blocking(self._output, False)
        self._owned = channel
        # What it has been told and has not read: it may be stopped, and nobody waits for it.
        self._unread = bytearray()
        self._commands: int | None = None
        if self._process.stdin is not None:
            self._commands = self._process.stdin.fileno()
            os.set_blocking(self._commands, False)

    def sources(self) -> list[int]:
        return [one for one in (self._channel, self._output) if one is not None]

    def sinks(self) -> list[int]:
        return [self._commands] if self._commands is not None and self._unread else []

    @staticmethod
    def _read(source: int | None) -> tuple[bytes, int | None]:
        """What is there, and the source where it goes on."""
        made = b""
        while source is not None and len(made) < _AT_ONCE:
            try:
                data = os.read(source, 65536)
            except BlockingIOError:
                break
            if not data:
                return made, None
            made += data
        return made, source

    def drain(self) -> tuple[bytes, bytes]:
        self._flush()
        said, self._channel = self._read(self._channel)
        printed, self._output = self._read(self._output)
        return said, printed

    def tell(self, command: Mapping[str, Any]) -> bool:
        self._unread += (json.dumps(command) + "\n").encode()
        self._flush()
        return self._commands is not None

    def _flush(self) -> None:
        while self._unread and self._commands is not None:
            try:
                del self._unread[: os.write(self._commands, self._unread[:65536])]
            except BlockingIOError:
                return
            except OSError:
                # It has gone: a look will say how.
                self._commands = None

    def look(self) -> None:
        """As long as it is a zombie, its process group id cannot become somebody else's."""
        if self.signal is not None or self.status is not None:
            return
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            info = os.waitid(os.P_PID, self.pid, options)
        except ChildProcessError:
            self.status = -1
            return
        if info is None:
            return
        if info.si_code == os.CLD_EXITED:
            self.status = info.si_status
        else:
            self.signal = info.si_status

    def state(self) -> str:
        return state_of(self.pid)

    def crumb(self) -> Crumb:
        return self._crumbs.read()

    def ask_state(self) -> bool:
        return False

    def ask_stacks(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)
        try:
            os.write(self._wake, b"x")
        except OSError:
            return  # it has gone

    def kill(self) -> None:
        """The whole group, also where its leader has gone: it may have started others."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def log(self) -> str:
        return self._folder.texts().get(self.pid, "") if self._folder else ""

    def close(self) -> None:
        if self.signal is not None or self.status is not None:
            self._process.wait()
        os.close(self._owned)
        os.close(self._wake)
        self._crumbs.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
