"""The oracle: a plain loop that knows the dataset, the documented order and the documented seeding rule, not headrace.

python plain_loop.py CONFIG.json      config: audit, n, batch, seed, epochs, rank, world, dataset, pipeline, window
"""

import json
import random
import struct
import sys
from hashlib import blake2b

import numpy as np
import torch
from audit import Writer
from audited_data import Samples, TarRows
from keyed_order import keyed_order, window_order
from torch.utils.data import default_collate

config = json.loads(open(sys.argv[1]).read())  # noqa: PTH123, SIM115
n, batch, seed, rank, world = (config[name] for name in ("n", "batch", "seed", "rank", "world"))
dataset = {"samples": Samples, "tars": TarRows}[config["pipeline"]](n=n, **config["dataset"])
audit = Writer(config["audit"])
for epoch in range(config["epochs"]):
    key = f"{seed}/{epoch}".encode()
    order = window_order(n, key, *config["window"]) if config["window"] else keyed_order(n, key)
    for step, start in enumerate(range(0, n, batch * world)):
        rows = []
        for position in range(start + rank * batch, min(n, start + (rank + 1) * batch)):
            key = blake2b(struct.pack("<QQQ", seed, epoch, position), digest_size=16, person=b"sample").digest()
            random.seed(int.from_bytes(key, "little"))
            np.random.seed(struct.unpack("<4I", key))
            torch.default_generator.manual_seed(int.from_bytes(key[:8], "little"))
            rows.append(dataset[order[position]])
        audit.add(epoch, step, default_collate(rows))
assert not any(name.startswith("headrace") for name in sys.modules)
