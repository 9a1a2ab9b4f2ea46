"""Any matrix.yaml is read, or refused with the place of every fault; nothing else, and soon.

The files are the real one and the small one with damage, plain data with damage, data made from
the schema, and whole matrices of tests/matrixes.py. GPUCOMM_FUZZ sets how many; they are the same
in every run.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import matrixes
from tests.matrixes import Shape

from gpucomm import located, lock, matrix, render, rules, schema, standard
from gpucomm.cell import base_image
from gpucomm.errors import WrongInput
from gpucomm.requirements import requirements_of
from gpucomm.schema import Matrix, Model

FILES = int(os.environ.get("GPUCOMM_FUZZ", "1000"))
SECONDS = 5.0
"""What one file may take."""
THROUGH_COMMAND = 20
GPUCOMM = Path(sys.executable).parent / "gpucomm"
PLACE = re.compile(r"matrix\.yaml:([1-9]\d*):([1-9]\d*): \S.*")
LINE_BREAK = re.compile(r"\r\n|\r|\n")

Draw: TypeAlias = st.DrawFn
Mutation: TypeAlias = Callable[[Draw, str], str]

# --- what is put where it does not belong ---------------------------------------------------

# fmt: off
ODD = [
    "", "~", "null", "true", "no", "0", "-1", "1", "3.10", "1e3", "010", "0x1F", "1_0", "12:30:45",
    "2027-12-31", "2027-12-31T10:00:00Z", ".inf", "-.nan", "9" * 30, "9" * 300, "9" * 5000,
    "word", "'", '"', '"a\\nb"', '"\\e[1m"', '"\\0"', "a b", "é", "😀", "\u202e", "\ufeff",
    "\uff43\uff55", "[]", "{}", "[[]]", "[1, 2]", "{a: b}", "{a: {b: [c]}}", "[a, {b: c}]", "*x",
    "*nowhere", "&x", "&x word", "&x [*x]", "!!int 7", "!!int x", "!!set {a}", "!!binary aGk=",
    "!t word", "!<tag:x> y", "|", ">-", "<<", "- x", "? x", "#", ": x", "a: b: c", "%", "@x", "`x",
    "\t", "{", "}", "[", "]", ",", "---", "...", '"open', '"%s"', "a" * 300, f'"{"k" * 3000}"',
    "{package: x}", '"{toolkit}"', '"{cuda}"',
]
# What may stand in place of a value, by what that value looks like.
ALIKE: list[tuple[re.Pattern[str], list[str]]] = [
    (re.compile(r'"?[<>=]'), [
        '""', '"<2.4"', '">=2.4"', '">=9,<1"', '"===2.4.1"', '"===x"', '"~=2"', '"~=2.1"',
        '"==2.*"',
        '"<{cuda}"', '"=={cuda}.*"', '"=={cuda}"', '"==1.*.2"', '"<1,"', '"<2.*"', '"=={toolkit}"',
        '"!=2.4.1"', '">2-1"', '"<2.1+cu1"', '">=3.8,<3.12"', '"< 2"', f'"<{"9" * 5000}"',
        f'"{">1," * 500}>1"', '"=={}.*"', '"==1!2"', '"v2"', '"<2 "',
    ]),
    (re.compile(r'"?\d[\w.]*"?$'), [
        '"2.2.2"', '"2.4.1"', '"2.13.0"', '"2.21.5"', '"2.20.5"', '"2.20.5.0"', '"3.12"', '"12.1"',
        '"12"', '"12.1rc1"', '"12.1.dev1"', '"12.1.post1"', '"12.1+x"', '"1!2.3"', '"v2.1"',
        '" 2.4.1"', '"2.4.1\\n"', '"2-1"', '"2.1a"', '"2_1"', '"2..1"', '"2."', '"0"', '"00.1"',
        '"99999.1"', f'"{"9" * 5000}"', f'"{"1." * 2000}1"', "static", '"\\u0662.1"',
    ]),
    (re.compile(r"\S*[/{]"), [
        "r.example/a", "r.example:5000/a/b", "R/a", "a", '"{toolkit}"', '"a{toolkit}b{toolkit}"',
        '"{"', '"{}"', '"{0}"', '"{x}"', '"{toolkit.__class__}"', '"{toolkit!r:>99}"',
        '"{{toolkit}}"',
        "https://x.example", "../x", '"a\\nb"',
    ]),
    (re.compile(r'"?[\w.]*\*'), [
        '"*"', '"cu*"', '"cu12*"', '"rocm*"', '"cpu"', '"zz*"', '"[c-"', '"[!c]*"', '"[c]*"',
        '"?????"',
        f'"{"*a" * 400}"', f'"{"*" * 400}"', '"**"', '"cu121-*"', '""', '"CU*"', "debian12",
    ]),
    (re.compile(r"[a-z][\w.-]*$"), [
        "cu121", "cu130", "cpu", "rocm6.1", "debian12", "ubuntu24.04", "runtime", "slim", "devel",
        "mpi", "torchvision", "static", "overrides", "bundled", "cuda", "rocm", "arm64", "amd64",
        "metadata", "variants", "default", "pytorch", "auto", "warn", "deny", "nccl2", "torch2",
        "rccl2", "py3.11", "numpy", "torch", "cu12", "cu13", "nvidia-nccl-cu12", "a-b", "A", "a/b",
        "x:1", "true", "gfx942", "cu121-torch2.4.1-nccl2.20.5", "cpu-torch2.13.0",
        "cu121-torch2.4.1-nccl2.20.5-slim", "cu130-torch2.13.0-nccl2.29.7-mpi",
    ]),
]
NAMES = [
    "lines", "torch", "nccl", "overrides", "standard", "os", "flavor", "flavors", "extras", "when",
    "arch", "reason", "source", "sources", "rules", "checks", "aliases", "default", "defaults",
    "wheels", "wheel", "python", "glibc", "cuda", "rocm", "rccl", "toolkit", "gpus", "version",
    "accelerator", "gpu_targets", "known", "with", "holds", "require", "url", "a.b", "<<", "[key]",
]
ANYWHERE = [
    "\t", "\x00", "\x07", "\x1b", "\x85", "\u2028", "\ufeff", "\ufffe", "\r", "\r\n", "\n", " ",
    "  ", "\n  ", ":", ": ", "-", "- ", "\n- ", "#", " # ", "&x ", "*x ", "!", "|\n", ">\n", "{",
    "}", "[", "]", ",", '"', "'", "\\", "%", "é", "😀", "\U000e0001", "\n---\n", "\n...\n",
]
# fmt: on
SCALAR = re.compile(r'"[^"\n]*"|[^\s\[\]{},:"#&*]+(?!\S*:)')
QUOTED = re.compile(r'"([^"\n]*)"')
WORD = re.compile(r"[A-Za-z][\w.-]+")
KEY = re.compile(r"[\w.-]+(?=:)")
ITEM = re.compile(r", [^,\[\]{}\n]+|[^,\[\]{}\n]+, |(?<=\[)[^,\[\]{}\n]+(?=\])")
PAIR = re.compile(r'([\w".-]+): ("[^"\n]*"|[^\s\[\]{},"]+)')
LIST = re.compile(r"\[[^\[\]\n]*\]")
MAPPING = re.compile(r"\{[^{}\n]*\}")


def _lines(draw: Draw, text: str, count: int) -> tuple[list[str], list[int]]:
    rows = text.splitlines(keepends=True) or [""]
    return rows, [draw(st.integers(0, len(rows) - 1)) for _ in range(count)]


def delete_lines(draw: Draw, text: str) -> str:
    """One line, or a few that follow each other."""
    rows, (at,) = _lines(draw, text, 1)
    return "".join(rows[:at] + rows[at + draw(st.integers(1, 6)) :])


def duplicate_lines(draw: Draw, text: str) -> str:
    """A key twice, a block twice, or a line where it means something else."""
    rows, (at, to) = _lines(draw, text, 2)
    copied = rows[at : at + draw(st.integers(1, 6))]
    to = draw(st.sampled_from([at, to]))
    return "".join(rows[:to] + copied + rows[to:])


def swap_lines(draw: Draw, text: str) -> str:
    """Two lines, anywhere."""
    rows, (one, two) = _lines(draw, text, 2)
    rows[one], rows[two] = rows[two], rows[one]
    return "".join(rows)


def indent_line(draw: Draw, text: str) -> str:
    """Too far in, too far out, or with a tab."""
    rows, (at,) = _lines(draw, text, 1)
    inner = rows[at].lstrip(" ")
    before = len(rows[at]) - len(inner)
    rows[at] = (
        draw(st.sampled_from([" " * (before + 1), " " * (before + 2), "\t", "", "  "])) + inner
    )
    return "".join(rows)


def _replaced(draw: Draw, text: str, pattern: re.Pattern[str], new: Callable[[str], str]) -> str:
    spans = [found.span() for found in pattern.finditer(text)]
    if not spans:
        return text
    start, end = draw(st.sampled_from(spans))
    return text[:start] + new(text[start:end]) + text[end:]


def change_scalar(draw: Draw, text: str) -> str:
    """Another kind of value."""
    return _replaced(draw, text, SCALAR, lambda _: draw(st.sampled_from(ODD)))


def change_alike(draw: Draw, text: str) -> str:
    """A value that could stand there, or nearly. Every kind as often, however rare it is."""
    looks, values = draw(st.sampled_from(ALIKE))
    spans = [found.span() for found in SCALAR.finditer(text) if looks.match(found[0])]
    if not spans:
        return text
    start, end = draw(st.sampled_from(spans))
    return text[:start] + draw(st.sampled_from(values)) + text[end:]


def rename_everywhere(draw: Draw, text: str) -> str:
    """Another name or version for one that the file has, wherever it stands: ids included."""
    looks, values = draw(st.sampled_from(ALIKE))
    names = sorted({found[0] for found in SCALAR.finditer(text) if looks.match(found[0])})
    names += sorted({found[0] for found in KEY.finditer(text) if looks.match(found[0])})
    if not names:
        return text
    old = draw(st.sampled_from(names)).strip('"')
    return text.replace(old, draw(st.sampled_from(values)).strip('"')) if len(old) > 2 else text


def move_scalar(draw: Draw, text: str) -> str:
    """A value of one key at another."""
    values = [found[0] for found in SCALAR.finditer(text)] or [""]
    return _replaced(draw, text, SCALAR, lambda _: draw(st.sampled_from(values)))


def unquote(draw: Draw, text: str) -> str:
    """Versions that YAML reads as numbers."""
    return _replaced(draw, text, QUOTED, lambda old: old.strip('"'))


def misspell(draw: Draw, text: str) -> str:
    """One letter of a key or a name lost, doubled or another."""

    def changed(old: str) -> str:
        at = draw(st.integers(0, len(old) - 1))
        return (
            old[:at] + draw(st.sampled_from(["", old[at] * 2, "q", "_", "-", "0"])) + old[at + 1 :]
        )

    return _replaced(draw, text, WORD, changed)


def rename_key(draw: Draw, text: str) -> str:
    """A key of somewhere else."""
    return _replaced(draw, text, KEY, lambda _: draw(st.sampled_from(NAMES)))


def remove_item(draw: Draw, text: str) -> str:
    """An item of a list in brackets."""
    return _replaced(draw, text, ITEM, lambda _: "")


def another_kind(draw: Draw, text: str) -> str:
    """A list for a mapping, the reverse, or neither."""
    pattern = draw(st.sampled_from([LIST, MAPPING]))
    new = draw(st.sampled_from(["[{}]", "{{{}}}", "[[{}]]", "{{a: [{}]}}", "{}", "[{}"]))
    return _replaced(draw, text, pattern, lambda old: new.format(old[1:-1]))


def alias(draw: Draw, text: str) -> str:
    """An anchor at one value, and it or a merge in other places."""
    text = _replaced(draw, text, SCALAR, lambda old: f"&x {old}")
    for _ in range(draw(st.integers(1, 3))):
        text = _replaced(draw, text, SCALAR, lambda _: "*x")
    if draw(st.booleans()):
        rows, (at,) = _lines(draw, text, 1)
        space = " " * (len(rows[at]) - len(rows[at].lstrip(" ")))
        rows.insert(at, f"{space}<<: {draw(st.sampled_from(['*x', '[*x, *x]', '{a: b}']))}\n")
        text = "".join(rows)
    return text


def insert_anywhere(draw: Draw, text: str) -> str:
    """A character that does not belong there."""
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from(ANYWHERE)) + text[at + draw(st.integers(0, 3)) :]


def truncate(draw: Draw, text: str) -> str:
    """A file that was not written to its end."""
    return text[: draw(st.integers(0, len(text)))]


def nest(draw: Draw, text: str) -> str:
    """Brackets or mappings, deeper than anybody writes them."""
    depth = draw(st.sampled_from([20, 70, 500, 3000]))
    left, right = draw(st.sampled_from([("[", "]"), ("{a: ", "}"), ("[", ""), ("- ", "")]))
    return _replaced(draw, text, SCALAR, lambda old: left * depth + old + right * depth)


def bomb(draw: Draw, text: str) -> str:
    """Aliases of aliases; a small file that is a large one."""
    levels = draw(st.sampled_from([3, 5, 8, 30]))
    rows = ["b0: &b0 [cu121, cpu]"]
    rows += [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, levels)]
    text = "\n".join(rows) + "\n" + text
    return _replaced(draw, text, LIST, lambda _: f"*b{levels - 1}") if draw(st.booleans()) else text


def multiply(draw: Draw, text: str) -> str:
    """A row of the standard set with more combinations than anybody builds."""
    counts = [draw(st.sampled_from([1, 3, 30, 300])) for _ in range(3)]
    os, flavor, extras = (
        ", ".join([name] * n)
        for name, n in zip(("debian12", "runtime", "[mpi]"), counts, strict=True)
    )
    row = f"  - {{reason: all of everything, os: [{os}], flavor: [{flavor}], extras: [{extras}]}}\n"
    return text.replace("\nstandard:\n", f"\nstandard:\n{row}", 1)


def many(draw: Draw, text: str) -> str:
    """Hundreds of one thing: unknown keys, aliases that point at nothing, names that are none."""
    count = draw(st.sampled_from([10, 300]))
    after, row = draw(
        st.sampled_from(
            [
                ("\naliases:\n", "  a{}: cu121-torch2.4.1-nccl2.{}.5\n"),
                ("\nextras:\n", "  extra{}: {{apt: [x]}}\n"),
                ("\nsystems:\n", "  system{}: {{}}\n"),
                ("\nlines:\n", "  cu9{}: {{accelerator: cpu, torch: {{}}}}\n"),
                ("\nsources:\n", "  s{}: {{read: nothing of interest}}\n"),
                ("\n", "k{}: v\n"),
                (
                    "\nrules:\n",
                    "  r{}: {{when: {{torch: '<2.4'}}, reason: none at all, source: metadata}}\n",
                ),
                (
                    "\nholds:\n",
                    "  - {{package: p{}, require: '', lines: [c{}], reason: no such line}}\n",
                ),
            ]
        )
    )
    return text.replace(after, after + "".join(row.format(n, n) for n in range(count)), 1)


def other_line_breaks(draw: Draw, text: str) -> str:
    """As other systems write them."""
    return text.replace("\n", draw(st.sampled_from(["\r\n", "\r", "\n\n"])))


def comment_out(draw: Draw, text: str) -> str:
    """As people do while they look for a fault."""
    rows, (at,) = _lines(draw, text, 1)
    rows[at] = f"# {rows[at]}"
    return "".join(rows)


NEAR: list[Mutation] = [
    change_alike, change_alike, rename_everywhere, rename_everywhere, move_scalar, remove_item,
]  # fmt: skip
MUTATIONS: list[Mutation] = [
    *NEAR, change_scalar, change_scalar, unquote, misspell, misspell, rename_key, another_kind,
    delete_lines, duplicate_lines, swap_lines, indent_line, alias, insert_anywhere, truncate, nest,
    bomb, multiply, many, other_line_breaks, comment_out,
]  # fmt: skip


@st.composite
def damaged(draw: Draw, texts: list[str], mutations: list[Mutation], most: int) -> str:
    """One of `texts` after up to `most` mutations."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, most))):
        text = draw(st.sampled_from(mutations))(draw, text)
    return text


