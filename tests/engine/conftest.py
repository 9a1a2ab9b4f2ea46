"""A Docker registry on loopback, and a checkout with tiny images to push to it and pull from it.

The registry is Debian's docker-registry, unpacked and never installed: its package starts a service
where systemd runs. All names and contents in the engine hold a token of the test, by which they are
removed again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import json
import os
import re
import secrets
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import docker
import pytest
from docker.errors import ImageNotFound

from gpucomm import bake, build, engine, lock, matrix, verify
from gpucomm.cell import Cell
from gpucomm.places import Places
from gpucomm.project import Project
from gpucomm.standard import aliases_of, cells_of

ROOT = Path(__file__).resolve().parents[2]
GPUCOMM = Path(sys.executable).parent / "gpucomm"
PROGRAM = "docker-registry"
START_TIMEOUT = 20  # seconds
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EXIT_CODE = 7  # of the program in every image here


# ---------------------------------------------------------------- what images are made of


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def program(says: str) -> bytes:
    """A static Linux program that prints `says` and ends with EXIT_CODE, without a compiler."""
    message, base, header = f"{says}\n".encode(), 0x400000, 64 + 56
    parts = [
        b"\xb8\x01\x00\x00\x00",  # mov eax, 1 (write)
        b"\xbf\x01\x00\x00\x00",  # mov edi, 1 (stdout)
        b"\x48\xbe" + bytes(8),  # mov rsi, the message, filled in below
        b"\xba" + struct.pack("<I", len(message)),  # mov edx, its length
        b"\x0f\x05",  # syscall
        b"\xb8\x3c\x00\x00\x00",  # mov eax, 60 (exit)
        b"\xbf" + struct.pack("<I", EXIT_CODE),  # mov edi, EXIT_CODE
        b"\x0f\x05",  # syscall
    ]
    entry = base + header
    parts[2] = b"\x48\xbe" + struct.pack("<Q", entry + sum(map(len, parts)))
    body = b"".join(parts) + message
    size = header + len(body)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (2, 62, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)  # ET_EXEC, x86-64, one segment
    segment = (1, 5, 0, base, base, size, size, 0x1000)  # PT_LOAD, read and execute
    return (
        ident + struct.pack("<HHIQQQIHHHHHH", *fields) + struct.pack("<IIQQQQQQ", *segment) + body
    )


def _layer(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


# ---------------------------------------------------------------- the registry


class LoopbackRegistry:
    """A running docker-registry with its own storage."""

    def __init__(self, program_file: Path, folder: Path) -> None:
        self._program = program_file
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1:0"
        """Address with the port: the system's choice at the first start, then kept."""

    @property
    def storage(self) -> Path:
        """Where the registry keeps its blobs and its repositories."""
        return self._folder / "docker" / "registry" / "v2"

    def start(self) -> None:
        config, log = self._folder / "config.yml", self._folder / "log"
        settings = {
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder)}},
            "http": {"addr": self.host, "secret": "of this test"},
        }
        config.write_text(json.dumps(settings))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, "serve", config],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.fail(f"{PROGRAM} did not start: {log.read_text()[-600:]}")
            time.sleep(0.02)
        self.host = found[1]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def asked(self, method: str, what: str) -> int:
        """How often paths with `what` in them were asked for since the start."""
        return (self._folder / "log").read_text().count(f'] "{method} /v2/{what}')

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=20)) as connection:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def blob(self, name: str, digest: str) -> bytes:
        status, _, body = self.request("GET", f"/v2/{name}/blobs/{digest}")
        assert status == 200
        return body

    def manifest(self, name: str, tag: str) -> bytes | None:
        """The bytes of the manifest that `tag` has here, None when there is none."""
        path = f"/v2/{name}/manifests/{tag}"
        status, _, body = self.request("GET", path, headers={"Accept": MANIFEST})
        return body if status == 200 else None

    def digests(self, name: str) -> dict[str, str]:
        """Tag -> sha256 of the bytes of its manifest, for every tag of `name`."""
        status, _, body = self.request("GET", f"/v2/{name}/tags/list")
        tags = (json.loads(body)["tags"] or []) if status == 200 else []
        found = {tag: self.manifest(name, tag) for tag in tags}
        return {tag: sha256(body) for tag, body in found.items() if body is not None}

    def repositories(self) -> list[str]:
        status, _, body = self.request("GET", "/v2/_catalog")
        assert status == 200
        return list(json.loads(body)["repositories"] or [])

    def publish(self, name: str, tag: str, says: str) -> str:
        """Put an image that prints `says` here without the engine; returns its digest."""
        layer = _layer({"say": program(says)})
        packed = gzip.compress(layer, mtime=0)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/say"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]},
        }
        described = [
            self._upload(name, CONFIG, json.dumps(config).encode()),
            self._upload(name, LAYER, packed),
        ]
        manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": described[0], "layers": described[1:],
        }  # fmt: skip
        body = json.dumps(manifest).encode()
        path = f"/v2/{name}/manifests/{tag}"
        status, _, _ = self.request("PUT", path, body, {"Content-Type": MANIFEST})
        assert status == 201
        return sha256(body)

    def _upload(self, name: str, media_type: str, data: bytes) -> dict[str, str | int]:
        digest = sha256(data)
        status, headers, _ = self.request("POST", f"/v2/{name}/blobs/uploads/")
        assert status == 202
        place = urlsplit(headers["Location"])
        path = f"{place.path}?{place.query}&digest={digest}"
        kind = {"Content-Type": "application/octet-stream"}
        assert self.request("PUT", path, data, kind)[0] == 201
        return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _works(path: Path) -> bool:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _unpack(target: Path) -> str:
    """Take the program out of Debian's signed package; returns why that failed, else nothing."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "this is no Debian"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:

        def run(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

        options = ("-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=120")
        download = ("apt-get", *options, "download", PROGRAM)
        done = run(*download)
        if done.returncode and os.geteuid() == 0:
            run("apt-get", *options, "update")
            done = run(*download)
        packages = [str(path) for path in Path(folder).glob("*.deb")]
        if done.returncode or len(packages) != 1:
            return " ".join(done.stderr.split())
        done = run("dpkg", "-x", packages[0], "unpacked")
        unpacked = Path(folder) / "unpacked" / "usr" / "bin" / PROGRAM
        if not _works(unpacked):
            return f"its program does not run here {done.stderr}"
        unpacked.replace(target)
    return ""


@pytest.fixture(scope="session")
def registry_program() -> Path:
    """docker-registry of this machine, else unpacked once per checkout."""
    for path in (shutil.which(PROGRAM), ROOT / ".gpucomm" / "tools" / PROGRAM):
        if path and _works(Path(path)):
            return Path(path)
    target = ROOT / ".gpucomm" / "tools" / PROGRAM
    if reason := _unpack(target):
        pytest.skip(f"{PROGRAM} cannot be had: {reason}")
    return target


@pytest.fixture
def loopback_registry(registry_program: Path, tmp_path: Path) -> Iterator[LoopbackRegistry]:
    """An empty registry on 127.0.0.1, on a port that the system chose."""
    folder = tmp_path / "registry"
    folder.mkdir()
    running = LoopbackRegistry(registry_program, folder)
    running.start()
    yield running
    running.stop()


# ---------------------------------------------------------------- the engine


@pytest.fixture(scope="session")
def engine_client() -> Iterator[docker.DockerClient]:
    info = engine.probe()
    if info is None:
        pytest.skip("no engine answers")
    if not info.containerd_store:
        pytest.skip("the engine has no containerd image store")
    if not os.environ.get("DOCKER_HOST", "unix:").startswith("unix:"):
        pytest.skip("the engine does not share this machine's loopback")
    with contextlib.closing(engine.client()) as client:
        yield client


def _names_with(client: docker.DockerClient, token: str) -> list[str]:
    found = client.api.images()
    return [name for image in found for name in image["RepoTags"] or () if token in name]


@pytest.fixture
def token(engine_client: docker.DockerClient) -> Iterator[str]:
    """A word for this test's names and contents. Every image with it in its name goes again."""
    word = f"gpucomm-test-{secrets.token_hex(4)}"
    yield word
    for name in _names_with(engine_client, word):
        engine_client.images.remove(name)
    assert _names_with(engine_client, word) == []
    assert engine_client.containers.list(all=True, filters={"label": word}) == []


