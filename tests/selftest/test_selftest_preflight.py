"""The stage preflight: each finding comes of its own fault, and healthy places have none."""

from __future__ import annotations

import copy
import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucomm.project import load
from gpucomm_selftest import nvml
from gpucomm_selftest.archs import LINES, has_amd_code, has_code, line_for
from gpucomm_selftest.driver_table import floor_of, goes_with, newest_cuda, toolkit_driver, version
from gpucomm_selftest.kinds.preflight import KINDS
from gpucomm_selftest.machine import amdgpu, devices, memory, network, rights
from gpucomm_selftest.stages.preflight import Use, collect, judge, size

GB = 1 << 30
NCCL, GLOO = Use(backend="nccl", ranks=2, gpus=2), Use(backend="gloo", ranks=2)

Data = dict[str, Any]


def gpu(index: int) -> Data:
    return {
        "index": index,
        "name": "NVIDIA H200",
        "bus": f"0000:{index:02x}:00.0",
        "mig": False,
        "compute_mode": "default",
        "persistence": 1,
        "ecc_errors": 0,
        "remapped": {"uncorrected": 0, "pending": 0, "failed": 0},
        "slowdowns": [],
    }


def node(group: int = 0, usable: bool = True) -> Data:
    return {"group": group, "open": usable, "device": True}


def port(device: str, state: str = "ACTIVE", layer: str = "InfiniBand", gids: int = 1) -> Data:
    made = {"device": device, "port": "1", "layer": layer, "state": state}
    return {**made, "rate": "400 Gb/sec (4X NDR)", "gids": gids}


def h200() -> Data:
    """Two H200 in a container with all that it needs; driver and CUDA as measured."""
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "infiniband/uverbs0")
    return {
        "shm": {"there": True, "size": 64 * GB, "free": 63 * GB, "writable": True, "stale": []},
        "cgroup": {"limit": None, "used": 3 * GB, "killed": 0},
        "limits": {"memlock": None, "nofile": 1 << 20, "stack": 8 << 20},
        "rights": {"capabilities": ["IPC_LOCK"], "seccomp": "filter"},
        "nodes": {name: node() for name in names},
        "groups": [0],
        "interfaces": [{"name": "lo"}, {"name": "eth0"}],
        "route": "eth0",
        "rdma": [port("mlx5_0"), port("mlx5_1")],
        "numa": {"nodes": 2, "cpus": "0-191", "mems": "0-1"},
        "driver": {"name": "nvidia", "version": "580.159.04", "from": "NVML"},
        "gpus": [gpu(0), gpu(1)],
        "cuda": "13.0",
        "hip": None,
        "arch_list": ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"],
        "visible": [{"index": n, "name": "NVIDIA H200", "capability": "9.0"} for n in (0, 1)],
        "libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
    }


def laptop() -> Data:
    """A CPU build of torch in a plain docker run: 64 MB of shared memory, 8 MB of locked."""
    return h200() | {
        "shm": {"there": True, "size": 64 << 20, "free": 64 << 20, "writable": True, "stale": []},
        "limits": {"memlock": 8 << 20, "nofile": 1024, "stack": 8 << 20},
        "rights": {"capabilities": [], "seccomp": "filter"},
        "nodes": {},
        "rdma": [],
        "driver": None,
        "gpus": [],
        "cuda": None,
        "arch_list": [],
        "visible": [],
        "libcuda": None,
    }


def mi300() -> Data:
    """ROCm, as a user who is in the group of the nodes."""
    return h200() | {
        "nodes": {"kfd": node(109), "dri/renderD128": node(109)},
        "groups": [12345, 109],
        "rdma": [],
        "driver": {"name": "amdgpu", "version": "6.12.12", "from": "/sys/module/amdgpu/version"},
        "gpus": [],
        "cuda": None,
        "hip": "6.4",
        "arch_list": ["gfx90a", "gfx942"],
        "visible": [{"index": 0, "name": "AMD Instinct MI300X", "arch": "gfx942:sramecc+:xnack-"}],
        "libcuda": None,
    }


def ids(data: Data, use: Use) -> list[str]:
    return [finding.id for line in judge(data, use) for finding in line.findings]


@pytest.mark.parametrize(
    ("data", "use"), [(h200(), NCCL), (h200(), GLOO), (laptop(), GLOO), (mi300(), NCCL)]
)
def test_a_healthy_place_has_no_finding(data: Data, use: Use) -> None:
    assert ids(data, use) == []
    assert {line.level for line in judge(data, use)} == {"pass"}


