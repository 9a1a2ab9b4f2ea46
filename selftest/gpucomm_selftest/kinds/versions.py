"""Versions, libraries and GPUs as one process sees them: GC01."""

from gpucomm_selftest.kinds.kind import FAIL, INFO, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0101": Kind(
        level=FAIL,
        title="no collective library is loaded",
        expected="after `import torch` one libnccl.so or librccl.so is mapped: without it there "
        "is no nccl backend",
        cause="torch has NCCL inside itself or is a CPU build, or its libnccl could not be found",
        action="install the torch build of this accelerator, or test with --backend gloo",
    ),
    "GC0102": Kind(
        level=FAIL,
        title="more than one collective library is loaded",
        expected="one file: with two, which of them a call reaches depends on the load order",
        cause="LD_PRELOAD or LD_LIBRARY_PATH brings another one, or a package with a bundled copy "
        "was installed",
        action="remove the one that the image does not own: look at LD_PRELOAD, LD_LIBRARY_PATH "
        "and `pip list | grep -i nccl`",
    ),
    "GC0103": Kind(
        level=FAIL,
        title="the collective library does not tell its version",
        expected="ncclGetVersion of the mapped file answers without a GPU",
        cause="the file was replaced or cut short, or it is no NCCL",
        action="reinstall the package that owns the file: it is damaged or was replaced "
        "while loaded",
    ),
    "GC0104": Kind(
        level=INFO,
        title="the collective library is not the one torch was compiled for",
        expected="the same major version: NCCL keeps its ABI within one",
        cause="NCCL was upgraded or pinned apart from torch, as images with another NCCL do",
        action="nothing, if this is the library that the image pins",
    ),
    "GC0105": Kind(
        level=FAIL,
        title="ranks have loaded different collective libraries",
        expected="one file and one version on every rank",
        cause="another image, LD_PRELOAD or LD_LIBRARY_PATH on some ranks",
        action="start all ranks with the same image and the same LD_PRELOAD and LD_LIBRARY_PATH",
    ),
    "GC0106": Kind(
        level=FAIL,
        title="GPU device nodes are here, but torch sees no GPU",
        expected="torch.cuda.is_available(), since this container was given GPUs; a pass on the "
        "CPU would hide that they cannot be used",
        cause="the driver is too old for this torch, nvidia-uvm is missing, or the GPU is in a bad "
        "state",
        action="compare the driver with the CUDA or ROCm version of torch (`nvidia-smi`), or ask "
        "for the CPU with --backend gloo",
        kubernetes="set resources.limits nvidia.com/gpu and use the nvidia runtime class",
        slurm="srun --gpus=N with nvidia-container-cli in enroot's hooks",
    ),
    "GC0107": Kind(
        level=INFO,
        title="tested on the CPU with Gloo",
        expected="a pass proves torch.distributed on this machine, and nothing about a GPU",
        cause="no GPU is visible, or --backend gloo was given",
        action="for GPUs: docker run --gpus all IMAGE gpucomm-selftest",
    ),
    "GC0108": Kind(
        level=WARN,
        title="several ranks share a GPU: this is a functional test only",
        expected="one rank per GPU: ranks on one GPU talk over sockets as ranks of different "
        "hosts do, so every speed and duration measured here means nothing",
        cause="more ranks were asked for than there are GPUs",
        action="leave --nproc away to start one rank per visible GPU",
    ),
    "GC0109": Kind(
        level=WARN,
        title="one rank only: nothing was communicated",
        expected="two ranks or more: with one rank every collective is a local copy",
        cause="one GPU, or --nproc 1",
        action="--nproc 2 starts two ranks on this GPU, as a functional test",
    ),
    "GC0110": Kind(
        level=FAIL,
        title="torch cannot be used",
        expected="`import torch` works and torch.distributed is part of it",
        cause="no torch in this Python, or one whose libraries are missing or damaged",
        action="run it in an image or environment that has torch: python -c 'import torch'",
    ),
    "GC0111": Kind(
        level=FAIL,
        title="the nccl backend was asked for, and there is no GPU to run it on",
        expected="torch.cuda.is_available() and at least one visible device",
        cause="the container was started without its GPUs, they are hidden, or torch is a CPU "
        "build",
        action="give the container its GPUs (docker run --gpus all), look at "
        "CUDA_VISIBLE_DEVICES, or use --backend gloo",
        kubernetes="resources: {limits: {nvidia.com/gpu: 1}}",
        slurm="srun --gpus-per-task=1 --container-image=IMAGE gpucomm-selftest",
    ),
    "GC0112": Kind(
        level=FAIL,
        title="this torch was built without the backend",
        expected="torch.distributed offers the backend that was asked for",
        cause="torch was built with USE_NCCL=0 or USE_DISTRIBUTED=0",
        action="use another --backend, or a torch build that has it",
    ),
    "GC0113": Kind(
        level=FAIL,
        title="the loopback interface does not carry a connection",
        expected="127.0.0.1 works even with --network none: the ranks meet there",
        cause="the network namespace is new and its loopback is down, or a firewall filters it",
        action="ip link set lo up",
    ),
    "GC0114": Kind(
        level=FAIL,
        title="torch is built for GPUs, and there is none to be seen",
        expected="one GPU at the least: a pass on the CPU would say nothing about this machine; "
        "--backend gloo asks for that on purpose",
        cause="the container was started without its GPUs, or a variable hides them",
        action="docker run --gpus all IMAGE gpucomm-selftest; for ROCm: docker run --device "
        "/dev/kfd --device /dev/dri --group-add render; or give --backend gloo",
        kubernetes="resources: {limits: {nvidia.com/gpu: 1}}, or amd.com/gpu",
        slurm="srun --gpus-per-task=1 --container-image=IMAGE gpucomm-selftest",
    ),
    "GC0115": Kind(
        level=FAIL,
        title="this torch has no code for a GPU",
        expected="machine code for the GPU's architecture, or PTX of an older one: else every "
        "kernel ends with `no kernel image is available`",
        cause="a GPU newer or older than this build of torch was made for",
        action="use the image line that measured names: docker run --gpus all IMAGE",
    ),
    "GC0116": Kind(
        level=FAIL,
        title="ranks would not use the same backend",
        expected="GPUs on every rank, or on none",
        cause="a host or container that was started without its GPUs, another image, or a variable "
        "that hides them there",
        action="start the named ranks as the others: docker run --gpus all; or give all of them "
        "--backend gloo",
        kubernetes="the same resources: {limits: …} in every pod",
        slurm="srun --gpus-per-task=1, in an allocation whose nodes all have GPUs",
    ),
    "GC0117": Kind(
        level=FAIL,
        title="a variable names GPUs that torch does not see",
        expected="as many GPUs as CUDA_VISIBLE_DEVICES (or HIP_, ROCR_) names, each once",
        cause="a number beyond the last GPU ends the list there; a GPU named twice empties it",
        action="unset the variable, or name the GPUs of nvidia-smi -L",
        slurm="leave the variable to Slurm: --gpus-per-node sets it",
    ),
    "GC0118": Kind(
        level=WARN,
        title="fewer GPUs are visible than device nodes are here",
        expected="torch sees each GPU that this container was given",
        cause="a GPU that fell off the bus, or one that the driver could not initialise",
        action="nvidia-smi -L and dmesg on the host; NVIDIA_VISIBLE_DEVICES in the container",
    ),
    "GC0119": Kind(
        level=FAIL,
        title="torch cannot be imported: its collective library lacks a function",
        expected="a NCCL or RCCL with every function that this torch calls when it is loaded",
        cause="an older library than torch was built for comes first: LD_PRELOAD, LD_LIBRARY_PATH, "
        "or a package that was changed by hand",
        action="unset LD_PRELOAD and LD_LIBRARY_PATH; pip install --force-reinstall torch brings "
        "the one that it asks for",
    ),
}
