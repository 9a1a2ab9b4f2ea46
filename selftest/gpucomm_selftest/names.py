"""The variables that a collective library knows, read from the library itself.

The names stand as strings in its section .rodata, and nowhere else near as few: so the list is
exact for any NCCL or RCCL that is really loaded, and there is no table to keep up to date. Must not
load the library and must not import torch.
"""

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(rb"(?<![A-Za-z0-9_])((?:NCCL|RCCL)_[A-Z0-9_]{2,})(?=[\x00 ])")
# The magic number, 64 bits, little endian.
_START = b"\x7fELF\x02\x01"
# ELF64: offsets of the fields of the header and of a section, little endian.
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQ")


def _sections(data: "mmap.mmap | bytes") -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each section."""
    start, entry, count, names_at = _HEADER.unpack_from(data, 0)
    sections = [_SECTION.unpack_from(data, start + entry * at) for at in range(count)]
    names = sections[names_at][4]
    for name, _, _, _, offset, size in sections:
        begin = names + name
        end = data.find(b"\0", begin)
        yield data[begin:end].decode("ascii", "replace"), offset, size


def known_names(path: Path) -> frozenset[str]:
    """Every NCCL_ and RCCL_ name in the constants of this library. Raises OSError where the file
    cannot be read or is no 64-bit ELF file."""
    if path.stat().st_size < _HEADER.size:
        raise OSError(f"{path}: not a 64-bit ELF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(_START)] != _START:
            raise OSError(f"{path}: not a 64-bit ELF file")
        try:
            found = [
                match[1].decode()
                for name, offset, size in _sections(data)
                if name == ".rodata"
                for match in _NAME.finditer(data[offset : offset + size])
            ]
        except (struct.error, IndexError) as error:
            raise OSError(f"{path}: its section table is damaged") from error
    return frozenset(found)
