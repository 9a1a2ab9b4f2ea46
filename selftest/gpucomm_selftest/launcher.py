"""Which launcher started this copy of the self-test, its place in the world, and where to meet.

Pure: it is given the environment. It must not open a connection, and it takes nothing for a launch
that only looks like one: the variables of an interactive Slurm shell, a master's address alone, or
the index of a Kubernetes job whose pods know nothing of each other.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucomm_selftest.errors import UnusableError, UsageError

Environment = Mapping[str, str]

# How many ports, one after the other, are tried where none is given to be used by the ranks.
CANDIDATES = 8
# Below the range from which Linux takes ports for clients (32768..60999), above the known services.
_FIRST_PORT, _PORTS = 15000, 15000
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One copy's place. A launch of one copy has nobody to meet: it starts its own ranks."""

    family: str  # as people call it, or "none"
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    one_host: bool = False  # the launcher says that all copies are on this host
    address: str = _LOOPBACK
    ports: tuple[int, ...] = ()
    token: str = ""  # the same in all copies of one launch, and in no other launch

    @property
    def meets(self) -> bool:
        return self.size > 1

    def as_json(self) -> dict[str, object]:
        return {
            "family": self.family,
            "copies": self.size,
            "rank": self.rank,
            "address": self.address if self.meets else None,
            "ports": list(self.ports),
        }


@dataclass(frozen=True, kw_only=True)
class _Family:
    """The variables by which a launcher tells a process its place; the first that is set counts."""

    name: str
    present: Callable[[Environment], bool]
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # how many there are
    job: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()  # besides rank and size


def _has(*names: str) -> Callable[[Environment], bool]:
    return lambda environ: any(environ.get(name) for name in names)


def _has_with_prefix(prefix: str) -> Callable[[Environment], bool]:
    """RANK or WORLD_SIZE, in a process that this launcher made."""
    return lambda environ: (
        any(name.startswith(prefix) for name in environ) and _has("RANK", "WORLD_SIZE")(environ)
    )


def _by_hand(name: str, present: Callable[[Environment], bool], job: tuple[str, ...]) -> _Family:
    """Those that use the variables which torch itself reads."""
    return _Family(
        name=name,
        present=present,
        rank=("RANK",),
        size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_size=("LOCAL_WORLD_SIZE",),
        job=job,
        needed=("MASTER_ADDR", "MASTER_PORT"),
    )


