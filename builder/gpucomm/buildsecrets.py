"""What this machine lends to a build: CA bundle, index and apt mirrors, proxies, as build secrets.

They reach a step as mounted files and stay in no layer, no history and no cache key. Reading the
machine is `gather`; the texts are pure functions.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from gpucomm import apt, pages
from gpucomm.errors import WrongInput

Distribution: TypeAlias = Literal["debian", "ubuntu"]
MOUNT = "/run/gpucomm"
# By distribution: the keyring of its archive in its own images, the components that images need.
_ARCHIVES: Mapping[Distribution, tuple[str, str]] = {
    "debian": ("/usr/share/keyrings/debian-archive-keyring.gpg", "main"),
    "ubuntu": ("/usr/share/keyrings/ubuntu-archive-keyring.gpg", "main universe"),
}
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# What pip and uv read: each pair is one setting under its two names.
_INDEX_VARIABLES = (
    ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"),
    ("UV_INDEX", "PIP_EXTRA_INDEX_URL"),
    ("UV_INSECURE_HOST", "PIP_TRUSTED_HOST"),
)
_INDEX_NAME = re.compile(r"^[\w.-]+=")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
# Settings of this machine's apt that concern the way to a mirror.
_APT_SETTINGS = ("acquire::http::proxy", "acquire::https::proxy", "acquire::check-valid-until")


@dataclass(frozen=True, kw_only=True)
class BuildSecrets:
    """Secret id -> content. An absent id means that the image's own default holds."""

    files: Mapping[str, bytes]

    @contextmanager
    def on_disk(self) -> Iterator[dict[str, Path]]:
        """The secrets as files that only this user can read, gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="gpucomm-secrets-") as folder:
            paths = {name: Path(folder) / name for name in self.files}
            for name, path in paths.items():
                path.touch(mode=0o600)
                path.write_bytes(self.files[name])
            yield paths


def environment_text(env: Mapping[str, str], *, ca: bool, index: str | None) -> str:
    """Shell lines that a step sources: CA, index mirrors and proxies of `env`."""
    values: dict[str, str] = {}
    if ca:
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            values[name] = f"{MOUNT}/ca.crt"
    for uv_name, pip_name in _INDEX_VARIABLES:
        value = env.get(uv_name) or env.get(pip_name)
        if uv_name == "UV_DEFAULT_INDEX":
            value = value or env.get("UV_INDEX_URL") or index
        # A folder of this machine does not exist inside the build.
        remote = [word for word in (value or "").split() if not _is_local(_unnamed(word))]
        if remote:
            values[uv_name] = " ".join(remote)
            values[pip_name] = " ".join(map(_unnamed, remote))
    if (value := env.get(pages.MIRROR)) and not _is_local(value):
        values[pages.MIRROR] = value.rstrip("/")
    for name in PROXY_VARIABLES:
        if value := env.get(name) or env.get(name.upper()):
            values[name] = values[name.upper()] = value
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _unnamed(word: str) -> str:
    """The URL of uv's NAME=URL, which pip does not know; any other word as it is."""
    return _INDEX_NAME.sub("", word)


def _is_local(word: str) -> bool:
    return urlsplit(word).scheme == "file" or word.startswith(("/", "./", "../"))


def apt_conf_text(settings: Mapping[str, str], *, ca: bool, sources: bool) -> str:
    """apt.conf of the build: our sources instead of the image's, proxies, CA."""
    rows = dict(settings)
    if ca:
        rows["Acquire::https::CAInfo"] = f"{MOUNT}/ca.crt"
    if sources:
        rows["Dir::Etc::SourceList"] = f"{MOUNT}/sources.list"
        rows["Dir::Etc::SourceParts"] = "/dev/null"
    return "".join(f'{name} "{value}";\n' for name, value in rows.items())


