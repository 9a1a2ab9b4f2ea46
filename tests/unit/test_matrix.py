"""matrix.py and schema.py: everything that can be wrong in matrix.yaml, with its line, at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpucomm import matrix
from gpucomm.errors import WrongInput
from gpucomm.schema import Matrix

ParseMatrix = Callable[[str], Matrix]
FAULT = re.compile(r"matrix\.yaml:(\d+): .+")


def faults_in(parse_matrix: ParseMatrix, text: str) -> tuple[str, ...]:
    """The faults of a wrong matrix, each of which must be one line with file and line."""
    with pytest.raises(WrongInput) as caught:
        parse_matrix(text)
    faults = caught.value.faults
    assert caught.value.exit_code == 2
    assert all(FAULT.fullmatch(fault) for fault in faults), faults
    return faults


def loads_or_is_reported(parse_matrix: ParseMatrix, text: str) -> bool:
    """Whether `text` is a matrix, or wrong with file and line in every fault."""
    try:
        parse_matrix(text)
    except WrongInput as error:
        return all(FAULT.fullmatch(fault) for fault in error.faults)
    return True


def line_of(text: str, needle: str) -> int:
    """The line of the only place where `needle` stands."""
    assert text.count(needle) == 1, needle
    return text[: text.index(needle)].count("\n") + 1


def test_the_committed_matrix_loads(root: Path) -> None:
    found = matrix.load(root)
    assert found.lines
    assert found.aliases


def test_the_small_matrix_is_right_and_cannot_be_changed(small: Matrix) -> None:
    assert small.with_ == ["numpy"]
    with pytest.raises(ValidationError):
        small.version = 2  # type: ignore[assignment]


# (what is replaced, by what, where the fault is, what it says)
SINGLE = {
    "unknown-key": ("release: bookworm", "relaese: bookworm", "relaese", "unknown key"),
    "unknown-top-key": ("with: [numpy]", "with: [numpy]\nwhit: []", "whit", "unknown key"),
    "float": ('python: "3.11"', "python: 3.10", "3.10", 'quote it: "3.10"'),
    "number-of-nccl": ('{nccl: "2.19.3"}', "{nccl: 2.19}", "2.19}", 'quote it: "2.19"'),
    "boolean": ("index: cpu", "index: true", "index: true", 'quote it: "true"'),
    "null": ("index: cpu", "index:", "index:\n", "quote"),
    "number-key": ('"2.13.0": {}', "2.13: {}", "2.13: {}", "the key 2.13 is not text"),
    "missing": ("    accelerator: cpu\n", "", "  cpu:\n", "lines.cpu.accelerator: missing"),
    "missing-flavor-key": (
        "runtime:\n    apt: [gcc, libc6-dev]\n",
        "runtime:\n",
        "runtime:\n",
        "flavors.runtime.apt: missing",
    ),
    "missing-top": ("tools: [uv, flit-core]\n", "", "version: 1", "tools: missing"),
    "version-key": ('"2.2.2"', '"two"', '"two"', "'two' is not a version"),
    "version": ('cuda: "12.1"', 'cuda: "12,1"', '"12,1"', "'12,1' is not a version"),
    "override": ('["2.21.5"]', '["2.21.5", "x.y"]', "x.y", "'x.y' is not a version"),
    "specifier": ('require: "<2"', 'require: "2"', 'require: "2"', "not a version specifier"),
    "torch-specifier": ('torch: "<2.3"', 'torch: "old"', '"old"', "not a version specifier"),
    "short-reason": ("that torch was compiled for numpy 1", "why", "why", "at least 10"),
    "accelerator": ("accelerator: cpu", "accelerator: tpu", "tpu", "'cuda' or 'cpu'"),
    "base": ("base: auto", "base: maybe", "maybe", "'auto', 'registry' or 'bootstrap'"),
    "name": ("  slim:\n", "  Slim Fast:\n", "Slim Fast", "pattern"),
    "epoch": ("1700000000", '"1700000000"', '"1700000000"', "valid integer"),
    "list": ("with: [numpy]", "with: numpy", "with: numpy", "valid list"),
    "schema-version": ("version: 1", "version: 2", "version: 2", "should be 1"),
    "default-os": ("os: debian12", "os: debian13", "os: debian13", "'debian13' is not one of"),
    "default-flavor": ("flavor: runtime", "flavor: fat", "flavor: fat", "'fat' is not one of"),
    "alias-target": (
        "cpu: cpu-torch2.13.0",
        "cpu: cpu-torch2.12.0",
        "cpu-torch2.12.0",
        "'cpu-torch2.12.0' is not a cell",
    ),
    "alias-name": (
        "  latest: ",
        "  cpu-torch2.13.0: ",
        "  cpu-torch2.13.0: ",
        "an alias cannot have the name of a cell",
    ),
    "no-budget": (
        "{runtime: 6400, slim: 5600}",
        "{runtime: 6400}",
        "size_budget_mb: {runtime: 6400}",
        "no budget for the flavor slim",
    ),
    "budget-for-nothing": (
        "{runtime: 1600}",
        "{runtime: 1600, slim: 1400}",
        "{runtime: 1600, slim: 1400}",
        "this line has no such flavor",
    ),
    "unknown-flavor": (
        "flavors: [runtime, slim]",
        "flavors: [runtime, fat, slim]",
        "flavors: [runtime, fat",
        "'fat' is not one of",
    ),
    "nccl-on-cpu": ('"2.13.0": {}', '"2.13.0": {nccl: "2.20.5"}', '"2.13.0": {', "no NCCL here"),
    "no-nccl-on-cuda": ('{nccl: "2.19.3"}', "{}", '"2.2.2": {}', "name the NCCL"),
    "no-nccl-wheel": (
        "    nccl_wheel: nvidia-nccl-cu12\n",
        "",
        "  cu121:\n",
        "lines.cu121.nccl_wheel: needed on a line whose accelerator is cuda",
    ),
    "no-cuda": ('    cuda: "12.1"\n', "", "  cu121:\n", "lines.cu121.cuda: needed"),
    "nccl-wheel-on-cpu": (
        "index: cpu\n",
        "index: cpu\n    nccl_wheel: nvidia-nccl-cu12\n",
        "index: cpu\n    nccl_wheel",
        "without meaning on a line whose accelerator is cpu",
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_mistake_is_one_fault_at_its_line(
    name: str, parse_matrix: ParseMatrix, small_text: str
) -> None:
    old, new, where, message = SINGLE[name]
    assert small_text.count(old) == 1, old
    text = small_text.replace(old, new)
    faults = faults_in(parse_matrix, text)
    expected = line_of(text, where)
    if name == "nccl-wheel-on-cpu":
        expected += 1
    matching = [fault for fault in faults if message in fault]
    assert [int(fault.split(":")[1]) for fault in matching] == [expected], faults
    # A misspelt key is two facts, the unknown one and the missing one; all else is one.
    assert len(faults) <= 2


def test_a_misspelt_key_is_unknown_and_the_right_one_missing(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace("release:", "relaese:")
    assert faults_in(parse_matrix, text) == (
        f"matrix.yaml:{line_of(text, '  debian12:')}: systems.debian12.release: missing",
        f"matrix.yaml:{line_of(text, 'relaese')}: systems.debian12.relaese: unknown key",
    )


def test_a_syntax_error_is_the_only_fault(parse_matrix: ParseMatrix, small_text: str) -> None:
    text = small_text.replace("with: [numpy]", "with: [numpy")
    (fault,) = faults_in(parse_matrix, text)
    assert "not valid YAML" in fault


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_matrix_is_said(text: str, parse_matrix: ParseMatrix) -> None:
    assert faults_in(parse_matrix, text) == ("matrix.yaml:1: empty file",)


@pytest.mark.parametrize("text", ["[1, 2]\n", "word\n", "3\n"])
def test_a_matrix_that_is_no_mapping_is_said(text: str, parse_matrix: ParseMatrix) -> None:
    (fault,) = faults_in(parse_matrix, text)
    assert fault.startswith("matrix.yaml:1: ")


def test_all_faults_come_at_once_in_the_order_of_the_file(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text
    for old, new in (
        ("source_date_epoch: 1700000000", "source_date_epoch: soon"),
        ('python: "3.11"', "python: 3.11"),
        ("base: auto", "base: auto\n    base: registry"),
        ('"2.2.2": {nccl', '2.2: {nccl: "2.19.3"}\n      "2.2.2": {ncll'),
        ("accelerator: cpu", "accelerator: cpu\n    accelerator: cuda\n    colour: red"),
        ('require: "<2"', 'require: "~2"'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    faults = faults_in(parse_matrix, text)
    numbers = [int(fault.split(":")[1]) for fault in faults]
    assert numbers == sorted(numbers)
    expected = {
        line_of(text, "epoch: soon"): "valid integer",
        line_of(text, "python: 3.11"): 'quote it: "3.11"',
        line_of(text, "base: registry"): "systems.debian12.base: duplicate key",
        line_of(text, "      2.2: "): "the key 2.2 is not text",
        line_of(text, "ncll"): "ncll: unknown key",
        line_of(text, "accelerator: cuda\n    colour"): "lines.cpu.accelerator: duplicate key",
        line_of(text, "colour"): "colour: unknown key",
        line_of(text, '"~2"'): "'~2' is not a version specifier",
    }
    assert dict(zip(numbers, faults, strict=True)).keys() == expected.keys()
    for number, fault in zip(numbers, faults, strict=True):
        assert expected[number] in fault


def test_reference_faults_come_at_once(parse_matrix: ParseMatrix, small_text: str) -> None:
    text = small_text.replace("os: debian12", "os: a").replace("flavor: runtime", "flavor: b")
    text = text.replace("{runtime: 1600}", "{slim: 1}")
    said = "\n".join(faults_in(parse_matrix, text))
    for message in ("'a' is not one of", "'b' is not one of", "no budget", "no such flavor"):
        assert message in said


def test_wrong_aliases_come_at_once(parse_matrix: ParseMatrix, small_text: str) -> None:
    text = small_text.replace("cpu: cpu-torch2.13.0", "cpu: x").replace("latest: cu", "latest: xu")
    first, second = faults_in(parse_matrix, text)
    assert "aliases.cpu: 'x'" in first
    assert "aliases.latest: 'xu121" in second


KEYS = st.sampled_from(
    [
        "version", "registry", "source", "source_date_epoch", "pytorch_index", "defaults", "os",
        "flavor", "systems", "release", "python", "image", "base", "flavors", "apt", "without",
        "lines", "accelerator", "cuda", "index", "nccl_wheel", "nvidia_require", "torch", "nccl",
        "size_budget_mb", "nccl_overrides", "aliases", "with", "tools", "holds", "package",
        "require", "reason",
    ]
)  # fmt: skip


@given(data=st.data(), key=KEYS)
def test_any_misspelt_key_is_reported_with_its_line(
    data: st.DataObject, key: str, parse_matrix: ParseMatrix, small_text: str
) -> None:
    spans = [m.span(1) for m in re.finditer(rf"(?<![\w-])({key}):", small_text)]
    start, end = data.draw(st.sampled_from(spans))
    at = data.draw(st.integers(0, len(key)))
    wrong = f"{key[:at]}{data.draw(st.sampled_from(list('qz_')))}{key[at:]}"
    text = small_text[:start] + wrong + small_text[end:]
    line = small_text[:start].count("\n") + 1
    said = faults_in(parse_matrix, text)
    unknown = [fault for fault in said if f"{wrong}: unknown key" in fault]
    assert [int(fault.split(":")[1]) for fault in unknown] == [line], said


@given(data=st.data())
def test_any_lost_line_loads_or_is_reported(
    data: st.DataObject, parse_matrix: ParseMatrix, small_text: str
) -> None:
    lines = small_text.splitlines(keepends=True)
    gone = data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=3))
    text = "".join(line for number, line in enumerate(lines) if number not in gone)
    assert loads_or_is_reported(parse_matrix, text)


@given(data=st.data())
def test_any_replaced_value_loads_or_is_reported(
    data: st.DataObject, parse_matrix: ParseMatrix, small_text: str
) -> None:
    spans = [m.span(1) for m in re.finditer(r': (["\w][^\n{}\[\]]*)$', small_text, re.M)]
    start, end = data.draw(st.sampled_from(spans))
    value = data.draw(
        st.sampled_from(["", "~", "1", "-1", "1.5", "true", "[]", "{}", "word", '""', "'a b'"])
    )
    assert loads_or_is_reported(parse_matrix, small_text[:start] + value + small_text[end:])


def test_an_nccl_override_on_a_cpu_line_is_reported(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace("index: cpu\n", 'index: cpu\n    nccl_overrides: ["2.21.5"]\n')
    (fault,) = faults_in(parse_matrix, text)
    assert fault.startswith(f"matrix.yaml:{line_of(text, 'index: cpu') + 1}: ")
    assert "nccl_overrides" in fault


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('nccl_overrides: ["2.21.5"]', 'nccl_overrides: ["2.21.5", "2.21.5"]'),
        ("flavors: [runtime, slim]", "flavors: [runtime, slim, slim]"),
        ('nccl_overrides: ["2.21.5"]', 'nccl_overrides: ["2.21.5", "2.21.5.0"]'),
    ],
)
def test_a_value_given_twice_is_reported(
    old: str, new: str, parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace(old, new)
    (fault,) = faults_in(parse_matrix, text)
    assert fault.startswith(f"matrix.yaml:{line_of(text, new)}: ")


def test_a_hold_on_the_cuda_version_of_a_cpu_line_is_reported(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace('    lines: ["cu12*"]\n', "")
    (fault,) = faults_in(parse_matrix, text)
    assert fault.startswith("matrix.yaml:")
    assert "holds" in fault


def test_a_hold_on_the_cuda_version_may_leave_cpu_lines_out_by_torch(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace('lines: ["cu12*"]', 'torch: "<2.5"')
    assert parse_matrix(text).holds[0].lines == ["*"]


def test_a_wrong_registry_is_reported_with_its_line(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    text = small_text.replace("registry.example/team/gpucomm", "Registry.example/Team")
    (fault,) = faults_in(parse_matrix, text)
    assert fault.startswith("matrix.yaml:2: registry: ")
