"""Messages between a feed server and its fork server, which makes the executors."""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Fork(_Message, frozen=True):
    """Feed server to fork server: become executor number `number` on the socket that comes along."""

    number: int
    of: int


class Forked(_Message, frozen=True):
    """Fork server to feed server."""

    number: int
    pid: int


class Exited(_Message, frozen=True):
    """Fork server to feed server: an executor has ended; `status` as `os.waitstatus_to_exitcode` gives it."""

    pid: int
    status: int
