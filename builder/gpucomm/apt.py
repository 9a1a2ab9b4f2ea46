"""apt on the machine: what its sources are, what a new source looks like, how packages install.

Owns: os-release, the machine's apt sources, every run of apt-get. Must not decide which packages or
suites are wanted, nor write a source or a pin: the caller's recipe does both.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gpucomm.daemon import Say, log_tail
from gpucomm.errors import Unusable

LOCK_TIMEOUT = 300  # seconds to wait for another apt or dpkg
APT_LOG = Path("/var/log/gpucomm-apt.log")
# What gpucomm adds is no source of the machine's own.
SOURCES_FILE = Path("/etc/apt/sources.list.d/gpucomm-engine.sources")


# ---------------------------------------------------------------- what the machine is


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def parse_os_release(text: str) -> dict[str, str]:
    """The keys of an os-release file (os-release(5): shell assignments)."""
    pairs = (
        line.partition("=") for line in text.splitlines() if "=" in line and line.lstrip()[0] != "#"
    )
    return {key.strip(): " ".join(shlex.split(value)) for key, _, value in pairs}


def os_release() -> dict[str, str]:
    return parse_os_release(_read(Path("/etc/os-release")))


@dataclass(frozen=True, kw_only=True)
class AptSource:
    """One apt source: `options` are deb822 field names and their raw values."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)


# One-line option names (sources.list(5)) that say how a mirror is trusted and reached.
_ONE_LINE_OPTIONS = {"signed-by": "Signed-By", "trusted": "Trusted", "arch": "Architectures"}


def parse_deb822(text: str) -> list[AptSource]:
    """The enabled binary sources of a *.sources file (sources.list(5), DEB822-STYLE FORMAT)."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    sources = []
    for stanza in re.split(r"\n[ \t]*(?:\n|$)", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t") and name:
                fields[name] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        off = fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without")
        if off or "deb" not in fields.get("types", "").split():
            continue
        sources.append(
            AptSource(
                uris=tuple(fields.get("uris", "").split()),
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                options={
                    option: fields[option.lower()]
                    for option in _ONE_LINE_OPTIONS.values()
                    if option.lower() in fields
                },
            )
        )
    return sources


def parse_one_line(text: str) -> list[AptSource]:
    """The binary sources of a sources.list file (sources.list(5), ONE-LINE-STYLE FORMAT)."""
    sources = []
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if not found:
            continue
        raw, uri, suite, components = found.groups()
        pairs = (option.partition("=") for option in (raw or "").split())
        sources.append(
            AptSource(
                uris=(uri,),
                suites=(suite,),
                components=tuple(components.split()),
                options={
                    _ONE_LINE_OPTIONS[key.lower()]: value.replace(",", " ")
                    for key, _, value in pairs
                    if key.lower() in _ONE_LINE_OPTIONS
                },
            )
        )
    return sources


def _best(sources: Sequence[AptSource], suite: str, archive: str) -> AptSource | None:
    """The distribution's own source of `main` of exactly this suite.

    A vendor's repository can name the same suite and component; the distribution's is the one with
    its archive keyring (or none named) and a path that ends in `archive`.
    """

    def rank(source: AptSource) -> tuple[bool, bool]:
        key = source.options.get("Signed-By", "debian-archive-keyring")
        return (
            "debian-archive" in key,
            any(uri.rstrip("/").endswith(archive) for uri in source.uris),
        )

    fitting = [s for s in sources if suite in s.suites and "main" in s.components and s.uris]
    return max(fitting, key=rank, default=None)


def distribution_source(sources: Sequence[AptSource], codename: str) -> AptSource | None:
    """The machine's own Debian mirror: the source of the release `codename` that it runs."""
    return _best(sources, codename, "/debian")


def security_source(sources: Sequence[AptSource], codename: str) -> AptSource | None:
    """The machine's own mirror of that release's security updates (`<codename>-security`)."""
    return _best(sources, f"{codename}-security", "/debian-security")


def machine_sources(etc: Path = Path("/etc/apt")) -> list[AptSource]:
    """The enabled binary sources of this machine, without what gpucomm added."""
    folder = etc / "sources.list.d"
    sources = parse_one_line(_read(etc / "sources.list"))
    for path in sorted(folder.glob("*.sources")):
        if path.name != SOURCES_FILE.name:
            sources += parse_deb822(_read(path))
    for path in sorted(folder.glob("*.list")):
        sources += parse_one_line(_read(path))
    return sources


def sources_text(source: AptSource, suites: Sequence[str]) -> str:
    """A deb822 sources file for `suites` at the mirror, and with the key, of `source`."""
    stanzas = []
    for suite in suites:
        lines = [
            "Types: deb",
            f"URIs: {' '.join(source.uris)}",
            f"Suites: {suite}",
            "Components: main",
            *(f"{name}: {value}" for name, value in source.options.items()),
        ]
        if suite == suites[-1]:
            # The youngest suite is where mirrors lag; signatures are still checked.
            lines.append("Check-Valid-Until: no")
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


# ---------------------------------------------------------------- running apt


def _apt(arguments: Sequence[str], log: IO[bytes]) -> int:
    log.write(f"$ apt-get {' '.join(arguments)}\n".encode())
    log.flush()
    return subprocess.run(
        ["apt-get", "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        check=False,
    ).returncode


def can_install() -> bool:
    """Whether `install` can work here: root on Debian or Ubuntu, with apt-get."""
    return (
        os.geteuid() == 0
        and os_release().get("ID") in ("debian", "ubuntu")
        and shutil.which("apt-get") is not None
    )


def install(packages: Sequence[str], say: Say, *, log: Path = APT_LOG) -> None:
    """Install `packages` from the sources as they are. `say` gets a line before and one after.

    Raises Unusable with the log's path and its tail.
    """
    say(f"installing {', '.join(packages)} (log: {log})")
    began = time.monotonic()
    try:
        with log.open("ab") as file:
            start = file.tell()
            # A third party's broken repository fails the update while all that is needed is there:
            # the install is what decides.
            updated = _apt(["update"], file)
            code = _apt(["install", "-y", "--no-install-recommends", *packages], file)
    except OSError as error:
        raise Unusable(
            f"cannot run apt-get with its log in {log} ({error}): run as root on a Debian or Ubuntu"
        ) from None
    if code:
        step = "install" if updated == 0 else "update and install"
        raise Unusable(
            f"apt-get {step} failed (exit {code}): see {log}, correct it, run again\n"
            + log_tail(log, start)
        )
    say(f"installed in {time.monotonic() - began:.0f} s")
