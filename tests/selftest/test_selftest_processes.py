"""Real processes without a real torch: a stand-in package shows how the launcher takes a bad one.

They run everywhere, also where no torch is installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gpucomm_selftest

if TYPE_CHECKING:
    from tests.selftest.conftest import Completed, Runner


def stand_in(tmp_path: Path, source: str) -> dict[str, str]:
    """An environment in which `import torch` runs this."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(tmp_path)}


def only_finding(done: Completed) -> dict[str, str]:
    (finding,) = done.json["findings"]
    return dict(finding)


def test_a_torch_that_raises_and_prints_is_an_unusable_environment(
    plain_run: Runner, tmp_path: Path
) -> None:
    broken = stand_in(tmp_path, "print('{noise')\nraise OSError('libcudart.so.12: not found')\n")
    done = plain_run.run("--json", environ=broken)
    assert done.code == 3
    finding = only_finding(done)
    assert finding["id"] == "GC0110"
    assert finding["measured"] == "OSError: libcudart.so.12: not found"
    statuses = {stage["id"]: stage["status"] for stage in done.json["stages"]}
    assert statuses["versions"] == "fail"
    assert {statuses["init"], statuses["correctness"]} == {"not reached"}
    assert done.json["stages"][0]["stopped_ranks"][0]["output"] == ["{noise"]
    assert done.err == ""


def test_a_library_without_a_function_of_torch_has_a_finding_of_its_own(
    plain_run: Runner, tmp_path: Path
) -> None:
    said = "/opt/venv/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"
    done = plain_run.run("--json", environ=stand_in(tmp_path, f"raise ImportError({said!r})\n"))
    assert (done.code, done.json["verdict"]) == (3, "unusable")
    finding = only_finding(done)
    assert finding["id"] == "GC0119"
    assert "ncclCommRegister" in finding["measured"]


def test_the_text_has_one_verdict_and_no_traceback(plain_run: Runner, tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "raise ImportError('no')\n")
    done = plain_run.run(environ=broken)
    assert done.code == 3
    verdicts = [line for line in done.out.splitlines() if line.startswith("UNUSABLE: ")]
    assert len(verdicts) == 1
    assert "Traceback" not in done.out + done.err
    assert "\033" not in done.out
    debug = plain_run.run("--debug", environ=broken)
    assert "Traceback" in debug.err


def test_a_torch_that_crashes_is_named_with_its_signal(plain_run: Runner, tmp_path: Path) -> None:
    crash = stand_in(tmp_path, "import os\nos.kill(os.getpid(), 11)\n")
    done = plain_run.run("--json", environ=crash)
    assert done.code == 1
    finding = only_finding(done)
    assert finding["id"] == "GC0901"
    assert "was killed by SIGSEGV during versions: import torch" in finding["measured"]


def test_a_torch_that_exits_is_no_pass(plain_run: Runner, tmp_path: Path) -> None:
    done = plain_run.run("--json", environ=stand_in(tmp_path, "import sys\nsys.exit(0)\n"))
    assert done.code == 1
    assert "exited with status 0 during versions" in only_finding(done)["measured"]


def test_a_torch_that_hangs_is_ended_with_all_that_it_started(
    plain_run: Runner, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    hang = stand_in(
        tmp_path,
        "import subprocess, time, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid))\n"
        "time.sleep(300)\n",
    )
    running = plain_run.start("--json", "--timeout", "3", environ=hang)
    done = running.finish()
    assert done.code == 124
    assert done.seconds < 10
    assert "entered import torch" in only_finding(done)["measured"]
    assert running.processes() == []
    assert not alive(int(child.read_text()))
    output = done.json["stages"][0]["stopped_ranks"][0]["output"]
    assert any(line.endswith("in work") for line in output)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_a_launcher_that_is_killed_takes_its_processes_with_it(
    plain_run: Runner, tmp_path: Path
) -> None:
    hang = stand_in(tmp_path, "import time\ntime.sleep(300)\n")
    running = plain_run.start("--verbose", environ=hang)
    running.wait_for_log(r"probe 0 pid \d+")
    end = time.monotonic() + 20
    while not running.processes() and time.monotonic() < end:
        time.sleep(0.01)
    (process,) = running.processes()
    running.popen.send_signal(signal.SIGKILL)
    running.popen.wait(10)
    assert not alive(process.pid)


def test_an_interrupted_launcher_still_reports(plain_run: Runner, tmp_path: Path) -> None:
    hang = stand_in(tmp_path, "import time\ntime.sleep(300)\n")
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        running = plain_run.start("--verbose", "--json", environ=hang)
        running.wait_for_log(r"probe 0 pid \d+")
        running.popen.send_signal(number)
        done = running.finish(20)
        assert done.code == code
        assert done.json["verdict"] == "interrupted"
        assert only_finding(done)["id"] == "GC0906"
        assert running.processes() == []


def test_files_named_like_modules_in_the_directory_are_not_taken(
    plain_run: Runner, tmp_path: Path
) -> None:
    broken = stand_in(tmp_path, "raise ImportError('the real one')\n")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "torch", "argparse"):
        (here / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    program = "import os, sys; os.chdir(sys.argv.pop(1)); sys.path[:] = sys.path[1:]; "
    program += "from gpucomm_selftest.cli import main; sys.exit(main())"
    done = plain_run.script(program, str(here), "--json", environ=broken)
    assert only_finding(done)["measured"] == "ImportError: the real one"


def test_the_report_goes_to_a_file_too(plain_run: Runner, tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "raise ImportError('no')\n")
    file = tmp_path / "report.json"
    done = plain_run.run("--json", "--output", str(file), environ=broken)
    assert json.loads(file.read_text()) == done.json


def test_a_reader_that_has_gone_does_not_change_the_exit_code(tmp_path: Path) -> None:
    environ = {**os.environ, **stand_in(tmp_path, "raise ImportError('no')\n")}
    environ["PYTHONPATH"] += f":{Path(gpucomm_selftest.__file__).parents[1]}"
    argv = [sys.executable, "-m", "gpucomm_selftest"]
    with subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as popen:
        assert popen.stdout is not None
        assert popen.stderr is not None
        popen.stdout.close()
        assert popen.wait(60) == 3
        assert popen.stderr.read() == b""
