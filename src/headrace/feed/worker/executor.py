"""An executor: one process that makes slices, one at a time, in the order asked.

It speaks `messages` on one Unix socket, to the trainer (local workers) or to its host's feed server. It writes
results into the slab that the request names, or into a fresh one whose descriptor it passes on when there is none
that fits. It keeps no state but the pipelines that are open and the slabs that it has mapped.

It lives as long as the other end of its socket, and dies with the process that made it (see `child_python`).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.errors import FeedError, PipelineError, take_interruptions_for_errors
from headrace.feed.batch.row_layout import Uneven
from headrace.feed.batch.slab import Slab
from headrace.feed.descriptors import explained
from headrace.feed.identifiers import PipelineNumber, RequestNumber, SlabNumber
from headrace.feed.pipelines.factory import load_factory, load_function
from headrace.feed.pipelines.fetch import Built, stack_in_ordinary_memory, stacks_rows, standard_collate
from headrace.feed.pipelines.lane_datasets import is_uncounted, refuse_own_ranks, require_openable, show_one_rank
from headrace.feed.pipelines.purity import numerics
from headrace.feed.pipelines.seeds import seed_worker
from headrace.feed.plan.shard_map import in_key_order
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import Frame
from headrace.feed.wire.remote_errors import remote_error
from headrace.feed.worker.lane_reader import LaneReaders, with_shards
from headrace.feed.worker.slices import make_slice

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_Content = tuple[str, bytes, str, str, bool, int]  # what decides what a pipeline makes


class _OpenPipeline(NamedTuple):
    """A pipeline that is open, and its readers if it has no count."""

    built: Built
    lanes: LaneReaders | None


class Executor:
    """The state of one executor process.

    Args:
        channel: to the process that sends the requests.
        number, of: which executor this is, for `torch.utils.data.get_worker_info`.
        roots: directories of the job's code.
        given: pipelines that were handed over as objects (forked local workers): number to pipeline.
        init: `worker_init_fn` that was handed over with them.
    """

    def __init__(
        self,
        channel: FramedConnection,
        number: int,
        of: int,
        roots: Sequence[Path] = (),
        given: dict[PipelineNumber, Built] | None = None,
        init: Callable[[int], None] | None = None,
    ) -> None:
        self._channel = channel
        self._number, self._of = number, of
        self._roots = tuple(roots)
        self._given = given or {}
        self._init = init
        self._seed = 0
        self._opened: dict[PipelineNumber, _OpenPipeline | messages.RemoteError] = {}  # or why it cannot be opened
        self._built: dict[_Content, tuple[Built, list[tuple[str, int]]]] = {}
        self._contents: dict[PipelineNumber, _Content] = {}  # also of those that cannot be opened
        self._slabs: dict[SlabNumber, Slab] = {}
        self._queue: list[Frame] = []

    def run(self) -> None:
        """Serves until the other end closes."""
        keep_freed_memory()
        try:
            while True:
                self._take(block=not self._queue)
                if self._queue:
                    self._handle(self._queue.pop(0))
        except ConnectionClosed:
            return

    def _take(self, *, block: bool) -> None:
        frames = self._channel.wait() if block else self._channel.receive()
        for frame in frames:
            if isinstance(frame.message, messages.Cancel):
                self._cancel(frame.message.requests)
            else:
                self._queue.append(frame)

    def _cancel(self, numbers: Collection[RequestNumber]) -> None:
        queued, self._queue = self._queue, []
        for frame in queued:
            message = frame.message
            if isinstance(message, messages.SliceRequest) and message.number in numbers:
                self._send(messages.Cancelled(message.number))
            else:
                self._queue.append(frame)

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, messages.SliceRequest):
            self._answer(message)
        elif isinstance(message, messages.Open):
            self._open(message)
        elif isinstance(message, messages.Close):
            self._close(message.pipeline)
        elif isinstance(message, messages.SlabOffer):
            self._slabs[message.slab] = Slab(frame.take_descriptor(), message.size)
        elif isinstance(message, messages.SlabDrop):
            slab = self._slabs.pop(message.slab, None)
            if slab is not None:
                slab.close()

    # Pipelines

    def _open(self, message: messages.Open) -> None:
        try:
            if message.ranks > 1:
                show_one_rank()
            built, shards = self._build(message)
            counted = not message.lanes and hasattr(built.dataset, "__len__")
            length = len(built.dataset) if counted else -1
            lanes = None
            if message.lanes:
                init = load_function(message.init, self._roots) if message.init else self._init
                lanes = LaneReaders(built.dataset, init)
        except BaseException as error:  # noqa: BLE001 - the user's code, also its sys.exit(): told with its traceback
            self._opened[message.pipeline] = reason = remote_error(error)
            self._send(messages.OpenFailed(message.pipeline, reason))
            return
        self._opened[message.pipeline] = _OpenPipeline(built, lanes)
        digests = list(getattr(built.dataset, "shard_digests", ()))
        mixing = getattr(built.dataset, "mixing", None)
        computes = numerics() if message.factory else {}  # a trainer's own processes compute alike
        self._send(messages.Opened(message.pipeline, length, built.whole, computes, shards, digests, mixing))

    def _close(self, number: PipelineNumber) -> None:
        self._opened.pop(number, None)
        content = self._contents.pop(number, None)
        if content is not None and content not in self._contents.values():
            self._built.pop(content, None)
            latest = next(reversed(self._built.values()), None)
            self._show(None if latest is None else latest[0].dataset)
            gc.collect()  # a dataset whose parts refer to each other would stay in memory for long

    def _build(self, message: messages.Open) -> tuple[Built, list[tuple[str, int]]]:
        """Returns the pipeline, and the shards that it declares. Those of a given one are the trainer's business."""
        if not message.factory:
            built = self._given[message.pipeline]
            self._introduce(built.dataset, built.seed)
            if self._init is not None and not message.lanes:  # it is called for every lane
                self._init(self._number)
                self._init = None
            return built, []
        key = (
            message.factory,
            msgspec.msgpack.encode(message.arguments, order="deterministic"),
            message.collate,
            message.init,
            message.batched,
            message.lanes,
        )
        self._contents[message.pipeline] = key
        if key not in self._built:
            dataset = load_factory(message.factory)(**message.arguments)
            if message.lanes:
                require_openable(dataset)
                if message.ranks > 1:
                    refuse_own_ranks(dataset)
            elif is_uncounted(dataset):
                raise PipelineError(
                    f"{message.factory} made a {type(dataset).__name__}, which has no rows by number",
                    hint="a dataset without a count is read in lanes: give the loader num_shards=",
                )
            elif not hasattr(dataset, "__getitem__"):
                raise PipelineError(
                    f"{message.factory} made a {type(dataset).__name__}, which has no __getitem__",
                    hint="a pipeline returns a dataset: with __getitem__ and __len__, or an iterable",
                )
            self._introduce(dataset, 0)
            if message.lanes:
                dataset, shards = with_shards(dataset, message.shards)
            else:
                if message.init:
                    load_function(message.init, self._roots)(self._number)
                dataset, shards = in_key_order(dataset, message.shards)
            self._built[key] = self._assemble(dataset, message), shards
        return self._built[key]

    def _assemble(self, dataset: Any, message: messages.Open) -> Built:
        if message.collate:
            collate = load_function(message.collate, self._roots)
            return Built(dataset, collate, stacks_rows(collate, batched=message.batched), message.batched)
        return Built(dataset, standard_collate(batched=message.batched), True, message.batched)

    def _introduce(self, dataset: Any, seed: int) -> None:
        """Sets what `torch.utils.data.get_worker_info()` returns in this process, and the generators as torch does."""
        self._seed = seed_worker(seed + self._number)
        if sys.modules.get("torch") is not None:
            stack_in_ordinary_memory()
        self._show(dataset)

    def _show(self, dataset: Any) -> None:
        if sys.modules.get("torch") is None:
            return
        from torch.utils.data._utils import worker

        worker._worker_info = worker.WorkerInfo(id=self._number, num_workers=self._of, seed=self._seed, dataset=dataset)

    # Slices

    def _answer(self, request: messages.SliceRequest) -> None:
        opened = self._opened[request.pipeline]
        if isinstance(opened, messages.RemoteError):
            self._send(messages.Failed(request.number, opened))
            return
        slab = self._slabs.get(request.slab)
        try:
            done, fresh = make_slice(opened.built, request, slab, self._number, opened.lanes)
        except Uneven:
            self._send(messages.Unstackable(request.number))
            return
        except BaseException as error:  # noqa: BLE001 - a result that cannot travel: told to the trainer with its place
            self._send(messages.Failed(request.number, remote_error(error)))
            return
        if fresh is None:
            self._send(done)
            return
        try:
            with explained():
                self._send(done, [fresh.descriptor])
        except FeedError as error:
            self._send(messages.Failed(request.number, remote_error(error)))
        finally:
            fresh.close()

    def _send(self, message: messages.Message, descriptors: Sequence[int] = ()) -> None:
        self._channel.send(message, descriptors=descriptors)
        self._channel.drain()


def executor_main(
    connection: socket.socket,
    number: int,
    of: int,
    roots: Sequence[Path] = (),
    given: dict[PipelineNumber, Built] | None = None,
    init: Callable[[int], None] | None = None,
) -> None:
    """Turns this process into an executor, until the other end closes.

    Signals: SIGINT is the trainer's business (a Ctrl-C in a terminal reaches the whole group), SIGTERM ends it, SIGUSR1
    has it write the stacks of its threads to its log (it is sent to one that is taken for hung, before SIGKILL).
    """
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    take_interruptions_for_errors()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    Executor(FramedConnection(connection), number, of, roots, given, init).run()


_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_LARGEST = 32 << 20  # bytes: how far glibc raises the second one by itself; the first one is twice that
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> None:
    """Has this process keep what it frees, as glibc does by itself in time; not where the user has set it.

    glibc gives the end of its heap back to the kernel when 128 KB of it are free, and takes blocks of 128 KB straight
    from there, until it has seen large blocks freed. A worker that decodes an image frees some hundred KB a sample: it
    would ask for the same pages anew each time, hundreds of page faults a batch.
    """
    if any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MAP, _LARGEST)
        mallopt(_TRIM, 2 * _LARGEST)