def apt_sources(
    machine: Iterable[apt.AptSource],
    codenames: Iterable[str],
    release: str,
    mirror: str | None,
    distribution: Distribution = "debian",
) -> list[str]:
    """One-line sources of a `release` at `mirror`, else at this machine's own mirrors.

    `codenames` are the releases under which this machine may name its mirror. Empty when the
    machine has no such mirror: then the image's own sources hold.
    """

    def source(uri: str, suite: str) -> str:
        keyring, components = _ARCHIVES[distribution]
        return f"deb [signed-by={keyring}] {uri} {suite} {components}"

    if mirror is not None:
        if urlsplit(mirror).scheme not in ("http", "https", "file"):
            example = "https://mirror.example/debian"
            raise WrongInput(f"--apt-mirror {mirror!r} is not a URL such as {example}")
        return [source(mirror, release), source(mirror, f"{release}-updates")]
    known = list(machine)
    for codename in codenames:
        archive = apt.distribution_source(known, codename)
        if archive is None:
            continue
        lines = [source(uri, s) for uri in archive.uris for s in (release, f"{release}-updates")]
        security = apt.security_source(known, codename)
        if security is not None:
            lines += [source(uri, f"{release}-security") for uri in security.uris]
        return lines
    return []


def machine_apt_sources(
    release: str, mirror: str | None, distribution: Distribution = "debian"
) -> list[str]:
    """`apt_sources` for this machine: its own release first, then that of the image.

    Only mirrors of Debian are lent, and only to Debian: they have no Ubuntu. Ubuntu's codename
    names a mirror that has no Debian.
    """
    if distribution != "debian":
        return apt_sources([], [], release, mirror, distribution)
    machine = apt.os_release()
    own = machine.get("VERSION_CODENAME") if machine.get("ID") == "debian" else None
    codenames = [own, release] if own else [release]
    return apt_sources(apt.machine_sources(), codenames, release, mirror)


def gather(
    *,
    release: str,
    ca: Path | None,
    apt_mirror: str | None,
    distribution: Distribution = "debian",
    env: Mapping[str, str] = os.environ,
) -> BuildSecrets:
    """Read this machine's own configuration. Raises WrongInput for a CA file that is not there."""
    bundle = _ca_bundle(ca, env)
    sources = machine_apt_sources(release, apt_mirror, distribution)
    texts = {
        "env": environment_text(env, ca=bundle is not None, index=_pip_index(env)),
        "apt": apt_conf_text(_apt_settings(), ca=bundle is not None, sources=bool(sources)),
        "apt-sources": "".join(f"{line}\n" for line in sources),
    }
    files = {name: text.encode() for name, text in texts.items() if text}
    return BuildSecrets(files=files | ({"ca": bundle} if bundle is not None else {}))


def _ca_bundle(ca: Path | None, env: Mapping[str, str]) -> bytes | None:
    named = next((env[name] for name in _CA_VARIABLES if env.get(name)), None)
    path = ca or (Path(named) if named else None)
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        where = "--ca" if ca else "SSL_CERT_FILE or its kin"
        raise WrongInput(f"CA bundle {path} ({where}) cannot be read: {error.strerror}") from None


def _pip_index(env: Mapping[str, str]) -> str | None:
    """`index-url` of pip's own configuration files, which pip needs 0.8 s to tell (measured)."""
    config = configparser.ConfigParser(interpolation=None)
    home = Path(env.get("HOME", "/root"))
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    files = [Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"), home / ".pip/pip.conf", user]
    try:
        config.read([*files, Path(env.get("PIP_CONFIG_FILE", os.devnull))], encoding="utf-8")
    except configparser.Error as error:
        raise WrongInput(f"pip's configuration cannot be read: {error}") from None
    return config.get("global", "index-url", fallback=None)


def _apt_settings() -> dict[str, str]:
    try:
        done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    rows = (line.rstrip(";").split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return {
        name: value.strip('"')
        for name, value in rows
        if name.lower() in _APT_SETTINGS and value.strip('"')
    }
