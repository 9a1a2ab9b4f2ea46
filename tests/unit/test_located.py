"""located.py: every path of a file knows its line; what is wrong is said with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import located

NESTED = """\
# a comment
first: one
second:
  inner: {deep: two}
  rows:
    - a
    - b: c
"""


def test_every_path_has_its_line() -> None:
    found = located.parse(NESTED, "matrix.yaml")
    assert found.faults == ()
    assert found.data == {
        "first": "one",
        "second": {"inner": {"deep": "two"}, "rows": ["a", {"b": "c"}]},
    }
    lines = {
        ("first",): 2,
        ("second",): 3,
        ("second", "inner"): 4,
        ("second", "inner", "deep"): 4,
        ("second", "rows"): 5,
        ("second", "rows", 0): 6,
        ("second", "rows", 1, "b"): 7,
    }
    assert {path: found.line(path) for path in lines} == lines


def test_a_path_that_is_not_there_has_the_line_of_its_deepest_part() -> None:
    found = located.parse(NESTED, "matrix.yaml")
    assert found.line(("second", "inner", "absent", "more")) == 4
    assert found.line(("absent",)) == 2
    assert found.fault(("second", "rows", 1), "why") == "matrix.yaml:7: second.rows.1: why"
    assert found.fault((), "why") == "matrix.yaml:2: why"


def test_a_number_keeps_what_was_written() -> None:
    found = located.parse("python: 3.10\ncount: 1_000\nhex: 0x10\n", "f")
    assert found.data == {"python": 3.1, "count": 1000, "hex": 16}
    assert found.texts["python",] == "3.10"


def test_words_of_yaml() -> None:
    found = located.parse("a: true\nb: False\nc: null\nd:\ne: ~\nf: yes\ng: 2025-12-01\n", "f")
    values = [True, False, None, None, None, "yes", "2025-12-01"]
    assert found.data == dict(zip("abcdefg", values, strict=True))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("a: 1\nb: [1, 2\n", 3, id="open-list"),
        pytest.param("a: 1\n\tb: 2\n", 2, id="tab"),
        pytest.param("a: 1\nb: c: d\n", 2, id="two-colons"),
        pytest.param('a: 1\n\nb: "open\n', 4, id="open-quote"),
        pytest.param("a: 1\nb: *nowhere\n", 2, id="unknown-anchor"),
        pytest.param("a: 1\n---\nb: 2\n", 2, id="two-documents"),
        pytest.param("a: 1\n  b: 2\n", 2, id="indent"),
    ],
)
def test_a_syntax_error_is_one_fault_with_its_line(text: str, line: int) -> None:
    found = located.parse(text, "matrix.yaml")
    assert found.data is None
    (fault,) = found.faults
    assert fault.startswith(f"matrix.yaml:{line}: not valid YAML: ")
    assert "\n" not in fault


def test_duplicate_keys_are_all_named_at_every_depth() -> None:
    text = "a: 1\nb:\n  c: 1\n  d: 1\n  c: 2\na: 2\nb:\n  e: 1\nlist:\n  - {x: 1, x: 2}\n"
    found = located.parse(text, "matrix.yaml")
    assert found.faults == (
        "matrix.yaml:5: b.c: duplicate key, first on line 3",
        "matrix.yaml:6: a: duplicate key, first on line 1",
        "matrix.yaml:7: b: duplicate key, first on line 2",
        "matrix.yaml:10: list.0.x: duplicate key, first on line 10",
    )
    assert found.data["a"] == 1


def test_a_key_that_is_no_text_is_named() -> None:
    found = located.parse('torch:\n  2.4: x\n  "2.5": x\n  true: x\n  7: x\n', "matrix.yaml")
    assert found.faults == (
        "matrix.yaml:2: torch: the key 2.4 is not text; quote it",
        "matrix.yaml:4: torch: the key true is not text; quote it",
        "matrix.yaml:5: torch: the key 7 is not text; quote it",
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_an_empty_file_has_no_data(text: str) -> None:
    found = located.parse(text, "f")
    assert (found.data, found.faults, found.line(("any",))) == (None, (), 1)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    (absent,) = located.read(path).faults
    path.write_bytes(b"a: \xff\n")
    (binary,) = located.read(path).faults
    assert absent.startswith(f"{path}: ")
    assert "No such file" in absent
    assert binary.startswith(f"{path}: ")


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
def test_an_odd_scalar_is_data_or_a_fault_with_its_line_never_a_traceback(text: str) -> None:
    found = located.parse(text, "matrix.yaml")
    assert found.faults == () or found.faults[0].startswith("matrix.yaml:2: ")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 010\n", "2: b: 010 cannot be read as int; quote it"),
        ("a: 1\nb: -.inf\n", "2: b: -.inf cannot be read as float; quote it"),
        ("a: 1\nb: 1e999\n", "2: b: 1e999 cannot be read as float; quote it"),
        ("a: 1\nb: !!bool maybe\n", "2: b: maybe cannot be read as bool; quote it"),
        ("a: 1\nb: !!null word\n", "2: b: word cannot be read as null; quote it"),
        (f"a: 1\nb: {'9' * 5000}\n", f"2: b: {'9' * 5000} cannot be read as int; quote it"),
        ("a: 1\nb:\n  c: &c\n    - 1\n    - *c\n", "3: b.c.1: an alias of what it stands in"),
        ("a: 1\nb: x\x07y\n", "2: not valid YAML: the control character 0x07"),
        ("é: 1\n\n\nb: \x00\n", "4: not valid YAML: the control character 0x00"),
        ("a: " + "[" * 5000, "1: nested too deeply"),
    ],
)
def test_an_odd_scalar_is_named(text: str, fault: str) -> None:
    assert located.parse(text, "matrix.yaml").faults == (f"matrix.yaml:{fault}",)


def test_an_escape_of_no_character_is_a_fault() -> None:
    (fault,) = located.parse('a: 1\nb: "\\UFFFFFFFF"\n', "matrix.yaml").faults
    assert fault == "matrix.yaml:2: not valid YAML: an escape that names no character"


def test_an_anchor_may_be_used_often_and_defined_again() -> None:
    found = located.parse("a: &x [1]\nb: [*x, *x]\nc: &x 2\nd: *x\n", "matrix.yaml")
    assert found.faults == ()
    assert found.data == {"a": [1], "b": [[1], [1]], "c": 2, "d": 2}


@pytest.mark.parametrize("text", ["a: 1\n? [x, y]\n: z\n", "a: 1\n{{ name }}: z\n"])
def test_a_key_that_is_a_collection_is_named_without_internals(text: str) -> None:
    faults = located.parse(text, "matrix.yaml").faults
    assert faults
    assert all(fault.startswith("matrix.yaml:2: ") for fault in faults)
    assert faults[0].endswith("a key that is a list or a mapping; quote it")
    assert "Node(" not in "".join(faults)


@given(st.text(alphabet="ab1.:-{}[]\"'#&*!|>? \n\t,", max_size=40))
def test_any_text_gives_data_or_located_faults(text: str) -> None:
    found = located.parse(text, "matrix.yaml")
    assert all(fault.startswith("matrix.yaml:") for fault in found.faults)
    assert all(fault.split(":")[1].isdigit() for fault in found.faults)
