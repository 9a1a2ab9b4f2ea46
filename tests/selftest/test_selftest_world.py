"""Which rank of a launcher has which GPU and interface, and what is said of several sites."""

from __future__ import annotations

from typing import Any

import pytest
from tests.selftest.test_selftest_attribution import view

from gpucomm_selftest import host
from gpucomm_selftest.attribution import explain_failure, explain_hang, numbered
from gpucomm_selftest.errors import UnusableError
from gpucomm_selftest.findings import found
from gpucomm_selftest.places import Here
from gpucomm_selftest.sites import Site, over, sites_of
from gpucomm_selftest.stages.versions import uuid_of
from gpucomm_selftest.world import Launched, decide_launched


def probe(*uuids: str, cuda: str | None = "12.4") -> dict[str, Any]:
    return {
        "torch": "2.5.1",
        "cuda": cuda,
        "hip": None,
        "backends": ["nccl", "gloo"],
        "device_nodes": [],
        "gpus": [{"index": at, "uuid": uuid} for at, uuid in enumerate(uuids)],
        "libraries": [{"code": 22105}],
    }


def rank(
    seen: dict[str, Any],
    local: int = 0,
    *,
    on: str = "a",
    site: int = 0,
    interface: str = "",
    environ: dict[str, str] | None = None,
) -> Launched:
    name = f"rank on {on}"
    return Launched(
        probe=seen,
        environ=environ or {},
        host=on,
        site=site,
        name=name,
        local=local,
        interface=interface,
    )


def decide(*ranks: Launched, backend: str = "auto", one_network: bool = True) -> Any:
    return decide_launched(ranks, backend=backend, one_network=one_network, loopback="lo")


def test_each_rank_has_the_gpu_of_its_local_rank() -> None:
    two = [rank(probe("u0", "u1"), local, on=on) for on in "ab" for local in (0, 1)]
    made = decide(*two)
    assert (made.size, made.backend, made.gpus, made.shares_gpus) == (4, "nccl", 4, False)
    assert made.gpu_indexes == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("ranks", "gpus"),
    [
        # One GPU each, by the scheduler: all of them are number 0.
        ([rank(probe("u0")), rank(probe("u1"), 1)], 2),
        # Both tasks were given the same one.
        ([rank(probe("u0")), rank(probe("u0"), 1)], 1),
        # Two hosts: the same name is another GPU.
        ([rank(probe("u0")), rank(probe("u0"), on="b")], 2),
        # No driver tells: GPUs of one name and number are taken for one.
        ([rank(probe("")), rank(probe(""), 1)], 1),
    ],
)
def test_gpus_are_shared_only_where_they_are_the_same(ranks: list[Launched], gpus: int) -> None:
    made = decide(*ranks)
    assert made.gpus == gpus
    assert made.shares_gpus == (gpus < 2)


def test_without_uuids_the_ranks_of_a_site_share_its_gpus() -> None:
    four = [rank(probe("", ""), local, site=0) for local in range(4)]
    made = decide(*four)
    assert (made.gpus, made.shares_gpus, made.gpu_indexes) == (2, True, (0, 1, 0, 1))
    apart = decide(rank(probe(""), site=0), rank(probe(""), site=1))
    assert (apart.gpus, apart.shares_gpus) == (2, False)


def test_gloo_takes_the_loopback_only_on_one_network() -> None:
    cpu = probe(cuda=None)
    near = decide(rank(cpu), rank(cpu, 1), backend="gloo")
    assert near.environment_of(1)["GLOO_SOCKET_IFNAME"] == "lo"
    far = decide(
        rank(cpu, interface="eth0"),
        rank(cpu, on="b", interface="ens3"),
        rank(cpu, on="c", interface="ib0", environ={"GLOO_SOCKET_IFNAME": "bond0"}),
        rank(cpu, on="d"),
        backend="gloo",
        one_network=False,
    )
    made = [far.environment_of(at).get("GLOO_SOCKET_IFNAME") for at in range(4)]
    assert made == ["eth0", "ens3", None, None]


def test_a_rank_without_gpus_among_others_is_named() -> None:
    with pytest.raises(UnusableError) as caught:
        decide(rank(probe("u0")), rank(probe(cuda=None), on="b"))
    assert caught.value.finding_id == "GC0116"
    assert "rank on b: gloo (auto: torch sees 0 GPUs)" in caught.value.measured
    with pytest.raises(UnusableError) as caught:
        decide(rank(probe("u0")), rank(probe(), on="b"))
    assert caught.value.finding_id == "GC0114"
    assert caught.value.measured.startswith("rank on b: torch 2.5.1 for CUDA 12.4")


