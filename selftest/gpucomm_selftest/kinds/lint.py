"""Settings of the communication libraries: GC05."""

from gpucomm_selftest.kinds.kind import FAIL, INFO, WARN, Kind

_UNSET = "unset it: in the job script, the image (docker inspect), /etc/nccl.conf"

KINDS: dict[str, Kind] = {
    "GC0501": Kind(
        level=WARN,
        title="a variable that the loaded library does not know",
        expected="one of the names in the library's own constants: NCCL ignores others silently",
        cause="a misspelling, or a variable of another version",
        action="correct the name or unset it",
    ),
    "GC0502": Kind(
        level=WARN,
        title="a variable that NCCL has removed",
        expected="a variable that is still read: this one has no effect",
        cause="a script from the time of an older NCCL",
        action=_UNSET,
    ),
    "GC0503": Kind(
        level=WARN,
        title="a variable that torch has renamed",
        expected="the name of torch since 2.2, which begins with TORCH_",
        cause="a script from the time of an older torch",
        action="rename it as measured says",
    ),
    "GC0504": Kind(
        level=WARN,
        title="a variable that nobody reads",
        expected="settings that have an effect",
        cause="a script that was copied from another",
        action=_UNSET,
    ),
    "GC0505": Kind(
        level=FAIL,
        title="a value that ends the init of NCCL",
        expected="words that NCCL knows: with any other it refuses to start (invalid usage)",
        cause="a misspelling, or an algorithm of another version",
        action="correct it or unset it: NCCL chooses well by itself",
        source="measured with NCCL 2.28.9 on an H200",
    ),
    "GC0506": Kind(
        level=WARN,
        title="a value that is not understood",
        expected="a word or number that is known: NCCL takes its default instead, and says so only "
        "at NCCL_DEBUG=INFO",
        cause="a misspelling",
        action="correct it or unset it",
    ),
    "GC0507": Kind(
        level=WARN,
        title="a number out of its range",
        expected="a number within the range that the documentation gives",
        cause="a wrong unit, or a digit too many",
        action="correct it or unset it",
    ),
    "GC0508": Kind(
        level=FAIL,
        title="a network interface that is not here",
        expected="at least one interface of this network namespace: else the ranks cannot meet "
        "(Bootstrap : no socket interface found)",
        cause="a name of another machine, or a container with a network of its own",
        action="docker run --network=host, or name one of those listed: ip -br addr",
        kubernetes="hostNetwork: true, or NCCL_SOCKET_IFNAME=eth0, the pod's own",
        slurm="set it per partition: interface names differ between kinds of nodes",
    ),
    "GC0509": Kind(
        level=WARN,
        title="an RDMA device that is not here",
        expected="at least one device of this machine: else NCCL goes over TCP without a word",
        cause="a name of another machine",
        action="name one of those listed, or unset it; NCCL_NET=IB makes the fall back to TCP an "
        "error",
    ),
    "GC0510": Kind(
        level=WARN,
        title="a file that is not here",
        expected="a file that can be read in this container: NCCL goes on without a word",
        cause="a path of the host that is not mounted",
        action="docker run --volume FILE:FILE:ro",
    ),
    "GC0511": Kind(
        level=WARN,
        title="a bypass was left over",
        expected="none of those that NCCL's guide lists for debugging",
        cause="somebody looked for an error, and the setting stayed",
        action=_UNSET,
        source="two H200: 345 GB/s, 27 with NCCL_P2P_DISABLE=1, 21 with NCCL_MAX_CTAS=1",
    ),
    "GC0512": Kind(
        level=WARN,
        title="a setting for debugging slows every step",
        expected="none in production",
        cause="somebody looked for an error, and the setting stayed",
        action=_UNSET,
    ),
    "GC0513": Kind(
        level=WARN,
        title="settings that do not go together",
        expected="at most one of them",
        cause="two sources of settings, such as an image and a script",
        action="unset one of them",
    ),
    "GC0514": Kind(
        level=WARN,
        title="a line of a configuration file that is no setting",
        expected="NAME=VALUE without blanks around =, or a comment with # as the first letter: the "
        "library trims nothing",
        cause="a slip in the file",
        action="correct the line that measured names",
    ),
    "GC0515": Kind(
        level=INFO,
        title="the name of an RDMA device takes others too",
        expected="= before names that are meant whole: without it they are prefixes",
        cause="mlx5_1 is the beginning of mlx5_10",
        action="write NCCL_IB_HCA==mlx5_1",
    ),
    "GC0516": Kind(
        level=WARN,
        title="a GID index that no port has",
        expected="an index of /sys/class/infiniband/*/ports/*/gids; NCCL since 2.21 finds the "
        "right one by itself",
        cause="an index of another machine",
        action="unset NCCL_IB_GID_INDEX, or look with show_gids",
    ),
    "GC0517": Kind(
        level=WARN,
        title="a plugin that cannot be opened",
        expected="a library that the loader finds under this name and can open: else NCCL goes on "
        "with what it has, and says so only at NCCL_DEBUG=INFO",
        cause="the plugin is not in this image or not on LD_LIBRARY_PATH, or a library that it "
        "needs is missing",
        action="install or mount it and name its folder in LD_LIBRARY_PATH, give the full path, or "
        "unset the variable",
    ),
    "GC0518": Kind(
        level=FAIL,
        title="a file without which NCCL does not start is not here",
        expected="a graph that can be read: without it the init ends (unhandled system error)",
        cause="a path of the host that is not mounted, or a file of another run",
        action="unset NCCL_GRAPH_FILE, or docker run --volume FILE:FILE:ro",
    ),
}
