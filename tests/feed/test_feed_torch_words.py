"""What torch's DataLoader says and how it ends: its messages, warnings and errors, where code looks for their words."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader

from headrace.errors import WorkerError, WorkersLost
from headrace.feed import DataLoader

TEN = list(range(10))
REFUSED: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "nonsense", "num_workers": 1},
    {"multiprocessing_context": 5, "num_workers": 1},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_what_torch_refuses_is_refused_in_its_words(arguments: dict[str, Any]) -> None:
    told = []
    for kind in (DataLoader, TorchLoader):
        with pytest.raises((TypeError, ValueError)) as raised:
            kind(TEN, **arguments)
        told.append(raised)
    assert told[0].type is told[1].type
    first = re.split(r"[;,.]", str(told[1].value))[0]
    assert str(told[0].value).startswith(first)


def test_more_workers_than_cores_are_told_in_torch_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for workers, expected in ((2, 0), (3, 1)):
        told = []
        for kind in (DataLoader, TorchLoader):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kind(TEN, num_workers=workers)
            told.append([(each.category, str(each.message), each.filename) for each in caught])
        assert [each[:2] for each in told[0]] == [each[:2] for each in told[1]]
        assert [each[2] for each in told[0]] == [__file__] * expected


class Ends:
    """A dataset that ends whoever asks for a sample."""

    def __init__(self, end: Callable[[], Any]) -> None:
        self.end = end

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.end()


def segfault() -> Any:
    faulthandler.disable()  # of pytest: its report would be taken for a fault of the tests
    return ctypes.string_at(0)


def leave() -> Any:
    os._exit(3)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (segfault, rf"DataLoader worker \(pid \d+\) is killed by signal: {signal.strsignal(signal.SIGSEGV)}"),
        (leave, r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"),
    ],
)
def test_a_worker_that_ends_over_a_sample_is_a_runtime_error_in_torch_s_words(
    end: Callable[[], Any], told: str
) -> None:
    with (
        DataLoader(Ends(end), batch_size=1, num_workers=1) as loader,
        pytest.raises(RuntimeError, match=told) as raised,
    ):
        next(iter(loader))
    assert raised.type is WorkerError
    assert issubclass(WorkersLost, RuntimeError)


@pytest.mark.parametrize("call", [{}, {"batch_size": None}, {"batch_sampler": [[1]]}, {"batch_size": 2}], ids=str)
def test_what_other_libraries_look_up_is_there(call: dict[str, Any]) -> None:
    ours, theirs = DataLoader(TEN, **call), TorchLoader(TEN, **call)  # type: ignore[var-annotated, arg-type]
    assert ours._auto_collation is theirs._auto_collation
    assert type(ours._index_sampler) is type(theirs._index_sampler)
    assert list(ours._index_sampler) == list(theirs._index_sampler)
