"""The topology: what is read from tools, libraries and /sys, and what each of it means.

topologies/ has what `nvidia-smi` and `rocm-smi` print on machines that are known from public
documents, typed anew: formats and paths are real, the paths between two cards are simplified and
names are ours. The first lines of each file say which machine it is.
"""

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucomm_selftest.findings import KINDS
from gpucomm_selftest.links import (
    PciTree,
    ask_tool,
    collect,
    from_amdsmi,
    from_nvidia_text,
    from_nvml,
    from_rocm_text,
)
from gpucomm_selftest.stages.topology import judge, summary
from gpucomm_selftest.text import stage_lines
from gpucomm_selftest.topology import (
    Nic,
    Topology,
    bus_id,
    draw,
    new_gpu,
    nvlinks,
    read_nvidia_access,
    read_nvidia_matrix,
    read_nvidia_query,
    read_nvlink_status,
    read_rocm_topology,
    rows_of,
)

PRINTED = Path(__file__).parent / "topologies"
NVIDIA = [
    "a6000-bridged",
    "dgx-2",
    "dgx-a100",
    "dgx-v100",
    "geforce-x1",
    "h200-x1",
    "h200-x2",
    "h200-x4-narrow-cpuset",
    "hgx-h100",
    "hgx-h200",
    "l40s-x8",
    "rtx-4090-x2",
]
ROCM = ["mi100-pcie", "mi210-hives", "mi250-old", "mi300x", "mi300x-x1"]


def printed(name: str) -> str:
    lines = (PRINTED / f"{name}.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def read(name: str) -> Topology:
    topology = (read_nvidia_matrix if name in NVIDIA else read_rocm_topology)(printed(name))
    assert topology is not None
    return topology


def machine(
    paths: list[list[str]],
    *,
    nics: list[Nic] | None = None,
    access: str = "",
    **known: list[Any],
) -> Topology:
    """A topology with these paths; `known` has a list with one value for each GPU."""
    count = len(paths)
    named = {"name": ["NVIDIA H200"] * count, **known}
    return Topology(
        source="NVML",
        gpus=[
            new_gpu(index, **{key: values[index] for key, values in named.items()})
            for index in range(count)
        ],
        paths=paths,
        access=[["X" if a == b else access for b in range(count)] for a in range(count)]
        if access
        else [],
        nics=nics or [],
        problems=[],
    )


def everywhere(path: str, count: int) -> list[list[str]]:
    return [["X" if a == b else path for b in range(count)] for a in range(count)]


def nic(name: str, *paths: str, active: bool | None = True) -> Nic:
    return Nic(name=name, bus="", numa=None, active=active, paths=list(paths))


def torch_says(access: bool, count: int, buses: list[str] | None = None) -> dict[str, Any]:
    pairs = [[a == b or access for b in range(count)] for a in range(count)]
    return {"access": pairs, "buses": buses or [""] * count}


def ids(topology: Topology, torch: Mapping[str, Any] | None = None) -> list[str]:
    return [finding.id for finding in judge(topology, torch)]


# ---- readers


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "first", "last", "nodes"),
    [
        ("dgx-a100", 8, 12, "NV12", "NV12", [3, 3, 1, 1, 7, 7, 5, 5]),
        ("hgx-h100", 8, 12, "NV18", "NV18", [0] * 4 + [1] * 4),
        ("hgx-h200", 8, 9, "NV18", "NV18", [0] * 4 + [1] * 4),
        ("h200-x2", 2, 0, "NV18", "NV18", [0, 0]),
        ("h200-x4-narrow-cpuset", 4, 0, "NV18", "NV18", [0, 1, 1, 1]),
        ("dgx-v100", 8, 4, "NV1", "SYS", [0] * 4 + [1] * 4),
        ("dgx-2", 16, 10, "NV6", "NV6", [0] * 8 + [1] * 8),
        ("l40s-x8", 8, 2, "PIX", "SYS", [0] * 4 + [1] * 4),
        ("a6000-bridged", 4, 0, "NV4", "SYS", [0, 0, 1, 1]),
        ("rtx-4090-x2", 2, 0, "PHB", "PHB", [0, 0]),
        ("mi300x", 8, 0, "XGMI", "XGMI", [0] * 4 + [1] * 4),
        ("mi210-hives", 8, 0, "XGMI", "PCIE", [0] * 4 + [1] * 4),
        ("mi250-old", 4, 0, "XGMI", "XGMI", [0, 1, 2, 3]),
        ("mi100-pcie", 2, 0, "PCIE", "PCIE", [0, 0]),
    ],
)
def test_a_printed_matrix_is_read(
    name: str, gpus: int, nics: int, first: str, last: str, nodes: list[int]
) -> None:
    topology = read(name)
    assert [gpu["index"] for gpu in topology["gpus"]] == list(range(gpus))
    assert len(topology["nics"]) == nics
    assert topology["paths"][0][1] == first
    assert topology["paths"][0][-1] == last
    assert all(topology["paths"][at][at] == "X" for at in range(gpus))
    assert [gpu["numa"] for gpu in topology["gpus"]] == nodes


