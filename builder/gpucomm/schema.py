"""The shape of matrix.yaml as frozen, strict values.

Owns: what each key may hold on its own. References between keys, and the messages with file and
line, belong to matrix.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version") from None
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text.replace("{cuda}", "1.0"))
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version specifier such as '<2.3'") from None
    return text


_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")


def repository_name(text: str) -> str:
    """`text` if it is `host[:port]/path` without a tag, else ValueError. REGISTRY is held to it."""
    if not _REPOSITORY.fullmatch(text):
        example = "127.0.0.1:5000/gpucomm"
        raise ValueError(f"{text!r} is not host[:port]/name in lower case, such as {example}")
    return text


VersionText = Annotated[str, AfterValidator(_version)]
SpecifierText = Annotated[str, AfterValidator(_specifier)]
Repository = Annotated[str, AfterValidator(repository_name)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.+-]*$")]


class Model(BaseModel):
    """Strict on purpose: no unknown key, no number where text is meant, nothing changed later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Defaults(Model):
    """Axis values that a cell id leaves out."""

    os: Name
    flavor: Name


class System(Model):
    """An operating system of the images; the distribution decides the Python version."""

    release: Name
    python: VersionText
    image: str
    base: Literal["auto", "registry", "bootstrap"]


class Flavor(Model):
    """What an image carries beside torch: Debian packages added, wheels left out."""

    apt: list[str]
    without: list[str]


class Torch(Model):
    """One torch version of a line. `nccl` is what its wheel requires; the lock checks it."""

    nccl: VersionText | None = None


class Line(Model):
    """One accelerator line: a CUDA version, or the CPU."""

    accelerator: Literal["cuda", "cpu"]
    index: str
    torch: dict[VersionText, Torch]
    flavors: list[Name]
    size_budget_mb: dict[Name, int]
    cuda: VersionText | None = None
    nccl_wheel: str | None = None
    nccl_overrides: list[VersionText] = []
    nvidia_require: str | None = None


class Hold(Model):
    """A rule for the lock: a package that would float is held, for a reason."""

    package: str
    require: SpecifierText
    reason: Annotated[str, Field(min_length=10)]
    lines: list[str] = ["*"]
    torch: SpecifierText = ""


class Matrix(Model):
    """The whole of matrix.yaml."""

    version: Literal[1]
    registry: Repository
    source: str
    source_date_epoch: int
    pytorch_index: str
    defaults: Defaults
    systems: dict[Name, System]
    flavors: dict[Name, Flavor]
    lines: dict[Name, Line]
    aliases: dict[Name, str]
    with_: list[str] = Field(alias="with")
    tools: list[str]
    holds: list[Hold]
