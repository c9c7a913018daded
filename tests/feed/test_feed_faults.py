"""The user's mistakes and the workers' ends: each is told in words, and nothing hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feed_data
import pytest
import torch
import trouble_data
from feed_data import flat
from feed_servers import Pair, Server, wait_until, write_secret
from torch.utils.data import default_collate

from headrace.errors import FeedError, PipelineError, WorkerError, WorkersLost
from headrace.feed import DataLoader, stack_arrays
from patience import allowed


@pytest.mark.promise(
    "feed-errors", "an exception of the dataset is raised as its own type, with the worker's traceback"
)
@pytest.mark.parametrize("place", ["local", "unix", "two tcp"])
def test_an_error_of_the_dataset_is_raised_as_its_own_type_with_the_remote_traceback(
    place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, feed_data.raising()) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == list(range(8))
        with pytest.raises(KeyError, match="thirteen") as error:
            next(batches)
        assert 'raise KeyError("thirteen")' in str(error.value)
        assert "feed_data.py" in str(error.value)
        assert next(batches)[1].tolist() == list(range(16, 24)), "the pass goes on, as torch's does"
        assert len(list(batches)) == 9


def test_an_error_type_that_cannot_be_made_again_is_told_by_name(loader_at: Callable[..., DataLoader]) -> None:
    with loader_at("unix", feed_data.odd()) as loader, pytest.raises(WorkerError, match="OddError: 1 is odd, 2 is ev"):
        list(loader)


def test_an_error_in_the_factory_is_raised_and_the_next_attempt_is_a_fresh_one(
    loader_at: Callable[..., DataLoader],
) -> None:
    loader = loader_at("two tcp", feed_data.broken_factory())
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no such data") as error:
            next(iter(loader))
        assert "cannot open the pipeline" in str(error.value)
        assert "broken_factory" in str(error.value)
        with pytest.raises(FileNotFoundError):
            len(loader)
    loader.close()


def test_a_factory_that_kills_its_executors_is_named(loader_at: Callable[..., DataLoader]) -> None:
    with (
        loader_at("unix", feed_data.killing_factory()) as loader,
        pytest.raises(WorkerError, match=r"making feed_data:killing_factory ended 2 executors.*SIGKILL"),
    ):
        next(iter(loader))


def test_a_factory_that_makes_no_dataset_is_told_so(loader_at: Callable[..., DataLoader]) -> None:
    with (
        loader_at("unix", feed_data.not_a_dataset()) as loader,
        pytest.raises(PipelineError, match="made a object, which has no __getitem__"),
    ):
        next(iter(loader))


@pytest.mark.promise(
    "feed-errors", "an exception of the dataset is raised as its own type, with the worker's traceback"
)
@pytest.mark.parametrize("place", ["local", "unix"])
@pytest.mark.parametrize(
    ("collate", "error", "message"),
    [
        (feed_data.raise_in_collate, ZeroDivisionError, "(?s)collate.*raise_in_collate"),
        (feed_data.foreign_collate, PipelineError, r"batch\['values'\]\[0\]: a builtins.object cannot travel"),
    ],
)
def test_an_error_of_collate_fn_comes_with_its_traceback_and_a_value_that_cannot_travel_with_its_place(
    place: str, collate: Any, error: type[Exception], message: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, feed_data.noise(), collate_fn=collate) as loader, pytest.raises(error, match=message):
        next(iter(loader))


@pytest.mark.parametrize("place", ["local", "unix"])
def test_uneven_samples_are_refused_in_torch_s_own_words(place: str, loader_at: Callable[..., DataLoader]) -> None:
    with pytest.raises(RuntimeError) as expected:
        list(torch.utils.data.DataLoader(feed_data.Uneven(), batch_size=8))
    with loader_at(place, feed_data.uneven()) as loader:
        batches = iter(loader)
        assert next(batches).shape == (8, 3)
        with pytest.raises(RuntimeError) as got:
            next(batches)
        assert str(expected.value).partition("\n")[0] in str(got.value)


@pytest.mark.promise(
    "feed-errors", "only a sample over which two workers died while they made it alone is given up, by name"
)
@pytest.mark.parametrize("place", ["local", "two tcp"])
def test_a_sample_that_kills_workers_when_it_is_made_alone_is_named(
    place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, feed_data.killer(), prefetch_factor=1) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(WorkerError, match=r"(two|3) workers ended .* indices \[13\].*killed by SIGKILL") as error:
            next(batches)
        assert "too much memory" in error.value.hint
        assert len(list(batches)) == 10


@pytest.mark.parametrize("place", ["local", "unix"])
def test_a_sample_that_kills_one_worker_is_made_by_another(
    place: str, loader_at: Callable[..., DataLoader], tmp_path: Path
) -> None:
    with DataLoader(feed_data.noise(), batch_size=8, seed=3) as loader:
        expected = [flat(batch) for batch in loader]
    with loader_at(place, feed_data.killer(str(tmp_path / "once")), seed=3) as loader:
        assert [flat(batch) for batch in loader] == expected
        assert loader.stats()["retries"] >= 1


@pytest.mark.parametrize("place", ["local", "unix"])
@pytest.mark.usefixtures("without_torch")
def test_a_sample_that_hangs_is_named_when_the_time_is_up(place: str, own_server: Callable[..., Server]) -> None:
    where: dict[str, Any] = {"num_workers": 1}
    if place != "local":
        server = own_server(executors=1)  # its executor hangs for good
        where = {"workers": server.unix_address, "secret_file": str(server.secret)}
    hanging = trouble_data.troubled("sleep", [13])
    loader = DataLoader(hanging, batch_size=8, stall_timeout=1.5, collate_fn=stack_arrays, **where)
    batches = iter(loader)
    next(batches)
    with pytest.raises(WorkersLost, match=r"batch 1 of epoch 0 did not come within 2 s: .*indices \[8, 9"):
        next(batches)
    with pytest.raises(FeedError, match="an error ended it"):
        next(batches)
    loader.close()


@pytest.mark.promise("feed", "nothing hangs: a wait has a deadline and names who it waited for")
def test_timeout_is_torch_s_and_the_pass_can_go_on(pair: Pair) -> None:
    with DataLoader(feed_data.Noise(delay=0.02), batch_size=8, num_workers=1, timeout=0.05) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.05 seconds .*worker"):
            next(batches)
        got = 0
        while got < 12:
            try:
                next(batches)
                got += 1
            except RuntimeError:
                continue
        assert next(batches, None) is None


def test_executors_that_end_faster_than_they_may_be_replaced_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.feed.worker.executor_rules.RESTARTS", 2)

    def end(_: int) -> None:
        os._exit(9)

    with (
        DataLoader(feed_data.Noise(), batch_size=8, num_workers=1, worker_init_fn=end) as loader,
        pytest.raises(WorkersLost, match="3 worker processes ended within 60 s; the last one exited with code 9"),
    ):
        next(iter(loader))


@pytest.mark.usefixtures("without_torch")
def test_a_server_whose_executors_keep_dying_ends_with_an_error(own_server: Callable[..., Server]) -> None:
    server = own_server(executors=1)
    for count in range(21):
        wait_until(lambda count=count: len(server.event("executor_lost")) >= count and server.executors(), "replaced")
        for executor in server.executors():
            executor.kill()
    assert server.process.wait(5) == 1
    assert "21 executors ended within 60 s; the last one killed by SIGKILL" in server.log()


def test_ranks_with_different_plans_are_refused_and_the_first_goes_on(pair: Pair) -> None:
    def rank(number: int, seed: int) -> DataLoader:
        return DataLoader(
            feed_data.noise(48), global_batch_size=16, shuffle=True, seed=seed, rank=number, world_size=2,
            workers=pair.both, secret_file=pair.secret, name="plans",
        )  # fmt: skip

    first, other, same = rank(0, 3), rank(1, 4), rank(1, 3)
    batches = iter(first)
    next(batches)
    with pytest.raises(PipelineError, match=r"have different plans for the loader 'plans'"):
        next(iter(other))
    assert len(list(batches)) == 2
    assert len(list(same)) == 3
    for loader in (first, other, same):
        loader.close()


def test_the_same_rank_may_make_another_loader_of_the_name_while_the_first_is_open(pair: Pair) -> None:
    loaders = [
        DataLoader(
            feed_data.noise(48), global_batch_size=16, seed=seed, rank=0, world_size=2, workers=pair.a.unix_address,
            secret_file=pair.secret, name="again",
        )
        for seed in (1, 2)
    ]  # fmt: skip
    assert [len(list(loader)) for loader in loaders] == [3, 3]
    for loader in loaders:
        loader.close()


def test_a_wrong_secret_is_told_within_seconds(pair: Pair, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    write_secret(wrong, "00" * 32)
    for address in (pair.a.tcp, pair.a.unix_address):
        begun = time.monotonic()
        with (
            DataLoader(feed_data.noise(), batch_size=8, workers=address, secret_file=str(wrong)) as loader,
            pytest.raises(WorkersLost, match="refuses this client: wrong secret"),
        ):
            next(iter(loader))
        assert time.monotonic() - begun < allowed(5)


def test_a_dataset_object_cannot_be_given_to_other_hosts_and_the_hint_says_what_to_do(pair: Pair) -> None:
    with pytest.raises(PipelineError, match="cannot be given a Noise object") as error:
        DataLoader(feed_data.Noise(), workers=pair.a.tcp, secret_file=pair.secret)
    assert "@headrace.feed.pipeline" in error.value.hint


def test_a_collate_function_without_a_name_cannot_be_given_to_other_hosts(pair: Pair) -> None:
    with pytest.raises(PipelineError, match=r"collate_fn=.* has no importable name"):
        DataLoader(feed_data.noise(), collate_fn=lambda samples: samples, workers=pair.a.tcp, secret_file=pair.secret)


def test_a_collate_function_outside_the_job_s_code_is_not_called(pair: Pair) -> None:
    with (
        DataLoader(
            feed_data.noise(), batch_size=8, collate_fn=os.system, workers=pair.a.unix_address, secret_file=pair.secret
        ) as loader,
        pytest.raises(PipelineError, match="'posix:system' is not a function of the job's code"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("place", ["local", "unix"])
def test_worker_init_fn_runs_once_in_every_worker_and_get_worker_info_works(
    place: str, loader_at: Callable[..., DataLoader]
) -> None:
    with loader_at(place, feed_data.info(), batch_size=None, worker_init_fn=feed_data.note_worker, verify=0) as loader:
        seen = set(loader)
    assert seen
    assert seen <= {"0 0 2", "1 1 2"}


def test_a_server_on_a_port_in_use_says_so(pair: Pair, tmp_path: Path) -> None:
    second = Server(tmp_path, "second", port=pair.a.port)
    assert second.process.wait(10) == 1
    assert f"error: cannot listen on 127.0.0.1:{pair.a.port}: Address already in use" in second.log()
    second.stop()


@pytest.mark.usefixtures("without_torch")
def test_sigterm_ends_a_server_with_code_0_and_all_its_processes(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.process.terminate()
    assert server.process.wait(5) == 0


def shared_and_informed(samples: list[torch.Tensor]) -> dict[str, bool]:
    """Says whether torch's own collate used shared memory, in a worker that knows that it is one."""
    return {
        "shared": default_collate(samples).is_shared(),
        "numpy": default_collate([sample.numpy() for sample in samples]).is_shared(),
        "informed": torch.utils.data.get_worker_info() is not None,
    }


def test_workers_do_not_stack_into_torch_s_shared_memory_which_a_kill_would_leave_behind() -> None:
    data = [torch.ones(8) for _ in range(8)]
    with DataLoader(data, batch_size=4, num_workers=1, collate_fn=shared_and_informed) as loader:
        assert list(loader) == [{"shared": False, "numpy": False, "informed": True}] * 2


class RaisesLate:
    """Every second sample raises, after the first has been given a fresh slab; says how many slabs are open."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 2:
            links = (str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
            raise ValueError(f"open slabs: {sum('memfd:headrace' in link for link in links)}")
        return torch.ones(8)


def test_a_slice_that_raises_closes_the_slab_that_was_made_for_it() -> None:
    open_slabs = []
    with DataLoader(RaisesLate(), batch_size=2, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(len(loader)):
            with pytest.raises(ValueError, match="open slabs") as raised:
                next(batches)
            open_slabs.append(int(str(raised.value).split("open slabs: ")[1].split()[0]))
    assert max(open_slabs) == min(open_slabs)
