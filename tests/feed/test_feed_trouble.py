"""Samples that hang, raise or kill, and workers that are slow: what the loader does about them, with real workers."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trouble_data
from effort import SOAK
from feed_data import flat
from feed_servers import Server, leave_out_torch

from headrace.errors import WorkerError, WorkersLost
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client.policy import Skipped
from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed.worker.executor_pool import ExecutorProcess

PLACES = ["local", "unix", "two tcp"]
INLINE = ["inline", *PLACES]
Make = Callable[..., DataLoader]


@pytest.fixture
def at(loader_at: Make, own_server: Callable[..., Server]) -> Make:
    """Makes a loader with a seed at a place; ``own`` is a server of this test."""

    def make(place: str, dataset: Any, **options: Any) -> DataLoader:
        options = {"seed": 5, "batch_size": 8} | options
        if place == "inline":
            return DataLoader(dataset, num_workers=0, **options)
        if place == "own":
            server, options = own_server(), {"collate_fn": stack_arrays} | options
            return DataLoader(dataset, workers=server.tcp, secret_file=str(server.secret), **options)
        return loader_at(place, dataset, **options)

    return make


def plain(**options: Any) -> list[bytes]:
    """The batches of a run without trouble."""
    with DataLoader(trouble_data.pure(), **({"batch_size": 8, "seed": 5} | options)) as loader:
        return [flat(batch) for batch in loader]


def rows_by_key(batches: list[Any]) -> dict[int, bytes]:
    """The bits of every row of dict batches."""
    return {
        int(batch["key"][row]): flat({name: values[row] for name, values in batch.items()})
        for batch in batches
        for row in range(len(batch["key"]))
    }


# Hanging


@pytest.mark.parametrize("kind", ["sleep", "stop", *(["spin"] if SOAK else [])])
def test_a_worker_that_hangs_is_replaced_and_its_stack_is_in_the_log(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = trouble_data.troubled(kind, [41], str(tmp_path))
    with DataLoader(dataset, 8, seed=5, num_workers=2, slice_timeout=2.0, hedge=False) as loader:
        assert [flat(batch) for batch in loader] == plain()
        stats = loader.stats()
    assert (stats["slices_timed_out"], stats["workers_lost"]) == (1, 1)
    if kind != "stop":  # a stopped process cannot write
        assert re.search(r"File .*trouble_data\.py.*in trouble\b", capfd.readouterr().err)


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two servers of one executor each. Whoever lets one hang lets the server replace it."""
    directory = tmp_path_factory.mktemp("singles")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_torch(patch)
        one, other = Server(directory, "one", executors=1), Server(directory, "other", executors=1)
    yield one.wait_ready(), other.wait_ready()
    one.stop()
    other.stop()


@pytest.mark.parametrize("kind", ["spin", "stop", *(["sleep"] if SOAK else [])])
def test_a_server_replaces_a_worker_that_hangs_and_logs_its_stack(
    kind: str, tmp_path: Path, singles: tuple[Server, Server]
) -> None:
    server, _ = singles
    lost, logged = len(server.event("executor_lost")), len(server.log())
    (tmp_path / "once").mkdir()
    dataset = trouble_data.troubled(kind, [41], str(tmp_path / "once"))
    where = {"workers": server.tcp, "secret_file": str(server.secret)}
    with DataLoader(dataset, 8, seed=5, slice_timeout=2.0, hedge=False, collate_fn=stack_arrays, **where) as loader:
        assert [flat(batch) for batch in loader] == plain(collate_fn=stack_arrays)
        assert loader.stats()["slices_timed_out"] == 1
    [event] = server.event("executor_lost")[lost:]
    assert "hung for 2 s" in event["reason"]
    if kind != "stop":
        assert re.search(r"File .*trouble_data\.py.*in trouble\b", server.log()[logged:])


@pytest.mark.promise("feed", "nothing hangs: a wait has a deadline and names who it waited for")
@pytest.mark.parametrize("place", ["local", "own"])
@pytest.mark.usefixtures("without_torch")
def test_a_sample_that_always_hangs_is_an_error_that_names_it(place: str, at: Make) -> None:
    with at(place, trouble_data.troubled("sleep", [21]), slice_timeout=1.0, hedge=False) as loader:
        batches = iter(loader)
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(WorkerError, match=r"two workers ended .* indices \[21\].*hung for 1 s; its stack is in"):
            next(batches)
        assert len(list(batches)) == 9, "the pass goes on"
        assert loader.stats()["slices_timed_out"] == 3, "once among others, and twice alone"


