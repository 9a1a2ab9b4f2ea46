"""The Docker engine: uses the one that answers, else installs and starts one, else says how.

Owns: finding the engine, whether it fits, and the recipe (packages, suites, pins) of its install.
Must not build, prune, or reconfigure or restart an engine that it did not start. Deciding is pure
(`decide`); the effects are below it. How apt and a dockerd are run is apt.py's and daemon.py's.

Packages and pins: docker.io 26.1.5 of Debian 13 with docker-buildx 0.29.1 of the suite after it is
the oldest pair that pushes zstd layers with rewritten timestamps and writes the metadata file.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException

from gpucomm import apt, daemon
from gpucomm.apt import APT_LOG, SOURCES_FILE, AptSource
from gpucomm.daemon import ANSWER_TIMEOUT, SYSTEM, Say

# tests/engine reaches a private daemon through this module.
from gpucomm.daemon import DaemonConfig as DaemonConfig
from gpucomm.daemon import running_daemon as running_daemon
from gpucomm.daemon import start as start
from gpucomm.daemon import start_time as start_time
from gpucomm.daemon import started_by_us as started_by_us
from gpucomm.daemon import write_daemon_config as write_daemon_config
from gpucomm.errors import Unusable

MIN_BUILDX = (0, 29)
MIN_ENGINE = (24, 0)  # the first whose daemon.json knows features.containerd-snapshotter

STORE_LINE = '{"features": {"containerd-snapshotter": true}}'
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd", "iptables", "ca-certificates")
UBUNTU_PACKAGES = ("docker.io", "docker-buildx", "iptables", "ca-certificates")
# Debian release -> the later suites that it borrows packages from.
BORROWED_SUITES = {"bookworm": ("trixie", "forky"), "trixie": ("forky",)}
BORROWED_PACKAGES = {"trixie": "docker.io docker-cli containerd", "forky": "docker-buildx"}

PINS_FILE = Path("/etc/apt/preferences.d/gpucomm-engine")


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What answers. `version` and `buildx` as they print themselves, `buildx` empty when absent."""

    version: str
    buildx: str
    storage_driver: str
    containerd_store: bool
    root_dir: Path
    started_by_us: bool
    nvidia: bool


# ---------------------------------------------------------------- deciding


