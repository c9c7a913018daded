"""Sends the record of a run out of the leader's pod: what somebody who fetches it does not have yet.

    python -m headrace.engines.kubernetes.send_record pieces RUN_DIR KNOWN       one segment (`headrace.runs.segments`)
    python -m headrace.engines.kubernetes.send_record outputs RUN_DIR            the files of output/, as JSON
    python -m headrace.engines.kubernetes.send_record output RUN_DIR PATH FROM   some bytes of one of them
    python -m headrace.engines.kubernetes.send_record digests RUN_DIR KNOWN      of so much of each file, as JSON
    python -m headrace.engines.kubernetes.send_record fetched RUN_DIR            all has arrived: the pod may end

KNOWN is what is there already (`encode_known`): the pod remembers nothing of those who ask, so there may be several of
them, each may break off at any instant, and ask again. The segment is the last one once nobody writes the record any
more and, with this segment, all of it is sent.

Exit codes: 0 sent, 1 something cannot be read, 2 a wrong use.

What the pod of a host tells whoever looks at it, and what it hears from there:

    RUN/engine/last_word.json    written once nobody writes the run's record there any more: the record is whole
    /dev/termination-log         the same bytes, which Kubernetes keeps as the container's termination message
    RUN/engine/asked             touched in the leader's pod by everybody who fetches the record
    RUN/engine/fetched           made in the leader's pod by who has fetched all of it: the pod need not wait any more
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import os
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.engines.platform_news import LEADERS, OWN_EVENTS, is_end
from headrace.private_folders import write_atomically
from headrace.record_files import open_record
from headrace.runs import Cause, RunPaths, Status
from headrace.runs.record_pieces import BATCH_BYTES, Known, NewPieces
from headrace.runs.segments import VERSION, WHOLE, Piece, SegmentHeader, encode

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


MODULE = "headrace.engines.kubernetes.send_record"
SENT_WHOLE = tuple(name for name in WHOLE if name != "run.json")  # each side has a header of its own
OUTPUT = "output"
CHUNK_BYTES = 1 << 20
OUTPUT_BYTES = 32 << 20  # of a file of output/ in one answer
_KNOWN = msgspec.json.Decoder(Known)


class OutputFile(msgspec.Struct, frozen=True):
    """A file that the run has made.

    Attributes:
        path: relative to the run's directory; below OUTPUT.
        size: bytes.
    """

    path: str
    size: int


def encode_known(known: Known) -> str:
    """Returns what is there already as one word of a command line."""
    return base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(known))).decode()


def decode_known(word: str) -> Known:
    """Reverses `encode_known`. Raises ValueError."""
    try:
        return _KNOWN.decode(zlib.decompress(base64.urlsafe_b64decode(word)))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"not what is known of a record: {error}") from error


def new_segment(paths: RunPaths, known: Known) -> bytes:
    """Returns a segment of what is new.

    Args:
        paths: the run's directory.
        known: what is there already; then also what the segment has.
    """
    whole = is_whole(paths)  # before the files are looked at
    new = NewPieces(paths, SENT_WHOLE, OWN_EVENTS)
    pieces: list[tuple[Piece, bytes]] = []
    more = True
    while more and sum(piece.size for piece, _ in pieces) < BATCH_BYTES:  # a batch has little of each file
        batch, more = new.next(known, whole)
        if not whole:
            batch = [kept for piece, data in batch if (kept := _without_end(piece, data)) is not None]
        known.take(piece for piece, _ in batch)
        pieces += batch
        if not batch:
            break
    header = SegmentHeader(
        VERSION, paths.id, "pod", 0, time.time(), tuple(piece for piece, _ in pieces), whole and not more
    )
    return encode(header, [data for _, data in pieces])


def digests(root: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Returns the digest of the first bytes of files; an empty one for a file that does not have so many.

    Args:
        root: a run's directory.
        sizes: append-only file of a record to a number of bytes.
    """
    found = {}
    for name, size in sizes.items():
        found[name] = ""
        with contextlib.suppress(FileNotFoundError), os.fdopen(open_record(root / name), "rb") as file:
            digest, left = hashlib.sha256(), size
            while left and (data := file.read(min(left, 1 << 20))):
                digest.update(data)
                left -= len(data)
            found[name] = "" if left else digest.hexdigest()
    return found


def _without_end(piece: Piece, data: bytes) -> tuple[Piece, bytes] | None:
    """Returns a piece without the end of the run, which its supervisor writes some time before all else is there.

    Nobody asks for anything more once the end has come. None when nothing is left.
    """
    if piece.path != LEADERS:
        return piece, data
    lines = itertools.takewhile(lambda line: not is_end(line), data.splitlines(keepends=True))
    kept = b"".join(lines)
    return (msgspec.structs.replace(piece, size=len(kept)), kept) if kept else None


def outputs(paths: RunPaths) -> tuple[OutputFile, ...]:
    """Returns the files in output/."""
    folder = paths.root / OUTPUT
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return tuple(OutputFile(str(path.relative_to(paths.root)), path.stat().st_size) for path in files)


def is_output(path: str) -> bool:
    """Returns whether a relative path is one of a run's output files. No other is read or written.

    >>> is_output("output/model.tar.gz"), is_output("output/../secret"), is_output("plan.json")
    (True, False, False)
    """
    folder, *below = path.split("/")
    return folder == OUTPUT and bool(below) and "\0" not in path and not {"", ".", ".."} & set(below)


def main(arguments: list[str]) -> int:
    """Entry point."""
    try:
        what, root, *given = arguments
        paths = RunPaths(Path(root))
        if what == "pieces":
            data = new_segment(paths, decode_known(*given))
        elif what == "outputs":
            data = msgspec.json.encode(outputs(paths))
        elif what == "digests":
            data = msgspec.json.encode(digests(paths.root, decode_known(*given).sent))
        elif what == "output":
            return _send(paths, *given)
        elif what == "fetched":
            touch(paths, FETCHED)
            return 0
        else:
            raise ValueError(f"{what!r} is none of pieces, digests, outputs, output, fetched")
    except (ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _write(paths, data)
    return 0


def _write(paths: RunPaths, data: bytes) -> None:
    """Writes to standard output, and lets the pod know that somebody takes it: it waits for slow ones."""
    rest = memoryview(data)
    while rest:
        touch(paths, ASKED)
        sys.stdout.buffer.write(rest[:CHUNK_BYTES])
        sys.stdout.buffer.flush()
        rest = rest[CHUNK_BYTES:]
    touch(paths, ASKED)


def _send(paths: RunPaths, path: str, offset: str) -> int:
    if not is_output(path):
        raise ValueError(f"{path!r} is no file that the run has made")
    left = OUTPUT_BYTES
    with os.fdopen(open_record(paths.root / path), "rb", buffering=0) as file:
        file.seek(int(offset))
        while left and (data := file.read(min(left, CHUNK_BYTES))):
            _write(paths, data)
            left -= len(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
