"""The topology of one machine as data: how each pair of GPUs and each network card are joined.

Owns the model, the readers of what `nvidia-smi` and `rocm-smi` print, and the drawing of the
matrix. Pure: text and data in, data and lines out. Where they come from is links.py's matter, what
they mean stages/topology.py's.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

# What the kinds of path mean, nearest first. NV# and XGMI come before all of them.
PATHS = {
    "PIX": "under one PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through one host bridge",
    "NODE": "through host bridges of one NUMA node",
    "PCIE": "over PCIe, it is not told how",
    "SYS": "from one NUMA node to another",
}
SELF, UNKNOWN = "X", "-"

# What NVML and `nvidia-smi topo -p2p` say of peer access.
ACCESS = {
    "OK": "works",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled by a registry key of the driver",
    "U": "unknown",
    "NO": "the driver says no",
}

# More columns than this do not fit 100 characters, and nobody reads them.
_MOST_COLUMNS = 16

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"^NV(\d+)$")


class Gpu(TypedDict):
    index: int
    name: str
    bus: str  # of sysfs: 0000:1b:00.0; empty where it is not told
    numa: int | None
    links_up: int | None  # NVLinks; nothing where it is not told
    links_down: list[int]  # their numbers
    gen: int | None
    gen_max: int | None
    width: int | None
    width_max: int | None
    slot_width: int | None  # what the port above the GPU is wired for
    mig: bool


class Nic(TypedDict):
    name: str
    bus: str
    numa: int | None
    active: bool | None
    paths: list[str]  # to each GPU


class Topology(TypedDict):
    source: str  # empty where there is no GPU
    gpus: list[Gpu]
    paths: list[list[str]]
    access: list[list[str]]  # keys of ACCESS; empty where it is not told
    nics: list[Nic]
    problems: list[str]


def new_gpu(index: int, **known: Any) -> Gpu:
    """A GPU of which nothing is known but what is given."""
    made: dict[str, Any] = {
        "index": index,
        "name": "",
        "bus": "",
        "numa": None,
        "links_up": None,
        "links_down": [],
        "gen": None,
        "gen_max": None,
        "width": None,
        "width_max": None,
        "slot_width": None,
        "mig": False,
    }
    return Gpu(**{**made, **known})  # type: ignore[typeddict-item]


def nvlinks(path: str) -> int:
    """How many NVLinks a path has; 0 where it is no NVLink."""
    match = _NVLINKS.match(path)
    return int(match[1]) if match else 0


def is_fabric(path: str) -> bool:
    """Whether a path is NVLink or xGMI: made for traffic between GPUs."""
    return path == "XGMI" or nvlinks(path) > 0


def bus_id(text: str) -> str:
    """A PCI address as sysfs writes it: NVIDIA's tools print eight digits of domain."""
    match = re.fullmatch(r"\s*([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2}\.[0-7])\s*", text)
    if not match:
        return ""
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}".lower()


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _column_names(tokens: Sequence[str]) -> list[str]:
    """The names of the columns of a matrix: what stands before `CPU Affinity`."""
    end = next((at for at, one in enumerate(tokens) if one in ("CPU", "NUMA")), len(tokens))
    return list(tokens[:end])