def change(**changes: Any) -> Callable[[Data], Data]:
    """Another value at each path: shm__size=1 is data["shm"]["size"] = 1."""

    def apply(data: Data) -> Data:
        made = copy.deepcopy(data)
        for path, value in changes.items():
            inner: Any = made
            *way, last = path.split("__")
            for name in way:
                inner = inner[int(name) if name.isdigit() else name]
            inner[int(last) if last.isdigit() else last] = value
        return made

    return apply


def only(*names: str) -> Callable[[Data], Data]:
    """These nodes of GPUs, and those of the RDMA cards."""
    return change(nodes={name: node() for name in (*names, "infiniband/uverbs0")})


STALE = [{"name": "nccl-AbC123", "size": 9_637_888}]
NO_LOCK: Data = {"capabilities": [], "seccomp": "filter"}

FAULTS: list[tuple[str, Callable[[], Data], Callable[[Data], Data], str]] = [
    ("GC0401", h200, change(shm__size=64 << 20, shm__free=64 << 20), "64 MiB, 64 MiB free"),
    ("GC0402", h200, change(shm__free=1 << 20), "64 GiB, 1 MiB free"),
    ("GC0403", h200, change(shm__stale=STALE), "1 of 9.191 MiB: nccl-AbC123"),
    ("GC0404", h200, change(shm__there=False), "missing"),
    ("GC0404", h200, change(shm__writable=False), "closed to this user"),
    ("GC0405", h200, change(limits__memlock=64 << 10, rights=NO_LOCK), "64 KiB, no IPC_LOCK, 2"),
    ("GC0406", h200, change(limits__memlock=64 << 10, rights=NO_LOCK, rdma=[]), "64 KiB"),
    ("GC0407", h200, change(limits__nofile=256), "256 open files"),
    ("GC0408", h200, change(limits__stack=64 << 10), "64 KiB"),
    ("GC0411", h200, only("nvidia0", "nvidiactl"), "no /dev/nvidia-uvm"),
    ("GC0411", h200, only("nvidia0", "nvidia-uvm"), "/dev/nvidiactl"),
    (
        "GC0412",
        mi300,
        change(nodes={"kfd": node(109, False), "dri/renderD128": node(110, False)}),
        "/dev/kfd, /dev/dri/renderD128 of group 109, 110; this user is in 12345,109",
    ),
    ("GC0412", h200, change(nodes__nvidia1=node(44, False)), "/dev/nvidia1 of group 44"),
    (
        "GC0425",
        mi300,
        change(driver__version="6.16.6", hip="6.1.40093"),
        "amdgpu 6.16.6 is of ROCm 7.1, torch for ROCm 6.1",
    ),
    ("GC0413", mi300, change(nodes={"dri/renderD128": node()}), "/dev/dri/renderD128 and no"),
    (
        "GC0414",
        h200,
        change(nodes={name: node() for name in ("nvidia0", "nvidiactl", "nvidia-uvm")}),
        "mlx5_0, mlx5_1 and no /dev/infiniband/uverbs*",
    ),
    ("GC0415", h200, change(rdma__1=port("mlx5_1", "DOWN")), "mlx5_1:1 DOWN; 1 are active"),
    ("GC0416", h200, change(rdma__1=port("mlx5_1", layer="Ethernet", gids=0)), "mlx5_1:1"),
    ("GC0417", h200, change(cgroup__limit=4 * GB), "limit 4 GiB, 3 GiB used; 2 ranks want 4 GiB"),
    ("GC0418", h200, change(cgroup__killed=3), "3 processes"),
    ("GC0421", h200, change(driver__version="535.104.05"), "needs 580.65.06; it reaches CUDA 12.9"),
    ("GC0422", h200, change(cuda="13.2"), "driver 580.159.04, CUDA 13.2 has 595.45.04"),
    ("GC0423", h200, change(libcuda="/usr/local/cuda/compat/libcuda.so.590.48.01"), "/compat/"),
    ("GC0424", h200, change(libcuda="/usr/local/cuda/compat/libcuda.so.575.51.03"), "/compat/"),
    ("GC0431", h200, change(gpus__1__ecc_errors=7), "GPU1: 7 errors"),
    ("GC0432", h200, change(gpus__0__remapped__pending=1), "GPU0"),
    ("GC0433", h200, change(gpus__1__remapped__failed=1), "GPU1"),
    ("GC0434", h200, change(gpus__0__slowdowns=["power brake"]), "GPU0: power brake"),
    ("GC0435", h200, change(gpus__0__compute_mode="prohibited"), "GPU0: prohibited"),
    ("GC0436", h200, change(gpus__1__mig=True), "GPU1"),
    ("GC0115", h200, change(visible__1__capability="6.1"), "GPU 1 (NVIDIA H200) is 6.1; the line"),
    ("GC0115", mi300, change(arch_list=["gfx90a"]), "is gfx942:sramecc+:xnack-; torch has gfx90a"),
]


