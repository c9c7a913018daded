"""headrace's DataLoader, with local workers or with feed servers of its own over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.feed.contenders.torch_loader import endless
from bench.feed.measure import Contender
from bench.feed.servers import FeedServer

from headrace import feed


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
        self._loader: feed.DataLoader | None = None

    def open(self) -> Iterator[Any]:
        self._loader = feed.DataLoader(self._dataset, **self.settings)
        return endless(self._loader)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


class HeadraceTcp(HeadraceLoader):
    """headrace.feed.DataLoader over TCP to a feed server on loopback.

    Args:
        pipeline: what the server loads.
        executors: processes of the server.
        options: DataLoader's arguments.
    """

    def __init__(self, pipeline: feed.Pipeline[Any], executors: int, **options: Any) -> None:
        super().__init__(pipeline, executors=executors, **options)
        self._server: FeedServer | None = None

    def open(self) -> Iterator[Any]:
        options = dict(self.settings)
        self._server = FeedServer(options.pop("executors"))
        options |= {"workers": self._server.address, "secret_file": self._server.secret}
        self._loader = feed.DataLoader(self._dataset, **options)
        return endless(self._loader)

    def close(self) -> None:
        super().close()
        if self._server is not None:
            self._server.stop()
