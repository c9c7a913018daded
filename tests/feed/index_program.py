"""A host that indexes a folder of tar files, each as slow as from a network, and writes down which ones it counts.

python index_program.py HOST FOLDER LOG
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from headrace import feed
from headrace.feed.sources import index_shards

SECONDS = 0.03  # of a shard


def main() -> None:
    host, folder, log = sys.argv[1:]
    socket.gethostname = lambda: host  # type: ignore[assignment]
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # it counts alone, not by helpers
    count = index_shards.KINDS["tar"]

    def slowly(path: Path) -> object:
        time.sleep(SECONDS)
        with Path(log).open("a") as file:
            print(path.name, file=file)
        return count(path)  # type: ignore[arg-type]

    index_shards.KINDS["tar"] = slowly  # type: ignore[assignment]
    print(len(feed.tar(folder)))


if __name__ == "__main__":
    main()
