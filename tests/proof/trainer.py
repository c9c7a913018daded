"""A training process: takes batches from headrace and writes each into the audit. It computes nothing else.

    python trainer.py CONFIG.json

It passes over the data `epochs` times; with `enough` it goes on, epoch after epoch, until that file is there. The
loader's counters are written to `stats` after every epoch.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import proof_pipelines
from audit import Writer

from headrace.feed import DataLoader, Window


def main() -> None:
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    audit, enough = Writer(config["audit"]), Path(config["enough"])
    options = dict(config["loader"])
    if "worker_init_fn" in options:
        options["worker_init_fn"] = getattr(proof_pipelines, options["worker_init_fn"])
    if "window" in options:
        options["shuffle"] = Window(*options.pop("window"))
    # A build that loses batches shall say so soon: the mutation check waits for it.
    options.setdefault("stall_timeout", float(os.environ.get("PROOF_STALL_SECONDS", "90")))
    data = getattr(proof_pipelines, config["pipeline"])(**config["arguments"])
    with DataLoader(data, **options) as loader:
        for epoch in itertools.count():
            for step, batch in enumerate(loader):
                audit.add(epoch, step, batch)
                time.sleep(config["pace"])
            Path(config["stats"]).write_text(json.dumps(loader.stats()))
            if epoch + 1 >= config["epochs"] and (enough.exists() or not config["endless"]):
                return


if __name__ == "__main__":
    main()
