"""references.py: what the keys of matrix.yaml say of each other, each fault at its place."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpucomm import rules
from gpucomm.project import Project
from gpucomm.references import reference_faults
from gpucomm.schema import Matrix

ParseMatrix = Callable[[str], Matrix]
MatrixFaults = Callable[[str], tuple[str, ...]]
At = Callable[[str, str], str]
T22 = '"2.2.2": {nccl: "2.19.3", overrides: ["2.21.5"]}'
T24 = '"2.4.1": {nccl: "2.20.5", overrides: ["2.21.5"]}'
HERE = "lines.cu121.torch.2.4.1.overrides.0"
ROCM = '    rccl: "2.18.6"\n'
TARGETS = (
    "    gpu_targets: {{package: rocm, version: 7.14.0, extras: [], wheels: [], "
    "device_wheel: rocm-sdk-device-, known: [gfx90a, {}], default: [{}]}}\n"
)
CPU_LINE = "  cpu:\n    accelerator: cpu\n"


def on_cpu(key: str) -> tuple[str, str]:
    """A key that has no meaning there, put on the CPU line."""
    return CPU_LINE, f"{CPU_LINE}    {key}\n"


# (what is replaced, by what, where the one fault is, what it says)
SINGLE = {
    # ---- defaults and the torch table
    "default-os": (
        "os: debian12, ", "os: debian13, ", "os: debian13",
        "defaults.os: 'debian13' is not a system; did you mean 'debian12'?",
    ),
    "default-flavor": (
        "flavor: runtime}\nsys", "flavor: fat}\nsys", "flavor: fat",
        "defaults.flavor: 'fat' is not a flavor; there is runtime, slim, devel",
    ),
    "default-line": (
        "default: cu130", "default: cu131", "default: cu131",
        "torch.2.13.0.default: 'cu131' is not a line; did you mean 'cu130'?",
    ),
    "default-line-without-that-torch": (
        "default: cu130", "default: cu121", "default: cu121\nnccl",
        "torch.2.13.0.default: the line cu121 has no torch 2.13.0",
    ),
    "wheel-of-no-extra": (
        '{torchvision: "0.19.1"}', '{torchvison: "0.19.1"}', "torchvison",
        "torch.2.4.1.wheels.torchvison: 'torchvison' is not the wheel of an extra; "
        "did you mean 'torchvision'?",
    ),
    "torch-on-no-line": (
        '  "2.13.0":\n    python', '  "2.5.0": {python: ">=3.8", glibc: "2.17"}\n'
        '  "2.13.0":\n    python', '"2.5.0"', "torch.2.5.0: no line has this torch",
    ),
    "rocm-without-triton": (
        "    triton_rocm: pytorch-triton-rocm\n", "", '"2.4.1": {}',
        "lines.rocm6.1.torch.2.4.1: torch.2.4.1.triton_rocm is needed on a ROCm line",
    ),
    # ---- names: two cells of one id
    "name-on-two-axes": (
        "  mpi: {apt", "  slim: {apt", "slim: {apt",
        "extras.slim: 'slim' is also one of flavors: two cells of one id",
    ),
    "system-as-extra": (
        "  mpi: {apt", "  debian12: {apt", "debian12: {apt",
        "extras.debian12: 'debian12' is also one of systems: two cells of one id",
    ),
    "gpu-target-as-extra": (
        ROCM, ROCM + TARGETS.format("mpi", "gfx90a"), "mpi], default",
        "lines.rocm6.1.gpu_targets.known.1: 'mpi' is also one of extras: two cells of one id",
    ),
    "name-like-a-torch": (
        "  mpi: {apt", "  torch2: {apt", "torch2: {apt",
        "extras.torch2: reads like a version in a cell id; take another name",
    ),
    "name-like-an-nccl": (
        "  mpi: {apt", "  nccl2: {apt", "nccl2: {apt",
        "extras.nccl2: reads like a version in a cell id; take another name",
    ),
    "name-like-an-rccl": (
        "  mpi: {apt", "  rccl2.20: {apt", "rccl2.20: {apt",
        "extras.rccl2.20: reads like a version in a cell id; take another name",
    ),
    # ---- what a line needs, and what has no meaning there
    **{
        f"cuda-without-{key}": (
            re.escape(f"    {key}: ") + r".*\n(?=(?:    .*\n)*  cu130:)", "", "cu121:\n    acc",
            f"lines.cu121.{key}: needed on a line whose accelerator is cuda",
        )
        for key in ("cuda", "toolkit", "nccl_family", "nvidia_require", "driver")
    },
    "rocm-without-version": (
        '    rocm: "6.1"\n', "", "rocm6.1:\n    acc",
        "lines.rocm6.1.rocm: needed on a line whose accelerator is rocm",
    ),
    "rocm-without-rccl": (
        ROCM, "", "rocm6.1:\n    acc",
        "lines.rocm6.1.rccl: needed on a line whose accelerator is rocm",
    ),
    "nccl-family-on-rocm": (
        ROCM, f"{ROCM}    nccl_family: cu12\n", "nccl_family: cu12\n    toolkit: 6.1",
        "lines.rocm6.1.nccl_family: without meaning on a line whose accelerator is rocm",
    ),
    "driver-on-rocm": (
        ROCM, f"{ROCM}    driver: {{floor: \"1\", toolkit: \"2\"}}\n", "driver: {floor: \"1\"",
        "lines.rocm6.1.driver: without meaning on a line whose accelerator is rocm",
    ),
    "cuda-on-cpu": (
        *on_cpu('cuda: "12.9"'), 'cuda: "12.9"',
        "lines.cpu.cuda: without meaning on a line whose accelerator is cpu",
    ),
    "rccl-on-cpu": (
        *on_cpu('rccl: "2.1"'), 'rccl: "2.1"',
        "lines.cpu.rccl: without meaning on a line whose accelerator is cpu",
    ),
    "toolkit-on-cpu": (
        *on_cpu("toolkit: some"), "toolkit: some",
        "lines.cpu.toolkit: without meaning on a line whose accelerator is cpu",
    ),
    "nccl-family": (
        "nccl_family: cu13", "nccl_family: cu14", "nccl_family: cu14",
        "lines.cu130.nccl_family: 'cu14' is not an NCCL family; did you mean 'cu13'?",
    ),
    "default-gpu-target": (
        ROCM, ROCM + TARGETS.format("gfx942", "gfx941"), "gfx941]}",
        "lines.rocm6.1.gpu_targets.default.0: 'gfx941' is not one of its known targets; "
        "did you mean 'gfx942'?",
    ),
    "budget-of-no-flavor": (
        "{runtime: 1600}", "{runtim: 1600}", "runtim: 1600",
        "lines.cpu.size_budget_mb.runtim: 'runtim' is not a flavor; did you mean 'runtime'?",
    ),
    # ---- a torch on a line, and its NCCL
    "torch-not-in-the-table": (
        '"2.2.2": {nccl', '"2.2.3": {nccl: "2.19.3"}\n      "2.2.2": {nccl', '"2.2.3"',
        "lines.cu121.torch.2.2.3: '2.2.3' is not in the torch table; did you mean '2.2.2'?",
    ),
    "cuda-without-nccl": (
        '"2.13.0": {nccl: "2.29.7"}', '"2.13.0": {}', '"2.13.0": {}\n    gpus',
        "lines.cu130.torch.2.13.0.nccl: name the NCCL that its wheel requires",
    ),
    "nccl-on-cpu": (
        '"2.13.0": {}', '"2.13.0": {nccl: "2.21.5"}', 'nccl: "2.21.5"',
        "lines.cpu.torch.2.13.0.nccl: no NCCL to choose on a line whose accelerator is cpu",
    ),
    "static-on-rocm": (
        '"2.4.1": {}', '"2.4.1": {nccl: static}', "nccl: static",
        "lines.rocm6.1.torch.2.4.1.nccl: no NCCL to choose on a line whose accelerator is rocm",
    ),
    "overrides-on-rocm": (
        '"2.4.1": {}', '"2.4.1": {overrides: ["2.21.5"]}', '"2.4.1": {overrides',
        "lines.rocm6.1.torch.2.4.1.nccl: no NCCL to choose on a line whose accelerator is rocm",
    ),
    "override-twice": (
        T24, T24.replace('"2.21.5"', '"2.21.5", "2.21.5"'), '"2.21.5"]}\n      "2.2.2"',
        "lines.cu121.torch.2.4.1.overrides.1: '2.21.5' is given twice",
    ),
    "override-equal": (
        T24, T24.replace("2.21.5", "2.20.5"), '"2.20.5"]',
        f"{HERE}: 2.20.5 is the NCCL of the wheel itself, no override",
    ),
    "override-older": (
        T24, T24.replace("2.21.5", "2.19.3"), '"2.19.3"]',
        f"{HERE}: 2.19.3 is older than 2.20.5, which this torch was built with",
    ),
    "override-of-no-family": (
        T24, T24.replace("2.21.5", "2.21.6"), '"2.21.6"]',
        f"{HERE}: '2.21.6' is not a version of nvidia-nccl-cu12; did you mean '2.21.5'?",
    ),
    "override-of-the-other-family": (
        T24, T24.replace("2.21.5", "2.30.7"), '"2.30.7"]}',
        f"{HERE}: '2.30.7' is not a version of nvidia-nccl-cu12; did you mean '2.20.5'?",
    ),
    "override-of-a-static-nccl": (
        T24, T24.replace('"2.20.5"', "static"), '"2.21.5"]}\n      "2.2.2"',
        f"{HERE}: the NCCL of this torch is linked into it and cannot be replaced",
    ),
    # ---- sources and checks
    "source-of-a-check": (
        "wheel: {source: variants", "wheel: {source: varants", "source: varants",
        "checks.wheel.source: 'varants' is not one of sources; did you mean 'variants'?",
    ),
    "source-of-a-rule": (
        "its first collective is slow\n    source: metadata",
        "its first collective is slow\n    source: rumour", "source: rumour",
        "rules.slow-start.source: 'rumour' is not one of sources; there is metadata, variants",
    ),
    "source-of-what-is-left-out": (
        "starts at 6.1, source: variants", "starts at 6.1, source: variant", "source: variant}",
        "left_out.0.source: 'variant' is not one of sources; did you mean 'variants'?",
    ),
    "source-that-nobody-names": (
        "  variants: {read", "  notes: {read: some notes of ours}\n  variants: {read", "notes: {",
        "sources.notes: nothing names this source",
    ),
    "unknown-check": (
        "  driver: {source", "  drivers: {source: metadata, reason: below it nothing}\n"
        "  driver: {source", "drivers: {",
        "checks.drivers: 'drivers' is not a built-in check; did you mean 'driver'?",
    ),
    # ---- globs and names that meet nothing
    "lines-of-a-row": (
        "lines: [cu121], nccl", "lines: [cu12*, cu14*], nccl", "cu14*",
        "standard.1.lines.1: 'cu14*' matches no line; did you mean 'cu130'?",
    ),
    "os-of-a-row": (
        "{reason: every torch on every line}",
        "{reason: every torch on every line, os: [debian12, debian13]}", "debian13]",
        "standard.0.os.1: 'debian13' is not one of the systems; did you mean 'debian12'?",
    ),
    "flavor-of-a-row": (
        "flavor: [slim]", "flavor: [slum]", "slum",
        "standard.2.flavor.0: 'slum' is not one of the flavors; did you mean 'slim'?",
    ),
    "extra-of-a-row": (
        "[[torchvision]]", "[[], [torchvision, mpii]]", "mpii",
        "standard.3.extras.1.1: 'mpii' is not one of the extras; did you mean 'mpi'?",
    ),
    "gpu-target-of-a-row": (
        "{reason: every torch on every line}",
        "{reason: every torch on every line, gpu_targets: [[], [gfx942]]}", "gfx942]]",
        "standard.0.gpu_targets.1.0: 'gfx942' is not one of the GPU targets; there is none",
    ),
    "lines-of-a-hold": (
        'lines: ["cu12*"]', 'lines: ["cu11*"]', '"cu11*"',
        "holds.0.lines.0: 'cu11*' matches no line; did you mean 'cu121'?",
    ),
    "lines-of-a-wheel-of-a-flavor": (
        'lines: ["cu13*"]', 'lines: ["cu14*"]', '"cu14*"',
        "flavors.devel.wheels.0.lines.0: 'cu14*' matches no line; did you mean 'cu130'?",
    ),
    "lines-of-a-rule": (
        '{torch: "==2.2.2"}', "{lines: [cu121, xpu]}", "xpu",
        "rules.slow-start.when.lines.1: 'xpu' matches no line; did you mean 'cpu'?",
    ),
    "os-of-a-rule": (
        '{torch: "==2.2.2"}', '{os: ["ubuntu*", "fedora*"]}', '"fedora*"',
        "rules.slow-start.when.os.1: 'fedora*' matches no system",
    ),
    "flavor-of-a-rule": (
        "flavor: [runtime]", "flavor: [runtime, fat]", "fat]",
        "rules.compile-python312.when.flavor.1: 'fat' is not one of the flavors; "
        "there is runtime, slim, devel",
    ),
    "extra-of-a-rule": (
        '{torch: "==2.2.2"}', "{extras: [torchvison]}", "torchvison",
        "rules.slow-start.when.extras.0: 'torchvison' is not one of the extras; "
        "did you mean 'torchvision'?",
    ),
    "left-out-and-carried": (
        "{line: rocm6.0,", "{line: rocm6.1,", "{line: rocm6.1",
        "left_out.0: rocm6.1 has torch 2.4.1: it is not left out",
    ),
    # ---- what matches nothing, gives nothing, names nothing
    "rule-about-nothing": (
        '{torch: "==2.2.2"}', '{torch: "==2.2.3"}', "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "rule-about-no-combination": (  # each value is there, all of them together are not
        '{torch: "==2.2.2"}', '{torch: "==2.2.2", accelerator: [rocm]}', "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "rule-about-no-nccl": (
        '{torch: "==2.2.2"}', '{nccl: "==2.22.3"}', "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "rule-about-no-python": (
        '{torch: "==2.2.2"}', '{python: ">=3.13"}', "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "rule-about-no-default-index": (
        '{torch: "==2.2.2"}', "{accelerator: [cpu], index: default}", "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "rule-about-a-platform-that-no-system-has": (
        '{torch: "==2.2.2"}', "{os: [ubuntu24.04], arch: [arm64]}", "slow-start",
        "rules.slow-start: matches nothing: no combination of the axes is like that",
    ),
    "hold-on-no-torch": (
        'torch: "<2.3"\n    require', 'torch: "<2.2"\n    require', 'package: numpy\n',
        "holds.1: matches nothing: no line has such a torch",
    ),
    "hold-on-no-torch-of-its-lines": (
        'torch: "<2.3"\n    require', 'torch: "<2.3"\n    lines: ["cu13*"]\n    require',
        "package: numpy\n", "holds.1: matches nothing: no line has such a torch",
    ),
    "hold-on-the-cuda-of-a-cpu-line": (
        '    lines: ["cu12*"]\n', "", 'require: "=={cuda}.*"\n',
        "holds.0.require: {cuda} has no meaning on a line without CUDA; give it lines",
    ),
    "wheel-of-a-flavor-with-the-cuda-of-a-cpu-line": (
        'lines: ["cu13*"], require', 'lines: ["c*"], require', 'require: "=={cuda}.*"}',
        "flavors.devel.wheels.0.require: {cuda} has no meaning on a line without CUDA; "
        "name other lines",
    ),
    "barren-row": (
        "lines: [cu121], flavor: [slim]}", 'lines: [cu121], flavor: [slim], torch: "<2"}',
        "{reason: the flavor", "standard.2: gives no cell: every combination of it is impossible",
    ),
    "barren-row-by-a-check": (
        "{reason: every torch on every line}",
        "{reason: every torch on every line}\n"
        "  - {reason: no such extra wheel, lines: [cpu], extras: [[torchvision]]}",
        "{reason: no such",
        "standard.1: gives no cell: every combination of it is impossible",
    ),
    "barren-row-by-a-rule": (
        "{reason: every torch on every line}",
        "{reason: every torch on every line}\n"
        '  - {reason: the old on the new, torch: "<2.4", os: [ubuntu24.04]}',
        "{reason: the old",
        "standard.1: gives no cell: every combination of it is impossible",
    ),
    "barren-row-without-overrides": (
        "lines: [cu121], nccl: ov", "lines: [cu130], nccl: ov", "{reason: the NCCL axis",
        "standard.1: gives no cell: every combination of it is impossible",
    ),
    "alias-of-nothing": (
        "cpu: cpu-torch2.13.0", "cpu: cpu-torch2.12.0", "cpu: cpu-torch2.12.0",
        "aliases.cpu: 'cpu-torch2.12.0' is not a standard cell; did you mean 'cpu-torch2.13.0'?",
    ),
    "alias-of-a-cell-on-demand": (
        "cpu: cpu-torch2.13.0", "cpu: cpu-torch2.13.0-slim", "cpu: cpu-torch2.13.0-slim",
        "aliases.cpu: 'cpu-torch2.13.0-slim' is not a standard cell; "
        "did you mean 'cpu-torch2.13.0'?",
    ),
    "alias-of-an-alias": (
        "latest: cu121-torch2.4.1-nccl2.20.5", "latest: zz", "latest: zz",
        "aliases.latest: 'zz' is not a standard cell",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_one_contradiction_is_one_fault_at_its_place(
    name: str, matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    old, new, where, said = SINGLE[name]
    if name.startswith("cuda-without-") and new == "":
        text, count = re.subn(old, "", small_text)
        assert count == 1
    else:
        assert small_text.count(old) == 1, old
        text = small_text.replace(old, new)
    assert matrix_faults(text) == (at(text, where) + said,)


# Both spellings of one version would be two cells of one id.
SPELT_TWICE = {
    "torch-table": (
        '  "2.13.0":\n', '  "2.13": {python: ">=3.8", glibc: "2.17"}\n  "2.13.0":\n',
        ["torch.2.13: no line has this torch", "torch.2.13.0: '2.13.0' and '2.13' are one version"],
    ),
    "torch-of-a-line": (
        T22, f'{T22}\n      "2.2.2.0": {{nccl: "2.19.3"}}',
        [
            "lines.cu121.torch.2.2.2.0: '2.2.2.0' and '2.2.2' are one version",
            "lines.cu121.torch.2.2.2.0: '2.2.2.0' is not in the torch table; "
            "did you mean '2.2.2'?",
        ],
    ),
    "override": (
        T22, T22.replace('"2.21.5"', '"2.21.5", "2.21.5.0"'),
        [
            "lines.cu121.torch.2.2.2.overrides.1: '2.21.5.0' is given twice",
            "lines.cu121.torch.2.2.2.overrides.1: '2.21.5.0' is not a version of "
            "nvidia-nccl-cu12; did you mean '2.21.5'?",
        ],
    ),
    "override-of-its-own-nccl": (
        T22, T22.replace('"2.21.5"', '"2.19.3.0"'),
        [
            "lines.cu121.torch.2.2.2.overrides.0: '2.19.3.0' is not a version of "
            "nvidia-nccl-cu12; did you mean '2.19.3'?",
            "lines.cu121.torch.2.2.2.overrides.0: 2.19.3.0 is the NCCL of the wheel itself, "
            "no override",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELT_TWICE)
def test_two_spellings_of_one_version_are_said(
    name: str, matrix_faults: MatrixFaults, small_text: str
) -> None:
    old, new, said = SPELT_TWICE[name]
    assert small_text.count(old) == 1
    faults = matrix_faults(small_text.replace(old, new))
    assert sorted(fault.split(": ", 1)[1] for fault in faults) == sorted(said)


@pytest.mark.parametrize("check", rules.CHECKS)
def test_every_built_in_check_needs_its_reason(
    check: str, matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    text, count = re.subn(rf"  {check}: \{{source.*\n", "", small_text)
    assert count == 1
    assert matrix_faults(text) == (
        f"{at(text, 'checks:')}checks: {check} is missing: this check needs its reason and source",
    )


def test_a_source_lost_its_last_reader(
    matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    text = small_text.replace("source: variants", "source: metadata")
    assert matrix_faults(text) == (
        f"{at(text, 'variants: {read')}sources.variants: nothing names this source",
    )


def test_every_source_may_serve_one_fact_alone(parse_matrix: ParseMatrix, small_text: str) -> None:
    source = "sources:\n  notes: {read: some notes of ours}\n"
    text = small_text.replace("sources:\n", source)
    for old in (
        "wheel: {source: variants",
        "its first collective is slow\n    source: metadata",
        "the matrix starts at 6.1, source: variants",
    ):
        assert text.count(old) == 1
        new = old.replace("variants", "notes").replace("metadata", "notes")
        assert "notes" in parse_matrix(text.replace(old, new)).sources


def test_contradictions_come_at_once_in_the_order_of_the_file(
    matrix_faults: MatrixFaults, small_text: str
) -> None:
    text = small_text
    for old, new in (
        ("os: debian12, ", "os: debian, "),
        ("default: cu130", "default: cu131"),
        (T24, T24.replace("2.21.5", "2.18.1")),
        ("nccl_family: cu13", "nccl_family: cu14"),
        ("{runtime: 1600}", "{runtim: 1600}"),
        ("{line: rocm6.0,", "{line: rocm6.1,"),
        ("flavor: [slim]", "flavor: [slum]"),
        ("  driver: {source", "  drivers: {source"),
        ("flavor: [runtime]", "flavor: [fat]"),
        ("its first collective is slow\n    source: metadata", "its first is slow\n    source: x"),
        ('lines: ["cu12*"]', 'lines: ["cu11*"]'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    faults = matrix_faults(text)
    assert [fault.split(": ")[1] for fault in faults] == [
        "defaults.os",
        "torch.2.13.0.default",
        "lines.cu121.torch.2.4.1.overrides.0",
        "lines.cu130.nccl_family",
        "lines.cpu.size_budget_mb.runtim",
        "left_out.0",
        "standard.2.flavor.0",
        "checks",
        "checks.drivers",
        "rules.compile-python312.when.flavor.0",
        "rules.slow-start.source",
        "holds.0.lines.0",
    ]
    places = [tuple(int(part) for part in fault.split(":")[1:3]) for fault in faults]
    assert places == sorted(places)


def test_what_the_cells_show_comes_at_once(
    matrix_faults: MatrixFaults, small_text: str, at: At
) -> None:
    """Rules, holds, rows and aliases are held against the cells, once every name is right."""
    text = small_text
    for old, new in (
        ("lines: [cu121], flavor: [slim]}", 'lines: [cu121], flavor: [slim], torch: "<2"}'),
        ("cpu: cpu-torch2.13.0", "cpu: cpu-torch2.13"),
        ("latest: cu121-torch2.4.1-nccl2.20.5", "latest: cu121"),
        ('{torch: "==2.2.2"}', '{torch: "==2.2.3"}'),
        ('torch: "<2.3"\n    require', 'torch: "<2.2"\n    require'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert matrix_faults(text) == (
        f"{at(text, '{reason: the flavor')}standard.2: gives no cell: every combination of it is "
        "impossible",
        f"{at(text, 'cpu: cpu-torch2.13')}aliases.cpu: 'cpu-torch2.13' is not a standard cell; "
        "did you mean 'cpu-torch2.13.0'?",
        f"{at(text, 'latest: ')}aliases.latest: 'cu121' is not a standard cell",
        f"{at(text, 'slow-start')}rules.slow-start: matches nothing: no combination of the axes "
        "is like that",
        f"{at(text, 'package: numpy')}holds.1: matches nothing: no line has such a torch",
    )
    wrong_name = text.replace("os: debian12, ", "os: debian, ")
    (fault,) = matrix_faults(wrong_name)
    assert "defaults.os" in fault


def test_duplicate_keys_and_contradictions_come_together(
    matrix_faults: MatrixFaults, small_text: str
) -> None:
    text = small_text.replace("base: auto\n", "base: auto\n    base: auto\n")
    text = text.replace("default: cu130", "default: cu131")
    first, second = matrix_faults(text)
    assert "systems.debian12.base: duplicate key" in first
    assert "torch.2.13.0.default: 'cu131' is not a line" in second


def test_a_hold_on_the_cuda_version_may_leave_other_lines_out_by_torch(
    matrix_faults: MatrixFaults, parse_matrix: ParseMatrix, small_text: str
) -> None:
    with_rocm = small_text.replace('lines: ["cu12*"]', 'torch: "<2.5"')
    (fault,) = matrix_faults(with_rocm)  # rocm6.1 has torch 2.4.1
    assert "holds.0.require: {cuda} has no meaning on a line without CUDA" in fault
    without = small_text.replace('lines: ["cu12*"]', 'torch: "<2.4"')
    assert parse_matrix(without).holds[0].lines == ["*"]


def test_the_committed_matrix_contradicts_itself_nowhere(real: Project) -> None:
    assert list(reference_faults(real.matrix)) == []
