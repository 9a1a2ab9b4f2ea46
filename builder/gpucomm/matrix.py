"""Reads and checks matrix.yaml, the one source of truth for versions.

Owns: the order of the checks, and messages that name file, line and column, all at once. What one
key may hold is schema.py, what keys say of each other is references.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpucomm.errors import WrongInput
from gpucomm.located import Located, Location, read
from gpucomm.nearest import nearest
from gpucomm.references import reference_faults
from gpucomm.schema import Matrix, json_schema

FILE = "matrix.yaml"
_PLACE = re.compile(r"[^:]*:(\d+):(\d+): ")


def load(root: Path) -> Matrix:
    """Read and check `root`/matrix.yaml. Raises WrongInput, every fault as `file:line:column:`."""
    return check(read(root / FILE))


def check(located: Located) -> Matrix:
    """Turn located data into a Matrix, or raise WrongInput with every fault at once."""
    faults = [*located.faults]
    matrix: Matrix | None = None
    if located.marks:
        try:
            matrix = Matrix.model_validate(located.data)
        except ValidationError as error:
            faults += _schema_faults(located, error)
    if matrix is not None:
        faults += [located.fault(path, message) for path, message in reference_faults(matrix)]
    if faults or matrix is None:
        raise WrongInput(sorted(faults or [f"{located.file}:1:1: empty file"], key=_place))
    return matrix


def _place(fault: str) -> tuple[int, int]:
    found = _PLACE.match(fault)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _schema_faults(located: Located, error: ValidationError) -> Iterator[str]:
    schema: Mapping[str, Any] | None = None
    for item in error.errors():
        # pydantic marks a fault in a mapping's key with the extra step "[key]"
        path: Location = item["loc"]
        if path not in located.marks:
            path = tuple(part for part in path if part != "[key]")
        written = located.texts.get(path)
        match item["type"]:
            case "string_type" if written == "":
                message = "empty: text is needed"
            case "string_type" if written is not None:
                message = f'{written} is read as a number or a word of YAML; quote it: "{written}"'
            case "extra_forbidden":
                schema = schema or json_schema()
                message = "unknown key" + nearest(str(path[-1]), _known_keys(schema, path[:-1]))
            case "missing":
                message = "missing"
            case "too_short":
                message = "empty: give at least one"
            case _:
                message = item["msg"].removeprefix("Value error, ")
        yield located.fault(path, message)


def _known_keys(schema: Mapping[str, Any], path: Location) -> Iterable[str]:
    """The keys that a mapping at `path` may have."""
    definitions: Mapping[str, Any] = schema["$defs"]

    def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
        options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
        node = options[0] if options else node
        return definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node

    node = schema
    for part in path:
        node = resolved(node)
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            # a mapping with names of its own: one value for all of them
            named: Mapping[str, Any] = node.get("patternProperties") or {}
            extra: Any = node.get("additionalProperties") or next(iter(named.values()), {})
            node = node.get("properties", {}).get(part, extra)
    known: Iterable[str] = resolved(node).get("properties", {})
    return known
