"""Figures of loaders and feed servers for Prometheus, with the library `prometheus-client` (``headrace[prometheus]``).

    from headrace.feed import prometheus

    prometheus.start(loader, 9400)                                  # http://127.0.0.1:9400/metrics
    prometheus_client.REGISTRY.register(prometheus.LoaderCollector(loader))     # or into what you serve already

A figure is read when it is scraped, in the library's own thread; nothing is counted twice, and without a scraper a
loader pays nothing. Importing this module without the library raises FeedError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

LOADER_FIGURES: dict[str, tuple[str, str]] = {
    "steps": ("steps_total", "Steps that have ended."),
    "samples": ("samples_total", "Samples of these steps."),
    "bytes": ("bytes_total", "Bytes of the batches of these steps."),
    "wait_seconds": ("wait_seconds_total", "Time that next() waited for batches."),
    "step_seconds": ("step_seconds_total", "Time of the steps, waits included."),
    "stall_fraction": ("stall_ratio", "wait_seconds / step_seconds since the start."),
    "bytes_copied": ("copied_bytes_total", "Bytes copied to ordinary memory because every slab was in use."),
    "retries": ("retries_total", "Slices that were asked for again."),
    "workers_lost": ("workers_lost_total", "Workers that were lost."),
    "duplicates_dropped": ("duplicates_dropped_total", "Answers that came a second time and were dropped."),
    "worker_cpu_seconds": ("worker_cpu_seconds_total", "CPU time of the workers for this loader."),
    "bytes_per_second": ("bytes_per_second", "Bytes a second, as stats() has it."),
    "queue_depth": ("queue_depth", "Batches that are ready and wait for next()."),
    "hedges": ("hedges_total", "Slices that a second worker was asked for because the first was slow."),
    "hedges_won": ("hedges_won_total", "Hedges whose second worker answered first."),
    "slices_verified": ("slices_verified_total", "Slices that were computed twice and compared."),
    "purity_failures": ("purity_failures_total", "Compared slices that differed."),
    "skipped": ("skipped_samples_total", "Samples left out under on_error='skip'."),
    "tokens": ("tokens_total", "Tokens in the packed sequences that the trainer was given."),
    "padding_fraction": ("padding_fraction", "Share of the positions of packed sequences that hold padding."),
    "slices_timed_out": ("slices_timed_out_total", "Slices that took longer than slice_timeout."),
    "cpu_seconds_per_gb": ("cpu_seconds_per_gigabyte", "CPU seconds on the trainer's side for a GB of batches."),
    "worker_cpu_seconds_per_gb": ("worker_cpu_seconds_per_gigabyte", "CPU seconds of the workers for a GB of batches."),
    "executors": ("executors", "Worker processes that make the loader's batches."),
    "batches_ahead": ("batches_ahead", "Batches that may be on their way, as tuned; 0 without tuning."),
    "needed_executors": ("needed_executors", "Worker processes that would be busy if the trainer never waited."),
    "desired_workers": ("desired_workers", "Hosts of data workers that would do for all ranks."),
}
"""Names of the figures in `DataLoader.stats()`: name for Prometheus, behind ``headrace_feed_``, and help."""

HOST_FIGURES: dict[str, tuple[str, str]] = {
    "rows": ("host_rows_total", "Rows that the host's workers made."),
    "seconds": ("host_work_seconds_total", "Time that the host's workers worked on them."),
    "cpu_seconds": ("host_cpu_seconds_total", "Their CPU time."),
    "rows_per_second": ("host_rows_per_second", "Rows a second of one worker's work."),
}
"""The same for ``stats()["hosts"]``."""

SOURCE_FIGURES: dict[str, tuple[str, str]] = {
    "samples": ("source_samples", "Samples of a source of a mixture, over all ranks; in lanes those of this rank."),
    "passes": ("source_passes", "How often that is all its rows."),
    "weight": ("source_weight", "Its share of the samples from here on."),
}
"""The same for ``stats()["sources"]``."""


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
        families: dict[str, Metric] = {}
        for loader in self._loaders:
            stats = loader.stats()
            for name, value in stats.items():
                if isinstance(value, (int, float)):
                    suffix, text = LOADER_FIGURES[name]
                    _add(families, f"headrace_feed_{suffix}", text, value, {"loader": loader.name})
            if stats["tuning"] is not None:
                text = "What the number of worker processes is based on: 1 for the label that holds."
                for because in Because:
                    labels = {"loader": loader.name, "because": because.value}
                    holds = because is stats["tuning"]["because"]
                    _add(families, "headrace_feed_executors_because", text, float(holds), labels)
            for host, made in stats["hosts"].items():
                for name, (suffix, text) in HOST_FIGURES.items():
                    labels = {"loader": loader.name, "host": host}
                    _add(families, f"headrace_feed_{suffix}", text, made[name], labels)  # type: ignore[literal-required]
            for source, taken in stats["sources"].items():
                for name, (suffix, text) in SOURCE_FIGURES.items():
                    labels = {"loader": loader.name, "source": source}
                    if taken[name] is not None:  # type: ignore[literal-required]
                        _add(families, f"headrace_feed_{suffix}", text, taken[name], labels)  # type: ignore[literal-required]
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
