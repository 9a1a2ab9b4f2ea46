"""How the processes of the self-test ended: GC09."""

from gpucomm_selftest.kinds.kind import FAIL, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0901": Kind(
        level=FAIL,
        title="a rank process died",
        expected="every rank lives until it is told to leave",
        action="SIGKILL comes from outside: look for the OOM killer (`dmesg`), a memory limit of "
        "the container or the scheduler; for other signals run it again with NCCL_DEBUG=INFO",
    ),
    "GC0902": Kind(
        level=FAIL,
        title="a hang was ended at its deadline",
        expected="the stage ends within its deadline (--timeout changes it)",
        action="look at the named rank first: py-spy dump, `dmesg`, nvidia-smi; the others only "
        "wait for it",
    ),
    "GC0903": Kind(
        level=FAIL,
        title="a rank raised an error",
        expected="no error on any rank",
        action="read the error; --debug shows the traceback and the last output of the rank",
    ),
    "GC0904": Kind(
        level=WARN,
        title="a rank did not leave cleanly after its last check",
        expected="destroy_process_group and exit status 0 within the deadline of the tear-down",
        action="nothing for the results above; jobs may hang or crash when they end",
    ),
    "GC0905": Kind(
        level=FAIL,
        title="a process could not be ended",
        expected="SIGKILL ends every process, unless it waits in the kernel for a driver or disk",
        action="look at `dmesg`; the machine may need a reset of the GPU or a reboot",
    ),
    "GC0906": Kind(
        level=FAIL,
        title="the run was interrupted",
        expected="the run goes on to its verdict",
        action="run it again: nothing was decided",
    ),
}