def test_a_hanging_sample_is_left_out_under_skip(at: Make) -> None:
    with at("local", trouble_data.troubled("sleep", [21]), slice_timeout=1.0, on_error="skip") as loader:
        got = rows_by_key(list(loader))
        assert sorted(got) == [key for key in range(96) if key != 21]
        [skipped] = loader.skipped
        assert (skipped.key, skipped.step) == (21, 2)
        assert "hung for 1 s" in skipped.reason


# Skipping


ROWS = [(1, "local"), (2, "inline"), (8, "two tcp"), (40, "unix")]


@pytest.mark.promise("feed-errors", '`on_error="skip"` leaves bad samples out, counts and lists them')
@pytest.mark.parametrize(("batch_size", "place"), list(itertools.product([1, 2, 8, 40], INLINE)) if SOAK else ROWS)
def test_samples_that_raise_are_left_out_and_the_others_are_what_they_were(
    batch_size: int, place: str, at: Make
) -> None:
    bad = [3, 17, 18, 95]
    with at("inline", trouble_data.pure(), batch_size=batch_size) as loader:
        expected = rows_by_key(list(loader))
    with at(place, trouble_data.troubled("raise", bad, delay=0.0), batch_size=batch_size, on_error="skip") as loader:
        batches = list(loader)
        got = rows_by_key(batches)
        assert list(got) == [key for key in range(96) if key not in bad]
        assert all(got[key] == expected[key] for key in got)
        assert all(len(batch["key"]) for batch in batches)
        assert loader.stats()["skipped"] == len(bad)
        assert loader.skipped == [Skipped(0, key // batch_size, key, f"ValueError: sample {key} is bad") for key in bad]


@pytest.mark.parametrize("place", ["local", "own"])
@pytest.mark.usefixtures("without_torch")
def test_a_sample_that_raises_in_a_batch_that_is_made_in_parts_is_the_only_one_left_out(place: str, at: Make) -> None:
    dataset = trouble_data.troubled("raise", [60], n=128, delay=0.02)
    with at(place, dataset, batch_size=32, on_error="skip", prefetch_factor=1) as loader:
        for epoch in range(2):  # the second one in parts: by then it is known how long a row takes
            assert list(rows_by_key(list(loader))) == [key for key in range(128) if key != 60]
            assert [(each.epoch, each.key) for each in loader.skipped] == [(each, 60) for each in range(epoch + 1)]


@pytest.mark.parametrize("place", INLINE if SOAK else ["inline", "unix"])
def test_samples_without_batches_are_left_out(place: str, at: Make) -> None:
    dataset = trouble_data.troubled("raise", [3, 17])
    with at(place, dataset, batch_size=None, on_error="skip") as loader:
        assert [sample["key"] for sample in loader] == [key for key in range(96) if key not in (3, 17)]
        assert sorted(each.step for each in loader.skipped) == [3, 17]


@pytest.mark.parametrize("place", INLINE if SOAK else ["inline", "two tcp"])
def test_a_batch_without_a_good_row_is_left_out(place: str, at: Make) -> None:
    with at(place, trouble_data.troubled("raise", list(range(16, 24)), n=50), on_error="skip") as loader:
        keys = [batch["key"].tolist() for batch in loader]
        assert keys == [list(range(at, min(50, at + 8))) for at in range(0, 50, 8) if at != 16]
        assert {each.key for each in loader.skipped} == set(range(16, 24))


@pytest.mark.parametrize("place", INLINE if SOAK else ["inline", "local"])
def test_nothing_but_bad_samples_is_an_empty_pass(place: str, at: Make) -> None:
    with at(place, trouble_data.troubled("raise", list(range(20)), n=20), on_error="skip", batch_size=3) as loader:
        assert list(loader) == []
        assert loader.stats()["skipped"] == 20


@pytest.mark.parametrize("place", INLINE if SOAK else ["inline", "unix"])
def test_a_batch_that_collate_cannot_make_is_skipped_whole(place: str, at: Make) -> None:
    collate = trouble_data.raise_over_thirteen
    with at(place, trouble_data.pure(), collate_fn=collate, on_error="skip") as loader:
        keys = [batch["key"].tolist() for batch in loader]
        assert keys == [list(range(at, at + 8)) for at in range(0, 96, 8) if at != 8]
        assert [each.key for each in loader.skipped] == list(range(8, 16))
        assert {each.reason for each in loader.skipped} == {"ZeroDivisionError: no batch with 13"}


@pytest.mark.parametrize(
    ("batch_size", "place"), list(itertools.product([1, 8], PLACES)) if SOAK else [(1, "local"), (8, "two tcp")]
)
def test_a_sample_that_kills_two_workers_is_left_out(batch_size: int, place: str, at: Make) -> None:
    with at("inline", trouble_data.pure()) as loader:
        expected = rows_by_key(list(loader))
    with at(
        place, trouble_data.troubled("kill", [45, 46, 90], delay=0.0), batch_size=batch_size, on_error="skip"
    ) as loader:
        got = rows_by_key(list(loader))
        assert list(got) == [key for key in range(96) if key not in (45, 46, 90)]
        assert all(got[key] == expected[key] for key in got)
        assert sorted(each.key for each in loader.skipped) == [45, 46, 90]
        assert all("killed by SIGKILL" in each.reason for each in loader.skipped)


@pytest.mark.parametrize(
    ("batch_size", "bad", "fatal", "place"),
    [
        (32, [35, 50, 60], [45, 46, 70], "local"),  # it raises before it ends a worker, and behind that
        (16, [20, 22, 24, 25, 26, 27], [21, 23], "unix"),  # more that raise than may end workers
        (150, [160, 162, 250], [161, 163], "local"),  # pieces of some rows each
    ],
)
def test_rows_that_raise_beside_rows_that_end_workers_are_left_out_and_nothing_else(
    batch_size: int, bad: list[int], fatal: list[int], place: str, at: Make
) -> None:
    rows = max(96, 2 * batch_size)
    out = sorted([*bad, *fatal])
    with at("inline", trouble_data.pure(rows)) as loader:
        expected = rows_by_key(list(loader))
    with at(place, trouble_data.mixed(bad, fatal, rows), batch_size=batch_size, on_error="skip") as loader:
        got = rows_by_key(list(loader))
        assert list(got) == [key for key in range(rows) if key not in out]
        assert all(got[key] == expected[key] for key in got)
        assert [each.key for each in loader.skipped] == out
        assert [f"ValueError: sample {each.key} is bad" == each.reason for each in loader.skipped] == [
            key in bad for key in out
        ]
        assert all("killed by SIGKILL" in each.reason for each in loader.skipped if each.key in fatal)


@pytest.mark.promise("feed-errors", '`on_error="skip"` leaves bad samples out, counts and lists them')
@pytest.mark.parametrize("place", ["inline", "local"])
def test_two_epochs_count_and_list_what_each_left_out(place: str, at: Make) -> None:
    with at(place, trouble_data.troubled("raise", [3]), shuffle=True, on_error="skip") as loader:
        for _ in range(2):
            assert sorted(rows_by_key(list(loader))) == [key for key in range(96) if key != 3]
        assert [(each.epoch, each.key) for each in loader.skipped] == [(0, 3), (1, 3)]


@pytest.mark.parametrize("place", INLINE if SOAK else ["inline", "two tcp"])
def test_without_skip_a_bad_sample_is_raised_and_listed_nowhere(place: str, at: Make) -> None:
    with at(place, trouble_data.troubled("raise", [3])) as loader:
        with pytest.raises(ValueError, match="sample 3 is bad"):
            next(iter(loader))
        assert loader.skipped == []


# Hedging


@pytest.mark.parametrize("hedge", [False, True])  # the executor that sleeps for ever does so to the end of the module
def test_a_late_batch_is_asked_for_twice_unless_told_otherwise(
    hedge: bool, tmp_path: Path, singles: tuple[Server, Server]
) -> None:
    one, other = singles
    (tmp_path / "once").mkdir()
    dataset = trouble_data.troubled("sleep", [61], str(tmp_path / "once"))
    where: dict[str, Any] = {"workers": f"{one.tcp},{other.tcp}", "secret_file": str(one.secret)}
    where |= {"hedge": hedge, "slice_timeout": 600 if hedge else 2.0, "collate_fn": stack_arrays}
    with DataLoader(dataset, 8, seed=5, **where) as loader:
        assert [flat(batch) for batch in loader] == plain(collate_fn=stack_arrays)
        stats = loader.stats()
    if hedge:
        assert stats["hedges"] >= 1
        assert stats["hedges_won"] >= 1
        assert stats["slices_timed_out"] == 0, "the one that sleeps for ever was not waited for"
    else:
        assert (stats["hedges"], stats["hedges_won"], stats["slices_timed_out"]) == (0, 0, 1)


@pytest.mark.parametrize("factor", [None, 16])
def test_local_workers_are_hedged_too(factor: int | None, tmp_path: Path, at: Make) -> None:
    """With a factor all batches lie in their queues, and one of them will never give its own back."""
    dataset = trouble_data.troubled("sleep", [61], str(tmp_path))
    with at("local", dataset, slice_timeout=600, prefetch_factor=factor, stall_timeout=60) as loader:
        assert [flat(batch) for batch in loader] == plain()  # either of the two that were asked sleeps for an hour
        if factor is None:  # else it may have been taken back before it was late, which is no hedge
            assert loader.stats()["hedges"] >= 1


def test_a_signal_to_an_executor_that_has_ended_and_of_which_the_server_does_not_know_is_no_error() -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    ExecutorProcess(cast(FramedConnection, None), 0, pid=ended.pid).signal(signal.SIGKILL)


# The end of patience


def test_local_workers_that_keep_ending_are_not_replaced_for_ever(at: Make) -> None:
    with (
        at("local", trouble_data.troubled("kill", list(range(96))), batch_size=1, on_error="skip") as loader,
        pytest.raises(WorkersLost, match=r"21 worker processes ended within 60 s; the last one killed by SIGKILL"),
    ):
        list(loader)


@pytest.mark.promise(
    "feed-errors", "a job whose samples keep ending a feed server's workers is refused; the others go on"
)
@pytest.mark.parametrize("at_once", ["tcp", *(["unix"] if SOAK else [])])
@pytest.mark.usefixtures("without_torch")
def test_a_job_whose_samples_keep_ending_workers_is_refused_and_the_others_go_on(
    at_once: str, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_server("shared")
    where: dict[str, Any] = {"workers": server.tcp if at_once == "tcp" else server.unix_address}
    where |= {"secret_file": str(server.secret), "collate_fn": stack_arrays}
    monkeypatch.setenv("HEADRACE_FEED_JOB", "sound")
    with DataLoader(trouble_data.pure(), 8, seed=5, prefetch_factor=1, **where) as other:
        batches = iter(other)
        got = [flat(next(batches))]
        monkeypatch.setenv("HEADRACE_FEED_JOB", "unsound")
        dataset = trouble_data.troubled("kill", list(range(96)))
        refused = (
            r"no data worker is left: .*the feed server refuses this client: 21 executors ended within 60 s; "
            r"the last one killed by SIGKILL, over samples of trouble_data:troubled"
        )
        with (
            DataLoader(dataset, 1, on_error="skip", seed=5, **where) as loader,
            pytest.raises(WorkersLost, match=refused) as error,
        ):
            list(loader)
        assert "same secret" not in str(error.value)
        got += [flat(batch) for batch in batches]
    assert got == plain(collate_fn=stack_arrays)
    assert server.process.poll() is None
    assert [event["job"] for event in server.event("job_refused")] == ["unsound"]
    assert all(event["replaced"] for event in server.event("executor_lost"))


@pytest.mark.usefixtures("without_torch")
def test_an_executor_that_ends_while_it_opens_a_pipeline_is_blamed_on_no_sample(
    tmp_path: Path, own_server: Callable[..., Server]
) -> None:
    server = own_server("picky")
    dataset = trouble_data.picky(str(tmp_path / "opened"))
    with (
        DataLoader(
            dataset, 8, seed=5, workers=server.tcp, secret_file=str(server.secret), collate_fn=stack_arrays
        ) as loader,
        pytest.raises(
            WorkersLost, match=r"4 executors ended before they had begun; .*code 7, while they made trouble_data:picky"
        ),
    ):
        list(itertools.chain.from_iterable(itertools.repeat(loader, 100)))
    assert server.process.poll() is None


UNGUARDED = """
from headrace import feed

try:
    for batch in feed.DataLoader(
        list(range(8)), 4, seed=1, num_workers=2, multiprocessing_context="spawn", collate_fn=feed.stack_arrays
    ):
        print(batch)
except feed.WorkersLost as error:
    print("ENDED:", error)
"""


@pytest.mark.usefixtures("without_torch")
def test_a_script_without_its_main_guard_is_told_so_and_not_run_over_and_over(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    told = done.stdout.rpartition("ENDED: ")[2]
    assert told.startswith("4 worker processes ended before they had begun; the last one exited with code 1")
    assert "if __name__ == '__main__':" in told
    assert done.stderr.count("bootstrapping phase") <= 2 * 4, "each says it once or twice"
