"""registry.py: references, whether a registry answers, and what a failed push or pull means."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from gpucomm import registry
from gpucomm.errors import GpucommError, Unusable, WorkFailed, WrongInput
from gpucomm.registry import Reachable

REFERENCE = "registry.example:5000/team/gpucomm:cu121"


@pytest.mark.parametrize(
    ("reference", "host"),
    [
        ("debian:bookworm", "docker.io"),
        ("library/debian", "docker.io"),
        ("docker.io/library/debian:bookworm-slim", "docker.io"),
        ("registry.example/team/name:tag", "registry.example"),
        ("registry.example:5000/name", "registry.example:5000"),
        ("localhost/name", "localhost"),
        ("localhost:5000/name", "localhost:5000"),
        ("127.0.0.1:5000/name@sha256:ab", "127.0.0.1:5000"),
        ("registry.example:5000", "docker.io"),
    ],
)
def test_host_of(reference: str, host: str) -> None:
    assert registry.host_of(reference) == host


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1:5000/gpucomm",
        "registry.example/team/gpucomm",
        "localhost/gpucomm",
        "registry.example:443/a/b/c-d_e.f__g",
    ],
)
def test_a_right_name_is_kept(name: str) -> None:
    assert registry.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "gpucomm",
        "",
        "registry.example/Team/gpucomm",
        "registry.example/gpucomm:tag",
        "registry.example/gpucomm@sha256:ab",
        "https://registry.example/gpucomm",
        "registry.example:/gpucomm",
        "registry.example/gpucomm/",
        "registry.example//gpucomm",
        "registry.example/gpu comm",
        "registry.example/gpucomm\n",
        "registry.example/-x",
    ],
)
def test_a_wrong_name_is_wrong_input(name: str) -> None:
    with pytest.raises(WrongInput, match=r"is not host\[:port\]/name") as caught:
        registry.check_name(name)
    assert caught.value.exit_code == 2


# ---------------------------------------------------------------- whether one answers


@contextmanager
def http_registry(status: int) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server on loopback that gives `status`; yields host:port and the asked paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def talking(answer: bytes) -> Iterator[str]:
    """A server on loopback that answers anything with `answer`; yields host:port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("status", [200, 401, 403, 404, 500])
def test_any_http_answer_is_an_answer(status: int, bare_env: pytest.MonkeyPatch) -> None:
    with http_registry(status) as (host, asked):
        assert registry.reachable(f"{host}/gpucomm:tag") == Reachable(ok=True)
    assert asked == ["/v2/"]


