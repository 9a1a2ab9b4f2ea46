"""The report as text for a terminal of 100 columns. Pure: data in, lines out.

It must not decide anything: levels, verdict and sentences are those of the report.
"""

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from gpucomm_selftest.report import failed_output
from gpucomm_selftest.topology import draw

WIDTH = 100

_CODES = {"pass": "32", "info": "36", "unsupported": "36", "warn": "33", "fail": "31"}
_LEVEL_OF = {"hang": "fail", "unusable": "fail", "interrupted": "fail"}
_MARKS = {"pass": "ok", "fail": "WRONG", "unsupported": "n/a"}

# What is said of a finding, in this order, where there is something to say.
_PARTS = (
    ("measured", "measured"),
    ("expected", "expected"),
    ("cause", "cause"),
    ("do", "action"),
    ("Kubernetes", "kubernetes"),
    ("Slurm", "slurm"),
)

# As much of the name of a host as fits beside the times.
_HOST = 22
# How much of what a library says of itself is shown; JSON has all of it.
_EVIDENCE = 40

Lines = list[str]


def _paint(text: str, level: str, colour: bool) -> str:
    code = _CODES.get(_LEVEL_OF.get(level, level))
    return f"\033[{code}m{text}\033[0m" if colour and code else text


def _printable(text: str) -> str:
    """Text without what moves a cursor or colours a terminal: values come from anywhere."""
    return "".join(
        letter if letter.isprintable() or letter.isspace() else f"\\x{ord(letter):02x}"
        for letter in text
    )


