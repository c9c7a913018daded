"""CloudWatch Logs over the logs of the runs: one group, a stream for each host, and events in an order that stays.

What clients hold on to: a forward token in every answer, the same one again at the end; `startTime` is inclusive and
honoured; all streams of a job are there once it runs, also of a host that says nothing; an event keeps its place.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.services.identities import ACCOUNT
from headrace.endpoint.services.merged_log import LogEvent, MergedLog
from headrace.endpoint.services.service import Service
from headrace.endpoint.wire.protocols import ServiceError
from headrace.endpoint.wire.requests import Members

GROUP = "/aws/sagemaker/TrainingJobs"
WRONG = "InvalidParameterException"
_PAGE_BYTES = 1 << 20
_EVENT_OVERHEAD = 26
_MOST_EVENTS = 10_000
_STREAMS = 50
_TOKEN = re.compile(r"([fb])/(\d{56})/s")

T = TypeVar("T")


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
                raise ServiceError(WRONG, "The specified nextToken is invalid.")
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
                return {"events": found, "searchedLogStreams": [], "nextToken": _token_of(places)}
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
    first = _read_token(members.get("nextToken"), int)
    last = first + min(_number(members, "limit", most), most)
    return entries[first:last], {"nextToken": _token_of(last)} if last < len(entries) else {}


def _token_of(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def _read_token(token: object, kind: type[T]) -> T:
    if token is None:
        return kind()
    try:
        value = json.loads(base64.b64decode(str(token).encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        value = None
    if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
        raise ServiceError(WRONG, "The specified nextToken is invalid.")
    return value


def _read_places(token: object, streams: Sequence[LogStream]) -> dict[str, int]:
    """Returns where each stream goes on; nothing for one that begins."""
    logs = {stream.name: stream.log for stream in streams}
    found: Mapping[str, object] = _read_token(token, dict)
    for name, at in found.items():
        if name not in logs or not isinstance(at, int) or isinstance(at, bool) or not logs[name].is_start(at):
            raise ServiceError(WRONG, "The specified nextToken is invalid.")
    return {name: at for name, at in found.items() if isinstance(at, int)}