@pytest.mark.parametrize(("finding", "place", "damage", "said"), FAULTS)
def test_a_fault_has_its_own_finding(
    finding: str, place: Callable[[], Data], damage: Callable[[Data], Data], said: str
) -> None:
    (found,) = [one for line in judge(damage(place()), NCCL) for one in line.findings]
    assert found.id == finding
    assert said in found.measured


def test_every_kind_has_a_fault() -> None:
    assert set(KINDS) == {finding for finding, *_ in FAULTS} - {"GC0115"}


def test_what_only_gpus_need_is_not_asked_of_the_cpu() -> None:
    of_every_run = {"GC0403", "GC0407", "GC0408", "GC0417", "GC0418"}
    for finding, place, damage, _ in FAULTS:
        assert set(ids(damage(place()), GLOO)) <= of_every_run, finding


def test_locked_memory_does_not_matter_to_cards_that_cannot_be_opened() -> None:
    """/sys shows the cards of the host to every container."""
    bare = change(nodes={name: node() for name in ("nvidia0", "nvidiactl", "nvidia-uvm")})
    few = change(limits__memlock=8 << 20, rights=NO_LOCK)
    assert ids(few(bare(h200())), NCCL) == ["GC0414"]


def test_a_driver_that_does_not_tell_a_version_is_not_judged() -> None:
    assert ids(change(driver__version="580-open")(h200()), NCCL) == []


def test_a_gpu_in_exclusive_mode_takes_one_rank_alone() -> None:
    data = change(gpus__0__compute_mode="exclusive")(h200())
    assert ids(data, NCCL) == []
    assert ids(data, Use(backend="nccl", ranks=4, gpus=2)) == ["GC0435"]


# ---------------------------------------------------------------- what is read


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_shared_memory_of_this_tree(tmp_path: Path) -> None:
    assert memory.shared_memory(tmp_path)["there"] is False
    shm = tmp_path / "dev/shm"
    shm.mkdir(parents=True)
    for name in ("nccl-AAA", "nccl-BBB", "sem.other"):
        (shm / name).write_bytes(b"12345")
    write(tmp_path, **{"proc/77/maps": "7f00-7f01 rw-s 0 00:01 7 /dev/shm/nccl-AAA (deleted)\n"})
    seen = memory.shared_memory(tmp_path)
    assert seen["writable"]
    assert seen["size"] >= seen["free"] > 0
    assert seen["stale"] == [{"name": "nccl-BBB", "size": 5}]


def test_the_least_limit_of_a_control_group_on_the_way_up_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/kube/pod/box"
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/kube/pod/box\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "1000\n",
            f"{group}/memory.events": "low 0\noom 4\noom_kill 2\noom_group_kill 0\n",
            "sys/fs/cgroup/kube/pod/memory.max": "5000\n",
            "sys/fs/cgroup/kube/memory.max": "7000\n",
        },
    )
    assert memory.control_group(tmp_path) == {"limit": 5000, "used": 1000, "killed": 2}


