"""wheelindex.py: its wheels, pages and faults by themselves, and what uv makes of them."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email.parser import BytesParser
from http.client import HTTPConnection, HTTPMessage, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.wheelindex import (
    ChangedBytes,
    Fault,
    Index,
    NotFound,
    Request,
    Row,
    Stalled,
    TinyWheel,
    TooMany,
    Truncated,
    Unauthorized,
    nccl_wheels,
    published,
    serve,
)
from uv import find_uv_bin

Uv = Callable[..., subprocess.CompletedProcess[str]]
TORCH = TinyWheel(
    "torch",
    "2.7.1+rocm6.3",
    ("filelock", 'small; extra == "more"'),
    "cp311-cp311-manylinux_2_28_x86_64",
    ">=3.9,<4",
)
SMALL = TinyWheel("Small.Thing", "1.0", files={"small/__init__.py": "VALUE = 1\n"})
TWO = {"simple": [SMALL], "whl/rocm6.3": [TORCH]}
SMALL_PATH = "/simple/small_thing-1.0-py3-none-any.whl"
TORCH_PATH = "/whl/rocm6.3/torch-2.7.1%2Brocm6.3-cp311-cp311-manylinux_2_28_x86_64.whl"
ROCM: Row = ("2.7.1", "rocm6.3", None)


def ask(
    index: Index, path: str, method: str = "GET", **headers: str
) -> tuple[int, HTTPMessage, bytes]:
    """One request on a connection of its own."""
    address = urlsplit(index.url(""))
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def status(index: Index, path: str, **headers: str) -> int:
    return ask(index, path, **headers)[0]


# --- the wheels --------------------------------------------------------------------------------


def members(wheel: TinyWheel) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel.content())) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_records_the_hash_and_size_of_each_of_its_files() -> None:
    files = members(SMALL)
    record = files["small_thing-1.0.dist-info/RECORD"].decode().splitlines()
    assert sorted(row.split(",")[0] for row in record) == sorted(files)
    for path, digest, size in (row.split(",") for row in record[:-1]):
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).decode()
        assert (digest, size) == (f"sha256={expected.rstrip('=')}", str(len(files[path])))
    assert record[-1] == "small_thing-1.0.dist-info/RECORD,,"
    assert files["small/__init__.py"] == b"VALUE = 1\n"


def test_a_wheel_says_what_it_requires() -> None:
    metadata = BytesParser().parsebytes(members(TORCH)["torch-2.7.1+rocm6.3.dist-info/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("torch", "2.7.1+rocm6.3")
    assert metadata["Requires-Python"] == ">=3.9,<4"
    assert metadata.get_all("Requires-Dist") == ["filelock", 'small; extra == "more"']
    assert metadata.get_all("Provides-Extra") == ["more"]


@pytest.mark.parametrize(
    ("tag", "pure", "tags"),
    [
        ("py3-none-any", "true", ["py3-none-any"]),
        ("py2.py3-none-any", "true", ["py2-none-any", "py3-none-any"]),
        (
            "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
            "false",
            ["cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"],
        ),
    ],
)
def test_a_wheel_lists_each_of_its_tags(tag: str, pure: str, tags: list[str]) -> None:
    wheel = TinyWheel("a", "1", tag=tag)
    assert wheel.file == f"a-1-{tag}.whl"
    text = BytesParser().parsebytes(members(wheel)["a-1.dist-info/WHEEL"])
    assert (text["Root-Is-Purelib"], text.get_all("Tag")) == (pure, tags)


def test_the_same_wheel_has_the_same_bytes_and_another_year_others_as_many() -> None:
    assert TORCH.content() == TORCH.content()
    assert TORCH.content(year=1981) != TORCH.content()
    assert len(TORCH.content(year=1981)) == len(TORCH.content())
    assert TORCH.sha256 == hashlib.sha256(TORCH.content()).hexdigest()


# --- pages and files ---------------------------------------------------------------------------


def test_a_folder_lists_its_projects_and_a_project_its_wheels() -> None:
    with serve(TWO) as index:
        assert b'<a href="/simple/small-thing/">small-thing</a>' in ask(index, "/simple/")[2]
        page = ask(index, "/whl/rocm6.3/torch/")[2].decode()
        assert ask(index, "/whl/rocm6.3/torch/")[1]["Content-Type"].startswith("text/html")
    assert re.findall(r"<a .*</a>", page) == [
        f'<a href="{TORCH_PATH}#sha256={TORCH.sha256}" data-requires-python="&gt;=3.9,&lt;4">'
        f"{TORCH.file}</a>"
    ]


def test_a_wheel_without_a_hash_has_none_on_its_page() -> None:
    with serve({"simple": [TinyWheel("a", "1", hashed=False)]}) as index:
        assert b'href="/simple/a-1-py3-none-any.whl">' in ask(index, "/simple/a/")[2]


def test_a_page_without_its_slash_points_to_the_one_with_it() -> None:
    with serve(TWO) as index:
        code, headers, _ = ask(index, "/whl/rocm6.3/torch")
    assert (code, headers["Location"]) == (301, "/whl/rocm6.3/torch/")


@pytest.mark.parametrize("path", ["/", "/simple/torch/", "/simple/torch", "/whl/cpu/", "/x.whl"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    with serve(TWO) as index:
        assert status(index, path) == 404


@pytest.mark.parametrize("path", [TORCH_PATH, TORCH_PATH.replace("%2B", "+")])
def test_a_wheel_is_served_under_both_spellings_of_its_name(path: str) -> None:
    with serve(TWO) as index:
        assert ask(index, path)[2] == TORCH.content()


@pytest.mark.parametrize(
    ("asked", "code", "part", "span"),
    [
        ("bytes=0-3", 206, slice(0, 4), "0-3"),
        ("bytes=10-", 206, slice(10, None), "10-{last}"),
        ("bytes=-22", 206, slice(-22, None), "{tail}-{last}"),
        ("bytes=0-999999", 206, slice(None), "0-{last}"),
        ("bytes=-999999", 206, slice(None), "0-{last}"),
        ("bytes=0-1,3-4", 200, slice(None), None),
        ("bytes=-", 200, slice(None), None),
        ("bytes=999999-", 416, slice(0, 0), "*"),
        ("bytes=5-4", 416, slice(0, 0), "*"),
    ],
)
def test_wheels_answer_ranges(asked: str, code: int, part: slice, span: str | None) -> None:
    body = SMALL.content()
    with serve(TWO) as index:
        found, headers, got = ask(index, SMALL_PATH, Range=asked)
    assert (found, got) == (code, body[part])
    assert headers["Accept-Ranges"] == "bytes"
    numbers = {"last": len(body) - 1, "tail": len(body) - 22}
    said = f"bytes {span.format(**numbers)}/{len(body)}" if span else None
    assert headers["Content-Range"] == said


def test_head_says_what_get_would_send_and_sends_nothing() -> None:
    with serve(TWO) as index:
        code, headers, body = ask(index, SMALL_PATH, "HEAD")
    assert (code, body) == (200, b"")
    assert headers["Content-Length"] == str(len(SMALL.content()))
    assert headers["Accept-Ranges"] == "bytes"


def test_metadata_lies_beside_a_wheel_when_asked_for() -> None:
    with serve(TWO) as index:
        assert status(index, f"{SMALL_PATH}.metadata") == 404
    with serve(TWO, metadata_files=True) as index:
        assert ask(index, f"{SMALL_PATH}.metadata")[2] == SMALL.metadata()
        page = ask(index, "/simple/small-thing/")[2].decode()
    assert f'data-core-metadata="sha256={hashlib.sha256(SMALL.metadata()).hexdigest()}"' in page


def test_wheels_can_be_added_and_never_replaced() -> None:
    with serve(TWO) as index:
        index.add("simple", SMALL, TinyWheel("small-thing", "2.0"))
        assert ask(index, "/simple/small-thing/")[2].count(b"<a ") == 2
        index.add("whl/cpu", SMALL)
        assert status(index, "/whl/cpu/small-thing/") == 200
        with pytest.raises(ValueError, match="another wheel of that name"):
            index.add("simple", TinyWheel("small-thing", "1.0", ("other",)))


def test_every_request_is_remembered_as_it_came() -> None:
    with serve(TWO) as index:
        ask(index, TORCH_PATH, "HEAD", Authorization="Basic eDp5")
        ask(index, "/nothing", Range="bytes=0-1")
        assert index.requests == (
            Request("HEAD", TORCH_PATH, "Basic eDp5"),
            Request("GET", "/nothing", range="bytes=0-1"),
        )
        assert index.requests[0].at <= index.requests[1].at <= time.monotonic()
        index.forget()
        assert not index.requests


def test_many_clients_at_once_are_all_answered_and_remembered() -> None:
    with serve(TWO) as index:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(status(index, SMALL_PATH)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [200] * 16
        assert index.requests == (Request("GET", SMALL_PATH),) * 16


def test_the_end_waits_for_no_client_that_keeps_its_connection() -> None:
    before = threading.active_count()
    with serve(TWO) as index:
        address = urlsplit(index.url())
        connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
        for _ in range(2):
            connection.request("GET", SMALL_PATH)
            assert connection.getresponse().read() == SMALL.content()
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert threading.active_count() == before
    connection.close()


def test_a_failure_of_the_server_itself_is_raised_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Index, path: str) -> None:
        raise RuntimeError(f"{path} broke")

    def use() -> None:
        with serve(TWO) as index, pytest.raises(ConnectionError):
            ask(index, SMALL_PATH)

    monkeypatch.setattr(Index, "content", broken)
    with pytest.raises(RuntimeError, match="broke"):
        use()


# --- faults ------------------------------------------------------------------------------------


def test_a_cut_body_has_the_right_length_and_half_of_the_bytes() -> None:
    body = SMALL.content()
    with serve(TWO) as index, index.fault("small-thing", Truncated()):
        with pytest.raises(IncompleteRead) as caught:
            ask(index, SMALL_PATH)
        assert ask(index, SMALL_PATH, "HEAD")[1]["Content-Length"] == str(len(body))
    assert caught.value.partial == body[: len(body) // 2]
    assert caught.value.expected == len(body) - len(body) // 2


def test_changed_bytes_are_a_valid_wheel_with_another_hash() -> None:
    with serve(TWO, metadata_files=True) as index, index.fault("/simple/*", ChangedBytes()):
        body = ask(index, SMALL_PATH)[2]
        assert ask(index, f"{SMALL_PATH}.metadata")[2] != SMALL.metadata()
        assert SMALL.sha256.encode() in ask(index, "/simple/small-thing/")[2]
    assert (body != SMALL.content(), len(body)) == (True, len(SMALL.content()))
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None


def test_too_many_requests_end_after_the_given_times() -> None:
    with serve(TWO) as index, index.fault("small-thing", TooMany(7, times=2)) as planted:
        answers = [ask(index, SMALL_PATH) for _ in range(3)]
        assert planted.hits == 2
    assert [code for code, _, _ in answers] == [429, 429, 200]
    assert [headers["Retry-After"] for _, headers, _ in answers] == ["7", "7", None]


def test_a_cut_may_happen_once_and_head_is_no_chance_for_it() -> None:
    with serve(TWO) as index, index.fault("small-thing", Truncated(times=1)) as planted:
        assert (ask(index, SMALL_PATH, "HEAD")[0], planted.hits) == (200, 0)
        with pytest.raises(IncompleteRead):
            ask(index, SMALL_PATH)
        assert ask(index, SMALL_PATH)[2] == SMALL.content()
        assert planted.hits == 1


def test_a_stalled_answer_ends_when_the_fault_is_removed() -> None:
    with serve(TWO) as index:
        planted = index.fault("small-thing", Stalled())
        threading.Timer(0.2, planted.remove).start()
        started = time.monotonic()
        with pytest.raises(IncompleteRead) as caught:
            ask(index, SMALL_PATH)
        assert 0.2 <= time.monotonic() - started < 5
        assert caught.value.partial == b""
        assert ask(index, SMALL_PATH)[2] == SMALL.content()


def test_a_stalled_answer_ends_after_its_seconds_and_with_the_server() -> None:
    ended: list[IncompleteRead] = []

    def wait(index: Index) -> None:
        with pytest.raises(IncompleteRead) as caught:
            ask(index, SMALL_PATH)
        ended.append(caught.value)

    with serve(TWO) as index:
        with index.fault("small-thing", Stalled(seconds=0.1)):
            wait(index)
        planted = index.fault("small-thing", Stalled())
        thread = threading.Thread(target=wait, args=(index,))
        thread.start()
        while planted.hits == 0:
            time.sleep(0.01)
        started = time.monotonic()
    thread.join()
    assert time.monotonic() - started < 5
    assert len(ended) == 2


def test_credentials_are_asked_for_and_let_through() -> None:
    wanted = Unauthorized("me", "secret")
    with serve(TWO) as index, index.fault("/simple/*", wanted) as planted:
        code, headers, _ = ask(index, SMALL_PATH)
        assert (code, headers["WWW-Authenticate"]) == (401, 'Basic realm="wheels"')
        assert status(index, "/simple/", Authorization="Basic eDp5") == 401
        assert ask(index, SMALL_PATH, Authorization=wanted.authorization)[2] == SMALL.content()
        assert status(index, TORCH_PATH) == 200
        assert planted.hits == 2


@pytest.mark.parametrize(
    ("where", "spoiled"),
    [
        ("torch", {TORCH_PATH}),
        ("Torch", {TORCH_PATH}),
        ("small.thing", {SMALL_PATH}),
        (TORCH.file, {TORCH_PATH}),
        (f"/whl/rocm6.3/{TORCH.file}", {TORCH_PATH}),
        ("/whl/rocm6.3/torch/", {"/whl/rocm6.3/torch/"}),
        ("/whl/*", {TORCH_PATH, f"{TORCH_PATH}.metadata", "/whl/rocm6.3/", "/whl/rocm6.3/torch/"}),
        ("*.metadata", set[str]()),
        ("/*.metadata", {f"{TORCH_PATH}.metadata"}),
    ],
)
def test_a_fault_spoils_what_it_names_and_nothing_else(where: str, spoiled: set[str]) -> None:
    paths = {TORCH_PATH, f"{TORCH_PATH}.metadata", SMALL_PATH}
    paths |= {"/whl/rocm6.3/", "/whl/rocm6.3/torch/", "/simple/small-thing/"}
    with serve(TWO, metadata_files=True) as index:
        if not spoiled:
            with pytest.raises(ValueError, match="names nothing that is published"):
                index.fault(where, NotFound())
            return
        index.fault(where, NotFound())
        assert {path for path in paths if status(index, path) == 404} == spoiled
        index.heal()
        assert {status(index, path) for path in paths} == {200}


def test_a_fault_for_nothing_is_refused() -> None:
    with serve(TWO) as index:
        for where in ("torc", "/simple/torch/", "torch-2.7.1.whl", "small_thing.metadata", ""):
            with pytest.raises(ValueError, match="names nothing that is published here"):
                index.fault(where, NotFound())


def test_the_fault_planted_last_comes_first_and_gives_way_when_it_is_over() -> None:
    with serve(TWO) as index:
        first = index.fault("small-thing", NotFound())
        with index.fault("small-thing", TooMany()):
            assert [status(index, SMALL_PATH) for _ in range(2)] == [429, 404]
        first.remove()
        first.remove()
        assert status(index, SMALL_PATH) == 200


# --- what uv makes of it -----------------------------------------------------------------------


@pytest.fixture
def uv(bare_env: pytest.MonkeyPatch, tmp_path: Path) -> Uv:
    """Run the real uv, with nothing from this machine: no configuration, no cache, no index."""
    settings = {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_HTTP_TIMEOUT": "2",
        "UV_HTTP_RETRIES": "0",
    }
    for name, value in settings.items():
        bare_env.setenv(name, value)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [find_uv_bin(), "--quiet", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture
def install(uv: Uv, tmp_path: Path) -> Uv:
    """`install(index, *requirements)` into `tmp_path`/target, as an image build does."""

    def run(index: Index, *requirements: str) -> subprocess.CompletedProcess[str]:
        pins = tmp_path / "pins.txt"
        pins.write_text("".join(f"{line}\n" for line in requirements))
        target = str(tmp_path / "target")
        return uv("pip", "install", "--target", target, "--no-deps", "--require-hashes",
                  "--index-url", index.url(), "-r", str(pins))  # fmt: skip

    return run


@pytest.fixture
def lock(uv: Uv, tmp_path: Path) -> Callable[..., Any]:
    """`lock(index, requirements, pages)`: uv's message, or the packages of its pylock.toml."""

    def run(
        index: Index,
        requirements: Iterable[str],
        pages: Iterable[str] = (),
        machine: str = "x86_64",
        python: str = "3.11",
    ) -> str | dict[str, Mapping[str, Any]]:
        source, output = tmp_path / "in.txt", tmp_path / "pylock.toml"
        source.write_text("".join(f"{line}\n" for line in requirements))
        output.unlink(missing_ok=True)
        found = [word for page in pages for word in ("--find-links", index.url(page))]
        done = uv("pip", "compile", str(source), "--output-file", str(output), *found,
                  "--index-url", index.url(), "--only-binary", ":all:",
                  "--python-version", python,
                  "--python-platform", f"{machine}-manylinux_2_28")  # fmt: skip
        if done.returncode != 0:
            return said(done)
        packages = tomllib.loads(output.read_text())["packages"]
        return {package["name"]: package for package in packages}

    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What uv said, on one line, as `gpucomm lock` tells it."""
    return " ".join(done.stderr.split())


SMALL_PIN = f"small-thing==1.0 --hash=sha256:{SMALL.sha256}"
TORCH_PAGE = "whl/rocm6.3/torch/"
TRITON_PAGE = "whl/rocm6.3/pytorch-triton-rocm/"


def test_uv_locks_torch_of_a_line_with_its_hash(lock: Callable[..., Any]) -> None:
    wheels = published([ROCM])
    with serve(wheels) as index:
        packages = lock(index, ["torch==2.7.1+rocm6.3", "numpy"], [TORCH_PAGE, TRITON_PAGE])
        torch = next(wheel for wheel in wheels["whl/rocm6.3"] if wheel.name == "torch")
        assert packages["torch"]["version"] == "2.7.1+rocm6.3"
        assert packages["torch"]["wheels"] == [
            {"url": index.url(TORCH_PATH), "hashes": {"sha256": torch.sha256}}
        ]
        assert sorted(packages) == [
            "filelock", "numpy", "pytorch-triton-rocm", "torch", "typing-extensions",
        ]  # fmt: skip
        read = [request for request in index.requests if request.path == TORCH_PATH]
    assert [request.method for request in read] == ["HEAD", "GET"]
    assert read[1].range is not None


def test_uv_reads_no_wheel_where_its_metadata_lies_beside_it(lock: Callable[..., Any]) -> None:
    with serve(published([ROCM]), metadata_files=True) as index:
        packages = lock(index, ["torch==2.7.1+rocm6.3"], [TORCH_PAGE, TRITON_PAGE])
        assert packages["torch"]["version"] == "2.7.1+rocm6.3"
        assert not [request for request in index.requests if request.path.endswith(".whl")]


def test_uv_downloads_a_wheel_to_lock_it_where_the_page_has_no_hash(
    lock: Callable[..., Any],
) -> None:
    wheel = TinyWheel("a", "1", hashed=False)
    with serve({"simple": [wheel]}) as index:
        packages = lock(index, ["a"])
        wheels = [request for request in index.requests if request.path.endswith(".whl")]
    assert packages["a"]["wheels"][0]["hashes"] == {"sha256": wheel.sha256}
    assert Request("GET", "/simple/a-1-py3-none-any.whl") in wheels


def test_uv_does_not_find_triton_for_rocm_on_the_page_of_torch(lock: Callable[..., Any]) -> None:
    with serve(published([ROCM])) as index:
        message = lock(index, ["torch==2.7.1+rocm6.3"], [TORCH_PAGE])
    assert message.startswith("error: No solution found when resolving dependencies")
    assert "there is no version of pytorch-triton-rocm" in message


def test_uv_installs_a_wheel(install: Uv, tmp_path: Path) -> None:
    with serve(TWO) as index:
        done = install(index, SMALL_PIN)
        assert (done.returncode, done.stderr) == (0, "")
        assert {request.path for request in index.requests} == {
            "/simple/small-thing/", SMALL_PATH,
        }  # fmt: skip
    assert (tmp_path / "target/small/__init__.py").read_text() == "VALUE = 1\n"
    assert (tmp_path / "target/small_thing-1.0.dist-info/METADATA").is_file()


# The start of what uv says, and what more it must tell to be understood.
@pytest.mark.parametrize(
    ("where", "fault", "start", "reason"),
    [
        ("small-thing", Truncated(), "error: Failed to download `small-thing==1.0`",
         "end of file before message length reached"),
        ("small-thing", ChangedBytes(), "error: Failed to download `small-thing==1.0`",
         "Hash mismatch for `small-thing==1.0`"),
        ("small-thing", NotFound(), "error: Failed to download `small-thing==1.0`",
         "404 Not Found"),
        ("small-thing", TooMany(), "error: Failed to download `small-thing==1.0`",
         "429 Too Many Requests"),
        ("small-thing", Stalled(), "error: Failed to download `small-thing==1.0`",
         "Try increasing UV_HTTP_TIMEOUT (current value: 1s)"),
        ("small-thing", Unauthorized("me", "secret"),
         "error: Failed to download `small-thing==1.0`", "401 Unauthorized"),
        ("/simple/small-thing/", Truncated(), "error: Failed to fetch: {page}",
         "end of file before message length reached"),
        ("/simple/small-thing/", NotFound(),
         "error: No solution found when resolving dependencies",
         "small-thing was not found in the package registry"),
        ("/simple/small-thing/", TooMany(), "error: Failed to fetch: {page}",
         "429 Too Many Requests"),
        ("/simple/small-thing/", Stalled(), "error: Failed to fetch: {page}",
         "operation timed out"),
        ("/simple/small-thing/", Unauthorized("me", "secret"),
         "error: No solution found when resolving dependencies", "401 Unauthorized"),
    ],
)  # fmt: skip
def test_uv_fails_and_says_why(
    install: Uv,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fault: Fault,
    start: str,
    reason: str,
) -> None:
    if isinstance(fault, Stalled):
        monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    with serve(TWO) as index, index.fault(where, fault) as planted:
        started = time.monotonic()
        done = install(index, SMALL_PIN)
        assert time.monotonic() - started < 10
        assert done.returncode in (1, 2)
        page = index.url("simple/small-thing/")
        assert said(done).startswith(start.format(page=page)), done.stderr
        assert reason in said(done)
        assert planted.hits > 0
    assert not (tmp_path / "target/small").exists()


@pytest.mark.parametrize("where", ["small-thing", "/simple/small-thing/"])
def test_uv_comes_back_after_too_many_requests(
    install: Uv, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "3")
    with serve(TWO) as index, index.fault(where, TooMany()) as planted:
        done = install(index, SMALL_PIN)
        assert (done.returncode, done.stderr, planted.hits) == (0, "", 1)


def test_uv_gets_over_one_cut_download(install: Uv, tmp_path: Path) -> None:
    with serve(TWO) as index, index.fault("small-thing", Truncated(times=1)) as planted:
        done = install(index, SMALL_PIN)
        assert (done.returncode, planted.hits) == (0, 1)
    assert (tmp_path / "target/small/__init__.py").read_text() == "VALUE = 1\n"


def test_uv_gives_the_credentials_of_the_address(uv: Uv, tmp_path: Path) -> None:
    wanted = Unauthorized("me", "secret")
    with serve(TWO) as index, index.fault("/simple/*", wanted) as planted:
        address = index.url().replace("//", "//me:secret@")
        target = str(tmp_path / "target")
        done = uv("pip", "install", "--target", target, "--index-url", address, "small-thing")
        assert (done.returncode, planted.hits) == (0, 0)
        assert {request.authorization for request in index.requests} == {wanted.authorization}


@pytest.mark.parametrize(
    ("where", "fault", "start", "reason"),
    [
        ("torch", Truncated(), "error: Failed to unzip wheel: torch-2.7.1+rocm6.3-",
         "end of file before message length reached"),
        ("torch", NotFound(), "error: Failed to fetch: {root}whl/rocm6.3/torch-2.7.1%2Brocm6.3-",
         "404 Not Found"),
        (f"/{TORCH_PAGE}", NotFound(), "error: Failed to read `--find-links` URL: {root}whl/",
         "404 Not Found"),
        (f"/{TORCH_PAGE}", Truncated(), "error: Failed to read `--find-links` URL: {root}whl/",
         "end of file before message length reached"),
        ("/simple/filelock/", NotFound(), "error: No solution found when resolving dependencies",
         "filelock was not found in the package registry"),
    ],
)  # fmt: skip
def test_uv_does_not_lock_what_it_cannot_read(
    lock: Callable[..., Any], where: str, fault: Fault, start: str, reason: str
) -> None:
    with serve(published([ROCM])) as index, index.fault(where, fault):
        message = lock(index, ["torch==2.7.1+rocm6.3"], [TORCH_PAGE, TRITON_PAGE])
        assert message.startswith(start.format(root=index.url(""))), message
        assert reason in message


# --- what the real world has published ---------------------------------------------------------

PUBLISHED: list[tuple[Row, dict[str, str]]] = [
    (("2.1.2", "cu118", "2.18.1"),
     {"nvidia-cuda-runtime-cu11": "11.8.89", "nvidia-nccl-cu11": "2.18.1",
      "nvidia-cudnn-cu11": "8.7.0.84", "triton": "2.1.0"}),
    (("2.4.1", "cu121", "2.20.5"),
     {"nvidia-cuda-runtime-cu12": "12.1.105", "nvidia-nccl-cu12": "2.20.5",
      "nvidia-cudnn-cu12": "9.1.0.70", "triton": "3.0.0"}),
    (("2.9.1", "cu130", "2.27.7"),
     {"nvidia-cuda-runtime": "13.0.48", "nvidia-nccl-cu13": "2.27.7",
      "nvidia-cudnn-cu13": "9.13.0.50", "triton": "3.5.1"}),
    (("2.12.0", "cu126", "2.29.3"),
     {"nvidia-cuda-runtime-cu12": "12.6.77", "nvidia-nccl-cu12": "2.29.3",
      "nvidia-cudnn-cu12": "9.10.2.21", "cuda-toolkit": "12.6.3", "triton": "3.7.0",
      "setuptools": "84.2.1"}),
    (("2.15.0", "cu132", "2.30.7"),
     {"nvidia-cuda-runtime": "13.2.86", "nvidia-nccl-cu13": "2.30.7",
      "nvidia-cudnn-cu13": "9.26.0.51", "cuda-toolkit": "13.2.2", "triton": "3.9.0",
      "setuptools": "84.2.1"}),
    (("2.9.1", "rocm6.4", None), {"pytorch-triton-rocm": "3.5.1"}),
    (("2.10.0", "rocm7.1", None), {"triton-rocm": "3.6.0"}),
    (("2.14.0", "rocm7.14", None), {"triton-rocm": "3.8.0", "setuptools": "84.2.1"}),
    (("2.13.0", "cpu", None), {"setuptools": "84.2.1"}),
]  # fmt: skip
SHARED = {"filelock": "4.3.1", "typing-extensions": "4.16.0"}


def versions(packages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: package["version"] for name, package in packages.items()}


@pytest.mark.parametrize(("row", "expected"), PUBLISHED)
def test_uv_finds_what_a_torch_of_a_line_requires(
    lock: Callable[..., Any], row: Row, expected: dict[str, str]
) -> None:
    torch, line, _ = row
    pages = [f"whl/{line}/torch/"]
    pages += [f"whl/{line}/{name}/" for name in expected if name.endswith("triton-rocm")]
    pages += [f"whl/{line}/{name}/" for name in expected if name == "triton-rocm"]
    with serve(published([row])) as index:
        packages = lock(index, [f"torch=={torch}+{line}"], pages)
    assert versions(packages) == {"torch": f"{torch}+{line}"} | SHARED | expected


@pytest.mark.parametrize(("row", "expected"), [PUBLISHED[1], PUBLISHED[4]])
def test_the_default_index_has_the_torch_of_its_line_without_a_local_version(
    lock: Callable[..., Any], row: Row, expected: dict[str, str]
) -> None:
    with serve(published([row])) as index:
        packages = lock(index, [f"torch=={row[0]}"])
    assert versions(packages) == {"torch": row[0]} | SHARED | expected


def test_torch_for_aarch64_needs_no_cuda_before_the_default_one_had_it(
    lock: Callable[..., Any],
) -> None:
    old, new = PUBLISHED[1][0], PUBLISHED[4][0]
    with serve(published([old, new], machines=["x86_64", "aarch64"])) as index:
        before = versions(lock(index, ["torch==2.4.1"], machine="aarch64"))
        after = versions(lock(index, ["torch==2.15.0"], machine="aarch64"))
    assert before == {"torch": "2.4.1"} | SHARED
    assert after == {"torch": "2.15.0"} | SHARED | PUBLISHED[4][1]


def test_torchvision_and_torchaudio_fit_their_torch(lock: Callable[..., Any]) -> None:
    with serve(published([ROCM])) as index:
        pages = [TORCH_PAGE, TRITON_PAGE, "whl/rocm6.3/torchvision/", "whl/rocm6.3/torchaudio/"]
        packages = versions(lock(index, ["torchvision", "torchaudio"], pages))
    assert packages["torchvision"] == "0.22.1+rocm6.3"
    assert packages["torchaudio"] == packages["torch"] == "2.7.1+rocm6.3"


def test_numpy_is_there_for_old_torch_and_new(lock: Callable[..., Any]) -> None:
    with serve(published([ROCM])) as index:
        assert versions(lock(index, ["numpy<2"])) == {"numpy": "1.26.4"}
        assert versions(lock(index, ["numpy"])) == {"numpy": "2.4.6"}


def files(indexes: Mapping[str, Iterable[TinyWheel]], folder: str, name: str) -> list[str]:
    return [wheel.file for wheel in indexes[folder] if wheel.name == name]


def test_wheels_are_made_for_the_pythons_and_machines_asked_for_that_have_them() -> None:
    rows: list[Row] = [("2.4.1", "cu121", "2.20.5"), ("2.15.0", "cu132", "2.30.7"), ROCM]
    found = published(
        rows, pythons=["3.10", "3.11", "3.12", "3.13"], machines=["x86_64", "aarch64"]
    )
    assert files(found, "whl/cu121", "torch") == [
        f"torch-2.4.1+cu121-cp3{minor}-cp3{minor}-linux_x86_64.whl" for minor in (10, 11, 12)
    ]
    assert files(found, "whl/cu132", "torch") == [
        f"torch-2.15.0+cu132-cp3{minor}-cp3{minor}-manylinux_2_28_{machine}.whl"
        for machine in ("x86_64", "aarch64")
        for minor in (11, 12, 13)
    ]
    assert files(found, "whl/rocm6.3", "torch") == [
        f"torch-2.7.1+rocm6.3-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl"
        for minor in (10, 11, 12, 13)
    ]
    assert "torch-2.4.1-cp310-cp310-manylinux1_x86_64.whl" in files(found, "simple", "torch")
    assert files(found, "simple", "pytorch-triton-rocm") == []


def test_cpu_wheels_for_aarch64_had_no_local_version_once() -> None:
    rows: list[Row] = [("2.5.1", "cpu", None), ("2.6.0", "cpu", None)]
    assert files(published(rows, machines=["aarch64"]), "whl/cpu", "torch") == [
        "torch-2.5.1-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "torch-2.6.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
    ]


@pytest.mark.parametrize(
    ("line", "version", "platforms"),
    [
        ("cu118", "2.21.5", ["manylinux2014_x86_64"]),
        ("cu121", "2.19.3", ["manylinux1_x86_64"]),
        ("cu121", "2.20.5", ["manylinux2014_x86_64", "manylinux2014_aarch64"]),
        ("cu124", "2.21.5", ["manylinux2014_x86_64"]),
        ("cu126", "2.26.2.post1", ["manylinux2014_x86_64", "manylinux2014_aarch64"]),
        ("cu130", "2.28.9", ["manylinux_2_18_x86_64", "manylinux_2_18_aarch64"]),
        ("cu132", "2.32.3", ["manylinux_2_27_x86_64", "manylinux_2_27_aarch64"]),
    ],
)
def test_nccl_has_the_tags_that_it_was_published_with(
    line: str, version: str, platforms: list[str]
) -> None:
    wheels = nccl_wheels(line, version, ["x86_64", "aarch64"])
    assert [wheel.tag for wheel in wheels] == [f"py3-none-{platform}" for platform in platforms]
    assert {wheel.name for wheel in wheels} == {f"nvidia-nccl-{line[:4]}"}


def test_every_line_and_torch_can_be_published_together() -> None:
    """The rows of the table of variants; a wheel that two of them share is served once."""
    cuda = {
        "2.1.2": "cu118 cu121", "2.2.2": "cu118 cu121", "2.3.1": "cu118 cu121",
        "2.4.1": "cu118 cu121 cu124", "2.5.1": "cu118 cu121 cu124", "2.6.0": "cu118 cu124 cu126",
        "2.7.1": "cu118 cu126 cu128", "2.8.0": "cu126 cu128 cu129", "2.9.1": "cu126 cu128 cu130",
        "2.10.0": "cu126 cu128 cu130", "2.11.0": "cu126 cu128 cu130",
        "2.12.1": "cu126 cu130 cu132", "2.13.0": "cu126 cu130 cu132",
        "2.14.1": "cu126 cu130 cu132", "2.15.0": "cu126 cu130 cu132",
    }  # fmt: skip
    rows: list[Row] = [
        (torch, line, "2.30.7") for torch, lines in cuda.items() for line in lines.split()
    ]
    rows += [(torch, line, None) for torch in cuda for line in ("cpu", "rocm7.14")]
    found = published(
        rows, pythons=["3.10", "3.11", "3.12", "3.13"], machines=["x86_64", "aarch64"]
    )
    with serve(found) as index:
        assert all(status(index, f"/{folder}/torch/") == 200 for folder in found)
    for folder, wheels in found.items():
        assert len({wheel.file for wheel in wheels}) == len(wheels), folder


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("3.0.0", "cpu", None), "torch 3.0.0 is not known here"),
        (("2.4", "cpu", None), "torch 2.4 is not known here"),
        (("2.4.1", "cuda121", "2.20.5"), "cuda121 is no line"),
        (("2.4.1", "cu121", None), "cu121: NCCL is None"),
        (("2.4.1", "rocm6.1", "2.20.5"), "rocm6.1: NCCL is 2.20.5"),
        (("2.4.1", "cu132", "2.20.5"), "torch 2.4.1 was not published for cu132"),
    ],
)
def test_a_row_that_never_was_is_refused(row: Row, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        published([row])


def test_one_torch_of_a_line_cannot_pin_two_nccls() -> None:
    rows: list[Row] = [("2.4.1", "cu121", "2.20.5"), ("2.4.1", "cu121", "2.21.5")]
    with pytest.raises(ValueError, match="has one NCCL"):
        published(rows)
