"""The data that collectives return: GC03."""

from gpucomm_selftest.kinds.kind import FAIL, PASS, UNSUPPORTED, Kind

KINDS: dict[str, Kind] = {
    "GC0301": Kind(
        level=PASS,
        title="every supported collective returned exact results",
        expected="all outputs equal the predicted values in every bit on every rank",
        action="nothing",
    ),
    "GC0302": Kind(
        level=FAIL,
        title="a collective returned wrong numbers",
        expected="the predicted values in every bit: inputs and all partial results are exactly "
        "representable, so no rounding excuses a difference",
        cause="a link, GPU or network adapter that damages data, ranks that call with different "
        "sizes or dtypes, or a defect of the library",
        action="run it again with NCCL_DEBUG=INFO and compare the transport; wrong data on one "
        "pair of ranks points at its link, on all of them at the library",
    ),
    "GC0303": Kind(
        level=UNSUPPORTED,
        title="this torch and backend do not offer some collectives",
        expected="Gloo lacks some collectives and dtypes in some torch versions; they were "
        "refused, not run",
        cause="this torch is older than the operation, or Gloo never had it",
        action="nothing, unless your job needs them: then use a newer torch, or nccl",
    ),
    "GC0304": Kind(
        level=FAIL,
        title="the nccl backend refused a collective",
        expected="NCCL and RCCL offer every collective and dtype tested here",
        cause="torch was compiled for a newer library than the one that is loaded",
        action="look at the versions above: torch and the collective library do not fit",
    ),
    "GC0305": Kind(
        level=FAIL,
        title="a rank did not report all of its checks",
        expected="every rank reports each check of the plan once",
        cause="a defect of the self-test, or a rank that was tampered with",
        action="run it again with --debug and report it: the self-test itself is at fault",
    ),
    "GC0306": Kind(
        level=FAIL,
        title="not one collective could be checked",
        expected="at least one supported collective",
        cause="torch was built almost without distributed support",
        action="use another --backend or another torch",
    ),
}
