"""The errors that end a run before it has a verdict of its own, one class per exit code.

Each message is one line: what is wrong, where, and what to do.
"""

PASSED = 0
FAILED = 1
USAGE = 2
UNUSABLE = 3
HUNG = 124


class SelftestError(Exception):
    """Base: never raised itself."""

    exit_code = FAILED


class UsageError(SelftestError):
    """What was asked for cannot be asked for."""

    exit_code = USAGE


class UnusableError(SelftestError):
    """The environment has no way to run the test at all."""

    exit_code = UNUSABLE

    def __init__(self, finding_id: str, measured: str) -> None:
        super().__init__(measured)
        self.finding_id = finding_id
        self.measured = measured
