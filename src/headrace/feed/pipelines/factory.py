"""Pipelines by name: an importable factory and plain arguments.

A worker on another host cannot be given the trainer's dataset object, and nothing is ever unpickled from a socket. So
the trainer names the function that makes the dataset, and the worker calls it, there, with that host's channels:

    @feed.pipeline
    def train_set(channel: str = "training") -> Dataset:
        return Digits(feed.channel(channel))

    loader = feed.DataLoader(train_set(), batch_size=64, shuffle=True, seed=7)

When a channel is sharded over the hosts (`ShardedByS3Key`), the dataset declares what it holds on its own: a method
`__shards__(self) -> list[tuple[str, int]]` returns the keys (file names, say) with their numbers of samples, in the
order of the dataset's indices. See `headrace.feed.plan.shard_map`.

Calling a marked function makes a `Pipeline`; `Pipeline.build()` calls the function itself. A worker calls only marked
factories, and takes `collate_fn` and `worker_init_fn` only from the job's own code or from torch: a client with the
job's secret can run the job's code, and no other code.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import msgspec

from headrace.errors import PipelineError, PipelineNotBuilt, sendable

P = ParamSpec("P")
T = TypeVar("T")
_MARK = "__headrace_factory__"
_OWN_AND_TORCH = ("torch.utils.data.", "headrace.feed.")


@dataclass(frozen=True)
class Pipeline(Generic[T]):
    """A dataset that is named, not built.

    Attributes:
        factory: ``module:callable``.
        arguments: keyword arguments: None, bool, int, float, str, bytes, and lists and dicts of them.
    """

    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def build(self) -> T:
        """Calls the factory here. Raises PipelineError if it cannot be found."""
        dataset: T = load_factory(self.factory)(**self.arguments)
        return dataset

    def _is_a_name(self) -> NoReturn:
        raise PipelineNotBuilt(
            f"the pipeline {self} is a name: its dataset, which has length and samples, is made by the workers",
            hint="give it to headrace.feed.DataLoader, which divides it among ranks by global_batch_size=, in place of "
            "torch's DataLoader, samplers and DistributedSampler; its build() makes the dataset in this process",
        )

    __len__ = property(_is_a_name)  # so that `len` says this, and `hasattr` still that there is none
    __getitem__ = property(_is_a_name)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.factory}({arguments})"


def pipeline(factory: Callable[P, T]) -> Callable[P, Pipeline[T]]:
    """Marks a function (or class) that makes a dataset; calling it then makes a `Pipeline`.

    Raises:
        PipelineError: at the call, when an argument is not plain data.
    """

    @functools.wraps(factory, updated=())
    def named(*args: P.args, **kwargs: P.kwargs) -> Pipeline[T]:
        bound = inspect.signature(factory).bind(*args, **kwargs)
        arguments: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update(value)
            elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise PipelineError(f"{factory.__qualname__}: a pipeline takes named arguments, {name!r} is not")
            else:
                arguments[name] = value
        reference = f"{factory.__module__}:{factory.__qualname__}"
        for name, value in arguments.items():
            _require_plain(value, f"{reference} argument {name!r}")
        return Pipeline(reference, arguments)

    setattr(named, _MARK, factory)
    return named


def _require_plain(value: object, where: str) -> None:
    if isinstance(value, str) and sendable(value) != value:
        raise PipelineError(
            f"{where} holds {value!r}, which has no UTF-8", "pass the bytes: os.fsencode of a file's name"
        )
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return
    if isinstance(value, list):
        for item in value:
            _require_plain(item, where)
        return
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for item in (*value, *value.values()):
            _require_plain(item, where)
        return
    raise PipelineError(
        f"{where} must be plain data, got one of type {type(value).__name__}",
        hint="pass numbers, strings, bytes, None, or lists and dicts of them, and build the rest in the factory",
    )


def encoded(named: Pipeline[Any]) -> str:
    """Returns a canonical text of a pipeline, for fingerprints."""
    return msgspec.json.encode([named.factory, named.arguments], order="deterministic").decode()


def _resolve(reference: str) -> object:
    module_name, _, qualified = reference.partition(":")
    if not module_name or not qualified:
        raise PipelineError(f"{reference!r} is not of the form 'module:callable'")
    try:
        target: object = importlib.import_module(module_name)
    except ImportError as error:
        raise PipelineError(
            f"cannot import {module_name!r} to find {reference!r}: {error}",
            hint="put it in a module of source_dir; a worker looks there and in installed packages",
        ) from error
    for part in qualified.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            near = difflib.get_close_matches(part, dir(target), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"define it in {getattr(target, '__file__', module_name)}"
            raise PipelineError(f"module {module_name!r} has no {qualified!r}", hint=hint) from None
    return target


def load_factory(reference: str) -> Callable[..., Any]:
    """Finds a marked factory. Raises PipelineError."""
    factory = getattr(_resolve(reference), _MARK, None)
    if factory is None:
        raise PipelineError(f"{reference!r} is not a pipeline", hint="mark the function with @headrace.feed.pipeline")
    function: Callable[..., Any] = factory
    return function


def load_function(reference: str, roots: Sequence[Path]) -> Callable[..., Any]:
    """Finds a `collate_fn` or `worker_init_fn` in the job's code (below `roots`) or in torch. Raises PipelineError."""
    function = _resolve(reference)
    module = reference.partition(":")[0]
    origin = getattr(sys.modules[module], "__file__", None)
    file = Path(os.path.realpath(origin)) if origin is not None else None
    trusted = f"{module}.".startswith(_OWN_AND_TORCH) or (
        file is not None and any(file.is_relative_to(os.path.realpath(root)) for root in roots)
    )
    own = getattr(function, "__module__", None) == module  # not something that the module has only imported
    if not trusted or not own or not callable(function):
        raise PipelineError(
            f"{reference!r} is not a function of the job's code", hint="define it in a module of source_dir"
        )
    return function


def function_name(function: Callable[..., Any], argument: str) -> str:
    """Returns the importable name of a function that is given to remote workers.

    Raises:
        PipelineError: it has none (a lambda, a closure, a partial, or it is defined in the script itself).
    """
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    hint = f"define {argument} at the top level of a module of source_dir and import it from there"
    if module is None or qualified is None or "<" in qualified:
        raise PipelineError(f"{argument}={function!r} has no importable name for workers on other hosts", hint=hint)
    if module == "__main__":
        raise PipelineError(f"{argument}={qualified} is defined in the script; workers cannot import it", hint=hint)
    return f"{module}:{qualified}"


def channel(name: str) -> Path:
    """Returns the directory of an input channel on this host, as SageMaker's SM_CHANNEL_<NAME> gives it.

    Raises:
        PipelineError: this host has no channel of that name.
    """
    if not name:
        raise PipelineError("feed.channel needs the name of an input channel", hint="feed.channel('training'), say")
    variable = f"SM_CHANNEL_{name.upper()}"
    place = os.environ.get(variable)
    if place is None:
        base = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
        directory = Path(base) / "input" / "data" / name
        if not directory.is_dir():
            have = sorted(
                key.removeprefix("SM_CHANNEL_").lower() for key in os.environ if key.startswith("SM_CHANNEL_")
            )
            raise PipelineError(
                f"this host has no channel {name!r} (it has: {', '.join(have) or 'none'})",
                hint="give the channel to this group with instance_group_names"
                if have
                else f"add `inputs: {{{name}: FOLDER}}` to the job file; outside of a job set {variable}",
            )
        return directory
    return Path(place)
