"""progress.py: BuildKit's rawjson as states, bytes, seconds and a failing step; how it is shown."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpucomm import progress
from gpucomm.progress import Progress, StageLine, format_line, human_size, stage_of

CUDA = "[image cuda 1/1] RUN --mount=type=secret,id=env unpack-wheels"
TORCH = "[image torch 1/1] RUN --mount=type=cache,id=gpucomm-uv unpack-wheels"
ZERO = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def stamp(seconds: float) -> str:
    return f"2026-01-01T00:00:{seconds:012.9f}Z"


def vertex(digest: str, name: str, **facts: Any) -> str:
    facts = {
        key: stamp(value) if key in ("started", "completed") else value
        for key, value in facts.items()
    }
    return json.dumps({"vertexes": [{"digest": f"sha256:{digest}", "name": name, **facts}]})


def status(digest: str, name: str, current: int) -> str:
    row = {"id": name, "vertex": f"sha256:{digest}", "name": name, "total": 10**9,
           "current": current, "timestamp": stamp(1), "started": stamp(0)}  # fmt: skip
    return json.dumps({"statuses": [row]})


def log(digest: str, text: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    row = {"vertex": f"sha256:{digest}", "stream": 1, "data": data, "timestamp": stamp(1)}
    return json.dumps({"logs": [row]})


BUILD = [
    vertex("i", "[internal] load build definition from Dockerfile", started=0),
    vertex("i", "[internal] load build definition from Dockerfile", started=0, completed=0.1),
    vertex("c", CUDA),
    vertex("t", TORCH),
    vertex("c", CUDA, started=0.2, completed=0.2, cached=True),
    vertex("t", TORCH, started=0.5),
    status("t", "torch-2.4.1.whl", 400_000_000),
    log("t", "Resolved 1 package\r\n\nUnpacked\n"),
    status("t", "torch-2.4.1.whl", 797_000_000),
    status("t", "triton.whl", 3_000_000),
]
FAILURE = 'process "/bin/sh -c unpack-wheels" did not complete successfully: exit code: 1'
BROKEN = [
    vertex("c", CUDA, started=1),
    vertex("t", TORCH, started=1),
    vertex("c", CUDA, started=1, completed=3, error="context canceled: context canceled"),
    log("t", "error: hash mismatch\n"),
    vertex("t", TORCH, started=1, completed=3.5, error=FAILURE),
    vertex("n", "[image nccl 1/1] RUN unpack-wheels", started=1, completed=4, error="CANCELED"),
    f"ERROR: target image: failed to solve: {FAILURE}\n",
]


def fed(lines: list[str]) -> Progress:
    found = Progress()
    for line in lines:
        found.feed(line)
    return found


def stages(found: Progress, now: float = ZERO + 10) -> dict[str, StageLine]:
    return {line.stage: line for line in found.lines(now)}


# ---------------------------------------------------------------- the state machine


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("[image torch 2/2] RUN x", "torch"),
        ("[torch 2/2] RUN x", "torch"),
        ("[image system 1/3] FROM target:base", "system"),
        ("[image stage-9  3/11] COPY --link --from=torch /out/ /opt/venv/", "image"),
        ("[base 1/1] ADD base.tar /", "base"),
        ("[image] exporting to image", "export"),
        ("exporting to image", "export"),
        ("[internal] load .dockerignore", ""),
        ("[image internal] load build context", ""),
        ("resolve image config for docker-image://x", ""),
        ("", ""),
    ],
)
def test_stage_of(name: str, stage: str) -> None:
    assert stage_of(name) == stage


def test_states_seconds_and_bytes_of_a_running_build() -> None:
    found = stages(fed(BUILD))
    assert list(found) == ["cuda", "torch"]
    assert (found["cuda"].state, found["cuda"].seconds, found["cuda"].size) == ("cached", 0, 0)
    assert found["torch"].state == "run"
    assert found["torch"].seconds == pytest.approx(9.5)
    assert found["torch"].size == 800_000_000
    assert found["torch"].what.startswith("RUN ")


def test_a_step_that_has_not_begun_is_not_shown() -> None:
    assert stages(fed([vertex("t", TORCH)])) == {}


def test_a_finished_step_is_done_and_its_time_stands_still() -> None:
    found = fed([*BUILD, vertex("t", TORCH, started=0.5, completed=4.25)])
    for now in (ZERO + 10, ZERO + 1000):
        line = stages(found, now)["torch"]
        assert line.state == "done"
        assert line.seconds == pytest.approx(3.75)


def test_a_stage_is_the_sum_of_its_steps_and_runs_until_the_last_is_done() -> None:
    one, two = "[image tool 1/2] RUN one", "[image tool 2/2] RUN two"
    found = fed([vertex("1", one, started=1, completed=3), vertex("2", two, started=3)])
    line = stages(found)["tool"]
    assert (line.state, line.what) == ("run", "RUN two")
    assert line.seconds == pytest.approx(9)
    found.feed(vertex("2", two, started=3, completed=3.5))
    assert stages(found)["tool"].state == "done"


def test_a_stage_with_one_cached_step_is_done_not_cached() -> None:
    found = fed(
        [
            vertex("1", "[tool 1/2] RUN one", started=1, completed=1, cached=True),
            vertex("2", "[tool 2/2] RUN two", started=1, completed=2),
        ]
    )
    assert stages(found)["tool"].state == "done"


def test_the_log_tells_beginnings_ends_and_output() -> None:
    found = Progress()
    written = [line for row in [*BUILD, *BROKEN] for line in found.feed(row)]
    assert f"CACHED  {CUDA}" in written
    assert f"START  {TORCH}" in written
    assert "    Resolved 1 package" in written
    assert "    Unpacked" in written
    assert f"ERROR  {TORCH}: {FAILURE}" in written
    assert written[-1].startswith("ERROR: target image")


def test_what_is_told_again_is_written_once() -> None:
    found = fed([line for line in BUILD if "vertexes" in line])
    assert found.feed(vertex("t", TORCH, started=0.5)) == []


def test_the_failing_step_is_found_and_not_the_cancelled_ones() -> None:
    found = fed(BROKEN)
    step = found.failed()
    assert step is not None
    assert (step.name, step.error) == (TORCH, FAILURE)
    assert step.log == ["error: hash mismatch"]
    assert found.other == [BROKEN[-1].strip()]
    assert {name: line.state for name, line in stages(found).items()} == {
        "cuda": "failed",
        "torch": "failed",
        "nccl": "failed",
    }


def test_the_first_of_two_failing_steps_is_the_one() -> None:
    found = fed(
        [
            vertex("b", "[b 1/1] RUN b", started=1, completed=9, error="exit code: 2"),
            vertex("a", "[a 1/1] RUN a", started=1, completed=5, error="exit code: 1"),
        ]
    )
    step = found.failed()
    assert step is not None
    assert step.name == "[a 1/1] RUN a"


def test_nothing_failed_when_all_was_cancelled_or_done() -> None:
    assert fed(BUILD).failed() is None
    assert fed([BROKEN[0], BROKEN[2]]).failed() is None


def test_a_step_keeps_the_end_of_a_long_log() -> None:
    found = fed([vertex("t", TORCH, started=1), *(log("t", f"line {n}\n") for n in range(999))])
    kept = found.steps["sha256:t"].log
    assert kept[-1] == "line 998"
    assert len(kept) <= 200


def test_text_that_is_not_utf_8_is_kept_legible() -> None:
    data = base64.b64encode(b"caf\xe9 ok\n").decode()
    event = {"logs": [{"vertex": "sha256:t", "data": data}]}
    found = fed([vertex("t", TORCH, started=1)])
    (line,) = found.feed(json.dumps(event))
    assert line.endswith(" ok")


@pytest.mark.parametrize("fraction", ["", ".1", ".12", ".123456", ".1234567", ".123456789"])
def test_any_precision_of_a_time(fraction: str) -> None:
    row = {"digest": "d", "name": TORCH, "started": f"2026-01-01T00:00:01{fraction}Z"}
    found = fed([json.dumps({"vertexes": [row]})])
    assert stages(found, ZERO + 3)["torch"].seconds == pytest.approx(
        2 - float(f"0{fraction}"), abs=1e-5
    )


@given(st.text())
def test_any_text_is_taken(line: str) -> None:
    found = Progress()
    found.feed(line)
    assert list(found.lines(0)) == []


@given(data=st.data(), line=st.sampled_from([*BUILD, *BROKEN]))
def test_a_line_cut_anywhere_is_taken(data: st.DataObject, line: str) -> None:
    at = data.draw(st.integers(0, len(line)))
    found = fed(BUILD)
    found.feed(line[:at])
    found.feed(line[at:])
    assert "torch" in stages(found)


@pytest.mark.parametrize("line", ["null", "3", "[]", '"x"', "{}", '{"vertexes": null}'])
def test_json_that_is_no_progress_is_taken(line: str) -> None:
    found = Progress()
    found.feed(line)
    assert found.steps == {}


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({"vertexes": [{"name": "x"}]}, id="vertex-without-digest"),
        pytest.param({"vertexes": [3]}, id="vertex-is-a-number"),
        pytest.param({"vertexes": [{"digest": "d", "started": "soon"}]}, id="not-a-time"),
        pytest.param({"logs": [{"vertex": "d", "data": "abc"}]}, id="broken-base64"),
        pytest.param({"statuses": {"a": 1}}, id="statuses-is-an-object"),
    ],
)
def test_progress_of_another_shape_does_not_end_the_build(event: dict[str, Any]) -> None:
    """A newer buildx may write what this one does not: the build is worth more than its picture."""
    Progress().feed(json.dumps(event))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from(["sha256:t", "2026-01-01T00:00:01Z", "0001-01-01T00:00:00", "QUJD"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["vertexes", "statuses", "logs", "vertex", "digest", "name", "started", "completed",
             "cached", "error", "id", "current", "data"]
        ),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(rows=st.dictionaries(st.sampled_from(["vertexes", "statuses", "logs"]), JSON))
def test_no_json_ends_the_build(rows: dict[str, Any]) -> None:
    found = fed(BUILD)
    found.feed(json.dumps(rows))
    for line in found.lines(ZERO):
        format_line(line, 100)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"vertexes": ' + "9" * 5000 + "}"])
def test_json_beyond_pythons_limits_does_not_end_the_build(line: str) -> None:
    assert Progress().feed(line) == [line]


# ---------------------------------------------------------------- how it is shown


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (967_000_000, "967 MB"),
        (5_600_000_000, "5.60 GB"),
        (10**13, "10000.00 GB"),
    ],
)
def test_human_size(size: int, text: str) -> None:
    assert human_size(size) == text


def test_a_line_is_cut_and_leaves_mount_options_out() -> None:
    line = StageLine(
        stage="torch",
        what="RUN --mount=type=x unpack",
        state="run",
        seconds=12.34,
        size=967 * 10**6,
    )
    text = format_line(line, 100)
    assert text.split() == ["torch", "run", "12.3", "s", "967", "MB", "RUN", "unpack"]
    assert len(format_line(line, 20)) == 20


def shown(lines: list[str], *, terminal: bool) -> tuple[str, str]:
    screen, full = io.StringIO(), io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    with progress.show(console, full) as shower:
        for line in lines:
            shower.feed(line)
        assert shower.progress.steps
    return screen.getvalue(), full.getvalue()


def test_without_a_terminal_each_change_of_state_is_one_plain_line() -> None:
    text, full = shown([*BUILD, *BROKEN[3:]], terminal=False)
    assert "\x1b" not in text
    states = [tuple(line.split()[:2]) for line in text.splitlines()]
    assert states == [
        ("cuda", "cached"),
        ("torch", "run"),
        ("torch", "failed"),
        ("nccl", "failed"),
    ]
    assert "    Unpacked\n" in full
    assert full.endswith(BROKEN[-1])


def test_markup_in_a_step_is_text() -> None:
    text, _ = shown(
        [vertex("m", "[tool 1/1] RUN echo [red]x[/nothing]", started=1)], terminal=False
    )
    assert "[red]x[/nothing]" in text


def test_a_terminal_is_drawn_live() -> None:
    text, full = shown([*BUILD, *BROKEN], terminal=True)
    assert "\x1b[" in text
    assert "torch" in text
    assert "    Unpacked\n" in full
