"""What a training host runs: a small network, fed by the data hosts.

One process a host, or several that torch.distributed has started. Each rank asks for batches of its own, in a thread
for each data host, a few ahead of the training loop.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import cluster
import grpc
import numpy as np
import torch
import torch.nn.functional as F
from dataset_feed import Request, decode_batch, get_batches
from images import Digits
from torch import Tensor, nn

AHEAD = 4  # batches that a data host may be ahead of the training loop


def arguments() -> argparse.Namespace:
    """Parses the hyperparameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=32, help="rows of one rank's step")
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--feed_timeout", type=float, default=300.0, help="seconds that one epoch's feed may take")
    return parser.parse_known_args()[0]


class Feed:
    """The batches of one rank from one data host, in order.

    Args:
        host: where to ask first; when it fails, the others are asked for what is missing.
        hosts: all data hosts.
        request: the wanted batches.
        seconds: time limit for all of it.
    """

    def __init__(self, host: str, hosts: list[str], request: Request, seconds: float) -> None:
        self._hosts = [host, *(other for other in hosts if other != host)]
        self._request = request
        self._seconds = seconds
        self._queue: queue.Queue[bytes | Exception] = queue.Queue(AHEAD)
        threading.Thread(target=self._receive, daemon=True).start()

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the next batch. Raises what ended the feed, or queue.Empty after the time limit."""
        message = self._queue.get(timeout=self._seconds * len(self._hosts))
        if isinstance(message, Exception):
            raise message
        return decode_batch(message)

    def _receive(self) -> None:
        received = 0
        wrong: Exception | None = None
        for host in self._hosts:
            rest = Request(**{**vars(self._request), "numbers": self._request.numbers[received:]})
            try:
                for message in get_batches(host, cluster.FEED_PORT, cluster.token(), rest, self._seconds):
                    self._queue.put(message)
                    received += 1
                return
            except grpc.RpcError as error:
                wrong = RuntimeError(f"feed of {host}: {error.code().name}: {error.details()}")  # type: ignore[attr-defined]
                print(f"{wrong}; {len(rest.numbers) - received} batches are asked for elsewhere", flush=True)
        assert wrong is not None
        self._queue.put(wrong)


def epoch_batches(
    options: argparse.Namespace, epoch: int, rank: int, world: int, rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the batches of one rank's epoch. All ranks have the same number; the incomplete rest is left out."""
    hosts = cluster.hosts_of(cluster.DATA_GROUP)
    steps = rows // (options.batch_size * world)
    mine = [step * world + rank for step in range(steps)]
    feeds = []
    for index, host in enumerate(hosts):
        numbers = tuple(mine[index :: len(hosts)])
        request = Request(options.seed, epoch, options.batch_size, numbers)
        feeds.append(Feed(host, hosts, request, options.feed_timeout))
    for step in range(steps):
        images, labels = feeds[step % len(feeds)].next()
        yield torch.from_numpy(images).float().div_(255.0).flatten(1), torch.from_numpy(labels).long()


def main() -> None:
    """Trains; rank 0 writes the model, the losses and the accuracy."""
    options = arguments()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(options.seed)
    test = Digits("t10k")
    rows = len(Digits("train"))
    pixels = math.prod(test.images.shape[1:])
    net = nn.Sequential(nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, 10))
    model: nn.Module = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.Adam(model.parameters(), options.learning_rate)
    losses: list[float] = []
    for epoch in range(options.epochs):
        for images, labels in epoch_batches(options, epoch, rank, world, rows):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}/{options.epochs}: loss {losses[-1]:.4f}", flush=True)
    if rank == 0:
        with torch.no_grad():
            answers = net(torch.from_numpy(test.images.astype(np.float32)).div_(255.0).flatten(1)).argmax(1)
        accuracy = float((answers == torch.from_numpy(test.labels.astype(np.int64))).float().mean())
        print(f"held-out accuracy {accuracy:.4f}", flush=True)
        torch.save(net.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")
        result = {"accuracy": accuracy, "losses": losses}
        (Path(os.environ["SM_OUTPUT_DATA_DIR"]) / "result.json").write_text(json.dumps(result))
    if world > 1:
        torch.distributed.barrier()  # the data hosts must not end while a rank still needs them
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