class Action(enum.Enum):
    USE = "use the engine that answers"
    START = "start the installed engine"
    INSTALL = "install and start an engine"
    INSTALL_BUILDX = "install docker-buildx"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything the decision rests on."""

    engine: EngineInfo | None
    root: bool
    os_release: Mapping[str, str]
    source: AptSource | None  # the machine's own Debian mirror
    apt: bool
    dockerd: bool  # a dockerd is installed
    docker_ce: bool  # by Docker's own packages, which conflict with the distribution's
    denied: bool  # the socket is there and this user may not use it
    systemd: bool
    engine_env: str  # ENGINE
    endpoint: str  # DOCKER_HOST, or the docker context that was chosen; empty for the default
    daemon_config: Mapping[str, Any] = field(default_factory=dict)
    gc_limit: str = "40GB"


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of the first version in `text`; (0, 0) when there is none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def borrowed_suites(facts: Facts) -> tuple[str, ...] | None:
    """The suites to add for an install: () for Ubuntu, None where no install is known."""
    release = facts.os_release
    if release.get("ID") == "ubuntu" and facts.apt:
        return ()
    if release.get("ID") == "debian" and facts.apt and facts.source:
        return BORROWED_SUITES.get(release.get("VERSION_CODENAME", ""))
    return None


def packages_for(facts: Facts) -> tuple[str, ...]:
    return UBUNTU_PACKAGES if facts.os_release.get("ID") == "ubuntu" else PACKAGES


def pins_text(suites: Sequence[str]) -> str:
    """apt preferences that take the engine from `suites` and leave everything else alone."""
    everything = [("*", suite, 90 if suite == "forky" else 100) for suite in suites]
    engine = [(BORROWED_PACKAGES[suite], suite, 990) for suite in suites]
    return "\n".join(
        f"Package: {packages}\nPin: release n={suite}\nPin-Priority: {priority}\n"
        for packages, suite, priority in [*everything, *engine]
    )


def install_commands(facts: Facts, packages: Sequence[str]) -> list[str]:
    """What a person types, as root, for the install that `ensure` would do."""
    suites = borrowed_suites(facts)
    if suites is None:
        return [
            f"# install Docker Engine >= 26 and buildx >= {MIN_BUILDX[0]}.{MIN_BUILDX[1]} "
            "with your system's package manager"
        ]
    lines = []
    if suites and facts.source:
        for path, text in (
            (SOURCES_FILE, apt.sources_text(facts.source, suites)),
            (PINS_FILE, pins_text(suites)),
        ):
            lines += [f"cat > {path} <<'EOF'", *text.rstrip("\n").splitlines(), "EOF"]
    return [
        *lines,
        "apt-get update",
        f"apt-get install -y --no-install-recommends {' '.join(packages)}",
    ]


def _block(first: str, commands: Sequence[str]) -> str:
    # Not indented: an indented here-document would not end when it is pasted.
    return "\n".join([first, *commands])


def decide(facts: Facts) -> Action:
    """What to do. Raises Unusable with the exact commands where a person has to."""
    forbidden = facts.engine_env.lower() == "none"
    if facts.engine:
        return _decide_about(facts.engine, facts, forbidden)
    if facts.endpoint:
        raise Unusable(
            f"no Docker engine answers at {facts.endpoint}: start it there, or unset DOCKER_HOST "
            "and DOCKER_CONTEXT to use an engine on this machine"
        )
    if facts.denied:
        raise Unusable(
            f"this user may not use {SYSTEM.socket}: as root `usermod -aG docker USER`, then log "
            "in again"
        )
    why = ""
    if forbidden:
        why = "ENGINE=none forbids starting one"
    elif not facts.root:
        why = "only root can start one"
    elif not facts.dockerd and borrowed_suites(facts) is None:
        name = facts.os_release.get("PRETTY_NAME", "this system")
        why = (
            f"installing one is known for Debian 12, Debian 13 and Ubuntu with apt, not for {name}"
        )
    if not why:
        return Action.START if facts.dockerd else Action.INSTALL
    store, install = [], []
    if not facts.dockerd:
        store = daemon.store_commands(facts.daemon_config, facts.gc_limit)
        install = install_commands(facts, packages_for(facts))
    raise Unusable(
        _block(
            f"no Docker engine answers at {SYSTEM.socket} and {why}: as root, type",
            # The store is chosen before the first start: images do not move between stores.
            [*store, *install, daemon.start_command(facts.systemd)],
        )
    )


def _decide_about(engine: EngineInfo, facts: Facts, forbidden: bool) -> Action:
    versions = f"engine {engine.version}, buildx {engine.buildx or 'not found'}"
    where = facts.endpoint or str(SYSTEM.socket)
    if not engine.containerd_store:
        if version_of(engine.version) < MIN_ENGINE:
            raise Unusable(
                f"the engine at {where} is too old for the containerd image store ({versions}): "
                "upgrade Docker Engine to 26 or newer"
            )
        restart = daemon.restart_command(bool(facts.systemd or facts.endpoint))
        raise Unusable(
            _block(
                f"the engine at {where} has no containerd image store ({versions}): merge this "
                f"line into {SYSTEM.config_file} and restart it (images of the old store are "
                "hidden until the line is taken out)",
                [STORE_LINE, restart],
            )
        )
    if version_of(engine.buildx) >= MIN_BUILDX:
        return Action.USE
    wanted = f"buildx {MIN_BUILDX[0]}.{MIN_BUILDX[1]} or newer is needed ({versions})"
    if facts.docker_ce:
        raise Unusable(
            _block(
                f"{wanted}: as root, type",
                ["apt-get update", "apt-get install docker-ce-cli docker-buildx-plugin"],
            )
        )
    suites = borrowed_suites(facts)
    if engine.buildx and not suites:
        raise Unusable(
            f"{wanted} and no package of this release is known to bring it: put a newer "
            "docker-buildx into /usr/local/lib/docker/cli-plugins"
        )
    if facts.root and not forbidden and suites is not None:
        return Action.INSTALL_BUILDX
    raise Unusable(
        _block(f"{wanted}: as root, type", install_commands(facts, buildx_packages(facts)))
    )


def buildx_packages(facts: Facts) -> tuple[str, ...]:
    return tuple(p for p in packages_for(facts) if p in ("docker-cli", "docker-buildx"))


# ---------------------------------------------------------------- asking the engine


def _endpoint(env: Mapping[str, str]) -> str:
    """The engine a person chose: DOCKER_HOST or a docker context; empty for the default."""
    context = env.get("DOCKER_CONTEXT", "")
    if not env.get("DOCKER_HOST") and not context:
        config = Path(env.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            context = str(json.loads(config.read_text()).get("currentContext", ""))
    return env.get("DOCKER_HOST") or (context if context != "default" else "")


def _connect(env: Mapping[str, str], timeout: float = ANSWER_TIMEOUT) -> docker.DockerClient:
    where = _endpoint(env) or f"unix://{SYSTEM.socket}"
    if where.startswith("unix://"):
        daemon.knock(where.removeprefix("unix://"))
    return docker.from_env(
        timeout=int(timeout),
        environment=dict(env),
        use_ssh_client=env.get("DOCKER_HOST", "").startswith("ssh://"),
    )


def _output(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Standard output; empty when the command is absent, fails, or takes longer than 30 s."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, env=dict(env), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _nvidia(info: Mapping[str, Any]) -> bool:
    """Whether a GPU can be handed to a container: one is here, with a runtime or CDI spec."""
    if not Path("/dev/nvidiactl").exists():
        return False
    specs = (
        path
        for folder in info.get("CDISpecDirs") or ()
        for path in Path(folder).glob("*.[jy]*")
        if path.is_file()
    )
    return "nvidia" in (info.get("Runtimes") or {}) or any(
        "nvidia.com/gpu" in path.read_text(errors="replace") for path in specs
    )


def cache_limit(env: Mapping[str, str] = os.environ) -> str | None:
    """How much build cache the engine keeps, as buildx tells it: below it shared stages go."""
    return daemon.parse_gc_limit(_output(["docker", "buildx", "inspect"], env))


def probe(env: Mapping[str, str] = os.environ, config: DaemonConfig = SYSTEM) -> EngineInfo | None:
    """The engine that answers within ANSWER_TIMEOUT, or None. Changes nothing."""
    try:
        with contextlib.closing(_connect(env)) as connection:
            info: dict[str, Any] = connection.info()
    except (DockerException, OSError):
        return None
    if not info.get("ServerVersion"):
        return None
    # "github.com/docker/buildx 0.29.1 0.29.1-1": the words differ by packager, the second is it.
    words = _output(["docker", "buildx", "version"], env).split()
    store = dict(info.get("DriverStatus") or ()).get("driver-type", "")
    local = _endpoint(env) in ("", f"unix://{config.socket}")
    return EngineInfo(
        version=str(info["ServerVersion"]),
        buildx=words[1].removeprefix("v") if len(words) > 1 else "",
        storage_driver=str(info.get("Driver", "")),
        containerd_store=store == "io.containerd.snapshotter.v1",
        root_dir=Path(str(info.get("DockerRootDir", ""))),
        started_by_us=local and daemon.started_by_us(config),
        nvidia=_nvidia(info),
    )


def client(env: Mapping[str, str] = os.environ, timeout: float = 600) -> docker.DockerClient:
    """A connected client; `timeout` seconds per call. Raises Unusable when no engine answers."""
    try:
        connection = _connect(env, timeout)
        connection.ping()
    except (DockerException, OSError) as error:
        where = _endpoint(env) or str(SYSTEM.socket)
        reason = " ".join(str(error).split())
        raise Unusable(
            f"no Docker engine answers at {where}: start it, or run gpucomm as root to have one "
            f"installed and started ({reason})"
        ) from None
    return connection


# ---------------------------------------------------------------- effects


def gather(env: Mapping[str, str], engine: EngineInfo | None) -> Facts:
    """Read the facts of this machine. Raises Unusable when daemon.json cannot be read."""
    release = apt.os_release()
    # A broken daemon.json is no business of ours while an engine answers.
    config = {} if engine else daemon.read_daemon_config(SYSTEM.config_file)
    return Facts(
        engine=engine,
        root=os.geteuid() == 0,
        os_release=release,
        source=apt.distribution_source(apt.machine_sources(), release.get("VERSION_CODENAME", "")),
        apt=shutil.which("apt-get") is not None,
        dockerd=shutil.which("dockerd") is not None,
        docker_ce=Path("/var/lib/dpkg/info/docker-ce-cli.list").exists(),
        denied=SYSTEM.socket.exists() and not os.access(SYSTEM.socket, os.R_OK | os.W_OK),
        systemd=Path("/run/systemd/system").exists(),
        engine_env=env.get("ENGINE", ""),
        endpoint=_endpoint(env),
        daemon_config=config,
        gc_limit=daemon.gc_limit(config),
    )


def install(facts: Facts, packages: Sequence[str], say: Say) -> None:
    """Install `packages` by this system's recipe. Raises Unusable with apt's log; then no source of
    ours stays behind to break the machine's next `apt-get update`."""
    suites = borrowed_suites(facts)
    if suites is None:
        raise Unusable("no install is known for this system")
    if facts.os_release.get("ID") == "ubuntu":
        say("on Ubuntu this has not been tried: its own docker.io and docker-buildx are taken")
    first = not SOURCES_FILE.exists()
    if suites and facts.source:
        SOURCES_FILE.write_text(apt.sources_text(facts.source, suites))
        PINS_FILE.write_text(pins_text(suites))
    try:
        apt.install(packages, say)
    except Unusable:
        if suites and first:
            SOURCES_FILE.unlink(missing_ok=True)
            PINS_FILE.unlink(missing_ok=True)
        raise


