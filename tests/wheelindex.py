"""A package index on 127.0.0.1 for tests: tiny valid wheels, and the faults that real indexes have.

Owns: the wheels' bytes, the pages, the server, its faults, and `published`, which makes the wheels
that the real world has for a line and a torch. Every wheel has a few hundred bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import itertools
import re
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

# --- wheels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TinyWheel:
    """A valid wheel with nothing inside but its metadata and `files` (path to text or bytes).

    `hashed=False` leaves its sha256 out of the pages, as PyTorch's index does for some wheels.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    requires_python: str | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict, hash=False)
    hashed: bool = True

    @property
    def file(self) -> str:
        """The file name, with a `+` in it for a local version."""
        return f"{self._stem}-{self.tag}.whl"

    @property
    def project(self) -> str:
        """The name as an index spells it."""
        return _normalized(self.name)

    @property
    def sha256(self) -> str:
        """What the pages say of this wheel."""
        return hashlib.sha256(self.content()).hexdigest()

    def metadata(self) -> bytes:
        """The METADATA file."""
        extras = re.findall(r"""extra == ['"]([^'"]+)""", " ".join(self.requires))
        rows = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        rows += [f"Requires-Python: {self.requires_python}"] if self.requires_python else []
        rows += [f"Provides-Extra: {extra}" for extra in dict.fromkeys(extras)]
        rows += [f"Requires-Dist: {requirement}" for requirement in self.requires]
        return "".join(f"{row}\n" for row in rows).encode()

    def content(self, year: int = 1980) -> bytes:
        """The bytes of the file; another `year` gives other bytes that are as valid."""
        info = f"{self._stem}.dist-info"
        texts = {
            path: data if isinstance(data, bytes) else data.encode()
            for path, data in self.files.items()
        }
        texts |= {f"{info}/METADATA": self.metadata(), f"{info}/WHEEL": self._wheel()}
        record = f"{info}/RECORD"
        rows = [f"{path},{_record_hash(data)},{len(data)}\n" for path, data in texts.items()]
        texts[record] = "".join([*rows, f"{record},,\n"]).encode()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in texts.items():
                member = zipfile.ZipInfo(path, (year, 1, 1, 0, 0, 0))
                member.external_attr = 0o100644 << 16
                archive.writestr(member, data)
        return packed.getvalue()

    def write(self, folder: Path) -> None:
        """Put the file into a folder, such as one that --find-links names."""
        (folder / self.file).write_bytes(self.content())

    @property
    def _stem(self) -> str:
        return f"{self.project.replace('-', '_')}-{self.version}"

    def _wheel(self) -> bytes:
        tags = ("-".join(one) for one in itertools.product(*_tag_parts(self.tag)))
        pure = str(self.tag.endswith("-any")).lower()
        rows = ["Wheel-Version: 1.0", "Generator: wheelindex", f"Root-Is-Purelib: {pure}"]
        return "".join(f"{row}\n" for row in [*rows, *(f"Tag: {tag}" for tag in tags)]).encode()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _tag_parts(tag: str) -> list[list[str]]:
    return [part.split(".") for part in tag.split("-")]


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


# --- faults ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncated:
    """The right Content-Length, half of the bytes, then the connection ends; `times` or always."""

    times: int | None = None


@dataclass(frozen=True)
class ChangedBytes:
    """A wheel as valid and as long as the right one, with another sha256 than the page says.

    Pages have no hash, so this changes none of them.
    """


@dataclass(frozen=True)
class NotFound:
    """404."""


@dataclass(frozen=True)
class TooMany:
    """429 with Retry-After in seconds for the first `times` requests; then all is well."""

    retry_after: int = 1
    times: int = 1


@dataclass(frozen=True)
class Stalled:
    """Headers, then nothing until the fault is removed, the server closes or `seconds` are over."""

    seconds: float = 60
    times: int | None = None


