"""One dockerd: where it keeps its things, its daemon.json, its pid files, and its start.

Owns: DaemonConfig, daemon.json before a first start, starting dockerd with and without systemd (one
gpucomm at a time), logs' tails, and the mark by which a later run knows what it started. Must not
install anything, nor stop or reconfigure a daemon that answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException

from gpucomm.errors import Unusable

Say = Callable[[str], None]

ANSWER_TIMEOUT = 10  # seconds for one API call
START_TIMEOUT = 60.0  # seconds until a started dockerd must answer


@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    """Where one dockerd keeps its things. `args` are its flags; the paths must agree with them."""

    socket: Path = Path("/var/run/docker.sock")
    pid_files: tuple[Path, ...] = (
        Path("/var/run/docker.pid"),
        Path("/var/run/docker/containerd/containerd.pid"),
    )
    config_file: Path = Path("/etc/docker/daemon.json")
    log: Path = Path("/var/log/gpucomm-dockerd.log")
    state: Path = Path("/run/gpucomm-engine.json")
    args: tuple[str, ...] = ()
    timeout: float = START_TIMEOUT

    @classmethod
    def under(cls, root: Path, *extra: str) -> DaemonConfig:
        """A private daemon below `root`. Give it its own network namespace: a second dockerd in
        one removes the bridge of the first."""
        exec_root, pid_file, socket = root / "exec", root / "docker.pid", root / "docker.sock"
        return cls(
            socket=socket,
            pid_files=(pid_file, exec_root / "containerd" / "containerd.pid"),
            config_file=root / "daemon.json",
            log=root / "dockerd.log",
            state=root / "engine.json",
            args=(
                f"--host=unix://{socket}",
                f"--pidfile={pid_file}",
                f"--exec-root={exec_root}",
                f"--data-root={root / 'data'}",
                f"--config-file={root / 'daemon.json'}",
                *extra,
            ),
        )


SYSTEM = DaemonConfig()


# ---------------------------------------------------------------- daemon.json


def gc_limit_for(disk_total: int) -> str:
    """Build cache to keep, in daemon.json's notation, for a file system of `disk_total` bytes.

    40 GB holds the shared stages and the wheel cache of several torch versions; a smaller disk
    gives at most two fifths of itself.
    """
    return f"{max(1, min(40, disk_total * 2 // 5 // 10**9))}GB"


def merge_daemon_config(config: Mapping[str, Any], limit: str) -> dict[str, Any]:
    """`config` plus the containerd image store and a build cache limit; no set key changes.

    The limit is a policy of its own because the engine's default one cuts cache mounts, the wheel
    cache among them, to 512 MB after two days.
    """
    features = {"containerd-snapshotter": True, **config.get("features", {})}
    gc = {"enabled": True, "policy": [{"all": True, "keepStorage": limit}]}
    builder = {"gc": gc, **config.get("builder", {})}
    return {**config, "features": features, "builder": builder}


def parse_gc_limit(text: str) -> str | None:
    """The limit of the last, widest rule of `docker buildx inspect`'s GC policy."""
    limits = re.findall(
        r"^\s*(?:Keep Bytes|Reserved [Ss]pace|Max [Uu]sed [Ss]pace):\s*(\S+)", text, re.M
    )
    return limits[-1] if limits else None


def read_daemon_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text() or "{}")
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} is not valid JSON ({error}): correct it by hand") from None
    if not isinstance(config, dict):
        raise Unusable(f"{path} must hold one JSON object: correct it by hand")
    for key in ("features", "builder"):
        if not isinstance(config.get(key, {}), dict):
            raise Unusable(f"{path}: {key} must be a JSON object: correct it by hand")
    return config


def data_root(config: Mapping[str, Any]) -> Path:
    return Path(str(config.get("data-root", "/var/lib/docker")))


def gc_limit(config: Mapping[str, Any]) -> str:
    """`gc_limit_for` the disk that a daemon with this daemon.json keeps its data on."""
    root = data_root(config)
    existing = next(path for path in (root, *root.parents) if path.exists())
    return gc_limit_for(shutil.disk_usage(existing).total)


def write_daemon_config(config: DaemonConfig, say: Say) -> None:
    """Merge our keys into the daemon's config file. Raises Unusable when it is not JSON."""
    before = read_daemon_config(config.config_file)
    limit = gc_limit(before)
    after = merge_daemon_config(before, limit)
    if after == before:
        return
    config.config_file.parent.mkdir(parents=True, exist_ok=True)
    draft = config.config_file.with_suffix(".gpucomm-new")
    draft.write_text(json.dumps(after, indent=2) + "\n")
    draft.replace(config.config_file)
    say(f"wrote {config.config_file}: containerd image store, at most {limit} of build cache")


def store_commands(config: Mapping[str, Any], limit: str) -> list[str]:
    """What a person types, as root, for what `write_daemon_config` does to the system's daemon."""
    return [
        f"mkdir -p {SYSTEM.config_file.parent}",
        f"cat > {SYSTEM.config_file} <<'EOF'",
        json.dumps(merge_daemon_config(config, limit)),
        "EOF",
    ]


