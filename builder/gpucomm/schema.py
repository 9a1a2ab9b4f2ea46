"""The shape of matrix.yaml as frozen, strict values.

Owns: what each key may hold on its own, and the JSON schema that editors read. References between
keys, and the messages with file and line, belong to matrix.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

Accelerator = Literal["cuda", "rocm", "cpu"]
Architecture = Literal["amd64", "arm64"]
MACHINES: Mapping[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""How wheels and the kernel name an architecture."""
STATIC = "static"
"""In place of an NCCL version: it is linked into torch itself."""


# A version is a part of cell ids, tags and file names: no `v`, `!`, `+`, dash or space.
_VERSION = re.compile(r"[0-9][0-9a-z.]{,49}")
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")


def _version(text: str) -> str:
    try:
        Version(text if _VERSION.fullmatch(text) else "")
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version such as '2.4.1'") from None
    return text


def _release(text: str) -> str:
    if not _RELEASE.fullmatch(text):
        raise ValueError(f"{text!r} is not a version of digits and dots such as '12.1'")
    return _version(text)


def _nccl(text: str) -> str:
    return text if text == STATIC else _version(text)


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text).contains("1.0")  # which also reads the versions in it
    except ValueError:
        raise ValueError(f"{text!r} is not a version specifier such as '<2.3'") from None
    return text


def _requirement(text: str) -> str:
    _specifier(text.replace("{cuda}", "1.0"))
    return text


def _devel_image(text: str) -> str:
    if set("{}") & set(text.replace("{toolkit}", "")):
        raise ValueError(f"{text!r} has braces that are not {{toolkit}}")
    return text


def _date(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a date such as '2027-01-31'") from None
    return text


_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")


def repository_name(text: str) -> str:
    """`text` if it is `host[:port]/path` without a tag, else ValueError. REGISTRY is held to it."""
    if not _REPOSITORY.fullmatch(text):
        example = "127.0.0.1:5000/gpucomm"
        raise ValueError(f"{text!r} is not host[:port]/name in lower case, such as {example}")
    return text


VersionText = Annotated[str, AfterValidator(_version)]
NcclText = Annotated[str, AfterValidator(_nccl)]
ReleaseText = Annotated[str, AfterValidator(_release)]
SpecifierText = Annotated[str, AfterValidator(_specifier)]
# A specifier in which `{cuda}` is the CUDA version of a line.
RequirementText = Annotated[str, AfterValidator(_requirement)]
DevelImage = Annotated[str, AfterValidator(_devel_image)]
DateText = Annotated[str, AfterValidator(_date)]
Repository = Annotated[str, AfterValidator(repository_name)]
# A part of a cell id, which `-` joins and which is a tag: no dash, no plus.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.]*$")]
RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Package = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.+-]*[a-z0-9+])?$")]
Reason = Annotated[str, Field(min_length=10)]


class Model(BaseModel):
    """Strict on purpose: no unknown key, no number where text is meant, nothing changed later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(Model):
    """Where a fact was read. `url` is left out where the source is a wheel's own metadata."""

    read: Reason
    url: Annotated[str, Field(pattern=r"^https://")] | None = None


class Defaults(Model):
    """Axis values that a cell id leaves out."""

    os: Name
    flavor: Name


class SigningKey(Model):
    """A key that signs a system's package lists; bases are bootstrapped from what it signs."""

    fingerprint: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")]
    expires: DateText


class System(Model):
    """An operating system of the images; the distribution decides the Python version."""

    distribution: Literal["debian", "ubuntu"]
    release: Name
    python: ReleaseText
    glibc: VersionText
    image: str
    base: Literal["auto", "registry", "bootstrap"]
    architectures: Annotated[list[Architecture], Field(min_length=1)]
    signing_keys: list[SigningKey] = []
    devel_image: dict[Accelerator, DevelImage] = {}
    """Image of the devel flavor, `{toolkit}` being the line's; without one it is `image`."""


class Addition(Model):
    """A wheel that a flavor adds on the lines that it names."""

    package: Package
    lines: Annotated[list[str], Field(min_length=1)]
    require: RequirementText = ""


class Flavor(Model):
    """What an image carries beside torch: Debian packages, wheels left out, wheels added."""

    apt: list[Package]
    without: list[Package]
    wheels: list[Addition] = []
    toolkit: bool = False
    """Stands on the system's `devel_image` where it has one for the accelerator."""


class Extra(Model):
    """Something a cell can have on request: Debian packages, or a wheel that fits its torch."""

    apt: list[Package] = []
    wheel: Package | None = None


class Release(Model):
    """One torch version, the same on every line. `default` is the line of the default index."""

    python: SpecifierText
    glibc: VersionText
    default: Name | None = None
    triton_rocm: Package | None = None
    wheels: dict[Package, VersionText] = {}


class Torch(Model):
    """One torch on one line. `nccl` is what its wheel requires, which the lock checks; `static`
    where NCCL is linked into torch itself."""

    nccl: NcclText | None = None
    overrides: list[VersionText] = []
    """Other NCCL versions that this torch can have."""