def on_another_host() -> Here:
    place = Here()
    place.host = "b"
    return place


def site(place: Here, *ranks: int) -> Site:
    return Site(place=place, identity=host.identity(), environ={}, ranks=ranks)


def test_what_all_sites_share_is_said_once_and_the_rest_with_the_ranks() -> None:
    sites = [site(Here(), 0, 1), site(on_another_host(), 2, 3)]
    both, here = found("GC0107", "x"), found("GC0109", "y")
    made = over(sites, lambda number: [both] if number else [both, here])
    assert [one.measured for one in made] == ["x", "ranks 0,1: y"]
    made = over(sites, lambda number: [found("GC0109", f"{number}")])
    assert [one.measured for one in made] == ["ranks 0,1: 0", "ranks 2,3 on b: 1"]
    # Twice at one site is not once at each.
    made = over(sites, lambda number: [here, here] if number == 0 else [])
    assert [one.measured for one in made] == ["ranks 0,1: y"]


def test_many_sites_with_figures_of_their_own_are_one_finding() -> None:
    sites = [site(Here(), rank) for rank in range(7)]
    made = over(sites, lambda number: [found("GC0109", f"{max(number - 1, 0)} MB")])
    assert [one.measured for one in made] == [
        "rank 0 and rank 1: 0 MB; rank 2: 1 MB; rank 3: 2 MB; rank 4: 3 MB; "
        "and 2 more with figures of their own"
    ]
    assert made[0].id == "GC0109"
    # As many as a person reads stay one each.
    made = over(sites[:5], lambda number: [found("GC0109", f"{max(number - 1, 0)} MB")])
    assert len(made) == 4
    # Two things at one site are not two sites.
    made = over(
        sites, lambda number: [found("GC0109", f"{number}a"), found("GC0109", f"{number}b")]
    )
    assert len(made) == 14


def test_one_copy_is_one_site_without_a_name() -> None:
    (only,) = sites_of(Here(), {}, None, None)
    assert (only.ranks, only.name) == ((), "here")
    assert over([only], lambda number: [found("GC0109", "y")])[0].measured == "y"


def test_a_lost_copy_is_the_cause_and_its_host_is_said() -> None:
    views = [
        view(0, error="RuntimeError: Connection reset by peer", error_at=1.0),
        view(1, host="b", lost="the copy has gone: the connection was closed", ended_at=2.0),
    ]
    finding_id, said = explain_failure(views, "init")
    assert finding_id == "GC0706"
    assert said.startswith("rank 1 (pid 101 on b) was lost: the copy has gone")
    assert said.endswith("rank 0 failed as a consequence")


def test_a_lost_copy_is_named_and_not_those_that_a_launcher_then_ended() -> None:
    lost = {"lost": "the copy has gone", "ended_at": 2.0}
    told = {"lost": "the copy got SIGTERM", "said_bye": True, "ended_at": 1.0}
    finding_id, said = explain_failure([view(0), view(1, **told), view(2, **lost)], "init")
    assert finding_id == "GC0706"
    assert said.startswith("rank 2 (pid 102) was lost: the copy has gone")
    # One that raised as well is still lost.
    both = view(2, **lost, error="RuntimeError: Connection closed by peer")
    assert explain_failure([view(0, signal=11), both], "init")[0] == "GC0706"


def test_a_probe_is_called_by_the_ranks_that_it_stands_for() -> None:
    first = view(0, role="probe", stands_for=(0, 1, 2, 3, 4, 5), done=True)
    second = view(1, role="probe", stands_for=(6, 7), state="T", host="b")
    _, said = explain_hang([first, second], "versions", 9)
    assert "the probe of ranks 6,7 (pid 101 on b) is stopped" in said
    assert said.endswith("; ranks 0-5 had finished")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0,1"),
        ([0, 1, 2, 3], "ranks 0,1,2,3"),
        ([9, *range(8)], "ranks 0-7,9"),
        (range(1000), "ranks 0-999"),
    ],
)
def test_many_ranks_are_told_in_few_words(ranks: list[int], said: str) -> None:
    assert numbered(ranks) == said


def test_a_rank_whose_copy_went_silent_is_suspected() -> None:
    finding_id, said = explain_hang([view(0), view(1, host="b", state="?")], "init", 9)
    assert finding_id == "GC0902"
    assert "rank 1 (pid 101 on b) is silent with its copy of the self-test" in said


def test_the_word_of_torch_for_a_gpu_is_taken() -> None:
    assert uuid_of(0, "GPU-1-2") == "1-2"
    assert uuid_of(0, "") == ""  # no driver is loaded in this process
