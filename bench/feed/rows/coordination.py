"""Coordination: 1 to 64 executors on a feed server that sleep 200 ms for every batch, and do not import torch.

The ideal is executors / 0.2 s. Sleep costs no CPU, so what is short of it is the cost of asking and answering.
"""

from __future__ import annotations

from bench.feed.contenders.headrace_loader import HeadraceTcp
from bench.feed.figures import Figure, Records
from bench.feed.measure import Bench
from bench.feed.records import Record
from bench.feed.settings import Settings
from bench.feed.sleeping import sleeper

TITLE = "Coordination: executors that sleep 200 ms a batch; throughput as a share of linear"
EXECUTORS = (1, 2, 4, 8, 16, 32, 64)
SLEEP = 0.2
BATCH_BYTES = 32


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    quick = bench.effort.scale < 1
    seconds = 0.02 if quick else SLEEP
    for executors in EXECUTORS[:2] if quick else EXECUTORS:
        loader = HeadraceTcp(
            sleeper(seconds=seconds), executors, batch_size=None, verify=0.0
        )  # they tell their process id
        # All wake together, so a window of a broken number of rounds would count half a burst.
        bench.interleave([loader], BATCH_BYTES, {f"{executors} executors of {seconds} s": None}, group=executors)


def _share(record: Record) -> float:
    executors, _, seconds = record.variant.removesuffix(" s").partition(" executors of ")
    return record.rate * float(seconds) / int(executors)


def _client_cpu(record: Record) -> float:
    return (record.cpu_trainer_s + record.cpu_receiver_s) / record.batches * 1e6


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    variants = records.variants()
    shares = [
        records.value(f"share of linear, {variant}", "headrace", _share, "", variant=variant, target=0.95)
        for variant in variants
    ]
    costs = [
        records.value(f"client CPU a batch, {variant}", "headrace", _client_cpu, " us", variant=variant, better="less")
        for variant in variants
    ]
    return shares + costs
