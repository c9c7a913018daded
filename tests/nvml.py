"""A small libnvidia-ml.so.1, compiled from C: GPUs for tests on machines without one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# Device N shows 10 * (N + 1) % of use, half of 16 GiB and 50 * N W; device 0 has no power sensor. FAKE_NVML_LOST names
# one that is lost after its second answer. FAKE_NVML_INIT is what the start returns.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#define API extern "C" int
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };
struct Device { int number; int answers; };
static struct Device devices[3] = {{0, 0}, {1, 0}, {2, 0}};
static int setting(const char *name, int otherwise) { const char *v = getenv(name); return v ? atoi(v) : otherwise; }
API nvmlInitWithFlags(unsigned) { return setting("FAKE_NVML_INIT", OK); }
API nvmlShutdown() { return OK; }
API nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return OK; }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, struct Device **device) {
    if (index >= 3) return INVALID;
    *device = &devices[index];
    return OK;
}
API nvmlDeviceGetUtilizationRates(struct Device *device, unsigned *rates) {
    rates[0] = 10 * (device->number + 1);
    rates[1] = 1;
    return OK;
}
API nvmlDeviceGetMemoryInfo(struct Device *device, unsigned long long *memory) {
    if (device->number == setting("FAKE_NVML_LOST", -1) && ++device->answers > 2) return LOST;
    memory[0] = 16ULL << 30;
    memory[1] = memory[2] = 8ULL << 30;
    return OK;
}
API nvmlDeviceGetPowerUsage(struct Device *device, unsigned *milliwatts) {
    *milliwatts = 50000 * device->number;
    return device->number ? OK : NOT_SUPPORTED;
}
API nvmlDeviceGetName(struct Device *device, char *name, unsigned length) {
    snprintf(name, length, "Fake %d", device->number);
    return OK;
}
API nvmlDeviceGetUUID(struct Device *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%d%d%d%d-0000", device->number, device->number, device->number, device->number);
    return OK;
}
"""
SMI = """#!/bin/sh
for number in 0 1 2; do echo "$number, GPU-$number$number$number$number-0000"; done
"""


def build_nvml(folder: Path) -> Path:
    """Compiles the library into a folder for LD_LIBRARY_PATH, and returns the folder."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "no C++ compiler; .ci/run installs g++"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "nvml.cpp"
    source.write_text(SOURCE)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return folder


def write_smi(folder: Path) -> Path:
    """Writes an nvidia-smi that lists the same devices into a folder for PATH, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    return folder
