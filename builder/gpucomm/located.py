"""Reads a YAML file into plain data and remembers the line of every key.

Owns: syntax errors, duplicate keys, and the way from a path in the data back to a line. It knows
nothing about the matrix. Scalars that YAML would turn into numbers keep their text beside them, so
that a message can show what was written (`3.10`) and not what it became (`3.1`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Location: TypeAlias = tuple[str | int, ...]


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
    yaml = YAML(typ="rt")
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        fault = f"{file}:{line}: not valid YAML: {error.problem or error.context}"
        return Located(file=file, data=None, lines={}, texts={}, faults=(fault,))
    reader = _Reader(yaml, file)
    data = reader.value(root, ()) if root is not None else None
    return Located(
        file=file,
        data=data,
        lines=reader.lines,
        texts=reader.texts,
        faults=tuple(reader.faults),
    )


class _Reader:
    def __init__(self, yaml: YAML, file: str) -> None:
        self._constructor = yaml.constructor
        self._file = file
        self.lines: dict[Location, int] = {}
        self.texts: dict[Location, str] = {}
        self.faults: list[str] = []

    def value(self, node: Node, path: Location) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        match node:
            case MappingNode():
                return self._mapping(node, path)
            case SequenceNode():
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            case ScalarNode():
                self.texts[path] = node.value
                return _scalar(node)
        raise AssertionError(node)

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key, str) or (
                isinstance(key_node, ScalarNode) and not isinstance(_scalar(key_node), str)
            ):
                where = ".".join(map(str, path))
                self.faults.append(
                    f"{self._file}:{line}: {where + ': ' if where else ''}"
                    f"the key {key} is not text; quote it"
                )
                key = str(key)
            here = (*path, key)
            if key in result:
                self.faults.append(
                    f"{self._file}:{line}: {'.'.join(map(str, here))}: "
                    f"duplicate key, first on line {self.lines[here]}"
                )
                continue
            self.lines[here] = line
            result[key] = self.value(value_node, here)
        return result


def _scalar(node: ScalarNode) -> str | int | float | bool | None:
    kind = str(node.tag).rsplit(":", 1)[-1]
    text = str(node.value)
    if kind == "int":
        return int(text.replace("_", ""), 0)
    if kind == "float":
        return float(text.replace("_", ""))
    if kind == "bool":
        return text.lower() == "true"
    if kind == "null":
        return None
    return text
