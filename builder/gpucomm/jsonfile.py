"""Reads a small JSON file into strict values; every fault names file, line and column.

Owns: syntax, duplicate keys and the shape. What the values mean is the caller's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gpucomm.errors import WrongInput
from gpucomm.located import Located, parse

M = TypeVar("M", bound=BaseModel)


def read(path: Path, model: type[M], name: str, advice: str = "") -> tuple[M, Located]:
    """The values of `path` and their places. `name` is what messages call it, `advice` ends them.

    Raises WrongInput with every fault.
    """
    end = f"; {advice}" if advice else ""
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{name}:{error.lineno}:{error.colno}"
        raise WrongInput(f"{where}: not JSON: {error.msg}{end}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise WrongInput(f"{name}: cannot be read: {reason}{end}") from None
    except RecursionError:
        raise WrongInput(f"{name}: nested too deeply{end}") from None
    located = parse(text, name)
    faults = list(located.faults)
    if not faults:
        try:
            return model.model_validate(located.data), located
        except ValidationError as error:
            for item in error.errors():
                place = tuple(part for part in item["loc"] if part != "[key]")
                message = item["msg"].removeprefix("Value error, ")
                faults.append(located.fault(place, message[:1].lower() + message[1:]))
    raise WrongInput([f"{fault}{end}" for fault in faults])