def test_cards_have_their_names_from_legend_or_header() -> None:
    new, old = read("hgx-h200"), read("dgx-a100")
    assert [one["name"] for one in new["nics"]][-2:] == ["mlx5_7", "mlx5_bond_0"]
    assert new["nics"][3]["paths"] == ["NODE"] * 3 + ["PIX"] + ["SYS"] * 4
    assert old["nics"][0]["paths"] == ["PXB", "PXB"] + ["SYS"] * 6


@pytest.mark.parametrize("name", ["h200-x1", "geforce-x1", "mi300x-x1"])
def test_one_gpu_is_a_matrix_too(name: str) -> None:
    assert read(name)["paths"] == [["X"]]


@pytest.mark.parametrize("name", NVIDIA + ROCM)
def test_no_machine_that_is_healthy_has_a_finding(name: str) -> None:
    assert ids(read(name)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\n",  # cut off
    ],
)
def test_what_is_no_matrix_is_none(text: str) -> None:
    assert read_nvidia_matrix(text) is None
    assert read_nvidia_access(text) == []
    assert read_rocm_topology(text) is None


def test_rows_without_their_tabs_are_read_as_well() -> None:
    text = printed("h200-x2").replace("\t", "    ")
    topology = read_nvidia_matrix(text)
    assert topology is not None
    assert topology["paths"] == [["X", "NV18"], ["NV18", "X"]]
    assert [gpu["numa"] for gpu in topology["gpus"]] == [0, 0]


def test_peer_access_as_printed() -> None:
    assert read_nvidia_access(printed("h200-x2.p2p")) == [["X", "OK"], ["OK", "X"]]
    assert read_nvidia_access(printed("rtx-4090-x2.p2p"))[0] == ["X", "GNS"]
    both = read_rocm_topology(printed("mi300x") + printed("mi300x.access"))
    assert both is not None
    assert both["access"] == [["OK"] * 8] * 8


def test_states_of_nvlinks_as_printed() -> None:
    text = printed("h200-x2.nvlink")
    assert read_nvlink_status(text) == {0: (18, []), 1: (18, [])}
    broken = text.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>", 1)
    assert read_nvlink_status(broken) == {0: (17, [17]), 1: (18, [])}


def test_the_query_as_printed() -> None:
    text = (
        "0, NVIDIA H200, 00000000:1B:00.0, 1, 5, 16, 16, Disabled\n"
        "1, NVIDIA H200, 00000001:43:00.0, 5, 5, 8, 16, Enabled\n"
        "2, NVIDIA GeForce RTX 4090, 00000000:01:00.0, [N/A], 4, [N/A], 16, [N/A]\n"
        'Field "mig" is not a valid field to query.\n'
    )
    known = read_nvidia_query(text)
    assert [known[at]["bus"] for at in known] == ["0000:1b:00.0", "0001:43:00.0", "0000:01:00.0"]
    assert [known[at]["width"] for at in known] == [16, 8, None]
    assert [known[at]["mig"] for at in known] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:c1:00.0", "0000:c1:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
        ("[N/A]", ""),
        ("", ""),
    ],
)
def test_bus_ids_are_those_of_sysfs(text: str, bus: str) -> None:
    assert bus_id(text) == bus


