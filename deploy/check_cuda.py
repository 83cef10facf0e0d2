"""What can be shown of CUDA without a GPU: `make cuda-check`, or python deploy/check_cuda.py [--bundle DIR].

Installs onnxruntime-gpu with NVIDIA's libraries (2 GB) into a temporary environment, and there

1. decodes with every precision of the bundle on onnxruntime-gpu's CPU provider, certificate included;
2. lets its CUDA provider load the graphs that a device runs, on a stub of the CUDA calls that need a device. Before it
   creates kernels, which fails, its log says which nodes it placed on CUDA, which on the CPU, and how many copies
   between the two it had to insert. Any copy is an error.

Nothing runs on CUDA. Needs a C compiler, and the internet or a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
GRAPHS = ("encoder", "step", "merge", "full")
SUCCESS = """
    cudaSetDevice cudaDeviceSynchronize cudaGetLastError cudaStreamCreateWithFlags cudaStreamDestroy cudaEventDestroy
    cudaStreamSynchronize cudaStreamWaitEvent cudaEventCreateWithFlags cudaEventRecord cudaFree cudaFreeHost
    cublasDestroy_v2 cublasLtDestroy cublasSetStream_v2 cublasSetMathMode cublasSetWorkspace_v2 cudnnDestroy
    cudnnSetStream cuTensorMapEncodeTiled"""
STUB = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned long size;
int cudaGetDevice(int *d) { *d = 0; return 0; }
int cudaGetDeviceCount(int *d) { *d = 1; return 0; }
int cudaGetDeviceProperties(void *p, int d) { memset(p, 0, 1008); return 0; }
int cudaDeviceGetAttribute(int *v, int a, int d) { *v = 8; return 0; }
int cudaMemGetInfo(size *f, size *t) { *f = *t = 1ul << 33; return 0; }
int cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
int cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }
int cudaMalloc(void **p, size n) { *p = malloc(n); return 0; }
int cudaMallocHost(void **p, size n) { *p = malloc(n); return 0; }
int cudaHostAlloc(void **p, size n, unsigned f) { *p = malloc(n); return 0; }
int cudaMemcpy(void *d, const void *s, size n, int k) { memcpy(d, s, n); return 0; }
int cudaMemcpyAsync(void *d, const void *s, size n, int k, void *st) { memcpy(d, s, n); return 0; }
int cudaMemset(void *d, int v, size n) { memset(d, v, n); return 0; }
int cudaMemsetAsync(void *d, int v, size n, void *st) { memset(d, v, n); return 0; }
int cublasCreate_v2(void **h) { *h = malloc(64); return 0; }
int cublasLtCreate(void **h) { *h = malloc(64); return 0; }
int cudnnCreate(void **h) { *h = malloc(64); return 0; }
""" + "\n".join(f"int {name}(void) {{ return 0; }}" for name in SUCCESS.split())
LOAD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="What can be shown of CUDA without a GPU.")
    parser.add_argument("--bundle", type=Path, default=ROOT / "service" / "default_bundle")
    bundle = parser.parse_args().bundle
    precisions = [name for name in ("fp32", "fp16", "int8") if (bundle / name).is_dir()]
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory)
        install(environment)
        for precision in precisions:
            command = [environment / "bin" / "attendant", "generate", "--bundle", bundle, "--provider", "cpu"]
            subprocess.run([*command, "--precision", precision, "attendant"], check=True)
            print(f"{precision}: decodes on onnxruntime-gpu's CPU provider")
        stub = make_stub(environment)
        graphs = [bundle / name / f"{graph}.onnx" for name in precisions if name != "int8" for graph in GRAPHS]
        copies = sum([place(environment, stub, graph) for graph in graphs])
    print(f"copies between CUDA and CPU: {copies}")
    return 1 if copies else 0


def install(environment: Path) -> None:
    """The service and its pinned packages, with onnxruntime-gpu in the place of onnxruntime."""
    venv.create(environment, with_pip=True)
    lines = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = "\n".join(line.split()[0] for line in lines if "==" in line)
    listed = environment / "requirements.txt"
    listed.write_text(pins.replace("onnxruntime==", "onnxruntime-gpu[cuda,cudnn]=="), encoding="utf-8")
    pip = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", listed], check=True)
    subprocess.run([*pip, "--no-deps", ROOT], check=True)


def make_stub(environment: Path) -> dict[str, str]:
    """A library in the place of the driver, preloaded before the CUDA runtime; what to set for it."""
    source, library = environment / "stub.c", environment / "libcuda.so.1"
    source.write_text(STUB, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    libraries = {str(path.parent) for path in environment.glob("lib/python*/site-packages/nvidia/**/*.so*")}
    return os.environ | {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": os.pathsep.join([str(environment), *libraries])}


def place(environment: Path, variables: dict[str, str], graph: Path) -> int:
    """Load a graph, print where its nodes are placed, and return the number of copies between CUDA and CPU."""
    command = [environment / "bin" / "python", "-c", LOAD, graph]
    log = subprocess.run(command, env=variables, capture_output=True, text=True, check=False).stderr
    placed = dict(re.findall(r"placed on \[(\w+)\]\. Number of nodes: (\d+)", log))
    if "CUDAExecutionProvider" not in placed:
        raise SystemExit(f"{graph}: the log does not say where nodes are placed; it ends:\n{log[-2000:]}")
    on_cpu = log.split("placed on [CPUExecutionProvider]", 1)[-1].split("placed on [", 1)[0]
    kinds = sorted(set(re.findall(r"\]\s+(\w+) \(", on_cpu)) - {"MemcpyFromHost", "MemcpyToHost"})
    copies = len(re.findall(r"\]\s+Memcpy(?:From|To)Host \(", log))
    print(
        f"{graph.parent.name}/{graph.stem}: {placed['CUDAExecutionProvider']} nodes on CUDA, "
        f"{placed.get('CPUExecutionProvider', 0)} on the CPU ({', '.join(kinds)}), {copies} copies"
    )
    return copies


if __name__ == "__main__":
    sys.exit(main())
