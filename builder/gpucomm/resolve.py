"""`gpucomm lock`: asks uv which wheels each cell needs, and keeps what was locked before.

Owns: the call of uv and the reading of its pylock.toml. An NCCL override is uv's override, since
torch requires one exact version and pip has no way around that.
"""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from uv import find_uv_bin

from gpucomm import registry, render
from gpucomm.cell import Cell, cells_of
from gpucomm.errors import WorkFailed
from gpucomm.lock import Lock, Wheel, cell_faults, faults_of, held, holds_for
from gpucomm.schema import Matrix

# The oldest glibc among the images' systems is Debian 12's; the wheels need 2.28 or less.
PLATFORM = "x86_64-manylinux_2_28"


def torch_requirement(matrix: Matrix, cell: Cell) -> str:
    """`torch==2.4.1`, with the local version of an index that is not the default one."""
    index = matrix.lines[cell.line].index
    return f"torch=={cell.torch}" + ("" if index == "default" else f"+{index}")


def resolve_all(
    matrix: Matrix,
    before: Lock,
    say: Callable[[str], None],
    *,
    upgrade: bool,
    bases: Mapping[str, str],
    wheelhouse: Path | None,
) -> Lock:
    """Resolve the tools and every cell whose lock does not answer the matrix; all with `upgrade`.

    Versions locked before are kept where they still fit, unless `upgrade`.

    Raises WorkFailed with one fault per cell that has no solution; then nothing is returned.
    """
    faults: list[str] = []
    cells: dict[str, tuple[Wheel, ...]] = {}
    tools: dict[str, tuple[Wheel, ...]] = {}
    for cell in {cell.pins_id: cell for cell in cells_of(matrix)}.values():
        try:
            if upgrade or list(cell_faults(matrix, before, cell)):
                say(f"lock  {cell.pins_id}")
                kept = () if upgrade else before.cells.get(cell.pins_id, ())
                cells[cell.pins_id] = _resolve_cell(matrix, cell, kept, wheelhouse)
            else:
                cells[cell.pins_id] = before.cells[cell.pins_id]
            if cell.python not in tools:
                kept = () if upgrade else before.tools.get(cell.python, ())
                tools[cell.python] = _resolve(matrix.tools, python=cell.python, kept=kept)
        except WorkFailed as error:
            faults += [f"{cell.pins_id}: {fault}" for fault in error.faults]
    if faults:
        raise WorkFailed(faults)
    lock = Lock(cells=cells, tools=tools, bases=bases)
    if faults := list(faults_of(matrix, lock)):
        raise WorkFailed([f"the resolved wheels do not answer the matrix: {f}" for f in faults])
    return lock


def base_digests(
    matrix: Matrix, before: Lock, say: Callable[[str], None], *, upgrade: bool
) -> dict[str, str]:
    """The digest of every system's registry image: the locked one, else what its registry says.

    A registry that cannot be reached leaves the lock as it was: such a base is bootstrapped.
    """
    digests: dict[str, str] = {}
    for name, system in matrix.systems.items():
        locked = before.bases.get(name)
        if locked is not None and not upgrade:
            digests[name] = locked
            continue
        answer = registry.reachable(system.image)
        if answer.ok:
            digests[name] = registry.digest_of(system.image)
        else:
            say(f"base  {name}: {answer.reason}; {'kept' if locked else 'no digest locked'}")
            digests |= {name: locked} if locked else {}
    return digests


def _resolve_cell(
    matrix: Matrix, cell: Cell, kept: tuple[Wheel, ...], wheelhouse: Path | None
) -> tuple[Wheel, ...]:
    line = matrix.lines[cell.line]
    page = render.torch_page(matrix, cell)
    options = ["--find-links", str(wheelhouse or page)] if page else []
    return _resolve(
        [torch_requirement(matrix, cell), *matrix.with_],
        python=cell.python,
        kept=kept,
        overrides=[f"{line.nccl_wheel}=={cell.nccl}"] if cell.nccl_overridden else [],
        constraints=[f"{h.package}{held(h, cell)}" for h in holds_for(matrix, cell)],
        options=options,
    )


def _resolve(
    requirements: Iterable[str],
    *,
    python: str,
    kept: tuple[Wheel, ...] = (),
    overrides: Iterable[str] = (),
    constraints: Iterable[str] = (),
    options: Iterable[str] = (),
) -> tuple[Wheel, ...]:
    with tempfile.TemporaryDirectory(prefix="gpucomm-lock-") as folder:
        work = Path(folder)
        for name, lines in (("in", requirements), ("override", overrides), ("hold", constraints)):
            (work / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        output = work / "pylock.toml"
        if kept:
            output.write_text(_as_pylock(kept))
        command = [
            find_uv_bin(), "pip", "compile", str(work / "in.txt"),
            "--override", str(work / "override.txt"), "--constraint", str(work / "hold.txt"),
            "--python-version", python, "--python-platform", PLATFORM,
            "--only-binary", ":all:", "--quiet", "--output-file", str(output), *options,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = " ".join(done.stderr.split()) or f"uv ended with {done.returncode}"
            raise WorkFailed(reason)
        packages = tomllib.loads(output.read_text())["packages"]
    return tuple(sorted((_wheel(entry, python) for entry in packages), key=lambda w: w.name))


def _as_pylock(wheels: tuple[Wheel, ...]) -> str:
    """The smallest pylock.toml from which uv takes its preferences."""
    rows = "".join(f'[[packages]]\nname = "{w.name}"\nversion = "{w.version}"\n' for w in wheels)
    return f'lock-version = "1.0"\ncreated-by = "gpucomm"\n{rows}'


def _wheel(entry: Mapping[str, Any], python: str) -> Wheel:
    """The best of a package's wheels for `python` on this platform. Raises WorkFailed for none."""
    ranks = {tag: rank for rank, tag in enumerate(_tags(python))}
    best: tuple[int, Wheel] | None = None
    for item in entry.get("wheels", ()):
        file = unquote(Path(urlsplit(item.get("url") or item["path"]).path).name)
        file = item.get("name", file)
        _, _, _, tags = parse_wheel_filename(file)
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is None or (best is not None and best[0] <= rank):
            continue
        wheel = Wheel(
            name=entry["name"],
            version=entry["version"],
            file=file,
            sha256=item["hashes"]["sha256"],
            size=item.get("size") or _local_size(item),
        )
        best = rank, wheel
    if best is None:
        raise WorkFailed(f"{entry['name']} {entry['version']} has no wheel for Python {python}")
    return best[1]


def _local_size(item: Mapping[str, Any]) -> int:
    """Bytes of a wheel on this disk; an index that tells no size counts as 0."""
    url = urlsplit(item.get("url", ""))
    path = Path(unquote(url.path)) if url.scheme == "file" else Path(item.get("path", ""))
    return path.stat().st_size if path.is_file() else 0


def _tags(python: str) -> list[Tag]:
    major, minor = (int(part) for part in python.split("."))
    glibc = int(PLATFORM.rsplit("_", 1)[1])
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(glibc, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms += ["linux_x86_64"]  # names no glibc; uv takes it, and older CPU wheels of torch are
    return [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms=platforms),
    ]
