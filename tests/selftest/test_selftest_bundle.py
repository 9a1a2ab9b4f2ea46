"""The support bundle: whole, the same each time, and without one secret."""

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.selftest.test_selftest_text import REPORTS, passed

from gpucomm_selftest.bundle import FOLDER, bundle, machine_files
from gpucomm_selftest.errors import UsageError
from gpucomm_selftest.files import check_writable, write_whole
from gpucomm_selftest.redact import REMOVED, redact, redact_environment, secret_values


def members(packed: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        read: dict[str, str] = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            read[member.name.removeprefix(f"{FOLDER}/")] = file.read().decode()
        return read


SECRETS = {
    "HF_TOKEN": "hf_planted-1",
    "AWS_SECRET_ACCESS_KEY": "planted/2+x=",
    "WANDB_API_KEY": "planted-3",
    "DB_PASSWORD": "planted-4",
    "GIT_ASKPASS_CREDENTIALS": "planted-5",
    "SSH_PRIVATE_DATA": "planted-6",
    "REGISTRY_AUTH": "planted-7",
    "SENTRY_DSN": "planted-8",
    "PROXY_PASS": "planted-9",
    "apikey": "planted-10",
}
PLAIN = {"NCCL_DEBUG": "INFO", "PWD": "/work-place", "KEYBOARD": "dvorak", "HOME": "/home/x"}
PROXY = {"HTTPS_PROXY": "http://user:planted-11@proxy.example:3128"}


def planted() -> dict[str, Any]:
    """A report in which every secret stands somewhere."""
    report = REPORTS["hung"]()
    said = [f"{value} in a line" for value in SECRETS.values()]
    rank = report["stages"][1]["stopped_ranks"][0]
    rank.update(rank=0, output=[*said, PROXY["HTTPS_PROXY"]], traceback="\n".join(said))
    report["settings"]["environment"] = {"NCCL_X": SECRETS["HF_TOKEN"]}
    return report


def test_a_planted_secret_is_nowhere_in_it() -> None:
    environ = {**SECRETS, **PLAIN, **PROXY}
    machine = {"machine/proc/cmdline": f"a={SECRETS['DB_PASSWORD']}"}
    read = members(bundle(planted(), environ, machine))
    for name, said in read.items():
        for secret in [*SECRETS.values(), "planted-11"]:
            assert secret not in said, name
    kept = json.loads(read["environment.json"])
    assert {name: kept[name] for name in PLAIN} == PLAIN
    assert {kept[name] for name in SECRETS} == {REMOVED}
    assert kept["HTTPS_PROXY"] == f"http://{REMOVED}@proxy.example:3128"
    assert REMOVED in read["output/init-rank0.txt"]


def test_it_has_the_report_in_three_forms_and_is_the_same_each_time() -> None:
    one, other = (bundle(passed(), PLAIN, {"machine/x": "y"}) for _ in range(2))
    assert one == other
    read = members(one)
    assert set(read) == {
        "environment.json",
        "junit.xml",
        "machine/x",
        "report.json",
        "report.txt",
    }
    assert json.loads(read["report.json"]) == passed()
    assert "PASS:" in read["report.txt"]


def test_what_this_machine_says_is_read() -> None:
    assert "MemTotal" in machine_files()["machine/proc/meminfo"]


def test_a_secret_inside_a_longer_one_goes_with_it() -> None:
    secrets = secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefgh", "C_TOKEN": "short"})
    assert secrets == ["abcdefgh", "abcdef"]
    assert redact("x abcdefgh abcdef short", secrets) == f"x {REMOVED} {REMOVED} short"
    assert redact_environment({"C_TOKEN": "short"}, secrets) == {"C_TOKEN": REMOVED}


def test_a_file_is_written_whole_with_its_mode_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_bytes(b"old")
    write_whole(file, b"new", mode=0o600)
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b"
    file.write_bytes(b"old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_device_is_written_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), b"gone")
    assert Path("/dev/null").is_char_device()
    check_writable(Path("/dev/null"), "--output")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        check_writable(tmp_path, "--output")
    with pytest.raises(UsageError, match="is no folder"):
        check_writable(tmp_path / "a" / "b", "--output")
