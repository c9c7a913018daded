"""Figures of loaders and feed servers for Prometheus, with the library `prometheus-client` (``headrace[prometheus]``).

    from headrace.feed import prometheus

    prometheus.start(loader, 9400)                                  # http://127.0.0.1:9400/metrics
    prometheus_client.REGISTRY.register(prometheus.LoaderCollector(loader))     # or into what you serve already

A figure is read when it is scraped, in the library's own thread; nothing is counted twice, and without a scraper a
loader pays nothing. Importing this module without the library raises FeedError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from headrace.errors import FeedError
from headrace.feed.wire.messages import Status
from headrace.feed_metrics import Because
from headrace.install_hint import install_hint

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise FeedError(
        f"Prometheus metrics need the library prometheus-client: {missing}",
        hint=install_hint("prometheus"),
    ) from missing

if TYPE_CHECKING:
    from headrace.feed.loader.data_loader import DataLoader


class LoaderCollector(Collector):
    """The figures of loaders, labelled with their names.

    Args:
        loaders: the loaders; they need different names.

    Raises:
        FeedError: two have the same name.
    """

    def __init__(self, *loaders: DataLoader) -> None:
        names = [loader.name for loader in loaders]
        if len(set(names)) < len(names):
            raise FeedError(
                f"loaders of the same name: {names}", hint='give them names: DataLoader(..., name="validation")'
            )
        self._loaders = loaders

    def describe(self) -> list[Metric]:
        """Returns nothing: the registry need not ask the loaders before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Reads every loader's `stats()`."""
        from headrace.feed.loader import stats as kinds  # a server, which has no loader, does without

        families: dict[str, Metric] = {}
        for loader in self._loaders:
            stats, label = loader.stats(), {"loader": loader.name}
            _add_all(families, kinds.figures(kinds.LoaderStats), stats, label)
            if stats["tuning"] is not None:
                text = "What the number of worker processes is based on: 1 for the label that holds."
                for because in Because:
                    holds, labels = because is stats["tuning"]["because"], label | {"because": because.value}
                    _add(families, "headrace_feed_executors_because", text, float(holds), labels)
            for host, made in stats["hosts"].items():
                _add_all(families, kinds.figures(kinds.HostStats), made, label | {"host": host})
            for source, taken in stats["sources"].items():
                _add_all(families, kinds.figures(kinds.SourceStats), taken, label | {"source": source})
        yield from families.values()


class ServerCollector(Collector):
    """The figures of one feed server, as they were when it last told them (`watch`)."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def watch(self, status: Status) -> None:
        """Takes the figures. Called in the server's thread, read in the library's: the message is not changed."""
        self._status = status

    def describe(self) -> list[Metric]:
        """Returns nothing: there are no figures before the server runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Returns the last figures; none before the first."""
        status = self._status
        if status is None:
            return
        info = {"host": status.host, "version": status.version} | {f"numerics_{k}": v for k, v in _clean(status)}
        yield InfoMetricFamily("headrace_feed_server", "The server, and what its workers compute with.", info)
        families: dict[str, Metric] = {}
        restarts = sum(executor.restarts for executor in status.executors)
        for suffix, text, value in (
            ("uptime_seconds", "Time since the start.", status.uptime),
            ("executors", "Worker processes.", len(status.executors)),
            ("executors_busy", "Worker processes that make a slice now.", sum(each.busy for each in status.executors)),
            ("executor_restarts_total", "Worker processes that were replaced.", restarts),
            ("queued_slices", "Slices that wait for a worker process.", status.queue),
            ("clients", "Connected clients.", len(status.clients)),
            ("staging_bytes", "Memory of results on their way to other hosts.", status.staging_bytes),
            ("staging_limit_bytes", "Limit of that memory.", status.staging_limit),
            ("slices_total", "Slices made.", status.slices),
            ("bytes_total", "Bytes of the slices made.", status.bytes),
            ("cpu_seconds_total", "CPU time of the worker processes for these slices.", status.cpu_seconds),
        ):
            _add(families, f"headrace_feed_server_{suffix}", text, value, {})
        for job in status.jobs:
            for suffix, text, value in (
                ("clients", "Connected clients of the job.", job.clients),
                ("queued_slices", "Slices of the job that wait for a worker process.", job.queue),
                ("slices_total", "Slices made for the job.", job.slices),
                ("bytes_total", "Bytes of the slices made for the job.", job.bytes),
                ("cpu_seconds_total", "CPU time of the worker processes for the job.", job.cpu_seconds),
                ("staging_bytes", "Memory of results on their way to the job.", job.staging_bytes),
            ):
                _add(families, f"headrace_feed_server_job_{suffix}", text, value, {"job": job.name})
        yield from families.values()


def _clean(status: Status) -> Iterable[tuple[str, str]]:
    return ((name.replace("-", "_"), value) for name, value in status.numerics.items())


def _add_all(
    families: dict[str, Metric],
    figures: Mapping[str, tuple[str, str]],
    stats: Mapping[str, object],
    label: dict[str, str],
) -> None:
    """Adds those of some figures that are known."""
    for name, (suffix, text) in figures.items():
        value = stats[name]
        if isinstance(value, (int, float)):
            _add(families, f"headrace_feed_{suffix}", text, value, label)


def _add(families: dict[str, Metric], name: str, text: str, value: float, labels: dict[str, str]) -> None:
    family = families.get(name)
    if family is None:
        if name.endswith("_total"):
            family = CounterMetricFamily(name.removesuffix("_total"), text, labels=list(labels))
        else:
            family = GaugeMetricFamily(name, text, labels=list(labels))
        families[name] = family
    family.add_metric(list(labels.values()), value)  # type: ignore[attr-defined]  # both kinds have it, Metric has not


class Exporter:
    """An HTTP server with a page `/metrics`.

    Attributes:
        port: its port.
    """

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server, self._thread = server, thread
        self.port = server.server_port

    def close(self) -> None:
        """Ends the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(collectors: Iterable[Collector], port: int, host: str = "127.0.0.1") -> Exporter:
    """Serves collectors over HTTP, in a daemon thread of the library.

    Args:
        collectors: what is served.
        port: TCP port; 0 for one that is free.
        host: address to listen on.

    Raises:
        FeedError: the port cannot be had.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise FeedError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error
    return Exporter(server, thread)


def start(loader: DataLoader, port: int, host: str = "127.0.0.1") -> Exporter:
    """Serves the figures of one loader at ``http://host:port/metrics`` until the exporter is closed.

    Args:
        loader: the loader.
        port: TCP port; 0 for one that is free. Each rank of a host needs its own.
        host: address to listen on; loopback by default, because Prometheus pages have no password.

    Raises:
        FeedError: the port cannot be had.
    """
    return listen([LoaderCollector(loader)], port, host)