# What says more comes first: variables that torchrun or a person set hold inside a Slurm step too.
FAMILIES: tuple[_Family, ...] = (
    _by_hand("torchrun", _has_with_prefix("TORCHELASTIC_"), ("TORCHELASTIC_RUN_ID",)),
    _by_hand("PyTorchJob", _has_with_prefix("PET_"), ()),
    _Family(
        name="Kubernetes Indexed Job",
        # Kubernetes sets the index in every indexed job, also where each pod is for itself.
        present=lambda environ: (
            _has("JOB_COMPLETION_INDEX")(environ)
            and not environ.get("RANK")
            and _has("WORLD_SIZE", "MASTER_ADDR")(environ)
        ),
        rank=("JOB_COMPLETION_INDEX",),
        size=("WORLD_SIZE",),
        needed=("MASTER_ADDR",),
    ),
    _by_hand(
        "bare variables",
        # Of a PyTorchJob they have been looked at.
        lambda environ: (
            _has("RANK", "WORLD_SIZE")(environ) and not _has_with_prefix("PET_")(environ)
        ),
        (),
    ),
    _Family(
        name="Open MPI",
        present=_has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        rank=("OMPI_COMM_WORLD_RANK",),
        size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    # Before Slurm: mpiexec of MPICH and Intel starts one helper on each host by srun, and its
    # processes inherit the variables of that step, which are the helper's.
    _Family(
        name="PMI",
        present=_has("PMI_RANK", "PMI_SIZE"),
        rank=("PMI_RANK",),
        size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        hosts=("SLURM_STEP_NUM_NODES",),
        job=("PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Family(
        name="Slurm",
        # Outside a step the variables describe the allocation, not this process.
        present=lambda environ: (
            _has("SLURM_STEP_ID", "SLURM_STEPID")(environ) and _has("SLURM_PROCID")(environ)
        ),
        rank=("SLURM_PROCID",),
        size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        local_rank=("SLURM_LOCALID",),
        hosts=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Family(
        name="PMIx",
        present=_has("PMIX_RANK"),
        rank=("PMIX_RANK",),
        # PMIx tells the size by a library only.
        size=("WORLD_SIZE",),
        job=("PMIX_NAMESPACE",),
    ),
)

NAMES = {family.name.lower().replace(" ", "-"): family.name for family in FAMILIES}


def first_host(nodelist: str) -> str:
    """The first of Slurm's `node[003-007,9],other`: `node003`."""
    name = ""
    for piece in re.findall(r"\[[^\]]*\]|[^\[\],]+|,", nodelist):
        if piece == ",":
            break
        name += re.split(r"[,-]", piece[1:-1])[0] if piece.startswith("[") else piece
    return name


def _value(environ: Environment, names: tuple[str, ...]) -> tuple[str, str]:
    """The first of these that is set, and its value."""
    return next(((name, environ[name]) for name in names if environ.get(name)), ("", ""))


def _problems(family: _Family, environ: Environment) -> list[str]:
    """What is missing from a launch or makes no sense in it."""
    # A world of one has nobody to meet.
    needed = () if _value(environ, family.size)[1] == "1" else family.needed
    wrong = [
        f"{' or '.join(names)} is not set"
        for names in (family.rank, family.size, *((name,) for name in needed))
        if not _value(environ, names)[1]
    ]
    per_pod = environ.get("PET_NPROC_PER_NODE", "")
    if family.name == "PyTorchJob" and per_pod.isdecimal() and int(per_pod) > 1:
        wrong.append(
            f"PET_NPROC_PER_NODE={per_pod}: WORLD_SIZE counts the ranks that torchrun would start "
            "in each pod, and it did not start this copy"
        )
    numbers = {}
    for what, names in (("rank", family.rank), ("size", family.size), ("local", family.local_rank)):
        name, value = _value(environ, names)
        if value and not re.fullmatch(r"[0-9]{1,7}", value):
            wrong.append(f"{name}={value} is no number")
        elif value:
            numbers[what] = (name, int(value))
    if "size" in numbers and numbers["size"][1] < 1:
        wrong.append(f"{numbers['size'][0]}={numbers['size'][1]} leaves no rank")
    elif "rank" in numbers and "size" in numbers and numbers["rank"][1] >= numbers["size"][1]:
        (rank_name, rank), (size_name, size) = numbers["rank"], numbers["size"]
        wrong.append(f"{rank_name}={rank} is not below {size_name}={size}")
    port_name, port = _value(environ, ("GPUCOMM_MASTER_PORT", "MASTER_PORT"))
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        wrong.append(f"{port_name}={port} is no port")
    return wrong


def _told(family: _Family, environ: Environment) -> str:
    """The variables by which this family was recognised, for a person to see."""
    names = (*family.rank, *family.size, *family.local_rank, *family.needed)
    said = [f"{name}={environ[name]}" for name in names if environ.get(name)]
    return ", ".join(said) or "nothing"


def _on_one_host(family: _Family, environ: Environment, size: int) -> bool:
    local_size = _value(environ, family.local_size)[1]
    return local_size == str(size) if local_size else _value(environ, family.hosts)[1] == "1"


def _ports(environ: Environment, token: str) -> tuple[int, ...]:
    """The ports at which rank 0 may be, in the order in which they are tried.

    A port that was given is the only one, unless torchrun's own store is on it: then the ones
    above. Without any the port follows from the job, so that two jobs on a host rarely meet; where
    they do, the token tells them apart and the next port is taken.
    """
    given = _value(environ, ("GPUCOMM_MASTER_PORT", "MASTER_PORT"))[1]
    if given and (
        environ.get("GPUCOMM_MASTER_PORT")
        or environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() != "true"
    ):
        return (int(given),)
    first = int(given) + 1 if given else _FIRST_PORT + zlib.crc32(token.encode()) % _PORTS
    return tuple((first + at - 1024) % (65536 - 1024) + 1024 for at in range(CANDIDATES))


def _launch(family: _Family, environ: Environment, parent: int, user: int) -> Launch:
    rank = int(_value(environ, family.rank)[1])
    size = int(_value(environ, family.size)[1])
    local = _value(environ, family.local_rank)[1]
    if size == 1:
        return Launch(family=family.name)
    one_host = _on_one_host(family, environ, size)
    job = ".".join(environ[name] for name in family.job if environ.get(name))
    port = _value(environ, ("GPUCOMM_MASTER_PORT", "MASTER_PORT"))[1]
    address = _value(environ, ("GPUCOMM_MASTER_ADDR", "MASTER_ADDR"))[1]
    if one_host and family.name != "bare variables" and not environ.get("GPUCOMM_MASTER_ADDR"):
        # Needs neither a name service nor a network.
        address = _LOOPBACK
        # What one mpiexec starts on a host without a job id has one parent.
        job = f"{job or (port and 'port') or parent}.{user}"
    if not address and family.hosts:
        nodes = _value(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))[1]
        address = first_host(nodes)
    if not address:
        raise UnusableError(
            "GC0701",
            f"{family.name} ({_told(family, environ)}) does not say where rank 0 is: "
            "MASTER_ADDR is not set",
        )
    # Not the address where there is a port: torch lets each copy name rank 0 as it likes.
    where = f":{port}" if port else "" if one_host else f"@{address}"
    token = f"{family.name}:{job}{where}"
    return Launch(
        family=family.name,
        rank=rank,
        size=size,
        local_rank=int(local) if local else None,
        one_host=one_host,
        address=address,
        ports=_ports(environ, token),
        token=token,
    )


def detect(environ: Environment, asked: str = "auto", *, parent: int = 0, user: int = 0) -> Launch:
    """The launch that this process is part of. Raises UnusableError where it is told by halves."""
    if asked == "none":
        return Launch(family="none")
    if asked != "auto":
        family = next(one for one in FAMILIES if one.name == NAMES[asked])
        problems = _problems(family, environ)
        if problems:
            raise UnusableError("GC0701", f"{family.name}: {'; '.join(problems)}")
        return _launch(family, environ, parent, user)
    partial = ""
    for family in FAMILIES:
        if not family.present(environ):
            continue
        problems = _problems(family, environ)
        if not problems:
            return _launch(family, environ, parent, user)
        told = f"{family.name} ({_told(family, environ)}): {'; '.join(problems)}"
        partial = partial or told
    if partial:
        raise UnusableError("GC0701", partial)
    return Launch(family="none")


def check_usage(launch: Launch, nproc: int | None, ranks_per_gpu: int | None = None) -> None:
    """Raises UsageError where the number of ranks is asked for and a launcher has decided it."""
    option = f"--nproc {nproc}" if ranks_per_gpu is None else f"--ranks-per-gpu {ranks_per_gpu}"
    if launch.meets and (nproc or ranks_per_gpu) is not None:
        raise UsageError(
            f"{option}: {launch.family} started {launch.size} copies, and each is one rank; "
            "leave it away, or start ranks of its own with --launcher none"
        )
