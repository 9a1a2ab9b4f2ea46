"""The main program of a rank process. Started by crew.py, never by a person.

It reads commands from its standard input, one JSON line each, and writes what happens to a pipe
of its own; its standard output and error belong to torch and the libraries. Whatever a stage
raises is reported, and the process waits for the next command: the launcher decides.
"""

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from gpucomm_selftest import recorder
from gpucomm_selftest.crumbs import Writer
from gpucomm_selftest.stage import LEAVING, RankContext
from gpucomm_selftest.stages import STAGES

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """No rank outlives its launcher, not even one that was killed by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(context: RankContext) -> None:
    """Does what the launcher says until it says `leave`."""
    while True:
        command = context.receive()
        if command["command"] == "leave":
            context.crumbs.begin(LEAVING)
            context.enter("tear-down")
            for leave in reversed(context.kept.get("on_leave", [])):
                leave()
            context.send("left")
            return
        stage = STAGES[command["stage"]]
        context.crumbs.begin(stage.id)
        try:
            result = stage.work(context, command["args"])
        except Exception as error:
            context.send(
                "error",
                kind=type(error).__name__,
                text=str(error)[:2000],
                traceback=traceback.format_exc()[-8000:],
            )
        else:
            context.send("done", stage=stage.id, result=result)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="gpucomm_selftest.rank")
    for name in ("--rank", "--world", "--channel", "--crumbs", "--wake", "--parent"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--role", required=True)
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    os.set_inheritable(options.channel, False)
    crumbs = Writer(options.crumbs)
    os.close(options.crumbs)
    os.set_inheritable(options.wake, False)
    # The launcher asks for the stacks of a hang by this signal; C code does not block it.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    context = RankContext(
        rank=options.rank, world=options.world, channel=options.channel, crumbs=crumbs
    )
    recorder.answer(options.wake, lambda lines: context.send("recorder", lines=lines))
    context.send("hello", pid=os.getpid())
    serve(context)
