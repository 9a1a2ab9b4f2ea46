"""base.py: which base is taken and why, and the bootstrap with its cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from gpucomm import apt, base
from gpucomm.base import Base
from gpucomm.errors import Unusable, WorkFailed, WrongInput
from gpucomm.registry import Reachable
from gpucomm.schema import System

DIGEST = f"sha256:{'ab' * 32}"
SYSTEM = System(
    distribution="debian",
    release="bookworm",
    python="3.11",
    glibc="2.36",
    architectures=["amd64"],
    image="registry.example:5000/library/debian:bookworm-slim",
    base="auto",
)
SOURCES = ["deb http://mirror.example/debian bookworm main"]
UP = Reachable(ok=True)
DOWN = Reachable(ok=False, reason="registry registry.example:5000 cannot be reached (timed out)")
NO_DIGEST = (
    "base debian12: bootstrapped, the lock has no digest of "
    "registry.example:5000/library/debian:bookworm-slim"
)


@pytest.mark.parametrize(
    ("wanted", "digest", "answer", "kind", "note"),
    [
        ("auto", DIGEST, UP, "registry", None),
        ("auto", DIGEST, DOWN, "bootstrap", f"base debian12: bootstrapped, {DOWN.reason}"),
        ("auto", None, UP, "bootstrap", NO_DIGEST),
        ("auto", None, DOWN, "bootstrap", NO_DIGEST),
        ("registry", DIGEST, UP, "registry", None),
        # The engine may still have it; if not, its pull fails with the engine's own reason.
        ("registry", DIGEST, DOWN, "registry", None),
        ("bootstrap", DIGEST, UP, "bootstrap", None),
        ("bootstrap", DIGEST, DOWN, "bootstrap", None),
        ("bootstrap", None, UP, "bootstrap", None),
        ("bootstrap", None, DOWN, "bootstrap", None),
    ],
)
def test_choice(
    wanted: str,
    digest: str | None,
    answer: Reachable,
    kind: Literal["registry", "bootstrap"],
    note: str | None,
) -> None:
    found = base.choose(
        SYSTEM, SYSTEM.image, "debian12", digest, wanted=wanted, reach=lambda _: answer
    )
    assert found == (kind, note)


TOOLKIT = "registry.example:5000/nvidia/cuda:13.0.3-devel-ubuntu24.04"
UBUNTU = SYSTEM.model_copy(
    update={"distribution": "ubuntu", "release": "noble", "base": "registry"}
)


@pytest.mark.parametrize(
    ("system", "image", "why"),
    [
        (UBUNTU, UBUNTU.image, "noble cannot be bootstrapped here"),
        (SYSTEM, TOOLKIT, "a bootstrapped Debian has no such toolkit"),
    ],
    ids=["ubuntu", "toolkit"],
)
def test_what_cannot_be_bootstrapped_comes_from_its_registry_or_not_at_all(
    system: System, image: str, why: str
) -> None:
    def chosen(digest: str | None, wanted: str, answer: Reachable) -> object:
        return base.choose(system, image, "one", digest, wanted=wanted, reach=lambda _: answer)

    for wanted in ("auto", "registry"):
        for answer in (UP, DOWN):
            assert chosen(DIGEST, wanted, answer) == ("registry", None)
        with pytest.raises(WrongInput, match=f"no digest of {image}: run gpucomm lock where"):
            chosen(None, wanted, DOWN)
    with pytest.raises(WrongInput, match=f"{why}; it comes from {image}: take --base registry"):
        chosen(DIGEST, "bootstrap", UP)


@pytest.mark.parametrize("answer", [UP, DOWN])
def test_a_registry_base_without_a_digest_is_wrong_input(answer: Reachable) -> None:
    with pytest.raises(WrongInput, match=r"no digest of registry\.example.*gpucomm lock"):
        base.choose(
            SYSTEM, SYSTEM.image, "debian12", None, wanted="registry", reach=lambda _: answer
        )


def test_the_registry_of_the_image_is_asked_and_only_when_it_matters() -> None:
    asked: list[str] = []

    def reach(reference: str) -> Reachable:
        asked.append(reference)
        return UP

    base.choose(SYSTEM, SYSTEM.image, "debian12", None, wanted="auto", reach=reach)
    base.choose(SYSTEM, SYSTEM.image, "debian12", DIGEST, wanted="bootstrap", reach=reach)
    assert asked == []
    base.choose(SYSTEM, SYSTEM.image, "debian12", DIGEST, wanted="auto", reach=reach)
    assert asked == [SYSTEM.image]


def test_a_registry_base_is_named_by_digest_and_without_its_tag() -> None:
    assert base.registry_base(SYSTEM.image, DIGEST) == Base(
        kind="registry",
        identity=DIGEST,
        context=f"docker-image://registry.example:5000/library/debian@{DIGEST}",
    )


# ---------------------------------------------------------------- bootstrapping

MMDEBSTRAP = """\
#!{python}
import os, sys, time
from pathlib import Path

