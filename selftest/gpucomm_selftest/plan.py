"""What is checked, by how much time there is: every collective always, all its cases in depth.

Pure: every rank makes the same plan from the same setting, and goes through it in step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpucomm_selftest.collectives import ALL_OPS, COLLECTIVES, OBJECT, OBJECTS, Check
from gpucomm_selftest.values import FLOATING, LIMITS, averages_exactly

QUICK, STANDARD, DEEP = "quick", "standard", "deep"

DTYPES = tuple(LIMITS)
_INTEGERS = ("int8", "uint8", "int32", "int64")
_FP8 = ("fp8_e4m3", "fp8_e5m2")

# A prime: no chunking divides it.
PRIME = 1021


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that a plan depends on."""

    world: int
    backend: str
    gpu: bool = False
    shared: bool = False  # ranks share a GPU: each operation takes milliseconds
    budget: str = QUICK

    @property
    def large(self) -> int:
        """Enough to fill the library's pipeline."""
        return 1 << 20 if self.gpu and not self.shared else 1 << 16


def reductions(dtype: str, setting: Setting) -> list[str]:
    """The reductions that have one exact answer in this dtype and that the backend offers."""
    if dtype == "bool":
        return ["max"]
    if dtype == "complex64":
        return ["sum"]
    if dtype in _FP8:
        # Gloo has no arithmetic for them.
        return ["sum", "max"] if setting.backend == "nccl" else []
    ops = ["sum", "min", "max", "prod"]
    if dtype in FLOATING and averages_exactly(setting.world, dtype):
        ops.append("avg")
    if setting.backend == "nccl":
        # One rank alone: NCCL 2.28.9 leaves the last elements of some sizes as they are, which
        # harms nobody, since nothing is communicated.
        scales = dtype in ("fp32", "fp16", "fp64") and setting.world > 1
        return [*ops, "premul_sum"] if scales else ops
    # NCCL has no reductions of bits.
    return [*ops, "band", "bor", "bxor"] if dtype in _INTEGERS else ops


def _offered(setting: Setting) -> list[str]:
    return [
        one.name
        for one in COLLECTIVES.values()
        if setting.world >= one.smallest_world
        and setting.backend in one.backends
        and (setting.gpu or not one.needs_gpu)
        and (setting.budget == DEEP or one.name not in ("all_reduce_ll", "all_reduce_simple"))
    ]


def _adds_anyway(name: str, op: str, setting: Setting) -> bool:
    """Gloo of torch 2.4 adds in these, whatever reduction it is asked for: known, and no fault
    of this machine."""
    forms = ("reduce_scatter_tensor", "reduce_scatter_in_place")
    return setting.backend == "gloo" and name in forms and op != "sum"


def _has_no_call(name: str, dtype: str, count: int, setting: Setting) -> bool:
    """What must not even be asked for."""
    if name == "reduce_scatter_uneven" and dtype == "complex64" and setting.backend == "nccl":
        # torch 2.11 refuses the type in the middle of a group of calls and leaves the group open:
        # every later send and receive of the process then waits in it and moves nothing.
        return True
    # A graph of nothing is empty, and torch warns of it.
    return COLLECTIVES[name].needs_gpu and count == 0


def _check(collective: str, op: str, dtype: str, count: int, **how: object) -> Check:
    return Check(collective=collective, op=op, dtype=dtype, count=count, **how)  # type: ignore[arg-type]


def _specials(setting: Setting) -> list[Check]:
    """NaN and infinity, which one rank alone does not have to propagate."""
    if setting.world < 2:
        return []
    return [
        _check("all_reduce", op, dtype, PRIME, values=values)
        for dtype in FLOATING
        for values, op in (("nan", "sum"), ("nan", "prod"), ("inf", "sum"), ("inf", "max"))
        # In a short run both kinds once each.
        if setting.budget != QUICK or (op == "sum" and dtype in ("fp32", "bf16"))
    ]


def _plain(setting: Setting) -> list[Check]:
    barriers = [_check("barrier", "", "int64", 1)]
    return barriers + [
        _check(name, "", OBJECT, count)
        for name in OBJECTS
        for count in ((PRIME,) if setting.budget == QUICK else (0, PRIME, 1 << 16))
    ]


def _quick(setting: Setting) -> Iterable[Check]:
    for dtype in DTYPES:
        ops = reductions(dtype, setting)
        few = ops if dtype in ("fp32", "int32") else ops[:1]
        for op in few:
            yield _check("all_reduce", op, dtype, PRIME)
    for count in (0, 1, setting.large):
        yield _check("all_reduce", "sum", "fp32", count)
    for dtype in ("fp32", "bf16"):
        yield _check("all_reduce", "sum", dtype, PRIME, unaligned=True)
    for name in _offered(setting):
        one = COLLECTIVES[name]
        if name == "all_reduce" or one.plain:
            continue
        if name == "all_gather":
            # The dtypes that some backends move, but do not add.
            for dtype in ("bool", "complex64", *(_FP8 if setting.backend == "nccl" else ())):
                yield _check(name, "", dtype, PRIME)
        yield _check(name, one.ops[0], "fp32", PRIME)
        if not setting.shared:
            yield _check(name, one.ops[0], "bf16", setting.large)
            yield _check(name, one.ops[0], "int64", PRIME)


def _full(setting: Setting) -> Iterable[Check]:
    counts = [0, 1, PRIME, setting.large]
    if setting.budget == DEEP:
        counts += [2, 3, 127, 4097, setting.large * 4 + 1]
    for name in _offered(setting):
        one = COLLECTIVES[name]
        if one.plain:
            continue
        for dtype in DTYPES:
            known = reductions(dtype, setting)
            for op in one.ops:
                if op and (op not in known or _adds_anyway(name, op, setting)):
                    continue
                for count in counts:
                    if not _has_no_call(name, dtype, count, setting):
                        yield _check(name, op, dtype, count)
                if _has_no_call(name, dtype, PRIME, setting):
                    continue
                yield _check(name, op, dtype, PRIME, unaligned=True)


def plan(setting: Setting) -> list[Check]:
    """All checks of a run, in the order in which every rank makes them."""
    checks = _quick(setting) if setting.budget == QUICK else _full(setting)
    order = {name: at for at, name in enumerate([*COLLECTIVES, *OBJECTS])}
    ops = {op: at for at, op in enumerate(("", *ALL_OPS))}
    return sorted(
        [*checks, *_specials(setting), *_plain(setting)],
        key=lambda check: (order[check.collective], ops[check.op]),
    )
