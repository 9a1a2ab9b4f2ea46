"""The image holds what it needs and nothing that leaks, grows or invites."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from gpucomm.standard import size_budget

ABSENT = {
    "apt lists": "/var/lib/apt/lists -type f",
    "logs": "/var/log -type f",
    "apt and other caches": "/var/cache -type f",
    "pip and uv caches": "/root/.cache /home/gpucomm/.cache -type f",
    "SSH host keys": "/etc/ssh -name 'ssh_host_*'",
    "traces of the build's secrets": "/run/gpucomm -type f",
    "temporary files": "/tmp -mindepth 1",
}


@pytest.mark.parametrize("where", ABSENT.values(), ids=ABSENT)
def test_left_out(run: Any, where: str) -> None:
    done = run("sh", "-c", f"find {where} 2>/dev/null; true", options=["--user", "root"])
    assert (done.code, done.out) == (0, "")


def test_no_user_has_a_password(root_host: Any) -> None:
    rows = root_host.check_output("cat /etc/shadow").splitlines()
    fields = [row.split(":")[1] for row in rows]
    assert len(fields) > 10
    assert {field for field in fields if field not in ("*", "!", "!*", "!!")} == set()


def test_nothing_is_world_writable(root_host: Any) -> None:
    found = root_host.check_output(
        "find / -xdev -not -type l -perm -0002 -not -perm -1000 -not -path '/proc/*'"
    )
    assert found == ""


def test_no_setuid_beyond_debians(root_host: Any) -> None:
    """Every set-uid file belongs to a Debian package."""
    for path in root_host.check_output("find / -xdev -type f -perm /6000").splitlines():
        usr_merged = path.removeprefix("/usr")
        owned = root_host.run("dpkg -S %s || dpkg -S %s", path, usr_merged)
        assert owned.rc == 0, path


def test_no_mirror_or_proxy_stayed(image: str, run: Any, config: dict[str, Any]) -> None:
    history = subprocess.run(["docker", "history", "--no-trunc", "--format", "{{json .}}", image],
                             check=True, capture_output=True, text=True).stdout  # fmt: skip
    commands = [json.loads(line)["CreatedBy"] for line in history.splitlines()]
    assert len(commands) > 5
    for text in [*commands, *config["Config"]["Env"]]:
        for word in ("proxy=", "index-url", "index_url", "default_index", "ssl_cert_file"):
            assert word not in text.lower()


def test_apt_sources_are_debians_own(host: Any, expected: Any) -> None:
    release = expected.project.matrix.systems[expected.cell.os].release
    if expected.project.matrix.systems[expected.cell.os].distribution != "debian":
        pytest.skip("its image comes from a registry, with that distributor's sources")
    text = host.check_output(
        "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true"
    )
    hosts = {word.split("/")[2] for word in text.split() if word.startswith("http")}
    assert release in text
    assert all(name.endswith(".debian.org") for name in hosts), hosts


def test_byte_code_is_hash_based(host: Any) -> None:
    code = (
        "import importlib.util, pathlib, torch; "
        "flags = {importlib.util.cache_from_source(str(f)): 0 for f in "
        "pathlib.Path(torch.__file__).parent.glob('*.py')}; "
        "print({open(p, 'rb').read(8)[4] for p in flags})"
    )
    assert host.check_output("python -c %s", code) == "{1}"


def test_size_is_within_the_budget(run: Any, expected: Any) -> None:
    if (budget := size_budget(expected.project.matrix, expected.cell)) is None:
        pytest.skip("the matrix has no size budget for this torch and flavor")
    done = run("du", "--one-file-system", "--summarize", "--block-size=MB", "/",
               options=["--user", "root"])  # fmt: skip
    assert 0 < int(done.out.split("MB")[0]) <= budget