with Path({calls!r}).open("a") as calls:
    calls.write("\\0".join([os.environ["SOURCE_DATE_EPOCH"], *sys.argv[1:]]) + "\\n")
time.sleep({seconds})
tar = next(Path(word) for word in sys.argv if word.endswith(".tar"))
tar.write_bytes(b"the root file system")
Path(os.environ["PACKAGES"]).write_text({packages!r})
print("I: one"); print("E: no mirror", file=sys.stderr)
sys.exit({code})
"""


class Fake:
    """A mmdebstrap first on PATH that writes a tar and remembers its calls."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "calls"
        self._tool = folder / "bin" / "mmdebstrap"
        self._tool.parent.mkdir()
        self.bin = self._tool.parent

    def install(self, code: int = 0, packages: str = "apt=1\n", seconds: float = 0) -> None:
        self._tool.write_text(
            MMDEBSTRAP.format(
                python=sys.executable, calls=str(self._log),
                code=code, packages=packages, seconds=seconds,
            )
        )  # fmt: skip
        self._tool.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        if not self._log.exists():
            return []
        return [line.split("\0") for line in self._log.read_text().splitlines()]


@pytest.fixture
def mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path)
    fake.install()
    monkeypatch.setenv("PATH", f"{fake.bin}:/usr/bin:/bin")
    return fake


def bootstrap(folder: Path, *, epoch: int = 1700000000, said: list[str] | None = None) -> Base:
    say = said.append if said is not None else lambda _: None
    return base.bootstrap(SYSTEM, "debian12", folder, SOURCES, epoch, say)


def test_one_bootstrap_serves_every_later_build(mmdebstrap: Fake, tmp_path: Path) -> None:
    said: list[str] = []
    first = bootstrap(tmp_path / "bases", said=said)
    assert len(said) == 2
    assert bootstrap(tmp_path / "bases", said=said) == first
    assert len(said) == 2
    (call,) = mmdebstrap.calls
    assert call[0] == "1700000000"
    assert call[-1] == SOURCES[0]
    assert "bookworm" in call
    digest = hashlib.sha256(b"the root file system").hexdigest()
    assert (first.kind, first.identity) == ("bootstrap", f"sha256:{digest}")
    context = Path(first.context)
    assert (context / "base.tar").read_bytes() == b"the root file system"
    assert (context / "Dockerfile").read_text().startswith("FROM scratch\nADD base.tar /\n")
    assert sorted(path.name for path in context.iterdir()) == ["Dockerfile", "base.tar"]
    assert (context.parent / "packages.txt").read_text() == "apt=1\n"


def test_no_mirror_of_this_machine_enters_the_context(mmdebstrap: Fake, tmp_path: Path) -> None:
    context = Path(bootstrap(tmp_path / "bases").context)
    assert b"mirror.example" not in b"".join(path.read_bytes() for path in context.iterdir())


