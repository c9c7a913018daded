"""A heterogeneous job on a real GPU: CPU hosts prepare batches, and a rank with NCCL trains on the device."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from stage import Stage, program_pid, said, stage, text

from headrace import insight
from headrace.runs import Status
from patience import until

__all__ = ["stage"]

pytestmark = pytest.mark.timeout(300)

DATA = """
import numpy as np, torch
from headrace import feed

class Stripes(torch.utils.data.Dataset):
    def __len__(self):
        return 64 * 60
    def __getitem__(self, index):
        label = index % 10
        image = torch.randn(3, 64, 64) + torch.sin(torch.arange(64) * (label + 1) / 5.0)
        return image, label

@feed.pipeline
def stripes():
    return Stripes()
"""

TRAIN = """
import hashlib, os, sys, time
import torch
from data import stripes
from headrace import feed

torch.use_deterministic_algorithms(True)
torch.distributed.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.manual_seed(5)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 256, 3), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 10),
).to(device)
model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
losses = []
loader = feed.DataLoader(stripes(), global_batch_size=64, shuffle=True, seed=3, device="cuda")
for epoch in range(8):
    for step, (images, labels) in enumerate(loader):
        assert images.device == device
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 10 == 0:
            print("step", epoch, step, flush=True)
print("copied", loader.stats()["bytes_copied"], flush=True)
losses = torch.stack(losses).cpu()
print("improved", losses[-20:].mean().item() < 0.8 * losses[:20].mean().item(), flush=True)
print("digest", hashlib.sha256(losses.numpy().tobytes()).hexdigest(), flush=True)
torch.distributed.destroy_process_group()
"""


def train(stage: Stage, data_hosts: int):
    code = Path(stage.folder) / "code"
    code.mkdir(exist_ok=True)
    (code / "data.py").write_text(DATA)
    kinds = {"dnn": ("ml.g5.xlarge", 1)} | ({"data": ("ml.c5.xlarge", data_hosts)} if data_hosts else {})
    return stage.start(
        TRAIN,
        instance_groups=[
            {"instance_group_name": name, "instance_type": kind, "instance_count": count}
            for name, (kind, count) in kinds.items()
        ],
        distribution={"torch_distributed": {"enabled": True}, "instance_groups": ["dnn"]},
        data_service={
            "feed": {"enabled": True, "workers_per_host": 2},
            "instance_groups": ["data" if data_hosts else "dnn"],
        },
        completion={"instance_groups": ["dnn"]},
        environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )


def line_of(handle, word: str) -> str:
    [line] = [line.text for line in handle.logs("dnn") if line.text.startswith(word)]
    return str(line)


def test_a_heterogeneous_job_trains_on_the_gpu_as_the_homogeneous_one_and_its_report_knows_the_gpu(stage) -> None:
    alone = train(stage, 0)
    assert alone.wait(120) is Status.COMPLETED, text(alone)
    beside = train(stage, 2)
    until(said(beside, "step 0 10"), 90)
    os.kill(program_pid(beside, "algo-3", "feed"), signal.SIGKILL)
    assert beside.wait(120) is Status.COMPLETED, text(beside)
    assert line_of(beside, "digest") == line_of(alone, "digest")
    assert line_of(beside, "improved") == "improved True"
    assert line_of(beside, "copied") == "copied 0"
    report = insight.report(beside.run)
    assert report.training is not None
    assert report.training.compute.value is not None
    assert report.training.h2d.value is not None
    use = {group.name: group.gpu_use.value for group in report.groups}
    assert use["data"] is None
    assert use["dnn"] is not None
    assert use["dnn"] > 0
    stage.assert_nothing_left(beside)
