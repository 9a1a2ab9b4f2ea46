"""Reads the dynamic symbols of a shared object: what it defines, what it needs, where it looks.

Pure on bytes: only the headers and three sections are touched, so that a library of a gigabyte
that is mapped costs a few pages. It must not load the object and must not follow a path.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: every platform that NCCL and RCCL have
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NOTE = struct.Struct("<III")

_DYNSYM, _DYNAMIC_SECTION, _NOTE_SECTION = 11, 6, 7
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_WEAK = 2
_BUILD_ID = 3

Data = bytes | mmap.mmap


class ElfError(Exception):
    """These bytes are no shared object that this module reads."""


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: int
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, kw_only=True)
class SharedObject:
    soname: str
    needs: tuple[str, ...]  # sonames
    search: tuple[str, ...]  # DT_RUNPATH, or else DT_RPATH, as written
    build_id: str
    defined: frozenset[str]
    # Without weak ones: the loader accepts that nobody defines them.
    undefined: frozenset[str]


def _sections(data: Data) -> list[_Section]:
    if len(data) < 64 or data[:6] != _MAGIC:
        raise ElfError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    if size != _SECTION.size or not count:
        raise ElfError("no section headers")
    sections = []
    for index in range(count):
        fields = _SECTION.unpack_from(data, table + index * size)
        section = _Section(
            name=fields[0], kind=fields[1], offset=fields[4], size=fields[5], link=fields[6]
        )
        sections.append(section)
    return sections


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    return strings[at : end if end >= 0 else None].decode("ascii", "replace")


def _strings(data: Data, sections: list[_Section], of: _Section) -> bytes:
    if of.link >= len(sections):
        raise ElfError("a section names strings that are not there")
    strings = sections[of.link]
    return data[strings.offset : strings.offset + strings.size]


def _entries(
    data: Data, sections: list[_Section], form: struct.Struct, kind: int
) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Each entry of the sections of a kind, with the strings that it refers to."""
    for section in sections:
        if section.kind == kind:
            strings = _strings(data, sections, section)
            raw = data[section.offset : section.offset + section.size]
            whole = len(raw) - len(raw) % form.size
            for fields in form.iter_unpack(raw[:whole]):
                yield strings, fields


def _build_id(data: Data, sections: list[_Section]) -> str:
    for section in sections:
        if section.kind != _NOTE_SECTION or section.size < _NOTE.size:
            continue
        name_size, size, kind = _NOTE.unpack_from(data, section.offset)
        begin = section.offset + _NOTE.size
        name = data[begin : begin + name_size]
        begin += (name_size + 3) & ~3
        if kind == _BUILD_ID and name == b"GNU\0":
            return data[begin : begin + size].hex()
    return ""


def parse(data: Data, prefixes: tuple[str, ...] = ()) -> SharedObject:
    """What is in it. With prefixes, of its symbols only those that begin with one of them.

    Raises ElfError.
    """
    starts = tuple(prefix.encode() for prefix in prefixes) or (b"",)
    try:
        sections = _sections(data)
        defined, undefined = set(), set()
        for strings, (name, info, _, where, _, _) in _entries(data, sections, _SYMBOL, _DYNSYM):
            if name and strings.startswith(starts, name):
                if where:
                    defined.add(_text(strings, name))
                elif info >> 4 != _WEAK:
                    undefined.add(_text(strings, name))
        tags: dict[int, list[str]] = {}
        for strings, (tag, value) in _entries(data, sections, _DYNAMIC, _DYNAMIC_SECTION):
            if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
                tags.setdefault(tag, []).append(_text(strings, value))
        build_id = _build_id(data, sections)
    except struct.error as error:
        raise ElfError(f"it is cut short: {error}") from error
    # The loader ignores DT_RPATH where there is a DT_RUNPATH.
    search = tags.get(_RUNPATH) or tags.get(_RPATH) or [""]
    return SharedObject(
        soname=tags.get(_SONAME, [""])[0],
        needs=tuple(tags.get(_NEEDED, [])),
        search=tuple(entry for entry in search[0].split(":") if entry),
        build_id=build_id,
        defined=frozenset(defined),
        undefined=frozenset(undefined),
    )


def section(data: Data, name: str) -> bytes:
    """The content of the first section of this name, or nothing. Raises ElfError."""
    try:
        sections = _sections(data)
        (names_at,) = struct.unpack_from("<H", data, 0x3E)
        if names_at >= len(sections):
            raise ElfError("its sections have no names")
        of = sections[names_at]
        names = data[of.offset : of.offset + of.size]
        for one in sections:
            if _text(names, one.name) == name:
                return data[one.offset : one.offset + one.size]
    except struct.error as error:
        raise ElfError(f"it is cut short: {error}") from error
    return b""


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file, without reading them. Raises ElfError and OSError."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ElfError("it is empty") from error
        with data:
            yield data


def read(path: Path, prefixes: tuple[str, ...] = ()) -> SharedObject:
    """That of a file, without reading all of it. Raises ElfError and OSError."""
    with mapped(path) as data:
        return parse(data, prefixes)
