"""Jobs whose trainer reads the feed with the real DataLoader: the same bits whatever dies, and an end that is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from run_places import WITHOUT_TORCH
from stage import agent_pid, groups, program_pid, said, text

from headrace.runs import Status
from headrace.runs.events import DataWorkerLost
from patience import until

pytestmark = pytest.mark.timeout(600)

DATA = """
import random, time
import numpy as np
from headrace import feed

class Noise:
    def __init__(self, bad):
        self.bad = bad
    def __len__(self):
        return 480
    def __getitem__(self, index):
        if index == self.bad:
            raise LookupError(f"no sample {index}")
        time.sleep(0.004)
        return np.random.randn(40) + index, np.random.rand(3), random.random(), index

@feed.pipeline
def noise(bad=-1):
    return Noise(bad)
"""

TRAIN = """
import hashlib, json, os, pathlib, time
import headrace
from data import noise
from headrace import feed

env = headrace.Environment()
bad = int(env.hyperparameters.get("bad", -1))
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
loader = feed.DataLoader(noise(bad), global_batch_size=16, rank=rank, world_size=world, shuffle=True, seed=11,
                         collate_fn=feed.stack_arrays)
digest, seen = hashlib.sha256(), []
for epoch in range(2):
    for step, (a, b, c, index) in enumerate(loader):
        for part in (a, b, c, index):
            digest.update(part.tobytes())
        seen += index.tolist()
        print("step", epoch, step, flush=True)
        time.sleep(0.02)
pathlib.Path(env.output_data_dir, f"seen-{rank}.json").write_text(json.dumps(seen))
print("digest", digest.hexdigest(), flush=True)
"""


def training(stage, hosts: dict[str, int], feeding: list[str], **fields):
    code = Path(stage.folder) / "code"
    code.mkdir(exist_ok=True)
    (code / "data.py").write_text(DATA)
    return stage.start(
        TRAIN,
        instance_groups=groups(**hosts),
        data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": feeding},
        environment=WITHOUT_TORCH,
        **({"completion": {"instance_groups": ["dnn"]}} | fields),
    )


def digest_of(handle) -> str:
    [line] = [line.text for line in handle.logs("dnn") if line.text.startswith("digest")]
    return str(line)


def executors(handle, host: str) -> list[psutil.Process]:
    """The executor processes of a host's feed server: children of its fork server."""
    feed = program_pid(handle, host, "feed")
    return [grandchild for child in psutil.Process(feed).children() for grandchild in child.children()]


def test_an_executor_a_data_host_and_the_trainer_s_own_server_are_killed_and_it_gets_the_same_bits(stage) -> None:
    calm = training(stage, {"dnn": 1}, ["dnn"])
    assert calm.wait(60) is Status.COMPLETED, text(calm)
    assert not calm.run.degraded
    handle = training(stage, {"dnn": 1, "data": 2}, ["dnn", "data"])
    until(said(handle, "step 0 5"), 60)
    executors(handle, "algo-2")[0].kill()
    os.kill(program_pid(handle, "algo-1", "feed"), signal.SIGKILL)
    until(said(handle, "step 0 15"), 60)
    os.kill(agent_pid(handle, "algo-3"), signal.SIGKILL)
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    assert handle.exit_code == 0
    assert handle.run.degraded
    lost = {event.host for event in handle.run.events() if isinstance(event, DataWorkerLost)}
    assert lost == {"algo-1", "algo-2", "algo-3"}
    assert digest_of(handle) == digest_of(calm), "as a run of one host that nothing disturbed"