# ---------------------------------------------------------------- the checkout


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: list[str]
    err: list[str]


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A copy of this project's matrix, lock and image tests, and what can be done in it."""

    project: Project
    cell: Cell
    """A cell with aliases. The tiny images are built as this one."""
    other: Cell
    """A cell that has no image."""
    token: str
    client: docker.DockerClient

    @property
    def tags(self) -> tuple[str, ...]:
        return build.tags_of(self.project, self.cell)

    @property
    def name(self) -> str:
        """The repository's name within its registry."""
        return self.project.repository.split("/", 1)[1]

    def gpucomm(self, *arguments: str, repository: str | None = None) -> Done:
        """Run the real command. It never installs anything, and nothing of it is a traceback."""
        environment = os.environ | {
            "REGISTRY": repository or self.project.repository,
            "GPUCOMM_CACHE": str(self.project.places.cache),
            "ENGINE": "none",
        }
        done = subprocess.run(
            [GPUCOMM, *arguments], cwd=self.project.places.root, env=environment, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr[-1500:]
        return Done(
            code=done.returncode, out=done.stdout.splitlines(), err=done.stderr.splitlines()
        )

    def local(self) -> dict[str, str]:
        """Tag -> digest of every local image of this repository."""
        prefix, found = f"{self.project.repository}:", {}
        for name in _names_with(self.client, self.token):
            if name.startswith(prefix):
                with contextlib.suppress(ImageNotFound):
                    found[name.removeprefix(prefix)] = str(self.client.images.get(name).id)
        return found

    def layers(self) -> list[str]:
        """Digests of the layers of this cell's local image, as a registry knows them."""
        image = self.client.images.get(self.project.reference(self.cell))
        saved = io.BytesIO(b"".join(image.save(named=True)))
        with tarfile.open(fileobj=saved) as tar:
            member = tar.extractfile(f"blobs/{str(image.id).replace(':', '/')}")
            assert member is not None
            return [layer["digest"] for layer in json.load(member)["layers"]]

    def run(self, reference: str) -> tuple[str, int]:
        """What the program of an image says, and its exit code."""
        done = subprocess.run(
            ["docker", "run", "--rm", "--network=none", f"--label={self.token}", reference],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout.removesuffix("\n"), done.returncode

    def build(self, says: str, *, verified: bool = True) -> str:
        """Build an image as this cell's, in the form of real ones; returns its digest."""
        folder = self.project.places.root / "tiny"
        folder.mkdir(exist_ok=True)
        (folder / "say").write_bytes(program(says))
        (folder / "say").chmod(0o755)
        # A second layer that does not compress.
        (folder / "noise").write_bytes(secrets.token_bytes(200_000))
        (folder / "Dockerfile").write_text(
            'FROM scratch\nCOPY say /\nCOPY noise /\nENTRYPOINT ["/say"]\n'
        )
        reference = self.project.reference(self.cell)
        subprocess.run(
            [
                "docker", "buildx", "build", "--quiet", "--provenance=false",
                f"--build-arg=SOURCE_DATE_EPOCH={self.project.matrix.source_date_epoch}",
                f"--output={bake.OUTPUT},name={reference}", folder,
            ],
            capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        digest = build.local_image(self.client, self.project, self.cell)
        if verified:
            suite = verify.suite_hash(self.project, self.cell)
            passed = verify.Verified(image=digest, cell=self.cell.id, seconds=0.1, passed=1)
            verify.record(self.project.places, passed, suite)
        return digest


@pytest.fixture
def checkout(
    loopback_registry: LoopbackRegistry,
    engine_client: docker.DockerClient,
    token: str,
    tmp_path: Path,
) -> Checkout:
    """A checkout whose REGISTRY is the one on loopback, with a cache of its own."""
    places = Places(root=tmp_path / "checkout", cache=tmp_path / "cache")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests" / "images", places.image_tests, ignore=ignored)
    for name in (matrix.FILE, lock.FILE):
        shutil.copyfile(ROOT / name, places.root / name)
    found = matrix.load(places.root)
    cell = max(cells_of(found), key=lambda cell: len(aliases_of(found, cell)))
    assert aliases_of(found, cell)
    return Checkout(
        project=Project(
            matrix=found,
            lock=lock.load(places.root, found),
            places=places,
            repository=f"{loopback_registry.host}/{token}",
        ),
        cell=cell,
        other=next(other for other in cells_of(found) if other != cell),
        token=token,
        client=engine_client,
    )
