"""The slices that wait at a feed server, fair between jobs by bytes.

The job that was made the fewest bytes for is next; inside a job it is the smallest (epoch, step), so that no rank lags.
A slice is charged when it is given out, with what the job's slices have had on average, and corrected when its size is
known. A job that comes, or comes back after it had nothing to do, begins level with the others: idle time is not saved
up, and nobody is made to wait for what he got while he was alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headrace.errors import ProtocolError
from headrace.feed.wire.messages import JobStatus
from headrace.feed.worker.client_connection import ClientConnection, ServerRequest

MAX_JOB = 128  # characters of a name
_SMOOTHING = 0.3


@dataclass
class JobWork:
    """The work of one job.

    Attributes:
        waiting: heap of its slices that wait, by (epoch, step, number).
        at_work: numbers of the slices that were given out.
        charge: bytes, as compared with other jobs.
        mean: bytes of a slice.
        slices, bytes, cpu_seconds: made since it came.
    """

    waiting: list[tuple[int, int, int, ServerRequest]] = field(default_factory=list)
    at_work: set[int] = field(default_factory=set)
    charge: float = 0.0
    mean: float = 0.0
    slices: int = 0
    bytes: int = 0
    cpu_seconds: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it waits for anything."""
        return bool(self.waiting or self.at_work)


class FairQueue:
    """See the module.

    Attributes:
        jobs: the work of each job, by name.
        clients: those of each job.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, JobWork] = {}
        self.clients: dict[str, set[ClientConnection]] = {}
        self._passed: list[tuple[int, int, int, ServerRequest]] = []

    def __len__(self) -> int:
        return sum(len(job.waiting) for job in self.jobs.values())

    def push(self, request: ServerRequest) -> None:
        """Adds a slice of its client's job."""
        job = self.jobs.setdefault(request.client.job, JobWork())
        if not job.busy:
            job.charge = max(job.charge, min((other.charge for other in self.jobs.values() if other.busy), default=0.0))
        heapq.heappush(job.waiting, (request.message.epoch, request.message.batches[0].step, request.arrival, request))

    def first(self, left_out: Collection[str]) -> ServerRequest | None:
        """Returns the slice whose turn it is, but for those of some jobs; None when nothing else waits."""
        ready = [(job.charge, name) for name, job in self.jobs.items() if job.waiting and name not in left_out]
        return self.jobs[min(ready)[1]].waiting[0][3] if ready else None

    def pass_over(self, request: ServerRequest) -> None:
        """Has the next slice of its job come first, until `restore`."""
        self._passed.append(heapq.heappop(self.jobs[request.client.job].waiting))

    def restore(self) -> None:
        """Puts back what was passed over."""
        for item in self._passed:
            heapq.heappush(self.jobs[item[3].client.job].waiting, item)
        self._passed.clear()

    def give_out(self, request: ServerRequest) -> None:
        """The slice, the first of its job, is given to an executor."""
        job = self.jobs[request.client.job]
        heapq.heappop(job.waiting)
        job.at_work.add(request.arrival)
        request.charged = job.mean
        job.charge += job.mean

    def ended(self, request: ServerRequest, size: int | None, cpu: float = 0.0) -> None:
        """An executor has ended with a slice.

        Args:
            request: the slice.
            size: bytes made; None when nothing was.
            cpu: seconds that it took.
        """
        job = self.jobs.get(request.client.job)
        if job is None or request.arrival not in job.at_work:
            return  # the job has gone, and come again
        job.at_work.discard(request.arrival)
        job.charge += (size or 0) - request.charged
        if size is not None:
            job.mean += (size - job.mean) * (_SMOOTHING if job.slices else 1.0)
            job.slices += 1
            job.bytes += size
            job.cpu_seconds += cpu

    def take_out(self, unwanted: Callable[[ServerRequest], bool]) -> list[ServerRequest]:
        """Removes slices that wait. Returns them."""
        out = []
        for job in self.jobs.values():
            out += [item[3] for item in job.waiting if unwanted(item[3])]
            job.waiting = [item for item in job.waiting if not unwanted(item[3])]
            heapq.heapify(job.waiting)
        return out

    def enter(self, client: ClientConnection, job: str) -> None:
        """Notes which job a client belongs to. Raises ProtocolError if it belongs to another one."""
        known = client in self.clients.get(client.job, ())
        if len(job) > MAX_JOB or (known and job != client.job):
            raise ProtocolError(f"a client of job {client.job!r} opened a pipeline of job {job[:MAX_JOB]!r}")
        client.job = job
        self.clients.setdefault(job, set()).add(client)

    def leave(self, client: ClientConnection) -> None:
        """A client is gone. With the last of its job, the job is forgotten."""
        self.take_out(lambda request: request.client is client)
        others = self.clients.get(client.job, set())
        others.discard(client)
        if not others:
            self.clients.pop(client.job, None)
            self.jobs.pop(client.job, None)

    def status(self, staged: Callable[[str], int]) -> list[JobStatus]:
        """Returns what is made for each job.

        Args:
            staged: returns the bytes of a job's results that are on their way.
        """
        told = []
        for name, clients in self.clients.items():
            made = self.jobs.get(name, JobWork())
            counts = len(clients), len(made.waiting), made.slices, made.bytes
            told.append(JobStatus(name, *counts, made.cpu_seconds, staged(name)))
        return told
