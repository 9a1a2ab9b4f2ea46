"""Which NVIDIA driver a CUDA version needs: the floor, and the driver that came with it.

From the floor on a program runs by minor-version compatibility; from the toolkit's own driver on
all of it is there, such as the compiler for PTX. Source: NVIDIA's CUDA release notes, table "CUDA
Toolkit and Corresponding Driver Versions" (Linux x86_64).
"""

# Major version of CUDA -> the least driver.
_FLOORS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

# CUDA -> the driver of its first release.
_TOOLKITS = {
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
    "13.2": "595.45.04",
    "13.3": "610.43.02",
}

# The version of AMD's module, and the ROCm that it came with, oldest first. Source: the packages
# amdgpu-dkms of repo.radeon.com, such as 6.10.5.60300; since ROCm 7 the notes of the driver.
_AMD = {
    "6.3.6": "6.0",
    "6.7.0": "6.1",
    "6.8.5": "6.2",
    "6.10.5": "6.3",
    "6.12.12": "6.4",
    "6.14.14": "7.0",
    "6.16.6": "7.1",
}
_ROCMS = ("5.5", "5.6", "5.7", *_AMD.values(), "7.2")
# Releases that AMD tests together: two to each side. Since ROCm 7 a driver is tested with four
# older ones (30.30 with 6.3 to 7.2). Source: "User and kernel-space support matrix" of ROCm.
_APART = 2
_OLDER = {"7.0": 4, "7.1": 4, "7.2": 4}

Version = tuple[int, ...]


def version(text: str) -> Version:
    """570.124.06 as numbers that compare; empty where it is none."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def floor_of(cuda: str) -> str | None:
    """The least driver for this CUDA, or nothing where it is not known."""
    major = cuda.partition(".")[0]
    return _FLOORS.get(int(major)) if major.isdigit() else None


def toolkit_driver(cuda: str) -> str | None:
    """The driver that has all of this CUDA."""
    return _TOOLKITS.get(".".join(cuda.split(".")[:2]))


def newest_cuda(driver: str) -> str | None:
    """The newest CUDA whose floor this driver reaches."""
    mine = version(driver)
    fit = [cuda for cuda in _TOOLKITS if mine >= version(floor_of(cuda) or "")]
    return max(fit, key=version, default=None)


def rocm_of_driver(driver: str) -> str | None:
    """The ROCm that an amdgpu of this version came with, or nothing where it is not known."""
    return _AMD.get(driver)


def goes_with(driver: str, rocm: str) -> bool:
    """Whether AMD tests the driver of one ROCm with programs of another; unknown ones pass."""
    if driver not in _ROCMS or rocm not in _ROCMS:
        return True
    apart = _ROCMS.index(rocm) - _ROCMS.index(driver)
    return -_OLDER.get(driver, _APART) <= apart <= _APART
