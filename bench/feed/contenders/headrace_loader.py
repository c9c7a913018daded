"""headrace's DataLoader, with local workers or with a feed server of its own over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.feed.measure import Contender
from bench.feed.servers import ROOT

from headrace import feed
from headrace.measuring.windows import over_tcp, shared_memory


class HeadraceLoader(Contender):
    """headrace.feed.DataLoader with local workers.

    Args:
        dataset: what it loads, or a Pipeline.
        options: DataLoader's arguments.
    """

    name = "headrace"

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(**options)
        self._dataset = dataset

    def open(self) -> Iterator[Any]:
        return self.resources.enter_context(shared_memory(self._dataset, **self.settings))


class HeadraceTcp(HeadraceLoader):
    """headrace.feed.DataLoader over TCP to a feed server on loopback.

    Args:
        pipeline: what the server loads.
        executors: processes of the server.
        options: DataLoader's arguments.
    """

    def __init__(self, pipeline: feed.Pipeline[Any], executors: int, **options: Any) -> None:
        super().__init__(pipeline, executors=executors, **options)

    def open(self) -> Iterator[Any]:
        return self.resources.enter_context(over_tcp(self._dataset, code=ROOT, **self.settings))
