"""render.py: what images/ holds, by golden files and by rules; the drift gate.

The golden files are of a small fixed matrix. When templates/ changes on purpose, refresh them with
GPUCOMM_GOLDEN=refresh .venv/bin/python -m pytest tests/unit/test_render.py
and read the difference that git shows.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from gpucomm import layers, render
from gpucomm import lock as locks
from gpucomm.cell import Cell
from gpucomm.errors import WorkFailed
from gpucomm.lock import Lock, Wheel
from gpucomm.project import Project
from gpucomm.rules import platforms
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of, on_demand

MakeWheel = Callable[..., Wheel]
ParseMatrix = Callable[[str], Matrix]
GOLDEN = Path(__file__).parent / "golden"
OVERRIDDEN = "cu121-torch2.4.1-nccl2.21.5"
NEW = "cu130-torch2.13.0-nccl2.29.7"
ROCM = "rocm6.1-torch2.4.1-rccl2.18.6"
PLAIN = "cu121-torch2.4.1-nccl2.20.5"
STANDARD = (
    PLAIN,
    OVERRIDDEN,
    f"{PLAIN}-slim",
    f"{PLAIN}-torchvision",
    NEW,
    ROCM,
    "cpu-torch2.13.0",
)
ON_DEMAND = (
    f"{PLAIN}-mpi",
    f"{PLAIN}-ubuntu24.04",
    f"{NEW}-devel",
    f"{NEW}-ubuntu24.04-devel",  # on the vendor's image
)


def rendered_small(root: Path, small: Matrix, small_lock: Lock) -> dict[str, str]:
    return render.render(small, small_lock, root / "templates")


def cell_named(matrix: Matrix, name: str) -> Cell:
    return next(cell for cell in cells_of(matrix) if cell.id == name)


# ---------------------------------------------------------------- what is rendered


@pytest.fixture(scope="module")
def wider_lock(small: Matrix, small_lock: Lock, make_wheel: MakeWheel) -> Lock:
    """The small lock, with files that differ by platform, and with every cell of ON_DEMAND."""
    only = make_wheel("nvidia-cufile", "1.15.1")  # as if x86_64 did not have it
    other = make_wheel("nvidia-cublas", "13.0.1.1")  # another version than on x86_64
    cells = dict(small_lock.cells)
    key = locks.key_of(cell_named(small, NEW), "arm64")
    row = [other if wheel.name == other.name else on_arm(wheel) for wheel in cells[key]]
    cells[key] = tuple(sorted([*row, only], key=lambda wheel: wheel.name))
    nvcc = make_wheel("nvidia-cuda-nvcc", "13.0.88")
    for name in ON_DEMAND:
        one = on_demand(small, name)
        plain = cell_named(small, PLAIN if name.startswith(PLAIN) else NEW)
        for arch in platforms(small, one):
            added = (nvcc,) if name == f"{NEW}-devel" else ()
            cells.setdefault(locks.key_of(one, arch), cells[locks.key_of(plain, arch)] + added)
    tools = {**small_lock.tools, "3.12": small_lock.tools["3.11"]}
    return replace(small_lock, cells=cells, tools=tools)


def on_arm(wheel: Wheel) -> Wheel:
    """The same version, in a file of its own unless it is Python alone."""
    if not wheel.name.startswith(("torch", "triton", "numpy", "nvidia-")):
        return wheel
    file = wheel.file.replace("none-any", "none-manylinux_2_28_aarch64")
    return replace(wheel, file=file, sha256=hashlib.sha256(file.encode()).hexdigest())


@pytest.mark.parametrize("cell", [*STANDARD, *ON_DEMAND])
def test_golden_files(cell: str, root: Path, small: Matrix, wider_lock: Lock) -> None:
    found = render.render_cell(small, wider_lock, root / "templates", on_demand(small, cell))
    files = {f"{cell}/{name}": text for name, text in found.items()}
    everything = rendered_small(root, small, wider_lock)
    if cell in STANDARD:
        assert files.items() <= everything.items()
    else:
        assert not files.keys() & everything.keys()
    folder = GOLDEN / cell
    if os.environ.get("GPUCOMM_GOLDEN") == "refresh":
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in files.items():
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(text)
    golden = {
        path.relative_to(GOLDEN).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert files.keys() == golden.keys()
    for name, text in files.items():
        assert text == golden[name], f"{name} differs; see the first lines of this file"


def test_no_golden_file_is_of_another_cell() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {*STANDARD, *ON_DEMAND}


def test_versions_that_differ_by_platform_are_pinned_each_on_its_own(
    root: Path, small: Matrix, wider_lock: Lock
) -> None:
    files = render.render_cell(small, wider_lock, root / "templates", on_demand(small, NEW))
    both = [
        "nvidia-cublas==13.0.1.1 ; platform_machine == 'aarch64'",
        "nvidia-cublas==13.0.2.14 ; platform_machine == 'x86_64'",
        "nvidia-cufile==1.15.1 ; platform_machine == 'aarch64'",
    ]
    # In the constraints too, or no install in the image could satisfy both.
    constraints = files["pins/constraints.txt"].splitlines()
    assert [line for line in constraints if ";" in line] == both
    cuda = files["requirements/cuda.txt"].splitlines()
    assert [line.split(" --hash")[0] for line in cuda if ";" in line] == both
    (torch,) = files["requirements/torch.txt"].splitlines()
    assert re.fullmatch(r"torch==2\.13\.0( --hash=sha256:\w{64}){2}", torch)


@pytest.mark.parametrize(
    ("name", "toolkit", "linked"),
    [
        pytest.param(NEW, None, False, id="no-toolkit"),
        pytest.param(f"{PLAIN}-devel", None, False, id="no-nvcc-in-wheels-of-cuda-12"),
        pytest.param(f"{NEW}-devel", "CUDA_HOME=/usr/local/cuda", True, id="from-wheels"),
        pytest.param(f"{NEW}-ubuntu24.04-devel", "CUDA_HOME=/usr/local/cuda", False, id="nvidia"),
        pytest.param(f"{ROCM}-ubuntu24.04-devel", "ROCM_HOME=/opt/rocm", False, id="amd"),
    ],
)
def test_a_toolkit_is_on_the_path_wherever_it_came_from(
    name: str,
    toolkit: str | None,
    linked: bool,
    root: Path,
    small_text: str,
    parse_matrix: ParseMatrix,
    wider_lock: Lock,
) -> None:
    nvidia = "      cuda: registry.example/nvidia/cuda:{toolkit}-devel-ubuntu24.04\n"
    amd = "      rocm: registry.example/rocm/dev-ubuntu-24.04:{toolkit}\n"
    assert small_text.count(nvidia) == 1
    matrix = parse_matrix(small_text.replace(nvidia, nvidia + amd))
    one = on_demand(matrix, name)
    text = render.render_cell(matrix, wider_lock, root / "templates", one)["Dockerfile"]
    folder = f"{toolkit.partition('=')[2]}/bin:" if toolkit else ""
    assert f"\nENV PATH=/opt/venv/bin:{folder}/usr/local/sbin:" in text
    homes = re.findall(r"^ +((?:CUDA|ROCM)_HOME=\S+) \\$", text, re.M)
    assert homes == ([toolkit] if toolkit else [])
    assert ('ln -s "$toolkit" /usr/local/cuda' in text) == linked


def test_rendering_is_deterministic_and_takes_nothing_from_the_environment(
    root: Path, small: Matrix, small_lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rendered_small(root, small, small_lock)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert rendered_small(root, small, small_lock) == first
    assert list(first) == sorted(first)


def test_the_committed_images_are_what_the_matrix_renders(real: Project) -> None:
    render.check(real.rendered(), real.places.images)


def test_an_unknown_name_in_a_template_fails(
    root: Path, small: Matrix, small_lock: Lock, tmp_path: Path
) -> None:
    templates = tmp_path / "templates"
    shutil.copytree(root / "templates", templates)
    with (templates / "Dockerfile.j2").open("a") as template:
        template.write("# {{ cell.colour }}\n")
    with pytest.raises(UndefinedError, match="colour"):
        render.render(small, small_lock, templates)


def test_no_argument_but_the_date_enters_a_build(real: Project) -> None:
    dockerfiles = [text for name, text in real.rendered().items() if name.endswith("Dockerfile")]
    assert dockerfiles
    for text in dockerfiles:
        assert set(re.findall(r"^ARG +(.+)$", text, re.M)) == {"SOURCE_DATE_EPOCH"}


def test_the_date_is_declared_in_every_stage_that_runs_something(real: Project) -> None:
    for name, text in real.rendered().items():
        if not name.endswith("/Dockerfile"):
            continue
        for stage in re.split(r"^(?=FROM )", text, flags=re.M)[1:]:
            if re.search(r"^RUN ", stage, re.M):
                assert stage.splitlines()[1] == "ARG SOURCE_DATE_EPOCH", (name, stage[:80])


def test_every_requirement_file_is_mounted_and_every_mounted_one_is_there(real: Project) -> None:
    files = real.rendered()
    for cell in cells_of(real.matrix):
        text = files[f"{cell.id}/Dockerfile"]
        mounted = set(re.findall(r"source=(requirements/\S+?),", text))
        if "source=requirements," in text:  # the whole folder, for a cell that is not locked
            names = ("unlocked", "overrides", "constraints")
            mounted |= {f"requirements/{name}.txt" for name in names}
        there = {
            name.removeprefix(f"{cell.id}/")
            for name in files
            if name.startswith(f"{cell.id}/requirements/")
        }
        assert mounted == there, cell.id


def test_every_copied_stage_is_there_and_nccl_is_the_last_layer_of_wheels(real: Project) -> None:
    for cell in cells_of(real.matrix):
        text = real.rendered()[f"{cell.id}/Dockerfile"]
        stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
        copied = re.findall(r"^COPY --link --from=(\S+) /out/ /opt/venv/$", text, re.M)
        assert set(copied) <= stages
        if not real.wheels(cell):
            assert copied == ["torch", "selftest"], cell.id
            continue
        names = [layer.name for layer in layers.layers_of({"amd64": real.wheels(cell)})]
        assert copied == [*names, "selftest"]
        assert ("nccl" in names) == (cell.nccl is not None)
        assert cell.nccl is None or names[-1] == "nccl"


def test_nothing_is_taken_from_a_stage_that_is_not_there(
    root: Path, small: Matrix, small_lock: Lock
) -> None:
    """A name without a stage is an image, which BuildKit would ask a registry for."""
    contexts = {"base", "files", "selftest-source", "scratch"}
    for lock in (small_lock, replace(small_lock, cells={})):
        for name, text in rendered_small(root, small, lock).items():
            if not name.endswith("/Dockerfile"):
                continue
            made = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
            taken = set(re.findall(r"^FROM (\S+)", text, re.M))
            taken |= set(re.findall(r"\bfrom=([\w-]+)", text))
            assert taken <= made | contexts, name
            assert ("wheelhouse" in made) == ("--page=" in text), name


def test_an_unlocked_cell_of_the_default_index_reads_no_page(
    root: Path, small: Matrix, small_lock: Lock
) -> None:
    files = rendered_small(root, small, replace(small_lock, cells={}))
    text = files[f"{OVERRIDDEN}/Dockerfile"]
    assert "# unlocked: it was never resolved\n" in text
    assert "    unpack-wheels --unlocked\n" in text
    assert "wheels.example" not in text
    assert files[f"{OVERRIDDEN}/requirements/overrides.txt"] == "nvidia-nccl-cu12==2.21.5\n"
    assert files[f"{OVERRIDDEN}/pins/constraints.txt"] == "torch==2.4.1\n"


def test_the_requirements_of_a_cell_are_its_wheels_each_once(real: Project) -> None:
    files = real.rendered()
    for cell in cells_of(real.matrix):
        locked = real.lock.locked(cell, real.matrix)
        if not locked:
            continue
        pins = [
            line
            for name, text in files.items()
            if name.startswith(f"{cell.id}/requirements/") and not name.endswith("/tools.txt")
            for line in text.splitlines()
        ]
        wheels = [wheel for arch in locked for wheel in real.lock.wheels(cell, real.matrix, arch)]
        assert len(pins) == len({(wheel.name, wheel.version) for wheel in wheels}), cell.id
        hashes = [digest for line in pins for digest in re.findall(r"sha256:(\w{64})", line)]
        assert sorted(hashes) == sorted({wheel.sha256 for wheel in wheels}), cell.id


def test_an_unlocked_cell_says_why_and_pins_nothing(real: Project) -> None:
    files = real.rendered()
    cells = [cell for cell in cells_of(real.matrix) if not real.wheels(cell)]
    assert {cell.accelerator for cell in cells} == {"cuda", "rocm", "cpu"}
    for cell in cells:
        said = files[f"{cell.id}/Dockerfile"].splitlines()[2]
        assert said == f"# unlocked: {real.lock.reason(cell, real.matrix)}"
        asked = files[f"{cell.id}/requirements/unlocked.txt"].splitlines()
        assert asked[0] == f"torch=={cell.torch}+{cell.line}"
        assert "--hash" not in "".join(asked)


def test_slim_has_no_triton_and_no_compiler(real: Project) -> None:
    files = real.rendered()
    slims = [c.id for c in cells_of(real.matrix) if c.flavor == "slim" and real.wheels(c)]
    assert slims
    for name in slims:
        text = "".join(
            text for file, text in files.items() if re.match(rf"{name}/(requirements|pins)/", file)
        )
        assert "triton" not in text
        assert not re.search(r"^ +gcc \\$", text, re.M)
        full = files[f"{name.removesuffix('-slim')}/Dockerfile"]
        assert re.search(r"^ +gcc \\$", full, re.M)


def test_overrides_name_nccl_where_it_is_overridden_and_only_there(
    root: Path, small: Matrix, small_lock: Lock
) -> None:
    files = rendered_small(root, small, small_lock)
    found = {cell.id: files[f"{cell.id}/pins/overrides.txt"] for cell in cells_of(small)}
    assert {name for name, text in found.items() if text} == {
        cell.id for cell in cells_of(small) if cell.nccl == "2.21.5"
    }
    assert set(found.values()) == {"", "nvidia-nccl-cu12==2.21.5\n"}


def test_constraints_fix_torch_and_what_it_loads_and_nothing_else(
    root: Path, small: Matrix, small_lock: Lock
) -> None:
    files = rendered_small(root, small, small_lock)
    assert files[f"{OVERRIDDEN}/pins/constraints.txt"].splitlines() == [
        "nvidia-cublas-cu12==12.1.3.1",
        "nvidia-cuda-runtime-cu12==12.1.105",
        "nvidia-cudnn-cu12==9.1.0.70",
        "nvidia-nccl-cu12==2.21.5",
        "nvidia-nvjitlink-cu12==12.1.105",
        "torch==2.4.1",
        "triton==3.0.0",
    ]
    assert files["cpu-torch2.13.0/pins/constraints.txt"] == "torch==2.13.0+cpu\n"


def test_another_nccl_changes_nothing_below_its_layer(real: Project) -> None:
    """What makes another NCCL cost one layer: everything else is the same, byte for byte."""
    files = real.rendered()
    cells = [cell for cell in cells_of(real.matrix) if cell.nccl and real.wheels(cell)]
    pairs = [
        (first, second)
        for first in cells
        for second in cells
        if first.nccl != second.nccl and not first.nccl_overridden
        and replace(first, nccl=second.nccl, nccl_overridden=second.nccl_overridden,
                    id=second.id, pins_id=second.pins_id) == second
    ]  # fmt: skip
    assert pairs
    for first, second in pairs:
        names = [n.removeprefix(f"{first.id}/") for n in files if n.startswith(f"{first.id}/")]
        for name in names:
            mine, other = files[f"{first.id}/{name}"], files[f"{second.id}/{name}"]
            if name == "Dockerfile":
                ours = mine.replace(first.id, second.id)
                assert ours.replace(f"NCCL {first.nccl}", f"NCCL {second.nccl}").replace(
                    f'nccl="{first.nccl}"', f'nccl="{second.nccl}"'
                ) == other, (first.id, second.id)  # fmt: skip
            elif name.startswith("pins/") or name == "requirements/nccl.txt":
                assert mine != other
            else:
                assert mine == other, (first.id, name)


def test_labels_tell_the_facts_of_a_cell(small: Matrix) -> None:
    assert render.labels_of(small, on_demand(small, f"{OVERRIDDEN}-slim")) == {
        "org.opencontainers.image.title": f"{OVERRIDDEN}-slim",
        "org.opencontainers.image.description": "PyTorch 2.4.1 with NCCL 2.21.5",
        "org.opencontainers.image.source": "https://source.example/gpucomm",
        "io.gpucomm.cell": f"{OVERRIDDEN}-slim",
        "io.gpucomm.line": "cu121",
        "io.gpucomm.torch": "2.4.1",
        "io.gpucomm.cuda": "12.1",
        "io.gpucomm.nccl": "2.21.5",
        "io.gpucomm.python": "3.11",
        "io.gpucomm.os": "debian12",
        "io.gpucomm.flavor": "slim",
    }
    cpu = render.labels_of(small, cell_named(small, "cpu-torch2.13.0"))
    assert cpu["org.opencontainers.image.description"] == "PyTorch 2.13.0 with Gloo"
    assert "io.gpucomm.nccl" not in cpu
    assert "io.gpucomm.cuda" not in cpu


def test_only_a_line_with_its_own_index_reads_a_page_of_wheels(
    root: Path, small: Matrix, small_lock: Lock
) -> None:
    files = rendered_small(root, small, small_lock)
    text = files["cpu-torch2.13.0/Dockerfile"]
    assert "PYTORCH_INDEX_DEFAULT=https://wheels.example/whl unpack-wheels" in text
    assert re.findall(r"--page=(\S+)", text) == ["cpu/torch/"]
    pages = re.findall(r"--page=(\S+)", files[f"{ROCM}/Dockerfile"])
    assert pages == ["rocm6.1/torch/", "rocm6.1/pytorch-triton-rocm/"]
    for cell in cells_of(small):
        if cell.index == "default":
            text = files[f"{cell.id}/Dockerfile"]
            assert "wheels.example" not in text
            assert "AS wheelhouse" not in text


# ---------------------------------------------------------------- the drift gate

FILES = {"one/Dockerfile": "FROM base\nRUN true\n", "one/pins/a.txt": "", "two/Dockerfile": "x\n"}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder that is exactly FILES."""
    folder = tmp_path / "images"
    assert render.write(FILES, folder) == len(FILES)
    return folder


