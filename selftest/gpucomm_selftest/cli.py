"""The command line: reads what is asked for, runs the stages in order, shows the report.

Standard output carries the report only: text, or with --json one JSON document. It must not know
what a stage does.
"""

import argparse
import io
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from gpucomm_selftest import __version__, agent, bundle, explain, launcher, probing, report, text
from gpucomm_selftest.errors import (
    FAILED,
    PASSED,
    USAGE,
    SelftestError,
    UnusableError,
    UsageError,
)
from gpucomm_selftest.files import check_writable, write_whole
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.interrupt import Interrupt
from gpucomm_selftest.junit import junit
from gpucomm_selftest.launcher import Launch
from gpucomm_selftest.places import Here
from gpucomm_selftest.stage import FAILED as STAGE_FAILED
from gpucomm_selftest.stage import INTERRUPTED, NOT_REACHED, Session, Stage, StageResult
from gpucomm_selftest.stage import PASSED as STAGE_PASSED
from gpucomm_selftest.stages import STAGES, rendezvous

# How long a tear-down may take: it is known to hang with some libraries.
LEAVE_DEADLINE = 20.0

_MOST_RANKS = 1024
_MOST_PER_GPU = 16

# How much is tested, and by how much the deadlines of a quick run are multiplied for it.
BUDGETS = {"quick": 1.0, "standard": 3.0, "deep": 10.0}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpucomm-selftest",
        description="Is this machine, with this image, fit for distributed PyTorch training? "
        "Under a launcher (torchrun, srun, mpirun, a Kubernetes job) each copy is one rank; "
        "otherwise it starts its own ranks: one per visible GPU, or some on the CPU. "
        "`gpucomm-selftest explain GC0302` says what a finding means.",
        epilog="exit codes: 0 pass, 1 a check failed, 2 wrong usage, 3 environment unusable, "
        "124 a hang that was ended, 128+N interrupted by signal N",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument("--nproc", type=int, metavar="N", help="ranks (default: one per GPU, or 2)")
    parser.add_argument(
        "--ranks-per-gpu",
        type=int,
        metavar="N",
        help="ranks on every GPU: a functional test only, its speed means nothing",
    )
    parser.add_argument(
        "--launcher",
        choices=("auto", "none", *launcher.NAMES),
        default="auto",
        help="whose variables say which rank this copy is; none: it starts its own ranks "
        "(default: auto)",
    )
    parser.add_argument(
        "--budget",
        choices=tuple(BUDGETS),
        default="quick",
        help="how much is tested: about 20 s, 2 min or 10 min on one node (default: quick)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="deadline of each stage, instead of its own",
    )
    parser.add_argument("--stages", metavar="A,B", help=f"only these of: {', '.join(STAGES)}")
    parser.add_argument("--skip", metavar="A,B", help="not these stages")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--output", metavar="FILE", help="write the JSON document to a file too")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    parser.add_argument(
        "--bundle", metavar="FILE", help="write a support bundle (.tar.gz), without secrets"
    )
    parser.add_argument("--verbose", action="store_true", help="tell on stderr what is going on")
    parser.add_argument("--debug", action="store_true", help="--verbose, and show tracebacks")
    parser.add_argument("--version", action="version", version=f"gpucomm-selftest {__version__}")
    return parser


# The options that name a file.
_FILES = ("output", "junit", "bundle")


def _names(value: str | None, option: str) -> list[str]:
    if value is None:
        return []
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in STAGES:
            raise UsageError(f"{option} {name}: no such stage; there are {', '.join(STAGES)}")
    if not names:
        raise UsageError(f"{option}: names no stage; there are {', '.join(STAGES)}")
    return names


def choose(
    asked: Sequence[str], skipped: Sequence[str], launched: bool = False
) -> tuple[list[str], list[str]]:
    """The stages to run in order, and those of them that only the others need.

    Copies that a launcher started meet in any case; without a launcher there is nobody to meet.
    """
    meeting = rendezvous.STAGE.id
    usual = [name for name in STAGES if launched or not STAGES[name].of_launches]
    wanted = [name for name in STAGES if name in (asked or usual) and name not in skipped]
    needed = list(wanted)
    if launched and meeting not in needed:
        if meeting in skipped:
            raise UsageError(f"--skip {meeting}: a launcher started this copy; --launcher none")
        needed.append(meeting)
        wanted += [] if asked else [meeting]
    for name in needed:
        for need in STAGES[name].needs:
            if STAGES[need].of_launches and not launched:
                continue
            if need in skipped:
                raise UsageError(f"--skip {need}: stage {name} needs it; skip {name} too")
            if need not in needed:
                needed.append(need)
    if not needed:
        raise UsageError("no stage is left to run")
    return [s for s in STAGES if s in needed], [
        s for s in STAGES if s in needed and s not in wanted
    ]


