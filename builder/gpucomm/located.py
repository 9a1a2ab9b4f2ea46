"""Reads a YAML file into plain data and remembers the place of every key and of every item.

Owns: syntax errors, duplicate keys, and the way from a path in the data back to a line and column.
It knows nothing about the matrix. Scalars that YAML would turn into numbers keep their text beside
them, so that a message can show what was written (`3.10`) and not what it became (`3.1`).

Any text is read in time linear in its length: what aliases stand for counts as if it were written
out, and a file with too many values or too deep a nesting is one fault.
"""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

Location: TypeAlias = tuple[str | int, ...]
LIMIT = 200_000
DEPTH = 64
_TAG = "tag:yaml.org,2002:"
_KINDS = {f"{_TAG}{kind}": kind for kind in ("int", "float", "bool", "null")}
_WORDS: Mapping[str, Mapping[str, bool | None]] = {
    "bool": {"true": True, "false": False},
    "null": {"": None, "~": None, "null": None},
}
_LONGEST_WORD = 100  # characters of a number, or of a word such as `true`
_LONGEST_SHOWN = 200  # characters of the file's own text in one message
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[\s\S])")
_EMPTY = '""'
_NO_CHARACTER = "an escape that names no character"


class Mark(NamedTuple):
    """A place in a file; both numbers count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


_START = Mark(1, 1)


@dataclass(frozen=True, kw_only=True)
class Located:
    """Plain data of one YAML file with the place of every path in it.

    The place of a mapping's entry is its key; that of a list's item is the item, or the alias that
    stands for it. `data` None and no `marks` mean that nothing could be read.
    """

    file: str
    data: Any
    marks: dict[Location, Mark]
    texts: dict[Location, str]
    faults: tuple[str, ...]

    def mark(self, path: Location) -> Mark:
        """Place of the deepest part of `path` that the file has."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]]
        return _START

    def fault(self, path: Location, message: str) -> str:
        """One line `file:line:column: where: message`."""
        return _fault(self.file, self.mark(path), path, message)


def read(path: Path) -> Located:
    """Read `path`. Faults that do not stop the reading are kept in `Located.faults`.

    Of a file that cannot be opened, the one fault is `path: why`: it has no place to name.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        return _nothing(path.name, f"{path}: {error}")
    try:
        return parse(raw.decode("utf-8"), path.name)
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8").removeprefix("\ufeff")
        message = f"not UTF-8: the byte {raw[error.start]:#04x}"
        return _nothing(path.name, _fault(path.name, _Places(before).end, (), message))


def parse(text: str, file: str) -> Located:
    """Parse `text`; `file` is the name that messages carry. Columns leave a byte order mark out."""
    text = text.removeprefix("\ufeff")
    places = _Places(text)
    reader = _Reader(file, places)
    try:
        root = _compose(text)
        data = reader.value(root, ()) if root is not None else None
    except _Stopped as stop:
        return _nothing(file, _fault(file, places.mark(stop.index), stop.path, stop.message))
    return Located(
        file=file,
        data=data,
        marks=reader.marks,
        texts=reader.texts,
        faults=tuple(reader.faults),
    )


def _nothing(file: str, fault: str) -> Located:
    return Located(file=file, data=None, marks={}, texts={}, faults=(fault,))


def _fault(file: str, mark: Mark, path: Location, message: str) -> str:
    where = _short(".".join(_short(str(part)) for part in path))
    return f"{file}:{mark}: {_plain(f'{where}: {message}' if where else message)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _plain(text: str) -> str:
    """`text` as one line that is safe to print: an escape in a key can name any character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Places:
    """Turns the index of a character into its place."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in _LINE_BREAK.finditer(text))]
        self.end = self.mark(len(text))

    def mark(self, index: int) -> Mark:
        line = bisect_right(self._starts, index)
        return Mark(line, index - self._starts[line - 1] + 1)


class _Stopped(Exception):
    """Nothing can be read: `message` says why, `index` is the character where that shows."""

    def __init__(self, index: int, message: str, path: Location = ()) -> None:
        self.index = index
        self.message = message
        self.path = path
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class _Alias:
    """Stands where the file has `*name`, so that the place of the alias is not lost."""

    start_mark: Any
    node: Node


class _Composer(Composer):
    """The parser's composer, which also knows where an alias is and where a failure was."""

    def get_single_node(self) -> Any:
        try:
            return super().get_single_node()
        except (MarkedYAMLError, _Stopped):
            raise
        except Exception as error:  # such as AssertionError for `%YAML 1.3`
            reader = self.loader.reader
            escape = _ESCAPE.match(reader.buffer, max(reader.index - 2, 0))
            if escape and escape[2] and int(escape[2], 16) > sys.maxunicode:
                raise _Stopped(escape.start(), f"not valid YAML: {_NO_CHARACTER}") from None
            last = self.parser.last_event  # the reader may be far ahead of what is wrong
            message = f"not valid YAML: the parser stops with {_short(str(error))!r}"
            raise _Stopped(last.end_mark.index if last else 0, message) from None

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        node = super().compose_node(parent, index)
        return _Alias(event.start_mark, node) if isinstance(event, AliasEvent) else node

    def compose_scalar_node(self, anchor: Any) -> Any:
        event = self.parser.peek_event()
        if _SURROGATE.search(event.value):
            start, end = event.start_mark.index, event.end_mark.index
            escapes = _ESCAPE.finditer(self.loader.reader.buffer, start, end)
            halves = (m.start() for m in escapes if _is_surrogate(m[1] or m[2] or "0"))
            raise _Stopped(next(halves, start), f"not valid YAML: {_NO_CHARACTER}")
        return super().compose_scalar_node(anchor)


