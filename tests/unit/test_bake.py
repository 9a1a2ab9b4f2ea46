"""bake.py: what buildx is told about a cell, and what a person is told about a failed build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucomm.bake import bake_file, cell_advice, failure_text
from gpucomm.base import Base
from gpucomm.buildsecrets import BuildSecrets
from gpucomm.cell import Cell
from gpucomm.places import Places
from gpucomm.progress import Progress
from gpucomm.schema import Matrix
from gpucomm.standard import cells_of

PLACES = Places(root=Path("/checkout"), cache=Path("/cache"))
DIGEST = f"sha256:{'ab' * 32}"
REGISTRY = Base(
    kind="registry", identity=DIGEST, context=f"docker-image://registry.example/debian@{DIGEST}"
)
BOOTSTRAP = Base(kind="bootstrap", identity=DIGEST, context="/cache/bases/debian12-ab/context")


@pytest.fixture
def cell(small: Matrix) -> Cell:
    return cells_of(small)[0]


def targets(
    cell: Cell,
    base: Base,
    *,
    secrets: Mapping[str, Path] | None = None,
    wheelhouse: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    found = bake_file(
        cell, PLACES, PLACES.images / cell.id, base,
        epoch=1700000000, name="registry.example/gpucomm:building", secrets=secrets or {},
        wheelhouse=wheelhouse, env=env or {},
    )  # fmt: skip
    assert found.keys() == {"target"}
    assert isinstance(found["target"], dict)
    return found["target"]


def test_a_registry_base_is_one_target(cell: Cell) -> None:
    found = targets(cell, REGISTRY)
    assert found.keys() == {"image"}
    image = found["image"]
    assert image["context"] == f"/checkout/images/{cell.id}"
    assert image["dockerfile"] == "Dockerfile"
    assert image["contexts"] == {
        "base": REGISTRY.context,
        "files": "/checkout/templates/files",
        "selftest-source": "/checkout/selftest",
    }
    assert image["args"] == {"SOURCE_DATE_EPOCH": "1700000000"}
    assert image["labels"] == {"io.gpucomm.base": DIGEST}
    assert image["secret"] == []


def test_a_bootstrapped_base_is_a_target_of_its_own_and_never_an_import(cell: Cell) -> None:
    found = targets(cell, BOOTSTRAP)
    assert found.keys() == {"image", "base"}
    assert found["image"]["contexts"]["base"] == "target:base"
    assert found["base"]["context"] == BOOTSTRAP.context
    assert found["base"]["args"] == {"SOURCE_DATE_EPOCH": "1700000000"}
    assert "output" not in found["base"]
    assert found["image"]["labels"] == {"io.gpucomm.base": DIGEST}


@pytest.mark.parametrize("base", [REGISTRY, BOOTSTRAP])
def test_every_target_is_without_provenance(base: Base, cell: Cell) -> None:
    for target in targets(cell, base).values():
        assert target["attest"] == ["type=provenance,disabled=true"]


@pytest.mark.parametrize("base", [REGISTRY, BOOTSTRAP])
def test_every_path_is_absolute(base: Base, cell: Cell) -> None:
    found = targets(cell, base, secrets={"ca": Path("/tmp/x/ca")}, wheelhouse=Path("/srv/wheels"))
    for target in found.values():
        assert target["context"].startswith("/")
        for context in target.get("contexts", {}).values():
            assert context.startswith(("/", "docker-image://", "target:")), context
        for secret in target.get("secret", ()):
            assert ",src=/" in secret


def test_the_image_stays_in_the_engine_under_the_given_name(cell: Cell) -> None:
    (output,) = targets(cell, REGISTRY)["image"]["output"]
    assert output.startswith("type=image,")
    assert output.endswith(",name=registry.example/gpucomm:building")
    assert "push=true" not in output


def test_secrets_are_files_and_their_content_is_nowhere(cell: Cell) -> None:
    secrets = BuildSecrets(files={"env": b"export PIP_INDEX_URL=https://u:hunter2@x", "ca": b"PEM"})
    with secrets.on_disk() as paths:
        found = targets(cell, BOOTSTRAP, secrets=paths)
    assert found["image"]["secret"] == [
        f"id=env,src={paths['env']}",
        f"id=ca,src={paths['ca']}",
    ]
    text = json.dumps(found)
    assert "hunter2" not in text
    assert "PEM" not in text
    assert "secret" not in found["base"]


def test_proxies_are_predefined_arguments_in_both_spellings(cell: Cell) -> None:
    env = {"HTTPS_PROXY": "http://p.example:1", "no_proxy": "localhost", "PIP_INDEX_URL": "x"}
    assert targets(cell, REGISTRY, env=env)["image"]["args"] == {
        "SOURCE_DATE_EPOCH": "1700000000",
        "https_proxy": "http://p.example:1",
        "HTTPS_PROXY": "http://p.example:1",
        "no_proxy": "localhost",
        "NO_PROXY": "localhost",
    }
    (output,) = targets(cell, REGISTRY, env=env)["image"]["output"]
    assert output.endswith("name=registry.example/gpucomm:building")


def test_a_wheelhouse_takes_the_place_of_its_stage(cell: Cell) -> None:
    found = targets(cell, REGISTRY, wheelhouse=Path("/srv/wheels"))
    assert found["image"]["contexts"]["wheelhouse"] == "/srv/wheels"


def test_a_bake_file_is_json_and_the_same_each_time(cell: Cell) -> None:
    assert json.dumps(targets(cell, BOOTSTRAP)) == json.dumps(targets(cell, BOOTSTRAP))


# ---------------------------------------------------------------- a failed build


def failing(*log: str, error: str = "exit code: 1") -> Progress:
    found = Progress()
    name = "[image torch 1/1] RUN unpack-wheels"
    row = {"digest": "d", "name": name, "completed": "2026-01-01T00:00:01Z", "error": error}
    found.feed(json.dumps({"vertexes": [row]}))
    found.steps["d"].log = list(log)
    found.feed(f"ERROR: failed to solve: {error}")
    return found


def test_a_failed_build_names_its_step_and_the_end_of_its_log() -> None:
    text = failure_text(1, failing(*(f"line {number}" for number in range(40))))
    first, *rest = text.splitlines()
    assert first == "[image torch 1/1] RUN unpack-wheels: exit code: 1"
    assert rest == [f"    line {number}" for number in range(25, 40)]


def test_the_advice_follows_the_log() -> None:
    text = failure_text(1, failing("x", "write /out/a: No space left on device"))
    assert text.splitlines()[-1].strip().startswith("the disk is full")


def test_without_a_failing_step_buildx_has_the_last_word() -> None:
    found = Progress()
    found.feed("WARNING: something")
    found.feed("ERROR: failed to  connect\tto the docker API")
    assert failure_text(1, found) == "failed to connect to the docker API"
    assert failure_text(7, Progress()) == "docker buildx bake ended with 7"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("tar: write error: No space left on device", "docker builder prune"),
        ("error: Hash mismatch for torch==2.4.1", "gpucomm lock"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "gpucomm lock"),
        ("invalid peer certificate: UnknownIssuer", "--ca or SSL_CERT_FILE"),
        ("SSL: CERTIFICATE_VERIFY_FAILED", "--ca or SSL_CERT_FILE"),
        ("Temporary failure in name resolution", "proxies and index mirrors"),
        ("curl: (6) Could not resolve host: mirror.example", "proxies and index mirrors"),
        ("error: dns error: failed to lookup", "proxies and index mirrors"),
        ("all is well", ""),
    ],
)
def test_advice(line: str, advice: str) -> None:
    found = cell_advice(["before", line, "after"])
    assert advice in found
    assert bool(found) == bool(advice)