ONE_LINE = """\
# See sources.list(5) for more information
deb http://archive.example/debian bookworm main contrib non-free-firmware
#deb-src http://archive.example/debian bookworm main contrib
deb http://security.example bookworm-security main contrib non-free-firmware
"""
DEB822 = """\
## Debian distribution repository
Types: deb
URIs: http://archive.example/debian
Suites: trixie trixie-updates
Components: main contrib non-free non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


@pytest.mark.parametrize(
    ("example", "text", "place", "wanted"),
    [
        (
            "sources.list", ONE_LINE, "sources.list",
            "deb http://archive.example/debian bookworm main\n"
            "deb http://security.example bookworm-security main\n",
        ),
        (
            "debian.sources", DEB822, "sources.list.d/debian.sources",
            "Types: deb\nURIs: http://archive.example/debian\nSuites: trixie trixie-updates\n"
            "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
        ),
    ],
    ids=["before trixie", "since trixie"],
)  # fmt: skip
def test_the_sources_of_a_base_are_its_own_apts_example(
    example: str, text: str, place: str, wanted: str, mmdebstrap: Fake, tmp_path: Path
) -> None:
    bootstrap(tmp_path / "bases")
    hook = next(word for word in mmdebstrap.calls[0] if "examples=" in word).partition("=")[2]
    root = tmp_path / "root"
    examples, etc = root / "usr/share/doc/apt/examples", root / "etc/apt"
    examples.mkdir(parents=True)
    (etc / "sources.list.d").mkdir(parents=True)
    (etc / "sources.list").write_text(f"{SOURCES[0]}\n")
    (examples / example).write_text(text)
    subprocess.run(["sh", "-c", hook, "hook", str(root)], check=True)
    found = {
        str(path.relative_to(etc)): path.read_text() for path in etc.rglob("*") if path.is_file()
    }
    assert found == {place: wanted}
    assert not examples.exists()


def test_another_date_is_another_base(mmdebstrap: Fake, tmp_path: Path) -> None:
    first = bootstrap(tmp_path / "bases")
    second = bootstrap(tmp_path / "bases", epoch=1800000000)
    assert first.context != second.context
    assert len(mmdebstrap.calls) == 2


def test_two_processes_at_once_make_one_base(mmdebstrap: Fake, tmp_path: Path) -> None:
    mmdebstrap.install(seconds=0.5)
    script = (
        "import sys; from pathlib import Path; from gpucomm import base; "
        "from gpucomm.schema import System; "
        f"system = System.model_validate_json({SYSTEM.model_dump_json()!r}); "
        f"print(base.bootstrap(system, 'debian12', Path(sys.argv[1]), {SOURCES!r}, "
        "1700000000, lambda _: None).identity)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "bases")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    results = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert len({out for out, _ in results}) == 1
    assert len(mmdebstrap.calls) == 1


@pytest.mark.parametrize(
    "failure", [{"code": 25}, {"packages": ""}, {"packages": "\n"}], ids=["code", "empty", "blank"]
)
def test_a_failed_bootstrap_leaves_nothing_to_use(
    failure: dict[str, int | str], mmdebstrap: Fake, tmp_path: Path
) -> None:
    mmdebstrap.install(**failure)  # type: ignore[arg-type]
    with pytest.raises(WorkFailed) as caught:
        bootstrap(tmp_path / "bases")
    (fault,) = caught.value.faults
    log = Path(fault.split("full log: ")[1])
    assert "no mirror" in fault
    assert "E: no mirror" in log.read_text()
    left = {path.name for path in (tmp_path / "bases").rglob("*") if path.is_file()}
    assert left == {"lock", "log"}
    mmdebstrap.install()
    assert bootstrap(tmp_path / "bases").identity.startswith("sha256:")
    assert len(mmdebstrap.calls) == 2


def test_a_record_cut_short_is_made_again(mmdebstrap: Fake, tmp_path: Path) -> None:
    """A full disk leaves an empty base.json; that must not break every later build."""
    first = bootstrap(tmp_path / "bases")
    record = Path(first.context).parent / "base.json"
    assert json.loads(record.read_text())["sha256"]
    whole = record.read_text()
    for broken in ("", whole[:20], "[]", "{}"):
        record.write_text(broken)
        assert bootstrap(tmp_path / "bases") == first
        assert record.read_text() == whole
    assert len(mmdebstrap.calls) == 5


def test_a_tar_cut_short_is_made_again(mmdebstrap: Fake, tmp_path: Path) -> None:
    tar = Path(bootstrap(tmp_path / "bases").context) / "base.tar"
    tar.write_bytes(b"the root")
    bootstrap(tmp_path / "bases")
    assert tar.read_bytes() == b"the root file system"
    tar.unlink()
    bootstrap(tmp_path / "bases")
    assert tar.is_file()


def test_mmdebstrap_is_installed_where_that_is_allowed(
    mmdebstrap: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def install(packages: list[str], say: object) -> None:
        asked.extend(packages)
        mmdebstrap.install()

    shutil.rmtree(mmdebstrap.bin)
    mmdebstrap.bin.mkdir()
    monkeypatch.setenv("PATH", str(mmdebstrap.bin))
    monkeypatch.setattr(apt, "can_install", lambda: True)
    monkeypatch.setattr(apt, "install", install)
    bootstrap(tmp_path / "bases")
    assert asked == ["mmdebstrap"]


def test_a_missing_mmdebstrap_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(apt, "can_install", lambda: False)
    with pytest.raises(Unusable, match="apt-get install mmdebstrap") as caught:
        bootstrap(tmp_path / "bases")
    assert caught.value.exit_code == 3
