"""How the processes of the self-test ended: GC09."""

from gpucomm_selftest.kinds.kind import FAIL, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0901": Kind(
        level=FAIL,
        title="a rank process died",
        expected="every rank lives until it is told to leave",
        cause="the OOM killer, a scheduler or a person ended it, or a library crashed",
        action="SIGKILL comes from outside: look for the OOM killer (`dmesg`), a memory limit of "
        "the container or the scheduler; for other signals run it again with NCCL_DEBUG=INFO",
        kubernetes="kubectl describe pod: OOMKilled means to raise resources.limits.memory",
        slurm="sacct -j JOB --format=State,MaxRSS; raise --mem",
    ),
    "GC0902": Kind(
        level=FAIL,
        title="a hang was ended at its deadline",
        expected="the stage ends within its deadline (--timeout changes it)",
        cause="a rank is stopped, has died elsewhere or never entered the operation, or the "
        "transport between ranks is stuck",
        action="look at the named rank first: py-spy dump, `dmesg`, nvidia-smi; the others only "
        "wait for it",
    ),
    "GC0903": Kind(
        level=FAIL,
        title="a rank raised an error",
        expected="no error on any rank",
        cause="the error says it; a rank that only lost its peer is not the cause",
        action="read the error; --debug shows the traceback and the last output of the rank",
    ),
    "GC0904": Kind(
        level=WARN,
        title="a rank did not leave cleanly after its last check",
        expected="destroy_process_group and exit status 0 within the deadline of the tear-down",
        cause="a library that waits for its peers or for captured graphs while it is taken down",
        action="nothing for the results above; jobs may hang or crash when they end",
    ),
    "GC0905": Kind(
        level=FAIL,
        title="a process could not be ended",
        expected="SIGKILL ends every process, unless it waits in the kernel for a driver or disk",
        cause="it waits in the kernel for a driver or a disk (process state D)",
        action="look at `dmesg`; the machine may need a reset of the GPU or a reboot",
    ),
    "GC0906": Kind(
        level=FAIL,
        title="the run was interrupted",
        expected="the run goes on to its verdict",
        cause="a person, a scheduler or a time limit sent the signal",
        action="run it again: nothing was decided",
    ),
    "GC0907": Kind(
        level=FAIL,
        title="ranks hang in different operations",
        expected="every rank enters the same operations in the same order",
        cause="a rank that skipped an operation, or that runs another program or version",
        action="compare the named ranks with the others: version, environment, what they print",
    ),
    "GC0908": Kind(
        level=FAIL,
        title="all ranks are in the same operation and none comes out",
        expected="an operation that every rank has entered ends: what does not move is the "
        "transport between them",
        cause="a link or network card that is stuck, a firewall that lets connections through and "
        "drops data, PCIe access control (ACS) with peer access, or a defect of the library",
        action="run it again with NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1, then "
        "NCCL_IB_DISABLE=1: the one that heals it names the transport; look at `dmesg`",
    ),
    "GC0910": Kind(
        level=FAIL,
        title="the self-test itself failed in a stage",
        expected="a stage ends with a result of its own; the stages that do not need it went on",
        cause="a defect of the self-test, or a machine that it never met",
        action="run it again with --debug and report it with --bundle FILE.tar.gz",
    ),
}
