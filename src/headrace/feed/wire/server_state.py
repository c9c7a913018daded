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


class ClientStatus(msgspec.Struct, frozen=True, array_like=True):
    """One client of a feed server. `name` as in the server's log; `local`: over the Unix socket."""

    name: str
    rank: int
    world_size: int
    local: bool
