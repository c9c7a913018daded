"""One operating-system process of a host: its start, its output, line by line, and its end.

Output is read whenever there is some and goes into the program's log, so a program never waits for a full pipe,
whatever it writes. `Reaper` waits for every child that ended, adopted ones included.

Programs are ended by SIGTERM to each, time to save, SIGKILL; the time may be cut short while it runs. Then what they
leave running is. Some helpers end by themselves a moment after their program, and clean up then: Python's resource
tracker unlinks shared memory and semaphores of a parent that was killed. So they get `LINGER` seconds, then SIGKILL,
again and again until none is left, because a process may fork while it is being killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.agent.control.control_messages import LAST_LINE_BYTES, LAST_LINES
from headrace.processes.process_table import Process, describe_exit, reap, send
from headrace.processes.sigterm_tree import EndingTree
from headrace.processes.spawn import spawn
from headrace.runs import Cause, CauseKind, LogWriter

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


CHUNK = 1 << 18
PIPE_BYTES = 1 << 20
POLL = 0.05

OnLines = Callable[[list[bytes]], None]


class Pump:
    """Moves what comes out of one pipe into a log.

    Args:
        descriptor: the reading end; it is closed at its end.
        letter: ``o`` or ``e``, see `LogWriter`.
        log: the program's log.
        tail: gets the last lines.
        on_lines: called with the lines too.

    Attributes:
        heard: when the last output was read (time.monotonic).
    """

    def __init__(
        self, descriptor: int, letter: str, log: LogWriter, tail: deque[bytes], on_lines: OnLines = lambda _: None
    ) -> None:
        self.heard = time.monotonic()
        self._descriptor = descriptor
        self._letter = letter
        self._log = log
        self._tail = tail
        self._on_lines = on_lines
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # the default size works too
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> bool:
        """Moves one chunk. Returns whether there may be more."""
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self.heard = time.monotonic()
            self.write(self._splitter.feed(data, time.monotonic()))
            return True
        self.close()
        return False

    def drain(self) -> None:
        """Moves what is in the pipe now, and what has no newline yet."""
        for _ in range(2 * PIPE_BYTES // CHUNK):  # a descendant may go on writing
            if self._descriptor < 0 or not self._read():
                break
        self.write(self._splitter.end())

    def close(self) -> None:
        """Closes the pipe."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self.write(self._splitter.end())

    def write(self, lines: list[bytes]) -> None:
        """Writes lines as if they had come out of the pipe."""
        if lines:
            self._tail.extend(line[:LAST_LINE_BYTES] for line in lines[-LAST_LINES:])
            self._log.write_line(self._letter, b"\n".join(lines) + b"\n")
            self._on_lines(lines)


class Running:
    """A program that was started.

    Args:
        stream: its name.
        argv, env, cwd, pass_fds, cpus: see `spawn`.
        log: where its output goes.
        on_lines: called with the lines of its output too.

    Attributes:
        pid: its process.
        exit_code, signal: one of them is set when it has ended.
        cause: how it ended, if more is known than exit code and signal.
        told_to_stop: whether it was told to stop.
        ended: set when it has ended.
        tail: its last lines.

    Raises:
        OSError: no process could be made.
    """

    def __init__(
        self,
        stream: str,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log: LogWriter,
        pass_fds: Sequence[int] = (),
        cpus: Sequence[int] = (),
        on_lines: OnLines = lambda _: None,
    ) -> None:
        self.stream = stream
        self.argv = tuple(argv)
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.told_to_stop = False
        self.ended = asyncio.Event()
        self.tail: deque[bytes] = deque(maxlen=LAST_LINES)
        self._cause: Cause | None = None
        self._ending: EndingTree | None = None
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        try:
            self._process = spawn(
                argv, env=env, cwd=cwd, tied=True, stdout=out_end, stderr=err_end, pass_fds=pass_fds, cpus=cpus
            )
        except OSError:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.close(out_end)
            os.close(err_end)
        self.pid = self._process.pid
        self._pumps = [Pump(end, letter, log, self.tail, on_lines) for end, letter in ((out, "o"), (err, "e"))]

    @property
    def cause(self) -> Cause:
        """How it ended."""
        return self._cause or Cause(CauseKind.PROGRAM_EXITED, exit_code=self.exit_code, signal=self.signal)

    @cause.setter
    def cause(self, cause: Cause) -> None:
        self._cause = cause

    @property
    def heard(self) -> float:
        """When it last wrote something (time.monotonic)."""
        return max(pump.heard for pump in self._pumps)

    def forward(self, number: int) -> None:
        """Sends a signal to its main process without counting it as told to stop."""
        if not self.ended.is_set():  # not reaped yet, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM to its main process, and to the descendants that this would not reach; see `EndingTree`."""
        if not self.ended.is_set():  # not reaped yet, so the pid is still its own
            self.told_to_stop = True
            ending = self._ending = EndingTree(self.pid)
            self._go_on_ending(ending)

    def _go_on_ending(self, ending: EndingTree) -> None:
        ending.go_on()
        if not ending.is_settled:
            asyncio.get_running_loop().call_later(POLL, self._go_on_ending, ending)

    def kill(self) -> None:
        """Ends its main process, and whatever else of it was asked to end."""
        if not self.ended.is_set():
            self.told_to_stop = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if self._ending is not None:
            self._ending.kill()

    @property
    def still_running(self) -> bool:
        """Whether a process that was asked to end, or its main process, still runs."""
        return not self.ended.is_set() or (self._ending is not None and self._ending.is_running)

    def kill_as_failure(self) -> None:
        """Kills its main process because it failed: not counted as told to stop."""
        self.forward(signal.SIGKILL)

    def say(self, line: str) -> None:
        """Writes a line into its log, and to its last lines."""
        self._pumps[1].write([line.encode()])

    def finish(self, status: int) -> None:
        """Takes the wait status of its main process. Its output so far is in the log afterwards."""
        self.exit_code, self.signal = describe_exit(status)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        for pump in self._pumps:
            pump.drain()
        self.ended.set()

    def close(self) -> None:
        """Closes its pipes; what a descendant writes from here on is lost."""
        for pump in self._pumps:
            pump.close()


