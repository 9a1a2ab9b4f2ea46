"""matrix.py and schema.py: everything that can be wrong in matrix.yaml, with its place, at once.

What keys say of each other is test_references.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpucomm import located, matrix
from gpucomm.errors import WrongInput
from gpucomm.schema import Matrix, json_schema

ParseMatrix = Callable[[str], Matrix]
MatrixFaults = Callable[[str], tuple[str, ...]]
At = Callable[[str, str], str]
FAULT = re.compile(r"matrix\.yaml:(\d+):(\d+): .+")
T22 = '"2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}'
KEY = "systems.debian12.signing_keys.0"


def place(fault: str) -> tuple[int, int]:
    """Line and column of a fault."""
    found = FAULT.fullmatch(fault)
    assert found is not None, fault
    return int(found[1]), int(found[2])


def loads_or_is_reported(parse_matrix: ParseMatrix, text: str) -> bool:
    """Whether `text` is a matrix, or wrong with file, line and column in every fault."""
    try:
        parse_matrix(text)
    except WrongInput as error:
        return all(FAULT.fullmatch(fault) for fault in error.faults)
    return True


def test_the_committed_matrix_loads(root: Path) -> None:
    found = matrix.load(root)
    assert found.version == 2
    assert found.lines.keys() & found.aliases.keys()


def test_the_small_matrix_is_right_and_cannot_be_changed(small: Matrix) -> None:
    assert small.with_ == ["numpy"]
    with pytest.raises(ValidationError):
        small.version = 2
    assert small.version == 2


def test_an_absent_matrix_is_one_fault_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(WrongInput) as caught:
        matrix.load(tmp_path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{tmp_path / 'matrix.yaml'}: ")


def test_a_fault_without_a_place_is_said_as_it_is() -> None:
    """A disk that fails gives a message with one colon, which no line number follows."""
    broken = located.Located(
        file="matrix.yaml", data=None, marks={}, texts={}, faults=("matrix.yaml: [Errno 5] I/O",)
    )
    with pytest.raises(WrongInput, match=r"\Amatrix\.yaml: \[Errno 5\] I/O\Z"):
        matrix.check(broken)


# (what is replaced, by what, where the one fault is, what it says)
SINGLE = {
    # ---- unknown, missing and empty keys
    "unknown-key": (
        "    release: bookworm\n", "    release: bookworm\n    colour: red\n",
        "colour", "systems.debian12.colour: unknown key",
    ),
    "unknown-top-key": (
        "with: [numpy]", "with: [numpy]\nwhit: []",
        "whit", "whit: unknown key; did you mean 'with'?",
    ),
    "unknown-key-of-a-line": (
        "environment:", "enviroment:",
        "enviroment", "lines.rocm6.1.enviroment: unknown key; did you mean 'environment'?",
    ),
    "unknown-key-of-a-torch": (
        '"2.13.0": {nccl: "2.29.7"}', '"2.13.0": {nclc: "2.29.7"}',
        "nclc", "lines.cu130.torch.2.13.0.nclc: unknown key; did you mean 'nccl'?",
    ),
    "unknown-key-of-a-rule": (
        'torch: "<2.11", arch:', 'torch: "<2.11", archs:',
        "archs: [arm64]", "rules.arm64-early.when.archs: unknown key; did you mean 'arch'?",
    ),
    "unknown-key-of-a-row": (
        "nccl: overrides}", "ncl: overrides}",
        "ncl: over", "standard.1.ncl: unknown key; did you mean 'nccl'?",
    ),
    "missing": (
        "    accelerator: cpu\n", "",
        "cpu:\n    torch", "lines.cpu.accelerator: missing",
    ),
    "missing-in-a-flavor": (
        "    apt: [gcc, libc6-dev]\n", "",
        "runtime:\n", "flavors.runtime.apt: missing",
    ),
    "missing-in-a-rule": (
        "    reason: these aarch64 wheels are CPU builds\n", "",
        "arm64-early", "rules.arm64-early.reason: missing",
    ),
    "missing-at-the-top": ("tools: [uv, flit-core]\n", "", "version: 2", "tools: missing"),
    "no-architecture": (
        "architectures: [amd64]", "architectures: []",
        "architectures: []", "systems.ubuntu24.04.architectures: empty: give at least one",
    ),
    "no-nccl-version": (
        'versions: ["2.29.7", "2.30.7"]', "versions: []",
        "versions: []", "nccl_families.cu13.versions: empty: give at least one",
    ),
    "no-gpu": (
        "[{archs: [gfx90a, gfx942]}]", "[{archs: []}]",
        "archs: []", "lines.rocm6.1.gpus.0.archs: empty: give at least one",
    ),
    "no-line-in-a-row": (
        "lines: [cu121], flavor", "lines: [], flavor",
        "lines: [], flavor", "standard.2.lines: empty: give at least one",
    ),
    "no-flavor-in-a-row": (
        "flavor: [slim]", "flavor: []",
        "flavor: []", "standard.2.flavor: empty: give at least one",
    ),
    # ---- numbers and words of YAML where text belongs
    "float": (
        'python: "3.11"', "python: 3.10", "python: 3.10",
        'systems.debian12.python: 3.10 is read as a number or a word of YAML; quote it: "3.10"',
    ),
    "float-glibc": (
        'glibc: "2.39"', "glibc: 2.30", "glibc: 2.30",
        'systems.ubuntu24.04.glibc: 2.30 is read as a number or a word of YAML; quote it: "2.30"',
    ),
    "float-cuda": (
        'cuda: "12.1"', "cuda: 12.10", "cuda: 12.10",
        'lines.cu121.cuda: 12.10 is read as a number or a word of YAML; quote it: "12.10"',
    ),
    "float-rocm": (
        'rocm: "6.1"', "rocm: 6.1", "rocm: 6.1",
        'lines.rocm6.1.rocm: 6.1 is read as a number or a word of YAML; quote it: "6.1"',
    ),
    "float-nccl": (
        T22, T22.replace('"2.19.3"', "2.20"), "nccl: 2.20",
        'lines.cu121.torch.2.2.2.nccl: 2.20 is read as a number or a word of YAML; '
        'quote it: "2.20"',
    ),
    "float-override": (
        T22, T22.replace('"2.21.5"', "2.20"), "2.20]",
        "lines.cu121.torch.2.2.2.overrides.0: 2.20 is read as a number or a word of YAML; "
        'quote it: "2.20"',
    ),
    "float-family-version": (
        '["2.29.7", "2.30.7"]', '["2.29.7", 2.30]', "2.30]",
        "nccl_families.cu13.versions.1: 2.30 is read as a number or a word of YAML; "
        'quote it: "2.30"',
    ),
    "float-extra": (
        '{torchvision: "0.17.2"}', "{torchvision: 0.170}", "torchvision: 0.170",
        "torch.2.2.2.wheels.torchvision: 0.170 is read as a number or a word of YAML; "
        'quote it: "0.170"',
    ),
    "word": (
        "toolkit: 6.1-complete", "toolkit: true", "toolkit: true\n    env",
        'lines.rocm6.1.toolkit: true is read as a number or a word of YAML; quote it: "true"',
    ),
    "tilde": (
        "package: numpy", "package: ~", "package: ~",
        'holds.1.package: ~ is read as a number or a word of YAML; quote it: "~"',
    ),
    "nothing": (
        'python: "3.12"', "python:", "python:\n",
        "systems.ubuntu24.04.python: empty: text is needed",
    ),
    "text-for-a-number": (
        "1700000000", '"1700000000"', "source_date_epoch",
        "source_date_epoch: Input should be a valid integer",
    ),
    "text-for-a-budget": (
        "{runtime: 1600}", "{runtime: large}", "runtime: large",
        "lines.cpu.size_budget_mb.runtime: Input should be a valid integer",
    ),
    "text-for-a-boolean": (
        "only_alias: true", "only_alias: maybe", "only_alias",
        "standard.3.only_alias: Input should be a valid boolean",
    ),
    "text-for-a-list": (
        "with: [numpy]", "with: numpy", "with: numpy", "with: Input should be a valid list",
    ),
    "text-for-an-override-list": (
        T22, T22.replace('["2.21.5"]', '"2.21.5"'), 'overrides: "2.21.5"',
        "lines.cu121.torch.2.2.2.overrides: Input should be a valid list",
    ),
    # ---- text that is not what the key holds
    "version": (
        'cuda: "12.1"', 'cuda: "12,1"', 'cuda: "12,1"',
        "lines.cu121.cuda: '12,1' is not a version of digits and dots such as '12.1'",
    ),
    "version-of-a-torch": (
        '"2.13.0": {nccl: ', '"two": {nccl: ', '"two"',
        "lines.cu130.torch.two: 'two' is not a version such as '2.4.1'",
    ),
    "version-of-nccl": (
        T22, T22.replace('"2.19.3"', "dynamic"), "nccl: dynamic",
        "lines.cu121.torch.2.2.2.nccl: 'dynamic' is not a version such as '2.4.1'",
    ),
    "version-of-an-override": (
        T22, T22.replace('"2.21.5"', "x.y"), "x.y",
        "lines.cu121.torch.2.2.2.overrides.0: 'x.y' is not a version such as '2.4.1'",
    ),
    "version-with-a-dash": (
        'rccl: "2.18.6"', 'rccl: "2.18-6"', 'rccl: "2.18-6"',
        "lines.rocm6.1.rccl: '2.18-6' is not a version such as '2.4.1'",
    ),
    "version-of-a-python": (
        'python: "3.12"', 'python: "3.12rc1"', 'python: "3.12rc1"',
        "systems.ubuntu24.04.python: '3.12rc1' is not a version of digits and dots such as '12.1'",
    ),
    "braces-of-an-image": (
        "{toolkit}-devel", "{tookit}-devel", "cuda: registry",
        "systems.ubuntu24.04.devel_image.cuda: 'registry.example/nvidia/cuda:{tookit}-devel-"
        "ubuntu24.04' has braces that are not {toolkit}",
    ),
    "specifier": (
        'require: "<2"', 'require: "2"', 'require: "2"',
        "holds.1.require: '2' is not a version specifier such as '<2.3'",
    ),
    "specifier-of-a-python": (
        'python: ">=3.10"', 'python: "3.10"', 'python: "3.10"',
        "torch.2.13.0.python: '3.10' is not a version specifier such as '<2.3'",
    ),
    "specifier-of-a-rule": (
        'torch: "==2.2.2"', 'torch: "=2.2.2"', 'torch: "=2.2.2"',
        "rules.slow-start.when.torch: '=2.2.2' is not a version specifier such as '<2.3'",
    ),
    "date": (
        '"2099-01-01"', '"2099-13-01"', "expires",
        "rules.slow-start.expires: '2099-13-01' is not a date such as '2027-01-31'",
    ),
    "short-reason": (
        "that torch was compiled for numpy 1", "why", "reason: why",
        "holds.1.reason: String should have at least 10 characters",
    ),
    "accelerator": (
        "accelerator: cpu", "accelerator: tpu", "accelerator: tpu",
        "lines.cpu.accelerator: Input should be 'cuda', 'rocm' or 'cpu'",
    ),
    "accelerator-of-an-image": (
        "      cuda: registry", "      cud: registry", "cud: ",
        "systems.ubuntu24.04.devel_image.cud: Input should be 'cuda', 'rocm' or 'cpu'",
    ),
    "architecture": (
        "architectures: [amd64]", "architectures: [x86_64]", "x86_64]",
        "systems.ubuntu24.04.architectures.0: Input should be 'amd64' or 'arm64'",
    ),
    "base": (
        "base: auto", "base: maybe", "base: maybe",
        "systems.debian12.base: Input should be 'auto', 'registry' or 'bootstrap'",
    ),
    "effect": (
        "effect: warn", "effect: shout", "effect: shout",
        "rules.slow-start.effect: Input should be 'deny' or 'warn'",
    ),
    "nccl-of-a-row": (
        "nccl: overrides}", "nccl: newest}", "nccl: newest",
        "standard.1.nccl: Input should be 'bundled' or 'overrides'",
    ),
    "name": (
        "  slim:\n", "  Slim Fast:\n", "Slim Fast",
        "flavors.Slim Fast: String should match pattern '^[a-z0-9][a-z0-9_.]*$'",
    ),
    "name-with-a-dash": (
        "  mpi: {apt", "  open-mpi: {apt", "open-mpi: ",
        "extras.open-mpi: String should match pattern '^[a-z0-9][a-z0-9_.]*$'",
    ),
    "alias-like-a-cell": (
        "  latest: ", "  cpu-torch2.13.0: ", "cpu-torch2.13.0: ",
        "aliases.cpu-torch2.13.0: String should match pattern '^[a-z0-9][a-z0-9_.]*$'",
    ),
    "fingerprint": (
        "    base: auto\n",
        '    base: auto\n    signing_keys: [{fingerprint: abc, expires: "2031-01-19"}]\n',
        "fingerprint: abc",
        f"{KEY}.fingerprint: String should match pattern '^[0-9A-F]{{40}}$'",
    ),
    "source-url": (
        '"https://source.example/variants"', '"http://source.example/variants"', "url: ",
        "sources.variants.url: String should match pattern '^https://'",
    ),
    "registry": (
        "registry: registry.example/team/gpucomm", "registry: Registry.example/Team",
        "registry: Registry", "registry: 'Registry.example/Team' is not host[:port]/name in lower "
        "case, such as 127.0.0.1:5000/gpucomm",
    ),
    "version-of-the-file": ("version: 2", "version: 1", "version: 1", "version: Input should be 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_one_mistake_is_one_fault_at_its_place(
    name: str, matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    old, new, where, said = SINGLE[name]
    assert small_text.count(old) == 1, old
    text = small_text.replace(old, new)
    assert matrix_faults(text) == (at(text, where) + said,)


@pytest.mark.parametrize(
    ("old", "again", "path"),
    [
        pytest.param("base: auto\n", "base: registry\n", "systems.debian12.base", id="key"),
        pytest.param("  cpu: cpu-torch2.13.0\n", "  cpu: other\n", "aliases.cpu", id="alias"),
        pytest.param("with: [numpy]\n", "with: []\n", "with", id="at-the-top"),
        pytest.param(f"{T22}\n", '"2.2.2": {}\n', "lines.cu121.torch.2.2.2", id="torch-on-a-line"),
        pytest.param(
            "  mpi: {apt: [openmpi-bin]}\n", "  mpi: {apt: []}\n", "extras.mpi", id="extra"
        ),
    ],
)
def test_a_key_that_is_there_twice_is_said_with_both_places(
    old: str, again: str, path: str, matrix_faults: MatrixFaults, small_text: str
) -> None:
    assert small_text.count(old) == 1
    start = small_text.index(old)
    indent = " " * (start - small_text.rfind("\n", 0, start) - 1)
    text = small_text.replace(old, f"{old}{indent}{again}")
    first = small_text[:start].count("\n") + 1
    column = len(indent) + len(again) - len(again.lstrip()) + 1
    assert matrix_faults(text) == (
        f"matrix.yaml:{first + 1}:{column}: {path}: duplicate key, first on line {first}",
    )


@pytest.mark.parametrize("axis", ["systems", "flavors", "torch", "lines", "standard"])
def test_an_empty_axis_is_said(axis: str, matrix_faults: MatrixFaults, small_text: str) -> None:
    block = re.compile(rf"^{axis}:\n(?: .*\n)+", re.M)
    text = block.sub(f"{axis}: {'[]' if axis == 'standard' else '{}'}\n", small_text)
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith(f"{axis}:")]
    assert matrix_faults(text) == (f"matrix.yaml:{number}:1: {axis}: empty: give at least one",)


def test_a_misspelt_key_is_unknown_and_the_right_one_missing(
    matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    text = small_text.replace("release: bookworm", "relaese: bookworm")
    assert matrix_faults(text) == (
        f"{at(text, 'debian12:')}systems.debian12.release: missing",
        f"{at(text, 'relaese')}systems.debian12.relaese: unknown key; did you mean 'release'?",
    )


def test_a_key_that_is_a_number_is_said_and_what_it_breaks(
    matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    text = small_text.replace("{runtime: 1600}", "{16: 1600}")
    here = at(text, "16: 1600")
    assert matrix_faults(text) == (
        f"{here}lines.cpu.size_budget_mb: the key 16 is not text; quote it",
        f"{here}lines.cpu.size_budget_mb.16: '16' is not a flavor; there is runtime, slim, devel",
    )


def test_a_syntax_error_is_the_only_fault(matrix_faults: MatrixFaults, small_text: str) -> None:
    text = small_text.replace("with: [numpy]", "with: [numpy").replace("base: auto", "base: maybe")
    (fault,) = matrix_faults(text)
    assert "not valid YAML" in fault


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_matrix_is_said(text: str, matrix_faults: MatrixFaults) -> None:
    assert matrix_faults(text) == ("matrix.yaml:1:1: empty file",)


@pytest.mark.parametrize("text", ["[1, 2]\n", "word\n", "3\n"])
def test_a_matrix_that_is_no_mapping_is_said(text: str, matrix_faults: MatrixFaults) -> None:
    (fault,) = matrix_faults(text)
    assert fault.startswith("matrix.yaml:1:1: Input should be a valid dictionary")


def test_all_faults_come_at_once_in_the_order_of_the_file(
    matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    text = small_text
    for old, new in (
        ("source_date_epoch: 1700000000", "source_date_epoch: soon"),
        ('python: "3.11"', "python: 3.11"),
        ("base: auto", "base: auto\n    base: registry"),
        (T22, f'2.2: {{nccl: "2.19.3"}}\n      {T22}'),
        ('"2.13.0": {nccl', '"2.13.0": {ncll'),
        ("accelerator: cpu", "accelerator: cpu\n    accelerator: cuda\n    colour: red"),
        ('require: "<2"', 'require: "~2"'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    base, accelerator = ("base: auto", "base: registry"), ("accelerator: cpu", "accelerator: cuda")
    first = [at(text, one).split(":")[1] for one, _ in (base, accelerator)]
    assert matrix_faults(text) == tuple(
        at(text, where) + said
        for where, said in (
            ("source_date", "source_date_epoch: Input should be a valid integer"),
            (
                "python: 3.11",
                "systems.debian12.python: 3.11 is read as a number or a word of YAML; "
                'quote it: "3.11"',
            ),
            (
                f"{base[1]}\n    architectures: [amd64, arm64]",
                f"systems.debian12.base: duplicate key, first on line {first[0]}",
            ),
            ("2.2: {", "lines.cu121.torch: the key 2.2 is not text; quote it"),
            ("ncll", "lines.cu130.torch.2.13.0.ncll: unknown key; did you mean 'nccl'?"),
            (
                f"{accelerator[1]}\n    colour",
                f"lines.cpu.accelerator: duplicate key, first on line {first[1]}",
            ),
            ("colour", "lines.cpu.colour: unknown key"),
            (
                'require: "~2"',
                "holds.1.require: '~2' is not a version specifier such as '<2.3'",
            ),
        )
    )


def test_a_place_is_sorted_as_numbers(matrix_faults: MatrixFaults, small_text: str) -> None:
    text = small_text.replace("registry: registry.example/team/gpucomm", "registry: R")
    text = text.replace("with: [numpy]", "with: [1, ok, Not, 2, 3]")
    places = [place(fault) for fault in matrix_faults(text)]
    last = places[-1][0]
    # As text, column 15 would come before column 8.
    assert places == [(2, 1), (last, 8), (last, 15), (last, 20), (last, 23)]


@pytest.fixture(scope="module")
def places_of_keys(small_text: str) -> dict[tuple[str | int, ...], located.Mark]:
    """Where each key of the small matrix is; names that a person chooses, as `slim`, are none."""
    schema, marks = json_schema(), located.parse(small_text, matrix.FILE).marks
    found = {
        path: mark
        for path, mark in marks.items()
        if path and str(path[-1]) in matrix._known_keys(schema, path[:-1])
    }
    assert len(found) > 150
    return found


@settings(max_examples=40)
@given(data=st.data())
def test_any_misspelt_key_is_reported_with_its_place(
    data: st.DataObject,
    places_of_keys: dict[tuple[str | int, ...], located.Mark],
    matrix_faults: MatrixFaults,
    small_text: str,
) -> None:
    path = data.draw(st.sampled_from(list(places_of_keys)))
    key, mark = str(path[-1]), places_of_keys[path]
    letter = data.draw(st.integers(0, len(key)))
    wrong = f"{key[:letter]}{data.draw(st.sampled_from(list('qz_')))}{key[letter:]}"
    lines = small_text.splitlines(keepends=True)
    line = lines[mark.line - 1]
    assert line[mark.column - 1 :].startswith(f"{key}:")
    lines[mark.line - 1] = line[: mark.column - 1] + wrong + line[mark.column - 1 + len(key) :]
    said = matrix_faults("".join(lines))
    unknown = [fault for fault in said if f"{wrong}: unknown key" in fault]
    assert [place(fault) for fault in unknown] == [tuple(mark)], said


@settings(max_examples=25)  # test_matrix_fuzz.py has thousands
@given(data=st.data())
def test_any_lost_line_loads_or_is_reported(
    data: st.DataObject, parse_matrix: ParseMatrix, small_text: str
) -> None:
    lines = small_text.splitlines(keepends=True)
    gone = data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=3))
    text = "".join(line for number, line in enumerate(lines) if number not in gone)
    assert loads_or_is_reported(parse_matrix, text)


@settings(max_examples=25)  # test_matrix_fuzz.py has thousands
@given(data=st.data())
def test_any_replaced_value_loads_or_is_reported(
    data: st.DataObject, parse_matrix: ParseMatrix, small_text: str
) -> None:
    spans = [m.span(1) for m in re.finditer(r': (["\w][^\n{}\[\],]*)(?=[\n,}])', small_text)]
    start, end = data.draw(st.sampled_from(spans))
    value = data.draw(
        st.sampled_from(["", "~", "1", "-1", "1.5", "true", "[]", "{}", "word", '""', "'a b'"])
    )
    assert loads_or_is_reported(parse_matrix, small_text[:start] + value + small_text[end:])


def test_the_schema_for_editors_knows_every_key(small: Matrix) -> None:
    schema = json_schema()
    assert schema["properties"].keys() == {
        field.alias or name for name, field in type(small).model_fields.items()
    }
    torch = schema["$defs"]["Torch"]["properties"]["nccl"]
    assert {option["type"] for option in torch["anyOf"]} == {"string", "null"}
    assert schema["$defs"]["Torch"]["additionalProperties"] is False
