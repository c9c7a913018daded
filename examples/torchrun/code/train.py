"""Distributed data parallel training that can be stopped and started again at any time.

Written for torchrun and SageMaker; it knows nothing of headrace. Every host writes a checkpoint after each epoch. When
the ranks are started again, on as many hosts as there are now, they go on from the newest checkpoint of any host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

BASE = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
CHECKPOINT = BASE / "checkpoints" / "checkpoint.pt"


def read_idx(path: Path) -> Tensor:
    """Reads a gzipped IDX file of unsigned bytes."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def digits(part: str) -> tuple[Tensor, Tensor]:
    """Returns images (n, pixels) float32 in 0..1, and labels (n,) int64."""
    folder = Path(os.environ["SM_CHANNEL_TRAINING"])
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").flatten(1).float().div_(255.0)
    return images, read_idx(folder / f"{part}-labels-idx1-ubyte.gz").long()


def save(state: dict[str, object]) -> None:
    """Writes this host's checkpoint, whole or not at all."""
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    temporary = CHECKPOINT.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(CHECKPOINT)


def newest(fresh: dict[str, object]) -> dict[str, object]:
    """Returns the newest checkpoint of all hosts, the same on every rank; `fresh` when there is none."""
    own = torch.load(CHECKPOINT, weights_only=True) if CHECKPOINT.exists() else fresh
    epochs = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(epochs, torch.tensor([own["epoch"]]))
    states = [own]
    dist.broadcast_object_list(states, src=int(torch.cat(epochs).argmax()))
    return states[0]


def main() -> None:
    """Trains; rank 0 writes the model and the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=32, help="rows of one rank's step")
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--epoch_seconds", type=float, default=0.0, help="an epoch takes at least so long")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    images, labels = digits("train")
    net = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), options.learning_rate)
    state = newest({"epoch": 0, "net": net.state_dict(), "optimizer": optimizer.state_dict()})
    net.load_state_dict(state["net"])  # type: ignore[arg-type]
    optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
    model = nn.parallel.DistributedDataParallel(net)
    print(f"rank {rank} of {world} begins with epoch {int(state['epoch']) + 1}", flush=True)  # type: ignore[call-overload]

    for epoch in range(int(state["epoch"]), options.epochs):  # type: ignore[call-overload]
        began = time.monotonic()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed + epoch))
        steps = len(labels) // (options.batch_size * world)
        for rows in order[rank::world].split(options.batch_size)[:steps]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        time.sleep(max(0.0, options.epoch_seconds - (time.monotonic() - began)))
        if int(os.environ["LOCAL_RANK"]) == 0:
            save({"epoch": epoch + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()})
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}: loss {loss.item():.4f}, {world} ranks", flush=True)

    if rank == 0:
        held_out, answers = digits("t10k")
        with torch.no_grad():
            accuracy = (net(held_out).argmax(1) == answers).float().mean().item()
        print(f"held-out accuracy {accuracy:.4f}", flush=True)
        torch.save(net.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")
        result = json.dumps({"accuracy": accuracy, "world": world})
        (Path(os.environ["SM_OUTPUT_DATA_DIR"]) / "result.json").write_text(result)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
