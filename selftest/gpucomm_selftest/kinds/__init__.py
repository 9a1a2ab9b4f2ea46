"""Every finding that the self-test can report, by its stable id, one table for each subject.

An id is never given another meaning and never used again. A new table is one module here, one
line below and one in `GROUPS` of explain.py.
"""

from gpucomm_selftest.kinds import (
    correctness,
    digest,
    init,
    libraries,
    lint,
    preflight,
    processes,
    rendezvous,
    topology,
    versions,
)
from gpucomm_selftest.kinds.kind import Kind

_TABLES = (
    versions.KINDS,
    libraries.KINDS,
    topology.KINDS,
    init.KINDS,
    correctness.KINDS,
    preflight.KINDS,
    lint.KINDS,
    processes.KINDS,
    rendezvous.KINDS,
    digest.KINDS,
)

KINDS: dict[str, Kind] = {
    finding_id: kind for table in _TABLES for finding_id, kind in table.items()
}

if len(KINDS) != sum(len(table) for table in _TABLES):
    raise AssertionError("two tables of kinds share an id")
