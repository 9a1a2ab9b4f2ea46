"""Which launcher is told by which environment: pure, one table for each family."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucomm_selftest.errors import UnusableError, UsageError
from gpucomm_selftest.launcher import (
    CANDIDATES,
    FAMILIES,
    NAMES,
    Launch,
    check_usage,
    detect,
    first_host,
)

ASKED = ("auto", "none", *NAMES)

BARE = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
TORCHRUN = {
    **BARE,
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "gpu[003-004]",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "job",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.svc"}


@pytest.mark.parametrize(
    ("environ", "family", "address"),
    [
        (BARE, "bare variables", "a"),
        (TORCHRUN, "torchrun", "a"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "torchrun", "127.0.0.1"),
        ({**BARE, "PET_NNODES": "4"}, "PyTorchJob", "a"),
        (STEP, "Slurm", "gpu003"),
        ({**STEP, "SLURM_NNODES": "1"}, "Slurm", "127.0.0.1"),
        ({**STEP, "MASTER_ADDR": "b"}, "Slurm", "b"),
        ({**STEP, **BARE}, "bare variables", "a"),
        (OMPI, "Open MPI", "127.0.0.1"),
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "b"}, "Open MPI", "b"),
        (PMI, "PMI", "127.0.0.1"),
        # mpiexec of MPICH in an allocation: its helpers are the tasks of a step.
        ({**STEP, **PMI, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "PMI", "127.0.0.1"),
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "4"}, "PMI", "gpu003"),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "b"}, "PMIx", "b"),
        (INDEXED, "Kubernetes Indexed Job", "job-0.svc"),
        ({**BARE, "GPUCOMM_MASTER_ADDR": "c"}, "bare variables", "c"),
    ],
)
def test_a_whole_launch(environ: dict[str, str], family: str, address: str) -> None:
    launch = detect(environ)
    assert (launch.family, launch.rank, launch.size) == (family, 1, 4)
    assert launch.address == address
    assert launch.ports


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"},
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"},
        {"JOB_COMPLETION_INDEX": "3"},
        {"TORCHELASTIC_RUN_ID": "x"},
    ],
)
def test_what_only_looks_like_a_launch_is_none(environ: dict[str, str]) -> None:
    assert detect(environ) == Launch(family="none")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({**BARE, "MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({**BARE, "RANK": "x"}, "RANK=x is no number"),
        ({**BARE, "RANK": "-1"}, "RANK=-1 is no number"),
        ({**BARE, "RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({**BARE, "WORLD_SIZE": "0"}, "WORLD_SIZE=0 leaves no rank"),
        ({**BARE, "MASTER_PORT": "99999"}, "MASTER_PORT=99999 is no port"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"PMI_RANK": "0"}, "PMI_SIZE is not set"),
        (
            {**BARE, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8"},
            "PET_NPROC_PER_NODE=8: WORLD_SIZE counts the ranks that torchrun would start",
        ),
        ({"PMIX_RANK": "0"}, "WORLD_SIZE is not set"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_NTASKS is not set"),
        ({"JOB_COMPLETION_INDEX": "0", "MASTER_ADDR": "a"}, "WORLD_SIZE is not set"),
    ],
)
def test_half_a_launch_says_what_is_missing(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UnusableError) as raised:
        detect(environ)
    assert raised.value.finding_id == "GC0701"
    assert says in raised.value.measured


def test_one_copy_starts_its_own_ranks_and_none_can_be_asked_for() -> None:
    alone = detect({**BARE, "RANK": "0", "WORLD_SIZE": "1"})
    assert (alone.family, alone.meets) == ("bare variables", False)
    check_usage(alone, 8)
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}) == alone
    assert detect(BARE, "none") == Launch(family="none")
    with pytest.raises(UsageError):
        check_usage(detect(BARE), 8)


def test_a_given_port_is_the_only_one_unless_torchrun_has_it() -> None:
    assert detect(BARE).ports == (29500,)
    assert detect(TORCHRUN).ports == tuple(range(29501, 29501 + CANDIDATES))
    assert detect({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).ports == (29500,)
    high = detect({**TORCHRUN, "MASTER_PORT": "65533"}).ports
    assert len(set(high)) == CANDIDATES
    assert all(1024 <= port < 65536 for port in high)


def test_ranks_of_one_job_agree_and_other_jobs_differ() -> None:
    def where(**changes: str) -> tuple[str, tuple[int, ...]]:
        launch = detect({**STEP, **changes})
        return launch.token, launch.ports

    assert where(SLURM_PROCID="0", SLURM_LOCALID="0") == where(SLURM_PROCID="3")
    assert where() != where(SLURM_JOB_ID="8")
    assert where() != where(SLURM_STEP_ID="1")
    port = {"MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "4"}
    one, other = (detect({**TORCHRUN, **port, "MASTER_PORT": at}) for at in ("28900", "28901"))
    assert one.token != other.token
    # torch takes any name of rank 0 on each copy.
    assert detect(BARE).token == detect({**BARE, "MASTER_ADDR": "localhost"}).token
    assert detect(OMPI, user=1).token != detect(OMPI, user=2).token


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[003-007,9],other", "gpu003"),
        ("r[1-2]n[05,06]x", "r1n05x"),
        ("", ""),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


VARIABLES = sorted(
    {
        *(name for family in FAMILIES for name in (*family.rank, *family.size, *family.local_rank)),
        *(name for family in FAMILIES for name in (*family.local_size, *family.job)),
        *("MASTER_ADDR", "MASTER_PORT", "GPUCOMM_MASTER_ADDR", "GPUCOMM_MASTER_PORT"),
        *("SLURM_STEP_ID", "SLURM_NNODES", "SLURM_NODELIST", "TORCHELASTIC_USE_AGENT_STORE"),
        *("PET_NNODES", "JOB_COMPLETION_INDEX"),
    }
)
VALUES = st.one_of(
    st.sampled_from(
        ["", "0", "1", "2", "-1", "99999999999", "65535", "x", "0x1", "1.0", " 1", "٣"]
    ),
    st.text("ab019-_ .:@", max_size=8),
)


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=8), st.sampled_from(ASKED))
def test_nonsense_is_a_launch_or_an_answer(environ: dict[str, str], asked: str) -> None:
    told = None
    try:
        launch = detect(environ, asked)
    except UnusableError as error:
        told = error
    if told is not None:
        assert (told.finding_id, bool(told.measured)) == ("GC0701", True)
        return
    assert 0 <= launch.rank < launch.size
    assert all(0 < port < 65536 for port in launch.ports)
    assert not launch.meets or (launch.address and launch.ports and launch.token)
