"""engine.py: what its install writes, and what is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucomm import apt, engine
from gpucomm.apt import AptSource
from gpucomm.daemon import Say
from gpucomm.engine import Action, EngineInfo, Facts
from gpucomm.errors import Unusable

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = AptSource(
    uris=("https://mirror.example/debian",),
    suites=("bookworm",),
    components=("main",),
    options={"Signed-By": KEYRING},
)
BOTH_SUITES = f"""\
Types: deb
URIs: https://mirror.example/debian
Suites: trixie
Components: main
Signed-By: {KEYRING}

Types: deb
URIs: https://mirror.example/debian
Suites: forky
Components: main
Signed-By: {KEYRING}
Check-Valid-Until: no
"""
BOTH_PINS = """\
Package: *
Pin: release n=trixie
Pin-Priority: 100

Package: *
Pin: release n=forky
Pin-Priority: 90

Package: docker.io docker-cli containerd
Pin: release n=trixie
Pin-Priority: 990

Package: docker-buildx
Pin: release n=forky
Pin-Priority: 990
"""
FORKY_PINS = """\
Package: *
Pin: release n=forky
Pin-Priority: 90

Package: docker-buildx
Pin: release n=forky
Pin-Priority: 990
"""
FIT = EngineInfo(
    version="26.1.5+dfsg1",
    buildx="0.29.1+ds1",
    storage_driver="overlayfs",
    containerd_store=True,
    root_dir=Path("/var/lib/docker"),
    started_by_us=False,
    nvidia=False,
)
BOOKWORM = {"ID": "debian", "VERSION_CODENAME": "bookworm", "PRETTY_NAME": "Debian GNU/Linux 12"}
BARE = Facts(
    engine=None,
    root=True,
    os_release=BOOKWORM,
    source=SOURCE,
    apt=True,
    dockerd=False,
    docker_ce=False,
    denied=False,
    systemd=False,
    engine_env="",
    endpoint="",
)


def refusal(facts: Facts) -> list[str]:
    """The lines of the refusal; the first says what, where and what to do."""
    with pytest.raises(Unusable) as caught:
        engine.decide(facts)
    assert caught.value.exit_code == 3
    return str(caught.value).splitlines()


def test_sources_and_pins_of_debian_12() -> None:
    suites = engine.BORROWED_SUITES["bookworm"]
    assert apt.sources_text(SOURCE, suites) == BOTH_SUITES
    assert engine.pins_text(suites) == BOTH_PINS


def test_debian_13_borrows_only_buildx() -> None:
    suites = engine.BORROWED_SUITES["trixie"]
    assert apt.sources_text(SOURCE, suites).count("Suites: ") == 1
    assert engine.pins_text(suites) == FORKY_PINS


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ({"engine": FIT}, Action.USE),
        ({"engine": FIT, "engine_env": "none", "root": False}, Action.USE),
        ({"engine": FIT, "endpoint": "tcp://engine.example:2376"}, Action.USE),
        ({}, Action.INSTALL),
        ({"os_release": {"ID": "debian", "VERSION_CODENAME": "trixie"}}, Action.INSTALL),
        ({"os_release": {"ID": "ubuntu"}, "source": None}, Action.INSTALL),
        ({"dockerd": True}, Action.START),
        ({"dockerd": True, "os_release": {"ID": "fedora"}, "apt": False}, Action.START),
        ({"engine": replace(FIT, buildx="")}, Action.INSTALL_BUILDX),
        ({"engine": replace(FIT, buildx="0.13.1+ds1-3")}, Action.INSTALL_BUILDX),
    ],
)
def test_what_is_done(change: dict[str, Any], action: Action) -> None:
    assert engine.decide(replace(BARE, **change)) is action


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"engine_env": "none"}, "ENGINE=none forbids"),
        ({"engine_env": "none", "dockerd": True}, "ENGINE=none forbids"),
        ({"root": False}, "only root"),
        ({"os_release": {"ID": "fedora", "PRETTY_NAME": "Fedora Linux 43"}}, "Fedora Linux 43"),
        ({"os_release": {"ID": "debian", "VERSION_CODENAME": "bullseye"}}, "Debian 12"),
        ({"apt": False}, "with apt"),
        ({"source": None}, "with apt"),
    ],
)
def test_a_refusal_says_why_and_what_to_type(change: dict[str, Any], why: str) -> None:
    first, *commands = refusal(replace(BARE, **change))
    assert why in first
    assert any("dockerd" in command for command in commands)


def test_the_commands_of_a_refusal_are_the_install_itself() -> None:
    text = "\n".join(refusal(replace(BARE, root=False)))
    assert BOTH_SUITES.rstrip() + "\nEOF\n" in text
    assert BOTH_PINS.rstrip() + "\nEOF\n" in text
    assert "--no-install-recommends docker.io docker-cli docker-buildx containerd" in text
    assert text.index("daemon.json") < text.index("apt-get install") < text.index("setsid")


def test_systemd_starts_the_unit() -> None:
    assert refusal(replace(BARE, root=False, systemd=True))[-1] == "systemctl start docker"


@pytest.mark.parametrize("dockerd", [True, False])
def test_a_chosen_endpoint_is_never_replaced(dockerd: bool) -> None:
    facts = replace(BARE, endpoint="tcp://engine.example:2376", dockerd=dockerd)
    lines = refusal(facts)
    assert len(lines) == 1
    assert "tcp://engine.example:2376" in lines[0]


def test_a_socket_of_others_is_no_reason_to_install() -> None:
    (line,) = refusal(replace(BARE, root=False, denied=True))
    assert "usermod -aG docker" in line


def test_an_engine_without_the_store_is_left_alone() -> None:
    facts = replace(BARE, engine=replace(FIT, containerd_store=False), systemd=True)
    first, *commands = refusal(facts)
    assert "engine 26.1.5+dfsg1, buildx 0.29.1+ds1" in first
    assert commands == [engine.STORE_LINE, "systemctl restart docker"]


def test_an_engine_too_old_for_the_store_is_to_be_upgraded() -> None:
    old = replace(FIT, version="20.10.24", buildx="", containerd_store=False)
    assert "upgrade Docker Engine" in refusal(replace(BARE, engine=old))[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"root": False}, "apt-get install -y --no-install-recommends docker-cli docker-buildx"),
        ({"engine_env": "none"}, "docker-buildx"),
        ({"docker_ce": True}, "docker-buildx-plugin"),
        ({"os_release": {"ID": "ubuntu"}}, "cli-plugins"),
        ({"os_release": {"ID": "fedora"}}, "cli-plugins"),
    ],
)
def test_an_old_buildx_names_both_versions(change: dict[str, Any], words: str) -> None:
    facts = replace(BARE, engine=replace(FIT, buildx="0.13.1"), **change)
    lines = refusal(facts)
    assert "buildx 0.29 or newer" in lines[0]
    assert "engine 26.1.5+dfsg1, buildx 0.13.1" in lines[0]
    assert words in "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.29.1+ds1", (0, 29)), ("v0.30.0-desktop.1", (0, 30)), ("28.5.2", (28, 5)), ("", (0, 0))],
)
def test_versions_as_packagers_write_them(text: str, version: tuple[int, int]) -> None:
    assert engine.version_of(text) == version


def test_an_unreachable_endpoint_is_one_line(tmp_path: Path) -> None:
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    assert engine.probe(env) is None
    with pytest.raises(Unusable) as caught:
        engine.client(env)
    assert len(str(caught.value).splitlines()) == 1
    assert "none.sock" in str(caught.value)


@pytest.mark.parametrize("before", [True, False])
def test_a_failed_install_leaves_no_source_behind(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, pins = tmp_path / "sources", tmp_path / "pins"
    monkeypatch.setattr(engine, "SOURCES_FILE", sources)
    monkeypatch.setattr(engine, "PINS_FILE", pins)
    if before:
        sources.write_text("of an install that worked")

    def fail(packages: Sequence[str], say: Say) -> None:
        assert packages == engine.PACKAGES
        assert sources.read_text() == BOTH_SUITES
        assert pins.read_text() == BOTH_PINS
        raise Unusable("apt-get install failed")

    monkeypatch.setattr(apt, "install", fail)
    with pytest.raises(Unusable, match="apt-get install failed"):
        engine.install(BARE, engine.PACKAGES, lambda _: None)
    assert sources.exists() is before
    assert pins.exists() is before
