"""Remembers that the launcher was told to stop, so that it ends its ranks and still reports.

A handler that raised could do so between the start of a process and its registration; this one
only takes note, and the launcher looks at every turn of its loop.
"""

import signal
from types import FrameType


class Interrupt:
    def __init__(self) -> None:
        self.signal: int | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and background shells ignore some on purpose: leave those ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