def drifted(folder: Path) -> tuple[str, ...]:
    with pytest.raises(WorkFailed) as caught:
        render.check(FILES, folder)
    assert caught.value.exit_code == 1
    assert all(fault.endswith("; run gpucomm render") for fault in caught.value.faults)
    return tuple(fault.removesuffix("; run gpucomm render") for fault in caught.value.faults)


def test_what_was_written_is_no_drift(images: Path) -> None:
    render.check(FILES, images)
    assert render.write(FILES, images) == 0


def test_touching_is_no_drift_and_no_write(images: Path) -> None:
    for path in images.rglob("*"):
        os.utime(path, (1, 1))
    render.check(FILES, images)
    assert render.write(FILES, images) == 0
    assert (images / "one/Dockerfile").stat().st_mtime == 1


def test_a_missing_file_is_drift(images: Path) -> None:
    (images / "one/pins/a.txt").unlink()
    assert drifted(images) == ("images/one/pins/a.txt: missing",)


def test_a_missing_folder_is_drift(images: Path) -> None:
    shutil.rmtree(images)
    assert drifted(images) == tuple(f"images/{name}: missing" for name in FILES)


def test_a_stray_file_is_drift(images: Path) -> None:
    (images / "one/pins/stray.txt").write_text("")
    (images / "stray").write_text("")
    assert drifted(images) == (
        "images/one/pins/stray.txt: belongs to no cell",
        "images/stray: belongs to no cell",
    )


