"""Stage `init`: one process per rank, the process group, and a first collective on each rank.

The ranks stay alive for the stages after it. It must not judge results: that is correctness.
"""

import datetime
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpucomm_selftest import ras, recorder, transports
from gpucomm_selftest.crew import Crew, Event
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.libraries import describe_own
from gpucomm_selftest.probing import end
from gpucomm_selftest.stage import RankContext, Session, Stage, StageResult, status_of, stopped
from gpucomm_selftest.world import World

# torch's own time-out comes after our deadline: the launcher ends a hang, for all ranks at once,
# and knows which rank is behind it. torch would abort each rank with a message of its own.
_MARGIN = 120.0

# Seen with torch 2.4: a thread of Gloo that drops the tensors of the last operation needs the
# interpreter's lock, which the main thread holds while it waits for that thread's end in
# destroy_process_group. One run in twelve hung so on two busy cores. The thread needs a moment
# without the lock; NCCL has no such thread.
_SETTLE = 0.2


def _store(context: RankContext, limit: datetime.timedelta, address: str) -> Any:
    """The meeting point, on a port that the system picks: no race for a free one. Rank 0 serves
    it at all its addresses."""
    import torch.distributed as dist

    if context.rank == 0:
        context.enter("open the store")
        store = dist.TCPStore(
            address, 0, context.world, True, timeout=limit, wait_for_workers=False
        )
        context.send("store", port=store.port)
        # As many steps as on the others: who entered fewer is taken for the one that is behind.
        context.enter("the store is open")
        return store
    context.enter("wait for the store of rank 0")
    port = context.receive()["port"]
    context.enter("connect to the store")
    return dist.TCPStore(address, port, context.world, False, timeout=limit, wait_for_workers=False)


def _open_device(context: RankContext, gpu: int | None) -> Any:
    import torch

    if gpu is None:
        return torch.device("cpu")
    device = torch.device("cuda", gpu)
    context.enter(f"create a context on GPU {gpu}")
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    return device


def _leave() -> None:
    import torch.distributed as dist

    if dist.get_backend() == "gloo":
        time.sleep(_SETTLE)
    dist.destroy_process_group()


def work(context: RankContext, args: Mapping[str, Any]) -> dict[str, Any]:
    clock = [time.monotonic()]

    def lap() -> float:
        clock.append(time.monotonic())
        return round(clock[-1] - clock[-2], 4)

    context.enter("import torch")
    import torch
    import torch.distributed as dist

    import_seconds = lap()
    device = _open_device(context, args["gpu"])
    context_seconds = lap()
    limit = datetime.timedelta(seconds=args["deadline"] + _MARGIN)
    store = _store(context, limit, args["address"])
    store_seconds = lap()
    options: dict[str, Any] = {}
    takes_device = "device_id" in inspect.signature(dist.init_process_group).parameters
    if args["gpu"] is not None and takes_device:
        # Creates the communicator now, not in the first collective. All transfers between two
        # ranks are batched, so it serialises nothing.
        options["device_id"] = device
    context.enter(f"init_process_group {args['backend']}")
    dist.init_process_group(
        args["backend"],
        store=store,
        rank=context.rank,
        world_size=context.world,
        timeout=limit,
        **options,
    )
    init_seconds = lap()
    context.enter("first all_reduce")
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    first = float(one.item())
    first_seconds = lap()
    context.kept.update(device=device, store=store, on_leave=[_leave])
    return {
        "gpu": args["gpu"],
        "first_result": first,
        "import_seconds": import_seconds,
        "context_seconds": context_seconds,
        "store_seconds": store_seconds,
        "init_seconds": init_seconds,
        "first_all_reduce_seconds": first_seconds,
        "libraries": describe_own(),
        "log": transports.own(os.environ),
    }


Libraries = Sequence[Mapping[str, Any]]


def _named(libraries: Libraries) -> str:
    named = sorted(f"{one['path']} ({one['version']})" for one in libraries)
    return ", ".join(named) or "none"


def _expected(session: Session) -> Callable[[int], Libraries]:
    """What the probe of its site had mapped, for each rank."""
    number_of = {rank: at for at, site in enumerate(session.sites) for rank in site.ranks}
    return lambda rank: session.probes[number_of.get(rank, 0)]["libraries"]