@dataclass(frozen=True)
class Unauthorized:
    """401 to every request that does not bring these credentials."""

    user: str
    password: str

    @property
    def authorization(self) -> str:
        """The header that is let through."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}"


Fault = Truncated | ChangedBytes | NotFound | TooMany | Stalled | Unauthorized


class Planted:
    """A fault in its place; `hits` counts the answers it spoiled. `with` removes it at the end."""

    def __init__(self, where: str, fault: Fault) -> None:
        self.where = where
        self.fault = fault
        self.hits = 0
        self._removed = threading.Event()

    def remove(self) -> None:
        """All is well again; a stalled answer ends. May be called twice."""
        self._removed.set()

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def covers(self, path: str) -> bool:
        """Whether `path` (decoded, from the root) is one of those that the fault was planted at."""
        file = path.rpartition("/")[2]
        if self.where.startswith("/"):
            return fnmatchcase(path, self.where)
        if self.where.endswith(".whl"):
            return file == self.where
        return file.endswith(".whl") and _normalized(file.split("-")[0]) == _normalized(self.where)

    def spoils(self, request: Request) -> bool:
        """Whether the answer to `request` is spoiled; one to HEAD has no body to spoil."""
        if self._removed.is_set() or not self.covers(_decoded(request.path)):
            return False
        match self.fault:
            case Truncated() | ChangedBytes() | Stalled() if request.method == "HEAD":
                return False
            case TooMany(times=times) | Truncated(times=times) | Stalled(times=times):
                return times is None or self.hits < times
            case Unauthorized() as wanted:
                return request.authorization != wanted.authorization
            case _:
                return True

    def wait(self, seconds: float) -> None:
        """Wait until the fault is removed, `seconds` at most."""
        self._removed.wait(seconds)


# --- the index ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request as it came: `path` is still percent-encoded, `at` is of `time.monotonic`."""

    method: str
    path: str
    authorization: str | None = None
    range: str | None = None
    at: float = field(default=0, compare=False)


@dataclass(frozen=True)
class _Content:
    body: bytes
    changed: bytes
    kind: str


