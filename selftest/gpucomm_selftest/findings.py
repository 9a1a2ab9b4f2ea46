"""A finding: a kind (see kinds/), and what was measured in this run."""

from dataclasses import dataclass

from gpucomm_selftest.kinds import KINDS
from gpucomm_selftest.kinds.kind import FAIL, INFO, LEVELS, PASS, UNSUPPORTED, WARN, Kind

__all__ = [
    "FAIL",
    "INFO",
    "KINDS",
    "LEVELS",
    "PASS",
    "UNSUPPORTED",
    "WARN",
    "Finding",
    "Kind",
    "found",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    id: str
    level: str
    title: str
    measured: str
    expected: str
    cause: str
    action: str
    kubernetes: str
    slurm: str

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))


def found(finding_id: str, measured: str) -> Finding:
    kind = KINDS[finding_id]
    return Finding(
        id=finding_id,
        level=kind.level,
        title=kind.title,
        measured=measured,
        expected=kind.expected,
        cause=kind.cause,
        action=kind.action,
        kubernetes=kind.kubernetes,
        slurm=kind.slurm,
    )
