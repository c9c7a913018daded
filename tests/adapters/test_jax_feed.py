"""The feed with JAX: device arrays may be views of the slabs, and training resumes bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from needs import require

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a JAX process with four devices saw."""
    require("jax")
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent / "src"), str(HERE.parent / "feed")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "in_jax.py"), str(tmp_path_factory.mktemp("jax-feed"))],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_arrays_on_devices_are_never_written_over(saw: dict[str, Any]) -> None:
    assert saw["intact"] == [True] * 12
    assert saw["labels"] == list(range(96))


def test_training_on_four_devices_resumes_bit_for_bit(saw: dict[str, Any]) -> None:
    assert saw["devices"] == 4
    assert saw["steps"] == 15
    assert saw["steps left"] == 6
    assert saw["resumed"] == saw["trained"]
    assert any(saw["trained"])


def test_there_was_no_torch(saw: dict[str, Any]) -> None:
    assert not saw["torch"]
