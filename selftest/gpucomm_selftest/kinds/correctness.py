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
        expected="Gloo lacks some collectives and dtypes in some torch versions, and NCCL and "
        "RCCL lack some of the newer dtypes; they were refused, not run",
        cause="this torch is older than the operation, or Gloo never had it",
        action="nothing, unless your job needs them: then use a newer torch, or nccl",
    ),
    "GC0304": Kind(
        level=FAIL,
        title="the nccl backend refused a collective",
        expected="NCCL and RCCL offer every collective in all common dtypes",
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
    "GC0307": Kind(
        level=PASS,
        title="every pair of ranks exchanged exact data",
        expected="both payloads arrive in every bit, in both directions of each pair",
        action="nothing",
    ),
    "GC0308": Kind(
        level=FAIL,
        title="a pair of ranks exchanged wrong data",
        expected="what one rank sends the other receives, in every bit: nothing is calculated on "
        "the way",
        cause="the link between these two: a bad NVLink or cable, PCIe access control (ACS) or an "
        "IOMMU that redirects peer traffic, a broken transport of the library",
        action="run it again with NCCL_P2P_DISABLE=1, and with NCCL_SHM_DISABLE=1: the one that "
        "heals it names the transport; then look at `nvidia-smi nvlink -e` and `dmesg`",
    ),
    "GC0309": Kind(
        level=FAIL,
        title="a rank called a collective otherwise than the others",
        expected="every rank calls the same collective with the same dtype and size: NCCL compares "
        "neither and returns garbage where they differ",
        cause="another torch, another program or a patched function on the named rank",
        action="compare the named rank with the others: its torch, its PYTHONPATH, its "
        "sitecustomize",
    ),
    "GC0310": Kind(
        level=FAIL,
        title="two ranks alone reduce to wrong numbers",
        expected="an all_reduce in a group of two ranks is exact, as the one over all ranks is",
        cause="the link between these two, where data that is only moved arrives whole: the "
        "protocols with flags in the data (LL, LL128) need stores that stay in order",
        action="run it again with NCCL_PROTO=Simple: if that heals it, the link breaks the order "
        "of stores",
    ),
}