# ---------------------------------------------------------------- processes and pid files


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the command (proc(5)); None when dead or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZXx" else fields


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with its pid, its identity."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _command_name(pid: int) -> str:
    if _stat(pid) is None:
        return ""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def read_pid(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def drop_stale_pid_files(config: DaemonConfig, say: Say) -> None:
    """Remove pid files whose process is not the program of that file.

    dockerd only asks whether some process has the pid, so after a reboot of a container it refuses
    to start because of a process that merely inherited the number.
    """
    for path, program in zip(config.pid_files, ("dockerd", "containerd"), strict=True):
        if not path.exists():
            continue
        pid = read_pid(path)
        if pid is None or _command_name(pid) != program:
            say(f"removing stale {path}: process {pid} is not {program}")
            path.unlink(missing_ok=True)


def running_daemon(config: DaemonConfig) -> int | None:
    """The pid of the dockerd of this config, answering or not."""
    pid = read_pid(config.pid_files[0])
    return pid if pid is not None and _command_name(pid) == "dockerd" else None


def mark_started(config: DaemonConfig) -> None:
    """Remember the dockerd that runs now as started by us."""
    pid = running_daemon(config)
    if pid is not None:
        config.state.write_text(json.dumps({"pid": pid, "start_time": start_time(pid)}) + "\n")


def started_by_us(config: DaemonConfig) -> bool:
    """Whether the dockerd that runs now is the very process that `start` began."""
    try:
        state = json.loads(config.state.read_text())
        pid, began = int(state["pid"]), int(state["start_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return pid == running_daemon(config) and start_time(pid) == began


# ---------------------------------------------------------------- starting


@contextlib.contextmanager
def locked(say: Say) -> Iterator[None]:
    """One preparation of the engine at a time on this machine; the lock ends with its process."""
    uid = os.geteuid()
    path = (
        Path("/run/gpucomm-engine.lock")
        if uid == 0
        else Path(tempfile.gettempdir()) / f"gpucomm-engine-{uid}.lock"
    )
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another gpucomm that prepares the engine")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_command(systemd: bool) -> str:
    """What a person types, as root, to start the system's daemon."""
    if systemd:
        return "systemctl start docker"
    return f"setsid nohup dockerd </dev/null >>{SYSTEM.log} 2>&1 &"


def restart_command(systemd: bool) -> str:
    if systemd:
        return "systemctl restart docker"
    return "kill -TERM $(cat /var/run/docker.pid); sleep 5; " + start_command(systemd)


def knock(path: str) -> None:
    """Raise OSError when nothing listens there: the SDK leaks a socket per failed connect."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(path)


def log_tail(path: Path, start: int = 0, lines: int = 15) -> str:
    """The last lines of a log from byte `start` on, indented; empty when it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in text[-lines:])
    return ""


def answers(config: DaemonConfig) -> bool:
    """Whether a daemon answers at this very socket, whatever the environment chose."""
    try:
        knock(str(config.socket))
        with contextlib.closing(
            docker.DockerClient(base_url=f"unix://{config.socket}", timeout=ANSWER_TIMEOUT)
        ) as connection:
            return bool(connection.ping())
    except (DockerException, OSError):
        return False


def _wait(config: DaemonConfig, died: Callable[[], str | None]) -> None:
    deadline = time.monotonic() + config.timeout
    while not answers(config):
        cause = died()
        if cause is None and time.monotonic() > deadline:
            cause = f"dockerd does not answer after {config.timeout:.0f} s"
        if cause:
            raise Unusable(f"{cause}: see {config.log}, correct it, run again")
        time.sleep(0.2)


def start(config: DaemonConfig, say: Say) -> None:
    """Start dockerd in a session of its own and wait until it answers.

    A dockerd of this config that runs but does not answer yet is waited for, never doubled. Raises
    Unusable, with the log's tail, as soon as the process dies or after `config.timeout` seconds.
    """
    drop_stale_pid_files(config, say)
    if running_daemon(config):
        say("waiting for the dockerd that is already running")
        _wait(config, lambda: None)
        return
    began = time.monotonic()
    config.log.parent.mkdir(parents=True, exist_ok=True)
    with config.log.open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            ["dockerd", *config.args],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )

    def died() -> str | None:
        code = process.poll()
        return None if code is None else f"dockerd ended at once (exit {code})"

    try:
        _wait(config, died)
    except Unusable as error:
        # Left alone it would hold the data root against the next try.
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        raise Unusable(f"{error}\n{log_tail(config.log, offset)}") from None
    # It outlives us on purpose; without this Popen warns that nobody waited for it.
    process.returncode = 0
    mark_started(config)
    say(f"started dockerd (pid {process.pid}) in {time.monotonic() - began:.1f} s: {config.log}")


def start_unit(config: DaemonConfig, say: Say) -> None:
    """Start docker.service and wait until it answers. Raises Unusable when it does not."""
    done = subprocess.run(
        ["systemctl", "start", "docker"],
        capture_output=True,
        text=True,
        timeout=config.timeout + 30,
        check=False,
    )
    if done.returncode:
        raise Unusable(
            "systemctl start docker failed: see `journalctl -u docker`\n" + done.stderr.rstrip()
        )
    _wait(replace(config, log=Path("journalctl -u docker")), lambda: None)
    mark_started(config)
    say("started docker.service")