def _act(action: Action, facts: Facts, say: Say) -> None:
    if action is Action.INSTALL_BUILDX:
        install(facts, buildx_packages(facts), say)
        return
    data_root = daemon.data_root(facts.daemon_config)
    # An engine that has run before keeps its store: switching it would hide its images.
    if not data_root.is_dir() or not any(data_root.iterdir()):
        # Before the install, because the package's own script may start the engine.
        daemon.write_daemon_config(SYSTEM, say)
    if action is Action.INSTALL:
        install(facts, packages_for(facts), say)
        if daemon.answers(SYSTEM):
            daemon.mark_started(SYSTEM)
            return
    (daemon.start_unit if facts.systemd else daemon.start)(SYSTEM, say)


def ensure(say: Say, env: Mapping[str, str] = os.environ) -> EngineInfo:
    """The engine to work with, installed and started when that is allowed and needed.

    `say` gets one line per thing done; a second call does and says nothing. Raises Unusable with
    the commands to type when a person has to do it (ENGINE=none, not root, unknown system).
    """
    engine = probe(env)
    if engine and decide(gather(env, engine)) is Action.USE:
        return engine
    with daemon.locked(say):
        # Install or start, then perhaps buildx, then use; what did not help once is not repeated.
        tried: set[Action] = set()
        while True:
            facts = gather(env, probe(env))
            action = decide(facts)
            if action is Action.USE and facts.engine:
                return facts.engine
            if action in tried:
                break
            tried.add(action)
            _act(action, facts, say)
    engine = facts.engine
    found = f"engine {engine.version}, buildx {engine.buildx}" if engine else "no engine answers"
    raise Unusable(
        f"{action.value}: done and still {found}: see {SYSTEM.log} and {APT_LOG}, and whether "
        "`docker buildx version` runs an older plugin of your own (~/.docker/cli-plugins)"
    )
