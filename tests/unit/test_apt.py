"""apt.py: the sources of a machine, the ones that are written, and a run of apt-get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucomm import apt
from gpucomm.apt import AptSource
from gpucomm.errors import Unusable

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEB822 = f"""\
Types: deb deb-src
# the release and its updates
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: https://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: {KEYRING}

Enabled: no
Types: deb
URIs: https://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = f"""\
# deb https://off.example/debian bookworm main
deb-src https://mirror.example/debian bookworm main
deb [arch=amd64,arm64 signed-by={KEYRING}] https://mirror.example/debian bookworm main contrib # it
deb https://mirror.example/debian-security bookworm-security main
"""
SOURCE = AptSource(
    uris=("https://mirror.example/debian",),
    suites=("bookworm",),
    components=("main",),
    options={"Signed-By": KEYRING},
)
SECURITY = AptSource(
    uris=("https://mirror.example/debian-security",),
    suites=("bookworm-security",),
    components=("main",),
    options={"Signed-By": KEYRING},
)
APT_GET = """\
#!/bin/sh
echo "$DEBIAN_FRONTEND: $*" >> {folder}/called
case "$*" in *" update") echo "no update"; exit {update} ;; esac
echo "no package"
exit {install}
"""


def test_os_release_values_lose_their_quotes() -> None:
    text = (
        'ID=debian\n# a comment\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n\nVERSION_ID="12"\n'
    )
    assert apt.parse_os_release(text) == {
        "ID": "debian",
        "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)",
        "VERSION_ID": "12",
    }


@pytest.mark.parametrize(
    ("sources", "arch"),
    [
        pytest.param(apt.parse_deb822(DEB822), "", id="deb822"),
        pytest.param(apt.parse_one_line(ONE_LINE), "amd64 arm64", id="one-line"),
    ],
)
def test_both_formats_give_the_same_mirror(sources: list[AptSource], arch: str) -> None:
    found = apt.distribution_source(sources, "bookworm")
    assert found is not None
    assert found.uris == ("https://mirror.example/debian",)
    assert found.options["Signed-By"] == KEYRING
    assert found.options.get("Architectures", "") == arch


def test_disabled_security_and_source_entries_are_no_mirror() -> None:
    sources = apt.parse_deb822(DEB822) + apt.parse_one_line(ONE_LINE)
    uris = {uri for source in sources for uri in source.uris}
    assert uris == {"https://mirror.example/debian", "https://mirror.example/debian-security"}
    security = [s for s in sources if "bookworm-security" in s.suites]
    assert apt.distribution_source(security, "bookworm") is None


def test_a_vendor_of_the_same_suite_and_component_is_not_the_mirror() -> None:
    vendor = replace(
        SOURCE,
        uris=("https://vendor.example/apt",),
        options={"Signed-By": "/usr/share/keyrings/vendor.gpg"},
    )
    assert apt.distribution_source([vendor, SOURCE], "bookworm") == SOURCE


def test_an_embedded_key_is_carried_whole() -> None:
    key = (
        "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n -----END PGP PUBLIC KEY BLOCK-----"
    )
    text = (
        "Types: deb\nURIs: https://mirror.example/debian\nSuites: trixie\nComponents: main\n"
        f"Signed-By:{key}\n"
    )
    found = apt.distribution_source(apt.parse_deb822(text), "trixie")
    assert found is not None
    assert key in apt.sources_text(found, ["forky"])


@pytest.mark.parametrize("sources", [apt.parse_deb822(DEB822), apt.parse_one_line(ONE_LINE)])
def test_security_updates_come_from_their_own_mirror(sources: list[AptSource]) -> None:
    found = apt.security_source(sources, "bookworm")
    assert found is not None
    assert found.uris == ("https://mirror.example/debian-security",)
    assert apt.security_source(sources, "trixie") is None


def test_a_vendor_of_the_security_suite_is_not_its_mirror() -> None:
    vendor = replace(
        SECURITY,
        uris=("https://vendor.example/apt",),
        options={"Signed-By": "/usr/share/keyrings/vendor.gpg"},
    )
    assert apt.security_source([vendor, SECURITY, SOURCE], "bookworm") == SECURITY


def test_security_without_main_is_none() -> None:
    contrib = replace(SECURITY, components=("contrib",))
    assert apt.security_source([contrib, SOURCE], "bookworm") is None


def test_one_stanza_can_carry_release_and_security() -> None:
    both = replace(SOURCE, suites=("noble", "noble-security"))
    assert apt.security_source([both], "noble") == both


def test_every_suite_gets_a_stanza_at_the_mirror() -> None:
    text = apt.sources_text(SOURCE, ["trixie", "forky"])
    assert [(s.uris, s.suites, s.options) for s in apt.parse_deb822(text)] == [
        (SOURCE.uris, ("trixie",), SOURCE.options),
        (SOURCE.uris, ("forky",), SOURCE.options),
    ]
    assert text.rstrip().endswith(
        "Suites: forky\nComponents: main\n" + f"Signed-By: {KEYRING}\nCheck-Valid-Until: no"
    )


def test_what_gpucomm_added_is_no_source_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text("deb https://one.example/debian bookworm main\n")
    (folder / "debian.sources").write_text(DEB822)
    (folder / "vendor.list").write_text("deb https://vendor.example/apt bookworm main\n")
    (folder / apt.SOURCES_FILE.name).write_text(apt.sources_text(SOURCE, ["forky"]))
    assert [source.uris[0] for source in apt.machine_sources(tmp_path)] == [
        "https://one.example/debian",
        "https://mirror.example/debian",
        "https://mirror.example/debian-security",
        "https://vendor.example/apt",
    ]
    assert apt.machine_sources(tmp_path / "none") == []


def fake_apt(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, update: int = 0, install: int = 0
) -> None:
    program = folder / "apt-get"
    program.write_text(APT_GET.format(folder=folder, update=update, install=install))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("update", [0, 100])
def test_an_install_asks_nothing_and_outlives_a_broken_update(
    update: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_apt(monkeypatch, tmp_path, update=update)
    said: list[str] = []
    apt.install(["one", "two"], said.append, log=tmp_path / "log")
    assert (tmp_path / "called").read_text().splitlines() == [
        "noninteractive: -o DPkg::Lock::Timeout=300 update",
        "noninteractive: -o DPkg::Lock::Timeout=300 install -y --no-install-recommends one two",
    ]
    before, after = said
    assert "one, two" in before
    assert str(tmp_path / "log") in before
    assert after.startswith("installed")


@pytest.mark.parametrize(("update", "step"), [(0, "install"), (100, "update and install")])
def test_a_failed_install_shows_its_own_log(
    update: int, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_apt(monkeypatch, tmp_path, update=update, install=7)
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    said: list[str] = []
    with pytest.raises(Unusable) as caught:
        apt.install(["one"], said.append, log=log)
    first, *tail = str(caught.value).splitlines()
    assert first == f"apt-get {step} failed (exit 7): see {log}, correct it, run again"
    assert tail[-1].strip() == "no package"
    assert "of an earlier run" not in "\n".join(tail)
    assert len(said) == 1


def test_without_apt_get_it_says_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unusable, match=r"apt-get.*run as root on"):
        apt.install(["one"], lambda _: None, log=tmp_path / "log")


@pytest.mark.parametrize(
    ("uid", "system", "program", "can"),
    [
        (0, "debian", True, True),
        (0, "ubuntu", True, True),
        (1000, "debian", True, False),
        (0, "fedora", True, False),
        (0, "debian", False, False),
    ],
)
def test_only_root_of_debian_or_ubuntu_can_install(
    uid: int,
    system: str,
    program: bool,
    can: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_apt(monkeypatch, tmp_path)
    if not program:
        (tmp_path / "apt-get").unlink()
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr(apt, "os_release", lambda: {"ID": system})
    assert apt.can_install() is can
