"""What the pod of a host tells whoever looks at it: its last word, and what it hears from there.

RUN/engine/last_word.json    written in the pod once nobody writes the run's record there any more: the record is whole
/dev/termination-log         the same bytes, which Kubernetes keeps as the container's termination message
RUN/engine/asked             touched in the leader's pod by everybody who fetches the record
RUN/engine/fetched           made in the leader's pod by who has fetched all of it: the pod need not wait any more
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.private_folders import write_atomically
from headrace.runs import Cause, RunPaths, Status

LAST_WORD, ASKED, FETCHED = "last_word.json", "asked", "fetched"
MOST_BYTES = 4096  # of a termination message
_MOST_WORDS = 1000  # characters of one field of a message that is too long


class LastWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a host ended; the leader's is the end of the run.

    Attributes:
        status: of the run, as far as the host knows.
        cause: why it did not succeed.
        reason: FailureReason.
    """

    status: Status
    cause: Cause | None = None
    reason: str = ""


_DECODER = msgspec.json.Decoder(LastWord)


def encode_last_word(word: LastWord) -> bytes:
    """Returns a last word as JSON of at most MOST_BYTES: if it is longer, without last lines and with shorter texts."""
    data = msgspec.json.encode(word)
    if len(data) <= MOST_BYTES:
        return data
    for characters in (_MOST_WORDS, _MOST_WORDS // 4, _MOST_WORDS // 16):
        data = msgspec.json.encode(_shortened(word, characters))
        if len(data) <= MOST_BYTES:
            return data
    return msgspec.json.encode(LastWord(word.status))


def decode_last_word(message: str | bytes) -> LastWord | None:
    """Reads a last word; None when a message is none, such as that of a program that Kubernetes killed.

    >>> decode_last_word('{"status":"Completed"}').status.value, decode_last_word("Killed")
    ('Completed', None)
    """
    try:
        return _DECODER.decode(message)
    except msgspec.DecodeError:
        return None


def write_last_word(paths: RunPaths, word: LastWord, termination_log: Path) -> None:
    """Writes the last word of this pod to both places. Raises OSError."""
    data = encode_last_word(word)
    termination_log.write_bytes(data)
    write_atomically(paths.engine / LAST_WORD, data)


def is_whole(paths: RunPaths) -> bool:
    """Returns whether the record in this pod is whole: nobody writes it any more."""
    return (paths.engine / LAST_WORD).exists()


def touch(paths: RunPaths, name: str) -> None:
    """Touches ASKED or FETCHED. Raises OSError."""
    file = paths.engine / name
    file.touch()
    os.utime(file)


def _shortened(word: LastWord, characters: int) -> LastWord:
    return LastWord(word.status, _shorter(word.cause, characters), word.reason[:characters])


def _shorter(cause: Cause | None, characters: int) -> Cause | None:
    if cause is None:
        return None
    return msgspec.structs.replace(
        cause,
        detail=cause.detail[:characters],
        note=cause.note[:characters],
        then=_shorter(cause.then, characters),
        last_lines=(),
    )
