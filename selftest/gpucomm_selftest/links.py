"""Asks this machine how its GPUs and network cards are joined.

Sources in this order: NVML or amdsmi, then the text of nvidia-smi or rocm-smi, then nothing. The
PCI tree in /sys says where the network cards are. It creates no context on a GPU, must not import
torch, and must not judge what it finds: that is stages/topology.py.
"""

import importlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpucomm_selftest.nvml import Nvml, library
from gpucomm_selftest.topology import (
    NVIDIA_QUERY,
    SELF,
    UNKNOWN,
    Gpu,
    Nic,
    Topology,
    bus_id,
    new_gpu,
    read_nvidia_access,
    read_nvidia_matrix,
    read_nvidia_query,
    read_nvlink_status,
    read_rocm_topology,
)

# A tool that waits for a driver in trouble must leave time for the others.
_TOOL_SECONDS = 5.0

# nvmlGpuTopologyLevel_t. INTERNAL is two GPUs of one board, behind its switch.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PStatus_t
_STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_P2P_READ, _P2P_NVLINK = 0, 2

# AMDSMI_LINK_TYPE_PCIE and AMDSMI_LINK_TYPE_XGMI, the same in all versions.
_AMD_LINKS = {1: "PCIE", 2: "XGMI"}


class PciTree:
    """Where devices are in /sys. Virtual machines show a flat tree, containers the host's."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._sys = root / "sys"

    def _device(self, bus: str) -> Path:
        return self._sys / "bus/pci/devices" / bus

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def numa(self, bus: str) -> int | None:
        text = self._read(self._device(bus) / "numa_node") if bus else ""
        return int(text) if text.isdigit() else None

    def chain(self, bus: str) -> tuple[str, ...]:
        """Host bridge, bridges and device; empty where it is not to be seen."""
        if not bus or not self._device(bus).exists():
            return ()
        parts = self._device(bus).resolve().parts
        at = next((n for n, part in enumerate(parts) if part.startswith("pci")), len(parts))
        return parts[at:]

    def slot_width(self, bus: str) -> int | None:
        """The width that the port above the device can have: a slot may be wired for fewer."""
        chain = self.chain(bus)
        if len(chain) < 3:
            return None
        text = self._read(self._device(chain[-2]) / "max_link_width")
        return int(text) if text.isdigit() and int(text) else None

    def path(self, one: str, other: str) -> str:
        """The kind of path between two devices, in the words of nvidia-smi."""
        chains = self.chain(one), self.chain(other)
        if not all(chains):
            return UNKNOWN
        shared = 0
        for left, right in zip(*chains, strict=False):
            if left != right:
                break
            shared += 1
        if shared > 1:
            # Below one switch there is a port of it and the device, or functions of one card.
            below = max(len(chain) - shared for chain in chains)
            return "PIX" if below <= 2 else "PXB"
        if shared == 1:
            return "PHB"
        nodes = self.numa(one), self.numa(other)
        if None in nodes:
            return UNKNOWN
        return "NODE" if nodes[0] == nodes[1] else "SYS"

    def nics(self, gpus: Sequence[Gpu]) -> list[Nic]:
        """The RDMA devices, and their paths to these GPUs."""
        try:
            entries = sorted((self._sys / "class/infiniband").iterdir(), key=_natural)
        except OSError:
            return []
        nics = []
        for entry in entries:
            bus = (entry / "device").resolve().name if (entry / "device").exists() else ""
            if not bus_id(bus):
                continue  # software RDMA (rxe, siw) has no PCI device
            states = [self._read(port) for port in entry.glob("ports/*/state")]
            nics.append(
                Nic(
                    name=entry.name,
                    bus=bus,
                    numa=self.numa(bus),
                    active=any("ACTIVE" in state for state in states) if states else None,
                    paths=[self.path(gpu["bus"], bus) for gpu in gpus],
                )
            )
        return nics


def _natural(path: Path) -> list[tuple[str, int]]:
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", path.name)]


def _nvml_gpu(nvml: Nvml, index: int, handle: Any, tree: PciTree) -> tuple[Gpu, dict[int, str]]:
    bus = nvml.bus_of("nvmlDeviceGetPciInfo_v3", handle)
    up, down = nvml.links(handle)
    gpu = new_gpu(
        index,
        name=nvml.name_of(handle),
        bus=bus,
        numa=tree.numa(bus),
        # A GPU without NVLink has no state of any link.
        links_up=len(up) if up or down else None,
        links_down=down,
        gen=nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        gen_max=nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        width=nvml.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
        width_max=nvml.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
        slot_width=tree.slot_width(bus),
        mig=nvml.mig(handle),
    )
    return gpu, up


def _joined(one: dict[int, str], other: dict[int, str], other_bus: str, status: int | None) -> int:
    """The NVLinks from one GPU to another: its own, or through switches that both hang on."""
    direct = sum(1 for far in one.values() if far == other_bus and far)
    if direct:
        return direct
    if status is not None and status != 0:
        return 0
    if status is None:
        return min(sum(far == "switch" for far in links.values()) for links in (one, other))
    # NVML says that they are joined. A virtual machine may hide what the links lead to.
    return min(sum(far in ("switch", "") for far in links.values()) for links in (one, other))


def _ask_nvml(library: Any, tree: PciTree) -> Topology | None:
    nvml = Nvml(library)
    handles = nvml.handles()
    if not handles:
        return None
    looked = [_nvml_gpu(nvml, index, handle, tree) for index, handle in handles]
    paths, access = [], []
    for (gpu, up), (_, handle) in zip(looked, handles, strict=True):
        path, allowed = [], []
        for (other, other_up), (_, far) in zip(looked, handles, strict=True):
            if other is gpu:
                path.append(SELF)
                allowed.append(SELF)
                continue
            joined = nvml.number("nvmlDeviceGetP2PStatus", handle, far, _P2P_NVLINK)
            links = _joined(up, other_up, other["bus"], joined)
            ancestor = nvml.number("nvmlDeviceGetTopologyCommonAncestor", handle, far)
            path.append(f"NV{links}" if links else _ANCESTORS.get(ancestor or 0, UNKNOWN))
            if ancestor is None and not links:
                path[-1] = tree.path(gpu["bus"], other["bus"])
            status = nvml.number("nvmlDeviceGetP2PStatus", handle, far, _P2P_READ)
            allowed.append("U" if status is None else _STATUSES.get(status, "U"))
        paths.append(path)
        access.append(allowed)
    gpus = [gpu for gpu, _ in looked]
    return Topology(
        source="NVML",
        gpus=gpus,
        paths=paths,
        access=access,
        nics=tree.nics(gpus),
        problems=[],
    )


def from_nvml(library: Any, tree: PciTree) -> Topology | None:
    """What NVML tells, or nothing where it knows of no GPU."""
    if library is None or library.nvmlInit_v2() != 0:
        return None
    try:
        return _ask_nvml(library, tree)
    finally:
        library.nvmlShutdown()


def _told(ask: Callable[..., Any], *args: Any) -> Any:
    """What amdsmi answers, or nothing where it raises: each version knows other calls."""
    try:
        return ask(*args)
    except Exception:
        # Its exceptions have no common base that is there in all versions.
        return None


def _amd_gpu(amdsmi: Any, index: int, handle: Any, tree: PciTree) -> Gpu:
    bus = bus_id(str(_told(lambda: amdsmi.amdsmi_get_gpu_device_bdf(handle)) or ""))
    pcie = _told(lambda: amdsmi.amdsmi_get_pcie_info(handle)) or {}
    static, present = pcie.get("pcie_static", {}), pcie.get("pcie_metric", {})
    asic = _told(lambda: amdsmi.amdsmi_get_gpu_asic_info(handle)) or {}
    numa = _told(lambda: amdsmi.amdsmi_topo_get_numa_node_number(handle))
    width, most = present.get("pcie_width"), static.get("max_pcie_width")
    return new_gpu(
        index,
        name=str(asic.get("market_name", "")),
        bus=bus,
        numa=numa if isinstance(numa, int) and 0 <= numa < 1024 else tree.numa(bus),
        gen_max=_known(static.get("pcie_interface_version")),
        width=_known(width),
        width_max=_known(most),
        slot_width=None,
    )


def _known(value: Any) -> int | None:
    """A number of amdsmi, which says "N/A", 0 or 0xFFFF of what it does not know."""
    return value if isinstance(value, int) and 0 < value < 0xFFFF else None


def _amd_path(amdsmi: Any, one: Any, other: Any, buses: tuple[str, str], tree: PciTree) -> str:
    link = _told(lambda: amdsmi.amdsmi_topo_get_link_type(one, other)) or {}
    kind = _AMD_LINKS.get(int(link.get("type", -1)), UNKNOWN)
    if kind != "PCIE":
        return kind
    seen = tree.path(*buses)
    return kind if seen == UNKNOWN else seen


def from_amdsmi(amdsmi: Any, tree: PciTree) -> Topology | None:
    """What amdsmi tells, or nothing where it knows of no GPU."""
    if amdsmi is None:
        return None
    try:
        amdsmi.amdsmi_init()
    except Exception:  # no driver, no device, or no right to open it
        return None
    try:
        handles = _told(amdsmi.amdsmi_get_processor_handles) or []
        gpus = [_amd_gpu(amdsmi, index, handle, tree) for index, handle in enumerate(handles)]
        paths, access = [], []
        for at, one in enumerate(handles):
            path, allowed = [], []
            for to, other in enumerate(handles):
                if at == to:
                    path.append(SELF)
                    allowed.append(SELF)
                    continue
                buses = gpus[at]["bus"], gpus[to]["bus"]
                path.append(_amd_path(amdsmi, one, other, buses, tree))
                works = _told(lambda a=one, b=other: amdsmi.amdsmi_is_P2P_accessible(a, b))
                allowed.append("U" if works is None else "OK" if works else "NO")
            paths.append(path)
            access.append(allowed)
    finally:
        _told(amdsmi.amdsmi_shut_down)
    if not gpus:
        return None
    return Topology(
        source="amdsmi",
        gpus=gpus,
        paths=paths,
        access=access,
        nics=tree.nics(gpus),
        problems=[],
    )


def _amdsmi(root: Path) -> Any:
    if not (root / "dev/kfd").exists():
        return None
    try:
        return importlib.import_module("amdsmi")
    except Exception:  # besides ImportError it raises what its library's absence leads to
        return None


Tool = Callable[..., str]


def ask_tool(*command: str) -> str:
    """What a tool prints, or nothing where it is absent, fails or does not end."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def from_nvidia_text(tool: Tool, tree: PciTree) -> Topology | None:
    """What nvidia-smi tells, or nothing where it knows of no GPU."""
    text = tool("nvidia-smi", "topo", "-m")
    topology = read_nvidia_matrix(text)
    if topology is None:
        return _unread("nvidia-smi topo -m", text)
    known = read_nvidia_query(
        tool("nvidia-smi", f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader,nounits")
    )
    links = read_nvlink_status(tool("nvidia-smi", "nvlink", "-s"))
    gpus = [_completed(gpu, known, links, tree) for gpu in topology["gpus"]]
    topology["gpus"] = gpus
    topology["access"] = read_nvidia_access(tool("nvidia-smi", "topo", "-p2p", "r"))
    seen = {nic["name"]: nic for nic in tree.nics(gpus)}
    for nic in topology["nics"]:
        if nic["name"] in seen:
            found = seen[nic["name"]]
            nic["bus"], nic["numa"], nic["active"] = found["bus"], found["numa"], found["active"]
    if not topology["nics"]:
        topology["nics"] = list(seen.values())
    return topology


def _completed(
    gpu: Gpu,
    known: dict[int, dict[str, Any]],
    links: dict[int, tuple[int, list[int]]],
    tree: PciTree,
) -> Gpu:
    made = new_gpu(gpu["index"], numa=gpu["numa"], **known.get(gpu["index"], {}))
    if gpu["index"] in links:
        made["links_up"], made["links_down"] = links[gpu["index"]]
    if made["numa"] is None:
        made["numa"] = tree.numa(made["bus"])
    made["slot_width"] = tree.slot_width(made["bus"])
    return made


def _unread(source: str, text: str) -> Topology | None:
    """A tool that talks of GPUs in a way that is not understood is worth saying."""
    if "GPU0" not in text:
        return None
    problem = f"{source} printed no matrix that could be read"
    return Topology(source="", gpus=[], paths=[], access=[], nics=[], problems=[problem])


def from_rocm_text(tool: Tool) -> Topology | None:
    """What rocm-smi tells, or nothing where it knows of no GPU."""
    text = tool("rocm-smi", "--showtopo")
    topology = read_rocm_topology(f"{text}\n{tool('rocm-smi', '--showtopoaccess')}" if text else "")
    return topology or _unread("rocm-smi --showtopo", text)


def collect(root: Path = Path("/"), tool: Tool = ask_tool) -> Topology:
    """The topology of this machine from the best source that it has."""
    tree = PciTree(root)
    nothing = Topology(source="", gpus=[], paths=[], access=[], nics=[], problems=[])
    return (
        from_nvml(library(), tree)
        or from_amdsmi(_amdsmi(root), tree)
        or from_nvidia_text(tool, tree)
        or from_rocm_text(tool)
        or nothing
    )
