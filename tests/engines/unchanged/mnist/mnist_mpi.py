"""Softmax regression on digits, data parallel by MPI: the job of a Horovod notebook, without Horovod."""

# ruff: noqa

import argparse
import os

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", type=str)
parser.add_argument("--epochs", type=int, default=12)
args = parser.parse_args()

world = MPI.COMM_WORLD
train = np.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "train.npz"))
test = np.load(os.path.join(os.environ["SM_CHANNEL_TEST"], "test.npz"))

mine = slice(world.rank, None, world.size)
images, labels = train["data"][mine] / 16.0, np.eye(10)[train["labels"][mine]]
weights = world.bcast(np.random.default_rng(0).normal(0, 0.01, (images.shape[1], 10)))
for epoch in range(args.epochs):
    scores = np.exp(images @ weights)
    gradient = images.T @ (scores / scores.sum(1, keepdims=True) - labels) / len(images)
    weights -= 2.0 * world.allreduce(gradient) / world.size
    if world.rank == 0:
        np.save(f"./checkpoint-{epoch}.npy", weights)
accuracy = float(((test["data"] / 16.0) @ weights).argmax(1).__eq__(test["labels"]).mean())
print(f"rank {world.rank} of {world.size} on {os.environ['SM_CURRENT_HOST']}: test accuracy {accuracy:.3f}", flush=True)
if world.rank == 0:
    np.save(os.path.join(args.model_dir, "model.npy"), weights)
