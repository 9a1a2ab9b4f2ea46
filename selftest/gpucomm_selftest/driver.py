"""The version of the kernel driver, from whichever witness this container lets us see.

Reads files and asks NVML, nothing else; it must not import torch and must not create a context.
"""

import ctypes
import re
from pathlib import Path

_NVIDIA_PROC = Path("/proc/driver/nvidia/version")
_AMD_MODULE = Path("/sys/module/amdgpu/version")
_NVRM = re.compile(r"^NVRM version:.*?Kernel Module(?: for \S+)?\s+(?P<version>\d+\.[\d.]+)", re.M)


def nvidia_version(text: str) -> str | None:
    """The version in the text of /proc/driver/nvidia/version."""
    match = _NVRM.search(text)
    return match["version"] if match else None


def _ask_nvml() -> str | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
        buffer = ctypes.create_string_buffer(96)
        try:
            if nvml.nvmlSystemGetDriverVersion(buffer, 96) != 0:
                return None
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None
    return buffer.value.decode("ascii", "replace") or None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def driver_version() -> dict[str, str] | None:
    """Name, version and witness of the driver, or nothing where there is none to see."""
    version = nvidia_version(_read(_NVIDIA_PROC))
    if version:
        return {"name": "nvidia", "version": version, "from": str(_NVIDIA_PROC)}
    version = _ask_nvml()
    if version:
        return {"name": "nvidia", "version": version, "from": "NVML"}
    version = _read(_AMD_MODULE).strip()
    if version:
        return {"name": "amdgpu", "version": version, "from": str(_AMD_MODULE)}
    return None


def device_nodes() -> list[str]:
    """GPU device nodes that this container was given, whether or not torch can use them."""
    dev = Path("/dev")
    nodes = [*dev.glob("nvidia[0-9]*"), *dev.glob("dri/renderD*")]
    if not (dev / "kfd").exists():
        # Render nodes without the compute node are a display adapter's.
        nodes = [node for node in nodes if node.name.startswith("nvidia")]
    return sorted(str(node) for node in nodes)
