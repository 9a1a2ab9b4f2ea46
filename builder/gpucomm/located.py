"""Reads a YAML file into plain data and remembers the line of every key.

Owns: syntax errors, duplicate keys, and the way from a path in the data back to a line. It knows
nothing about the matrix. Scalars that YAML would turn into numbers keep their text beside them, so
that a message can show what was written (`3.10`) and not what it became (`3.1`).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

Location: TypeAlias = tuple[str | int, ...]
_TAG = "tag:yaml.org,2002:"
_ESCAPE = re.compile(r"\\U([0-9a-fA-F]{8})")
_NOT_TEXT = frozenset(f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null"))
_WORDS: Mapping[str, Mapping[str, bool | None]] = {
    "bool": {"true": True, "false": False},
    "null": {"": None, "~": None, "null": None},
}


@dataclass(frozen=True, kw_only=True)
class Located:
    """Plain data of one YAML file with the line (from 1) of every path in it."""

    file: str
    data: Any
    lines: dict[Location, int]
    texts: dict[Location, str]
    faults: tuple[str, ...]

    def line(self, path: Location) -> int:
        """Line of the deepest part of `path` that the file has."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1

    def fault(self, path: Location, message: str) -> str:
        """One line `file:line: where: message`."""
        where = ".".join(str(part) for part in path)
        return f"{self.file}:{self.line(path)}: {where + ': ' if where else ''}{message}"


def read(path: Path) -> Located:
    """Read `path`. Faults that do not stop the reading are kept in `Located.faults`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Located(file=path.name, data=None, lines={}, texts={}, faults=(f"{path}: {error}",))
    return parse(text, path.name)


def parse(text: str, file: str) -> Located:
    """Parse `text`; `file` is the name that messages carry."""
    reader = _Reader(file)
    try:
        root = _compose(text)
        data = reader.value(root, ()) if root is not None else None
    except _Broken as error:
        fault = f"{file}:{error.line}: not valid YAML: {error.problem}"
        return Located(file=file, data=None, lines={}, texts={}, faults=(fault,))
    except RecursionError:
        fault = f"{file}:1: nested too deeply"
        return Located(file=file, data=None, lines={}, texts={}, faults=(fault,))
    return Located(
        file=file,
        data=data,
        lines=reader.lines,
        texts=reader.texts,
        faults=tuple(reader.faults),
    )


class _Broken(Exception):
    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = problem
        super().__init__(problem)


def _compose(text: str) -> Node | None:
    """The node tree of `text`. Raises _Broken with the line for whatever stops the parser."""
    yaml = YAML(typ="rt")
    # YAML allows an anchor's name to be used again; that is not worth a warning on stderr.
    yaml.composer.warn_double_anchors = False
    try:
        root: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Broken(mark.line + 1 if mark else 1, error.problem or error.context) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Broken(line, f"the control character {error.character:#04x}") from None
    except (ValueError, OverflowError):
        beyond = (m.start() for m in _ESCAPE.finditer(text) if int(m[1], 16) > sys.maxunicode)
        line = text.count("\n", 0, next(beyond, 0)) + 1
        raise _Broken(line, "an escape that names no character") from None
    return root


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._open: set[int] = set()
        self.lines: dict[Location, int] = {}
        self.texts: dict[Location, str] = {}
        self.faults: list[str] = []

    def value(self, node: Node, path: Location) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if isinstance(node, ScalarNode):
            self.texts[path] = node.value
            try:
                return _scalar(node)
            except (ValueError, KeyError):
                kind = str(node.tag).removeprefix(_TAG)
                self._fault(line, path, f"{node.value} cannot be read as {kind}; quote it")
                return node.value
        if id(node) in self._open:
            self._fault(line, path, "an alias of what it stands in")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        raise AssertionError(node)

    def _fault(self, line: int, path: Location, message: str) -> None:
        where = ".".join(map(str, path))
        self.faults.append(f"{self._file}:{line}: {where + ': ' if where else ''}{message}")

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self._fault(line, path, "a key that is a list or a mapping; quote it")
                continue
            key = str(key_node.value)
            if str(key_node.tag) in _NOT_TEXT:
                self._fault(line, path, f"the key {key} is not text; quote it")
            here = (*path, key)
            if key in result:
                self._fault(line, here, f"duplicate key, first on line {self.lines[here]}")
                continue
            self.lines[here] = line
            result[key] = self.value(value_node, here)
        return result


def _scalar(node: ScalarNode) -> str | int | float | bool | None:
    """The value of a scalar. Raises ValueError or KeyError when it is not what its tag says."""
    text = str(node.value)
    match str(node.tag).removeprefix(_TAG):
        case "int":  # 010 is 8 or 10, by the version of YAML: int() takes it for neither
            return int(text.replace("_", ""), 0)
        case "float":
            number = float(text.replace("_", ""))
            if not math.isfinite(number):
                raise ValueError(text)
            return number
        case "bool" | "null" as kind:
            return _WORDS[kind][text.lower()]
    return text
