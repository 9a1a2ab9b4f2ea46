"""What does not change in a finding: one Kind for each id, in the tables beside this module."""

from dataclasses import dataclass

PASS, INFO, UNSUPPORTED, WARN, FAIL = "pass", "info", "unsupported", "warn", "fail"

LEVELS = (PASS, INFO, UNSUPPORTED, WARN, FAIL)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is the same in every finding of one id."""

    level: str
    title: str
    expected: str  # what a healthy place shows, and why
    action: str  # what to do or to type, for docker where launchers differ
    cause: str = ""  # what leads to it; only a kind that passes has none
    kubernetes: str = ""  # what to write in a pod, where it is not what docker takes
    slurm: str = ""  # what to type under Slurm (pyxis, enroot), where it is another thing
    source: str = ""  # where a figure in `expected` comes from