def test_a_closed_port_is_no_answer(bare_env: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
    found = registry.reachable(f"{host}/gpucomm")
    assert not found.ok
    assert found.reason.startswith(f"registry {host} cannot be reached (")
    assert "refused" in found.reason


def test_a_silent_registry_is_no_answer(bare_env: pytest.MonkeyPatch) -> None:
    bare_env.setattr(registry, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = registry.reachable(f"127.0.0.1:{server.getsockname()[1]}/gpucomm")
    assert not found.ok
    assert "timed out" in found.reason


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-server\r\n", b"\x15\x03\x01\x00\x02\x02\n"],
    ids=["nothing", "ssh", "tls-alert"],
)
def test_something_that_is_no_registry_gives_an_answer_not_a_traceback(
    answer: bytes, bare_env: pytest.MonkeyPatch
) -> None:
    with talking(answer) as host:
        assert isinstance(registry.reachable(f"{host}/gpucomm"), Reachable)


# ---------------------------------------------------------------- push and pull

PUSHED: list[Mapping[str, Any]] = [
    {"status": "The push refers to repository [registry.example/gpucomm]"},
    {"status": "Pushing", "progressDetail": {"current": 5}, "id": "aa"},
    {"status": "cu121: digest: sha256:aa size: 528"},
    {"progressDetail": {}, "aux": {"Tag": "cu121", "Digest": "sha256:aa", "Size": 528}},
]


def test_a_push_ends_with_the_digest_that_the_registry_has() -> None:
    assert registry.pushed_digest(PUSHED, REFERENCE) == "sha256:aa"
    after = [*PUSHED, {"aux": None}, {"aux": {}}, {"status": "done"}]
    assert registry.pushed_digest(after, REFERENCE) == "sha256:aa"


def test_the_containerd_store_tells_the_digest_in_a_status_line() -> None:
    digest = f"sha256:{'ab' * 32}"
    told = [{"status": f"cu121: digest: {digest} size: 667"}, {"status": "Pushed"}]
    assert registry.pushed_digest([*PUSHED[:2], *told], REFERENCE) == digest


def test_a_push_without_a_digest_failed() -> None:
    for events in ([], PUSHED[:3], [{"aux": None}]):
        with pytest.raises(WorkFailed, match="confirmed no digest"):
            registry.pushed_digest(events, REFERENCE)


def test_an_error_in_the_middle_of_a_push_is_a_failure_though_the_stream_goes_on() -> None:
    error = {"errorDetail": {"message": "unexpected EOF"}, "error": "unexpected EOF"}
    for at in range(len(PUSHED) + 1):
        events = [*PUSHED[:at], error, *PUSHED[at:]]
        with pytest.raises(WorkFailed) as caught:
            registry.pushed_digest(events, REFERENCE)
        assert str(caught.value) == f"push {REFERENCE}: unexpected EOF"


HOST = "registry.example:5000"


@pytest.mark.parametrize(
    ("verb", "message", "kind", "advice"),
    [
        ("push", "dial tcp 127.0.0.1:5000: connect: connection refused", Unusable, "REGISTRY="),
        ("pull", "lookup registry.example: no such host", Unusable, "REGISTRY="),
        ("pull", "dial tcp: i/o timeout", Unusable, "REGISTRY="),
        ("lock", "net/http: TLS handshake timeout", Unusable, "the network"),
        ("push", "Context deadline exceeded", Unusable, "REGISTRY="),
        ("pull", 'Head "https://r/v2/": x509: unknown authority', Unusable, "REGISTRY="),
        ("push", "lookup r on [::1]:53: server misbehaving", Unusable, "REGISTRY="),
        ("push", 'failed to do request: Put "https://r/v2/x": EOF', WorkFailed, "EOF"),
        ("push", "read tcp: connection reset by peer", WorkFailed, "reset"),
        ("push", "unauthorized: authentication required", WorkFailed, f"docker login {HOST}"),
        ("push", "denied: requested access is denied", WorkFailed, f"docker login {HOST}"),
        ("push", "no basic auth credentials", WorkFailed, f"docker login {HOST}"),
        ("pull", "manifest unknown", WorkFailed, "make build TARGET=cu121"),
        ("pull", f"{REFERENCE}: not found", WorkFailed, "make build TARGET=cu121"),
        ("pull", "name unknown: repository", WorkFailed, "make build TARGET=cu121"),
        ("pull", "content at https://r/v2/x/blobs/sha256:aa not found", WorkFailed, "/blobs/"),
        ("pull", "could not fetch content descriptor aa: not found", WorkFailed, "descriptor"),
        ("push", "name unknown: repository", WorkFailed, "name unknown"),
        ("push", "received unexpected HTTP status: 500", WorkFailed, "status: 500"),
    ],
)
def test_a_failure_has_its_class_and_its_advice(
    verb: str, message: str, kind: type[GpucommError], advice: str
) -> None:
    error = registry.failure(REFERENCE, message, verb)
    assert type(error) is kind
    assert error.exit_code == {Unusable: 3, WorkFailed: 1}[kind]
    (fault,) = error.faults
    assert advice in fault
    assert REFERENCE in fault


SIGNED = "https://cdn.example/blobs/sha256/aa/data?X-Amz-Signature=secret&X-Amz-Date=1"


@pytest.mark.parametrize("verb", ["push", "pull", "lock"])
@pytest.mark.parametrize(
    "message",
    [
        f'failed to copy: httpReadSeeker: Get "{SIGNED}": EOF',
        f'Get "{SIGNED}": dial tcp: lookup cdn.example: no such host',
        f"denied: {SIGNED}",
        f"{SIGNED}\n{SIGNED}, {SIGNED}",
    ],
)
def test_no_query_of_a_url_is_printed(message: str, verb: str) -> None:
    (fault,) = registry.failure(REFERENCE, message, verb).faults
    assert "secret" not in fault
    assert "X-Amz" not in fault
    assert "https://cdn.example/blobs/sha256/aa/data" in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    "cause", ["EOF", "no such host", "unauthorized", "x509: certificate of an unknown authority"]
)
def test_a_long_message_is_cut_in_its_middle(cause: str) -> None:
    message = f"failed to do request: {'very ' * 400}long: {cause}"
    (fault,) = registry.failure(REFERENCE, message, "push").faults
    assert len(fault) <= 300
    assert fault.startswith(f"push {REFERENCE}: ")
    assert "failed to do request" in fault
    assert cause in fault
    assert "…" in fault


def test_what_is_cut_out_still_decides_the_class() -> None:
    message = f"{'x' * 400} connection refused {'y' * 400}"
    assert type(registry.failure(REFERENCE, message, "push")) is Unusable


class Images:
    """The part of the docker client that push and pull use."""

    def __init__(self, answer: Any, events: Sequence[Mapping[str, Any]] = ()) -> None:
        self._answer = answer
        self._events = events
        self.images = self.api = self
        self.asked: list[str] = []

    def push(self, repository: str, *, tag: str, stream: bool, decode: bool) -> Any:
        assert stream
        assert decode
        return self._give(f"{repository}:{tag}")

    def pull(self, repository: str, *, tag: str, stream: bool, decode: bool) -> Any:
        assert stream
        assert decode
        yield from self._events

    def get(self, reference: str) -> Any:
        return self._give(reference)

    def _give(self, reference: str) -> Any:
        self.asked.append(reference)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Pulled:
    id = "sha256:aa"


def client(answer: Any) -> Any:
    return Images(answer)


def test_push_and_pull_give_digests() -> None:
    pushing, pulling = client(PUSHED), client(Pulled())
    assert registry.push(pushing, "registry.example:5000/team/gpucomm", "cu121") == "sha256:aa"
    assert registry.pull(pulling, "registry.example:5000/team/gpucomm", "cu121") == "sha256:aa"
    assert pushing.asked == pulling.asked == [REFERENCE]


def test_an_error_in_the_middle_of_a_pull_is_a_failure_though_an_image_is_there() -> None:
    events = [{"status": "Downloading"}, {"error": "unexpected EOF"}, {"status": "Downloading"}]
    with pytest.raises(WorkFailed) as caught:
        registry.pull(Images(Pulled(), events), "registry.example:5000/team/gpucomm", "cu121")  # type: ignore[arg-type]
    assert str(caught.value) == f"pull {REFERENCE}: unexpected EOF"


def test_an_error_of_the_engine_has_the_class_of_its_message() -> None:
    refused = APIError("x", explanation="connection refused")
    absent = ImageNotFound("x", explanation="manifest unknown")
    with pytest.raises(Unusable):
        registry.push(client(refused), "registry.example/gpucomm", "cu121")
    with pytest.raises(Unusable):
        registry.pull(client(refused), "registry.example/gpucomm", "cu121")
    with pytest.raises(WorkFailed, match="is not published"):
        registry.pull(client(absent), "registry.example/gpucomm", "cu121")
