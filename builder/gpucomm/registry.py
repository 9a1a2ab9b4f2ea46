"""Image references, and pushing to and pulling from a registry.

Owns: what a reference means, whether a registry answers, and reading the result of a push or pull:
the engine reports a failed push inside a stream that ends normally. Credentials are docker's own.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucomm.errors import GpucommError, Unusable, WorkFailed, WrongInput
from gpucomm.schema import repository_name

if TYPE_CHECKING:  # a name is checked before every command, and most of them ask no engine
    import docker

TIMEOUT = 5.0  # seconds until a silent registry counts as unreachable
LINE = 300  # characters of a failure's line, with what the engine said cut to fit
_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
# What a registry or the engine says when an image is not there.
_ABSENT = ("manifest unknown", "not found", "name unknown", "repository does not exist")
# Then it is a part of an image that is published, and damaged.
_PART = ("content descriptor", "/blobs/")
# What the engine says when the registry did not answer at all, or not as one. A connection that
# broke off later (EOF, reset) is a failed push or pull.
_UNREACHABLE = (
    "connection refused",
    "no such host",
    "no route to host",
    "i/o timeout",
    "network is unreachable",
    "context deadline exceeded",
    "tls handshake timeout",
    "server misbehaving",
    "server gave http response to https client",
    "tls: ",
    "x509: ",
)
# The containerd image store tells a push's digest in this line, the graph drivers in `aux`.
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64}) size: \d+$")
# Blobs are fetched from signed URLs: whoever has the query has the access.
_QUERY = re.compile(r"(\w+://[^\s\"'<>?]+)\?[^\s\"'<>]*")
_DENIED = ("unauthorized", "denied", "authentication required", "no basic auth")


def check_name(name: str) -> str:
    """`name` if it is `host[:port]/path` without a tag, else WrongInput."""
    try:
        return repository_name(name)
    except ValueError as error:
        raise WrongInput(f"REGISTRY {error}") from None


def host_of(reference: str) -> str:
    """The registry host of an image reference, as Docker reads it."""
    first = reference.split("/", 1)[0]
    is_host = "/" in reference and ("." in first or ":" in first or first == "localhost")
    return first if is_host else _HUB


@dataclass(frozen=True, kw_only=True)
class Reachable:
    """Whether a registry answered anything, and if not, why."""

    ok: bool
    reason: str = ""


def reachable(reference: str) -> Reachable:
    """Ask the registry of `reference` for its API version; any HTTP answer counts."""
    host = host_of(reference)
    local = host.split(":")[0] in ("localhost", "127.0.0.1")
    api = _HUB_API if host == _HUB else host
    url = f"{'http' if local else 'https'}://{api}/v2/"
    try:
        # No proxy leads to this machine's loopback; the engine does not ask one either.
        handlers = [urllib.request.ProxyHandler({})] if local else []
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT):
            return Reachable(ok=True)
    except urllib.error.HTTPError:
        return Reachable(ok=True)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return Reachable(ok=False, reason=f"registry {host} cannot be reached ({reason})")


def digest_of(reference: str) -> str:
    """The digest that `reference` has in its registry now. Raises by class of failure."""
    command = [
        "docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise failure(reference, " ".join(done.stderr.split()), "lock")
    return str(json.loads(done.stdout)["digest"])


def push(client: docker.DockerClient, repository: str, tag: str) -> str:
    """Push a local image as it is; returns the digest that the registry now has for the tag."""
    from docker.errors import APIError

    reference = f"{repository}:{tag}"
    try:
        events = client.images.push(repository, tag=tag, stream=True, decode=True)
        digest = pushed_digest(events, reference)
    except APIError as error:
        raise failure(reference, str(error.explanation or error), "push") from None
    return digest


def pushed_digest(events: Iterable[Mapping[str, Any]], reference: str) -> str:
    """Read the stream of a push to its end. An error in it, or no digest, is a failure."""
    digest: str | None = None
    for event in events:
        if "error" in event:
            raise failure(reference, str(event["error"]), "push")
        if found := _PUSHED.search(str(event.get("status", ""))):
            digest = found[1]
        digest = (event.get("aux") or {}).get("Digest", digest)
    if digest is None:
        raise WorkFailed(f"push {reference}: the registry confirmed no digest; push again")
    return digest


def pull(client: docker.DockerClient, repository: str, tag: str) -> str:
    """Pull `repository:tag`; returns the image's digest.

    The SDK's own `images.pull` skips errors in the stream, and then finds the image of before.
    """
    from docker.errors import APIError, ImageNotFound, NotFound

    reference = f"{repository}:{tag}"
    try:
        for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise failure(reference, str(event["error"]), "pull")
        image = client.images.get(reference)
    except (APIError, ImageNotFound, NotFound) as error:
        raise failure(reference, str(error.explanation or error), "pull") from None
    return str(image.id)


def failure(reference: str, message: str, verb: str) -> GpucommError:
    """The error class and the advice that fit what the engine or the registry said.

    One line of about LINE characters, without the queries of URLs.
    """
    text = message.lower()
    host = host_of(reference)
    if any(sign in text for sign in _UNREACHABLE):
        return Unusable(
            _line(
                f"{verb} {reference}: registry {host} cannot be reached (",
                message,
                "); check REGISTRY= and the network, then run it again",
            )
        )
    if any(sign in text for sign in _DENIED):
        return WorkFailed(
            _line(
                f"{verb} {reference}: {host} refused access, or has no such image (",
                message,
                f"); docker login {host}",
            )
        )
    part = any(sign in text for sign in _PART)
    if verb == "pull" and not part and any(sign in text for sign in _ABSENT):
        tag = reference.rsplit(":", 1)[-1]
        return WorkFailed(f"{reference} is not published; build it: make build TARGET={tag}")
    return WorkFailed(_line(f"{verb} {reference}: ", message))


def _line(before: str, message: str, after: str = "") -> str:
    """`message` between the two: on one line, without queries, its middle cut out to fit.

    What was asked for stands at its beginning, the cause at its end.
    """
    text = _QUERY.sub(r"\1", " ".join(message.split()))
    room = max(LINE - len(before) - len(after), 60)
    if len(text) > room:
        head = room // 3
        text = f"{text[:head]}…{text[head + 1 - room :]}"
    return f"{before}{text}{after}"
