"""Bytes that a program wrote, to lines of its log.

* A line ends with a newline. It is never split below `LINE_LIMIT`; a longer one is cut there, with a mark that says
  how much is missing.
* A line that is redrawn with carriage returns (a progress bar) is kept in its last visible state. While it goes on,
  its state is logged once in `BAR_INTERVAL` seconds, to show that the program is alive.
* What comes last without a newline is a line too.

Pure: no clock, no file. Memory is bounded by `LINE_LIMIT`, however long a bar runs.
"""

from __future__ import annotations

LINE_LIMIT = 8 * 2**20
BAR_INTERVAL = 10.0


class LineSplitter:
    """Cuts one stream of bytes into log lines."""

    def __init__(self, limit: int = LINE_LIMIT, bar_interval: float = BAR_INTERVAL) -> None:
        self._limit = limit
        self._interval = bar_interval
        self._part = bytearray()  # the line so far, since its last carriage return
        self._missing = 0  # bytes of this part over the limit
        self._state: bytes | None = None  # the last visible state of a line that was redrawn
        self._bar_since = 0.0  # when the bar began or was last logged
        self._returned = False  # the last byte seen was a carriage return: CRLF, or a redraw

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Takes the next bytes.

        Args:
            data: what was read, any length.
            now: seconds, of any clock that does not go back.

        Returns:
            The lines that are complete, without their newlines.
        """
        if b"\r" not in data and self._state is None and not self._returned:
            return self._feed_plain(data)
        lines: list[bytes] = []
        pieces = data.split(b"\n")
        for index, piece in enumerate(pieces):
            self._redraw(piece, now)
            if index < len(pieces) - 1:
                lines.append(self._finish())
        if self._state and now - self._bar_since >= self._interval:
            lines.append(self._state)
            self._bar_since = now
        return lines

    def end(self) -> list[bytes]:
        """Takes the end of the stream. Returns the unfinished line, if there is one."""
        return [self._finish()] if self._part or self._missing or self._state else []

    def _feed_plain(self, data: bytes) -> list[bytes]:
        first, *rest = data.split(b"\n")
        self._append(first)
        if not rest:
            return []
        whole = rest[:-1] if len(data) <= self._limit else [self._cut(line) for line in rest[:-1]]
        lines = [self._finish(), *whole]
        self._append(rest[-1])
        return lines

    def _redraw(self, piece: bytes, now: float) -> None:
        for index, text in enumerate(piece.split(b"\r")):
            if index:
                self._returned = True
            if text:
                if self._returned:
                    self._overwrite(now)
                self._append(text)

    def _overwrite(self, now: float) -> None:
        """A carriage return was followed by text: what was there is overwritten."""
        if self._state is None:
            self._bar_since = now
            self._state = b""
        if self._part.strip():
            self._state = self._text()
        self._clear_part()

    def _append(self, text: bytes) -> None:
        room = self._limit - len(self._part)
        if len(text) > room:
            self._missing += len(text) - room
            text = text[:room]
        self._part += text

    def _cut(self, line: bytes) -> bytes:
        return line if len(line) <= self._limit else _mark(line[: self._limit], len(line) - self._limit)

    def _text(self) -> bytes:
        return _mark(bytes(self._part), self._missing) if self._missing else bytes(self._part)

    def _finish(self) -> bytes:
        line = self._text()
        if self._state and not line.strip():  # a bar that erased itself at the end: its last state
            line = self._state
        self._clear_part()
        self._state = None
        return line

    def _clear_part(self) -> None:
        self._part = bytearray()
        self._missing = 0
        self._returned = False


def _mark(line: bytes, missing: int) -> bytes:
    return line + f" [headrace: line cut here, {missing} bytes more]".encode()
