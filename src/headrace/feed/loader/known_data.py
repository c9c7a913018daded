"""What a loader knows of its data: the length and the digest of the shards. With workers elsewhere, they know it."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.errors import FeedError, PipelineError
from headrace.feed.client.session import Session
from headrace.feed.loader.open_sessions import OpenSessions
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built
from headrace.feed.plan.planner import KnownFacts
from headrace.feed.plan.shard_map import data_digest
from headrace.feed.wire.endpoints import Endpoints
from headrace.feed.wire.messages import Mixing

_Answer = TypeVar("_Answer")


class _Weakly(Generic[_Answer]):
    """A method of a loader, for those who must not keep the loader: its sessions, which end when nobody uses it."""

    def __init__(self, method: Callable[[], _Answer]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self) -> _Answer:
        return self._own()()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Weakly, (self._own(),)

    def _own(self) -> Callable[[], _Answer]:
        found = self._method()
        if found is None:
            raise FeedError("the loader is not there any more")
        return found


class KnownData(abc.ABC):
    """See the module.

    Attributes:
        dataset, num_workers, timeout: of the loader.
        _endpoints: of the feed servers; None for workers of its own.
        _sessions: those that are open.
        _built: the pipeline as it was built here, if it was.
        _length, _digest, _mixture: what workers have told.
    """

    dataset: Any
    num_workers: int
    timeout: float
    _endpoints: Endpoints | None
    _sessions: OpenSessions
    _built: Built | None
    _length: int | None
    _digest: str
    _mixture: Mixing | None

    @abc.abstractmethod
    def _local(self) -> Built: ...

    @abc.abstractmethod
    def _make_session(self) -> Session: ...

    def _facts(self) -> KnownFacts:
        return KnownFacts(
            _Weakly(self._dataset_length), _Weakly(self._data_digest), _Weakly(self._opened_data),
            _Weakly(self._mixing), _Weakly(self._lengths),
        )  # fmt: skip

    def _sized(self) -> Any:
        """Returns what has the dataset's length."""
        return range(self._dataset_length()) if isinstance(self.dataset, Pipeline) else self.dataset

    def _dataset_length(self) -> int:
        if not isinstance(self.dataset, Pipeline):
            return len(self.dataset)  # it may change between epochs
        if self._length is None:
            if self._endpoints is None and self.num_workers == 0:
                self._length = len(self._local().dataset)
            else:
                self._length = self._sessions.waiting(self._make_session).wait_for_length(self.timeout or None)
        return self._length

    def _mixing(self) -> Mixing | None:
        """Returns what the data are a mixture of; None for no mixture. It is known when the length is."""
        if self._built is not None or not isinstance(self.dataset, Pipeline):
            found: Mixing | None = getattr(self._built.dataset if self._built else self.dataset, "mixing", None)
            return found
        self._mixture = self._mixture or next((each.mixing for each in self._sessions if each.mixing), None)
        return self._mixture

    def _keep_told(self) -> None:
        """Notes what workers have told of a mixture: their sessions end."""
        if self._built is None and isinstance(self.dataset, Pipeline):
            self._mixing()

    def _lengths(self) -> Any:
        """Returns the lengths of the rows, from the index. Raises PipelineError if it is not here, or has none."""
        if self._endpoints is not None:
            raise PipelineError(
                "the lengths of the rows are in the index, and that is with the workers on other hosts",
                hint="give them, one integer a row in the order of the data: feed.Buckets(lengths)",
            )
        held = self._local().dataset
        if not hasattr(held, "lengths"):
            raise PipelineError(
                f"the lengths of the rows of a {type(held).__name__} are not known",
                hint="give them, one integer a row: feed.Buckets(lengths)",
            )
        return held.lengths()

    def _opened_data(self) -> str:
        """Returns the digest of the data; has the pipeline opened for it, if it was not yet."""
        if self._endpoints is not None:
            session = self._sessions.waiting(self._make_session)  # that of the next pass
            session.wait_for_length(self.timeout or None)
            self._digest = session.data
        elif isinstance(self.dataset, Pipeline):
            self._local()
        return self._data_digest()

    def _data_digest(self) -> str:
        if self._built is None and isinstance(self.dataset, Pipeline):  # the workers know it, if one has opened it
            self._digest = next((each.data for each in self._sessions if each.data), self._digest)
            return self._digest
        held = self._built.dataset if self._built is not None else self.dataset
        return data_digest(getattr(held, "counts", ()), getattr(held, "shard_digests", ()))
