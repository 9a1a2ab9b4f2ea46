"""daemon.py: daemon.json, pid files, and whose daemon it is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucomm import daemon
from gpucomm.errors import Unusable


def test_an_empty_daemon_config_gets_the_store_and_a_limit() -> None:
    assert daemon.merge_daemon_config({}, "40GB") == {
        "features": {"containerd-snapshotter": True},
        "builder": {"gc": {"enabled": True, "policy": [{"all": True, "keepStorage": "40GB"}]}},
    }


json_objects = st.dictionaries(st.text(max_size=5), st.integers() | st.booleans(), max_size=3)


@given(
    other=json_objects,
    features=json_objects | st.just({"containerd-snapshotter": False}),
    builder=json_objects | st.just({"gc": {"defaultKeepStorage": "5GB"}}),
)
def test_a_merge_keeps_every_set_key(
    other: dict[str, Any], features: dict[str, Any], builder: dict[str, Any]
) -> None:
    before = {**other, "features": features, "builder": builder}
    after = daemon.merge_daemon_config(before, "40GB")
    assert {key: after[key] for key in other if key not in ("features", "builder")} == {
        key: value for key, value in other.items() if key not in ("features", "builder")
    }
    assert after["features"].items() >= features.items()
    assert after["builder"].items() >= builder.items()
    assert daemon.merge_daemon_config(after, "1GB") == after


@pytest.mark.parametrize(
    ("total", "limit"), [(10**12, "40GB"), (50 * 10**9, "20GB"), (10**9, "1GB")]
)
def test_the_cache_limit_fits_the_disk(total: int, limit: str) -> None:
    assert daemon.gc_limit_for(total) == limit


@pytest.mark.parametrize("text", ["{", "[]", '{"features": null}', '{"builder": 1}'])
def test_a_broken_daemon_config_is_named_and_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(text)
    with pytest.raises(Unusable, match=r"daemon\.json.*correct it by hand"):
        daemon.write_daemon_config(replace(daemon.SYSTEM, config_file=path), lambda _: None)
    assert path.read_text() == text


def test_a_daemon_config_is_written_once(tmp_path: Path) -> None:
    config = replace(daemon.SYSTEM, config_file=tmp_path / "etc" / "daemon.json")
    config.config_file.parent.mkdir()
    config.config_file.write_text('{"log-level": "warn"}')
    said: list[str] = []
    daemon.write_daemon_config(config, said.append)
    daemon.write_daemon_config(config, said.append)
    assert len(said) == 1
    assert json.loads(config.config_file.read_text())["log-level"] == "warn"


def test_the_last_gc_rule_is_the_limit() -> None:
    text = (
        "GC Policy rule#0:\n All:            false\n Reserved Space: 512MB\n"
        "GC Policy rule#1:\n All:            true\n Reserved Space: 40GiB\n"
    )
    assert daemon.parse_gc_limit(text) == "40GiB"
    assert daemon.parse_gc_limit("Name: default\n") is None


@pytest.fixture
def config(tmp_path: Path) -> daemon.DaemonConfig:
    private = daemon.DaemonConfig.under(tmp_path)
    for path in private.pid_files:
        path.parent.mkdir(parents=True, exist_ok=True)
    return private


@pytest.mark.parametrize("content", [str(os.getpid()), "4194305", "not a number", ""])
def test_a_pid_file_of_another_process_is_dropped(
    content: str, config: daemon.DaemonConfig
) -> None:
    for path in config.pid_files:
        path.write_text(content)
    said: list[str] = []
    daemon.drop_stale_pid_files(config, said.append)
    assert [path.exists() for path in config.pid_files] == [False, False]
    assert len(said) == 2


def test_a_recycled_pid_is_not_our_engine(config: daemon.DaemonConfig) -> None:
    config.state.write_text(json.dumps({"pid": os.getpid(), "start_time": 1}))
    config.pid_files[0].write_text(str(os.getpid()))
    assert not daemon.started_by_us(config)


def test_a_data_root_that_is_yet_to_be_is_measured_by_its_disk(tmp_path: Path) -> None:
    there = daemon.gc_limit({"data-root": str(tmp_path)})
    assert daemon.gc_limit({"data-root": str(tmp_path / "not" / "yet")}) == there


def test_a_daemon_of_before_is_ours_only_while_it_runs(config: daemon.DaemonConfig) -> None:
    daemon.mark_started(config)
    assert not config.state.exists()
    assert not daemon.started_by_us(config)


def test_a_tail_begins_where_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\none\ntwo\nthree\n")
    assert daemon.log_tail(log, start=4, lines=2) == "    two\n    three"
    assert daemon.log_tail(tmp_path / "none") == ""
