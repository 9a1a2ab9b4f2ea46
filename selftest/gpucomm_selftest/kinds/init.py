"""The start of the process group, and the way that the data then takes: GC02."""

from gpucomm_selftest.kinds.kind import INFO, PASS, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0201": Kind(
        level=PASS,
        title="every rank initialised",
        expected="init_process_group and a first all_reduce on every rank within the deadline",
        action="nothing",
    ),
    "GC0203": Kind(
        level=WARN,
        title="hosts with InfiniBand or RoCE talk over sockets",
        expected="NET/IB between hosts that both have an active port: sockets are 10 to 40 times "
        "slower",
        cause="/dev/infiniband is not in the container, libibverbs or the provider of the NIC is "
        "not in the image, memlock is too low, or the network plugin was not found",
        action="docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host; in the "
        "image: libibverbs1 and ibverbs-providers",
        kubernetes="request the RDMA resource of the device plugin (rdma/...), add IPC_LOCK to "
        "securityContext.capabilities",
        slurm="enroot: mount /dev/infiniband (the hook 99-mellanox.sh does), "
        "srun --propagate=MEMLOCK",
        source="public reports of the silent fallback: NCCL issues 1267 and 952",
    ),
    "GC0204": Kind(
        level=WARN,
        title="GPUs that reach each other do not use it",
        expected="P2P between GPUs that the library itself sees joined by NVLink or one PCIe "
        "switch: through host memory an NVLink of an H200 is 12 times slower",
        cause="PCIe access control (ACS) or an IOMMU that redirects peer traffic, a container "
        "that sees only some of the GPUs, ranks in different containers without --ipc=host",
        action="docker run --gpus all --ipc=host; compare `nvidia-smi topo -m` with "
        "`nvidia-smi topo -p2p r`; look for ACS with `lspci -vvv`",
        kubernetes="request all GPUs of the node in one pod",
        slurm="srun --gpus-per-node=8 --gpu-bind=none: with a GPU bound to each task they do not "
        "see each other",
        source="two H200 with NCCL_P2P_DISABLE=1: 27 instead of 345 GB/s",
    ),
    "GC0205": Kind(
        level=INFO,
        title="the collective library warned at its start",
        expected="no line at WARN, and no hint, in its log of the init",
        cause="the library says it itself",
        action="read what it says",
    ),
    "GC0206": Kind(
        level=WARN,
        title="InfiniBand or RoCE is used without GPUDirect RDMA",
        expected="NET/IB with GDRDMA: without it each byte goes through host memory once more",
        cause="the kernel module nvidia-peermem is not loaded and DMA-BUF is not offered, the "
        "GPU has no GPUDirect, or NIC and GPU are not under one PCIe bridge",
        action="on the host: modprobe nvidia-peermem, or a driver with open kernel modules and "
        "Linux 5.12 or newer for DMA-BUF",
    ),
    "GC0207": Kind(
        level=WARN,
        title="the network plugin that was asked for was not found",
        expected="the file that NCCL_NET_PLUGIN names: without it the library goes on with "
        "its own network, which may be sockets",
        cause="the plugin is not in the image, or not on LD_LIBRARY_PATH",
        action="install the plugin in the image, or unset NCCL_NET_PLUGIN",
    ),
    "GC0208": Kind(
        level=INFO,
        title="a variable keeps the library from its fastest way",
        expected="NCCL chooses the way itself; what is set here explains the slower one",
        cause="a setting for debugging that was left, or one that was meant",
        action="unset it, unless you know why it is there",
    ),
}
