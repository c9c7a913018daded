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
from headrace.feed.sources import tar_shards
from headrace.feed.sources.byte_ranges import Columns, ShardPath

SECONDS = 0.03  # of a shard


def main() -> None:
    host, folder, log = sys.argv[1:]
    socket.gethostname = lambda: host  # type: ignore[assignment]
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # it counts alone, not by helpers
    count = tar_shards.index

    def slowly(path: ShardPath) -> tuple[int, Columns]:
        time.sleep(SECONDS)
        with Path(log).open("a") as file:
            print(path.name, file=file)
        return count(path)

    tar_shards.index = slowly
    print(len(feed.tar(folder)))


if __name__ == "__main__":
    main()
