"""buildsecrets.py: what of this machine reaches a build, as texts and as files."""

from __future__ import annotations

import configparser
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucomm import apt, buildsecrets
from gpucomm.apt import AptSource
from gpucomm.buildsecrets import BuildSecrets, apt_conf_text, apt_sources, environment_text
from gpucomm.errors import WrongInput

KEY = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
INDEX = "https://user:p%40ss@mirror.example/simple"
CA = "/run/gpucomm/ca.crt"


def source(uri: str, *suites: str) -> AptSource:
    return AptSource(uris=(uri,), suites=suites, components=("main",))


DEBIAN = source("http://mirror.example/debian", "bookworm", "bookworm-updates")
SECURITY = source("http://mirror.example/debian-security", "bookworm-security")
TRIXIE = source("http://mirror.example/debian", "trixie", "trixie-updates")
UBUNTU = source("http://mirror.example/ubuntu", "noble", "noble-updates")


def exported(text: str) -> dict[str, str]:
    """What a shell of a build step has after it sourced `text`."""
    script = f"set -eu\n{text}env -0"
    out = subprocess.run(
        ["/bin/sh", "-c", script], env={}, capture_output=True, text=True, check=True
    ).stdout
    pairs = (row.partition("=") for row in out.split("\0") if row)
    return {name: value for name, _, value in pairs if name not in ("PWD", "_", "SHLVL", "OLDPWD")}


# ---------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {}),
        ({"UNRELATED": "x", "PATH": "/bin"}, {}),
        ({"PIP_INDEX_URL": INDEX}, {"PIP_INDEX_URL": INDEX, "UV_DEFAULT_INDEX": INDEX}),
        ({"UV_DEFAULT_INDEX": INDEX}, {"PIP_INDEX_URL": INDEX, "UV_DEFAULT_INDEX": INDEX}),
        ({"UV_INDEX_URL": INDEX}, {"PIP_INDEX_URL": INDEX, "UV_DEFAULT_INDEX": INDEX}),
        (
            {"PIP_EXTRA_INDEX_URL": f"{INDEX} https://two.example/simple"},
            {
                "PIP_EXTRA_INDEX_URL": f"{INDEX} https://two.example/simple",
                "UV_INDEX": f"{INDEX} https://two.example/simple",
            },
        ),
        (
            {"UV_INDEX": "https://two.example/simple"},
            {
                "PIP_EXTRA_INDEX_URL": "https://two.example/simple",
                "UV_INDEX": "https://two.example/simple",
            },
        ),
        (
            {"PIP_TRUSTED_HOST": "mirror.example"},
            {"PIP_TRUSTED_HOST": "mirror.example", "UV_INSECURE_HOST": "mirror.example"},
        ),
        ({"PIP_INDEX_URL": "file:///srv/wheels"}, {}),
        (
            {"PYTORCH_INDEX": "https://user:p%40ss@mirror.example/whl/"},
            {"PYTORCH_INDEX": "https://user:p%40ss@mirror.example/whl"},
        ),
        ({"PYTORCH_INDEX": ""}, {}),
        ({"PYTORCH_INDEX": "file:///srv/whl"}, {}),
        ({"PYTORCH_INDEX": "/srv/whl"}, {}),
        (
            {"UV_INDEX": f"file:///srv/wheels {INDEX}"},
            {"PIP_EXTRA_INDEX_URL": INDEX, "UV_INDEX": INDEX},
        ),
    ],
)
def test_indexes_are_told_to_pip_and_to_uv(
    env: Mapping[str, str], expected: dict[str, str]
) -> None:
    assert exported(environment_text(env, ca=False, index=None)) == expected


def test_the_index_of_pips_files_comes_last() -> None:
    text = environment_text({}, ca=False, index="https://file.example/simple")
    assert exported(text)["UV_DEFAULT_INDEX"] == "https://file.example/simple"
    text = environment_text({"PIP_INDEX_URL": INDEX}, ca=False, index="https://file.example/simple")
    assert exported(text)["UV_DEFAULT_INDEX"] == INDEX


def test_a_named_index_of_uv_is_a_plain_one_for_pip() -> None:
    """uv takes NAME=URL in UV_INDEX, pip does not."""
    text = environment_text({"UV_INDEX": "internal=https://two.example/s"}, ca=False, index=None)
    assert exported(text) == {
        "PIP_EXTRA_INDEX_URL": "https://two.example/s",
        "UV_INDEX": "internal=https://two.example/s",
    }
    url = "https://two.example/s?token=a=b"
    text = environment_text({"UV_INDEX": url}, ca=False, index=None)
    assert exported(text) == {"PIP_EXTRA_INDEX_URL": url, "UV_INDEX": url}


