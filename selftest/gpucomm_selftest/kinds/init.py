"""The start of the process group: GC02."""

from gpucomm_selftest.kinds.kind import PASS, Kind

KINDS: dict[str, Kind] = {
    "GC0201": Kind(
        level=PASS,
        title="every rank initialised",
        expected="init_process_group and a first all_reduce on every rank within the deadline",
        action="nothing",
    ),
}
