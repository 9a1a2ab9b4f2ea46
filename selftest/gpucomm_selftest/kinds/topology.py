"""How the GPUs and network cards of one machine are joined: GC06."""

from gpucomm_selftest.kinds.kind import FAIL, INFO, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0601": Kind(
        level=FAIL,
        title="NVLinks of a GPU are down",
        expected="as many NVLinks up as on the other GPUs of the same model: the slowest GPU sets "
        "the speed of every collective, and a link that fell once tends to take the job with it",
        cause="a link that failed training or was taken down after errors, a switch or bridge "
        "that is damaged or loose, or a fabric manager that started before the GPU was ready",
        action="on the host: nvidia-smi nvlink -s; nvidia-smi nvlink -e; dmesg | grep -i -e xid "
        "-e nvswitch. Reset the GPU or reboot the host; if it stays, have the board looked at",
        kubernetes="kubectl cordon NODE, and drain it: only the host can repair it",
        slurm="scontrol update nodename=NODE state=drain reason=nvlink: only the host can "
        "repair it",
    ),
    "GC0602": Kind(
        level=WARN,
        title="some GPUs have no working NVLink or xGMI, others of the same model have",
        expected="all of them or none: a collective over all GPUs goes over the slowest path",
        cause="a bridge that was never put in, all links of one GPU down, or GPUs handed to this "
        "container that do not belong together",
        action="use the GPUs that are joined (docker run --gpus '\"device=0,1\"'), or look on the "
        "host: nvidia-smi nvlink -s, or rocm-smi --showtopo",
        kubernetes="let the kubelet choose GPUs that are joined: --topology-manager-policy="
        "single-numa-node, and a device plugin that prefers them",
        slurm="srun --gpus-per-node=N with AutoDetect=nvml in gres.conf, which knows the links",
    ),
    "GC0603": Kind(
        level=WARN,
        title="GPUs that are joined cannot reach each other's memory",
        expected="peer access between GPUs joined by NVLink, xGMI or one PCIe switch: without it "
        "every byte takes the way through host memory, 10 times slower and more",
        cause="a virtual machine or an IOMMU in the way, PCIe access control (ACS) switched on, "
        "peer access disabled in the driver's settings, or a fabric manager that is not running",
        action="on the host: nvidia-smi topo -p2p r; systemctl status nvidia-fabricmanager; "
        "for AMD, iommu=pt on the kernel's command line",
        kubernetes="the same on the node: no setting of a pod changes it",
        slurm="the same on the node: no setting of a job changes it",
        source="two H200 with peer access off: 27 GB/s instead of 345 GB/s",
    ),
    "GC0604": Kind(
        level=WARN,
        title="the driver offers peer access, and torch does not see it",
        expected="cudaDeviceCanAccessPeer says the same as the driver's management library",
        cause="two GPUs of which this process may use peer access to one only: confidential "
        "computing, MIG, or a driver and a forward-compatibility library that do not fit",
        action="python -c 'import torch; print(torch.cuda.can_device_access_peer(0, 1))' on the "
        "host and in the container: where only the container says False, compare its "
        "libcuda.so.1 with the host's driver",
    ),
    "GC0605": Kind(
        level=WARN,
        title="a GPU has fewer PCIe lanes than GPU and slot can use",
        expected="the full width; the generation is not judged, since it falls while a GPU rests",
        cause="a card or riser that is not seated well, a dirty contact, or a slot that the "
        "firmware splits",
        action="look again under load: nvidia-smi --query-gpu=index,pcie.link.width.current,"
        "pcie.link.width.max --format=csv; on the host, reseat the card or its riser",
        kubernetes="kubectl cordon NODE: only the host can repair it",
        slurm="scontrol update nodename=NODE state=drain reason=pcie: only the host can repair it",
    ),
    "GC0606": Kind(
        level=INFO,
        title="no network card is near a GPU",
        expected="a card on the NUMA node of some GPU: traffic from one node to another costs "
        "bandwidth and latency, and GPUDirect RDMA is off across it",
        cause="the cards' slots belong to the other processor, or the GPUs of this container do",
        action="for jobs over several machines choose GPUs on the cards' side: "
        "docker run --gpus '\"device=0,1\"'; NCCL_NET_GDR_LEVEL=SYS tries GPUDirect all the same",
        kubernetes="--topology-manager-policy=single-numa-node on the kubelet",
        slurm="srun --gpus-per-node=N --gres-flags=enforce-binding",
    ),
    "GC0607": Kind(
        level=INFO,
        title="a GPU has no network card on its NUMA node, others have",
        expected="a card near each GPU, where there are several nodes and several machines",
        cause="fewer cards than nodes, or a card whose link is down or that this container was "
        "not given",
        action="for jobs over several machines: docker run --device /dev/infiniband gives all "
        "cards; look for ports that are down: cat /sys/class/infiniband/*/ports/*/state",
        kubernetes="ask for all RDMA devices of the node beside all of its GPUs",
        slurm="take the whole node (--exclusive), or GPUs on the card's side",
    ),
    "GC0608": Kind(
        level=INFO,
        title="a GPU reaches the others only across NUMA nodes",
        expected="GPUs of one job on one NUMA node, or as many on each",
        cause="an odd choice of GPUs, or a slot on the other processor",
        action="choose GPUs of one node: docker run --gpus '\"device=0,1\"'",
        kubernetes="--topology-manager-policy=single-numa-node on the kubelet",
        slurm="srun --gpus-per-node=N --gres-flags=enforce-binding",
    ),
    "GC0609": Kind(
        level=INFO,
        title="NVLinks are down, as many on every GPU",
        expected="all links of a GPU up, unless the model or the number of bridges has fewer",
        cause="fewer bridges than the boards have room for, or a model with part of its links "
        "switched off",
        action="nvidia-smi nvlink -s on the host; where bridges are missing, all of them are "
        "needed for the full speed",
    ),
    "GC0610": Kind(
        level=INFO,
        title="the topology could not be read",
        expected="NVML or amdsmi in the container, or a matrix from nvidia-smi or rocm-smi",
        cause="a management tool of a version that prints in another way, and no library to ask",
        action="docker run --gpus all gives the container the library with the GPUs "
        "(NVIDIA_DRIVER_CAPABILITIES must have `utility`)",
        kubernetes="env NVIDIA_DRIVER_CAPABILITIES=compute,utility in the pod",
        slurm="srun --export=ALL,NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    "GC0611": Kind(
        level=INFO,
        title="a GPU stands in a slot that is wired for fewer lanes than it has",
        expected="a slot with all lanes where traffic goes over PCIe",
        cause="a board with narrow slots, or one that shares the lanes of two slots",
        action="nothing, if the board is what it is; otherwise use its wide slot",
    ),
}
