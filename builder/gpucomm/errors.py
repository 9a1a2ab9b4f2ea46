"""One error class per exit code. A message says what is wrong, where, and what to do, in one line.

0 is success, 1 work that failed, 2 wrong input, 3 an environment that cannot do the work. The
command line prints the messages and returns the code; nothing else in the package exits.
"""

from __future__ import annotations

from collections.abc import Iterable


class GpucommError(Exception):
    """Base of every error a person can cause. Carries one line per fault, all of them at once."""

    exit_code = 1

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class WorkFailed(GpucommError):
    """Work that was started and did not succeed: a build, a check, a push."""

    exit_code = 1


class WrongInput(GpucommError):
    """Something the person wrote is wrong: a target, matrix.yaml, an option."""

    exit_code = 2


class Unusable(GpucommError):
    """This machine or a service it needs cannot do the work: no engine, no disk, no registry."""

    exit_code = 3