def _field(name: str, value: str, indent: int = 2, column: int = 11) -> Lines:
    lead = " " * indent + name.ljust(column)
    return textwrap.wrap(
        _printable(value) or "-",
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _gpu_lines(versions: Mapping[str, Any]) -> Lines:
    kinds: dict[tuple[str, int], list[int]] = {}
    for gpu in versions["gpus"]:
        kinds.setdefault((gpu["name"], gpu["memory_bytes"]), []).append(gpu["index"])
    if not kinds:
        return _field("GPUs", "none visible to torch")
    lines: Lines = []
    for (name, memory), indexes in kinds.items():
        where = f"{indexes[0]}" if len(indexes) == 1 else f"{indexes[0]}..{indexes[-1]}"
        lines += _field("GPUs", f"{len(indexes)} x {name}, {_gigabytes(memory)} (index {where})")
    return lines


def _version_lines(versions: Mapping[str, Any]) -> Lines:
    built = (
        f"CUDA {versions['cuda']}"
        if versions["cuda"]
        else f"HIP {versions['hip']}"
        if versions["hip"]
        else "no CUDA or HIP"
    )
    lines = _field(
        "torch",
        f"{versions['torch']}, built for {built}, Python {versions['python']}, "
        f"imported in {versions['import_seconds']:.1f} s",
    )
    lines += _field("platform", versions["platform"])
    driver = versions["driver"]
    lines += _field(
        "driver",
        f"{driver['name']} {driver['version']} ({driver['from']})" if driver else "none to be seen",
    )
    lines += _gpu_lines(versions)
    libraries = versions["libraries"]
    for one in libraries:
        compiled = versions["compiled_for"]
        note = f", torch was compiled for {compiled}" if compiled else ""
        family = one["family"].upper()
        lines += _field("library", f"{family} {one['version'] or '?'} loaded{note}")
        # On a line of its own, unbroken: it is there to be copied.
        lines.append(f"    {one['path']}")
    if not libraries:
        lines += _field("library", "no libnccl or librccl loaded")
    return lines


def header(report: Mapping[str, Any]) -> Lines:
    """Every setting and version that the results depend on."""
    settings = report["settings"]
    lines = [f"{report['program']} {report['version']}"]
    world = report["world"]
    if world:
        lines += _field("backend", f"{world['backend']} ({world['why_backend']})")
        where = f"on {world['gpus']} GPUs" if world["gpus"] != 1 else "on 1 GPU"
        ranks = f"{world['size']} {where if world['gpus'] else 'on the CPU'}"
        if world["functional_only"]:
            ranks += ": FUNCTIONAL TEST ONLY, its speed means nothing"
        lines += _field("ranks", ranks)
    else:
        lines += _field("backend", f"{settings['backend']} (asked for)")
    launch = settings["launcher"]
    if launch["family"] != "none":
        met = f", they meet at {launch['address']}" if launch["address"] else ""
        lines += _field("launcher", f"{launch['family']}: {launch['copies']} copies{met}")
    if report["versions"]:
        lines += _version_lines(report["versions"])
    stages = ", ".join(f"{one} {settings['deadlines'][one]:g} s" for one in settings["stages"])
    lines += _field("budget", f"{settings['budget']}: {stages}")
    if settings["added_stages"]:
        lines += _field("added", f"{', '.join(settings['added_stages'])} (needed by the others)")
    set_here = world["environment_set"] if world else {}
    for name, value in set_here.items():
        lines += _field("set", f"{name}={value} (for the ranks, by the self-test)")
    for name, value in settings["environment"].items():
        if name not in set_here:
            lines += _field("found", f"{name}={value}")
    return lines


def progress(stage: Mapping[str, Any], colour: bool = False) -> Lines:
    """One stage that has ended."""
    lines = _field(
        stage["id"],
        f"{stage['status'].ljust(11)} {stage['seconds']:7.2f} s  {stage['summary']}".rstrip(),
        column=13,
    )
    if not lines:
        return lines
    status = stage["status"].ljust(11)
    lines[0] = lines[0].replace(status, _paint(status, stage["status"], colour), 1)
    return lines


def _init_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    hosts = any(row.get("host") for row in stage["rows"])
    lines = [
        "",
        "  rank      pid   GPU   import  context    store     init  first all_reduce"
        + "  host" * hosts,
    ]
    for row in stage["rows"]:
        gpu = "-" if row["gpu"] is None else str(row["gpu"])
        lines.append(
            f"  {row['rank']:4}  {row['pid']:7}  {gpu:>4}  {row['import_seconds']:5.2f} s"
            f"  {row['context_seconds']:5.2f} s  {row['store_seconds']:5.2f} s"
            f"  {row['init_seconds']:5.2f} s          {row['first_all_reduce_seconds']:6.3f} s"
            f"  {row.get('host', '')[:_HOST]}".rstrip()
        )
    return lines


def _correctness_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    """One line for each collective, and another for what of it was not exact."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    names = dict.fromkeys(f"{row['collective']} {row['op']}".strip() for row in stage["rows"])
    for row in stage["rows"]:
        name = f"{row['collective']} {row['op']}".strip()
        groups.setdefault((name, row["level"]), []).append(row)
    sizes = ", ".join(str(count) for count in sorted({row["count"] for row in stage["rows"]}))
    lines = [
        "",
        *_field("compared bit for bit, elements per block:", sizes, column=42),
        "  " + "collective".ljust(28) + "  checks   dtypes",
    ]
    for name in names:
        for level in ("fail", "unsupported", "pass"):
            rows = groups.get((name, level), [])
            if rows:
                mark = f"{len(rows):>4} {_MARKS[level]}"
                dtypes = " ".join(dict.fromkeys(row["dtype"] for row in rows))
                shown = _field(f"{name.ljust(28)}{mark}", dtypes, column=39)
                shown[0] = shown[0].replace(mark, _paint(mark, level, colour), 1)
                lines += shown
    return lines


def _topology_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    lines = draw(stage["rows"], WIDTH)
    return ["", *lines] if lines else []


def _preflight_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    lines = [""]
    for row in stage["rows"]:
        mark = row["level"].ljust(6)
        shown = _field(row["check"], f"{mark}{row['value']}", column=15)
        shown[0] = shown[0].replace(mark, _paint(mark, row["level"], colour), 1)
        lines += shown
    return lines


def _libraries_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    lines = [""]
    for row in stage["rows"]:
        # The path on a line of its own, unbroken: it is there to be copied.
        lines += [*_field(row["kind"], row["owner"], column=12), f"    {row['path']}"]
    return lines


def _lint_table(stage: Mapping[str, Any], colour: bool) -> Lines:
    lines = [""]
    for row in stage["rows"]:
        mark = row["level"].ljust(6)
        where = "" if row["origin"] == "environment" else f" ({row['origin']})"
        shown = _field("", f"{mark}{row['name']}={row['value']}{where}", column=0)
        shown[0] = shown[0].replace(mark, _paint(mark, row["level"], colour), 1)
        lines += shown
    return lines


# The stages whose rows are a table for people. JSON has the rows of all.
_TABLES: dict[str, Callable[[Mapping[str, Any], bool], Lines]] = {
    "preflight": _preflight_table,
    "libraries": _libraries_table,
    "lint": _lint_table,
    "init": _init_table,
    "topology": _topology_table,
    "correctness": _correctness_table,
}


def tables(stage: Mapping[str, Any], colour: bool = False) -> Lines:
    """The rows of a stage, where it has a table of its own."""
    table = _TABLES.get(stage["id"])
    return table(stage, colour) if table and stage["rows"] else []


def stage_lines(stage: Mapping[str, Any], colour: bool = False) -> Lines:
    """All that is printed when a stage has ended."""
    table = tables(stage, colour)
    return [*progress(stage, colour), *table, *([""] if table else [])]


def findings(report: Mapping[str, Any], colour: bool = False) -> Lines:
    lines: Lines = []
    for one in report["findings"]:
        if one["level"] == "pass":
            # The lines of the stages say it already; JSON has it in full.
            continue
        title = f"{one['level'].upper()}: {one['title']}"
        painted = _field(one["id"], title, column=10)
        painted[0] = painted[0].replace(
            one["level"].upper(), _paint(one["level"].upper(), one["level"], colour), 1
        )
        lines += painted
        for name, part in _PARTS:
            if one[part]:
                lines += _field(name, one[part], indent=12, column=12)
        lines.append("")
    return lines


def footer(report: Mapping[str, Any], colour: bool = False) -> Lines:
    lines: Lines = []
    for name, output in failed_output(report):
        lines += [
            f"  last output of {name}:",
            *(f"    | {_printable(line)}".rstrip() for line in output),
            "",
        ]
    for stage in report["stages"]:
        told = stage.get("evidence", [])
        if told:
            lines.append("  torch and the library say of themselves:")
            lines += [f"    | {_printable(line)}".rstrip() for line in told[:_EVIDENCE]]
            lines.append("")
    word = report["verdict"].upper()
    sentence = textwrap.wrap(
        f"{word}: {report['summary']} [{report['seconds']:.1f} s, exit {report['exit_code']}]",
        WIDTH,
        break_on_hyphens=False,
        break_long_words=False,
    )
    sentence[0] = sentence[0].replace(word, _paint(word, report["verdict"], colour), 1)
    return [*lines, *sentence]


def ending(report: Mapping[str, Any], colour: bool = False) -> Lines:
    """All that is printed after the last stage."""
    stages = report["stages"]
    gap = [] if stages and tables(stages[-1]) else [""]
    return [*gap, *findings(report, colour), *footer(report, colour)]


def whole(report: Mapping[str, Any], colour: bool = False) -> str:
    """The full text of a finished run: what was printed while it ran, in one piece."""
    lines = [*header(report), ""]
    for stage in report["stages"]:
        lines += stage_lines(stage, colour)
    lines += ending(report, colour)
    return "\n".join(lines) + "\n"
