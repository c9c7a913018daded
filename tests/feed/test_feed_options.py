"""Every option is checked when it is given. Rows are made from the signatures, so that none is left out."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from headrace import feed
from headrace.cli.commands import feed as commands
from headrace.errors import HeadraceError
from headrace.feed import serve

VALUES: list[Any] = [
    None, True, False, np.True_, 0, 1, 2, -1, np.int64(1), np.int64(0), np.float32(0.5), 1.5, math.nan, math.inf,
    -math.inf, "", "auto", "full", "ful", "skip", "refuse", "fork", "all", "concat", "error", "uint16", "1", b"x", [],
    ["x"], {}, object(), len, torch.Generator(), np.random.default_rng(0), feed.Auto(), feed.Window(),
    feed.Buckets([1]), Path("x"), np.arange(3),
]  # fmt: skip
Accepts = Callable[[Any], bool]


def whole(value: Any, least: int = 1, most: int = 2**63) -> bool:
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return number and least <= value < most


def real(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return number and least <= value <= most


def flag(value: Any) -> bool:
    return isinstance(value, np.bool_) or (isinstance(value, int) and value in (0, 1))


def text(value: Any) -> bool:
    return isinstance(value, str)


def path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def iterable(value: Any) -> bool:
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def one_of(*words: Any) -> Accepts:
    return lambda value: isinstance(value, (str, type(None))) and value in words


def positive_seconds(value: Any) -> bool:
    return real(value, 0) and value != 0


def or_none(accepts: Accepts) -> Accepts:
    return lambda value: value is None or accepts(value)


LOADER: dict[str, Accepts] = {
    "dataset": lambda value: iterable(value) or callable(value),
    "batch_size": or_none(whole),
    "shuffle": or_none(lambda value: flag(value) or isinstance(value, feed.Window)),
    "sampler": or_none(iterable),
    "batch_sampler": or_none(iterable),
    "num_workers": lambda value: whole(value, 0) or isinstance(value, feed.Auto) or one_of("auto")(value),
    "collate_fn": or_none(callable),
    "timeout": lambda value: real(value, 0),
    "worker_init_fn": or_none(callable),
    "multiprocessing_context": or_none(lambda value: one_of("fork")(value) or isinstance(value, BaseContext)),
    "generator": or_none(lambda value: isinstance(value, torch.Generator)),
    "prefetch_factor": or_none(whole),
    "seed": or_none(lambda value: whole(value, -(2**63), 2**64)),
    "rank": or_none(lambda value: whole(value, 0)),
    "even_batches": lambda value: flag(value) or one_of("full")(value),
    "workers": one_of(None, "", "local"),
    "secret_file": or_none(path),
    "tls_ca": or_none(path),
    "stall_timeout": positive_seconds,
    "slice_timeout": positive_seconds,
    "on_error": one_of("raise", "skip"),
    "verify": lambda value: real(value, 0, 1),
    "numerics": one_of("warn", "refuse"),
    "device": one_of(None),
    "buckets": or_none(lambda value: isinstance(value, feed.Buckets)),
}
BY_TYPE: dict[str, Accepts] = {"bool": flag, "int": whole, "int | None": or_none(whole), "str": text}
WITH: dict[str, dict[str, Any]] = {
    "prefetch_factor": {"num_workers": 1},
    "persistent_workers": {"num_workers": 1},
    "multiprocessing_context": {"num_workers": 1},
    "rank": {"world_size": 3},
    "num_shards": {"dataset": lambda: iter([1])},
    "steps_per_epoch": {"dataset": lambda: iter([1])},
    "uneven": {"dataset": lambda: iter([1])},
}


def refusal(call: Callable[[], Any]) -> str:
    """Returns the error that a call is refused with; empty if it is not."""
    try:
        call()
    except (TypeError, ValueError, HeadraceError) as error:
        return str(error)
    return ""


def check(function: Callable[..., Any], rules: Mapping[str, Accepts], base: Mapping[str, Any], **options: Any) -> None:
    """Gives every option of a function every value: it must take those that its rule accepts, and refuse the others."""
    wrong = []
    for name, parameter in inspect.signature(function).parameters.items():
        accepts = rules.get(name) or BY_TYPE[str(parameter.annotation)]
        for value in VALUES:
            call = {**base, **options.get(name, {}), name: value}
            error = refusal(functools.partial(function, **call))
            if (name in error) is bool(accepts(value)) or (error and accepts(value)):
                wrong.append(f"{name}={value!r} is {f'refused: {error}' if error else 'taken'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_loader_takes_what_each_of_its_options_may_be_and_nothing_else() -> None:
    check(feed.DataLoader, LOADER, {"dataset": [1]}, **WITH)


def test_numbers_of_numpy_become_python_s() -> None:
    options: dict[str, Any] = {
        "batch_size": np.int64(1), "num_workers": np.int64(1), "prefetch_factor": np.int64(2), "drop_last": np.True_,
        "timeout": np.float32(5), "seed": np.uint64(3), "memory": np.int64(1 << 30), "slice_timeout": np.float64(9),
    }  # fmt: skip
    with feed.DataLoader([1], **options) as loader:
        assert next(iter(loader)).tolist() == [1]
        for name, value in options.items():
            kept = getattr(loader, name, getattr(loader._options, name))
            assert (type(kept), kept) == (type(value.item()), value)


def test_mixtures_packing_windows_buckets_and_limits_take_what_each_option_may_be(tmp_path: Path) -> None:
    neither: Accepts = lambda value: False  # noqa: E731
    mixed = {"sources": neither, "weights": neither, "until": one_of(None, "first", "all"), "rows": or_none(whole)}
    check(feed.mix, mixed, {"sources": {"x": [1]}, "weights": {"x": 1}})
    packed: dict[str, Accepts] = {
        "method": one_of("best_fit", "concat"),
        "separator": or_none(lambda value: whole(value, -(2**63))),
        "padding": lambda value: whole(value, -(2**63)),
        "longer": one_of("split", "error"),
        "field": or_none(text),
        "dtype": lambda value: one_of("int64", "uint16")(value) or isinstance(value, np.int64),  # it has a dtype
    }
    check(feed.pack, packed | {"documents": lambda _: True}, {"documents": len, "length": 8})  # a loader opens them
    (tmp_path / "a.jsonl").write_text("[1]\n")
    check(feed.jsonl(tmp_path).pack, packed, {"length": 8})
    check(feed.Auto, {}, {})
    check(feed.Window, {}, {})
    check(feed.Buckets, {"lengths": or_none(lambda value: isinstance(value, np.ndarray))}, {"lengths": [1]})


@pytest.mark.needs("pyarrow")
def test_shards_are_opened_by_what_each_option_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No value is the folder, or a pattern of a name that is there."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("[1]\n")
    neither: Accepts = lambda value: False  # noqa: E731
    rules: dict[str, Accepts] = {"folder": neither, "pattern": neither}
    monkeypatch.chdir(tmp_path)
    check(feed.jsonl, rules, {"folder": tmp_path})
    check(
        feed.parquet, rules | {"columns": or_none(lambda value: isinstance(value, (list, dict)))}, {"folder": tmp_path}
    )


FLAGS = {
    "--bind": ("nonsense", "1.2.3.4:99999"), "--executors": ("0", "x"), "--secret-file": ("/nowhere",),
    "--code": ("/nowhere",), "--nice": ("20", "-1"), "--memory": ("0", "x"), "--tls-cert": ("/nowhere",),
    "--tls-key": ("/nowhere",), "--advertise": ("nonsense",), "--metrics-port": ("x", "99999"), "--output": ("yaml",),
    "--host-name": (), "--unix": ("name",), "--host": (), "--group": (), "--status-fd": ("-1", "999"),
}  # fmt: skip
"""Of `headrace feed serve` and `python -m headrace.feed.serve`: values that each must refuse; any text is a name."""


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("it would serve")

    monkeypatch.setattr(serve.FeedServer, "run", run)
    file = tmp_path / "secret"
    file.write_text("ab" * 32)
    file.chmod(0o600)
    return file


def test_a_feed_server_s_flags_are_checked_when_they_are_given(secret: Path) -> None:
    for option in commands.serve.params:
        flag = option.opts[0]
        for value in FLAGS[flag]:
            asked = ["--secret-file", str(secret), "--bind", "127.0.0.1:0", flag, value]
            done = CliRunner().invoke(commands.serve, asked)
            assert isinstance(done.exception, (HeadraceError, SystemExit)), (flag, value, done.exception)
            assert done.exit_code, (flag, value)


def test_the_server_s_program_checks_its_flags_too(
    secret: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--help"])
    with pytest.raises(SystemExit):
        serve._arguments()
    flags = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    for flag in sorted(flags):
        for value in FLAGS[flag] if flag != "--code" else ():  # the agent's own folder, which may come later
            asked = ["--secret-file", str(secret), "--bind", "127.0.0.1:0", "--executors", "1", flag, value]
            monkeypatch.setattr(sys, "argv", ["serve", *asked])
            with pytest.raises((SystemExit, HeadraceError)):
                serve.serve(serve._arguments())


def test_the_index_command_refuses_what_is_no_folder_pattern_or_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("[1]\n")
    wrong = {"source": ("", "nowhere"), "pattern": ("", "x", "*.zip"), "kind": ("", "zip")}
    for option in commands.index.params:
        for value in wrong[str(option.name)]:
            asked = {"source": ".", "pattern": "*.jsonl", "kind": "jsonl", str(option.name): value}
            line = [asked["source"], "--pattern", asked["pattern"], "--kind", asked["kind"]]
            done = CliRunner().invoke(commands.index, line)
            assert isinstance(done.exception, (HeadraceError, SystemExit)), (option.name, value, done.exception)
            assert done.exit_code, (option.name, value)
