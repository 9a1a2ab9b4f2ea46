"""Where a rank is, in memory that it shares with its copy of the self-test.

The rank writes before it enters an operation, without a system call and without waiting for
anybody; the copy reads at any time, also when the rank hangs, is stopped, or was killed in the
middle of writing. Two slots take turns: one is filled, and then one byte says that it counts.
"""

import mmap
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass

_SLOT = 512
_SIZE = 1 + 2 * _SLOT
# Checksum of the rest, operations entered, length of the stage, length of the operation.
_HEAD = struct.Struct("<IQHH")
_TRIES = 50


@dataclass(frozen=True, kw_only=True)
class Crumb:
    """The last operation that a rank entered, and how many it has entered in this stage."""

    stage: str = ""
    entered: int = 0
    operation: str = ""


def create() -> int:
    """Memory for one rank, as a descriptor that it can inherit. Raises OSError."""
    descriptor = _anonymous()
    os.ftruncate(descriptor, _SIZE)
    return descriptor


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gpucomm-selftest-crumbs")
    # A Python that was built against glibc before 2.27 lacks it, such as that of conda.
    problem: OSError | None = None
    for folder in (None, "/dev/shm"):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                return os.dup(file.fileno())
        except OSError as error:
            problem = error
    raise problem or OSError("no memory that can be shared")


class Writer:
    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._stage = b""
        self._entered = 0

    def begin(self, stage: str) -> None:
        """A stage in which nothing has been entered yet."""
        self._stage, self._entered = stage.encode()[:64], 0
        self._write(b"")

    def enter(self, operation: str) -> None:
        self._entered += 1
        self._write(operation.encode("utf-8", "replace")[: _SLOT - _HEAD.size - 64])

    def _write(self, operation: bytes) -> None:
        other = 1 - self._memory[0]
        rest = struct.pack("<QHH", self._entered, len(self._stage), len(operation))
        rest += self._stage + operation
        start = 1 + other * _SLOT
        whole = struct.pack("<I", zlib.crc32(rest)) + rest
        self._memory[start : start + len(whole)] = whole
        self._memory[0] = other


class Reader:
    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)

    def read(self) -> Crumb:
        """The last whole crumb; one without a stage where there is none yet."""
        for _ in range(_TRIES):
            start = 1 + self._memory[0] * _SLOT
            slot = self._memory[start : start + _SLOT]
            sum_, entered, stage, operation = _HEAD.unpack_from(slot)
            end = _HEAD.size + stage + operation
            # A rank that is fast has begun to write this slot again: the next try sees the other.
            if end <= _SLOT and zlib.crc32(slot[4:end]) == sum_ and stage:
                text = slot[_HEAD.size : end].decode("utf-8", "replace")
                return Crumb(stage=text[:stage], entered=entered, operation=text[stage:])
        return Crumb()

    def close(self) -> None:
        self._memory.close()
