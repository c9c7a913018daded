"""Arrays of the feed on JAX's GPU, in a process without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from needs import require

SCRIPT = Path(__file__).parent / "gpu_in_jax.py"


def test_arrays_that_jax_puts_on_the_gpu_are_never_written_over() -> None:
    require("jax")
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["platform"] == "cpu":
        require("jax with CUDA")
    assert seen == {"platform": "gpu", "intact": True, "all": True, "finite": True, "torch": False}
