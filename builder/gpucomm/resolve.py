"""`gpucomm lock`: asks uv which wheels each cell needs, and keeps what was locked before.

Owns: the call of uv and the reading of its pylock.toml. An NCCL override is uv's override, since
torch requires one exact version and pip has no way around that. An index that cannot be reached
leaves its cells unlocked; no version is guessed.
"""

from __future__ import annotations

import base64
import http.client
import os
import subprocess
import tempfile
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from uv import find_uv_bin

from gpucomm import pages, registry
from gpucomm.cell import DEFAULT_INDEX, Cell
from gpucomm.errors import WorkFailed
from gpucomm.lock import Lock, Wheel, cell_faults, key_of, tools_key, wanted_keys
from gpucomm.requirements import Requirements, requirements_of
from gpucomm.schema import MACHINES, Architecture, Matrix
from gpucomm.standard import cells_of

# No image has an older glibc than Ubuntu 22.04's 2.35; the wheels need 2.28 or less.
_GLIBC = 28
_AT_ONCE = 4  # calls of uv; each waits for the index most of the time
_PAGE_SECONDS = 10.0
# An index that answers 429 was asked again by uv for some seconds, whatever its Retry-After was.
_WAITS = (15.0, 30.0, 60.0)
_UNFIT = "the resolved wheels do not answer the matrix"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How `gpucomm lock` was called."""

    upgrade: bool = False
    wheelhouse: Path | None = None
    pytorch_index: str | None = None
    """A mirror of the PyTorch index, in its place."""
    keep_others: bool = False
    """Cells that are not standard stay in the lock: it is the one of what is made on demand."""


def resolve(
    matrix: Matrix,
    before: Lock,
    cells: Iterable[Cell],
    options: Options,
    bases: Mapping[str, str],
    say: Callable[[str], None],
) -> tuple[Lock, list[str]]:
    """Resolve those of `cells` whose lock does not answer the matrix; all with `upgrade`.

    Versions locked before are kept where they still fit, unless `upgrade`. What lies in `before`
    for other standard cells stays. A cell without a solution keeps its former lock, or is
    `unlocked` with the reason. Returns the lock and one fault for each such cell.
    """
    chosen = wanted_keys(matrix, cells)
    locked, unlocked, tools = dict(before.cells), dict(before.unlocked), dict(before.tools)
    faults: list[str] = []
    work = {
        key: (cell, arch)
        for key, (cell, arch) in chosen.items()
        if options.upgrade
        or key not in before.cells
        or list(cell_faults(matrix, before, cell, arch))
    }
    reasons = _unreachable(matrix, (cell for cell, _ in work.values()), options)
    patience = _Patience(say)
    jobs: dict[str, Callable[[], tuple[Wheel, ...]]] = {}
    for key, (cell, arch) in work.items():
        if reason := reasons.get(cell.pins_id):
            if key in locked and not list(cell_faults(matrix, before, cell, arch)):
                continue
            locked.pop(key, None)
            unlocked[key] = reason
        else:
            kept = () if options.upgrade else before.cells.get(key, ())
            jobs[key] = _job(matrix, cell, arch, kept, options, patience)
    for cell, arch in chosen.values():
        name = tools_key(cell.python, arch)
        if (
            options.upgrade
            or name not in tools
            or not set(matrix.tools) <= {w.name for w in tools[name]}
        ):
            kept = () if options.upgrade else before.tools.get(name, ())
            jobs[f"tools {name}"] = _tools_job(matrix, cell.python, arch, kept, patience)
    for key, outcome in _run(jobs, say, patience):
        if isinstance(outcome, WorkFailed):
            faults += [f"{key}: {fault}" for fault in outcome.faults]
            if not key.startswith("tools ") and key not in before.cells:
                unlocked[key] = f"{_why(outcome)} when this was locked"
        elif key.startswith("tools "):
            tools[key.removeprefix("tools ")] = outcome
        else:
            locked[key] = outcome
            unlocked.pop(key, None)
    others = [*before.cells, *before.unlocked] if options.keep_others else []
    lock = _ordered(matrix, locked, unlocked, tools, bases, [*others, *chosen])
    return (replace(lock, aliases={}) if options.keep_others else lock), faults


def _why(failed: WorkFailed) -> str:
    """Why a cell could not be resolved, in short. Committed, so it names no host."""
    said = str(failed.faults[0])
    if said.startswith(_UNFIT):
        return _UNFIT
    return "uv found no solution" if "No solution found" in said else "uv failed"


def _ordered(
    matrix: Matrix,
    locked: Mapping[str, tuple[Wheel, ...]],
    unlocked: Mapping[str, str],
    tools: Mapping[str, tuple[Wheel, ...]],
    bases: Mapping[str, str],
    beside: Iterable[str],
) -> Lock:
    """A lock in the order of the matrix, without what it no longer has; `beside` stays."""
    known = [*dict.fromkeys([*wanted_keys(matrix, cells_of(matrix)), *beside])]
    return Lock(
        cells={key: locked[key] for key in known if key in locked},
        unlocked={key: unlocked[key] for key in known if key in unlocked and key not in locked},
        tools=tools,
        bases=bases,
        aliases=matrix.aliases,
    )


Outcome = tuple[Wheel, ...] | WorkFailed


class _Patience:
    """The waits for an index that answers 429: after one that was in vain, no call waits again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._over = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait before a further call; False when there shall be none."""
        if self._over.is_set():
            return False
        self._say(f"lock  an index answers 429; asking again in {seconds:.0f} s")
        return not self._over.wait(seconds)

    def end(self) -> None:
        """Nobody waits any more."""
        self._over.set()


def _run(
    jobs: Mapping[str, Callable[[], tuple[Wheel, ...]]],
    say: Callable[[str], None],
    patience: _Patience,
) -> Iterable[tuple[str, Outcome]]:
    """Every job's outcome in the order of `jobs`, with one line of progress when one is done."""
    results: dict[str, Outcome] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = {pool.submit(job): key for key, job in jobs.items()}
        try:
            for count, future in enumerate(as_completed(futures), start=1):
                key = futures[future]
                try:
                    wheels = future.result()
                    results[key], said = wheels, f"{len(wheels)} wheels"
                except WorkFailed as error:
                    results[key] = error
                    said = "FAILED"
                say(f"lock  {count:>3}/{len(jobs)}  {key}: {said}")
        except BaseException:
            patience.end()
            pool.shutdown(cancel_futures=True)
            raise
    return [(key, results[key]) for key in jobs]


