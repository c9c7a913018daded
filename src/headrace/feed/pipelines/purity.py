"""`DataLoader.check()`: whether samples depend on more than their place in the plan, found out in this process.

Each sample is made twice, its generators set as a worker would: once in order, once in reverse order and with the
process's generators in another state before. What differs between the two is named by index and field, and so are those
of the process's generators that moved: headrace sets these before every sample, and no others.

`numerics` says what must be equal for two workers to compute the same bits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import PipelineError
from headrace.feed.batch import pytree
from headrace.feed.pipelines.fetch import Built, RowFailed, SampleAddresses, make_whole
from headrace.feed.pipelines.seeds import PreservedGenerators, process_states, set_generators, stream_key
from headrace.feed.wire.remote_errors import in_short, remote_error

LIBRARIES = ("numpy", "torch", "torchvision", "pillow", "scipy", "opencv-python", "opencv-python-headless")


def numerics() -> dict[str, str]:
    """Returns this process's numerics fingerprint: name to value."""
    values = {"python": platform.python_version(), "machine": platform.machine()}
    for library in LIBRARIES:
        try:
            values[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        values["torch"] = str(torch.__version__)
        values["cpu_capability"] = str(torch.backends.cpu.get_cpu_capability())
        values["threads"] = str(torch.get_num_threads())
    return values


def kind_of(numerics: dict[str, str]) -> bytes:
    """Returns 3 bytes that stand for a fingerprint; none for an empty one, of a trainer's own worker processes."""
    if not numerics:
        return b""
    text = repr(sorted(numerics.items())).encode()
    return hashlib.blake2b(text, digest_size=3, person=b"numerics").digest()


def differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """Lists in words how two fingerprints differ; empty when they are equal."""
    return [
        f"{name}: {first.get(name, 'absent')} and {second.get(name, 'absent')}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


SHOWN = 8
_BEFORE = b"history"


@dataclass(frozen=True)
class PurityDifference:
    """A field of a sample that was not the same twice.

    Attributes:
        key: what the dataset was asked for; a tuple of them when it was `collate_fn` that differed.
        field: place in the sample, as ``['image']``; empty when the samples have different structures.
    """

    key: object
    field: str

    def __str__(self) -> str:
        if isinstance(self.key, tuple):
            return f"collate_fn, of indices {list(self.key)!r}: batch{self.field}"
        return f"index {self.key!r}: sample{self.field}"


@dataclass(frozen=True)
class PurityReport:
    """What `DataLoader.check` found.

    Attributes:
        samples: how many samples were made twice.
        differences: fields that were not the same twice.
        seeded: generators of the process that were drawn from; headrace sets them before every sample.
        errors: what samples raised both times, one a sample.
    """

    samples: int
    differences: tuple[PurityDifference, ...] = ()
    seeded: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def pure(self) -> bool:
        """Whether nothing differed."""
        return not self.differences

    def __str__(self) -> str:
        lines = [
            f"pure: {self.samples} samples were the same twice"
            if self.pure
            else f"not pure: {len(self.differences)} differences in {self.samples} samples that were made twice"
        ]
        lines += [f"  {difference}" for difference in self.differences[:SHOWN]]
        if len(self.differences) > SHOWN:
            lines.append(f"  and {len(self.differences) - SHOWN} more")
        lines += [f"moved, seeded by headrace: {name}" for name in self.seeded]
        lines += [f"raised both times: {error}" for error in self.errors[:SHOWN]]
        if not self.pure:
            lines.append(
                "hint: look for a generator of the dataset's own, a counter, the clock, a cache, files or a network; "
                "draw from torch, random or numpy.random (the module's own functions), set by headrace before every "
                "sample, or ask feed.rng() in __getitem__ for a generator of the sample's own"
            )
        return "\n".join(lines)


Fields = dict[str, bytes]


class _Checker:
    def __init__(self, built: Built, seed: int, keys: Sequence[Any]) -> None:
        self._built = built
        self._seed = seed
        self._keys = list(keys)
        self.seeded: dict[str, None] = {}

    def sample(self, position: int) -> Fields | str | None:
        """Makes a sample. Returns its fields, what it raised, or None if only `collate_fn` can read it."""
        dataset, key = self._built.dataset, self._keys[position]
        set_generators(stream_key(self._seed, 0, position))
        before = process_states()
        try:
            sample = dataset.__getitems__([key])[0] if self._built.fetches else dataset[key]
        except Exception as error:  # noqa: BLE001 - the user's own: it is a result like others, if it is the same twice
            return in_short(remote_error(error))
        finally:
            after = process_states()
            self.seeded |= {name: None for name in after if before.get(name) != after[name]}
        try:
            return _fields(sample)
        except PipelineError:
            if self._built.default_collate:
                raise
            return None

    def batch(self) -> Fields | str:
        """Makes a batch of all samples with the user's collate function."""
        rows = range(len(self._keys)) if self._built.batched else range(1)
        try:
            return _fields(make_whole(self._built, SampleAddresses(0, self._seed, 0, rows, self._keys[: len(rows)])))
        except RowFailed as failed:
            return in_short(remote_error(failed.__cause__ or failed))

    def twice(self, make: Callable[[int], Any], places: Sequence[int]) -> list[tuple[Any, Any]]:
        """Makes everything in order, then in reverse order behind other generators. Returns the pairs, in order."""
        first, second = [make(place) for place in places], []
        for place in reversed(places):
            set_generators(stream_key(self._seed, place + 1, 0, _BEFORE))
            second.append(make(place))
        return list(zip(first, reversed(second), strict=True))


def check(built: Built, seed: int, keys: Sequence[Any]) -> PurityReport:
    """Makes samples twice and compares. The generators of this process are as before afterwards.

    Args:
        built: the pipeline.
        seed: for the random numbers.
        keys: which samples.

    Raises:
        PipelineError: a sample that cannot travel, or every sample raises.
    """
    with PreservedGenerators():
        checker = _Checker(built, seed, keys)
        pairs = checker.twice(checker.sample, range(len(keys)))
        differences: list[PurityDifference] = []
        errors: list[str] = []
        for key, (first, second) in zip(keys, pairs, strict=True):
            differences += [PurityDifference(key, field) for field in _differing(first, second)]
            if isinstance(first, str) and first == second:
                errors.append(f"index {key!r}: {first}")
        if keys and len(errors) == len(keys):
            raise PipelineError(
                f"every one of the {len(keys)} samples raised; {errors[0]}",
                hint="check() asks for the indices 0 to len(dataset) - 1",
            )
        if not differences and not errors and not built.default_collate:
            first, second = checker.twice(lambda _: checker.batch(), [0])[0]
            whole = tuple(keys) if built.batched else keys[0]
            differences += [PurityDifference(whole, field) for field in _differing(first, second)]
            errors += [f"collate_fn: {first}"] if isinstance(first, str) and first == second else []
    return PurityReport(len(keys), tuple(differences), tuple(checker.seeded), tuple(errors))


def spread(length: int, samples: int) -> list[int]:
    """Returns up to `samples` indices of 0..length-1, evenly spread, both ends among them."""
    count = min(length, samples)
    return [i * (length - 1) // max(1, count - 1) for i in range(count)]


def _fields(sample: object) -> Fields:
    """Returns a digest of every field of a sample, by its place."""
    pytree.describe(sample, "sample")  # or names the place of what cannot travel
    fields: Fields = {}
    for place, value in pytree.fields_of(sample):
        node, leaves, _ = pytree.describe(value)
        fields[place] = pytree.digest_of_bytes(node, leaves)
    return fields


def _differing(first: Fields | str | None, second: Fields | str | None) -> list[str]:
    if first == second:
        return []
    if not isinstance(first, dict) or not isinstance(second, dict) or first.keys() != second.keys():
        return [""]
    return [place for place in first if first[place] != second[place]]
