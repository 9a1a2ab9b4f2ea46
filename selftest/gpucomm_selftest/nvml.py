"""The NVIDIA management library, through ctypes: what it tells of a GPU, and of its health.

It is called so even where pynvml is there: the same library behind the same names, and one path
through this module instead of two. Nothing here creates a context on a GPU or judges anything.
"""

import ctypes
from typing import Any

from gpucomm_selftest.topology import bus_id

_INVALID_ARGUMENT = 2  # nvmlReturn_t, of a link number that this GPU does not have
_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
# No GPU has as many: the loop ends at the first number that NVML calls invalid.
_MOST_LINKS = 64


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, as of nvmlDeviceGetPciInfo_v3."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Nvml:
    """The calls of NVML that are needed. What it cannot tell is nothing, never an exception."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *args: Any) -> int:
        function = getattr(self._library, name, None)
        # Absent in an old driver: as if it had said "not supported".
        return 3 if function is None else int(function(*args))

    def number(self, name: str, *args: Any, kind: Any = ctypes.c_uint) -> int | None:
        value = kind()
        return value.value if self.call(name, *args, ctypes.pointer(value)) == 0 else None

    def handles(self) -> list[Any]:
        handles = []
        for index in range(self.number("nvmlDeviceGetCount_v2") or 0):
            handle = ctypes.c_void_p()
            status = self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.pointer(handle))
            # A GPU that fell off the bus keeps its number and has no handle.
            if status == 0:
                handles.append((index, handle))
        return handles

    def name_of(self, handle: Any) -> str:
        text = ctypes.create_string_buffer(96)
        if self.call("nvmlDeviceGetName", handle, text, 96) != 0:
            return ""
        return text.value.decode("utf-8", "replace")

    def bus_of(self, name: str, *args: Any) -> str:
        info = PciInfo()
        if self.call(name, *args, ctypes.pointer(info)) != 0:
            return ""
        return bus_id(info.bus_id.decode("ascii", "replace"))

    def mig(self, handle: Any) -> bool:
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        status = self.call(
            "nvmlDeviceGetMigMode", handle, ctypes.pointer(now), ctypes.pointer(pending)
        )
        return status == 0 and now.value == 1

    def links(self, handle: Any) -> tuple[dict[int, str], list[int]]:
        """Where each link that is up leads (a PCI address, "switch" or nothing), and those down."""
        up, down = {}, []
        for link in range(_MOST_LINKS):
            state = ctypes.c_uint()
            status = self.call("nvmlDeviceGetNvLinkState", handle, link, ctypes.pointer(state))
            if status == _INVALID_ARGUMENT:
                break
            if status == 0 and state.value == 0:
                down.append(link)
            elif status == 0:
                kind = self.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                far = self.bus_of("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link)
                up[link] = "switch" if kind == _SWITCH else far
        return up, down


def library() -> Any:
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


_ULONGLONG = ctypes.c_ulonglong
_VOLATILE = 0  # nvmlEccCounterType_t
_UNCORRECTED = 1  # nvmlMemoryErrorType_t
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive"}  # nvmlComputeMode_t
# nvmlClocksEventReasons: those that say that something is wrong, not that the GPU rests.
_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def _remapped(nvml: Nvml, handle: Any) -> dict[str, int] | None:
    corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
    status = nvml.call(
        "nvmlDeviceGetRemappedRows",
        handle,
        *(ctypes.pointer(one) for one in (corrected, uncorrected, pending, failed)),
    )
    if status != 0:
        return None
    return {
        "uncorrected": uncorrected.value,
        "pending": pending.value,
        "failed": failed.value,
    }


def _health(nvml: Nvml, index: int, handle: Any) -> dict[str, Any]:
    reasons = nvml.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle, kind=_ULONGLONG)
    return {
        "index": index,
        "name": nvml.name_of(handle),
        "bus": nvml.bus_of("nvmlDeviceGetPciInfo_v3", handle),
        "mig": nvml.mig(handle),
        "compute_mode": _COMPUTE_MODES.get(
            nvml.number("nvmlDeviceGetComputeMode", handle) or 0, "unknown"
        ),
        "persistence": nvml.number("nvmlDeviceGetPersistenceMode", handle),
        "ecc_errors": nvml.number(
            "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, kind=_ULONGLONG
        ),
        "remapped": _remapped(nvml, handle),
        "slowdowns": [name for bit, name in _SLOWDOWNS.items() if (reasons or 0) & bit],
    }


def health(loaded: Any) -> list[dict[str, Any]]:
    """Of every GPU that NVML sees: errors of its memory, modes, and what slows it down now."""
    if loaded is None or loaded.nvmlInit_v2() != 0:
        return []
    try:
        nvml = Nvml(loaded)
        return [_health(nvml, index, handle) for index, handle in nvml.handles()]
    finally:
        loaded.nvmlShutdown()
