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
