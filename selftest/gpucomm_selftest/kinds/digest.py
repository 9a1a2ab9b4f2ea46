"""What differs between the ranks of one world: GC080 and GC081."""

from gpucomm_selftest.kinds.kind import FAIL, PASS, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0800": Kind(
        level=PASS,
        title="the ranks agree",
        expected="one set of libraries, packages, driver, GPUs and settings on all ranks, and "
        "a way between all hosts",
        action="nothing",
    ),
    "GC0801": Kind(
        level=FAIL,
        title="a setting that must be the same on all ranks is not",
        expected="one value on every rank: each computes for itself how data flows, and takes for "
        "granted that all others come to the same end; else they hang or return garbage",
        cause="a profile, a .nccl.conf or an entry point of one host sets it, or mpirun and srun "
        "did not pass it on",
        action="set it for all ranks or none: mpirun -x NAME, docker run -e NAME=VALUE on every "
        "host; look for it in ~/.nccl.conf and /etc/nccl.conf",
        kubernetes="in env: of the pod template, not of one pod",
        slurm="srun --export=ALL,NAME=VALUE; not in the prolog of some nodes",
        source="src/graph of NCCL 2.30; RCCL's documentation says it of RCCL_HIERARCHICAL_*",
    ),
    "GC0802": Kind(
        level=WARN,
        title="ranks have different settings",
        expected="the same on every rank, unless it is about one host",
        cause="a profile or a file of one host, or a launcher that passed on a part",
        action="set it for all ranks or for none: mpirun -x NAME, docker run -e NAME=VALUE",
        kubernetes="in env: of the pod template",
        slurm="srun --export=ALL,NAME=VALUE",
    ),
    "GC0803": Kind(
        level=FAIL,
        title="ranks have different versions of the collective library",
        expected="one version of NCCL or RCCL in all ranks",
        cause="hosts run different images, or one has LD_PRELOAD or LD_LIBRARY_PATH set",
        action="use one image by its digest on all hosts: docker image ls --digests; `--stages "
        "libraries` on the named host shows who brought the other one",
        kubernetes="image: NAME@sha256:… in the pod template",
        slurm="srun --container-image with one .sqsh file for all nodes",
    ),
    "GC0804": Kind(
        level=WARN,
        title="ranks have other files of a communication library",
        expected="the same file everywhere: one version can be built in several ways",
        cause="hosts run different images, or a plugin is mounted from some hosts only",
        action="use one image by its digest on all hosts, and the same mounts",
        kubernetes="image: NAME@sha256:… in the pod template",
        slurm="srun --container-image with one .sqsh file for all nodes",
    ),
    "GC0805": Kind(
        level=FAIL,
        title="ranks have different versions of torch",
        expected="one torch in all ranks: what they say to each other changes between versions",
        cause="hosts run different images, or a virtual environment of one host comes first",
        action="use one image by its digest on all hosts: docker image ls --digests",
        kubernetes="image: NAME@sha256:… in the pod template",
        slurm="srun --container-image with one .sqsh file for all nodes",
    ),
    "GC0806": Kind(
        level=WARN,
        title="ranks have different packages",
        expected="the same packages in the same versions",
        cause="hosts run different images, or somebody installed something on one",
        action="use one image by its digest on all hosts: docker image ls --digests",
        kubernetes="image: NAME@sha256:… in the pod template",
        slurm="srun --container-image with one .sqsh file for all nodes",
    ),
    "GC0807": Kind(
        level=WARN,
        title="hosts have different drivers",
        expected="one driver version on all hosts of a job",
        cause="some hosts were updated and others not",
        action="cat /proc/driver/nvidia/version or /sys/module/amdgpu/version on every host; "
        "update the rest",
        slurm="a feature or a partition for each driver, until all are updated",
    ),
    "GC0808": Kind(
        level=WARN,
        title="ranks have different GPUs",
        expected="GPUs of one kind and memory: the slowest and the smallest decides",
        cause="hosts of different generations, or a part of a GPU (MIG) on some",
        action="choose hosts of one kind",
        kubernetes="nodeSelector: {nvidia.com/gpu.product: …}",
        slurm="srun --gpus=h200:8, with the type",
    ),
    "GC0809": Kind(
        level=FAIL,
        title="different hosts have one NCCL_HOSTID",
        expected="a value of its own on each host, or none",
        cause="it was set in an image or exported to all ranks: NCCL takes them for one host, and "
        "tries shared memory and peer access between them",
        action="unset it",
    ),
    "GC0811": Kind(
        level=FAIL,
        title="hosts do not reach each other by the interface of the data",
        expected="a connection between every two hosts at the interface that the library will "
        "choose; the copies of the self-test met, perhaps by another one",
        cause="an interface that leads elsewhere (a bridge of docker, a management network), a "
        "missing route, or a firewall or network policy",
        action="name an interface that joins the hosts: -e NCCL_SOCKET_IFNAME=eth0 (with Gloo: "
        "GLOO_SOCKET_IFNAME); ip route get ADDRESS on the named host; docker run --network host",
        kubernetes="no NetworkPolicy between the pods; with hostNetwork: true name the interface",
        slurm="export NCCL_SOCKET_IFNAME in the job, by the kind of node",
    ),
}