def _is_surrogate(digits: str) -> bool:
    return 0xD800 <= int(digits, 16) <= 0xDFFF


def _compose(text: str) -> Node | None:
    """The node tree of `text`, aliases as _Alias. Raises _Stopped for whatever stops the parser."""
    # Not "rt": it puts "\a" into the text of `>`, and some comments make it fail.
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    yaml.max_depth = DEPTH
    # YAML allows an anchor's name to be used again; that is not worth a warning on stderr.
    yaml.composer.warn_double_anchors = False
    try:
        root: Node | None = yaml.compose(text)
    except MaxDepthExceededError as error:
        raise _Stopped(error.problem_mark.index, "nested too deeply") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {_short(error.problem or error.context)}"
        raise _Stopped(mark.index if mark else 0, message) from None
    except ReaderError as error:
        message = f"not valid YAML: the control character {error.character:#04x}"
        raise _Stopped(error.position, message) from None
    return root


class _Reader:
    def __init__(self, file: str, places: _Places) -> None:
        self._file = file
        self._places = places
        self._open: set[int] = set()
        self._values = 0
        self.marks: dict[Location, Mark] = {}
        self.texts: dict[Location, str] = {}
        self.faults: list[str] = []
        self._said: set[tuple[Mark, str]] = set()

    def value(self, node: Node | _Alias, path: Location) -> Any:
        index = node.start_mark.index
        self._count(index, path)
        if path not in self.marks:
            self.marks[path] = self._places.mark(index)
        node = node.node if isinstance(node, _Alias) else node
        if isinstance(node, ScalarNode):
            return self._word(node, path)
        if id(node) in self._open:
            self._fault(self.marks[path], path, "an alias of what it stands in")
            return None
        if len(path) >= DEPTH:
            raise _Stopped(index, "nested too deeply", path)
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        raise AssertionError(node)

    def _count(self, index: int, path: Location) -> None:
        self._values += 1
        if self._values > LIMIT:
            message = f"more than {LIMIT} values, counting an alias as what it stands for"
            raise _Stopped(index, message, path)

    def _fault(self, mark: Mark, path: Location, message: str) -> None:
        """Note a fault; one that aliases repeat is said once."""
        if (mark, message) not in self._said:
            self._said.add((mark, message))
            self.faults.append(_fault(self._file, mark, path, message))

    def _word(self, node: ScalarNode, path: Location) -> Any:
        text = self.texts[path] = str(node.value)
        kind = _KINDS.get(str(node.tag))
        if kind is None:
            return text
        try:
            return _value(kind, text)
        except (ValueError, KeyError):
            message = f"{_short(text) or _EMPTY} cannot be read as {kind}; quote it"
            self._fault(self.marks[path], path, message)
            return text

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            index = key_node.start_mark.index
            mark = self._places.mark(index)
            key_node = key_node.node if isinstance(key_node, _Alias) else key_node
            if not isinstance(key_node, ScalarNode):
                self._count(index, path)
                self._fault(mark, path, "a key that is a list or a mapping; quote it")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if str(key_node.tag) in _KINDS:
                self._fault(mark, path, f"the key {_short(key) or _EMPTY} is not text; quote it")
            if key in result:
                self._count(index, here)
                first = self.marks[here].line
                self._fault(mark, here, f"duplicate key, first on line {first}")
                continue
            self.marks[here] = mark
            result[key] = self.value(value_node, here)
        return result


def _value(kind: str, text: str) -> int | float | bool | None:
    """What `text` is as `kind`. Raises ValueError or KeyError when it is no such thing."""
    if len(text) > _LONGEST_WORD:
        raise ValueError(text)
    match kind:
        case "int":  # 010 is 8 or 10, by the version of YAML: int() takes it for neither
            return int(text.replace("_", ""), 0)
        case "float":
            number = float(text.replace("_", ""))
            if not math.isfinite(number):
                raise ValueError(text)
            return number
    return _WORDS[kind][text.lower()]