def parse(argv: Sequence[str], environ: dict[str, str]) -> argparse.Namespace:
    options = _parser().parse_args(argv)
    for name, value in vars(options).items():
        if isinstance(value, list):
            # What argparse makes of `--option=--`.
            raise UsageError(f"--{name.replace('_', '-')}: give a value")
    if options.nproc is not None and not 1 <= options.nproc <= _MOST_RANKS:
        raise UsageError(f"--nproc {options.nproc}: give a number from 1 to {_MOST_RANKS}")
    per_gpu = options.ranks_per_gpu
    if per_gpu is not None:
        if not 1 <= per_gpu <= _MOST_PER_GPU:
            raise UsageError(f"--ranks-per-gpu {per_gpu}: give a number from 1 to {_MOST_PER_GPU}")
        if options.nproc is not None:
            raise UsageError("--ranks-per-gpu and --nproc: both say how many ranks; give one")
        if options.backend == "gloo":
            raise UsageError("--ranks-per-gpu: gloo ranks run on the CPU; use --nproc")
    if options.timeout is not None and not (
        math.isfinite(options.timeout) and 0 < options.timeout < 1e6
    ):
        raise UsageError(f"--timeout {options.timeout:g}: give a number of seconds above 0")
    options.launch, options.partial = Launch(family="none"), None
    try:
        options.launch = launcher.detect(
            environ, options.launcher, parent=os.getppid(), user=os.getuid()
        )
    except UnusableError as error:
        options.partial = error
    launcher.check_usage(options.launch, options.nproc, per_gpu)
    options.stage_ids, options.added_ids = choose(
        _names(options.stages, "--stages"),
        _names(options.skip, "--skip"),
        options.launch.meets or options.partial is not None,
    )
    options.deadlines = {
        name: options.timeout or STAGES[name].deadline * BUDGETS[options.budget]
        for name in options.stage_ids
    }
    options.environ = environ
    options.verbose = options.verbose or options.debug
    for option in _FILES:
        # Rank 0's copy writes them.
        if getattr(options, option) is not None and options.launch.rank == 0:
            check_writable(Path(getattr(options, option)), f"--{option}")
    return options


def _colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Shown:
    """Prints the text report piece by piece, or nothing where JSON was asked for."""

    def __init__(self, session: Session) -> None:
        self.quiet = session.options.json
        # Some launchers give each copy a terminal of its own, whatever a person reads.
        self.colour = _colour(sys.stdout) and session.launch.family == "none"
        self.begun = False
        # What ended before it was known what torch is: shown under the header.
        self.early: list[StageResult] = []

    def lines(self, lines: Sequence[str]) -> None:
        if not self.quiet:
            _print("\n".join(lines) + "\n" if lines else "")

    def stage(self, session: Session, result: StageResult) -> None:
        ids = session.options.stage_ids
        self.early.append(result)
        if not self.begun and result.id == rendezvous.STAGE.id and len(ids) > 1:
            return
        if not self.begun:
            self.begun = True
            self.lines([*text.header(report.head(session)), ""])
        for one in self.early:
            self.lines(text.stage_lines(report.stage_as_json(one), self.colour))
        self.early.clear()

    def end(self, made: report.Report) -> None:
        self.lines(text.ending(made, self.colour))


