"""layers.py: which wheel goes into which layer, and pins that serve every platform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from gpucomm import layers
from gpucomm.layers import Pin
from gpucomm.lock import Wheel
from gpucomm.project import Project
from gpucomm.schema import Architecture
from gpucomm.standard import cells_of

MakeWheel = Callable[..., Wheel]
OTHER = "cd" * 32
NAMES = st.sampled_from(
    ["torch", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12",
     "nvidia-cublas-cu12", "nvidia-nvtx", "torchvision", "triton-extra", "nvidia", "rocm",
     "rocm-sdk-core", "triton-rocm", "nvidia-cuda-nvcc", "cuda-toolkit"]
)  # fmt: skip
WHEELS = st.dictionaries(NAMES, st.sampled_from(["1.0", "2.0"]))


@pytest.mark.parametrize(
    ("layer", "packages"),
    [
        ("nccl", ["nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"]),
        ("cudnn", ["nvidia-cudnn-cu11", "nvidia-cudnn-cu13"]),
        ("cuda", ["nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cuda-runtime", "cuda-toolkit",
                  "nvidia-nvjitlink-cu12", "nvidia-nvshmem-cu13", "nvidia-cuda-cupti-cu12"]),
        ("toolkit", ["nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt",
                     "nvidia-cuda-cccl-cu12", "nvidia-nvvm"]),
        ("rocm", ["rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx942"]),
        ("triton", ["triton", "triton-rocm", "pytorch-triton-rocm"]),
        ("torch", ["torch"]),
        ("extras", ["torchvision", "torchaudio"]),
        ("python", ["numpy", "filelock", "torchmetrics", "triton-extra", "nvidia", "rocm-else",
                    "setuptools"]),
    ],
)  # fmt: skip
def test_the_name_of_a_package_decides_its_layer(layer: str, packages: list[str]) -> None:
    assert layer in layers.ORDER
    assert {layers.layer_of(package) for package in packages} == {layer}


def test_nccl_is_the_last_layer_and_torch_is_apart(make_wheel: MakeWheel) -> None:
    names = ("nvidia-nccl-cu12", "torch", "triton", "nvidia-cudnn-cu12", "nvidia-nvtx", "six",
             "torchvision", "nvidia-nvvm", "rocm-sdk-libraries")  # fmt: skip
    found = layers.layers_of({"amd64": tuple(make_wheel(name, "1") for name in names)})
    assert [(layer.name, [pin.name for pin in layer.pins]) for layer in found] == [
        ("cuda", ["nvidia-nvtx"]),
        ("rocm", ["rocm-sdk-libraries"]),
        ("python", ["six"]),
        ("cudnn", ["nvidia-cudnn-cu12"]),
        ("triton", ["triton"]),
        ("torch", ["torch"]),
        ("toolkit", ["nvidia-nvvm"]),
        ("extras", ["torchvision"]),
        ("nccl", ["nvidia-nccl-cu12"]),
    ]


def wheels_of(make_wheel: MakeWheel, versions: dict[str, str], arch: str) -> tuple[Wheel, ...]:
    """Wheels whose file differs from that of another platform for all but one package."""
    found = (make_wheel(name, version) for name, version in versions.items())
    return tuple(
        wheel if wheel.name == "numpy" else replace(wheel, sha256=arch[0] * 64) for wheel in found
    )


@given(amd64=WHEELS, arm64=st.none() | WHEELS)
def test_any_wheels_are_in_one_layer_each_and_no_hash_is_lost(
    amd64: dict[str, str], arm64: dict[str, str] | None, make_wheel: MakeWheel
) -> None:
    wheels: dict[Architecture, tuple[Wheel, ...]] = {"amd64": wheels_of(make_wheel, amd64, "a")}
    if arm64 is not None:
        wheels["arm64"] = wheels_of(make_wheel, arm64, "b")
    found = layers.layers_of(wheels)
    assert all(layer.pins for layer in found)
    order = [layers.ORDER.index(layer.name) for layer in found]
    assert order == sorted(set(order))
    pins = [pin for layer in found for pin in layer.pins]
    assert all(layers.layer_of(pin.name) == layer.name for layer in found for pin in layer.pins)
    # What each platform takes of these lines is exactly what it has.
    machines: dict[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}
    for arch, machine in machines.items():
        taken = {
            (pin.name, pin.version): pin.hashes for pin in pins if pin.machine in (None, machine)
        }
        for wheel in wheels.get(arch, ()):
            assert wheel.sha256 in taken.pop((wheel.name, wheel.version))
        assert not taken or arch not in wheels


def test_one_line_serves_every_platform_and_tells_what_only_one_has(make_wheel: MakeWheel) -> None:
    both, alone = make_wheel("torch", "2.13.0"), make_wheel("nvidia-cufile", "1.0")
    same, other = make_wheel("six", "1.0"), replace(make_wheel("torch", "2.13.0"), sha256=OTHER)
    pins = layers.pins_of({"amd64": (both, same), "arm64": (other, alone, same)})
    assert [pin.line for pin in pins] == [
        f"nvidia-cufile==1.0 ; platform_machine == 'aarch64' --hash=sha256:{alone.sha256}",
        f"six==1.0 --hash=sha256:{same.sha256}",
        f"torch==2.13.0 --hash=sha256:{both.sha256} --hash=sha256:{OTHER}",
    ]


def test_platforms_with_other_versions_of_a_package_exclude_each_other(
    make_wheel: MakeWheel,
) -> None:
    """As constraints, two versions without a machine would leave nothing to install."""
    pins = layers.pins_of(
        {"amd64": (make_wheel("triton", "3.0"),), "arm64": (make_wheel("triton", "3.1"),)}
    )
    assert [pin.constraint for pin in pins] == [
        "triton==3.0 ; platform_machine == 'x86_64'",
        "triton==3.1 ; platform_machine == 'aarch64'",
    ]
    for machine, version in (("x86_64", "3.0"), ("aarch64", "3.1")):
        lines = [Requirement(pin.constraint) for pin in pins]
        holds = [
            one for one in lines
            if one.marker and one.marker.evaluate({"platform_machine": machine})
        ]  # fmt: skip
        assert [str(one.specifier) for one in holds] == [f"=={version}"]


def test_a_pin_that_every_platform_has_names_no_machine() -> None:
    pin = Pin(name="numpy", version="2.4.6", hashes=("ab" * 32,))
    assert pin.constraint == "numpy==2.4.6"
    assert pin.line == f"numpy==2.4.6 --hash=sha256:{'ab' * 32}"


def test_nothing_gives_no_layer() -> None:
    assert layers.layers_of({}) == ()
    assert layers.layers_of({"amd64": ()}) == ()


def test_real_cells_that_share_a_cudnn_share_its_layer(real: Project) -> None:
    """What makes the cost of all cells grow with the sum of the axis values."""
    found: dict[str, set[tuple[Pin, ...]]] = {}
    for cell in cells_of(real.matrix):
        locked = real.lock.locked(cell, real.matrix)
        wheels = {arch: real.lock.wheels(cell, real.matrix, arch) for arch in locked}
        for layer in layers.layers_of(wheels):
            found.setdefault(layer.name, set()).add(layer.pins)
    assert found
    cells = sum(bool(real.wheels(cell)) for cell in cells_of(real.matrix))
    for name in ("cudnn", "nccl", "triton"):
        assert 0 < len(found[name]) < cells / 2, name