@pytest.mark.parametrize(("path", "count"), [("NV18", 18), ("NV1", 1), ("NODE", 0), ("NVX", 0)])
def test_nvlinks_of_a_path(path: str, count: int) -> None:
    assert nvlinks(path) == count


# ---- what it means: every kind, and its healthy neighbour


def test_a_link_that_is_down_on_one_gpu_fails_and_names_the_link() -> None:
    topology = machine(
        everywhere("NV18", 4), links_up=[18, 18, 17, 18], links_down=[[], [], [5], []]
    )
    (finding,) = judge(topology, None)
    assert (finding.id, finding.level) == ("GC0601", "fail")
    assert finding.measured == "GPU2 has 17 links up (down: 5), others 18"


def test_a_link_that_is_down_shows_in_the_matrix_alone() -> None:
    paths = everywhere("NV18", 8)
    for at in range(8):
        if at != 3:
            paths[3][at] = paths[at][3] = "NV17"
    assert ids(machine(paths)) == ["GC0601"]


def test_gpus_of_two_models_are_not_compared() -> None:
    topology = machine(
        everywhere("SYS", 2),
        name=["NVIDIA A100-SXM4-80GB", "NVIDIA RTX A6000"],
        links_up=[12, 4],
        links_down=[[], []],
    )
    assert ids(topology) == []


def test_some_gpus_without_any_link_are_a_warning() -> None:
    paths = everywhere("SYS", 3)
    paths[0][1] = paths[1][0] = "NV4"
    topology = machine(paths, links_up=[4, 4, 0], links_down=[[], [], [0, 1, 2, 3]])
    (finding,) = judge(topology, None)
    assert (finding.id, finding.level, finding.measured) == ("GC0602", "warn", "GPU2")


def test_as_many_links_down_on_each_gpu_is_said_and_no_more() -> None:
    topology = machine(everywhere("NV8", 2), links_up=[8, 8], links_down=[[8, 9], [8, 9]])
    (finding,) = judge(topology, None)
    assert (finding.id, finding.level) == ("GC0609", "info")


def test_no_link_up_anywhere_is_a_machine_without_bridges() -> None:
    topology = machine(everywhere("PHB", 2), links_up=[0, 0], links_down=[[0, 1], [0, 1]])
    assert ids(topology) == []


@pytest.mark.parametrize("path", ["NV18", "XGMI", "PIX", "PXB"])
@pytest.mark.parametrize("status", ["CNS", "TNS", "NS", "DR", "NO"])
def test_gpus_that_are_joined_and_have_no_peer_access(path: str, status: str) -> None:
    (finding,) = judge(machine(everywhere(path, 2), access=status), None)
    assert (finding.id, finding.level) == ("GC0603", "warn")
    assert finding.measured.startswith(f"GPU0-GPU1 ({path}): ")


@pytest.mark.parametrize(
    ("path", "status", "names"),
    [
        ("NV18", "OK", "NVIDIA H200"),
        ("NV18", "U", "NVIDIA H200"),
        ("PHB", "CNS", "NVIDIA L4"),
        ("NODE", "NS", "NVIDIA L4"),
        ("SYS", "TNS", "NVIDIA L4"),
        ("PIX", "GNS", "NVIDIA L4"),
        ("PIX", "CNS", "NVIDIA GeForce RTX 4090"),
        ("PCIE", "NO", "AMD Instinct MI100"),
    ],
)
def test_peer_access_is_not_missed_where_none_is_due(path: str, status: str, names: str) -> None:
    topology = machine(everywhere(path, 2), access=status, name=[names, names])
    assert ids(topology, torch_says(status in ("OK", "U"), 2)) == []
    assert ids(topology) == []


def test_mig_has_no_peer_access_and_that_is_so() -> None:
    topology = machine(everywhere("NV18", 2), access="NS", mig=[True, True])
    assert ids(topology, torch_says(False, 2)) == []


