"""`gpucomm push` and `pull`, the lock and the base, against a real registry on loopback."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import select
import socket
import socketserver
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from gpucomm import bake, base, build, lock, registry, resolve
from gpucomm.buildsecrets import BuildSecrets
from gpucomm.errors import WorkFailed
from gpucomm.lock import Lock
from gpucomm.schema import System

if TYPE_CHECKING:
    from tests.engine.conftest import Checkout, LoopbackRegistry

pytestmark = pytest.mark.engine

EXIT_CODE = 7  # of the program in every image here


# ---------------------------------------------------------------- push


def test_a_push_sends_the_verified_image_byte_for_byte_under_every_tag(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    digest = checkout.build(f"{checkout.token} pushed")
    lines = [f"pushed {checkout.project.repository}:{tag}@{digest}" for tag in checkout.tags]
    for _ in ("first", "again"):
        done = checkout.gpucomm("push", checkout.tags[-1])
        assert (done.code, done.out, done.err) == (0, lines, [])
        # The sums of what the registry gives, taken here, and what buildx reads there.
        assert loopback_registry.digests(checkout.name) == dict.fromkeys(checkout.tags, digest)
    assert len(checkout.tags) > 1
    for tag in checkout.tags:
        assert registry.digest_of(f"{checkout.project.repository}:{tag}") == digest
    manifest = json.loads(loopback_registry.manifest(checkout.name, checkout.cell.id) or b"")
    parts = [manifest["config"], *manifest["layers"]]
    assert [part["mediaType"].rpartition("+")[2] for part in parts] == ["json", "zstd", "zstd"]
    for part in parts:
        assert len(loopback_registry.blob(checkout.name, part["digest"])) == part["size"]


def test_an_image_that_is_not_verified_is_not_sent(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    def refused(target: str, reason: str) -> None:
        done = checkout.gpucomm("push", target)
        assert (done.code, done.out) == (1, [])
        (line,) = done.err
        assert reason in line
        assert "make build TARGET=" in line
        assert loopback_registry.repositories() == []

    refused(checkout.cell.id, f"{checkout.cell.id} is not here")
    checkout.build(f"{checkout.token} unverified", verified=False)
    refused(checkout.cell.id, "is not verified")
    checkout.build(f"{checkout.token} verified")
    # One of two targets: all are checked before the first byte is sent.
    refused(f"{checkout.cell.id},{checkout.other.id}", f"{checkout.other.id} is not here")
    # The record belongs to the tests that passed, and to that very image.
    with (checkout.project.places.image_tests / "test_torch.py").open("a") as stream:
        stream.write("\n")
    refused(checkout.cell.id, "is not verified")


# ---------------------------------------------------------------- pull


def test_an_image_that_was_pushed_and_removed_comes_back_and_runs(checkout: Checkout) -> None:
    says = f"{checkout.token} here again"
    digest = checkout.build(says)
    assert checkout.gpucomm("push", checkout.cell.id).code == 0
    names = [f"{checkout.project.repository}:{tag}" for tag in checkout.tags]
    subprocess.run(["docker", "image", "rm", *names], capture_output=True, check=True)
    assert checkout.local() == {}
    assert build.image_of(checkout.client, digest) is None
    assert checkout.gpucomm("run", checkout.cell.id).code == 1

    done = checkout.gpucomm("pull", checkout.tags[-1])
    assert (done.code, done.err) == (0, [])
    assert done.out == [f"pulled {names[0]}@{digest}"]
    assert checkout.local() == dict.fromkeys(checkout.tags, digest)
    for name in names:
        assert checkout.run(name) == (says, EXIT_CODE)
    done = checkout.gpucomm("run", checkout.tags[-1])
    assert (done.code, done.out) == (EXIT_CODE, [says])


def test_an_image_that_this_engine_never_had_is_pulled_whole(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    says = f"{checkout.token} from elsewhere"
    digest = loopback_registry.publish(checkout.name, checkout.cell.id, says)
    # The aliases are the matrix's, whatever the registry has under these names.
    for alias in checkout.tags[1:]:
        loopback_registry.publish(checkout.name, alias, f"{checkout.token} of yesterday")
    assert checkout.gpucomm("pull", checkout.cell.id).code == 0
    assert loopback_registry.asked("GET", f"{checkout.name}/blobs/") == 2
    assert checkout.local() == dict.fromkeys(checkout.tags, digest)
    assert checkout.run(digest) == (says, EXIT_CODE)
    # Pulled is not verified here.
    done = checkout.gpucomm("push", checkout.cell.id)
    assert (done.code, len(done.err)) == (1, 1)
    assert "is not verified" in done.err[0]


def test_a_pull_of_something_not_published_says_so_and_takes_the_rest(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    absent = f"{checkout.project.reference(checkout.other)} is not published"
    line = f"gpucomm: {absent}; build it: make build TARGET={checkout.other.id}"
    done = checkout.gpucomm("pull", checkout.other.id)
    assert (done.code, done.out, done.err) == (1, [], [line])
    digest = loopback_registry.publish(checkout.name, checkout.cell.id, f"{checkout.token} alone")
    done = checkout.gpucomm("pull", f"{checkout.other.id},{checkout.cell.id}")
    assert (done.code, done.err) == (1, [line])
    assert done.out == [f"pulled {checkout.project.reference(checkout.cell)}@{digest}"]
    assert checkout.local() == dict.fromkeys(checkout.tags, digest)


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_a_pull_that_breaks_off_is_a_failure_and_moves_no_tag(
    damage: str, checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    old = checkout.build(f"{checkout.token} old")
    assert checkout.gpucomm("push", checkout.cell.id).code == 0
    new = loopback_registry.publish(checkout.name, checkout.cell.id, f"{checkout.token} new")
    manifest = json.loads(loopback_registry.manifest(checkout.name, checkout.cell.id) or b"")
    blob = blob_file(loopback_registry, manifest["layers"][0]["digest"])
    right = blob.read_bytes()
    if damage == "gone":
        blob.unlink()
    else:
        blob.write_bytes(bytes(len(right)))
    done = checkout.gpucomm("pull", checkout.cell.id)
    assert (done.code, done.out, len(done.err)) == (1, [], 1)
    assert done.err[0].startswith(f"gpucomm: pull {checkout.project.reference(checkout.cell)}: ")
    assert checkout.local() == dict.fromkeys(checkout.tags, old)
    blob.write_bytes(right)
    assert checkout.gpucomm("pull", checkout.cell.id).code == 0
    assert checkout.local() == dict.fromkeys(checkout.tags, new)
    assert checkout.run(new) == (f"{checkout.token} new", EXIT_CODE)


# ---------------------------------------------------------------- a registry that fails


def blob_file(running: LoopbackRegistry, digest: str) -> Path:
    """Where the registry keeps the bytes of a blob."""
    value = digest.removeprefix("sha256:")
    return running.storage / "blobs" / "sha256" / value[:2] / value / "data"


@contextlib.contextmanager
def failing_registry(how: str) -> Iterator[str]:
    """A registry that has nothing and fails when a blob is sent; yields host:port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            # The engine tries TLS first and takes an HTTP answer as "speak plainly".
            if self.connection.recv(1, socket.MSG_PEEK) == b"\x16":
                self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            else:
                with contextlib.suppress(ConnectionError):
                    super().handle()

        def answer(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": "0"}).items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            self.answer(200)

        def do_HEAD(self) -> None:
            self.answer(404)

        def do_POST(self) -> None:
            self.answer(202, Location=f"{self.path}one")

        def do_PUT(self) -> None:
            self.close_connection = True
            self.rfile.read(10)
            if how == "status 500":
                self.answer(500)
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def under(checkout: Checkout, host: str) -> str:
    """The repository of the same name at `host`, with the cell's image tagged there too."""
    repository = f"{host}/{checkout.name}"
    image = checkout.client.images.get(checkout.project.reference(checkout.cell))
    image.tag(repository, checkout.cell.id)
    return repository


@pytest.mark.parametrize("how", ["status 500", "closed"])
def test_a_registry_that_fails_in_the_middle_is_a_failed_push(how: str, checkout: Checkout) -> None:
    checkout.build(f"{checkout.token} cut off")
    with failing_registry(how) as host:
        repository = under(checkout, host)
        done = checkout.gpucomm("push", checkout.cell.id, repository=repository)
    assert (done.code, done.out) == (1, [])
    (line,) = done.err
    assert line.startswith(f"gpucomm: push {repository}:{checkout.cell.id}: ")
    # How a cut connection is called depends on who was writing when it was cut.
    cut = ("EOF", "broken pipe", "connection reset")
    assert any(word in line for word in (("500",) if how == "status 500" else cut)), line


@pytest.mark.parametrize("where", ["layer", "alias"])
def test_a_second_push_finishes_what_a_broken_one_began(
    where: str, checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    old = checkout.build(f"{checkout.token} old")
    assert checkout.gpucomm("push", checkout.cell.id).code == 0
    new = checkout.build(f"{checkout.token} new")
    # A file where the registry wants a folder: it answers 500.
    if where == "layer":
        broken = blob_file(loopback_registry, checkout.layers()[-1]).parent
    else:
        folder = loopback_registry.storage / "repositories" / checkout.name / "_manifests" / "tags"
        broken = folder / checkout.tags[-1]
        broken.rename(broken.with_name("aside"))
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_text("in the way")
    before = loopback_registry.asked("PUT", f"{checkout.name}/blobs/uploads/")
    done = checkout.gpucomm("push", checkout.cell.id)
    assert loopback_registry.asked("PUT", f"{checkout.name}/blobs/uploads/") > before
    sent = checkout.tags[:-1] if where == "alias" else ()
    assert done.code == 1
    assert done.out == [f"pushed {checkout.project.repository}:{tag}@{new}" for tag in sent]
    (line,) = done.err
    assert "500" in line
    broken.unlink()
    if where == "alias":
        broken.with_name("aside").rename(broken)
    expected = {tag: new if tag in sent else old for tag in checkout.tags}
    assert loopback_registry.digests(checkout.name) == expected
    assert checkout.gpucomm("push", checkout.cell.id).code == 0
    assert loopback_registry.digests(checkout.name) == dict.fromkeys(checkout.tags, new)


def test_a_registry_that_cannot_be_reached_is_no_failed_work(checkout: Checkout) -> None:
    checkout.build(f"{checkout.token} nowhere")
    with socket.socket() as closed:  # bound and not listening: the port is refused and kept
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        repository = under(checkout, host)
        for verb in ("push", "pull"):
            done = checkout.gpucomm(verb, checkout.cell.id, repository=repository)
            assert (done.code, done.out) == (3, [])
            (line,) = done.err
            reference = f"{repository}:{checkout.cell.id}"
            assert line.startswith(f"gpucomm: {verb} {reference}: registry {host} cannot be")
            assert "connection refused" in line
            assert "REGISTRY=" in line


# ---------------------------------------------------------------- the base


def with_base(checkout: Checkout, image: str) -> System:
    """The system of the checkout's cell with `image` as its base."""
    system = checkout.project.matrix.systems[checkout.cell.os]
    return system.model_copy(update={"image": image, "base": "auto"})


def test_the_lock_takes_the_digest_that_the_registry_has(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    name = f"{checkout.name}/base"
    digest = loopback_registry.publish(name, "stable", f"{checkout.token} base")
    image = f"{loopback_registry.host}/{name}:stable"
    said: list[str] = []

    def digests(locked: Lock, *, upgrade: bool = False, of: str = image) -> dict[str, str]:
        return resolve.base_digests([of], locked, said.append, upgrade=upgrade)

    assert digests(lock.EMPTY) == {image: digest}

    # What was locked is kept, until an upgrade is asked for.
    newer = loopback_registry.publish(name, "stable", f"{checkout.token} newer base")
    locked = Lock(cells={}, tools={}, bases={image: digest})
    assert digests(locked) == {image: digest}
    assert digests(locked, upgrade=True) == {image: newer} != {image: digest}
    assert said == []

    # A tag that is not there is no reason to bootstrap.
    with pytest.raises(WorkFailed, match="not found"):
        digests(lock.EMPTY, of=f"{loopback_registry.host}/{name}:absent")

    loopback_registry.stop()
    assert digests(locked, upgrade=True) == {image: digest}
    assert digests(lock.EMPTY) == {}
    assert len(said) == 2
    assert all(f"{loopback_registry.host} cannot be reached" in line for line in said)
    assert "kept" in said[0]
    assert "no digest locked" in said[-1]


def test_a_registry_base_is_taken_while_its_registry_answers(
    loopback_registry: LoopbackRegistry, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, digest = checkout.cell.os, f"sha256:{'ab' * 32}"
    image = f"{loopback_registry.host}/{checkout.name}/base:stable"
    system = with_base(checkout, image)
    # Like the engine, and whatever no_proxy says, a registry on loopback is asked directly.
    monkeypatch.setattr(urllib.request, "_opener", None)
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert base.choose(system, image, name, digest, wanted="auto") == ("registry", None)
    loopback_registry.stop()
    kind, note = base.choose(system, image, name, digest, wanted="auto")
    assert kind == "bootstrap"
    assert note is not None
    assert note.startswith(f"base {name}: bootstrapped, registry {loopback_registry.host} cannot")
    loopback_registry.start()
    assert base.choose(system, image, name, digest, wanted="auto") == ("registry", None)


def test_a_build_stands_on_the_locked_digest_of_a_registry_base(
    checkout: Checkout, loopback_registry: LoopbackRegistry
) -> None:
    project, cell = checkout.project, checkout.cell
    name, says = f"{checkout.name}/base", f"{checkout.token} the base that was locked"
    digest = loopback_registry.publish(name, "stable", says)
    loopback_registry.publish(name, "stable", f"{checkout.token} a later base")
    image = f"{loopback_registry.host}/{name}:stable"
    chosen = base.registry_base(image, digest)

    folder = project.places.images / cell.id
    folder.mkdir(parents=True)
    (folder / "note").write_text(checkout.token)
    (folder / "Dockerfile").write_text("FROM base\nCOPY note /note\nCOPY --from=files mark /mark\n")
    for extra in (project.places.templates / "files", project.places.selftest):
        extra.mkdir(parents=True)
        (extra / "mark").write_text("x")
    printed = io.StringIO()
    built = bake.bake(
        cell, project.places, folder, chosen,
        epoch=project.matrix.source_date_epoch, name=project.reference(cell),
        secrets=BuildSecrets(files={}), wheelhouse=None, console=Console(file=printed),
    )  # fmt: skip
    assert checkout.local() == {cell.id: built}
    attributes = checkout.client.api.inspect_image(built)
    assert attributes["Config"]["Labels"]["io.gpucomm.base"] == digest
    assert len(attributes["RootFS"]["Layers"]) == 3
    assert checkout.run(built) == (says, EXIT_CODE)


# ---------------------------------------------------------------- an engine that goes away


@contextlib.contextmanager
def vanishing_engine(folder: Path, after: bytes) -> Iterator[str]:
    """A socket of the engine that closes for good once `after` went by; yields its DOCKER_HOST."""
    real = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    path = folder / "engine.sock"

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as engine:
                engine.connect(real)
                while True:
                    for ready in select.select([self.request, engine], [], [])[0]:
                        data = ready.recv(65536)
                        if not data or after in data:
                            if data:
                                path.unlink()
                            return
                        (engine if ready is self.request else self.request).sendall(data)

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("verb", "after"),
    [("push", b"/push?"), ("push", b'"Pushed"'), ("pull", b"/create?"), ("pull", b"Pulling from")],
    ids=["push-asked", "pushing", "pull-asked", "pulling"],
)
def test_an_engine_that_goes_away_is_no_failed_work(
    verb: str, after: bytes, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.build(f"{checkout.token} without an engine")
    if verb == "pull":
        assert checkout.gpucomm("push", checkout.cell.id).code == 0
    with (
        tempfile.TemporaryDirectory(prefix="gc-") as folder,  # a socket's path must be short
        vanishing_engine(Path(folder), after) as host,
    ):
        monkeypatch.setenv("DOCKER_HOST", host)
        done = checkout.gpucomm(verb, checkout.cell.id)
        monkeypatch.undo()
    assert (done.code, done.out, len(done.err)) == (3, [], 1)
    assert "engine" in done.err[0]
    assert checkout.gpucomm(verb, checkout.cell.id).code == 0
