"""Cases that others' suites hold and no other file here does (see OUTSIDE.md): torch's own loader is the oracle."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from feed_data import flat
from lane_data import share
from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, IterableDataset, get_worker_info
from torch.utils.data import DataLoader as TorchLoader

from headrace.feed import DataLoader

TEN = list(range(10))


class Rows:
    """Rows of a list, or of a function of the index."""

    def __init__(self, values: Any, count: int = 0) -> None:
        self.values, self.count = values, count

    def __len__(self) -> int:
        return self.count or len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values(index) if callable(self.values) else self.values[index]

    def __add__(self, other: Any) -> Any:
        return ConcatDataset([self, other])  # type: ignore[list-item]


class Range(IterableDataset[int]):
    """Numbers that divide themselves among workers; `told` is the length that it claims."""

    def __init__(self, start: int, stop: int, told: int | None = None) -> None:
        self.start, self.stop, self.told = start, stop, told

    def __iter__(self) -> Iterator[int]:
        return iter(self.start + row for row in share(self.stop - self.start))

    def __len__(self) -> int:
        if self.told is None:
            raise TypeError("no length")
        return self.told


class OwnList(list[Any]):
    pass


class OwnDict(dict[str, Any]):
    pass


class Batches:
    """A batch_sampler of batches of several types and lengths."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1], (2,), range(3, 6), torch.tensor([7, 6])])


def mapped(index: int) -> Any:
    """A row in a file that is mapped into memory, and closed again."""
    array = np.memmap(f"/proc/{os.getpid()}/exe", dtype=np.uint8, mode="r", shape=(4,))
    return array + np.uint8(index)


def of_a_loader(index: int) -> Any:
    return next(iter(TorchLoader(TEN[index:], batch_size=3)))  # type: ignore[arg-type]


def conv(index: int) -> Any:
    """What starts threads of torch's in the worker, also behind such a step in the trainer."""
    return torch.nn.functional.conv2d(torch.full((1, 3, 24, 24), float(index)), torch.ones(1, 3, 5, 5))


def identity(batch: Any) -> Any:
    return batch


def nothing(batch: list[Any]) -> None:
    del batch


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "a chain of iterables": lambda: {"dataset": ChainDataset([Range(0, 10), Range(20, 25)]), "batch_size": 4},
    "the sum of iterables": lambda: {"dataset": Range(0, 5) + Range(5, 9), "batch_size": 2},
    "the sum of datasets": lambda: {"dataset": Rows([1, 2]) + Rows([3]), "batch_size": 2},
    "an iterable, dropping": lambda: {"dataset": Range(0, 10), "batch_size": 4, "drop_last": True},
    "an iterable of nothing": lambda: {"dataset": Range(0, 0), "batch_size": 4},
    "an iterable of nothing, not batched": lambda: {"dataset": Range(0, 0), "batch_size": None},
    "an iterable, shuffle=False": lambda: {"dataset": Range(0, 10), "batch_size": 4, "shuffle": False},
    "an iterable, shuffled": lambda: {"dataset": Range(0, 10), "shuffle": True},
    "an iterable, sampled": lambda: {"dataset": Range(0, 10), "sampler": [1]},
    "an iterable, batch_sampler": lambda: {"dataset": Range(0, 10), "batch_sampler": [[1]]},
    "batches of None": lambda: {"dataset": TEN, "batch_size": 4, "collate_fn": nothing},
    "rows of None": lambda: {"dataset": Rows([None, 1, None]), "batch_size": None},
    "batches of all types": lambda: {"dataset": TEN, "batch_sampler": Batches()},
    "a sampler of arrays": lambda: {"dataset": torch.arange(10), "sampler": np.array([3, 1, 2]), "batch_size": 2},
    "a sampler of bulks": lambda: {
        "dataset": torch.arange(10), "sampler": BatchSampler(range(10), 4, False), "batch_size": None
    },
    "a range": lambda: {"dataset": range(10), "batch_size": 4, "shuffle": True},
    "a tensor": lambda: {"dataset": torch.arange(12).reshape(6, 2), "batch_size": 4},
    "an array": lambda: {"dataset": np.arange(12).reshape(6, 2), "batch_size": 4},
    "a text": lambda: {"dataset": "abcdef", "batch_size": 4},
    "mapped files": lambda: {"dataset": Rows(mapped, 6), "batch_size": 4},
    "mapped files, not batched": lambda: {"dataset": Rows(mapped, 3), "batch_size": None},
    "a loader in a dataset": lambda: {"dataset": Rows(of_a_loader, 5), "batch_size": 2},
    "convolutions": lambda: {"dataset": Rows(conv, 4), "batch_size": 2},
    "tensors of no values": lambda: {"dataset": Rows([torch.empty(0)] * 4), "batch_size": 3},
    "expanded tensors": lambda: {"dataset": Rows([torch.ones(1).expand(3)] * 2), "batch_size": 2},
    "arrays that are not to be written": lambda: {
        "dataset": Rows([np.broadcast_to(np.arange(3), (2, 3))] * 2), "batch_size": 2
    },
    "arrays backwards": lambda: {"dataset": Rows([np.arange(3)[::-1]] * 2), "batch_size": 2},
    "arrays of objects": lambda: {"dataset": Rows([np.array([object()])] * 2), "batch_size": 2},
    "not a number": lambda: {"dataset": Rows([float("nan"), -0.0, float("inf")]), "batch_size": 3},
    "lists and dicts of one's own": lambda: {"dataset": Rows([OwnList([1, OwnDict(x=1.5)])] * 3), "batch_size": 2},
    "lists and dicts of one's own, not batched": lambda: {
        "dataset": Rows([OwnDict(x=OwnList([1]))] * 3), "batch_size": None
    },
    "half": lambda: {"dataset": Rows([np.float16(1), np.float16(2)]), "batch_size": 2},
    "an iterator as sampler": lambda: {"dataset": TEN, "sampler": iter([3, 1, 2]), "batch_size": 2},
}  # fmt: skip