def test_torch_that_sees_no_peer_access() -> None:
    assert ids(machine(everywhere("NV18", 2), access="OK"), torch_says(False, 2)) == ["GC0604"]
    assert ids(machine(everywhere("NV18", 2)), torch_says(False, 2)) == ["GC0603"]
    assert ids(machine(everywhere("NV18", 2), access="OK"), torch_says(True, 2)) == []


def test_torch_is_asked_about_the_gpus_that_it_sees() -> None:
    """CUDA_VISIBLE_DEVICES=3,1: the second and fourth GPU, the other way round."""
    buses = [f"0000:{at}0:00.0" for at in range(4)]
    topology = machine(everywhere("NV18", 4), access="OK", bus=buses)
    (finding,) = judge(topology, torch_says(False, 2, [buses[3], buses[1]]))
    assert (finding.id, finding.measured) == ("GC0604", "GPU1-GPU3 (NV18)")
    # Without addresses it cannot be told which they are: nothing is said of the wrong ones.
    assert ids(topology, torch_says(False, 2)) == []


@pytest.mark.parametrize(
    ("width", "width_max", "slot", "name", "expected"),
    [
        (16, 16, 16, "NVIDIA H200", []),
        (16, 16, None, "NVIDIA H200", []),
        (8, 16, 16, "NVIDIA H200", ["GC0605"]),
        (8, 16, None, "NVIDIA H200", ["GC0605"]),
        (4, 16, 8, "NVIDIA L4", ["GC0605"]),
        (8, 16, 8, "NVIDIA GeForce RTX 4090", ["GC0611"]),
        (8, 16, 16, "NVIDIA GeForce RTX 4060 Laptop GPU", []),
        (None, 16, 16, "NVIDIA H200", []),
        (16, None, 16, "NVIDIA H200", []),
    ],
)
def test_the_width_of_pcie(
    width: int | None, width_max: int | None, slot: int | None, name: str, expected: list[str]
) -> None:
    topology = machine(
        [["X"]], name=[name], width=[width], width_max=[width_max], slot_width=[slot], gen=[1]
    )
    assert ids(topology) == expected


def test_cards_that_are_all_far_from_the_gpus() -> None:
    far = machine(everywhere("PIX", 2), nics=[nic("mlx5_0", "SYS", "SYS")])
    assert ids(far) == ["GC0606"]
    storage = nic("mlx5_1", "SYS", "SYS")
    both = machine(everywhere("PIX", 2), nics=[nic("mlx5_0", "PIX", "PIX"), storage])
    assert ids(both) == []
    down = machine(everywhere("PIX", 2), nics=[nic("mlx5_0", "SYS", "SYS", active=False)])
    assert ids(down) == []


def test_a_gpu_without_a_card_while_others_have_one() -> None:
    (finding,) = judge(machine(everywhere("NV18", 2), nics=[nic("mlx5_0", "PIX", "SYS")]), None)
    assert (finding.id, finding.measured) == ("GC0607", "GPU1")


def test_a_gpu_that_is_alone_on_its_node() -> None:
    paths = everywhere("SYS", 3)
    paths[0][1] = paths[1][0] = "NODE"
    (finding,) = judge(machine(paths), None)
    assert (finding.id, finding.measured) == ("GC0608", "GPU2")
    assert ids(machine(everywhere("SYS", 3))) == []
    assert ids(machine(everywhere("SYS", 2))) == []


def test_nothing_is_no_gpu_and_no_finding() -> None:
    nothing = collect(Path("/nowhere"), lambda *command: "")
    if nothing["source"] == "NVML":
        pytest.skip("this machine has GPUs")
    assert ids(nothing) == []
    assert summary(nothing) == "no GPU"
    assert rows_of(nothing) == []


# ---- sources


