"""Names the first cause of a run that stopped: which rank, what happened to it, who only waited.

Pure: it is given what the launcher saw of each rank. It must not look at processes itself.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# What a rank says when another one has gone: a consequence, never the cause while a cause is known.
_PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|remote process exited|network error"
    r"|socket (timeout|closed)|peer (closed|has closed)|failed to (recv|send)|ncclRemoteError"
    r"|ncclSystemError|store.*(timed? ?out|shut ?down)|connect.*timed? ?out",
    re.IGNORECASE,
)


# More ranks in a row than this are told by the first and the last.
_LISTED = 4


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One rank as the launcher saw it when the stage stopped."""

    rank: int  # its place in the crew
    pid: int
    last: str  # the last operation that it said it entered
    entered: int  # how many operations it entered in this stage
    role: str = "rank"
    stands_for: tuple[int, ...] = ()  # of a probe: the ranks of its site
    host: str = ""  # empty where all ranks are on one host
    done: bool = False  # it finished the stage
    signal: int | None = None
    status: int | None = None  # exit status, where it exited by itself
    lost: str = ""  # why its copy of the self-test cannot be asked any more
    said_bye: bool = False  # its copy was told to end by a signal, and said so
    ended_at: float = 0.0
    error: str | None = None
    error_at: float = 0.0
    state: str = ""  # the letter of /proc/PID/stat, or `?` where its copy has gone silent

    @property
    def gone(self) -> bool:
        return self.signal is not None or self.status is not None or bool(self.lost)

    @property
    def fell(self) -> bool:
        """Whether it ended before anybody wanted it to."""
        return (self.gone and not self.said_bye) or self.error is not None

    @property
    def name(self) -> str:
        who = f"rank {self.rank}" if self.role == "rank" else f"the {self.role}"
        if self.stands_for:
            who += f" of {numbered(self.stands_for)}"
        where = f" on {self.host}" if self.host else ""
        return f"{who} (pid {self.pid}{where})"

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.stands_for or (self.rank,)

    @property
    def end(self) -> str:
        """How it ended, where it has."""
        if self.lost:
            return f"was lost: {self.lost}"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with status {self.status}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def numbered(ranks: Iterable[int]) -> str:
    """`rank 0`, `ranks 0,1,3`, `ranks 0-7,9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    said = ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > _LISTED else ",".join(str(rank) for rank in run)
        for run in runs
    )
    return f"rank {said}" if said.isdigit() else f"ranks {said}"


def _numbers(views: Iterable["RankView"]) -> str:
    return numbered(rank for view in views for rank in view.ranks)


def _where(view: RankView, stage: str) -> str:
    return f"{stage}: {view.last}" if view.last else stage


def _others(views: Sequence[RankView], causes: Sequence[RankView]) -> str:
    named = {view.rank for view in causes}
    others = [view for view in views if view.rank not in named]
    if not others:
        return ""
    parts = []
    failed = [view for view in others if view.gone or view.error]
    finished = [view for view in others if view.done and view not in failed]
    waiting = [view for view in others if view not in failed + finished]
    for some, one, many in (
        (waiting, "was waiting", "were waiting"),
        (failed, "failed as a consequence", "failed as a consequence"),
        (finished, "had finished", "had finished"),
    ):
        if some:
            parts.append(f"{_numbers(some)} {one if len(some) == 1 else many}")
    return "; " + ", ".join(parts)


def first_causes(views: Sequence[RankView]) -> list[RankView]:
    """The ranks that stopped the others, or nothing if none died or raised.

    A lost copy comes before all, a signal from outside or a crash before an abort (libraries abort
    when a peer has gone), an abort before an exception, and an exception of its own before one
    that only says that a peer has gone.
    """
    lost = [view for view in views if view.lost]
    if lost:
        # A signal reaches many where a launcher ends them because one has gone.
        cause = min(lost, key=lambda v: (v.said_bye, v.ended_at, v.rank))
        return [cause]
    crashed = [v for v in views if v.signal is not None and v.signal != signal.SIGABRT]
    if crashed:
        return sorted(crashed, key=lambda v: (v.ended_at, v.rank))
    raised = [v for v in views if v.error is not None]
    own = [v for v in raised if not _PEER_LOST.search(v.error or "")]
    if own:
        return [min(own, key=lambda v: (v.error_at, v.rank))]
    gone = [v for v in views if v.gone]
    if gone:
        return [min(gone, key=lambda v: (v.ended_at, v.rank))]
    if raised:
        return [min(raised, key=lambda v: (v.error_at, v.rank))]
    return []


def explain_failure(views: Sequence[RankView], stage: str) -> tuple[str, str]:
    """The finding id and the sentence for a stage in which a rank died or raised."""
    causes = first_causes(views)
    if not causes:
        raise ValueError("no rank died or raised")
    if causes[0].lost or (causes[0].gone and not (causes[0].error and causes[0].signal is None)):
        ends = [f"{view.name} {view.end} during {_where(view, stage)}" for view in causes]
        return "GC0706" if causes[0].lost else "GC0901", "; ".join(ends) + _others(views, causes)
    cause = causes[0]
    return (
        "GC0903",
        f"{cause.name} raised during {_where(cause, stage)}: {cause.error}"
        + _others(views, causes),
    )


def suspects(views: Sequence[RankView]) -> tuple[list[RankView], str]:
    """The ranks that the others wait for, and what is known of them. May be none."""
    open_ones = [view for view in views if not view.done]
    stopped = [view for view in open_ones if view.state in ("T", "t")]
    if stopped:
        return stopped, "stopped (process state T: SIGSTOP or a debugger)"
    silent = [view for view in open_ones if view.state == "?"]
    if silent:
        return silent, "silent with its copy of the self-test (stopped, or the network broke)"
    asleep = [view for view in open_ones if view.state == "D"]
    if asleep and len(asleep) < len(open_ones):
        return asleep, "in uninterruptible sleep (process state D: a driver or a disk)"
    furthest = max(view.entered for view in views) if views else 0
    behind = [view for view in open_ones if view.entered < furthest]
    if behind:
        ahead = [view for view in views if not view.done and view.entered == furthest]
        if len(behind) > len(ahead) > 0 and not any(view.done for view in views):
            # Most wait in an operation that these have left, or never entered.
            return ahead, "ahead of the others (skipped an operation, or left it early)"
        least = min(view.entered for view in behind)
        return [view for view in behind if view.entered == least], "behind the others"
    if len(open_ones) < len(views):
        return open_ones, "not done while the others are"
    return [], ""


def explain_hang(views: Sequence[RankView], stage: str, deadline: float) -> tuple[str, str]:
    """The finding id and the sentence for a stage that did not end within its deadline."""
    limit = f"{stage} did not end within {deadline:g} s"
    causes, what = suspects(views)
    if causes:
        verb = "is" if len(causes) == 1 else "are"
        names = ", ".join(view.name for view in causes)
        last = causes[0].last or "its start"
        return (
            "GC0902",
            f"{limit}: {names} {verb} {what}, last entered: {last}" + _others(views, causes),
        )
    if len(views) == 1:
        return "GC0902", f"{limit}: {views[0].name} entered {views[0].last or 'nothing'}"
    places: dict[str, list[RankView]] = {}
    for view in views:
        places.setdefault(view.last or "nothing", []).append(view)
    if len(places) > 1:
        said = "; ".join(
            f"{_numbers(there)} entered {where}"
            for where, there in sorted(places.items(), key=lambda one: len(one[1]))
        )
        return "GC0907", f"{limit}: {said}"
    last = views[0].last or "nothing"
    names = ", ".join(view.name for view in views)
    return "GC0908", f"{limit}: every rank entered {last} and none came out: {names}"