def test_a_stray_empty_folder_is_drift(images: Path) -> None:
    (images / "three").mkdir()
    assert drifted(images) == ("images/three: belongs to no cell",)


def test_every_fault_is_named_at_once(images: Path) -> None:
    (images / "one/Dockerfile").write_text("FROM other\n")
    (images / "two/Dockerfile").unlink()
    (images / "four").mkdir()
    assert drifted(images) == (
        "images/one/Dockerfile: differs from what the matrix renders",
        "images/two/Dockerfile: missing",
        "images/four: belongs to no cell",
    )


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(b"FROM base\nRUN trve\n", id="letter"),
        pytest.param(b"FROM base\nRUN true", id="last-newline-lost"),
        pytest.param(b"FROM base\nRUN true\n\n", id="newline-added"),
        pytest.param(b"FROM base \nRUN true\n", id="space"),
        pytest.param(b"", id="empty"),
        pytest.param(b"FROM base\r\nRUN true\r\n", id="line-ends-of-windows"),
        pytest.param(b"FROM base\nRUN tru\xff\n", id="not-utf-8"),
    ],
)
def test_any_changed_byte_is_drift_and_rendering_mends_it(changed: bytes, images: Path) -> None:
    path = images / "one/Dockerfile"
    path.write_bytes(changed)
    assert drifted(images) == ("images/one/Dockerfile: differs from what the matrix renders",)
    assert render.write(FILES, images) == 1
    assert path.read_bytes() == FILES["one/Dockerfile"].encode()


def test_rendering_removes_what_belongs_to_no_cell(images: Path) -> None:
    (images / "old/pins").mkdir(parents=True)
    (images / "old/pins/a.txt").write_text("")
    (images / "one/stray.txt").write_text("")
    (images / "link").symlink_to(images / "one")
    assert render.write(FILES, images) >= 3
    render.check(FILES, images)
    there = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
    assert there == FILES.keys()
