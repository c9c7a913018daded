"""CloudWatch Logs over the logs of the runs: one group, a stream for each host, and events in an order that stays.

What clients hold on to: a forward token in every answer, the same one again at the end; `startTime` is inclusive and
honoured; all streams of a job are there once it runs, also of a host that says nothing; an event keeps its place.

The programs of a host write a log each. Here their lines are merged by time once, as they come, and kept in a file that
only grows: a client that goes on from a token, or from the time of its last event, must never find a line before it
that was not there. Times never fall within the file. A line of it is ``<time> <taken> <program> <offset> <text>``,
times in milliseconds; the offset is where the program's own log goes on, so that a new process goes on where this one
ended.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.services.service import ACCOUNT, Service, read_token, token_of
from headrace.endpoint.wire.models import ServiceError
from headrace.endpoint.wire.requests import Members
from headrace.runs import RunPaths
from headrace.runs.log_lines import Selector
from headrace.runs.log_pages import MOST_LINES, Cursor, LogQuery, LogRecord, page_from
from headrace.runs.run_paths import AGENT, Stream

HOLD_SECONDS = 0.1
"""A line is taken when it is older: by then the other programs' lines of its time are on disk too."""
EVENT_BYTES = 256 << 10
_CHUNK = 1 << 16
_NOTE = "-"


class LogEvent(NamedTuple):
    """One event.

    Attributes:
        at: byte offset in the stream: its place, for ever.
        end: where the next one begins.
        timestamp: of the line, milliseconds since the epoch.
        ingested: when it was taken.
        message: the line.
    """

    at: int
    end: int
    timestamp: int
    ingested: int
    message: str


