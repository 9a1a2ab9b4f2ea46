"""Judges the settings of the communication libraries. Pure: data in, findings out."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucomm_selftest import lintdata
from gpucomm_selftest.findings import Finding, found
from gpucomm_selftest.settings import Setting, Unread

# Close enough to be a slip of the finger. Measured on the names of NCCL 2.32: it maps
# NCCL_SOCKET_IFNAM and NCCL_IB_DISABLED to the right ones.
_CLOSE = 0.85


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the settings may name on this machine."""

    interfaces: Sequence[str]
    hcas: Mapping[str, Sequence[str]]  # device -> its ports
    gids: int | None = None  # the most GIDs of a port; nothing without RDMA
    plugins: Mapping[str, str] = field(default_factory=dict)  # why the one of a setting cannot open
    exists: Callable[[str], bool] = field(default=lambda name: Path(name).exists())


@dataclass(frozen=True, kw_only=True)
class Use:
    """Who reads the settings in this run."""

    backend: str
    family: str = "nccl"  # or rccl
    library: int | None  # the version of the loaded collective library as a number, such as 22005


Named = tuple[str, Finding]  # the setting, and what is wrong with it


def _shown(setting: Setting) -> str:
    where = "" if setting.origin == "environment" else f" ({setting.origin})"
    return f"{setting.name}={setting.value}{where}"


def _is_foreign(name: str) -> bool:
    return name in lintdata.FOREIGN or name.startswith(lintdata.FOREIGN_PREFIXES)


def check_name(setting: Setting, known: frozenset[str]) -> Finding | None:
    """Whether anybody reads this name."""
    name = setting.name
    if name in lintdata.RENAMED:
        return found("GC0503", f"{_shown(setting)}; torch reads {lintdata.RENAMED[name]}")
    if name in lintdata.REMOVED and name not in known:
        return found("GC0502", f"{_shown(setting)}; instead: {lintdata.REMOVED[name]}")
    if name in lintdata.WITHOUT_EFFECT and name not in known:
        return found("GC0504", f"{_shown(setting)}; {lintdata.WITHOUT_EFFECT[name]}")
    if not known or not name.startswith(("NCCL_", "RCCL_")):
        return None
    if name in known or _is_foreign(name):
        return None
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
    hint = f"; did you mean {close[0]}?" if close else ""
    return found("GC0501", f"{_shown(setting)} is not among the {len(known)} names it knows{hint}")


def _parts(name: str, value: str) -> Iterator[str]:
    """The words of a value: without ^, without the function they are for. NCCL trims nothing."""
    for one in value.split(";") if name in lintdata.PER_FUNCTION else [value]:
        _, colon, words = one.partition(":")
        if name in lintdata.PER_FUNCTION and colon:
            one = words
        yield from (word for word in one.removeprefix("^").split(",") if word)


def _words_of(name: str, use: Use) -> tuple[str, ...]:
    return lintdata.WORDS[name] + (lintdata.WORDS_OF_RCCL if use.family == "rccl" else {}).get(
        name, ()
    )


def _wrong_word(name: str, value: str, use: Use) -> str:
    """The first word of a value that the library does not know, and what it does know."""
    allowed = _words_of(name, use)
    exact = name in lintdata.EXACT_CASE
    known = set(allowed) if exact else {word.lower() for word in allowed}
    for word in _parts(name, value):
        if name in lintdata.WORDS_OR_NUMBERS and word.lstrip("-").isdigit():
            continue
        if (word if exact else word.lower()) not in known:
            said = repr(word) if word != word.strip() else word
            return f"{said} is none of {', '.join(allowed)}"
    if name in lintdata.PER_FUNCTION:
        functions = [part.partition(":")[0] for part in value.split(";") if ":" in part]
        known = {function.lower() for function in lintdata.FUNCTIONS}
        for function in functions:
            if function.lower() not in known:
                return f"{function} is none of {', '.join(lintdata.FUNCTIONS)}"
        if any(":" not in part for part in value.split(";")[1:] if part):
            return "only the first part may be without a function"
    return ""


def _integer(text: str) -> int | None:
    """As C reads it: 0x is hexadecimal, a leading 0 octal."""
    try:
        octal = text.startswith("0") and text.isdigit()
        return int(text, 8) if octal else int(text, 0)
    except ValueError:
        return None


def check_value(setting: Setting, use: Use) -> Finding | None:
    name, value = setting.name, setting.value.strip()
    if not value:
        return None
    if name in lintdata.WORDS:
        wrong = _wrong_word(name, setting.value, use)
        if wrong:
            fatal = name in lintdata.FATAL_WORDS and (use.library or 0) >= lintdata.FATAL_SINCE
            kind = "GC0505" if fatal and use.backend == "nccl" else "GC0506"
            return found(kind, f"{_shown(setting)}: {wrong}")
    elif name in lintdata.RANGES:
        least, most = lintdata.RANGES[name]
        number = _integer(value)
        if number is None:
            switch = name in lintdata.TORCH_SWITCHES and value.lower() in lintdata.SWITCH_WORDS
            return None if switch else found("GC0506", f"{_shown(setting)} is no number")
        # -1 and -2 mean "choose" in NCCL.
        if not least <= number <= most and not (number in (-1, -2) and name.startswith("NCCL_")):
            return found("GC0507", f"{_shown(setting)} is not within {least} to {most}")
    return None


