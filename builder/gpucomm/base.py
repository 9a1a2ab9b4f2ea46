"""The base of an image: a registry image by digest, or Debian bootstrapped from signed packages.

Owns: the choice between the two, the bootstrap with mmdebstrap, and the cache of bootstrapped
bases. A bootstrapped base enters a build as `FROM scratch` + `ADD`, never by `docker import`, which
gives a new image id each time. Its identity is the sha256 of its tar: the same package versions
give the same bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Literal

from gpucomm import apt
from gpucomm.daemon import Say
from gpucomm.errors import Unusable, WorkFailed, WrongInput
from gpucomm.registry import Reachable, reachable
from gpucomm.schema import System

TAR = "base.tar"
RECORD = "base.json"
# What a slim image leaves out; licences stay.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-include=/usr/share/doc/apt/examples/*",
)
# Bootstrapping names the mirror of this machine in sources.list. The image gets the ones that its
# own apt package gives as the example instead, so that no mirror of a site stays in it. Since
# trixie that example is debian.sources.
_OWN_SOURCES = (
    "set -eu; apt=$1/etc/apt; examples=$1/usr/share/doc/apt/examples; "
    'rm "$apt/sources.list"; if [ -e "$examples/debian.sources" ]; then '
    "sed '/^#/d; s/^Components: main .*/Components: main/' "
    '"$examples/debian.sources" >"$apt/sources.list.d/debian.sources"; '
    'grep -q "^Types: deb$" "$apt/sources.list.d/debian.sources"; else '
    'sed \'/^deb /!d; s/ main .*/ main/\' "$examples/sources.list" >"$apt/sources.list"; '
    'grep -q "^deb " "$apt/sources.list"; fi; rm -r "$examples"'
)
_PACKAGES = (
    'dpkg-query --admindir="$1/var/lib/dpkg" -W -f \'${Package}=${Version}\\n\' >"$PACKAGES"'
)


@dataclass(frozen=True, kw_only=True)
class Base:
    """What stands behind `FROM base`. `identity` is a digest of its content."""

    kind: Literal["registry", "bootstrap"]
    identity: str
    context: str
    """For a bake target: `docker-image://…@sha256:…`, or the folder that holds base.tar."""
    note: str | None = None
    """What the person should know about the choice."""


def choose(
    system: System,
    image: str,
    name: str,
    digest: str | None,
    *,
    wanted: str,
    reach: Callable[[str], Reachable] = reachable,
) -> tuple[Literal["registry", "bootstrap"], str | None]:
    """Which source of `system` to take, and what to say about it. `image` is the registry's.

    `auto` takes the locked registry image, and bootstraps when its registry cannot be reached at
    all or the lock holds no digest for it.
    """
    only = None
    if system.distribution != "debian":
        only = f"{system.release} cannot be bootstrapped here"
    elif image != system.image:
        only = "a bootstrapped Debian has no such toolkit"
    if wanted == "bootstrap" and only is None:
        return "bootstrap", None
    if wanted == "bootstrap":
        raise WrongInput(f"base {name}: {only}; it comes from {image}: take --base registry")
    if digest is None:
        if wanted == "registry" or only:
            raise WrongInput(
                f"base {name}: the lock has no digest of {image}: run gpucomm lock where its "
                "registry can be reached"
            )
        return "bootstrap", f"base {name}: bootstrapped, the lock has no digest of {image}"
    answer = reach(image)
    if answer.ok or wanted == "registry" or only:
        return "registry", None
    return "bootstrap", f"base {name}: bootstrapped, {answer.reason}"


def registry_base(image: str, digest: str) -> Base:
    """The locked image of a registry."""
    repository = image.rsplit(":", 1)[0]
    return Base(kind="registry", identity=digest, context=f"docker-image://{repository}@{digest}")


def bootstrap(
    system: System, name: str, folder: Path, sources: Sequence[str], epoch: int, say: Say
) -> Base:
    """The bootstrapped base of `system`, from the cache below `folder` or made now.

    Needs mmdebstrap, which is installed when this user may. Two runs at once make one base.
    """
    # What decides the bytes besides the package versions of the mirror.
    recipe_text = json.dumps([system.release, _DPKG_OPTIONS, _OWN_SOURCES, epoch])
    recipe = hashlib.sha256(recipe_text.encode()).hexdigest()[:12]
    home = folder / f"{name}-{recipe}"
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        digest = _made(home)
        if digest is None:
            _ensure_mmdebstrap(say)
            digest = _make(system, home, sources, epoch, say)
    return Base(kind="bootstrap", identity=f"sha256:{digest}", context=str(home / "context"))


def _made(home: Path) -> str | None:
    """The digest of the base that `home` holds whole, else None: a full disk cuts files short."""
    try:
        facts = json.loads((home / RECORD).read_text(encoding="utf-8"))
        whole = (home / "context" / TAR).stat().st_size == facts["bytes"]
        return str(facts["sha256"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(system: System, home: Path, sources: Sequence[str], epoch: int, say: Say) -> str:
    say(f"bootstrapping Debian {system.release} (about a minute; kept for later builds)")
    started = time.monotonic()
    context = home / "context"
    context.mkdir(exist_ok=True)
    log = home / "log"
    with tempfile.TemporaryDirectory(dir=home, prefix="new-") as temporary:
        tar, packages = Path(temporary) / TAR, Path(temporary) / "packages.txt"
        command = [
            "mmdebstrap", "--variant=minbase", "--architectures=amd64",
            "--include=ca-certificates", "--aptopt=Acquire::Languages \"none\"",
            *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
            f"--customize-hook={_OWN_SOURCES}", f"--customize-hook={_PACKAGES}",
            system.release, str(tar), *sources,
        ]  # fmt: skip
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PACKAGES": str(packages)}
        with log.open("wb") as output:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0 or not packages.read_text().strip():
            tail = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
            raise WorkFailed(f"mmdebstrap of {system.release} failed: {tail}; full log: {log}")
        with tar.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        tar.replace(context / TAR)
        (context / "Dockerfile").write_text(f'FROM scratch\nADD {TAR} /\nCMD ["bash"]\n')
        packages.replace(home / "packages.txt")
    facts = {"sha256": digest, "bytes": (context / TAR).stat().st_size}
    temporary_record = home / f"{RECORD}.{os.getpid()}"
    temporary_record.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    temporary_record.replace(home / RECORD)
    say(f"bootstrapped in {time.monotonic() - started:.0f} s: sha256:{digest[:12]}")
    return digest


def _ensure_mmdebstrap(say: Say) -> None:
    if which("mmdebstrap"):
        return
    if not apt.can_install():
        raise Unusable(
            "mmdebstrap is missing: as root, apt-get install mmdebstrap, or lock a registry base "
            "with gpucomm lock where the registry can be reached"
        )
    apt.install(["mmdebstrap"], say)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
