"""Where processes can be started: in this copy of the self-test, or in another one (meeting.py)."""

import os
from collections.abc import Mapping
from typing import Protocol

from gpucomm_selftest.seat import Child, Seat
from gpucomm_selftest.transports import Folder


class Place(Protocol):
    host: str  # as people call it; empty where all places are on one host

    def start(
        self, *, rank: int, role: str, size: int, environment: Mapping[str, str], capture: bool
    ) -> Seat:
        """A process with this environment added; `capture` keeps what its library writes."""


class Here:
    def __init__(self) -> None:
        # Set where other places are on other hosts.
        self.host = ""
        self._folder: Folder | None = None

    def start(
        self, *, rank: int, role: str, size: int, environment: Mapping[str, str], capture: bool
    ) -> Child:
        settings: dict[str, str] = {}
        if capture:
            self._folder = self._folder or Folder()
            settings = self._folder.environment(os.environ)
        return Child(
            rank=rank,
            role=role,
            size=size,
            environment={**environment, **settings},
            host=self.host,
            folder=self._folder if capture else None,
        )

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None