def judge(
    results: Mapping[int, Mapping[str, Any]], expected: Callable[[int], Libraries]
) -> list[Finding]:
    """Looks for the odd rank out, by what each process had mapped after its first collective."""
    findings = []
    odd: dict[str, list[str]] = {}
    for rank, result in sorted(results.items()):
        mapped, known = _named(result["libraries"]), _named(expected(rank))
        if mapped != known:
            odd.setdefault(known, []).append(f"rank {rank}: {mapped}")
    findings += [
        found("GC0105", f"before init: {known}; {'; '.join(said)}") for known, said in odd.items()
    ]
    wrong = [
        f"rank {rank}: {result['first_result']:g}"
        for rank, result in sorted(results.items())
        if result["first_result"] != len(results)
    ]
    if wrong:
        measured = f"first all_reduce of ones over {len(results)} ranks: {', '.join(wrong)}"
        findings.append(found("GC0302", measured))
    return findings


def _ras(world: World, environ: Mapping[str, str]) -> Callable[[], list[str]]:
    """Asks NCCL of the ranks that hang, where it has the service for it."""
    where = ras.address(environ)
    if world.backend != "nccl" or (world.library_code or 0) < ras.SINCE or where is None:
        return list
    return lambda: ras.status(where)


def run(session: Session, deadline: float) -> StageResult:
    world = session.world
    if world is None or not session.probes:
        raise RuntimeError("init runs after versions")
    left = end(session)
    meeting = session.meeting
    recorded = recorder.environment(session.probes[0]["torch"], session.options.environ)
    crew = session.crew = Crew(
        places=meeting.places(session.here) if meeting else [session.here] * world.size,
        role="rank",
        environment_of=lambda rank: {**recorded, **world.environment_of(rank)},
        interrupt=session.interrupt,
        log=session.log,
        capture=world.backend == "nccl",
        ask_of_hang=_ras(world, session.options.environ),
    )
    crew.start()

    def pass_on(rank: int, event: Event) -> None:
        if event["event"] == "store":
            for other in range(1, crew.size):
                crew.tell(other, command="store", port=event["port"])

    longest = max(session.options.deadlines.values())
    outcome = crew.work(
        STAGE.id,
        lambda rank: {
            "backend": world.backend,
            "gpu": world.gpu_of(rank),
            "deadline": longest,
            "address": meeting.address_for(rank) if meeting else "127.0.0.1",
        },
        deadline,
        pass_on,
    )
    if outcome.ended:
        result = stopped(STAGE.id, deadline, outcome)
        logs = {rank: transports.parse(text).as_json() for rank, text in crew.logs.items()}
        result.findings += transports.judge_warnings(logs)
        return result
    rows = [
        {
            "rank": rank,
            "pid": crew.pids[rank],
            "host": crew.hosts[rank],
            **{name: value for name, value in result.items() if name != "libraries"},
        }
        for rank, result in sorted(outcome.results.items())
    ]
    slowest = max(rows, key=lambda row: row["init_seconds"])
    measured = (
        f"{len(rows)} ranks; slowest init_process_group {slowest['init_seconds']:.2f} s on "
        f"rank {slowest['rank']}, slowest first all_reduce "
        f"{max(row['first_all_reduce_seconds'] for row in rows):.2f} s"
    )
    logs = {rank: result["log"] for rank, result in outcome.results.items() if result["log"]}
    ways = transports.summary(logs)
    measured += f"; {ways}" if ways else ""
    findings = [*left, *judge(outcome.results, _expected(session))]
    if not findings:
        findings = [found("GC0201", measured)]
    findings += transports.judge(logs, session.options.environ, world.shares_gpus)
    return StageResult(
        id=STAGE.id,
        status=status_of(findings),
        deadline=deadline,
        summary=measured,
        rows=rows,
        findings=findings,
    )


STAGE = Stage(
    id="init",
    title="process group on every rank",
    needs=("rendezvous", "versions"),
    deadline=120.0,
    run=run,
    work=work,
)
