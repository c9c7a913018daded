"""What a measurement was made on: machine, versions, load. Kept beside the raw data."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from bench.feed.settings import Settings

PACKAGES = ("torch", "numpy", "msgspec", "grpcio", "protobuf", "tensorflow-cpu", "ray", "pillow")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def describe() -> dict[str, Any]:
    """Returns the facts."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "headrace": _commit(),
        "load_before": os.getloadavg()[0],
        "peer_settings_from": Settings.latest().sources,
    }


def write_sidecar(raw: Path, arguments: list[str], facts: dict[str, Any]) -> None:
    """Writes, or adds to, the JSON file beside the raw data: one entry for every session that wrote into it."""
    path = raw.with_suffix(".json")
    sessions = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*sessions, {"arguments": arguments, **facts}], indent=1) + "\n")
