"""Odd places to run in: always a documented exit code, one verdict, no traceback, nothing left.

The stand-in for torch raises, so a run is short and its verdict is known: exit 3 with GC0110.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.selftest.conftest import MARK, SELFTEST, processes
from tests.selftest.test_selftest_processes import stand_in

from gpucomm_selftest.cli import main

if TYPE_CHECKING:
    pass

Environ = dict[bytes, bytes]
FILES = ("--output", "--junit", "--bundle")


def open_to_all(path: str | Path) -> bool:
    real = Path(path).resolve()
    return real.exists() and all(
        one.stat().st_mode & 0o005 == 0o005 for one in (real, *real.parents)
    )


def ended(
    environ: Environ, *argv: str, python: str = sys.executable, **more: object
) -> subprocess.CompletedProcess[bytes]:
    command = [python, "-m", "gpucomm_selftest", *argv]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, env=environ, capture_output=True, timeout=60, check=False, **more
    )


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[Environ]:
    """The least that Python needs to find the package and the stand-in, readable by any user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        broken = stand_in(Path(folder), "raise ImportError('no torch here')\n")
        path = f"{broken['PYTHONPATH']}:{SELFTEST}"
        yield {b"PYTHONPATH": path.encode(), MARK.encode(): tmp_path.name.encode()}


def unusable(done: subprocess.CompletedProcess[bytes], token: str) -> None:
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 3
    assert report["findings"][0]["id"] == "GC0110"
    # In JSON the traceback of the rank is evidence, and there alone.
    assert b"Traceback" not in done.stderr
    assert processes(token) == []


@pytest.mark.parametrize(
    "change",
    [
        {},
        {b"HOME": b"/nonexistent"},
        {b"HOME": b""},
        {b"PATH": b""},
        {b"LC_ALL": b"C", b"LANG": b"C", b"PYTHONUTF8": b"0", b"PYTHONCOERCECLOCALE": b"0"},
        {b"TMPDIR": b"/nonexistent"},
        {b"COLUMNS": b"999999999999999999999"},
        {b"COLUMNS": b"-1", b"LINES": b"x"},
        {b"TERM": b"no-such-terminal"},
        {b"NCCL_DEBUG": b"\xff\xfe not text \x1b[31m"},
        {b"NCCL_DEBUG": b"x" * 100_000},
        {b"CUDA_VISIBLE_DEVICES": b""},
        {b"CUDA_VISIBLE_DEVICES": b"99"},
        {b"CUDA_VISIBLE_DEVICES": b"0,0,\xff"},
        {b"PYTHONDONTWRITEBYTECODE": b"1", b"PYTHONHASHSEED": b"7", b"PYTHONOPTIMIZE": b"2"},
    ],
)
def test_an_odd_environment(change: Environ, environ: Environ, tmp_path: Path) -> None:
    unusable(ended({**environ, **change}, "--json"), tmp_path.name)
    told = ended({**environ, **change})
    assert told.returncode == 3
    assert told.stdout.splitlines()[-1].startswith(b"UNUSABLE: ")
    assert b"Traceback" not in told.stdout + told.stderr
    assert b"\x1b" not in told.stdout


def test_a_folder_that_has_gone(environ: Environ, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, sys; os.rmdir(os.getcwd()); "
        "from gpucomm_selftest.cli import main; sys.exit(main(['--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        cwd=gone,
        capture_output=True,
        timeout=60,
        check=False,
    )
    unusable(done, tmp_path.name)


def test_a_user_without_a_name_in_a_folder_of_another(environ: Environ, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    python = next((one for one in (sys.executable, "/usr/bin/python3") if open_to_all(one)), None)
    if python is None or not open_to_all(SELFTEST):
        pytest.skip("no Python, or not this checkout, is open to other users")
    done = ended(
        environ, "--json", python=python, user=4_123_456, group=4_123_456, extra_groups=[], cwd="/"
    )
    unusable(done, tmp_path.name)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed(closed: tuple[int, ...], environ: Environ, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    shut = "; ".join(f"os.close({number})" for number in closed)
    program = (
        f"import os, sys; {shut}; os.execv(sys.executable, [sys.executable, '-m', "
        f"'gpucomm_selftest', '--output', {str(file)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert json.loads(file.read_text())["exit_code"] == 3
    assert b"Traceback" not in done.stderr
    assert processes(tmp_path.name) == []


@pytest.mark.parametrize(
    "option",
    [
        *("--backend", "--nproc", "--ranks-per-gpu", "--budget", "--timeout"),
        *("--stages", "--skip", *FILES),
    ],
)
@pytest.mark.parametrize("value", ["\x00", "-", "💥", "1e999", "../../..", "--", "  ", "=", None])
def test_any_option_with_nonsense(
    option: str,
    value: str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if option in FILES and value in ("-", "💥", "1e999", "  ", "="):
        pytest.skip("a name of a file like any other")
    assert main([option] if value is None else [f"{option}={value}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().split("\n")) == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_options_that_are_no_text(environ: Environ) -> None:
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"gpucomm_selftest", b"--stages", b"\xff\xfe"],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"no such stage" in done.stderr
    assert b"Traceback" not in done.stderr