def matches(value: str, names: Sequence[str]) -> list[str]:
    """The interfaces or devices that a list chooses, by NCCL's rules: prefixes, or exact names
    after =, or all but these after ^."""
    excludes = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    wanted = [one.partition(":")[0] for one in rest.removeprefix("=").split(",") if one]

    def chosen(name: str) -> bool:
        return any(name == one if exact else name.startswith(one) for one in wanted)

    return [name for name in names if chosen(name) != excludes]


def _names_a_file(name: str, value: str) -> bool:
    return name in lintdata.FILES or (name in lintdata.PLUGINS and "/" in value)


def check_host(setting: Setting, host: Host, use: Use) -> Finding | None:
    """Whether what a setting names is here."""
    name, value = setting.name, setting.value.strip()
    if not value:
        return None
    if name in lintdata.INTERFACES:
        # NCCL passes over a value of one letter.
        reader = "gloo" if name.startswith("GLOO") else "nccl"
        if use.backend != reader or len(value) < 2:
            return None
        listed = ", ".join(host.interfaces)
        if name.startswith("GLOO"):
            missing = [one for one in value.split(",") if one and one not in host.interfaces]
            return found("GC0508", f"{_shown(setting)}; here are {listed}") if missing else None
        if not matches(value, host.interfaces):
            return found("GC0508", f"{_shown(setting)}; here are {listed}")
    elif name == "NCCL_IB_HCA" and host.hcas:
        if not matches(value, list(host.hcas)):
            return found("GC0509", f"{_shown(setting)}; here are {', '.join(host.hcas)}")
        if not value.startswith(("=", "^")):
            for one in value.split(","):
                also = [
                    hca for hca in host.hcas if hca.startswith(one) and hca[len(one) :].isdigit()
                ]
                if one in host.hcas and also:
                    return found("GC0515", f"{_shown(setting)} takes {', '.join(also)} too")
    elif name == "NCCL_IB_GID_INDEX" and host.gids is not None:
        if value.isdigit() and int(value) >= host.gids:
            return found("GC0516", f"{_shown(setting)}; no port has more than {host.gids} GIDs")
    elif _names_a_file(name, value) and not host.exists(value):
        fatal = name in lintdata.FATAL_FILES and use.backend == "nccl"
        kind = "GC0518" if fatal else "GC0510"
        return found(kind, f"{_shown(setting)}: there is no such file")
    elif host.plugins.get(name):
        return found("GC0517", f"{_shown(setting)}: {host.plugins[name]}")
    return None


def check_cost(setting: Setting) -> Finding | None:
    """Whether it was left over from the search for an error."""
    for kind, table in (("GC0511", lintdata.BYPASSES), ("GC0512", lintdata.SLOW)):
        if setting.name in table:
            value, cost = table[setting.name]
            if setting.value.strip().upper() == value:
                return found(kind, f"{_shown(setting)}: {cost}")
    return None


def _number(settings: Mapping[str, Setting], name: str) -> int | None:
    text = settings[name].value.strip() if name in settings else ""
    return int(text) if text.isdigit() else None


def check_pairs(settings: Sequence[Setting]) -> Iterator[Named]:
    """Settings that do not go together."""
    by_name = {setting.name: setting for setting in settings}

    def on(name: str) -> bool:
        return _number(by_name, name) == 1

    if on("NCCL_MULTI_RANK_GPU_ENABLE") and on("NCCL_NVLS_ENABLE"):
        yield (
            "NCCL_MULTI_RANK_GPU_ENABLE",
            found("GC0513", "NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL_NVLS_ENABLE=1: init fails"),
        )
    threads = _number(by_name, "NCCL_SOCKET_NTHREADS") or 1
    sockets = _number(by_name, "NCCL_NSOCKS_PERTHREAD") or 1
    if threads * sockets > 64:
        said = f"NCCL_SOCKET_NTHREADS={threads} times NCCL_NSOCKS_PERTHREAD={sockets}: above 64"
        yield "NCCL_NSOCKS_PERTHREAD", found("GC0513", said)
    recorder = [
        _number(by_name, name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    ]
    if on("TORCH_NCCL_DUMP_ON_TIMEOUT") and 0 in recorder:
        said = "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and a recorder of no entries: nothing is dumped"
        yield "TORCH_NCCL_DUMP_ON_TIMEOUT", found("GC0513", said)


def judge(
    settings: Sequence[Setting],
    unread: Sequence[Unread],
    known: frozenset[str],
    host: Host,
    use: Use,
) -> list[Named]:
    """What is wrong, by the setting it is of. Without a collective library nobody reads its
    variables, so they are left alone."""
    named: list[Named] = []
    looked = [
        setting
        for setting in settings
        if use.library or not setting.name.startswith(("NCCL_", "RCCL_"))
    ]
    for setting in looked:
        wrong_name = check_name(setting, known)
        findings = [
            wrong_name,
            *(() if wrong_name else (check_value(setting, use), check_host(setting, host, use))),
            check_cost(setting),
        ]
        named += [(setting.name, finding) for finding in findings if finding]
    named += check_pairs(looked)
    named += [("", found("GC0514", f"{one.where}: {one.text}")) for one in unread]
    return named