class MergedLog:
    """The stream of one host.

    Args:
        path: the file; it is made, with its folder.
        note: the stream's first line.
        begun: when the stream begins, seconds since the epoch.
    """

    def __init__(self, path: Path, note: str, begun: float) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._append([_line(int(begun * 1000), _NOTE, 0, note)])
        self._cursor, self._newest = self._read_cursor()

    def take(self, paths: RunPaths, host: str, final: bool) -> None:
        """Takes what is new in the logs of a host.

        Args:
            paths: the run.
            host: its name.
            final: nothing more will be written; else the newest lines are left for the next time.

        Raises:
            OSError: something cannot be read or written.
        """
        with self._lock:
            query = LogQuery(Selector(host=host), limit=MOST_LINES)
            more = True
            while more:
                limit = float("inf") if final else time.time() - HOLD_SECONDS
                page = page_from(paths, query, self._cursor, forwards=True)
                more = not page.last
                lines = []
                for record in page.lines:
                    if (record.t or 0.0) > limit:
                        more = False
                        break
                    stream = str(Stream(record.group, record.host, record.stream))
                    self._cursor[stream] = record.at + record.size
                    if record.stream != AGENT:
                        self._newest = max(self._newest, int((record.t or 0.0) * 1000))
                        lines.append(_line(self._newest, stream, record.at + record.size, _text(paths, record)))
                self._append(lines)
                more = more and bool(page.lines)

    def _append(self, lines: list[bytes]) -> None:
        if lines:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                with os.fdopen(descriptor, "ab") as file:
                    file.write(b"".join(lines))
            except OSError:
                self._cursor, self._newest = self._read_cursor()  # as far as it came
                raise

    def _cut(self) -> None:
        """Takes away the part of a line that a full disk, or the death of an earlier process, left at the end."""
        with self._path.open("r+b") as file:
            file.truncate(_line_start(file.fileno(), os.fstat(file.fileno()).st_size))

    def _read_cursor(self) -> tuple[Cursor, int]:
        self._cut()
        cursor: Cursor = {}
        newest = 0
        with self._path.open("rb") as file:
            for line in file:
                stamp, _, stream, offset, _ = line.split(b" ", 4)
                newest = int(stamp)
                if stream != _NOTE.encode():
                    cursor[unquote(stream.decode())] = int(offset)
        return cursor, newest

    @property
    def size(self) -> int:
        """Bytes of the stream so far; the token of its end."""
        return self._path.stat().st_size

    def times(self) -> tuple[int, int, int]:
        """Returns the times of the first and the last event, and when the last one was taken, in milliseconds."""
        first = next(self.events(0))
        last = next(self.events_before(self.size))
        return first.timestamp, last.timestamp, last.ingested

    def events(self, at: int) -> Iterator[LogEvent]:
        """Yields the events from an offset on, which is the beginning of one, to the end of now."""
        with self._path.open("rb") as file:
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                yield _event(at, line)
                at += len(line)

    def events_before(self, at: int) -> Iterator[LogEvent]:
        """Yields the events before an offset, the nearest first."""
        with self._path.open("rb") as file:
            while at > 0:
                begin = _line_start(file.fileno(), at - 1)
                yield _event(begin, os.pread(file.fileno(), at - begin, begin))
                at = begin

    def seek(self, timestamp: int) -> int:
        """Returns the offset of the first event at or after a time in milliseconds; the size, if there is none."""
        with self._path.open("rb") as file:
            number = file.fileno()
            low, high = 0, os.fstat(number).st_size
            while low < high:
                begin = _line_start(number, (low + high) // 2)
                file.seek(begin)
                line = file.readline()
                if int(line.split(b" ", 1)[0]) < timestamp:
                    low = begin + len(line)
                else:
                    high = begin
            return low

    def is_start(self, at: int) -> bool:
        """Tells whether an offset is the beginning of an event, or the end."""
        if not 0 <= at <= self.size:
            return False
        with self._path.open("rb") as file:
            return at == 0 or os.pread(file.fileno(), 1, at - 1) == b"\n"


def _line(stamp: int, stream: str, offset: int, text: str) -> bytes:
    where = quote(stream, safe="-[]/")
    kept = text.replace("\n", " ").encode(errors="replace")[:EVENT_BYTES]
    return f"{stamp} {int(time.time() * 1000)} {where} {offset} ".encode() + kept + b"\n"


def _event(at: int, line: bytes) -> LogEvent:
    stamp, taken, _, _, text = line.split(b" ", 4)
    return LogEvent(at, at + len(line), int(stamp), int(taken), text[:-1].decode("utf-8", "replace"))


def _text(paths: RunPaths, record: LogRecord) -> str:
    """Returns the whole of a line; a page has its first bytes only."""
    if not record.cut:
        return record.text
    path = paths.log(Stream(record.group, record.host, record.stream))
    with path.open("rb") as file:
        line = os.pread(file.fileno(), min(record.size, EVENT_BYTES + _CHUNK), record.at)
    return line.rstrip(b"\n").split(b" ", 2)[-1].decode("utf-8", "replace")


def _line_start(number: int, at: int) -> int:
    """Returns the beginning of the line that holds a byte."""
    while at > 0:
        begin = max(0, at - _CHUNK)
        newline = os.pread(number, at - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return 0


GROUP = "/aws/sagemaker/TrainingJobs"
WRONG = "InvalidParameterException"
_PAGE_BYTES = 1 << 20
_EVENT_OVERHEAD = 26
_MOST_EVENTS = 10_000
_STREAMS = 50
_TOKEN = re.compile(r"([fb])/(\d{56})/s")


@dataclass(frozen=True)
class LogStream:
    """One stream.

    Attributes:
        name: ``<job>/algo-N-<time>``.
        log: its events.
        created: when it was made, seconds since the epoch.
    """

    name: str
    log: MergedLog
    created: float


class LogSource(Protocol):
    """Whatever has the streams of jobs."""

    def job_names(self) -> Sequence[str]:
        """Returns the names of all jobs that have streams."""

    def streams(self, job_name: str) -> Sequence[LogStream]:
        """Returns the streams of a job, up to date; none for a job that is not known, or has none."""


def logs(source: LogSource, region: str) -> Service:
    """Returns the service."""
    found = _CloudWatchLogs(source, region)
    operations = {
        "DescribeLogGroups": found.describe_log_groups,
        "DescribeLogStreams": found.describe_log_streams,
        "GetLogEvents": found.get_log_events,
        "FilterLogEvents": found.filter_log_events,
    }
    return Service("logs", ("logs",), operations, WRONG)


class _CloudWatchLogs:
    def __init__(self, source: LogSource, region: str) -> None:
        self._source = source
        self._region = region

    def describe_log_groups(self, members: Members, _: Caller) -> dict[str, object]:
        prefix, pattern = str(members.get("logGroupNamePrefix", "")), str(members.get("logGroupNamePattern", ""))
        arn = f"arn:aws:logs:{self._region}:{ACCOUNT}:log-group:{GROUP}"
        group = {"logGroupName": GROUP, "creationTime": 0, "arn": f"{arn}:*", "logGroupArn": arn, "storedBytes": 0}
        return {"logGroups": [group] if GROUP.startswith(prefix) and pattern in GROUP else []}

    def describe_log_streams(self, members: Members, caller: Caller) -> dict[str, object]:
        _check_group(members)
        prefix = str(members.get("logStreamNamePrefix", ""))
        by_time = members.get("orderBy") == "LastEventTime"
        if by_time and prefix:
            raise ServiceError(WRONG, "Cannot order by LastEventTime with a logStreamNamePrefix.")
        entries = [self._described(stream) for stream in self._matching(prefix, caller)]
        key = "lastEventTimestamp" if by_time else "logStreamName"
        entries.sort(key=lambda entry: (entry[key], entry["logStreamName"]), reverse=bool(members.get("descending")))
        page, token = _page(entries, members, _STREAMS)
        return {"logStreams": page, **token}

    def _described(self, stream: LogStream) -> dict[str, object]:
        first, last, taken = stream.log.times()
        return {
            "logStreamName": stream.name,
            "creationTime": int(stream.created * 1000),
            "firstEventTimestamp": first,
            "lastEventTimestamp": last,
            "lastIngestionTime": taken,
            "uploadSequenceToken": f"{stream.log.size:056d}",
            "arn": f"arn:aws:logs:{self._region}:{ACCOUNT}:log-group:{GROUP}:log-stream:{stream.name}",
            "storedBytes": 0,
        }

    def get_log_events(self, members: Members, caller: Caller) -> dict[str, object]:
        _check_group(members)
        log = self._stream(str(members["logStreamName"]), caller).log
        start, end = _times(members)
        limit = _number(members, "limit", _MOST_EVENTS)
        token = members.get("nextToken")
        forwards = bool(members.get("startFromHead"))
        low, high = log.seek(start), log.size if end is None else log.seek(end)
        if token is not None:
            found = _TOKEN.fullmatch(str(token))
            if found is None or not log.is_start(int(found[2])):
                raise _wrong_token()
            forwards, at = found[1] == "f", int(found[2])
        else:
            at = low if forwards else high
        if forwards:
            at = max(at, low)
            events = _until(log.events(at), high, limit)
            begin, after = (events[0].at, events[-1].end) if events else (at, at)
        else:
            at = min(at, high)
            events = _until(log.events_before(at), low, limit, backwards=True)
            begin, after = (events[0].at, at) if events else (at, at)
        return {
            "events": [_shown(event) for event in events],
            "nextForwardToken": f"f/{after:056d}/s",
            "nextBackwardToken": f"b/{begin:056d}/s",
        }

    def filter_log_events(self, members: Members, caller: Caller) -> dict[str, object]:
        _check_group(members)
        names, prefix = members.get("logStreamNames"), members.get("logStreamNamePrefix")
        if names and prefix:
            raise ServiceError(WRONG, "logStreamNames and logStreamNamePrefix cannot both be given")
        streams = [self._stream(name, caller) for name in names] if isinstance(names, list) and names else None
        streams = self._matching(str(prefix or ""), caller) if streams is None else streams
        if members.get("filterPattern"):
            raise ServiceError(WRONG, "headrace serve has no filter patterns; ask for all events, and choose there")
        start, end = _times(members)
        limit = _number(members, "limit", _MOST_EVENTS)
        places = _read_places(members.get("nextToken"), streams)
        heads = [
            zip(stream.log.events(places.get(stream.name, stream.log.seek(start))), itertools.repeat(stream))
            for stream in streams
        ]
        found: list[dict[str, object]] = []
        size = 0
        for event, stream in heapq.merge(*heads, key=lambda pair: (pair[0].timestamp, pair[1].name, pair[0].at)):
            if end is not None and event.timestamp >= end:
                break
            if len(found) >= limit or size > _PAGE_BYTES:
                return {"events": found, "searchedLogStreams": [], "nextToken": token_of(places)}
            places[stream.name] = event.end
            size += len(event.message) + _EVENT_OVERHEAD
            found.append({**_shown(event), "logStreamName": stream.name, "eventId": _event_id(stream, event)})
        return {"events": found, "searchedLogStreams": []}

    def _matching(self, prefix: str, caller: Caller) -> list[LogStream]:
        """Returns the streams of the caller's jobs whose names begin with a text."""
        job, slash, _ = prefix.partition("/")
        names = [job] if slash else [name for name in self._source.job_names() if name.startswith(prefix)]
        owned = [name for name in names if caller.owns(name)]
        return [stream for name in owned for stream in self._source.streams(name) if stream.name.startswith(prefix)]

    def _stream(self, name: str, caller: Caller) -> LogStream:
        job = name.partition("/")[0]
        for stream in self._source.streams(job) if caller.owns(job) else ():
            if stream.name == name:
                return stream
        raise ServiceError("ResourceNotFoundException", "The specified log stream does not exist.")


def _check_group(members: Members) -> None:
    name, identifier = members.get("logGroupName"), members.get("logGroupIdentifier")
    if not name and not identifier:
        raise ServiceError(WRONG, "one of logGroupName and logGroupIdentifier must be given")
    if name not in (None, GROUP) or (identifier and not str(identifier).removesuffix(":*").endswith(GROUP)):
        raise ServiceError("ResourceNotFoundException", "The specified log group does not exist.")


def _times(members: Members) -> tuple[int, int | None]:
    end = members.get("endTime")
    return _number(members, "startTime", 0), None if end is None else int(str(end))


def _number(members: Members, name: str, default: int) -> int:
    value = members.get(name, default)
    assert isinstance(value, int)
    return value


def _until(events: Iterator[LogEvent], stop: int, limit: int, backwards: bool = False) -> list[LogEvent]:
    """Takes events up to an offset: so many, and so many bytes, as one answer has. They come in the stream's order."""
    found: list[LogEvent] = []
    size = 0
    for event in events:
        if len(found) >= limit or (event.at < stop if backwards else event.at >= stop):
            break
        size += len(event.message.encode()) + _EVENT_OVERHEAD
        if size > _PAGE_BYTES and found:
            break
        found.append(event)
    return found[::-1] if backwards else found


def _shown(event: LogEvent) -> dict[str, object]:
    return {"timestamp": event.timestamp, "message": event.message, "ingestionTime": event.ingested}


def _event_id(stream: LogStream, event: LogEvent) -> str:
    host = re.sub(r"\D", "", stream.name.rpartition("/")[2])[:20]
    return f"{event.timestamp:014d}{int(host or 0):020d}{event.at:022d}"


def _page(entries: list[dict[str, object]], members: Members, most: int) -> tuple[list[dict[str, object]], Members]:
    """Returns a page of a list, and what names the next one."""
    first = read_token(members.get("nextToken"), int, _wrong_token())
    last = first + min(_number(members, "limit", most), most)
    return entries[first:last], {"nextToken": token_of(last)} if last < len(entries) else {}


def _wrong_token() -> ServiceError:
    return ServiceError(WRONG, "The specified nextToken is invalid.")


def _read_places(token: object, streams: Sequence[LogStream]) -> dict[str, int]:
    """Returns where each stream goes on; nothing for one that begins."""
    logs = {stream.name: stream.log for stream in streams}
    found: Mapping[str, object] = read_token(token, dict, _wrong_token())
    for name, at in found.items():
        if name not in logs or not isinstance(at, int) or isinstance(at, bool) or not logs[name].is_start(at):
            raise _wrong_token()
    return {name: at for name, at in found.items() if isinstance(at, int)}
