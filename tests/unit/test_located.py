"""located.py: every path of a file knows its place; what is wrong is said with file and place."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucomm import located
from gpucomm.located import Mark

MATRIX = (Path(__file__).resolve().parents[2] / "matrix.yaml").read_text(encoding="utf-8")
NESTED = """\
# a comment
first: one
second:
  inner: {deep: two}
  rows:
    - a
    - b: c
"""


def test_every_path_has_its_place() -> None:
    found = located.parse(NESTED, "matrix.yaml")
    assert found.faults == ()
    assert found.data == {
        "first": "one",
        "second": {"inner": {"deep": "two"}, "rows": ["a", {"b": "c"}]},
    }
    assert found.marks == {
        (): Mark(2, 1),
        ("first",): Mark(2, 1),
        ("second",): Mark(3, 1),
        ("second", "inner"): Mark(4, 3),
        ("second", "inner", "deep"): Mark(4, 11),
        ("second", "rows"): Mark(5, 3),
        ("second", "rows", 0): Mark(6, 7),
        ("second", "rows", 1): Mark(7, 7),
        ("second", "rows", 1, "b"): Mark(7, 7),
    }


def test_a_path_that_is_not_there_has_the_place_of_its_deepest_part() -> None:
    found = located.parse(NESTED, "matrix.yaml")
    assert found.mark(("second", "inner", "absent", "more")) == Mark(4, 3)
    assert found.mark(("absent",)) == Mark(2, 1)
    assert found.fault(("second", "rows", 1), "why") == "matrix.yaml:7:7: second.rows.1: why"
    assert found.fault((), "why") == "matrix.yaml:2:1: why"


@pytest.mark.parametrize(
    ("text", "path", "mark"),
    [
        pytest.param("a: 1\r\nb: [x, y]\r\n", ("b", 1), Mark(2, 8), id="crlf"),
        pytest.param("é😀: 1\nb: [é, y]\n", ("b", 1), Mark(2, 8), id="characters-not-bytes"),
        pytest.param("\ufeffa: 1\n", ("a",), Mark(1, 1), id="byte-order-mark"),
        pytest.param('# \u2028 \x85\n"k": v\n', ("k",), Mark(2, 1), id="no-line-of-an-editor"),
        pytest.param("? k\n: v\n", ("k",), Mark(1, 3), id="explicit-key"),
        pytest.param("a:\n\n  b\n", ("a",), Mark(1, 1), id="value-on-a-later-line"),
        pytest.param("a:\n  -\n  - |\n    x\n", ("a", 1), Mark(3, 5), id="block-scalar"),
        pytest.param("a: &x [1]\nb: [2, *x]\n", ("b", 1), Mark(2, 8), id="alias"),
        pytest.param("a: &x [1]\nb: [2, *x]\n", ("b", 1, 0), Mark(1, 8), id="inside-an-alias"),
        pytest.param("a: &x k\nb: {*x : 1}\n", ("b", "k"), Mark(2, 5), id="alias-as-key"),
        pytest.param("- !!str &x 1\n", (0,), Mark(1, 9), id="anchor"),
    ],
)
def test_a_place_is_where_an_editor_shows_it(text: str, path: located.Location, mark: Mark) -> None:
    found = located.parse(text, "f")
    assert found.faults == ()
    assert found.marks[path] == mark


def test_a_folded_text_is_what_yaml_says() -> None:
    found = located.parse("a: >\n  x\n  y\nb: >-\n  z\n", "f")
    assert found.data == {"a": "x y\n", "b": "z"}


def test_a_number_keeps_what_was_written() -> None:
    found = located.parse("python: 3.10\ncount: 1_000\nhex: 0x10\n", "f")
    assert found.data == {"python": 3.1, "count": 1000, "hex": 16}
    assert found.texts["python",] == "3.10"


def test_words_of_yaml() -> None:
    found = located.parse("a: true\nb: False\nc: null\nd:\ne: ~\nf: yes\ng: 2025-12-01\n", "f")
    values = [True, False, None, None, None, "yes", "2025-12-01"]
    assert found.data == dict(zip("abcdefg", values, strict=True))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("a: 1\nb: [1, 2\n", "3:1", id="open-list"),
        pytest.param("a: 1\n\tb: 2\n", "2:1", id="tab"),
        pytest.param("a: 1\nb: c: d\n", "2:5", id="two-colons"),
        pytest.param('a: 1\n\nb: "open\n', "4:1", id="open-quote"),
        pytest.param("a: 1\nb: *nowhere\n", "2:4", id="unknown-anchor"),
        pytest.param("a: 1\n---\nb: 2\n", "2:1", id="two-documents"),
        pytest.param("a: 1\n  b: 2\n", "2:4", id="indent"),
        pytest.param("a: {b: ]}", "1:8", id="bracket"),
        pytest.param("a: |\n\n    \n   x\n", "4:4", id="less-indented"),
        pytest.param("%YAML 1.3\n---\na: 1\n", "1:1", id="version"),
        pytest.param("a: 1\nb: !!a%25zz 1\n", "2:2", id="tag"),
    ],
)
def test_a_syntax_error_is_one_fault_with_its_place(text: str, place: str) -> None:
    found = located.parse(text, "matrix.yaml")
    assert (found.data, found.marks) == (None, {})
    (fault,) = found.faults
    assert fault.startswith(f"matrix.yaml:{place}: not valid YAML: ")


def test_duplicate_keys_are_all_named_at_every_depth() -> None:
    text = "a: 1\nb:\n  c: 1\n  d: 1\n  c: 2\na: 2\nb:\n  e: 1\nlist:\n  - {x: 1, x: 2}\n"
    found = located.parse(text, "matrix.yaml")
    assert found.faults == (
        "matrix.yaml:5:3: b.c: duplicate key, first on line 3",
        "matrix.yaml:6:1: a: duplicate key, first on line 1",
        "matrix.yaml:7:1: b: duplicate key, first on line 2",
        "matrix.yaml:10:12: list.0.x: duplicate key, first on line 10",
    )
    assert found.data["a"] == 1


def test_a_key_that_is_no_text_is_named() -> None:
    found = located.parse('torch:\n  2.4: x\n  "2.5": x\n  true: x\n  7: x\n', "matrix.yaml")
    assert found.faults == (
        "matrix.yaml:2:3: torch: the key 2.4 is not text; quote it",
        "matrix.yaml:4:3: torch: the key true is not text; quote it",
        "matrix.yaml:5:3: torch: the key 7 is not text; quote it",
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_an_empty_file_has_no_data(text: str) -> None:
    found = located.parse(text, "f")
    assert (found.data, found.marks, found.faults) == (None, {}, ())
    assert found.fault(("any",), "why") == "f:1:1: any: why"


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    absent = located.read(path)
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\n\xc3\xa9: \xff\n")
    binary = located.read(path)
    assert all((found.data, found.marks) == (None, {}) for found in (absent, binary))
    (fault,) = absent.faults
    assert fault.startswith(f"{path}: ")
    assert "No such file" in fault
    assert binary.faults == ("matrix.yaml:2:4: not UTF-8: the byte 0xff",)


def test_a_file_is_read_as_its_text_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\n")
    assert located.read(path) == located.parse("a: 1\nb: |\n  x\n  y\n", "matrix.yaml")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1\nb: 010\n", id="leading-zero"),
        pytest.param("a: 1\nb: .inf\n", id="infinity"),
        pytest.param("a: 1\nb: .nan\n", id="not-a-number"),
        pytest.param("a: 1\nb: !!int word\n", id="tag"),
        pytest.param("a: 1\nb: x\x07y\n", id="control-character"),
        pytest.param("a: 1\nb: &b [*b]\n", id="own-anchor"),
    ],
)
def test_an_odd_scalar_is_data_or_a_fault_with_its_place_never_a_traceback(text: str) -> None:
    found = located.parse(text, "matrix.yaml")
    assert found.faults == () or found.faults[0].startswith("matrix.yaml:2:")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 010\n", "2:1: b: 010 cannot be read as int; quote it"),
        ("a: 1\nb: [1, 010]\n", "2:8: b.1: 010 cannot be read as int; quote it"),
        ("a: 1\nb: -.inf\n", "2:1: b: -.inf cannot be read as float; quote it"),
        ("a: 1\nb: 1e999\n", "2:1: b: 1e999 cannot be read as float; quote it"),
        ("a: 1\nb: !!bool maybe\n", "2:1: b: maybe cannot be read as bool; quote it"),
        ("a: 1\nb: !!null word\n", "2:1: b: word cannot be read as null; quote it"),
        (f"a: 1\nb: 0x{'9' * 99}\n", f"2:1: b: 0x{'9' * 99} cannot be read as int; quote it"),
        ("a: !!int\n", '1:1: a: "" cannot be read as int; quote it'),
        (": a\n", '1:1: the key "" is not text; quote it'),
        (f"b: {'9' * 5000}\n", f"1:1: b: {'9' * 197}... cannot be read as int; quote it"),
        (
            f"{'k' * 900}: [010]",
            f"1:904: {'k' * 197}...: 010 cannot be read as int; quote it",
        ),
        ("a: 1\nb:\n  c: &c\n    - 1\n    - *c\n", "5:7: b.c.1: an alias of what it stands in"),
        ('"a\\n\\e[1mb": 010\n', "1:1: a\\n\\x1b[1mb: 010 cannot be read as int; quote it"),
        ("a: 1\nb: x\x07y\n", "2:5: not valid YAML: the control character 0x07"),
        ("é: 1\n\n\nb: \x00\n", "4:4: not valid YAML: the control character 0x00"),
        ("a: " + "[" * 5000, "1:67: nested too deeply"),
    ],
)
def test_an_odd_scalar_is_named(text: str, fault: str) -> None:
    assert located.parse(text, "matrix.yaml").faults == (f"matrix.yaml:{fault}",)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param('a: 1\nb: "\\UFFFFFFFF"\n', "2:5", id="beyond-unicode"),
        pytest.param('a: "\\\\UFFFFFFFF"\nb: "xy\\U00110000"\n', "2:7", id="after-a-backslash"),
        pytest.param('a: 1\nb: "\\x41\\\\uD800 \\uD800"\n', "2:17", id="surrogate"),
        pytest.param('a: 1\n"x\\U0000dfff": 1\n', "2:3", id="surrogate-in-a-key"),
    ],
)
def test_an_escape_of_no_character_is_a_fault(text: str, place: str) -> None:
    (fault,) = located.parse(text, "matrix.yaml").faults
    assert fault == f"matrix.yaml:{place}: not valid YAML: an escape that names no character"


def test_an_anchor_may_be_used_often_and_defined_again() -> None:
    found = located.parse("a: &x [1]\nb: [*x, *x]\nc: &x 2\nd: *x\n", "matrix.yaml")
    assert found.faults == ()
    assert found.data == {"a": [1], "b": [[1], [1]], "c": 2, "d": 2}


@pytest.mark.parametrize("text", ["a: 1\n? [x, y]\n: z\n", "a: 1\n{{ name }}: z\n"])
def test_a_key_that_is_a_collection_is_named_without_internals(text: str) -> None:
    faults = located.parse(text, "matrix.yaml").faults
    assert faults
    assert all(fault.startswith("matrix.yaml:2:") for fault in faults)
    assert faults[0].endswith("a key that is a list or a mapping; quote it")
    assert "Node(" not in "".join(faults)


def test_a_fault_that_aliases_repeat_is_said_once() -> None:
    found = located.parse("a: &x [010, {k: 1, k: 2}]\nb: [*x, *x]\n", "f")
    assert found.faults == (
        "f:1:8: a.0: 010 cannot be read as int; quote it",
        "f:1:20: a.1.k: duplicate key, first on line 1",
    )


def bomb(levels: int) -> str:
    """Nine to the power of `levels` words, once every alias is written out."""
    lines = ["a0: &a0 lol"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb(100), id="lists"),
        pytest.param(re.sub(r"(\*\w+)", r"k: \1", bomb(60)), id="single-pairs"),
        pytest.param(f"a: &a {{{'k: 1, ' * 1000}}}\nb: [{'*a, ' * 1000}]", id="duplicate-keys"),
        pytest.param(f"a: &a {{{'[]: 1, ' * 1000}}}\nb: [{'*a, ' * 1000}]", id="no-keys"),
    ],
)
def test_too_many_values_are_one_fault(text: str) -> None:
    found = located.parse(text, "f")
    assert (found.data, found.marks) == (None, {})
    (fault,) = found.faults
    assert fault.endswith(": more than 200000 values, counting an alias as what it stands for")
    assert_every_place_exists(found, text)


def test_values_up_to_the_limit_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(located, "LIMIT", 6)
    assert located.parse("a: &a [x]\nb: [*a]\n", "f").data == {"a": ["x"], "b": [["x"]]}
    (fault,) = located.parse("a: &a [x]\nb: [*a, y]\n", "f").faults
    assert fault.startswith("f:2:9: b.1: more than 6 values")


def test_aliases_that_nest_too_deeply_are_one_fault() -> None:
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 99))]
    found = located.parse("\n".join(lines), "f")
    (fault,) = found.faults
    assert re.fullmatch(r"f:2:\d+: a\d+(\.0)+: nested too deeply|f:1:\d+: .*", fault)


def assert_every_place_exists(found: located.Located, text: str) -> None:
    """And every fault is one line that can be printed, behind its place."""
    lines = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    marks = list(found.marks.values())
    for fault in found.faults:
        place = re.match(rf"{found.file}:(\d+):(\d+): .", fault)
        assert place
        assert fault.isprintable()
        marks.append(Mark(int(place[1]), int(place[2])))
    for mark in marks:
        assert 1 <= mark.line <= len(lines)
        assert 1 <= mark.column <= len(lines[mark.line - 1]) + 1
    if found.data is not None:
        json.dumps(found.data, ensure_ascii=False).encode()


# fmt: off
PIECES = st.sampled_from([
    "a:", "b: ", "- ", "? ", ": ", ",", "[", "]", "{", "}", "k: [*x, *x]", "<<: *x", "- &x", "&x ",
    "*x", "!!int ", "!t ", "!<t>", "!!a%25zz", "%YAML 1.1", "%YAML 1.3", "%TAG ! t:", "---", "...",
    '"', "'", "|", "|+", ">", ">2", "#", " # c", "010", "1.5", "0x1", "true", "\\", "\\u0041",
    "\\ud800", "\\UFFFFFFFF", "\n", "\n  ", "\n- ", "\r\n", "\r", " ", "\t", "\x85", "\u2028",
    "\ufeff", "\x07", "é", "😀",
])
# fmt: on
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab1.:-{}[]\"'#&*!|>? \n\r\t,\\", max_size=40),
    st.lists(PIECES, max_size=25).map("".join),
)


@settings(max_examples=600)
@given(TEXTS)
def test_any_text_gives_data_or_faults_at_places_that_exist(text: str) -> None:
    assert_every_place_exists(located.parse(text, "matrix.yaml"), text)


@settings(max_examples=150)
@given(st.data())
def test_a_changed_matrix_gives_data_or_faults_at_places_that_exist(data: st.DataObject) -> None:
    text = MATRIX
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 30))
        text = text[:at] + data.draw(PIECES) + text[at + cut :]
    found = located.parse(text, "matrix.yaml")
    assert_every_place_exists(found, text)
    assert found.marks or found.faults


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cn", "Cs")), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(PLAIN, st.sampled_from([None, 1, 2]))
def test_every_place_holds_what_its_path_names(plain: Any, indent: int | None) -> None:
    text = json.dumps(plain, indent=indent, ensure_ascii=False)
    found = located.parse(text, "f")
    assert found.faults == ()
    assert found.data == plain
    lines = text.split("\n")
    for path, mark in found.marks.items():
        value: Any = plain
        for part in path:
            value = value[part]
        key = isinstance(path[-1], str) if path else False
        shown = json.dumps(path[-1] if key else value, indent=indent, ensure_ascii=False)
        assert lines[mark.line - 1][mark.column - 1 :].startswith(shown.split("\n")[0])


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda n: "".join(f"k{i}: v # c\n" for i in range(n)), id="keys"),
        pytest.param(lambda n: "a: 1\n" * n, id="duplicate-keys"),
        pytest.param(lambda n: "a: 1\n" + "\n# c\n" * n, id="comments"),
        pytest.param(lambda n: "[" * 50 + "{}, " * n + "]" * 50, id="deep-items"),
        pytest.param(lambda n: f"- &a {'1' * n}\n" + "- *a\n" * n, id="a-long-number-used-often"),
        pytest.param(lambda n: 'a: "' + "\\n x\n" * n + '"', id="quoted"),
        pytest.param(lambda n: "a:\n" + "  x y\n\n" * n, id="plain"),
    ],
)
def test_reading_takes_linear_time(shape: Callable[[int], str]) -> None:
    """Counts calls, which no other load on the machine can change."""

    def calls(n: int) -> int:
        count = 0

        def counted(frame: FrameType, event: str, arg: object) -> None:
            nonlocal count
            count += 1

        text = shape(n)
        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            located.parse(text, "f")
        finally:
            sys.setprofile(before)
        return count

    calls(1)  # what is done once in a process
    assert calls(1600) < 2.2 * calls(800)