def test_a_named_folder_of_this_machine_is_dropped() -> None:
    for folder in ("file:///srv/wheels", "/srv/wheels", "./wheels"):
        for name in ("", "internal="):
            text = environment_text({"UV_INDEX": f"{name}{folder}"}, ca=False, index=None)
            assert exported(text) == {}


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "no_proxy", "all_proxy"])
def test_a_proxy_has_both_spellings(name: str) -> None:
    for given in (name, name.upper()):
        text = environment_text({given: "http://proxy.example:3128"}, ca=False, index=None)
        assert exported(text) == {
            name: "http://proxy.example:3128",
            name.upper(): "http://proxy.example:3128",
        }


def test_a_ca_is_named_as_the_file_that_the_step_has() -> None:
    text = environment_text({"SSL_CERT_FILE": "/etc/own.pem"}, ca=True, index=None)
    assert exported(text) == {"SSL_CERT_FILE": CA, "PIP_CERT": CA, "REQUESTS_CA_BUNDLE": CA}


@pytest.mark.parametrize("value", ["a'b", 'a"b', "$(touch /x)", "a;b", "a&b#c", "`id`", "a\\b"])
def test_no_value_is_read_by_the_shell(value: str) -> None:
    text = environment_text({"http_proxy": value}, ca=False, index=None)
    assert exported(text)["http_proxy"] == value


# ---------------------------------------------------------------- apt


def test_apt_conf() -> None:
    assert apt_conf_text({}, ca=False, sources=False) == ""
    text = apt_conf_text({"Acquire::http::Proxy": "http://p.example"}, ca=True, sources=True)
    assert text.splitlines() == [
        'Acquire::http::Proxy "http://p.example";',
        f'Acquire::https::CAInfo "{CA}";',
        'Dir::Etc::SourceList "/run/gpucomm/sources.list";',
        'Dir::Etc::SourceParts "/dev/null";',
    ]


def test_the_machines_own_mirror() -> None:
    assert apt_sources([DEBIAN, SECURITY], ["bookworm", "bookworm"], "bookworm", None) == [
        f"deb {KEY} http://mirror.example/debian bookworm main",
        f"deb {KEY} http://mirror.example/debian bookworm-updates main",
        f"deb {KEY} http://mirror.example/debian-security bookworm-security main",
    ]


def test_a_mirror_of_another_release_is_asked_for_that_of_the_image() -> None:
    assert apt_sources([TRIXIE], ["trixie", "bookworm"], "bookworm", None) == [
        f"deb {KEY} http://mirror.example/debian bookworm main",
        f"deb {KEY} http://mirror.example/debian bookworm-updates main",
    ]


def test_a_mirror_option_is_the_only_source() -> None:
    assert apt_sources([DEBIAN, SECURITY], ["bookworm"], "bookworm", "https://o.example/d") == [
        f"deb {KEY} https://o.example/d bookworm main",
        f"deb {KEY} https://o.example/d bookworm-updates main",
    ]


@pytest.mark.parametrize("mirror", ["mirror.example/debian", "", "ftp:/x", "/srv/debian"])
def test_a_mirror_that_is_no_url_is_wrong_input(mirror: str) -> None:
    with pytest.raises(WrongInput, match=r"--apt-mirror .* is not a URL"):
        apt_sources([DEBIAN], ["bookworm"], "bookworm", mirror)


def test_a_machine_without_sources_leaves_those_of_the_image() -> None:
    assert apt_sources([], ["bookworm"], "bookworm", None) == []
    assert apt_sources([UBUNTU], ["bookworm"], "bookworm", None) == []


def test_on_ubuntu_the_sources_of_the_image_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_CODENAME": "noble"}
    monkeypatch.setattr(apt, "os_release", lambda: release)
    monkeypatch.setattr(apt, "machine_sources", lambda: [UBUNTU])
    assert buildsecrets.machine_apt_sources("bookworm", None) == []
    monkeypatch.setattr(apt, "machine_sources", lambda: [UBUNTU, DEBIAN])
    assert len(buildsecrets.machine_apt_sources("bookworm", None)) == 2