class FakeNvml:
    """NVML as far as it is called: two GPUs, joined through a switch or directly."""

    def __init__(
        self,
        *,
        far: Callable[[int, int], str | None],
        down: tuple[tuple[int, int], ...] = (),
        nvlink_status: int = 0,
        read_status: int = 0,
        count: int = 2,
        links: int = 4,
        ancestor: int = 50,
    ) -> None:
        self.far, self.down, self.links, self.count = far, down, links, count
        self.nvlink_status, self.read_status, self.ancestor = nvlink_status, read_status, ancestor
        self.begun = 0

    def bus(self, gpu: int) -> str:
        return f"0000000{gpu}:1B:00.0"

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.begun += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.begun -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count.contents.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle.contents.value = 100 + index
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:  # noqa: N802
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:  # noqa: N802
        info.contents.bus_id = self.bus(handle.value - 100).encode()
        return 0

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int, state: Any) -> int:  # noqa: N802
        if link >= self.links:
            return 2
        state.contents.value = int((handle.value - 100, link) not in self.down)
        return 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(  # noqa: N802
        self, handle: Any, link: int, kind: Any
    ) -> int:
        kind.contents.value = {"switch": 2, None: 255}.get(self.far(handle.value - 100, link), 0)
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(  # noqa: N802
        self, handle: Any, link: int, info: Any
    ) -> int:
        far = self.far(handle.value - 100, link)
        info.contents.bus_id = (far or "FFFFFFFF:FF:FF.F").encode()
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(  # noqa: N802
        self, one: Any, other: Any, level: Any
    ) -> int:
        level.contents.value = self.ancestor
        return 0

    def nvmlDeviceGetP2PStatus(  # noqa: N802
        self, one: Any, other: Any, index: int, status: Any
    ) -> int:
        status.contents.value = self.nvlink_status if index == 2 else self.read_status
        return 0

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, width: Any) -> int:  # noqa: N802
        width.contents.value = 16
        return 0

    nvmlDeviceGetMaxPcieLinkWidth = nvmlDeviceGetCurrPcieLinkWidth  # noqa: N815


def asked(fake: FakeNvml) -> Topology:
    topology = from_nvml(fake, PciTree(Path("/nowhere")))
    assert topology is not None
    assert fake.begun == 0
    return json.loads(json.dumps(topology))  # type: ignore[no-any-return]


def test_nvml_through_switches() -> None:
    topology = asked(FakeNvml(far=lambda gpu, link: "switch"))
    assert topology["paths"] == [["X", "NV4"], ["NV4", "X"]]
    assert topology["access"] == [["X", "OK"], ["OK", "X"]]
    first = topology["gpus"][0]
    assert (first["name"], first["bus"], first["width"]) == ("NVIDIA H200", "0000:1b:00.0", 16)
    assert (first["links_up"], first["links_down"]) == (4, [])
    # An old driver that lacks a function has not said anything.
    assert (first["gen"], first["mig"]) == (None, False)
    assert ids(topology) == []


def test_nvml_with_a_link_down() -> None:
    topology = asked(FakeNvml(far=lambda gpu, link: "switch", down=((1, 2),)))
    assert topology["paths"][0][1] == "NV3"
    assert topology["gpus"][1]["links_down"] == [2]
    assert ids(topology) == ["GC0601"]


def test_nvml_with_links_from_gpu_to_gpu() -> None:
    def far(gpu: int, link: int) -> str:
        """Two links to the other GPU, the rest to GPUs that this container does not see."""
        return f"0000000{1 - gpu}:1B:00.0" if link < 2 else "00000007:1B:00.0"

    assert asked(FakeNvml(far=far))["paths"][0][1] == "NV2"


def test_nvml_in_a_virtual_machine_that_hides_where_links_lead() -> None:
    assert asked(FakeNvml(far=lambda gpu, link: None))["paths"][0][1] == "NV4"


def test_nvml_with_switches_that_do_not_join_the_two() -> None:
    fake = FakeNvml(far=lambda gpu, link: "switch", nvlink_status=5, read_status=5)
    topology = asked(fake)
    assert topology["paths"][0][1] == "SYS"
    assert topology["access"][0][1] == "NS"