def _unreachable(matrix: Matrix, cells: Iterable[Cell], options: Options) -> dict[str, str]:
    """By pins id, why the wheels of a cell cannot be had; each index is asked once."""
    asked: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for cell in cells:
        if cell.index == DEFAULT_INDEX or _in_wheelhouse(cell, options.wheelhouse):
            continue
        if cell.index not in asked:
            index = options.pytorch_index or matrix.pytorch_index
            asked[cell.index] = _page_fault(pages.torch_page(index, cell.index))
        if reason := asked[cell.index]:
            found[cell.pins_id] = f"{reason.format(index=cell.index)} when this was locked"
    return found


def _page_fault(url: str) -> str | None:
    """Why a page of an index cannot be read, None when it can. Committed, so it names no host."""
    if not url.startswith(("https://", "http://")):
        return None
    try:
        with urllib.request.urlopen(_asking(url), timeout=_PAGE_SECONDS):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        if error.code == 429:
            return None  # it can be reached, and uv waits and comes back
        if error.code == 404:
            return "the PyTorch index has no page for {index}"
        return f"the PyTorch index answered {error.code} for {{index}}"
    except (OSError, ValueError, http.client.HTTPException):
        return "the PyTorch index of {index} could not be reached"


def _asking(url: str, method: str = "GET") -> urllib.request.Request:
    """A request for `url`, with the credentials in it told as uv tells them."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    bare = urlunsplit(parts._replace(netloc=host))
    headers = {"User-Agent": "gpucomm"}
    request = urllib.request.Request(bare, headers=headers, method=method)  # noqa: S310
    if at:
        pair = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {pair}")
    return request


def _in_wheelhouse(cell: Cell, wheelhouse: Path | None) -> bool:
    """Whether a folder has the torch of `cell`."""
    tag = f"cp{cell.python.replace('.', '')}"
    name = f"torch-{cell.torch}+{cell.index}-{tag}-*.whl"
    return wheelhouse is not None and any(wheelhouse.glob(name))


def _job(
    matrix: Matrix,
    cell: Cell,
    arch: Architecture,
    kept: tuple[Wheel, ...],
    options: Options,
    patience: _Patience,
) -> Callable[[], tuple[Wheel, ...]]:
    wanted = requirements_of(matrix, cell)
    found: list[str] = []
    if _in_wheelhouse(cell, options.wheelhouse):
        found = [str(options.wheelhouse)]
    elif cell.index != DEFAULT_INDEX:
        found = pages.pages_of(matrix, cell, options.pytorch_index)

    def job() -> tuple[Wheel, ...]:
        wheels = _resolve(
            wanted, patience, python=cell.python, arch=arch, kept=kept, find_links=found
        )
        lock = Lock(cells={key_of(cell, arch): wheels}, tools={}, bases={})
        if faults := list(cell_faults(matrix, lock, cell, arch)):
            raise WorkFailed([f"{_UNFIT}: {fault}" for fault in faults])
        return wheels

    return job


def _tools_job(
    matrix: Matrix, python: str, arch: Architecture, kept: tuple[Wheel, ...], patience: _Patience
) -> Callable[[], tuple[Wheel, ...]]:
    wanted = Requirements(wanted=tuple(matrix.tools))
    return lambda: _resolve(wanted, patience, python=python, arch=arch, kept=kept)


def base_digests(
    images: Iterable[str], before: Lock, say: Callable[[str], None], *, upgrade: bool
) -> dict[str, str]:
    """The digest of every registry image: the locked one, else what its registry says.

    A registry that cannot be reached leaves the lock as it was: such a base is bootstrapped.
    """
    digests: dict[str, str] = {}
    silent: dict[str, str] = {}
    for image in images:
        locked = before.bases.get(image)
        host = registry.host_of(image)
        if locked is not None and not upgrade:
            digests[image] = locked
            continue
        if host not in silent:
            answer = registry.reachable(image)
            if answer.ok:
                digests[image] = registry.digest_of(image)
                continue
            silent[host] = str(answer.reason)
            say(f"base  {answer.reason}; {'kept' if locked else 'no digest locked'}")
        digests |= {image: locked} if locked else {}
    return digests


def _resolve(
    wanted: Requirements,
    patience: _Patience,
    *,
    python: str,
    arch: Architecture,
    kept: tuple[Wheel, ...] = (),
    find_links: Iterable[str] = (),
) -> tuple[Wheel, ...]:
    with tempfile.TemporaryDirectory(prefix="gpucomm-lock-") as folder:
        work = Path(folder)
        for name, lines in (
            ("in", wanted.wanted), ("override", wanted.overrides), ("hold", wanted.constraints)
        ):  # fmt: skip
            (work / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        output = work / "pylock.toml"
        if kept:
            output.write_text(_as_pylock(kept))
        command = [
            find_uv_bin(), "pip", "compile", str(work / "in.txt"),
            "--override", str(work / "override.txt"), "--constraint", str(work / "hold.txt"),
            "--python-version", python,
            "--python-platform", f"{MACHINES[arch]}-manylinux_2_{_GLIBC}",
            "--only-binary", ":all:", "--quiet", "--output-file", str(output),
            *(word for page in find_links for word in ("--find-links", page)),
        ]  # fmt: skip
        _call(command, patience)
        packages = tomllib.loads(output.read_text())["packages"]
    wheels = (_wheel(entry, python, arch) for entry in packages)
    return tuple(sorted(wheels, key=lambda w: w.name))


def _call(command: list[str], patience: _Patience) -> None:
    """Run uv, again when an index asked it to wait. Raises WorkFailed with what uv said."""
    # Wheels are chosen by metadata: uv needs no Python of each version, and would look for one.
    environ = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    for seconds in (*_WAITS, None):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        reason = " ".join(done.stderr.split()) or f"uv ended with {done.returncode}"
        if "429 Too Many Requests" not in reason:
            raise WorkFailed(reason)
        if seconds is None or not patience.wait(seconds):
            patience.end()
            raise WorkFailed(reason)


def _as_pylock(wheels: tuple[Wheel, ...]) -> str:
    """The smallest pylock.toml from which uv takes its preferences."""
    rows = "".join(f'[[packages]]\nname = "{w.name}"\nversion = "{w.version}"\n' for w in wheels)
    return f'lock-version = "1.0"\ncreated-by = "gpucomm"\n{rows}'


def _wheel(entry: Mapping[str, Any], python: str, arch: Architecture) -> Wheel:
    """The best of a package's wheels for `python` on this platform. Raises WorkFailed for none."""
    ranks = {tag: rank for rank, tag in enumerate(_tags(python, arch))}
    best: tuple[int, Wheel, Mapping[str, Any]] | None = None
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
            size=item.get("size") or 0,
        )
        best = rank, wheel, item
    if best is None:
        raise WorkFailed(f"{entry['name']} {entry['version']} has no wheel for Python {python}")
    _, wheel, item = best
    return wheel if wheel.size else replace(wheel, size=_size(item))


def _size(item: Mapping[str, Any]) -> int:
    """Bytes of a wheel whose size the index does not tell, as HTML pages do not."""
    url = urlsplit(item.get("url", ""))
    if url.scheme in ("http", "https"):
        return _size_there(item["url"])
    path = Path(unquote(url.path)) if url.scheme == "file" else Path(item.get("path", ""))
    return path.stat().st_size if path.is_file() else 0


@cache
def _size_there(url: str) -> int:
    """Bytes of a file on a server, 0 if it does not tell: it only says how much disk is needed."""
    try:
        with urllib.request.urlopen(_asking(url, "HEAD"), timeout=_PAGE_SECONDS) as answer:  # noqa: S310
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError, http.client.HTTPException):
        return 0


def _tags(python: str, arch: Architecture) -> list[Tag]:
    major, minor = (int(part) for part in python.split("."))
    machine = MACHINES[arch]
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(_GLIBC, 4, -1)]
    platforms += [f"manylinux{name}_{machine}" for name in ("2014", "2010", "1")]
    platforms += [f"linux_{machine}"]  # names no glibc; uv takes it, and older wheels of torch are
    return [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms=platforms),
    ]
