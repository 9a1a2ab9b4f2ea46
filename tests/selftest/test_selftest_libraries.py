"""What is loaded, from texts of /proc and from integers."""

from pathlib import Path

import pytest

from gpucomm_selftest.driver import nvidia_version
from gpucomm_selftest.libraries import ask_version, decode_version, mapped_libraries


@pytest.mark.parametrize(
    ("code", "version"),
    [
        (2804, "2.8.4"),
        (2708, "2.7.8"),
        (20903, "2.9.3"),
        (21003, "2.10.3"),
        (21801, "2.18.1"),
        (22005, "2.20.5"),
        (22105, "2.21.5"),
        (22809, "2.28.9"),
        (23206, "2.32.6"),
        (30000, "3.0.0"),
    ],
)
def test_decode_version(code: int, version: str) -> None:
    assert decode_version(code) == version


def line(path: str, inode: int, device: str = "fe:00", at: int = 0x7F0000000000) -> str:
    return f"{at:x}-{at + 4096:x} r-xp 00001000 {device} {inode}                   {path}\n"


NCCL = "/usr/lib/python3/site-packages/nvidia/nccl/lib/libnccl.so.2"


def test_one_library_in_several_segments_is_one() -> None:
    libraries = mapped_libraries([line(NCCL, 5), line(NCCL, 5, at=0x7F0000001000)])
    assert [(one.path, one.family, one.deleted) for one in libraries] == [(NCCL, "nccl", False)]


def test_a_symlink_or_bind_mount_is_the_same_file() -> None:
    assert len(mapped_libraries([line(NCCL, 5), line("/mnt/libnccl.so.2.21.5", 5)])) == 1


def test_two_files_are_two_even_with_one_name_or_one_inode() -> None:
    other = line("/usr/lib/x86_64-linux-gnu/libnccl.so.2", 6)
    assert len(mapped_libraries([line(NCCL, 5), other])) == 2
    other_device = line("/usr/lib/x86_64-linux-gnu/libnccl.so.2", 5, device="fe:01")
    assert len(mapped_libraries([line(NCCL, 5), other_device])) == 2


def test_rccl_and_replaced_files() -> None:
    (one,) = mapped_libraries([line("/opt/rocm lib/librccl.so.1.0 (deleted)", 7)])
    assert (one.path, one.family, one.deleted) == ("/opt/rocm lib/librccl.so.1.0", "rccl", True)


@pytest.mark.parametrize(
    "path",
    [
        "/opt/libnccl-net.so",
        "/opt/librccl-net.so.1",
        "/opt/libnccl-tuner.so",
        "/opt/libnccl.so.2/other",
        "/opt/mylibnccl.so.2",
        "/opt/libncclras.so",
        "[heap]",
        "",
    ],
)
def test_what_is_no_collective_library(path: str) -> None:
    assert mapped_libraries([line(path, 8)]) == []


def test_ask_version_does_not_load_what_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="libnccl"):
        ask_version(str(tmp_path / "libnccl.so.2"))


def test_ask_version_of_another_library() -> None:
    maps = Path("/proc/self/maps").read_text()
    libc = next(entry.split()[-1] for entry in maps.splitlines() if "/libc.so" in entry)
    with pytest.raises(OSError, match="has no ncclGetVersion"):
        ask_version(libc)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC\n"
            "GCC version:  gcc version 12.2.0\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
            "580.159.04",
        ),
        ("GCC version:  gcc version 12.2.0\n", None),
        ("", None),
    ],
)
def test_nvidia_version(text: str, version: str | None) -> None:
    assert nvidia_version(text) == version