class _Matrix:
    """A matrix of words with GPU0, GPU1, ... and perhaps other names on both sides."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.columns: list[str] = []
        self.cells: dict[str, list[str]] = {}
        self.rest: dict[str, list[str]] = {}
        for line in lines:
            # Tabs keep the place of a cell that is empty: a CPU affinity without any CPU.
            tabs = [cell.strip() for cell in line.rstrip().split("\t")]
            tokens = line.split()
            if not self.columns:
                # A row begins like the header, with one name; its next word is a cell.
                if tokens[:1] == ["GPU0"] and tokens[1:2] not in (["X"], ["0"], ["True"]):
                    self.columns = _column_names(tokens)
                continue
            count = len(self.columns)
            if tokens and tokens[0] in self.columns and len(tokens) > count:
                self.cells[tokens[0]] = tokens[1 : 1 + count]
                self.rest[tokens[0]] = (tabs if tabs[0] == tokens[0] else tokens)[1 + count :]
            elif tokens and self.cells:
                break

    @property
    def gpus(self) -> list[str]:
        return [one for one in self.columns if re.fullmatch(r"GPU\d+", one)]

    @property
    def complete(self) -> bool:
        return bool(self.gpus) and all(one in self.cells for one in self.gpus)

    def between_gpus(self) -> list[list[str]]:
        at = [self.columns.index(one) for one in self.gpus]
        return [[self.cells[row][column] for column in at] for row in self.gpus]


def _clean(text: str) -> list[str]:
    return _COLOURS.sub("", text).splitlines()


def _numa_of(rest: Sequence[str]) -> int | None:
    """The NUMA node of a row that ends in CPU affinity, NUMA affinity, GPU NUMA id."""
    return _number(rest[1]) if len(rest) > 1 else None


def read_nvidia_matrix(text: str) -> Topology | None:
    """What `nvidia-smi topo -m` printed, or nothing where it is no matrix."""
    lines = _clean(text)
    matrix = _Matrix(lines)
    if not matrix.complete:
        return None
    # Drivers before 510 name the cards in the header, later ones number them and have a legend.
    legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", "\n".join(lines), re.M))
    gpus = [new_gpu(int(name[3:]), numa=_numa_of(matrix.rest[name])) for name in matrix.gpus]
    nics = [
        Nic(
            name=legend.get(name, name),
            bus="",
            numa=None,
            active=None,
            paths=[matrix.cells[gpu][at] for gpu in matrix.gpus],
        )
        for at, name in enumerate(matrix.columns)
        if name not in matrix.gpus
    ]
    return Topology(
        source="nvidia-smi topo -m",
        gpus=gpus,
        paths=matrix.between_gpus(),
        access=[],
        nics=nics,
        problems=[],
    )


def read_nvidia_access(text: str) -> list[list[str]]:
    """What `nvidia-smi topo -p2p r` printed."""
    matrix = _Matrix(_clean(text))
    return matrix.between_gpus() if matrix.complete else []


def read_nvlink_status(text: str) -> dict[int, tuple[int, list[int]]]:
    """What `nvidia-smi nvlink -s` printed: of each GPU the links that are up, and those down."""
    states: dict[int, tuple[int, list[int]]] = {}
    gpu = -1
    for line in _clean(text):
        if match := re.match(r"\s*GPU (\d+):", line):
            gpu = int(match[1])
        elif match := re.match(r"\s*Link (\d+):\s*(.*?)\s*$", line):
            up, down = states.get(gpu, (0, []))
            if re.match(r"[\d.]+ GB/s", match[2]):
                states[gpu] = (up + 1, down)
            elif "inactive" in match[2]:
                states[gpu] = (up, [*down, int(match[1])])
    return states


# The columns that `nvidia-smi --query-gpu=` is asked for, and read in this order.
NVIDIA_QUERY = (
    "index,name,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,pcie.link.width.max,mig.mode.current"
)


def read_nvidia_query(text: str) -> dict[int, dict[str, Any]]:
    """What `nvidia-smi --query-gpu=... --format=csv,noheader` printed, by index."""
    gpus = {}
    for line in _clean(text):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(NVIDIA_QUERY.split(",")) or not cells[0].isdigit():
            continue
        gpus[int(cells[0])] = {
            "name": cells[1],
            "bus": bus_id(cells[2]),
            "gen": _number(cells[3]),
            "gen_max": _number(cells[4]),
            "width": _number(cells[5]),
            "width_max": _number(cells[6]),
            "mig": cells[7] == "Enabled",
        }
    return gpus


def _sections(text: str) -> dict[str, list[str]]:
    """The parts of what rocm-smi prints, by the title between rows of `=`."""
    parts: dict[str, list[str]] = {}
    title = ""
    for line in _clean(text):
        if match := re.fullmatch(r"=+ (.*?) =+", line.strip()):
            title = match[1].lower()
        else:
            parts.setdefault(title, []).append(line)
    return parts


def read_rocm_topology(text: str) -> Topology | None:
    """What `rocm-smi --showtopo` printed, with `--showtopoaccess` behind it or without."""
    sections = _sections(text)
    matrix = _Matrix(sections.get("link type between two gpus", []))
    if not matrix.complete:
        return None
    nodes = {}
    for line in sections.get("numa nodes", []):
        # GPU[0] in later versions, `GPU 0` in earlier ones; -1 where there is one node.
        if match := re.match(r"\s*GPU ?\[?(\d+)\]?\s*:\s*\(Topology\) Numa Node: (\d+)", line):
            nodes[int(match[1])] = int(match[2])
    paths = matrix.between_gpus()
    for at, row in enumerate(paths):
        row[at] = SELF
    allowed = _Matrix(sections.get("link accessibility between two gpus", []))
    access = []
    if allowed.complete:
        access = [
            ["OK" if cell == "True" else "NO" for cell in row] for row in allowed.between_gpus()
        ]
    return Topology(
        source="rocm-smi --showtopo",
        gpus=[new_gpu(int(name[3:]), numa=nodes.get(int(name[3:]))) for name in matrix.gpus],
        paths=paths,
        access=access,
        nics=[],
        problems=[],
    )


def rows_of(topology: Topology) -> list[dict[str, Any]]:
    """One row for each GPU and each network card: what is in the JSON, and drawn below."""
    names = [f"GPU{gpu['index']}" for gpu in topology["gpus"]]
    rows: list[dict[str, Any]] = []
    for at, gpu in enumerate(topology["gpus"]):
        access = topology["access"][at] if topology["access"] else []
        rows.append(
            {
                "kind": "gpu",
                **gpu,
                "paths": dict(zip(names, topology["paths"][at], strict=True)),
                "access": dict(zip(names, access, strict=True)) if access else {},
            }
        )
    for nic in topology["nics"]:
        rows.append({"kind": "nic", **nic, "paths": dict(zip(names, nic["paths"], strict=True))})
    return rows


def _cell(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


def _links(row: Mapping[str, Any]) -> str:
    if row["links_up"] is None:
        return UNKNOWN
    return f"{row['links_up']}/{row['links_up'] + len(row['links_down'])}"


def _pcie(row: Mapping[str, Any]) -> str:
    """Width and the generation that is possible: the present one falls while a GPU rests."""
    if row["width"] is None:
        return UNKNOWN
    return f"gen{_cell(row['gen_max'])} x{row['width']}"


_COLUMNS = (("NUMA", 6), ("NVLinks", 9), ("PCIe", 11))


def _extras(row: Mapping[str, Any]) -> list[str]:
    if row["kind"] == "nic":
        return [_cell(row["numa"]), "", ""]
    return [_cell(row["numa"]), _links(row), _pcie(row)]


def _merged(nics: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Cards that are joined alike as one line, where there are many: virtual functions are."""
    if len(nics) <= _MOST_COLUMNS:
        return [(nic["name"], nic) for nic in nics]
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for nic in nics:
        alike.setdefault(f"{nic['paths']} {nic['numa']}", []).append(nic)
    return [
        (one[0]["name"] + (f" +{len(one) - 1}" if len(one) > 1 else ""), one[0])
        for one in alike.values()
    ]


