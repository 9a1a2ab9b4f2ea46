"""Every finding that the self-test can report: its stable id and what does not change in it.

An id is never given another meaning and never used again. What was measured is filled in by the
stage that found it. Numbers: GC01 versions, GC02 init, GC03 correctness, GC09 processes.
"""

from dataclasses import dataclass

PASS, INFO, UNSUPPORTED, WARN, FAIL = "pass", "info", "unsupported", "warn", "fail"

LEVELS = (PASS, INFO, UNSUPPORTED, WARN, FAIL)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is the same in every finding of one id."""

    level: str
    title: str
    expected: str
    action: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    id: str
    level: str
    title: str
    measured: str
    expected: str
    action: str

    def as_json(self) -> dict[str, str]:
        return {
            "id": self.id,
            "level": self.level,
            "title": self.title,
            "measured": self.measured,
            "expected": self.expected,
            "action": self.action,
        }


KINDS: dict[str, Kind] = {
    "GC0101": Kind(
        level=FAIL,
        title="no collective library is loaded",
        expected="after `import torch` one libnccl.so or librccl.so is mapped: without it there "
        "is no nccl backend",
        action="install the torch build of this accelerator, or test with --backend gloo",
    ),
    "GC0102": Kind(
        level=FAIL,
        title="more than one collective library is loaded",
        expected="one file: with two, which of them a call reaches depends on the load order",
        action="remove the one that the image does not own: look at LD_PRELOAD, LD_LIBRARY_PATH "
        "and `pip list | grep -i nccl`",
    ),
    "GC0103": Kind(
        level=FAIL,
        title="the collective library does not tell its version",
        expected="ncclGetVersion of the mapped file answers without a GPU",
        action="reinstall the package that owns the file: it is damaged or was replaced "
        "while loaded",
    ),
    "GC0104": Kind(
        level=INFO,
        title="the collective library is not the one torch was compiled for",
        expected="the same major version: NCCL keeps its ABI within one",
        action="nothing, if this is the library that the image pins",
    ),
    "GC0105": Kind(
        level=FAIL,
        title="ranks have loaded different collective libraries",
        expected="one file and one version on every rank",
        action="start all ranks with the same image and the same LD_PRELOAD and LD_LIBRARY_PATH",
    ),
    "GC0106": Kind(
        level=FAIL,
        title="GPU device nodes are here, but torch sees no GPU",
        expected="torch.cuda.is_available(), since this container was given GPUs; a pass on the "
        "CPU would hide that they cannot be used",
        action="compare the driver with the CUDA or ROCm version of torch (`nvidia-smi`), or ask "
        "for the CPU with --backend gloo",
    ),
    "GC0107": Kind(
        level=INFO,
        title="tested on the CPU with Gloo",
        expected="a pass proves torch.distributed on this machine, and nothing about a GPU",
        action="for GPUs: docker run --gpus all IMAGE gpucomm-selftest",
    ),
    "GC0108": Kind(
        level=WARN,
        title="several ranks share a GPU: this is a functional test only",
        expected="one rank per GPU: ranks on one GPU talk over sockets as ranks of different "
        "hosts do, so every speed and duration measured here means nothing",
        action="leave --nproc away to start one rank per visible GPU",
    ),
    "GC0109": Kind(
        level=WARN,
        title="one rank only: nothing was communicated",
        expected="two ranks or more: with one rank every collective is a local copy",
        action="--nproc 2 starts two ranks on this GPU, as a functional test",
    ),
    "GC0110": Kind(
        level=FAIL,
        title="torch cannot be used",
        expected="`import torch` works and torch.distributed is part of it",
        action="run it in an image or environment that has torch: python -c 'import torch'",
    ),
    "GC0111": Kind(
        level=FAIL,
        title="the nccl backend was asked for, and there is no GPU to run it on",
        expected="torch.cuda.is_available() and at least one visible device",
        action="give the container its GPUs (docker run --gpus all), look at "
        "CUDA_VISIBLE_DEVICES, or use --backend gloo",
    ),
    "GC0112": Kind(
        level=FAIL,
        title="this torch was built without the backend",
        expected="torch.distributed offers the backend that was asked for",
        action="use another --backend, or a torch build that has it",
    ),
    "GC0113": Kind(
        level=FAIL,
        title="the loopback interface does not carry a connection",
        expected="127.0.0.1 works even with --network none: the ranks meet there",
        action="ip link set lo up",
    ),
    "GC0201": Kind(
        level=PASS,
        title="every rank initialised",
        expected="init_process_group and a first all_reduce on every rank within the deadline",
        action="nothing",
    ),
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
        action="run it again with NCCL_DEBUG=INFO and compare the transport; wrong data on one "
        "pair of ranks points at its link, on all of them at the library",
    ),
    "GC0303": Kind(
        level=UNSUPPORTED,
        title="this torch and backend do not offer some collectives",
        expected="Gloo lacks some collectives and dtypes in some torch versions; they were "
        "refused, not run",
        action="nothing, unless your job needs them: then use a newer torch, or nccl",
    ),
    "GC0304": Kind(
        level=FAIL,
        title="the nccl backend refused a collective",
        expected="NCCL and RCCL offer every collective and dtype tested here",
        action="look at the versions above: torch and the collective library do not fit",
    ),
    "GC0305": Kind(
        level=FAIL,
        title="a rank did not report all of its checks",
        expected="every rank reports each check of the plan once",
        action="run it again with --debug and report it: the self-test itself is at fault",
    ),
    "GC0306": Kind(
        level=FAIL,
        title="not one collective could be checked",
        expected="at least one supported collective",
        action="use another --backend or another torch",
    ),
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


def found(finding_id: str, measured: str) -> Finding:
    kind = KINDS[finding_id]
    return Finding(
        id=finding_id,
        level=kind.level,
        title=kind.title,
        measured=measured,
        expected=kind.expected,
        action=kind.action,
    )
