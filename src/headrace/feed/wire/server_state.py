"""What a feed server reports of its executors and its clients, as values of `messages.Status`."""

from __future__ import annotations

import msgspec


class ExecutorStatus(msgspec.Struct, frozen=True, array_like=True):
    """One executor. `slices`: made by its process; `restarts`: how often its number was replaced."""

    number: int
    pid: int
    busy: bool
    slices: int
    restarts: int


class JobStatus(msgspec.Struct, frozen=True, array_like=True):
    """One job that a feed server serves.

    Attributes:
        name: empty for all clients that named none.
        clients: connections.
        queue: slices that wait for an executor.
        slices, bytes, cpu_seconds: made since its first client came.
        staging_bytes: memory of results on their way to it.
    """

    name: str
    clients: int
    queue: int
    slices: int
    bytes: int
    cpu_seconds: float
    staging_bytes: int


class ClientStatus(msgspec.Struct, frozen=True, array_like=True):
    """One client of a feed server. `name` as in the server's log; `local`: over the Unix socket."""

    name: str
    rank: int
    world_size: int
    local: bool
