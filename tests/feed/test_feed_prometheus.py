"""Metrics are scraped over HTTP and read with Prometheus' own parser."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import array_data
import feed_data
import prometheus_client
import pytest
from feed_servers import Server, free_port, wait_until, write_secret
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import FeedError
from headrace.feed import DataLoader, prometheus, stack_arrays
from headrace.feed.loader.stats import LoaderStats, figures
from headrace.install_hint import install_hint

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int) -> tuple[Samples, dict[str, str]]:
    """Returns the samples of a page, and the types of its families."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    return samples, {family.name: family.type for family in families}


def test_a_loaders_figures_are_its_stats() -> None:
    with DataLoader(feed_data.noise(64), batch_size=8, seed=1, name="mine") as loader:
        with prometheus.start(loader, 0) as exporter:
            before, _ = scrape(exporter.port)
            list(loader)
            after, types = scrape(exporter.port)
        label = (("loader", "mine"),)
        assert before["headrace_feed_steps_total", label] == 0
        stats = loader.stats()
        assert figures(LoaderStats).keys() | {"hosts", "sources", "tuning"} == stats.keys()
        unknown = {name for name, value in stats.items() if value is None}
        assert unknown == {"needed_executors", "desired_workers", "tuning"}  # without workers
        for name, (suffix, _) in figures(LoaderStats).items():
            if name in unknown:
                assert (f"headrace_feed_{suffix}", label) not in after
                continue
            assert after[f"headrace_feed_{suffix}", label] == pytest.approx(dict(stats)[name]), name
        assert stats["steps"] == 8
        assert types["headrace_feed_wait_seconds"] == "counter"
        assert types["headrace_feed_stall_ratio"] == "gauge"
    with pytest.raises(urllib.error.URLError):
        scrape(exporter.port)


def test_a_page_tells_what_the_number_of_workers_is_based_on() -> None:
    with (
        DataLoader(feed_data.noise(64), 8, num_workers="auto", seed=1, name="mine") as loader,
        prometheus.start(loader, 0) as exporter,
    ):
        next(iter(loader))
        page, _ = scrape(exporter.port)
        assert page["headrace_feed_executors", (("loader", "mine"),)] == 1
        states = {dict(labels)["because"]: value for (name, labels), value in page.items() if name.endswith("_because")}
        assert [state for state, value in states.items() if value] == ["started"]
        assert len(states) == 13


def test_every_host_has_figures_of_its_own() -> None:
    with (
        DataLoader(feed_data.noise(64), 8, num_workers=2, name="mine") as loader,
        prometheus.start(loader, 0) as exporter,
    ):
        list(loader)
        page, types = scrape(exporter.port)
        for host, made in loader.stats()["hosts"].items():
            label = (("host", host), ("loader", "mine"))
            assert page["headrace_feed_host_rows_total", label] >= 8
            assert page["headrace_feed_host_rows_per_second", label] == pytest.approx(made["rows_per_second"], rel=0.5)
        assert types["headrace_feed_host_cpu_seconds"] == "counter"


def test_several_loaders_share_a_page_of_the_users_own_registry() -> None:
    registry = prometheus_client.CollectorRegistry()
    with DataLoader(feed_data.noise(16), 8, name="a") as one, DataLoader(feed_data.noise(16), 8, name="b") as other:
        registry.register(prometheus.LoaderCollector(one, other))
        list(other)
        page = prometheus_client.generate_latest(registry).decode()
    assert page.count("# TYPE headrace_feed_steps_total counter") == 1
    assert 'headrace_feed_samples_total{loader="a"} 0.0' in page
    assert 'headrace_feed_samples_total{loader="b"} 16.0' in page


def test_loaders_of_the_same_name_are_refused() -> None:
    with DataLoader(feed_data.noise(16)) as loader, pytest.raises(FeedError, match="loaders of the same name"):
        prometheus.LoaderCollector(loader, loader)


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    loader = DataLoader(feed_data.noise(16))
    with prometheus.start(loader, 0) as exporter, pytest.raises(FeedError, match="cannot serve metrics on") as error:
        prometheus.start(loader, exporter.port)
    assert f"127.0.0.1:{exporter.port}: Address already in use" in str(error.value)


@pytest.mark.usefixtures("without_torch")
def test_a_feed_server_tells_its_figures_while_it_works(own_server: Callable[..., Server]) -> None:
    port = free_port()
    server = own_server(arguments=["--metrics-port", str(port)])
    with DataLoader(
        array_data.pictures(64, shape=[100, 4]), batch_size=8, seed=1, workers=server.tcp,
        secret_file=str(server.secret), collate_fn=stack_arrays,
    ) as loader:  # fmt: skip
        size = sum(batch[0]["image"].nbytes for batch in loader)

        def told() -> Samples:
            return scrape(port)[0]

        def value(name: str) -> float:
            return told()[f"headrace_feed_server_{name}", ()]

        wait_until(lambda: value("slices_total") >= 8, "the figures of this epoch")
        assert value("bytes_total") >= size
        assert value("clients") == 1
        assert value("executors") == 2
        [info] = [dict(labels) for name, labels in told() if name == "headrace_feed_server_info"]
        assert info["host"] == "host-own"
        assert "numerics_torch" in info
        server.executors()[0].kill()
        wait_until(lambda: value("executor_restarts_total") == 1, "the replacement is counted")
    _, types = scrape(port)
    assert types["headrace_feed_server_slices"] == "counter"
    assert types["headrace_feed_server_queued_slices"] == "gauge"


BLOCK = "import sys; sys.modules['prometheus_client'] = None; "


def test_without_the_library_the_error_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + "import headrace.feed.loader.data_loader; from headrace.feed import prometheus"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-2:]
    assert "Prometheus metrics need the library prometheus-client" in last[0]
    assert last[1] == f"hint: {install_hint('prometheus')}"


def test_a_server_that_is_asked_for_metrics_without_the_library_does_not_start(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret")
    code = BLOCK + "sys.argv[1:] = ['--bind', '127.0.0.1:0', '--executors', '1', '--secret-file', sys.argv[1], "
    code += "'--metrics-port', '0']; from headrace.feed.serve import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "secret")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Prometheus metrics need the library prometheus-client")
    assert f"hint: {install_hint('prometheus')}" in done.stderr
