"""rules.py: every reason against a cell; and that each rule of matrix.yaml takes something away."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucomm import located
from gpucomm import matrix as matrices
from gpucomm.cell import Cell, cell, wanted_of
from gpucomm.errors import WrongInput
from gpucomm.project import Project
from gpucomm.rules import (
    CHECKS,
    Denial,
    contains,
    denials,
    fact_of,
    matches,
    platforms,
    possible,
    unpublished,
    warnings,
)
from gpucomm.schema import Matrix, When
from gpucomm.standard import cells_of, on_demand

ParseMatrix = Callable[[str], Matrix]
Example = str | dict[str, Any]
T22, T24 = "cu121-torch2.2.2", "cu121-torch2.4.1"
CU130, CPU, ROCM = "cu130-torch2.13.0", "cpu-torch2.13.0", "rocm6.1-torch2.4.1"
SLOW = '    when: {torch: "==2.2.2"}\n    effect: warn\n'


def named(matrix: Matrix, text: str) -> Cell:
    return cell(matrix, wanted_of(matrix, text))


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def against(matrix: Matrix, text: str) -> list[tuple[str, str]]:
    """(rule, fact) of everything that is against a whole cell."""
    found = denials(matrix, named(matrix, text))
    return [(denial.rule, denial.fact) for denial in found if denial.arch is None]


# ---------------------------------------------------------------- the built-in checks


@pytest.mark.parametrize(
    ("text", "denial"),
    [
        pytest.param(
            "cu121-torch2.13.0",
            Denial(
                rule="wheel",
                fact="torch 2.13.0 is published for cu130, cpu, not for cu121",
                reason="a torch exists where it was built",
                source="variants",
            ),
            id="other-lines",
        ),
        pytest.param(
            "cu121-torch2.5.0",
            Denial(
                rule="wheel",
                fact="torch 2.5.0 is not in the matrix, which has 2.2.2, 2.4.1, 2.13.0",
                reason="a torch exists where it was built",
                source="variants",
            ),
            id="no-line",
        ),
        pytest.param(
            "rocm6.1-torch2.5.0",
            Denial(
                rule="left-out",
                fact="torch 2.5.0 is published for rocm6.1 and left out here",
                reason="nobody asked for it",
                source="metadata",
            ),
            id="left-out",
        ),
        pytest.param(
            "rocm6.1-torch2.2.2",
            Denial(
                rule="wheel",
                fact="torch 2.2.2 is published for cu121, not for rocm6.1",
                reason="a torch exists where it was built",
                source="variants",
            ),
            id="beside-what-is-left-out",
        ),
        pytest.param(T24, None, id="published"),
        pytest.param(f"{T24}-nccl9-slim", None, id="only-the-torch-counts"),
    ],
)
def test_wheel(
    text: str, denial: Denial | None, parse_matrix: ParseMatrix, small_text: str
) -> None:
    row = '  - {line: rocm6.1, torch: "2.5.0", reason: nobody asked for it, source: metadata}\n'
    matrix = parse_matrix(changed(small_text, ("left_out:\n", f"left_out:\n{row}")))
    assert unpublished(matrix, wanted_of(matrix, text)) == denial


def test_python(parse_matrix: ParseMatrix, small_text: str) -> None:
    matrix = parse_matrix(changed(small_text, ('python: "3.12"', 'python: "3.13"')))
    fact = "torch 2.4.1 has wheels for Python >=3.8,<3.13, ubuntu24.04 has 3.13"
    assert against(matrix, f"{T24}-ubuntu24.04") == [("python", fact)]
    assert against(matrix, T24) == []
    assert against(matrix, f"{CPU}-ubuntu24.04") == []


def test_a_python_is_compared_as_a_version(parse_matrix: ParseMatrix, small_text: str) -> None:
    """As text, 3.9 would be newer than 3.10."""
    matrix = parse_matrix(
        changed(
            small_text,
            ('python: "3.12"', 'python: "3.9"'),
            ('python: ">=3.12", flavor', 'python: ">=3.8", flavor'),
        )
    )
    assert [rule for rule, _ in against(matrix, f"{CPU}-ubuntu24.04")] == ["python"]


def test_glibc(parse_matrix: ParseMatrix, small_text: str) -> None:
    matrix = parse_matrix(changed(small_text, ('glibc: "2.39"', 'glibc: "2.9"')))
    fact = "the wheel of torch 2.13.0 needs glibc 2.28, ubuntu24.04 has 2.9"
    assert against(matrix, f"{CPU}-ubuntu24.04") == [("glibc", fact)]
    fact = "the wheel of torch 2.4.1 needs glibc 2.17, ubuntu24.04 has 2.9"
    assert against(matrix, f"{T24}-ubuntu24.04") == [("glibc", fact)]
    assert against(matrix, CPU) == []
    enough = parse_matrix(changed(small_text, ('glibc: "2.39"', 'glibc: "2.28"')))
    assert against(enough, f"{CPU}-ubuntu24.04") == []


def test_nccl_named(small: Matrix) -> None:
    fact = "NCCL 2.22.3 is no override of torch 2.4.1 on cu121, which has 2.21.5"
    assert against(small, f"{T24}-nccl2.22.3") == [("nccl-named", fact)]
    fact = "NCCL 2.30.7 is no override of torch 2.13.0 on cu130, which has none"
    assert against(small, f"{CU130}-nccl2.30.7") == [("nccl-named", fact)]
    assert against(small, f"{CPU}-nccl2.21.5") == [("nccl-named", "cpu has no NCCL to choose")]
    assert against(small, f"{ROCM}-nccl2.21.5") == [("nccl-named", "rocm6.1 has no NCCL to choose")]
    assert against(small, f"{T24}-nccl2.21.5") == []
    assert against(small, f"{T24}-nccl2.20.5") == []  # its own, written out


def test_nccl_family(small: Matrix) -> None:
    fact = "nvidia-nccl-cu12 has no 2.30.7; it has 2.18.1 to 2.22.3"
    assert against(small, f"{T24}-nccl2.30.7") == [("nccl-family", fact)]
    fact = "nvidia-nccl-cu13 has no 2.31.0; it has 2.29.7 to 2.30.7"
    assert against(small, f"{CU130}-nccl2.31.0") == [("nccl-family", fact)]


def test_nccl_floor_of_an_older_version(small: Matrix) -> None:
    rules = dict(against(small, f"{T24}-nccl2.19.3"))
    assert rules.keys() == {"nccl-named", "nccl-floor"}
    assert rules["nccl-floor"] == (
        "torch 2.4.1 on cu121 was built with NCCL 2.20.5, 2.19.3 is older"
    )
    rules = dict(against(small, f"{CU130}-nccl2.21.5"))
    assert rules.keys() == {"nccl-family", "nccl-floor"}


def test_nccl_floor_is_compared_as_a_version(parse_matrix: ParseMatrix, small_text: str) -> None:
    """As text, 2.9.8 would be newer than 2.20.5."""
    versions = 'versions: ["2.18.1", '
    matrix = parse_matrix(changed(small_text, (versions, f'{versions}"2.9.8", ')))
    assert "nccl-floor" in dict(against(matrix, f"{T24}-nccl2.9.8"))


def test_nccl_floor_of_an_nccl_that_is_linked_into_torch(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    row = '"2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}'
    matrix = parse_matrix(changed(small_text, (row, '"2.2.2": {nccl: static}')))
    assert against(matrix, T22) == []
    assert against(matrix, f"{T22}-nccl2.21.5") == [
        ("nccl-named", "NCCL 2.21.5 is no override of torch 2.2.2 on cu121, which has none"),
        ("nccl-floor", "NCCL is linked into torch 2.2.2 of cu121"),
    ]


def test_extra_wheel(small: Matrix) -> None:
    fact = "there is no torchvision for torch 2.13.0"
    assert against(small, f"{CPU}-torchvision-mpi") == [("extra-wheel", fact)]
    assert against(small, f"{CPU}-mpi") == []
    assert against(small, f"{T24}-torchvision") == []


def test_every_reason_comes_at_once_with_reason_and_source(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    matrix = parse_matrix(
        changed(
            small_text,
            ('python: "3.12"', 'python: "3.13"'),
            ('glibc: "2.39"', 'glibc: "2.5"'),
            ('wheels: {torchvision: "0.17.2"}', "wheels: {}"),
        )
    )
    found = denials(matrix, named(matrix, f"{T22}-nccl2.18.1-ubuntu24.04-torchvision"))
    whole = [denial for denial in found if denial.arch is None]
    assert [denial.rule for denial in whole] == [
        "python", "glibc", "extra-wheel", "nccl-named", "nccl-floor", "compile-python312",
    ]  # fmt: skip
    assert [denial.rule for denial in found if denial.arch == "arm64"] == ["arm64-early"]
    for denial in found:
        row = matrix.checks.get(denial.rule) or matrix.rules[denial.rule]
        assert (denial.reason, denial.source) == (row.reason, row.source)


# ---------------------------------------------------------------- rules


def test_a_rule_without_arch_takes_the_whole_cell_away(small: Matrix) -> None:
    one = named(small, f"{T22}-ubuntu24.04")
    (denial,) = [denial for denial in denials(small, one) if denial.arch is None]
    assert denial == Denial(
        rule="compile-python312",
        fact="cu121, torch 2.2.2, ubuntu24.04, runtime",
        reason="torch.compile refuses this Python",
        source="metadata",
    )
    assert not possible(small, one)
    # each of its values alone takes nothing away
    for text in (T22, f"{T22}-ubuntu24.04-slim", f"{T24}-ubuntu24.04"):
        assert possible(small, named(small, text)), text


def test_a_rule_with_arch_takes_that_platform_away(small: Matrix) -> None:
    one = named(small, T24)
    assert denials(small, one) == (
        Denial(
            rule="arm64-early",
            fact="cu121, torch 2.4.1 on arm64",
            reason="these aarch64 wheels are CPU builds",
            source="metadata",
            arch="arm64",
        ),
    )
    assert possible(small, one)
    assert platforms(small, one) == ("amd64",)
    assert platforms(small, named(small, CU130)) == ("amd64", "arm64")
    assert denials(small, named(small, CU130)) == ()


def test_platforms_are_those_of_the_system(parse_matrix: ParseMatrix, small_text: str) -> None:
    matrix = parse_matrix(
        changed(small_text, ("architectures: [amd64, arm64]", "architectures: [arm64, amd64]"))
    )
    assert platforms(matrix, named(matrix, CU130)) == ("arm64", "amd64")
    assert platforms(matrix, named(matrix, f"{CU130}-ubuntu24.04")) == ("amd64",)


def test_a_cell_without_a_platform_cannot_exist(parse_matrix: ParseMatrix, small_text: str) -> None:
    arm_only = ("architectures: [amd64]\n", "architectures: [arm64]\n")
    matrix = parse_matrix(changed(small_text, arm_only))
    one = named(matrix, f"{T24}-ubuntu24.04")
    assert platforms(matrix, one) == ()
    assert not possible(matrix, one)
    assert [denial.arch for denial in denials(matrix, one)] == ["arm64"]
    assert possible(matrix, named(matrix, f"{CU130}-ubuntu24.04"))


def test_a_rule_may_take_several_platforms_away(parse_matrix: ParseMatrix, small_text: str) -> None:
    # The warning becomes a denial on both platforms, for a flavor that is not standard.
    both = '    when: {torch: "==2.2.2", flavor: [devel], arch: [arm64, amd64]}\n'
    matrix = parse_matrix(changed(small_text, (SLOW, both)))
    one = named(matrix, f"{T22}-devel")
    found = [(d.rule, d.arch) for d in denials(matrix, one) if d.rule == "slow-start"]
    assert found == [("slow-start", "arm64"), ("slow-start", "amd64")]
    assert not possible(matrix, one)
    assert possible(matrix, named(matrix, T22))


def test_a_warning_takes_nothing_away(small: Matrix) -> None:
    one = named(small, T22)
    assert warnings(small, one) == (
        Denial(
            rule="slow-start",
            fact="cu121, torch 2.2.2",
            reason="its first collective is slow",
            source="metadata",
        ),
    )
    assert "slow-start" not in {denial.rule for denial in denials(small, one)}
    assert possible(small, one)
    assert warnings(small, named(small, T24)) == ()


def test_a_warning_with_arch_is_about_that_platform(
    parse_matrix: ParseMatrix, small_text: str
) -> None:
    warn = '    when: {torch: ">=2.2", arch: [arm64]}\n    effect: warn\n'
    matrix = parse_matrix(changed(small_text, (SLOW, warn)))
    (warning,) = warnings(matrix, named(matrix, CU130))
    assert (warning.rule, warning.fact, warning.arch) == (
        "slow-start", "cu130, torch 2.13.0 on arm64", "arm64",
    )  # fmt: skip
    assert platforms(matrix, named(matrix, CU130)) == ("amd64", "arm64")
    assert warnings(matrix, named(matrix, T24)) == ()  # which has no arm64
    assert warnings(matrix, named(matrix, f"{CU130}-ubuntu24.04")) == ()


FULL = f"{T24}-nccl2.21.5-ubuntu24.04-slim-mpi-torchvision"


@pytest.mark.parametrize(
    ("when", "text", "about", "fact"),
    [
        ({}, FULL, True, "cu121"),
        ({"lines": ["cu12*"]}, FULL, True, "cu121"),
        ({"lines": ["cpu", "cu121"]}, FULL, True, "cu121"),
        ({"lines": ["cu13*", "cu12"]}, FULL, False, ""),
        ({"accelerator": ["cpu", "cuda"]}, FULL, True, "cu121"),
        ({"accelerator": ["rocm"]}, FULL, False, ""),
        ({"torch": ">=2.4,<2.10"}, FULL, True, "cu121, torch 2.4.1"),
        ({"torch": "<2.4"}, FULL, False, ""),
        ({"torch": "<2.5"}, CPU, False, ""),  # as text, 2.13 comes before 2.5
        ({"nccl": "==2.21.5"}, FULL, True, "cu121, NCCL 2.21.5"),
        ({"nccl": "<2.21.5"}, FULL, False, ""),
        ({"nccl": ">=1"}, CPU, False, ""),
        ({"nccl": ""}, CPU, False, ""),
        ({"nccl": ""}, T24, True, "cu121, NCCL 2.20.5"),
        ({"os": ["ubuntu*"]}, FULL, True, "cu121, ubuntu24.04"),
        ({"os": ["debian*"]}, FULL, False, ""),
        ({"python": ">=3.12"}, FULL, True, "cu121, ubuntu24.04"),
        ({"python": "<3.12"}, FULL, False, ""),
        ({"python": "<3.2"}, T24, False, ""),  # 3.11 is not below 3.2
        ({"flavor": ["devel", "slim"]}, FULL, True, "cu121, slim"),
        ({"flavor": ["devel"]}, FULL, False, ""),
        ({"extras": ["torchvision"]}, FULL, True, "cu121, torchvision"),
        ({"extras": ["mpi"]}, T24, False, ""),
        ({"index": "default"}, FULL, True, "cu121"),
        ({"index": "pytorch"}, FULL, False, ""),
        ({"index": "pytorch"}, CPU, True, "cpu"),
        ({"index": "default"}, CPU, False, ""),
        ({"arch": ["arm64"]}, FULL, True, "cu121"),
        (
            {"torch": "==2.4.1", "nccl": ">2", "os": ["*24*"], "flavor": ["slim"],
             "extras": ["mpi"]},
            FULL, True, "cu121, torch 2.4.1, NCCL 2.21.5, ubuntu24.04, slim, mpi",
        ),
        ({"torch": "==2.4.1", "flavor": ["devel"]}, FULL, False, ""),
    ],
)  # fmt: skip
def test_what_a_rule_is_about(
    when: dict[str, Any], text: str, about: bool, fact: str, small: Matrix
) -> None:
    rule, one = When(**when), named(small, text)
    assert matches(rule, one) is about
    if about:
        assert fact_of(rule, one) == fact


@pytest.mark.parametrize(
    ("specifier", "version", "inside"),
    [
        ("", "0.1", True),
        ("<2.10", "2.9.1", True),
        ("<2.10", "2.10.0", False),
        ("==2.4", "2.4.0", True),
        (">=2", "2.1.0rc1", True),
    ],
)
def test_contains(specifier: str, version: str, inside: bool) -> None:
    assert contains(specifier, version) is inside


# ---------------------------------------------------------------- the committed matrix
#
# tests/data/impossible.json has, for each rule and each check that denies, a cell that is
# impossible because of it. A rule that goes, and a rule that comes, is a failure with its name.

TOLD = {"driver", "gpus", "rccl"}
"""Checks with a reason and a source that a person is told, and that deny no cell."""
NO_EXAMPLE = {
    "glibc": "every system of the matrix has a newer glibc than any wheel of torch needs",
    "extra-wheel": "every torch of the matrix has the wheels of all extras",
}
ALONGSIDE = {
    "nccl-floor": {"nccl-named"},  # an override that is older is refused in matrix.yaml already
    "arm64-default-index": {"arm64-nccl-hang"},  # all of these torch have such an NCCL
}
"""What else is against the only cells that a rule is about."""


@pytest.fixture(scope="module")
def examples(root: Path) -> dict[str, Example]:
    path = root / "tests" / "data" / "impossible.json"
    found: dict[str, Example] = json.loads(path.read_text(encoding="utf-8"))
    return found


def cell_id(example: Example) -> str:
    return example if isinstance(example, str) else str(example["cell"])


def uncovered(matrix: Matrix, examples: Mapping[str, Example]) -> list[str]:
    """How the examples and the rules of a matrix differ, one line for each name."""
    denying = {check for check in matrix.checks if check not in TOLD}
    names = [*matrix.rules, *sorted(denying - NO_EXAMPLE.keys())]
    faults = []
    for name, example in examples.items():
        if name not in names:
            what = "check" if name in CHECKS else "rule"
            now = "would be possible now"
            if isinstance(example, dict) and "arch" in example:
                now = f"would be possible on {example['arch']} now"
            elif isinstance(example, dict):
                now = "would have no warning now"
            faults.append(f"{what} {name} is gone from matrix.yaml: {cell_id(example)} {now}")
    for name in names:
        if name not in examples:
            what = "check" if name in CHECKS else "rule"
            faults.append(f"{what} {name} has no example in tests/data/impossible.json")
    return faults


def without(root: Path, rule: str) -> Matrix:
    """matrix.yaml without one of its rules."""
    data = located.read(root / matrices.FILE).data
    del data["rules"][rule]
    return Matrix.model_validate(data)


def rules_against(matrix: Matrix, example: Example) -> set[str]:
    """The names of what an example is impossible for, or is warned of."""
    wanted = wanted_of(matrix, cell_id(example))
    if (missing := unpublished(matrix, wanted)) is not None:
        return {missing.rule}
    one = cell(matrix, wanted)
    if isinstance(example, dict) and example.get("warns"):
        return {warning.rule for warning in warnings(matrix, one)}
    arch = example.get("arch") if isinstance(example, dict) else None
    return {denial.rule for denial in denials(matrix, one) if denial.arch == arch}


def names_of_rules(root: Path) -> list[str]:
    return list(located.read(root / matrices.FILE).data["rules"])


REAL_RULES = names_of_rules(Path(__file__).resolve().parents[2])


def test_every_rule_has_an_example_and_every_example_its_rule(
    real: Project, examples: dict[str, Example]
) -> None:
    faults = uncovered(real.matrix, examples)
    assert not faults, "\n".join(faults)


def test_every_example_is_impossible_for_its_rule_alone(
    real: Project, examples: dict[str, Example]
) -> None:
    wrong = []
    for name, example in examples.items():
        found = rules_against(real.matrix, example)
        expected = {name} | ALONGSIDE.get(name, set())
        if found != expected:
            wrong.append(f"{cell_id(example)} is the example of {name}, and {sorted(found)} found")
    assert not wrong, "\n".join(wrong)


def test_an_example_cannot_be_had(real: Project, examples: dict[str, Example]) -> None:
    matrix = real.matrix
    for name, example in examples.items():
        if isinstance(example, str):
            with pytest.raises(WrongInput, match="cannot exist; why: "):
                on_demand(matrix, example)
            continue
        one = on_demand(matrix, cell_id(example))
        assert example.keys() - {"cell"} in ({"arch"}, {"warns"})
        if "arch" in example:
            assert example["arch"] in matrix.systems[one.os].architectures
            assert example["arch"] not in platforms(matrix, one)
        else:
            assert matrix.rules[name].effect == "warn"


@pytest.mark.parametrize("rule", REAL_RULES)
def test_a_rule_that_goes_is_missed_by_name(
    rule: str, root: Path, examples: dict[str, Example]
) -> None:
    matrix = without(root, rule)
    (fault,) = uncovered(matrix, examples)
    assert fault.startswith(
        f"rule {rule} is gone from matrix.yaml: {cell_id(examples[rule])} would "
    )
    assert rule not in rules_against(matrix, examples[rule])
    if rule not in ALONGSIDE:
        # What the message says is so.
        example, one = examples[rule], on_demand(matrix, cell_id(examples[rule]))
        arch = example.get("arch") if isinstance(example, dict) else None
        assert arch is None or arch in platforms(matrix, one)


def test_a_rule_that_comes_is_asked_for_an_example(
    real: Project, examples: dict[str, Example]
) -> None:
    fewer = {name: example for name, example in examples.items()
             if name not in ("arm64-rocm", "nccl-floor")}  # fmt: skip
    assert uncovered(real.matrix, fewer) == [
        "rule arm64-rocm has no example in tests/data/impossible.json",
        "check nccl-floor has no example in tests/data/impossible.json",
    ]


def test_a_check_that_goes_is_missed_by_name(root: Path, examples: dict[str, Example]) -> None:
    data = located.read(root / matrices.FILE).data
    del data["checks"]["nccl-family"]
    assert uncovered(Matrix.model_validate(data), examples) == [
        "check nccl-family is gone from matrix.yaml: cu118-torch2.7.1-nccl2.22.3 would be "
        "possible now"
    ]


def test_a_check_without_an_example_has_none(real: Project) -> None:
    """What NO_EXAMPLE says is so; when it is not, the check needs an example."""
    matrix = real.matrix
    for torch, release in matrix.torch.items():
        for name, system in matrix.systems.items():
            assert contains(f">={release.glibc}", system.glibc), (torch, name, "glibc")
        for name, extra in matrix.extras.items():
            assert extra.wheel is None or extra.wheel in release.wheels, (torch, name)
    assert set(CHECKS) >= TOLD | NO_EXAMPLE.keys()


def test_what_is_said_of_a_standard_cell_has_its_reason_and_source(real: Project) -> None:
    matrix = real.matrix
    for one in cells_of(matrix):
        for denial in (*denials(matrix, one), *warnings(matrix, one)):
            assert denial.source in matrix.sources
            assert denial.reason
            assert denial.fact.startswith(one.line)