@pytest.mark.parametrize(
    ("ancestor", "path"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")],
)
def test_nvml_without_nvlink(ancestor: int, path: str) -> None:
    fake = FakeNvml(far=lambda gpu, link: None, links=0, ancestor=ancestor, nvlink_status=5)
    topology = asked(fake)
    assert topology["paths"][0][1] == path
    assert topology["gpus"][0]["links_up"] is None


def test_nvml_that_knows_no_gpu_or_does_not_begin() -> None:
    assert from_nvml(FakeNvml(far=lambda gpu, link: None, count=0), PciTree()) is None
    assert from_nvml(SimpleNamespace(nvmlInit_v2=lambda: 9), PciTree()) is None
    assert from_nvml(None, PciTree()) is None


def fake_amdsmi(**more: Any) -> Any:
    return SimpleNamespace(
        **{
            "amdsmi_init": lambda: None,
            "amdsmi_shut_down": lambda: None,
            "amdsmi_get_processor_handles": lambda: [0, 1],
            "amdsmi_get_gpu_device_bdf": lambda handle: f"0000:{handle}5:00.0",
            "amdsmi_topo_get_link_type": lambda one, other: {"hops": 1, "type": 2},
            "amdsmi_topo_get_numa_node_number": lambda handle: handle,
            "amdsmi_is_P2P_accessible": lambda one, other: True,
            "amdsmi_get_gpu_asic_info": lambda handle: {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_pcie_info": lambda handle: {
                "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
                "pcie_metric": {"pcie_width": 16},
            },
            **more,
        }
    )


def test_amdsmi() -> None:
    topology = from_amdsmi(fake_amdsmi(), PciTree(Path("/nowhere")))
    assert topology is not None
    assert topology["paths"] == [["X", "XGMI"], ["XGMI", "X"]]
    assert topology["access"] == [["X", "OK"], ["OK", "X"]]
    assert [gpu["numa"] for gpu in topology["gpus"]] == [0, 1]
    assert (topology["gpus"][0]["name"], topology["gpus"][0]["width"]) == (
        "AMD Instinct MI300X",
        16,
    )
    assert ids(topology) == []


def test_amdsmi_of_another_version_lacks_calls_and_numbers() -> None:
    def absent(*args: Any) -> Any:
        raise RuntimeError("not supported")

    changed = fake_amdsmi(
        amdsmi_is_P2P_accessible=absent,
        amdsmi_topo_get_numa_node_number=absent,
        amdsmi_get_pcie_info=lambda handle: {"pcie_metric": {"pcie_width": "N/A"}},
    )
    del changed.amdsmi_get_gpu_asic_info
    topology = from_amdsmi(changed, PciTree(Path("/nowhere")))
    assert topology is not None
    assert topology["access"][0][1] == "U"
    assert topology["gpus"][0]["width"] is None
    assert ids(topology) == []
    assert from_amdsmi(fake_amdsmi(amdsmi_init=absent), PciTree()) is None
    assert from_amdsmi(fake_amdsmi(amdsmi_get_processor_handles=list), PciTree()) is None


def tool_of(**answers: str) -> Callable[..., str]:
    """A tool that answers by a word of the command."""

    def answer(*command: str) -> str:
        words = " ".join(command)
        return next((text for word, text in answers.items() if word in words), "")

    return answer


def test_the_text_of_nvidia_smi_is_put_together() -> None:
    tool = tool_of(
        p2p=printed("h200-x2.p2p"),
        topo=printed("h200-x2"),
        nvlink=printed("h200-x2.nvlink"),
        query="0, NVIDIA H200, 00000000:1B:00.0, 5, 5, 16, 16, Disabled\n"
        "1, NVIDIA H200, 00000000:43:00.0, 5, 5, 16, 16, Disabled\n",
    )
    topology = from_nvidia_text(tool, PciTree(Path("/nowhere")))
    assert topology is not None
    assert topology["gpus"][1]["bus"] == "0000:43:00.0"
    assert topology["gpus"][1]["links_up"] == 18
    assert topology["gpus"][1]["numa"] == 0
    assert topology["access"] == [["X", "OK"], ["OK", "X"]]
    assert ids(topology) == []
    assert summary(topology) == "2 GPUs, joined by NV18 (nvidia-smi topo -m)"


def test_the_text_of_rocm_smi_is_put_together() -> None:
    topology = from_rocm_text(tool_of(access=printed("mi300x.access"), showtopo=printed("mi300x")))
    assert topology is not None
    assert topology["access"][0][7] == "OK"
    assert summary(topology) == "8 GPUs, joined by XGMI (rocm-smi --showtopo)"


def test_text_that_is_not_understood_is_said() -> None:
    topology = from_nvidia_text(tool_of(topo="GPU0 is fine, GPU1 too\n"), PciTree())
    assert topology is not None
    assert ids(topology) == ["GC0610"]
    assert from_nvidia_text(tool_of(topo="No devices were found\n"), PciTree()) is None


@pytest.mark.parametrize(
    ("script", "said"), [("echo GPU0", "GPU0\n"), ("echo GPU0; exit 9", ""), ("kill -9 $$", "")]
)
def test_a_tool_that_fails_has_said_nothing(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert ask_tool("nvidia-smi", "topo", "-m") == said
    assert ask_tool("no-such-tool-of-ours") == ""


# ---- /sys


def device(root: Path, *chain: str, numa: int = 0, width: int = 16) -> str:
    """Makes a device below a host bridge and bridges; the last of the chain is the device."""
    folder = root / "sys/devices"
    for name in chain:
        folder /= name
        folder.mkdir(parents=True, exist_ok=True)
        if not name.startswith("pci"):
            (folder / "max_link_width").write_text(f"{width}\n")
            entry = root / "sys/bus/pci/devices" / name
            entry.parent.mkdir(parents=True, exist_ok=True)
            if not entry.exists():
                entry.symlink_to(folder)
    (folder / "numa_node").write_text(f"{numa}\n")
    return chain[-1]


def card(root: Path, name: str, bus: str, state: str = "4: ACTIVE") -> None:
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    if bus:
        (port.parents[1] / "device").symlink_to((root / "sys/bus/pci/devices" / bus).resolve())


SWITCH = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


@pytest.mark.parametrize(
    ("one", "other", "nodes", "path"),
    [
        # One switch: a port of it each.
        (
            (*SWITCH, "0000:17:00.0", "0000:18:00.0"),
            (*SWITCH, "0000:17:01.0", "0000:19:00.0"),
            (0, 0),
            "PIX",
        ),
        # Two switches, one below the other.
        (
            (*SWITCH, "0000:17:00.0", "0000:18:00.0"),
            (*SWITCH, "0000:17:01.0", "0000:19:00.0", "0000:1a:00.0", "0000:1b:00.0"),
            (0, 0),
            "PXB",
        ),
        # Two ports of one host bridge.
        (
            ("pci0000:00", "0000:00:01.0", "0000:01:00.0"),
            ("pci0000:00", "0000:00:02.0", "0000:02:00.0"),
            (0, 0),
            "PHB",
        ),
        # Two host bridges of one node, of two, and of nodes that are not told.
        (("pci0000:00", "0000:00:01.0"), ("pci0000:40", "0000:40:01.0"), (0, 0), "NODE"),
        (("pci0000:00", "0000:00:01.0"), ("pci0000:40", "0000:40:01.0"), (0, 1), "SYS"),
        (("pci0000:00", "0000:00:01.0"), ("pci0000:40", "0000:40:01.0"), (-1, -1), "-"),
    ],
)
def test_the_path_between_two_devices(
    one: tuple[str, ...],
    other: tuple[str, ...],
    nodes: tuple[int, int],
    path: str,
    tmp_path: Path,
) -> None:
    buses = device(tmp_path, *one, numa=nodes[0]), device(tmp_path, *other, numa=nodes[1])
    tree = PciTree(tmp_path)
    assert tree.path(*buses) == path
    assert tree.path(*reversed(buses)) == path


def test_the_cards_of_a_machine(tmp_path: Path) -> None:
    gpu = device(tmp_path, *SWITCH, "0000:17:00.0", "0000:18:00.0")
    near = device(tmp_path, *SWITCH, "0000:17:01.0", "0000:19:00.0")
    far = device(tmp_path, "pci0000:a0", "0000:a0:01.0", "0000:a1:00.0", numa=1)
    card(tmp_path, "mlx5_10", far, "1: DOWN")
    card(tmp_path, "mlx5_2", near)
    card(tmp_path, "rxe0", "")  # software over Ethernet: on no bus
    cards = PciTree(tmp_path).nics([new_gpu(0, bus=gpu)])
    assert [(one["name"], one["paths"], one["active"], one["numa"]) for one in cards] == [
        ("mlx5_2", ["PIX"], True, 0),
        ("mlx5_10", ["SYS"], False, 1),
    ]


def test_the_slot_of_a_gpu(tmp_path: Path) -> None:
    gpu = device(tmp_path, "pci0000:00", "0000:00:01.0", "0000:01:00.0", width=8)
    tree = PciTree(tmp_path)
    assert tree.slot_width(gpu) == 8
    assert tree.slot_width("") is None
    assert tree.slot_width(device(tmp_path, "pci0001:00", "0001:00:00.0")) is None


def test_a_container_without_sys(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    assert tree.nics([new_gpu(0)]) == []
    assert tree.numa("0000:01:00.0") is None
    assert tree.path("0000:01:00.0", "0000:02:00.0") == "-"


# ---- the drawing


@pytest.mark.parametrize("name", NVIDIA + ROCM)
def test_the_matrix_fits_and_has_every_gpu(name: str) -> None:
    topology = read(name)
    lines = draw(rows_of(topology), 100)
    assert all(len(line) <= 100 for line in lines)
    count = len(topology["gpus"])
    assert sum(line.startswith("  GPU") for line in lines) == (count + 1 if count > 1 else 0)


def test_the_matrix_of_two_h200_as_a_person_sees_it() -> None:
    topology = machine(
        everywhere("NV18", 2),
        nics=[nic("mlx5_0", "PIX", "NODE")],
        numa=[0, 0],
        links_up=[18, 17],
        links_down=[[], [4]],
        width=[16, 16],
        gen_max=[5, 5],
    )
    stage = {"id": "topology", "status": "pass", "seconds": 0.1, "summary": "2 GPUs"}
    assert stage_lines({**stage, "rows": rows_of(topology)})[1:] == [
        "",
        "  GPU       0    1  NUMA  NVLinks       PCIe",
        "  GPU0      X NV18     0    18/18   gen5 x16",
        "  GPU1   NV18    X     0    17/18   gen5 x16",
        "  mlx5_0  PIX NODE     -",
        "  NV# = # NVLinks; PIX = under one PCIe switch; "
        "NODE = through host bridges of one NUMA node",
        "",
    ]


def test_many_gpus_are_counted_and_many_cards_merged() -> None:
    counted = draw(rows_of(machine(everywhere("XGMI", 64))), 100)
    assert counted[0] == "  64 GPUs; pairs by path: XGMI 2016"
    functions = [nic(f"mlx5_{at}", "PIX", "SYS") for at in range(30)]
    lines = draw(rows_of(machine(everywhere("NV18", 2), nics=functions)), 100)
    assert [line.split()[:2] for line in lines if "mlx5" in line] == [["mlx5_0", "+29"]]


def test_one_gpu_without_cards_needs_no_matrix() -> None:
    assert draw(rows_of(machine([["X"]])), 100) == []
    assert draw(rows_of(machine([["X"]], nics=[nic("mlx5_0", "PIX")])), 100) != []


# ---- the whole stage


def test_every_kind_is_tested_here() -> None:
    text = Path(__file__).read_text()
    kinds = [finding for finding in KINDS if "GC0601" <= finding <= "GC0619"]
    assert kinds
    assert [finding for finding in kinds if f'"{finding}"' not in text] == []
    assert all(KINDS[finding].cause for finding in kinds)


def test_the_structure_given_to_nvml_is_as_large_as_its_own() -> None:
    from gpucomm_selftest.nvml import PciInfo

    assert ctypes.sizeof(PciInfo) == 16 + 5 * 4 + 32