class Index:
    """What `serve` gives: its addresses, what it was asked, and the faults planted in it."""

    def __init__(self, address: str, *, metadata_files: bool) -> None:
        self._address = address
        self._metadata_files = metadata_files
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._planted: list[Planted] = []
        self._pages: dict[str, dict[str, str]] = {}
        self._files: dict[str, _Content] = {}

    def url(self, path: str = "simple") -> str:
        """The address of a path below the root, such as `simple` or `whl/cpu/torch/`."""
        return f"{self._address}/{path.lstrip('/')}"

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request so far, in order."""
        with self._lock:
            return tuple(self._requests)

    def forget(self) -> None:
        """Start `requests` anew."""
        with self._lock:
            self._requests.clear()

    def add(self, folder: str, *wheels: TinyWheel) -> None:
        """Publish more wheels in `folder`. ValueError for another wheel of the same file name."""
        root = f"/{folder.strip('/')}/"
        with self._lock:
            self._pages.setdefault(root, {})
            for wheel in wheels:
                self._add(root, wheel)

    def fault(self, where: str, fault: Fault) -> Planted:
        """Spoil what `where` names; the fault planted last comes first. ValueError for nothing.

        `where` is a project (its wheels, in every folder), a wheel's file name, or, from the root,
        the decoded path of a page or file, with `*` for anything: `/simple/torch/`, `/whl/cpu/*`.
        """
        planted = Planted(where, fault)
        with self._lock:
            if not any(planted.covers(path) for path in itertools.chain(self._pages, self._files)):
                raise ValueError(f"{where} names nothing that is published here")
            self._planted.append(planted)
        return planted

    def heal(self) -> None:
        """Remove every fault."""
        with self._lock:
            for planted in self._planted:
                planted.remove()

    def seen(self, request: Request) -> Planted | None:
        """Remember a request; the fault that spoils its answer, if there is one."""
        with self._lock:
            self._requests.append(request)
            for planted in reversed(self._planted):
                if planted.spoils(request):
                    planted.hits += 1
                    return planted
        return None

    def content(self, path: str) -> _Content | None:
        """What lies at a decoded path."""
        with self._lock:
            if (links := self._pages.get(path)) is not None:
                body = _page(links.values())
                return _Content(body, body, "text/html; charset=utf-8")
            return self._files.get(path)

    def _add(self, root: str, wheel: TinyWheel) -> None:
        path = f"{root}{wheel.file}"
        body = wheel.content()
        known = self._files.setdefault(path, _wheel_content(wheel, body))
        if known.body != body:
            raise ValueError(f"{path}: another wheel of that name is published already")
        metadata = wheel.metadata() if self._metadata_files else None
        if metadata is not None:
            self._files[f"{path}.metadata"] = _Content(metadata, metadata + b"\n", "text/plain")
        page = f"{root}{wheel.project}/"
        self._pages[root][wheel.project] = _link(page, wheel.project)
        links = self._pages.setdefault(page, {})
        links[wheel.file] = _wheel_link(path, wheel, metadata)


def _wheel_content(wheel: TinyWheel, body: bytes) -> _Content:
    return _Content(body, wheel.content(year=1981), "application/zip")


def _decoded(path: str) -> str:
    return unquote(urlsplit(path).path)


def _page(links: Iterable[str]) -> bytes:
    rows = "".join(f"{link}<br/>\n" for link in links)
    return f"<!DOCTYPE html>\n<html><body>\n{rows}</body></html>\n".encode()


def _link(href: str, text: str, **attributes: str) -> str:
    pairs = {"href": href} | {name.replace("_", "-"): text for name, text in attributes.items()}
    inside = " ".join(f'{name}="{html.escape(value)}"' for name, value in pairs.items())
    return f"<a {inside}>{html.escape(text)}</a>"


def _wheel_link(path: str, wheel: TinyWheel, metadata: bytes | None) -> str:
    attributes: dict[str, str] = {}
    if wheel.requires_python:
        attributes["data_requires_python"] = wheel.requires_python
    if metadata is not None:
        attributes["data_core_metadata"] = f"sha256={hashlib.sha256(metadata).hexdigest()}"
    fragment = f"#sha256={wheel.sha256}" if wheel.hashed else ""
    return _link(f"{quote(path)}{fragment}", wheel.file, **attributes)


# --- the server --------------------------------------------------------------------------------


@contextmanager
def serve(
    indexes: Mapping[str, Iterable[TinyWheel]], *, metadata_files: bool = False
) -> Iterator[Index]:
    """Serve wheels by folder (`simple`, `whl/rocm6.3`) until the end of the `with`.

    `<folder>/<project>/` is a page of PEP 503, `<folder>/<file>` a wheel. Wheels answer ranges;
    with `metadata_files` each has its metadata beside it as well (PEP 658).
    """
    with _Server(("127.0.0.1", 0), _Handler) as server:
        index = Index(f"http://127.0.0.1:{server.server_port}", metadata_files=metadata_files)
        server.index = index
        for folder, wheels in indexes.items():
            index.add(folder, *wheels)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
            index.heal()
            server.hang_up()
    if server.broken:
        raise server.broken[0]


class _Server(ThreadingHTTPServer):
    """Waits for its threads at the end, and keeps its own failures for the test to see."""

    daemon_threads = False
    request_queue_size = 128  # uv opens many connections at once; one too many waits a second
    index: Index

    def __init__(self, *arguments: Any) -> None:
        self.broken: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the connections that clients keep open: their threads wait for a next request."""
        with self._open_lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        # A client may go away at any time; uv does when it gives up.
        if error is not None and not isinstance(error, ConnectionError):
            self.broken.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        return

    def _answer(self) -> None:
        authorization, ranged = self.headers["Authorization"], self.headers["Range"]
        index = self.server.index
        request = Request(self.command, self.path, authorization, ranged, time.monotonic())
        planted = index.seen(request)
        path = _decoded(self.path)
        content = index.content(path)
        match planted.fault if planted else None:
            case NotFound():
                self._send(404)
            case TooMany(retry_after=seconds):
                self._send(429, {"Retry-After": str(seconds)})
            case Unauthorized():
                self._send(401, {"WWW-Authenticate": 'Basic realm="wheels"'})
            case _ if content is not None:
                self._send_content(content, planted)
            case _ if index.content(f"{path}/") is not None:
                self._send(301, {"Location": f"{quote(path)}/"})
            case _:
                self._send(404)

    def _send_content(self, content: _Content, planted: Planted | None) -> None:
        fault = planted.fault if planted else None
        body = content.changed if isinstance(fault, ChangedBytes) else content.body
        status, headers, part = _part(body, self.headers["Range"])
        # A page without this may be kept; a wheel never changes.
        caching = {"Cache-Control": "no-cache"} if content.kind.startswith("text/html") else {}
        headers |= {"Content-Type": content.kind, **caching}
        self._head(status, headers, len(part))
        if self.command == "HEAD":
            return
        match fault:
            case Truncated():
                self.close_connection = True
                self.wfile.write(part[: len(part) // 2])
            case Stalled(seconds=seconds) if planted is not None:
                self.close_connection = True
                planted.wait(seconds)
            case _:
                self.wfile.write(part)

    def _send(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, headers or {}, 0)

    def _head(self, status: int, headers: Mapping[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _part(body: bytes, asked: str | None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and bytes of an answer; several ranges at once get the whole, as RFC 9110
    allows."""
    headers = {"Accept-Ranges": "bytes"}
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "")
    if found is None or not any(found.groups()):
        return 200, headers, body
    first, last = found.groups()
    if first:
        start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
    else:
        start, stop = max(len(body) - int(last), 0), len(body)
    if start >= stop:
        return 416, headers | {"Content-Range": f"bytes */{len(body)}"}, b""
    span = f"bytes {start}-{stop - 1}/{len(body)}"
    return 206, headers | {"Content-Range": span}, body[start:stop]


# --- what the real world has published ---------------------------------------------------------

# (torch, line, NCCL): ("2.4.1", "cu121", "2.20.5"), ("2.7.1", "rocm6.3", None). STATIC: this torch
# has NCCL and every library of CUDA inside, and requires no wheel of NVIDIA's.
Row = tuple[str, str, str | None]
STATIC = "static"

# The CUDA of torch's wheels on the default index, which do not name it.
_DEFAULT_LINES = {
    **dict.fromkeys(("2.1", "2.2", "2.3", "2.4"), "cu121"),
    **dict.fromkeys(("2.5", "2.6"), "cu124"),
    "2.7": "cu126",
    **dict.fromkeys(("2.8", "2.9", "2.10"), "cu128"),
    **dict.fromkeys(("2.11", "2.12", "2.13", "2.14"), "cu130"),
    "2.15": "cu132",
}
# In these three tables the whole version of torch comes before its minor one.
_TRITON = {
    "2.1": "2.1.0", "2.2": "2.2.0", "2.3.0": "2.3.0", "2.3.1": "2.3.1", "2.4": "3.0.0",
    "2.5": "3.1.0", "2.6": "3.2.0", "2.7.0": "3.3.0", "2.7.1": "3.3.1", "2.8": "3.4.0",
    "2.9.0": "3.5.0", "2.9.1": "3.5.1", "2.10": "3.6.0", "2.11": "3.6.0", "2.12.0": "3.7.0",
    "2.12.1": "3.7.1", "2.13": "3.7.1", "2.14": "3.8.0", "2.15": "3.9.0",
}  # fmt: skip
_CUDNN = {
    **dict.fromkeys(("2.1", "2.2", "2.3"), "8.9.2.26"),
    **dict.fromkeys(("2.1 cu118", "2.2 cu118", "2.3 cu118"), "8.7.0.84"),
    **dict.fromkeys(("2.4", "2.5", "2.6", "2.7 cu118"), "9.1.0.70"),
    **dict.fromkeys(("2.6 cu126", "2.7"), "9.5.1.17"),
    "2.7 cu128": "9.7.1.26",
    **dict.fromkeys(("2.8", "2.9", "2.10"), "9.10.2.21"),
    "2.9 cu130": "9.13.0.50",
    "2.10 cu130": "9.15.1.9",
    "2.11": "9.19.0.56",
    **dict.fromkeys(("2.12", "2.13"), "9.20.0.48"),
    "2.14": "9.24.0.43",
    "2.15": "9.26.0.51",
    **{f"2.{minor} cu126": "9.10.2.21" for minor in range(11, 16)},
}
# Before torch 2.11 it required the runtime itself, by line.
_RUNTIME = {
    "cu118": "11.8.89", "cu121": "12.1.105", "cu124": "12.4.127", "cu126": "12.6.77",
    "2.7 cu128": "12.8.57", "cu128": "12.8.90", "cu129": "12.9.79",
    "2.9 cu130": "13.0.48", "cu130": "13.0.96",
}  # fmt: skip
# Since then it requires the toolkit, whose extra `cudart` requires the runtime.
_TOOLKIT = {
    "cu126": "12.6.3", "cu128": "12.8.1", "2.11 cu130": "13.0.2", "2.12 cu130": "13.0.2",
    "cu130": "13.0.3.0", "2.15 cu132": "13.2.2", "cu132": "13.2.1",
}  # fmt: skip
_RUNTIME_OF_TOOLKIT = {
    "12.6.3": "12.6.77", "12.8.1": "12.8.90", "13.0.2": "13.0.96", "13.0.3.0": "13.0.96",
    "13.2.1": "13.2.75", "13.2.2": "13.2.86",
}  # fmt: skip
# Versions with the first and last Python that they have wheels for.
_NUMPY = {"1.26.4": (9, 12), "2.2.6": (10, 13), "2.4.6": (11, 14)}
# The minor version of torchvision is torch's and 15, but for these.
_VISION = {"2.15.0": "0.29.2"}
_LAST_AUDIO = "2.11.1"  # fits every torch since 2.12
# nvcc (crt and nvvm of CUDA 13 too), cccl, nvjitlink: what is open in torch or a flavor adds.
_OPEN = {
    "cu121": ("12.1.105", "12.1.109", "12.1.105"), "cu124": ("12.4.131", "12.4.127", "12.4.127"),
    "cu126": ("12.6.85", "12.6.77", "12.6.85"), "cu128": ("12.8.93", "12.8.90", "12.8.93"),
    "cu129": ("12.9.86", "12.9.27", "12.9.86"), "cu130": ("13.0.88", "13.0.85", "13.0.88"),
    "cu132": ("13.2.86", "13.2.86", "13.2.86"),
}  # fmt: skip
# The newest that a resolver is offered, whatever the line; and a cccl that a line of CUDA 12 needs.
_NEWEST = {"cu12": ("12.9.86", "12.9.27", "12.9.86"), "cu13": ("13.3.33", "13.3.5.0.6", "13.3.33")}
_EARLY_CCCL = "12.3.101.post1"
# GPU code of ROCm since 7.14: one wheel for each target, all of which torch requires.
_SDK = ("7.14.0", ("7.14.0", "7.14.0.post1", "7.14.1"))
_TARGETS = (
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101",
    "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1200", "gfx1201", "gfx1250",
)  # fmt: skip
_ALL = "device-all"
_TOOLS = (("uv", "0.13.9"), ("flit-core", "4.2.0"))
_PURE = (
    ("filelock", "4.3.1"),
    ("setuptools", "69.5.1"),
    ("setuptools", "84.2.1"),
    ("typing-extensions", "4.16.0"),
)
# Of the lines before torch 2.9, these had CUDA wheels for aarch64.
_EARLY_AARCH64 = {"2.6 cu126", "2.7 cu128", "2.8 cu129"}


def published(
    rows: Iterable[Row],
    *,
    pythons: Iterable[str] = ("3.11",),
    machines: Iterable[str] = ("x86_64",),
    whole: bool = False,
) -> dict[str, list[TinyWheel]]:
    """The wheels that exist for these rows, by the folders that `serve` takes.

    torch, torchvision and torchaudio lie in `whl/<line>` with their local version, and in `simple`
    without one where the line is the default one of that torch. The rest lies in both, Triton for
    ROCm in `whl/<line>` only. A Python or machine that a package has no wheel for gets none.

    With `whole` there is also what a whole lock needs beside: the tools, what torch leaves open
    (nvJitLink) with newer ones of other lines, the compilers of CUDA, and ROCm 7.14 in wheels,
    which lie in `whl/<line>` only.

    Raises ValueError for a torch or line that is unknown here, and a CUDA line without NCCL.
    """
    builds = [_Build(*row, whole=whole) for row in rows]
    pins = {(build.torch, build.line): build.nccl for build in builds}
    if len(pins) != len(set(builds)):
        raise ValueError("a torch of one line has one NCCL; add others with nccl_wheels")
    minors = [int(python.split(".")[1]) for python in pythons]
    platforms = tuple(machines)
    indexes: dict[str, dict[TinyWheel, None]] = {"simple": {}}
    for build in builds:
        folder = indexes.setdefault(f"whl/{build.line}", {})
        shared = [*_common(minors, platforms), *_companions(build, minors, platforms)]
        if whole:
            shared += [*_tools(platforms), *_open_wheels(build, platforms)]
        folder |= dict.fromkeys([*_torches(build, minors, platforms, local=True), *shared])
        folder |= dict.fromkeys(_sdk(build))
        indexes["simple"] |= dict.fromkeys(w for w in shared if not w.name.endswith("rocm"))
        if build.default:
            own = _torches(build, minors, platforms, local=False)
            indexes["simple"] |= dict.fromkeys(own)
    return {folder: list(wheels) for folder, wheels in indexes.items()}


def nccl_wheels(line: str, version: str, machines: Iterable[str] = ("x86_64",)) -> list[TinyWheel]:
    """The wheels of one NCCL for the CUDA of `line`, for the machines that have one."""
    name = f"nvidia-nccl-{_cuda(line)}"
    tag, numbers = _nccl_tag(version), _numbers(version)
    arm = _cuda(line) == "cu13" or (
        _cuda(line) == "cu12" and (numbers >= (2, 24, 3) or version in ("2.20.5", "2.23.4"))
    )
    return [
        TinyWheel(name, version, tag=f"py3-none-{tag}_{machine}")
        for machine in machines
        if machine == "x86_64" or arm
    ]


@dataclass(frozen=True)
class _Build:
    torch: str
    line: str
    nccl: str | None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.minor not in _DEFAULT_LINES:
            raise ValueError(f"torch {self.torch} is not known here")
        if re.fullmatch(r"cpu|rocm\d+(\.\d+)+|cu\d{3}", self.line) is None:
            raise ValueError(f"{self.line} is no line of PyTorch's index")
        if self.cuda != (self.nccl is not None):
            raise ValueError(f"{self.line}: NCCL is {self.nccl}; a CUDA line has one, no other has")

    @property
    def numbers(self) -> tuple[int, ...]:
        return _numbers(self.torch)

    @property
    def minor(self) -> str:
        return self.torch.rpartition(".")[0]

    @property
    def cuda(self) -> bool:
        return self.line.startswith("cu")

    @property
    def rocm(self) -> bool:
        return self.line.startswith("rocm")

    @property
    def default(self) -> bool:
        return _DEFAULT_LINES[self.minor] == self.line

    @property
    def static(self) -> bool:
        return self.nccl == STATIC

    @property
    def has_sdk(self) -> bool:
        return self.whole and self.line == "rocm7.14"

    @property
    def uses_toolkit(self) -> bool:
        return self.numbers >= (2, 11)

    def pin(self, table: Mapping[str, str]) -> str:
        """The entry of a table that fits best."""
        keys = (self.torch, f"{self.minor} {self.line}", self.line, self.minor)
        found = next((table[key] for key in keys if key in table), None)
        if found is None:
            raise ValueError(f"torch {self.torch} was not published for {self.line}")
        return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _cuda(line: str) -> str:
    return line[:4]


def _nccl_tag(version: str) -> str:
    firsts = {(2, 32, 3): "_2_27", (2, 28, 3): "_2_18", (2, 20): "2014", (0,): "1"}
    return "manylinux" + next(t for first, t in firsts.items() if _numbers(version) >= first)


def _pythons(build: _Build, minors: Iterable[int]) -> list[int]:
    """The Pythons, of those asked for, that this torch has wheels for."""
    numbers = build.numbers
    firsts = {(2, 15): 11, (2, 9): 10, (2, 5): 9, (0,): 8}
    lasts = {(2, 15): 15, (2, 9): 14, (2, 5): 13, (2, 2): 12, (0,): 11}
    first, last = (
        next(minor for since, minor in table.items() if numbers >= since)
        for table in (firsts, lasts)
    )
    return [minor for minor in minors if first <= minor <= last]


def _torches(
    build: _Build, minors: Iterable[int], machines: Iterable[str], *, local: bool
) -> Iterator[TinyWheel]:
    """torch and the two packages that require exactly this one."""
    numbers = build.numbers
    asked = [machine for machine in machines if not local or _has_local(build, machine)]
    for machine, minor in itertools.product(asked, _pythons(build, minors)):
        tag = f"cp3{minor}-cp3{minor}-{_torch_platform(build, machine, local=local)}"
        suffix = f"+{build.line}" if local and _names_line(build, machine) else ""
        version = f"{build.torch}{suffix}"
        yield TinyWheel(
            "torch",
            version,
            tuple(_torch_requires(build, machine, local=local)),
            tag,
            files={"torch/__init__.py": f'__version__ = "{version}"\n'},
        )
        pin = f"torch=={build.torch}"
        vision = _VISION.get(build.torch, f"0.{numbers[1] + 15}.{numbers[2]}")
        yield TinyWheel("torchvision", f"{vision}{suffix}", ("numpy", pin), tag)
        if numbers < (2, 12):
            yield TinyWheel("torchaudio", version, (pin,), tag)
        else:
            tag = f"py3-none-manylinux_2_28_{machine}"
            yield TinyWheel("torchaudio", f"{_LAST_AUDIO}{suffix}", tag=tag)


def _has_local(build: _Build, machine: str) -> bool:
    """Whether PyTorch's own index has this build for `machine`."""
    if machine == "x86_64" or build.line == "cpu":
        return True
    early = f"{build.minor} {build.line}" in _EARLY_AARCH64
    return build.cuda and (build.numbers >= (2, 9) or early)


def _names_line(build: _Build, machine: str) -> bool:
    """CPU wheels for aarch64 had no local version before torch 2.6."""
    return machine == "x86_64" or build.cuda or build.numbers >= (2, 6)


def _torch_platform(build: _Build, machine: str, *, local: bool) -> str:
    if build.numbers >= (2, 7) or (build.numbers >= (2, 6) and machine == "aarch64"):
        return f"manylinux_2_28_{machine}"
    if machine == "aarch64":
        return "manylinux_2_17_aarch64.manylinux2014_aarch64"
    return "linux_x86_64" if local else "manylinux1_x86_64"


def _torch_requires(build: _Build, machine: str, *, local: bool) -> Iterator[str]:
    yield "filelock"
    yield "typing-extensions>=4.8.0"
    yield "setuptools" + ("" if build.uses_toolkit else '; python_version >= "3.12"')
    marker = 'platform_system == "Linux"'
    arm = machine == "aarch64" and local and build.cuda and build.numbers >= (2, 9)
    if not (build.uses_toolkit or arm) or build.rocm:
        marker += ' and platform_machine == "x86_64"'
    if build.cuda and not build.static:
        yield from (f"{requirement}; {marker}" for requirement in _cuda_requires(build))
    if build.has_sdk:
        yield f"rocm[device-all,libraries]==7.14.*; {marker}"
    if (triton := _triton_name(build)) is not None:
        # On Python 3.12 these pinned no Triton: there was none for it.
        until = ' and python_version < "3.12"' if build.minor in ("2.2", "2.3") else ""
        yield f"{triton}=={build.pin(_TRITON)}; {marker}{until}"


def _cuda_requires(build: _Build) -> Iterator[str]:
    suffix = _cuda(build.line)
    if build.uses_toolkit:
        yield f"cuda-toolkit[cudart]=={build.pin(_TOOLKIT)}"
    else:
        yield f"{_runtime_name(build.line)}=={build.pin(_RUNTIME)}"
    yield f"nvidia-cudnn-{suffix}=={build.pin(_CUDNN)}"
    yield f"nvidia-nccl-{suffix}=={build.nccl}"
    if build.whole and build.line in _OPEN:
        yield _of_cuda("nvidia-nvjitlink", build.line)


def _runtime_name(line: str) -> str:
    return _of_cuda("nvidia-cuda-runtime", line)


def _of_cuda(package: str, line: str) -> str:
    """CUDA 13 ended the suffix of such packages; NCCL and cuDNN keep theirs."""
    return package + ("" if _cuda(line) == "cu13" else f"-{_cuda(line)}")


def _triton_name(build: _Build) -> str | None:
    if build.rocm:
        return "pytorch-triton-rocm" if build.numbers < (2, 10) else "triton-rocm"
    return "triton" if build.cuda else None


def _companions(
    build: _Build, minors: Iterable[int], machines: Iterable[str]
) -> Iterator[TinyWheel]:
    """What a torch of this line requires and others may share."""
    machines = [machine for machine in machines if machine == "x86_64" or not build.rocm]
    if (triton := _triton_name(build)) is not None:
        platform = "linux" if build.rocm else "manylinux_2_28"
        for machine, minor in itertools.product(machines, _pythons(build, minors)):
            tag = f"cp3{minor}-cp3{minor}-{platform}_{machine}"
            yield TinyWheel(triton, build.pin(_TRITON), tag=tag)
    if build.cuda and not build.static:
        yield from _cuda_wheels(build, machines)


def _cuda_wheels(build: _Build, machines: Iterable[str]) -> Iterator[TinyWheel]:
    runtime, name = build.pin(_RUNTIME) if not build.uses_toolkit else "", _runtime_name(build.line)
    if build.uses_toolkit:
        toolkit = build.pin(_TOOLKIT)
        runtime = _RUNTIME_OF_TOOLKIT[toolkit]
        requires = f'{name}=={runtime}.*; sys_platform == "linux" and extra == "cudart"'
        yield TinyWheel("cuda-toolkit", toolkit, (requires,), "py2.py3-none-any")
    pins = {name: runtime, f"nvidia-cudnn-{_cuda(build.line)}": build.pin(_CUDNN)}
    for machine in machines:
        # NVIDIA's CUDA 11 wheels are for x86_64 only.
        if machine == "x86_64" or _cuda(build.line) != "cu11":
            tag = f"py3-none-manylinux2014_{machine}"
            yield from (TinyWheel(package, version, tag=tag) for package, version in pins.items())
    yield from nccl_wheels(build.line, build.nccl or "", machines)


def _open_wheels(build: _Build, machines: Iterable[str]) -> Iterator[TinyWheel]:
    """What torch leaves open and what compiles for CUDA: of this line, and the newest of all."""
    if build.line not in _OPEN:
        return
    line, newest = _OPEN[build.line], _NEWEST[_cuda(build.line)]
    nvcc, cccl, nvjitlink = (dict.fromkeys(pair) for pair in zip(line, newest, strict=True))
    compilers = ("nvidia-nvvm", "nvidia-cuda-crt") if _cuda(build.line) == "cu13" else ()
    versions = dict.fromkeys(compilers, nvcc) | {
        _of_cuda("nvidia-cuda-cccl", build.line): cccl | {_EARLY_CCCL: None},
        _of_cuda("nvidia-nvjitlink", build.line): nvjitlink,
    }
    for machine in machines:
        tag = f"py3-none-manylinux2014_{machine}"
        name = _of_cuda("nvidia-cuda-nvcc", build.line)
        yield from (TinyWheel(name, version, compilers, tag) for version in nvcc)
        for package, found in versions.items():
            yield from (TinyWheel(package, version, tag=tag) for version in found)


def _sdk(build: _Build) -> Iterator[TinyWheel]:
    """ROCm in wheels, where it is not inside torch's."""
    if not build.has_sdk:
        return
    version, releases = _SDK
    requires = [f"rocm-sdk-core=={version}"]
    requires += [f"rocm-sdk-libraries=={version}; extra == 'libraries'"]
    for target in _TARGETS:
        device = f"rocm-sdk-device-{target}"
        requires += [f"{device}=={version}; extra == '{e}'" for e in (f"device-{target}", _ALL)]
        yield TinyWheel(device, version, tag="py3-none-linux_x86_64")
    for name in ("rocm-sdk-core", "rocm-sdk-libraries"):
        yield TinyWheel(name, version, tag="py3-none-linux_x86_64")
    yield from (TinyWheel("rocm", release, tuple(requires)) for release in releases)


def _tools(machines: Iterable[str]) -> Iterator[TinyWheel]:
    """What unpacks the wheels of an image, and what builds its self-test."""
    (uv, uv_version), (flit, flit_version) = _TOOLS
    yield TinyWheel(flit, flit_version)
    for machine in machines:
        yield TinyWheel(uv, uv_version, tag=f"py3-none-manylinux_2_17_{machine}")


def _common(minors: Iterable[int], machines: Iterable[str]) -> Iterator[TinyWheel]:
    """What has nothing to do with the line."""
    yield from (TinyWheel(name, version) for name, version in _PURE)
    for machine, minor in itertools.product(machines, minors):
        tag = f"cp3{minor}-cp3{minor}-manylinux_2_17_{machine}.manylinux2014_{machine}"
        for version, (first, last) in _NUMPY.items():
            if first <= minor <= last:
                yield TinyWheel("numpy", version, tag=tag)