# --- plain data -----------------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, 0, -1, 2, 3.1, 10**90, "", "x", "2.4.1", "cu121", "<2", "*", "\x1b[1m", "é" * 200,
    [], {}, [[]], [{}], {"": None}, {"2.4.1": {}}, ["cu121", "cpu"], [["mpi"]], {"lines": ["cu*"]},
]  # fmt: skip


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(data, dict):
        steps = list(data.items())
    else:
        steps = list(enumerate(data)) if isinstance(data, list) else []
    for step, inner in steps:
        found += _paths(inner, (*path, step))
    return found


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


@st.composite
def damaged_data(draw: Draw, texts: list[str]) -> str:
    """The data of one of `texts` with values removed, replaced or put elsewhere, as JSON."""
    data: Any = located.parse(draw(st.sampled_from(texts)), "matrix.yaml").data
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(data)
        path = draw(st.sampled_from(paths))
        holder, step = _at(data, path[:-1]), path[-1]
        match draw(st.sampled_from(["remove", "replace", "copy", "rename"])):
            case "remove":
                del holder[step]
            case "replace":
                # A copy: what is put into it later must not be there in the next file.
                holder[step] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            case "copy":
                other = _at(data, draw(st.sampled_from(paths)))
                holder[step] = json.loads(json.dumps(other))
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from([*NAMES, "cu999", "2.99"]))] = holder.pop(step)
    return json.dumps(data, indent=draw(st.sampled_from([None, 1, 2])), ensure_ascii=False)