def outcome(kind: type[Any], call: dict[str, Any]) -> list[Any]:
    """All that a loader gives, bit by bit; an error counts by its type."""
    torch.manual_seed(11)
    try:
        return [flat(batch) for batch in kind(**call)]
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return [type(error)]


@pytest.mark.filterwarnings("ignore:the dataset did not ask get_worker_info")  # one that gives nothing
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # torch's
@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_gives_what_torch_gives(name: str) -> None:
    expected = outcome(TorchLoader, CALLS[name]())
    for workers in (0, 1):
        assert outcome(DataLoader, CALLS[name]() | {"num_workers": workers}) == expected, workers


class TwoValues(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


class ByName(Exception):
    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


ERRORS: list[Exception] = [
    ValueError("one"), KeyError("two\nlines"), KeyError(("a", 1)), FileNotFoundError(2, "No such file", "name"),
    NotImplementedError(), TwoValues(1, 2), ByName(message="named"), UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
    RuntimeError("ünïcode \udc80"), AssertionError(), Speechless(),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_any_kind_ends_its_batch_alone_and_is_told(error: Exception) -> None:
    def row(index: int) -> int:
        if index == 3:
            raise error
        return index

    kinds = []
    for workers in (0, 1):
        with DataLoader(Rows(row, 8), batch_size=2, num_workers=workers) as loader:
            batches = iter(loader)
            assert next(batches).tolist() == [0, 1]
            with pytest.raises(Exception) as raised:
                next(batches)
            kinds.append(raised.type)
            if workers:
                assert type(error).__name__ in str(raised.value.args)
            if isinstance(error, (ValueError, OSError)):
                assert str(error) in str(raised.value)
            assert [batch.tolist() for batch in batches] == [[4, 5], [6, 7]]
        with DataLoader(Rows(row, 8), batch_size=2, num_workers=workers, on_error="skip") as loader:
            assert [batch.tolist() for batch in loader] == [[0, 1], [2], [4, 5], [6, 7]]
            [left_out] = loader.skipped
            assert left_out.key == 3
            assert left_out.reason.startswith(f"{type(error).__name__}: ")
    assert kinds[0] is type(error)
    assert kinds[1] is type(error) or issubclass(kinds[1], RuntimeError)


def test_the_length_is_that_of_a_dataset_that_has_grown_and_of_one_that_claims_it() -> None:
    for kind in (DataLoader, TorchLoader):
        rows = [torch.ones(4)] * 4
        loaders = [kind(rows, shuffle=shuffle) for shuffle in (False, True)]
        rows.append(torch.ones(4))
        assert [len(loader) for loader in loaders] == [5, 5]
        assert [len(list(loader)) for loader in loaders] == [5, 5]
        for told, batch_size, drop_last, expected in [(10, 4, False, 3), (10, 4, True, 2), (10, None, False, 10)]:
            loader = kind(Range(0, 10, told), batch_size=batch_size, drop_last=drop_last)
            assert len(loader) == expected
            assert len(list(loader)) == expected
        with pytest.raises(TypeError):
            len(kind(Range(0, 10)))


def about_the_worker(index: int) -> Any:
    info: Any = get_worker_info()
    refused = []
    for name in ("id", "seed", "new"):
        try:
            setattr(info, name, 3)
        except Exception:  # noqa: BLE001 - torch's own RuntimeError, or that of a frozen dataclass
            refused.append(name)
    shown = [name for name in ("id", "num_workers", "seed", "dataset") if f"{name}=" in repr(info)]
    return [refused, shown, info.dataset.count, info.num_workers, index]


def test_what_a_worker_knows_of_itself_reads_as_torch_s_and_cannot_be_changed() -> None:
    told = [list(kind(Rows(about_the_worker, 4), batch_size=None, num_workers=1)) for kind in (DataLoader, TorchLoader)]
    assert told[0] == told[1]


def stay_on_one_core(number: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})


def cores(index: int) -> Any:
    return sorted(os.sched_getaffinity(0))


def test_what_worker_init_fn_does_to_its_process_stays_there() -> None:
    before = os.sched_getaffinity(0)
    with DataLoader(Rows(cores, 4), batch_size=None, num_workers=1, worker_init_fn=stay_on_one_core) as loader:
        assert list(loader) == [sorted(before)[:1]] * 4
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("seeded", [{"seed": 3}, {}])
def test_states_may_be_set_at_any_moment_and_as_often_as_one_likes(seeded: dict[str, int]) -> None:
    def loader() -> DataLoader:
        torch.manual_seed(5)
        return DataLoader(TEN, batch_size=3, shuffle=True, **seeded)

    first = loader()
    batches = iter(first)
    states, rest = [first.state_dict()], []
    for batch in batches:
        rest.append(batch.tolist())
        states.append(first.state_dict())
    other = loader()
    for step in (1, 3, 0, 4, 2, 2):
        other.load_state_dict(states[step])
        assert other.state_dict() == states[step]
        assert [batch.tolist() for batch in itertools.islice(other, 1 + step % 2)] == rest[step:][: 1 + step % 2]


def test_to_ask_for_a_state_and_to_set_one_starts_no_worker() -> None:
    children = psutil.Process().children(recursive=True)
    resumed = DataLoader(TEN, batch_size=3, num_workers=2)
    resumed.load_state_dict(DataLoader(TEN, batch_size=3, num_workers=2).state_dict())
    assert psutil.Process().children(recursive=True) == children
    assert [batch.tolist() for batch in resumed] == [TEN[:3], TEN[3:6], TEN[6:9], TEN[9:]]


def test_loaders_that_begin_at_the_same_time_in_several_threads_are_whole() -> None:
    taken: dict[int, list[int]] = {}
    begin = threading.Barrier(4)

    def load(number: int) -> None:
        with DataLoader(Rows(TEN), batch_size=3, num_workers=1) as loader:
            begin.wait()
            taken[number] = [row for batch in loader for row in batch.tolist()]

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert taken == dict.fromkeys(range(4), TEN)


SCRIPT = """
import os, sys, torch
from headrace.feed import DataLoader
class Noise(torch.utils.data.IterableDataset):
    def __iter__(self):
        return self
    def __next__(self):
        return torch.rand(3)
class Empty:
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        return torch.empty(0)
if __name__ == "__main__":
    for number, deed in enumerate(sys.argv[1:]):
        pid = os.fork()
        if not pid:
            os.dup2(os.open(f"{__file__}.{number}", os.O_CREAT | os.O_WRONLY), 2)
            break
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    else:
        sys.exit()
    exec(deed)
"""
ENDS = {  # a program that leaves its loaders as they are, and how it ends
    "the first batch of an endless one": ("next(iter(DataLoader(Noise(), num_workers=1)))", 0),
    "an iterator that is held": ("it = iter(DataLoader(Noise(), num_workers=1, persistent_workers=True)); next(it)", 0),
    "one that was never asked": ("it = iter(DataLoader(Noise(), num_workers=1))", 0),
    "one of a global and a cycle": ("it = [iter(DataLoader(Noise(), num_workers=1))]; it.append(it); next(it[0])", 0),
    "an exception in the middle": ("for x in DataLoader(Empty(), batch_size=40960, num_workers=1): raise KeyError", 1),
    "sys.exit in the middle": ("for x in DataLoader(Empty(), batch_size=40960, num_workers=1): sys.exit(7)", 7),
}


def test_programs_that_leave_their_loaders_end_at_once_with_their_codes_and_leave_no_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    end = time.monotonic() + 100
    command = [sys.executable, str(script), *(deed for deed, _ in ENDS.values())]
    program = subprocess.run(command, capture_output=True, text=True, timeout=100)
    codes = dict(zip(ENDS, map(int, program.stdout.split()), strict=True))
    errors = {name: Path(f"{script}.{number}").read_text() for number, name in enumerate(ENDS)}
    assert codes == {name: code for name, (_, code) in ENDS.items()}, errors
    assert not [name for name, error in errors.items() if "Exception ignored" in error]
    assert [name for name, error in errors.items() if "KeyError" in error] == ["an exception in the middle"]
    while [process for process in psutil.process_iter(["cmdline"]) if str(script) in (process.info["cmdline"] or [])]:
        assert time.monotonic() < end
        time.sleep(0.05)