class Driver(Model):
    """Kernel drivers: `floor` runs it, `toolkit` is the one its toolkit was released with."""

    floor: VersionText
    toolkit: VersionText


class Gpus(Model):
    """The GPUs that the wheels of some torch versions have code for."""

    torch: SpecifierText = ""
    arch: list[Architecture] = []
    archs: Annotated[list[str], Field(min_length=1)]


class GpuTargets(Model):
    """GPU code that comes in wheels of its own, one for each target.

    torch asks for `package` with every target; a cell overrides that with the ones it names.
    """

    package: Package
    version: VersionText
    extras: list[Package]
    """Of `package`, beside one `device-<target>` for each target."""
    wheels: list[Package]
    """What it requires and the default index does not have, beside the wheels of the targets."""
    device_wheel: str
    """Name of a target's wheel, up to the target."""
    known: Annotated[list[Name], Field(min_length=1)]
    default: Annotated[list[Name], Field(min_length=1)]


class NcclFamily(Model):
    """NCCL's wheel for one CUDA major, and the runtime wheel that tells which CUDA torch wants."""

    wheel: Package
    runtime: Package
    versions: Annotated[list[VersionText], Field(min_length=1)]


class Line(Model):
    """One accelerator line: a CUDA version, a ROCm version, or the CPU."""

    accelerator: Accelerator
    torch: Annotated[dict[VersionText, Torch], Field(min_length=1)]
    gpus: list[Gpus] = []
    size_budget_mb: dict[Name, int] = {}
    toolkit: str | None = None
    driver: Driver | None = None
    cuda: ReleaseText | None = None
    nccl_family: Name | None = None
    nvidia_require: str | None = None
    rocm: VersionText | None = None
    rccl: VersionText | None = None
    gpu_targets: GpuTargets | None = None
    environment: dict[str, str] = {}


class Standard(Model):
    """Axis values whose product, less what cannot exist, is built and published."""

    reason: Reason
    lines: Annotated[list[str], Field(min_length=1)] = ["*"]
    torch: SpecifierText = ""
    only_alias: bool = False
    """Only the torch that the line's alias has."""
    nccl: Literal["bundled", "overrides"] = "bundled"
    os: Annotated[list[Name], Field(min_length=1)] | None = None
    flavor: Annotated[list[Name], Field(min_length=1)] | None = None
    extras: Annotated[list[list[Name]], Field(min_length=1)] = [[]]
    gpu_targets: Annotated[list[list[Name]], Field(min_length=1)] = [[]]


class Fact(Model):
    """Why a built-in check exists, and where its figures come from."""

    reason: Reason
    source: RuleName


class When(Model):
    """Axis values of the cells that a rule is about; what is left out matches everything."""

    lines: list[str] = ["*"]
    accelerator: list[Accelerator] = []
    torch: SpecifierText = ""
    nccl: SpecifierText | None = None
    os: list[str] = ["*"]
    python: SpecifierText = ""
    flavor: list[Name] = []
    extras: list[Name] = []
    arch: list[Architecture] = []
    index: Literal["default", "pytorch"] | None = None


class Rule(Model):
    """Cells that cannot or must not exist. With `arch` it takes only that platform away; with the
    effect `warn` it takes nothing away, and is said of the cells that it is about."""

    when: When
    effect: Literal["deny", "warn"] = "deny"
    reason: Reason
    source: RuleName
    expires: DateText | None = None


class LeftOut(Model):
    """A published pair of line and torch that the matrix does not carry."""

    line: Name
    torch: VersionText
    reason: Reason
    source: RuleName


class Hold(Model):
    """A rule for the lock: a package that would float is held, for a reason."""

    package: Package
    require: RequirementText
    reason: Reason
    lines: list[str] = ["*"]
    torch: SpecifierText = ""


class Matrix(Model):
    """The whole of matrix.yaml."""

    version: Literal[2]
    registry: Repository
    source: str
    source_date_epoch: int
    pytorch_index: str
    defaults: Defaults
    systems: Annotated[dict[Name, System], Field(min_length=1)]
    flavors: Annotated[dict[Name, Flavor], Field(min_length=1)]
    extras: dict[Name, Extra]
    torch: Annotated[dict[VersionText, Release], Field(min_length=1)]
    nccl_families: dict[Name, NcclFamily]
    lines: Annotated[dict[Name, Line], Field(min_length=1)]
    left_out: list[LeftOut]
    standard: Annotated[list[Standard], Field(min_length=1)]
    aliases: dict[Name, str]
    checks: dict[RuleName, Fact]
    rules: dict[RuleName, Rule]
    with_: list[Package] = Field(alias="with")
    tools: list[Package]
    holds: list[Hold]
    sources: dict[RuleName, Source]

    _memo: dict[str, Any] = PrivateAttr(default_factory=dict)
    """What other modules derive from these values, once."""

    @property
    def memo(self) -> dict[str, Any]:
        """A place for what is derived from this matrix and costs time."""
        return self._memo


def json_schema() -> Mapping[str, Any]:
    """JSON schema of matrix.yaml, for editors."""
    schema = Matrix.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpucomm matrix",
    } | {key: value for key, value in schema.items() if key != "title"}