@pytest.mark.parametrize("machine", ["debian", "ubuntu"])
def test_an_image_of_ubuntu_keeps_its_own_sources_unless_a_mirror_is_named(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror of Debian has no Ubuntu, whatever release this machine runs."""
    release = {"ID": machine, "VERSION_CODENAME": "bookworm" if machine == "debian" else "noble"}
    monkeypatch.setattr(apt, "os_release", lambda: release)
    monkeypatch.setattr(apt, "machine_sources", lambda: [DEBIAN, SECURITY, UBUNTU])
    assert buildsecrets.machine_apt_sources("noble", None, "ubuntu") == []
    key = "[signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg]"
    assert buildsecrets.machine_apt_sources("noble", "https://o.example/u", "ubuntu") == [
        f"deb {key} https://o.example/u noble main universe",
        f"deb {key} https://o.example/u noble-updates main universe",
    ]
    with pytest.raises(WrongInput, match="--apt-mirror"):
        buildsecrets.machine_apt_sources("noble", "mirror.example", "ubuntu")


def test_on_debian_the_machines_own_release_names_its_mirror(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apt, "os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "trixie"})
    monkeypatch.setattr(apt, "machine_sources", lambda: [TRIXIE])
    found = buildsecrets.machine_apt_sources("bookworm", None)
    assert found[0] == f"deb {KEY} http://mirror.example/debian bookworm main"


# ---------------------------------------------------------------- files


def test_secrets_are_private_and_gone_afterwards() -> None:
    secrets = BuildSecrets(files={"env": b"export A=b\n", "ca": b"PEM"})
    with secrets.on_disk() as paths:
        assert {name: path.read_bytes() for name, path in paths.items()} == secrets.files
        for path in paths.values():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not any(path.exists() or path.parent.exists() for path in paths.values())


def test_secrets_are_gone_after_an_interrupt() -> None:
    seen: list[Path] = []

    def interrupted() -> None:
        with BuildSecrets(files={"ca": b"PEM"}).on_disk() as paths:
            seen.extend(paths.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.parent.exists() for path in seen] == [False]


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """A machine without apt settings and sources, and without pip's own files in /etc."""

    read = configparser.ConfigParser.read

    def read_own(
        parser: configparser.ConfigParser, files: list[Path], encoding: str | None = None
    ) -> list[str]:
        own = [path for path in files if path.is_relative_to(tmp_path)]
        return read(parser, own, encoding)

    monkeypatch.setattr(configparser.ConfigParser, "read", read_own)
    monkeypatch.setattr(apt, "os_release", dict)
    monkeypatch.setattr(apt, "machine_sources", list)
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-config
    return {"HOME": str(tmp_path)}


def gather(env: Mapping[str, str], ca: Path | None = None) -> dict[str, bytes]:
    return dict(buildsecrets.gather(release="bookworm", ca=ca, apt_mirror=None, env=env).files)


def test_a_plain_machine_lends_nothing(quiet_machine: dict[str, str]) -> None:
    assert gather(quiet_machine) == {}


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_ca_of_the_environment(
    name: str, quiet_machine: dict[str, str], tmp_path: Path
) -> None:
    bundle, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    bundle.write_bytes(b"PEM")
    other.write_bytes(b"OTHER")
    found = gather(quiet_machine | {name: str(bundle)})
    assert found["ca"] == b"PEM"
    assert found["apt"] == f'Acquire::https::CAInfo "{CA}";\n'.encode()
    assert CA.encode() in found["env"]
    assert gather(quiet_machine | {name: str(bundle)}, ca=other)["ca"] == b"OTHER"


def test_a_missing_ca_file_is_wrong_input(quiet_machine: dict[str, str], tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    with pytest.raises(WrongInput, match=r"absent\.pem \(--ca\) cannot be read: No such file"):
        gather(quiet_machine, ca=absent)
    with pytest.raises(WrongInput, match=r"absent\.pem \(SSL_CERT_FILE or its kin\)"):
        gather(quiet_machine | {"SSL_CERT_FILE": str(absent)})


def test_the_index_of_pips_configuration_reaches_the_build(
    quiet_machine: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / ".config" / "pip"
    folder.mkdir(parents=True)
    (folder / "pip.conf").write_text("[global]\nindex-url = https://conf.example/%40/simple\n")
    text = gather(quiet_machine)["env"].decode()
    assert exported(text)["UV_DEFAULT_INDEX"] == "https://conf.example/%40/simple"
    named = tmp_path / "own.conf"
    named.write_text("[global]\nindex-url = https://own.example/simple\n")
    text = gather(quiet_machine | {"PIP_CONFIG_FILE": str(named)})["env"].decode()
    assert exported(text)["UV_DEFAULT_INDEX"] == "https://own.example/simple"


def test_a_broken_pip_configuration_is_wrong_input(
    quiet_machine: dict[str, str], tmp_path: Path
) -> None:
    broken = tmp_path / "own.conf"
    broken.write_text("index-url = x\n")
    with pytest.raises(WrongInput, match="pip's configuration cannot be read"):
        gather(quiet_machine | {"PIP_CONFIG_FILE": str(broken)})


def test_only_the_way_to_a_mirror_is_taken_of_apts_settings(
    quiet_machine: dict[str, str], tmp_path: Path
) -> None:
    tool = tmp_path / "apt-config"
    tool.write_text(
        "#!/bin/sh\n"
        "echo 'APT::Architecture \"arm64\";'\n"
        "echo 'Acquire::http::Proxy \"http://proxy.example:3142\";'\n"
        "echo 'Acquire::https::Proxy \"\";'\n"
        "echo 'Acquire::Check-Valid-Until \"false\";'\n"
    )
    tool.chmod(0o755)
    assert gather(quiet_machine)["apt"].decode().splitlines() == [
        'Acquire::http::Proxy "http://proxy.example:3142";',
        'Acquire::Check-Valid-Until "false";',
    ]
