"""Trains the MNIST network on the digits, with torch's DataLoader or with headrace's.

An ordinary SageMaker training script: hyperparameters arrive as arguments, directories through `headrace.Environment`.
It runs on every host of the dnn group, in as many processes as the job file says.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import headrace
from digits import Digits, train_set
from headrace import feed
from model import Net


def arguments() -> argparse.Namespace:
    """Parses the hyperparameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=64, help="rows a step over all ranks")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--loader", choices=["torch", "headrace"], default="headrace")
    parser.add_argument("--num_workers", type=int, default=0, help="local workers, when the job provides none")
    return parser.parse_args()


def make_loader(options: argparse.Namespace, rank: int, world: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Returns the training batches; the two loaders differ in this function alone."""
    if options.loader == "torch":
        dataset = Digits(feed.channel("training"), train=True)
        sampler = torch.utils.data.DistributedSampler(dataset, world, rank, seed=options.seed) if world > 1 else None
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=options.batch_size // world,
            sampler=sampler,
            shuffle=sampler is None,
            num_workers=options.num_workers,
            persistent_workers=options.num_workers > 0,
        )
        return headrace.track(loader)
    return feed.DataLoader(
        train_set(),
        global_batch_size=options.batch_size,
        rank=rank,
        world_size=world,
        shuffle=True,
        seed=options.seed,
        num_workers=options.num_workers,
    )


def accuracy(model: nn.Module) -> float:
    """Returns the share of the held-out digits that are classified right."""
    test = Digits(feed.channel("training"), train=False)
    images = torch.stack([test[i][0] for i in range(len(test))])
    labels = torch.from_numpy(test.labels.astype("int64"))
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    """Trains, prints the accuracy, and writes model, losses and accuracy."""
    options = arguments()
    env = headrace.Environment()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(options.seed)
    net = Net()
    model: nn.Module = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.Adam(model.parameters(), options.learning_rate)
    loader = make_loader(options, rank, world)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))  # type: ignore[arg-type]
    losses: list[float] = []
    for epoch in range(options.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}: loss {sum(losses[-len(loader) :]) / len(loader):.4f}")
    if rank == 0:
        right = accuracy(net)
        print(f"held-out accuracy {right:.4f}")
        torch.save(net.state_dict(), Path(env.model_dir) / "model.pt")
        result = {"accuracy": right, "losses": [loss.hex() for loss in losses]}
        (Path(env.output_data_dir) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