def test_a_control_group_of_version_1_and_one_in_its_own_namespace(tmp_path: Path) -> None:
    old, new, none = tmp_path / "old", tmp_path / "new", tmp_path / "none"
    folder = "sys/fs/cgroup/memory/docker/x"
    write(
        old,
        **{
            "proc/self/cgroup": "9:cpu:/\n4:memory:/docker/x\n",
            f"{folder}/memory.limit_in_bytes": "4096\n",
            f"{folder}/memory.usage_in_bytes": "100\n",
            f"{folder}/memory.oom_control": "under_oom 0\noom_kill 1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory.control_group(old) == {"limit": 4096, "used": 100, "killed": 1}
    write(
        new,
        **{
            "proc/self/cgroup": "0::/../elsewhere\n",
            "sys/fs/cgroup/memory.max": "2048\n",
            "sys/fs/cgroup/memory.current": "64\n",
        },
    )
    assert memory.control_group(new) == {"limit": 2048, "used": 64, "killed": None}
    assert memory.control_group(none) == {"limit": None, "used": None, "killed": None}


def test_rights_of_a_process(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/self/status": "CapEff:\t0000000000804000\nSeccomp:\t2\n"})
    seen = rights.rights(tmp_path)
    assert seen == {"capabilities": ["IPC_LOCK", "SYS_NICE"], "seccomp": "filter"}
    assert rights.rights(tmp_path / "none") == {"capabilities": [], "seccomp": "unknown"}
    assert set(rights.limits()) == {"memlock", "nofile", "stack"}


def test_device_nodes_have_their_group_and_whether_they_open(tmp_path: Path) -> None:
    write(tmp_path, **{"dev/nvidia0": "", "dev/nvidia-modeset": "", "dev/dri/renderD128": ""})
    (tmp_path / "dev/nvidia7").symlink_to("nowhere")
    seen = devices.device_nodes(tmp_path)
    assert set(seen) == {"nvidia0", "dri/renderD128"}
    assert seen["nvidia0"]["open"]
    assert seen["nvidia0"]["group"] == os.getgid()
    assert os.getgid() in devices.groups()


def test_ports_and_their_addresses(tmp_path: Path) -> None:
    base = "sys/class/infiniband/mlx5_0/ports/1"
    write(
        tmp_path,
        **{
            f"{base}/link_layer": "Ethernet\n",
            f"{base}/state": "4: ACTIVE\n",
            f"{base}/rate": "400 Gb/sec (4X NDR)\n",
            f"{base}/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
            f"{base}/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        },
    )
    (seen,) = network.rdma_ports(tmp_path)
    assert seen == port("mlx5_0", layer="Ethernet")
    assert network.rdma_ports(tmp_path / "none") == []


def test_interfaces_and_the_default_route(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth0/mtu": "9000\n",
            "sys/class/net/eth0/speed": "100000\n",
            "sys/class/net/lo/operstate": "unknown\n",
            "sys/class/net/lo/mtu": "65536\n",
            "sys/class/net/lo/speed": "-1\n",
            "proc/net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask\n"
            "eth1 000A0A0A 00000000 1 0 0 0 00FFFFFF\neth0 00000000 010A0A0A 3 0 0 0 00000000\n",
        },
    )
    eth0, lo = network.interfaces(tmp_path)
    assert eth0 == {"name": "eth0", "state": "up", "mtu": 9000, "speed": 100_000}
    assert lo["speed"] is None
    assert network.default_interface(tmp_path) == "eth0"
    assert network.default_interface(tmp_path / "none") == ""


def test_this_machine_can_be_looked_at() -> None:
    seen = collect()
    lines = judge(laptop() | seen, GLOO)
    assert len({line.check for line in lines}) == len(lines) == 13
    assert seen["shm"]["there"]
    assert "lo" in [one["name"] for one in seen["interfaces"]]


def test_sizes_are_read_by_people() -> None:
    assert [size(n) for n in (None, 0, 64 << 10, 8 << 20, GB + GB // 2)] == [
        "unlimited",
        "0 B",
        "64 KiB",
        "8 MiB",
        "1.5 GiB",
    ]


# ---------------------------------------------------------------- drivers and architectures


def test_driver_versions_compare_as_numbers() -> None:
    assert version("570.26") < version("570.124.06") < version("580.65.06")
    assert version("n/a") == ()
    assert floor_of("12.1") == "525.60.13"
    assert floor_of("99.0") is None
    assert toolkit_driver("12.1.105") == "530.30.02"
    assert newest_cuda("550.54.14") == "12.9"
    assert newest_cuda("300.0") is None


@pytest.mark.parametrize(
    ("capability", "archs", "expected"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.9", ["sm_80", "sm_90"], True),
        ("10.0", ["sm_90"], False),
        ("10.0", ["sm_90", "compute_90"], True),
        ("7.5", ["sm_80", "compute_80"], False),
        ("9.0", ["sm_90a"], True),
        ("10.0", ["sm_90a"], False),
        ("12.1", ["sm_120"], True),
        ("9.0", [], False),
        ("9.0", ["nonsense"], False),
    ],
)
def test_code_for_a_gpu(capability: str, archs: list[str], expected: bool) -> None:
    assert has_code(capability, archs) is expected


def test_code_for_an_amd_gpu() -> None:
    assert has_amd_code("gfx942:sramecc+:xnack-", ["gfx90a", "gfx942"])
    assert not has_amd_code("gfx950", ["gfx90a", "gfx942"])


def test_the_lines_are_those_of_the_matrix() -> None:
    """The package is alone in an image, so it has a table; the matrix decides what is right."""
    matrix = load(start=Path(__file__).parents[2]).matrix
    for line, (least, most) in LINES.items():
        archs = [
            re.sub(r"\+PTX$", "", arch)
            for row in matrix.lines[line].gpus
            if "amd64" in (row.arch or ["amd64"])
            for arch in row.archs
        ]
        numbers = sorted(tuple(map(int, arch.split("."))) for arch in archs)
        low, high = (tuple(map(int, one.split("."))) for one in (least, most))
        assert low >= numbers[0], line
        assert high[0] == numbers[-1][0], line
    assert line_for("9.0") == "cu130"
    assert line_for("6.1") == "cu126"
    # The newest that this driver runs; where none does, the driver has to be updated anyhow.
    assert line_for("9.0", "550.54.14") == "cu128"
    assert line_for("12.0", "550.54.14") == "cu128"
    assert line_for("12.1", "550.54.14") == "cu130"
    assert line_for("3.5") is None


class FakeNvml:
    """libnvidia-ml with one GPU that has every fault."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        values: dict[str, tuple[int, ...]] = {
            "nvmlDeviceGetCount_v2": (1,),
            "nvmlDeviceGetHandleByIndex_v2": (1,),
            "nvmlDeviceGetComputeMode": (3,),
            "nvmlDeviceGetPersistenceMode": (0,),
            "nvmlDeviceGetTotalEccErrors": (5,),
            "nvmlDeviceGetRemappedRows": (1, 2, 1, 1),
            "nvmlDeviceGetCurrentClocksThrottleReasons": (0x1 | 0x8 | 0x80,),
            "nvmlDeviceGetMigMode": (1, 1),
        }

        def call(*args: Any) -> int:
            if name in ("nvmlInit_v2", "nvmlShutdown"):
                return 0
            if name not in values:
                return 3
            wanted = values[name]
            for pointer, value in zip(args[-len(wanted) :], wanted, strict=True):
                pointer.contents.value = value
            return 0

        return call


def test_the_health_of_a_gpu_as_nvml_tells_it() -> None:
    (seen,) = nvml.health(FakeNvml())
    assert seen["compute_mode"] == "exclusive"
    assert seen["ecc_errors"] == 5
    assert seen["remapped"] == {"uncorrected": 2, "pending": 1, "failed": 1}
    assert seen["slowdowns"] == ["hardware slowdown", "power brake"]
    assert seen["persistence"] == 0
    assert seen["mig"] is True
    assert nvml.health(None) == []
    assert ctypes.sizeof(nvml.PciInfo) == 68


@pytest.mark.parametrize(
    ("driver", "rocm", "tested"),
    [
        ("6.2", "6.0", True),
        ("6.2", "6.4", True),
        ("6.2", "7.0", False),
        ("6.2", "5.6", False),
        ("7.1", "6.2", True),
        ("7.1", "6.1", False),
        ("7.2", "6.3", True),
        ("6.2", "99.1", True),
    ],
)
def test_which_rocm_a_driver_is_tested_with(driver: str, rocm: str, tested: bool) -> None:
    assert goes_with(driver, rocm) == tested


def test_the_errors_of_amd_gpus_are_counted(tmp_path: Path) -> None:
    def card(number: int, files: dict[str, str]) -> None:
        folder = tmp_path / f"sys/class/drm/card{number}/device/ras"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)

    (tmp_path / "sys/class/drm/card0-DP-1").mkdir(parents=True)
    card(10, {"umc_err_count": "ue: 2\nce: 1\n", "gfx_err_count": "ue: 1\nce: 0\nde: 0\n"})
    pages = "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n0x3 : 0x00001000 : F\n"
    card(2, {"umc_err_count": "ue: 0\nce: 9\n", "gpu_vram_bad_pages": pages})
    card(3, {})
    first, second = amdgpu.health(tmp_path)
    assert (first["name"], first["ecc_errors"]) == ("card2", 0)
    assert first["remapped"] == {"pending": 1, "failed": 1}
    assert (second["name"], second["ecc_errors"]) == ("card10", 3)
    made = {**mi300(), "gpus": [first, second]}
    assert ids(made, NCCL) == ["GC0431", "GC0432", "GC0433"]
    assert amdgpu.health(tmp_path / "none") == []