def _print(words: str) -> None:
    """Writes to standard output; a reader that has gone does not change the verdict."""
    try:
        sys.stdout.write(words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_stage(session: Session, stage: Stage, before: Sequence[StageResult]) -> StageResult:
    deadline = session.options.deadlines[stage.id]
    result = StageResult(id=stage.id, status=NOT_REACHED, deadline=deadline)
    if session.interrupt.signal is not None:
        result.status = INTERRUPTED
        return result
    passed = {one.id for one in before if one.status == STAGE_PASSED}
    # Without a launcher nobody has to meet.
    needs = [need for need in stage.needs if need in session.options.stage_ids]
    missing = [need for need in needs if need not in passed]
    if missing:
        result.summary = f"needs {', '.join(missing)}"
        return result
    begin = time.monotonic()
    session.log(f"stage {stage.id}: begins, deadline {deadline:g} s")
    try:
        result = stage.run(session, deadline)
    except Exception as error:
        # The next stages may not need this one, and their verdict is worth having.
        session.log(traceback.format_exc())
        result.status, result.summary = STAGE_FAILED, f"{type(error).__name__}: {error}"
        result.findings = [found("GC0910", f"{stage.id}: {type(error).__name__}: {error}")]
    result.seconds = time.monotonic() - begin
    session.log(f"stage {stage.id}: {result.status} after {result.seconds:.2f} s")
    return result


def run(session: Session, show: _Shown) -> report.Report:
    """All stages, and whatever happens the end of every process."""
    begin = time.monotonic()
    results: list[StageResult] = []
    after: list[Finding] = []
    try:
        for name in session.options.stage_ids:
            result = _run_stage(session, STAGES[name], results)
            results.append(result)
            show.stage(session, result)
        if session.crew is not None:
            session.log("tear-down")
            after += session.crew.leave(LEAVE_DEADLINE)
    finally:
        after += probing.end(session)
        if session.crew is not None:
            after += session.crew.end()
        session.here.close()
    return report.build(session, results, after, time.monotonic() - begin)


def _log(words: str) -> None:
    print(f"gpucomm-selftest: {words}", file=sys.stderr, flush=True)


def _show_debug(made: report.Report) -> None:
    for stage in made["stages"]:
        for rank in stage["stopped_ranks"]:
            for line in [*rank["output"], *(rank["traceback"] or "").splitlines()]:
                _log(f"rank {rank['rank']}: {line}")


def _write_files(options: argparse.Namespace, made: report.Report, document: str) -> None:
    if options.output is not None:
        write_whole(Path(options.output), document.encode())
    if options.junit is not None:
        write_whole(Path(options.junit), junit(made))
    if options.bundle is not None:
        content = bundle.bundle(made, options.environ, bundle.machine_files())
        # For its owner alone: what names a machine is not for every user of it.
        write_whole(Path(options.bundle), content, mode=0o600)


def _lead(session: Session) -> int:
    """Runs all stages, alone or for all copies. These hear last how it ended: a launcher ends
    every copy when the first one has failed."""
    code = FAILED
    try:
        show = _Shown(session)
        made = run(session, show)
        show.end(made)
        document = json.dumps(made, indent=2) + "\n"
        if session.options.json:
            _print(document)
        _write_files(session.options, made, document)
        if session.options.debug:
            _show_debug(made)
        code = int(made["exit_code"])
    finally:
        if session.meeting is not None:
            session.meeting.end(code)
    return code


def _follow(session: Session) -> int:
    """Serves rank 0's copy, which has the report; one of its own only where rank 0 is lost."""
    options, begin = session.options, time.monotonic()
    deadline = options.deadlines[rendezvous.STAGE.id]
    ended = agent.run(session.launch, deadline, options.environ, session.interrupt, session.log)
    if ended.finding is None:
        session.log(f"rank {session.launch.rank}: ends with exit code {ended.code}")
        return ended.code
    seconds = time.monotonic() - begin
    result = rendezvous.failure(*ended.finding, deadline)
    result.seconds = seconds
    show = _Shown(session)
    made = report.build(session, [result], [], seconds)
    show.stage(session, result)
    show.end(made)
    if options.json:
        _print(json.dumps(made, indent=2) + "\n")
    return int(made["exit_code"])


def _explain(argv: Sequence[str]) -> int:
    parser = _Parser(
        prog="gpucomm-selftest explain",
        description="What a finding means and what to do about it. Without an id: all of them.",
        allow_abbrev=False,
    )
    parser.add_argument("id", nargs="*", help="such as GC0302")
    parser.add_argument("--markdown", action="store_true", help="all of them as one page")
    try:
        options = parser.parse_args(argv)
        _print(
            explain.markdown()
            if options.markdown
            else "\n".join(explain.explain(options.id)) + "\n"
        )
    except UsageError as error:
        _log(f"{error} (see --help)")
        return USAGE
    return PASSED


def _open_streams() -> None:
    """Gives closed standard streams to /dev/null, before a pipe or a file takes their number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main(argv: Sequence[str] | None = None) -> int:
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["explain"]:
        return _explain(arguments[1:])
    debug = "--debug" in arguments
    interrupt = Interrupt()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A value of the environment may hold bytes that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = parse(arguments, dict(os.environ))
        interrupt.install()
        session = Session(
            options=options,
            interrupt=interrupt,
            log=_log if options.verbose else lambda words: None,
            notice=_log,
            here=Here(),
            launch=options.launch,
            partial=options.partial,
        )
        return _follow(session) if options.launch.rank else _lead(session)
    except SelftestError as error:
        _log(f"{error} (see --help)" if error.exit_code == USAGE else str(error))
        return error.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        _log(f"FAIL: internal error: {type(error).__name__}: {error}; --debug shows where")
        return FAILED