NAME_POOL = st.sampled_from(["cu1", "cpu", "os1", "os2", "base", "fat", "mpi", "x", "m"])
VERSION_POOL = st.sampled_from(["1", "1.0", "2.1.0", "2.10", "3.11", "12.1"])
TEXT_POOLS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (schema.Name, NAME_POOL),
    (schema.VersionText, VERSION_POOL),
    (schema.DateText, st.sampled_from(["2027-12-31", "20271231", "2027-02-30"])),
    (schema.Repository, st.sampled_from(["r.example/a", "R/a", "r.example:1/a/b"])),
    (schema.Reason, st.sampled_from(["because of that", "short"])),
    (schema.RuleName, st.sampled_from([*rules.CHECKS, "metadata", "r1"])),
    (schema.Package, st.sampled_from(["numpy", "nvidia-nccl-cu12", "p+", "-x"])),
]
ANY_TEXT = st.sampled_from(
    [
        "",
        "*",
        "cu*",
        "[x",
        "cu1-torch2.1.0",
        "a b",
        "{toolkit}",
        "{x}",
        "==1",
        "<2",
        ">=1,<3",
        "=={cuda}.*",
    ]
)


def of_schema(kind: Any) -> st.SearchStrategy[Any]:
    """Data that the schema mostly takes, made from few names so that references sometimes hold."""
    for known, pool in TEXT_POOLS:
        if kind == known:
            return pool
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return of_schema(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of([of_schema(one) for one in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(of_schema(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(of_schema(arguments[0]), of_schema(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Model):
        return _of_model(kind)
    simple: Mapping[Any, st.SearchStrategy[Any]] = {
        str: ANY_TEXT,
        int: st.integers(-1, 10),
        bool: st.booleans(),
        NoneType: st.none(),
    }
    return simple[kind]


def _of_model(kind: type[Model]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    needed: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name, info in kind.model_fields.items():
        group = needed if info.is_required() else optional
        group[info.alias or name] = of_schema(hints[name])
    return st.fixed_dictionaries(needed, optional=optional)


SHAPES = st.builds(
    Shape,
    lines=st.sampled_from([1, 2, 5]),
    torches=st.sampled_from([1, 3]),
    overrides=st.sampled_from([0, 1, 4]),
    systems=st.sampled_from([1, 2, 3, 20, 150]),
    flavors=st.sampled_from([1, 2, 3, 10]),
    extras=st.sampled_from([0, 1, 2, 30]),
)


# --- the test -------------------------------------------------------------------------------


@dataclass
class Record:
    """What became of the files of one run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Some of the refused files, with their faults."""
    failures: dict[str, str] = field(default_factory=dict)
    """For each kind of failure the first file that shows it; the smallest would take minutes."""

    def add(self, text: str) -> None:
        """Read `text`, and note a failure unless it is taken or refused as it must be."""
        try:
            self._hold(text)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} in {place.name}: {str(error)[:300]}"
            self.outcomes["failed"] += 1
            if f"{place.filename}:{place.lineno}" not in {
                kind.split()[0] for kind in self.failures
            }:
                self.failures[f"{place.filename}:{place.lineno} {said}"] = text

    def _hold(self, text: str) -> None:
        # Of this process: others on the machine make no file slow.
        started = time.process_time()
        try:
            found = matrix.check(located.parse(text, matrix.FILE))
            cells = standard.cells_of(found)
        except WrongInput as error:
            self.seconds.append(time.process_time() - started)
            assert_refused(text, error)
            self.outcomes["refused"] += 1
            if self.outcomes["refused"] % (max(FILES, 100) // 40) == 0:
                self.refused.setdefault(text, error.faults)
        else:
            self.seconds.append(time.process_time() - started)
            assert_usable(found)
            self.outcomes["taken"] += 1
            self.outcomes["cells"] += len(cells)
        assert self.seconds[-1] < SECONDS, f"{self.seconds[-1]:.1f} s"

    def __str__(self) -> str:
        return (
            f"{len(self.seconds)} files: {self.outcomes['taken']} taken with "
            f"{self.outcomes['cells']} cells, {self.outcomes['refused']} refused; slowest "
            f"{max(self.seconds):.2f} s, {sum(self.seconds):.0f} s for all"
        )


def assert_refused(text: str, error: WrongInput) -> None:
    """Every fault is one line that can be printed, at a place that the file has."""
    assert error.exit_code == 2
    assert error.faults
    lines = LINE_BREAK.split(text.removeprefix("\ufeff"))
    for fault in error.faults:
        place = PLACE.fullmatch(fault)
        assert place, fault
        assert fault.isprintable(), fault
        assert "function-" not in fault, fault
        line, column = int(place[1]), int(place[2])
        assert line <= len(lines), fault
        assert column <= len(lines[line - 1]) + 1, fault


def assert_usable(found: Matrix) -> None:
    """Ids are unique and lead back to their cells; whatever is derived from a cell can be."""
    cells = standard.cells_of(found)
    assert cells
    assert set(found.aliases.values()) <= standard.by_id(found).keys()
    assert len({cell.id for cell in cells}) == len(cells)
    assert lock.wanted_keys(found, cells[:1000])
    for cell in cells[:: len(cells) // 20 + 1]:
        assert standard.on_demand(found, cell.id) == cell
        assert re.fullmatch(r"[a-z0-9._-]+", cell.id), cell.id
        rules.denials(found, cell)
        rules.warnings(found, cell)
        render.labels_of(found, cell)
        base_image(found, cell)
        requirements_of(found, cell)


@pytest.fixture(scope="module")
def record(root: Path, small_text: str) -> Record:
    """What became of all files; those that the command line is held to are among them."""
    real = (root / matrix.FILE).read_text(encoding="utf-8")
    texts = [small_text] * 5 + [real]
    near, far = damaged(texts, NEAR, 2), damaged(texts, MUTATIONS, 3)
    files = st.one_of(
        *[near] * 4,
        *[far] * 4,
        *[damaged_data([small_text])] * 2,
        _of_model(Matrix).map(json.dumps),
        SHAPES.map(matrixes.text_of),
        st.text(max_size=80),
    )
    found = Record()

    @settings(max_examples=FILES, suppress_health_check=list(HealthCheck))
    @given(files)
    def read(text: str) -> None:
        found.add(text)

    for text in (small_text, real):
        found.add(text)
    read()
    return found


def test_any_matrix_is_taken_or_refused_with_the_place_of_every_fault(
    record: Record, tmp_path: Path
) -> None:
    print(record)
    for number, text in enumerate(record.failures.values()):
        (tmp_path / f"{number}.yaml").write_bytes(text.encode())
    assert not record.failures, "\n".join([f"see {tmp_path}", *record.failures])
    assert len(record.seconds) >= FILES
    assert record.outcomes["taken"] > FILES / 20
    assert record.outcomes["refused"] > FILES / 2


def test_the_command_refuses_the_same_files_with_the_same_faults(
    record: Record, root: Path, tmp_path: Path
) -> None:
    files = list(record.refused.items())[:THROUGH_COMMAND]
    assert len(files) == THROUGH_COMMAND

    def listed(number: int) -> subprocess.CompletedProcess[str]:
        checkout = tmp_path / str(number)
        checkout.mkdir()
        (checkout / matrix.FILE).write_bytes(files[number][0].encode())
        shutil.copy(root / lock.FILE, checkout)
        return subprocess.run(
            [str(GPUCOMM), "list"],
            cwd=checkout,
            env=os.environ | {"GPUCOMM_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(listed, range(len(files))))
    for run, (_, faults) in zip(runs, files, strict=True):
        assert run.returncode == 2, run.stderr
        assert run.stdout == ""
        assert tuple(run.stderr.splitlines()) == tuple(f"gpucomm: {fault}" for fault in faults)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(lines=1, torches=5, overrides=1, systems=5, flavors=2),
        Shape(lines=10, torches=5, systems=2),
        Shape(lines=2, torches=5, overrides=1, flavors=1, extras=4),
    ],
    ids=str,
)
def test_a_made_matrix_has_as_many_cells_as_its_shape_and_a_lock_that_answers_it(
    shape: Shape,
) -> None:
    found = matrix.check(located.parse(matrixes.text_of(shape), matrix.FILE))
    cells = standard.cells_of(found)
    assert len(cells) == shape.cells == 100
    assert len({cell.id for cell in cells}) == 100
    made = matrixes.lock_of(found)
    assert list(lock.faults_of(found, made)) == []
    assert all(len(made.wheels(cell, found)) > 20 for cell in cells)