def _counted(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """The pairs by kind, where a matrix would be too wide."""
    counts: dict[str, int] = {}
    for at, row in enumerate(gpus):
        for path in list(row["paths"].values())[at + 1 :]:
            counts[path] = counts.get(path, 0) + 1
    pairs = ", ".join(f"{path} {count}" for path, count in counts.items())
    return [f"  {len(gpus)} GPUs; pairs by path: {pairs}"]


def _legend(paths: Sequence[str], width: int) -> list[str]:
    used = set(paths)
    words = []
    if any(nvlinks(path) for path in used):
        words.append("NV# = # NVLinks")
    if "XGMI" in used:
        words.append("XGMI = Infinity Fabric")
    words += [f"{path} = {meaning}" for path, meaning in PATHS.items() if path in used]
    indent = "  "
    return textwrap.wrap("; ".join(words), width, initial_indent=indent, subsequent_indent=indent)


def draw(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """The matrix for a person: GPUs across, GPUs and network cards down."""
    gpus = [row for row in rows if row["kind"] == "gpu"]
    nics = [row for row in rows if row["kind"] == "nic"]
    if len(gpus) < 2 and not nics:
        return []
    seen = [path for row in rows for path in row["paths"].values()]
    if len(gpus) > _MOST_COLUMNS:
        return [*_counted(gpus), *_legend(seen, width)]
    lines = [(f"GPU{row['index']}", row) for row in gpus] + _merged(nics)
    cell = max(5, *(len(path) + 1 for path in seen))
    room = width - cell * len(gpus) - 3
    label = min(max(len(name) for name, _ in lines), room)
    extras, used = 0, 3 + label + cell * len(gpus)
    for _, size in _COLUMNS:
        if used + size > width:
            break
        used += size
        extras += 1
    tail = _COLUMNS[:extras]
    head = "".join(str(row["index"]).rjust(cell) for row in gpus)
    drawn = ["  " + "GPU".ljust(label) + head + "".join(name.rjust(size) for name, size in tail)]
    for name, row in lines:
        cells = "".join(str(path).rjust(cell) for path in row["paths"].values())
        more = "".join(
            value.rjust(size) for value, (_, size) in zip(_extras(row), tail, strict=False)
        )
        drawn.append(f"  {name[:label].ljust(label)}{cells}{more}".rstrip())
    return [*drawn, *_legend(seen, width)]
