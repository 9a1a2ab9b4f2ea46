"""The flavor `devel`: building against this NCCL and CUDA, and tools to look into a hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpucomm.cell import toolkit_image

# Where a program of one's own finds headers and libraries, in the layout of CUDA 12 and of 13.
FLAGS = """
import nvidia, pathlib
for root in sorted(pathlib.Path(next(iter(nvidia.__path__))).iterdir()):
    if (root / "lib").is_dir():
        print(f"-I{root}/include -L{root}/lib -Wl,-rpath,{root}/lib")
"""
PROGRAM = """
#include <cstdio>
#include <cuda_runtime.h>
#include <nccl.h>
int main() {
    int nccl = 0, runtime = 0;
    if (ncclGetVersion(&nccl) != ncclSuccess) return 1;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) return 2;
    std::printf("[%d, %d, %d, %d]", nccl, NCCL_VERSION_CODE, runtime, CUDART_VERSION);
    return 0;
}
"""
KERNEL = """
extern "C" __global__ void twice(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
"""
HOST = """
#include <cstdio>
extern "C" int start() {
    float *x = nullptr;
    cudaError_t error = cudaMalloc(&x, 4096);
    if (error == cudaSuccess) { twice<<<4, 256>>>(x, 1024); error = cudaDeviceSynchronize(); }
    return static_cast<int>(error);
}
int main() { std::printf("%d", start()); return 0; }
"""
NVRTC = """
import ctypes, pathlib, sys, nvidia
library = next(pathlib.Path(next(iter(nvidia.__path__))).glob("*/lib/libnvrtc.so.*"))
# NVRTC 13 has no RUNPATH and finds its built-ins only where they are loaded already.
ctypes.CDLL(str(next(library.parent.glob("libnvrtc-builtins.so.*"))))
nvrtc = ctypes.CDLL(str(library))
nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
def call(name, *args):
    status = getattr(nvrtc, name)(*args)
    if status:
        sys.exit(f"{name}: {nvrtc.nvrtcGetErrorString(status).decode()}")
program, size = ctypes.c_void_p(), ctypes.c_size_t()
options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_90")
call("nvrtcCreateProgram", ctypes.byref(program), sys.argv[1].encode(), b"twice.cu", 0, None, None)
call("nvrtcCompileProgram", program, 1, options)
call("nvrtcGetPTXSize", program, ctypes.byref(size))
ptx = ctypes.create_string_buffer(size.value)
call("nvrtcGetPTX", program, ptx)
print(ptx.value.decode())
"""
# As setup.py and torch.utils.cpp_extension do it: found by CUDA_HOME, linked with -lcudart.
EXTENSION = """
import ctypes, json, os, sys
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
from torch.utils import cpp_extension
os.makedirs("/tmp/built")
library = cpp_extension.load(
    "twice", ["/tmp/twice.cu"], build_directory="/tmp/built", is_python_module=False)
status = ctypes.CDLL("/tmp/built/twice.so").start()
print(json.dumps([cpp_extension.CUDA_HOME, status]))
"""
NO_DRIVER = (35, 100)  # cudaErrorInsufficientDriver, cudaErrorNoDevice: it ran, without a GPU
TOOLS = """
    cmake curl ethtool g++ gcc gdb git ibstat ibv_devinfo ib_write_bw ifconfig ip iperf3 less
    lsof lspci lstopo-no-graphics make netstat ninja numactl ping pkg-config ps pstree rping ss
    strace tcpdump vi
"""


@pytest.fixture(autouse=True, scope="module")
def is_devel(expected: Any) -> None:
    if expected.cell.flavor != "devel":
        pytest.skip("this cell is not of the flavor devel")


@pytest.fixture
def cuda(expected: Any) -> tuple[int, int]:
    if expected.cell.accelerator != "cuda":
        pytest.skip("this line has no CUDA")
    major, minor = expected.cell.cuda.split(".")
    return int(major), int(minor)


@pytest.fixture
def has_nvcc(expected: Any, cuda: tuple[int, int]) -> bool:
    """The vendor's images have a compiler; of the wheels only those of CUDA 13."""
    matrix, cell = expected.project.matrix, expected.cell
    vendor = toolkit_image(matrix, line=cell.line, flavor=cell.flavor, os=cell.os)
    return cuda[0] >= 13 or vendor is not None


@pytest.fixture
def nvcc(has_nvcc: bool) -> None:
    if not has_nvcc:
        pytest.skip("the wheels of CUDA 12 hold no nvcc")


@pytest.mark.parametrize("tool", TOOLS.split())
def test_tool(root_host: Any, tool: str) -> None:
    assert root_host.run("command -v %s", tool).rc == 0


def test_ping_and_gdb_work_for_the_user(run: Callable[..., Any]) -> None:
    script = "ping -c 1 -W 2 127.0.0.1 >/dev/null && gdb -batch -ex run --args sh -c 'exit 7'"
    done = run("sh", "-c", script)
    assert done.code == 0, done.err
    assert "exited with code 07" in done.out


def test_a_program_links_this_nccl_and_this_cuda(
    run: Callable[..., Any], cuda: tuple[int, int], expected: Any
) -> None:
    script = (
        f"cat >/tmp/x.cpp <<'E'\n{PROGRAM}\nE\n"
        'flags=$(python -c "$1") && '
        f"g++ /tmp/x.cpp $flags -l:libcudart.so.{cuda[0]} -l:libnccl.so.2 -o /tmp/x && /tmp/x"
    )
    done = run("sh", "-c", script, "sh", FLAGS, options=["--network", "none"])
    assert done.code == 0, done.err
    runtime = cuda[0] * 1000 + cuda[1] * 10
    assert json.loads(done.out) == [expected.library_code] * 2 + [runtime] * 2


def test_nvrtc_makes_ptx(run: Callable[..., Any], cuda: tuple[int, int]) -> None:
    done = run("python", "-c", NVRTC, KERNEL)
    assert done.code == 0, done.err
    assert ".target sm_90" in done.out
    assert ".entry twice(" in done.out


def test_ptxas_takes_what_nvrtc_makes(run: Callable[..., Any], cuda: tuple[int, int]) -> None:
    """Both come from wheels that nothing but the lock holds together."""
    script = (
        'python -c "$1" "$2" >/tmp/x.ptx && '
        "ptxas=$(ls /opt/venv/lib/python3*/site-packages/nvidia/*/bin/ptxas) && "
        '"$ptxas" -arch=sm_90 /tmp/x.ptx -o /tmp/x.cubin && wc -c </tmp/x.cubin'
    )
    done = run("sh", "-c", script, "sh", NVRTC, KERNEL)
    assert done.code == 0, done.err
    assert int(done.out) > 1000


def test_nvcc_is_the_cells(host: Any, has_nvcc: bool, expected: Any) -> None:
    if has_nvcc:
        assert f"release {expected.cell.cuda}," in host.check_output("nvcc --version")
    else:
        assert not host.exists("nvcc")


def test_nvcc_compiles_and_links(run: Callable[..., Any], nvcc: None) -> None:
    source = f"#include <cub/version.cuh>\n{KERNEL}{HOST}"
    script = (
        f"cat >/tmp/x.cu <<'E'\n{source}\nE\n"
        "cd /tmp && nvcc -arch=sm_90 -c x.cu && nvcc -arch=sm_90 x.o -o x && ./x"
    )
    done = run("sh", "-c", script)
    assert done.code == 0, done.err
    assert int(done.out) in (0, *NO_DRIVER)


def test_torch_builds_cuda_extensions(run: Callable[..., Any], nvcc: None) -> None:
    script = f"cat >/tmp/twice.cu <<'E'\n{KERNEL}{HOST}\nE\npython -W ignore -c \"$1\""
    done = run("sh", "-c", script, "sh", EXTENSION)
    assert done.code == 0, done.err + done.out
    home, status = json.loads(done.out.splitlines()[-1])
    assert home == "/usr/local/cuda"
    assert status in (0, *NO_DRIVER)