class Started(Protocol):
    """What `Reaper` needs of a process."""

    @property
    def pid(self) -> int:
        """Its process."""

    def finish(self, status: int) -> None:
        """Takes the wait status of a process that has ended."""


class Reaper:
    """Waits for the children of this process and hands each its wait status."""

    def __init__(self) -> None:
        self._children: dict[int, tuple[Started, Callable[[], None]]] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, child: Started, on_exit: Callable[[], None]) -> None:
        """Calls `on_exit` after `child.finish`."""
        self._children[child.pid] = (child, on_exit)

    def reap(self) -> None:
        """Waits for those that have ended by now."""
        for pid, status in reap():
            known = self._children.pop(pid, None)
            if known is not None:
                child, on_exit = known
                child.finish(status)
                on_exit()


_log = logging.getLogger(__name__)

GONE_SECONDS = 5.0  # for a process to go after SIGKILL


async def end_programs(programs: Sequence[Running], rest: Callable[[], float], changed: asyncio.Event) -> None:
    """Ends programs, and what of their processes was asked to end with them.

    Args:
        programs: they run.
        rest: returns the seconds that they still have.
        changed: set when those have become fewer.
    """
    if not programs:
        return
    for program in programs:
        program.terminate()
    ended = asyncio.ensure_future(all_ended(programs))
    while not ended.done():
        changed.clear()
        seconds = rest()
        if seconds <= 0:
            break
        sooner = asyncio.ensure_future(changed.wait())
        await asyncio.wait({ended, sooner}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        sooner.cancel()
    for program in programs:
        if program.still_running:
            _log.warning("%s did not end in time: SIGKILL", program.stream)
            program.kill()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ended, GONE_SECONDS)


async def all_ended(programs: Sequence[Running]) -> None:
    """Waits until the programs, and what was asked to end with them, have ended."""
    for program in programs:
        await program.ended.wait()
        while program.still_running:  # a process that is no child of ours sends no signal when it ends
            await asyncio.sleep(POLL)


LINGER = 2.0  # on a machine that is crowded a tracker of shared memory may get no CPU for a second
KILL_SECONDS = 5.0
LEFT_POLL = 0.02


async def end_leftovers(find: Callable[[], Sequence[Process]], reap: Callable[[], None]) -> int:
    """Waits for processes to end, then kills them.

    Args:
        find: returns those that are left.
        reap: waits for children that ended.

    Returns:
        How many processes were sent SIGKILL.
    """
    began = time.monotonic()
    killed: set[tuple[int, int]] = set()
    while True:
        reap()
        left = find()
        waited = time.monotonic() - began
        if not left or waited > LINGER + KILL_SECONDS:
            return len(killed)
        if waited >= LINGER:
            for process in left:
                if send(process, signal.SIGKILL):
                    killed.add((process.pid, process.start))
        await asyncio.sleep(LEFT_POLL)
