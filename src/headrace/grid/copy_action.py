"""A copy of data into a region, from its listing to its marker: shared, resumed, verified, whole or not there at all.

The listing of the data, taken first, says what is copied; its digest is in the name of the folder of the copy. So what
lies there is of this very state of the data: it is never copied again, never overwritten under a job that reads it,
and a copy of data that have changed lies elsewhere. Objects appear there as a whole or not at all. When all are there,
both sides are listed again and compared. Only then the marker is written (`headrace.grid.copied_object`).

    s3://bucket/prefix/NAME-DIGEST/objects/...        what jobs read
    s3://bucket/prefix/NAME-DIGEST/headrace-copy.json the marker

A job that reads from copies has their places in its channels; all else of it is as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from headrace.errors import HeadraceError, ObjectMissing
from headrace.grid.copied_object import (
    ARCHIVES,
    BYTES_OF_GIGABYTE,
    OBJECTS,
    Compared,
    CopyFailed,
    CopyFailure,
    CopyMarker,
    ListedObject,
    bucket_region,
    compared,
    copy_failed,
    digest_of_objects,
    list_objects,
    look_at,
    read_marker,
    write_marker,
)
from headrace.grid.grid_file import PlacementRules
from headrace.grid.load_grid import place_of
from headrace.grid.object_copier import Bucket, ObjectCopier, Piece, same_service
from headrace.instance.s3 import AS_ENVIRONMENT, S3, S3Access
from headrace.instance.storage import split
from headrace.job.job_document import apply_values

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS = 0.5
"""After so long at most it is seen that an end was asked for."""


def all_at_once(
    parallel: int, work: Callable[[T], R], items: Iterable[T], done: Callable[[T, R], object], stop: threading.Event
) -> None:
    """Works on all items in threads.

    Args:
        parallel: how many at once.
        work: what is done with an item.
        items: taken as they are needed.
        done: told of each in the caller's thread, as it is done.
        stop: ends the work; what has begun is done to its end first.

    Raises:
        CopyFailed: an end was asked for.
        what `work` raises: the first one ends the others.
    """
    left = iter(items)
    running: dict[Future[R], T] = {}
    with ThreadPoolExecutor(parallel, "headrace-copy") as pool:
        try:
            while True:
                if stop.is_set():
                    raise CopyFailed(CopyFailure.STOPPED, "the copy was stopped", "it goes on where it was")
                for item in itertools.islice(left, 2 * parallel - len(running)):
                    running[pool.submit(work, item)] = item
                if not running:
                    return
                ended, _ = wait(running, LOOK_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    done(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass
class CopyProgress:
    """How far a copy has come. It counts on: who keeps it copies it.

    Attributes:
        objects, bytes: of the whole copy.
        tell: is told of it after every object and part.
        objects_done, bytes_done: that are there; the parts of an unfinished object count.
        bytes_copied: that were not there before.
    """

    objects: int
    bytes: int
    tell: Callable[[CopyProgress], object]
    objects_done: int = 0
    bytes_done: int = 0
    bytes_copied: int = 0

    def count(self, size: int, *, copied: bool, objects: int = 1) -> None:
        """Counts an object, or bytes of one, that were not there before if they are `copied`."""
        self.objects_done += objects
        self.bytes_done += size
        self.bytes_copied += size if copied else 0
        self.tell(self)


PARALLEL = 16
MANY_PARTS = 16
"""An object of more parts is copied by itself, its parts side by side."""
TIMEOUT, ATTEMPTS = 60.0, 8
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class CopyResult(NamedTuple):
    """A whole copy.

    Attributes:
        marker: what it says of itself.
        bytes_copied: that this call copied; the rest was there.
        cost: USD for the transfer of the whole copy to whoever made it, however often he was interrupted; 0 to others.
    """

    marker: CopyMarker
    bytes_copied: int
    cost: float


@dataclass
class CopyAction:
    """A copy that was planned: `run` makes it, as often as it is called, and copies nothing twice.

    Made by `plan_copy`. Close it, or use it in ``with``.

    Attributes:
        place: ``s3://`` place of the data.
        source_region: where they are.
        objects: what is copied.
        target: ``s3://`` place of the copy, for jobs.
        price: USD a GB of transfer.
        owner: who pays for it.
        parallel: how many objects, or parts of a large one, are copied at once.
    """

    place: str
    source_region: str
    objects: Sequence[ListedObject]
    target: str
    price: float
    owner: str
    parallel: int
    _source: Bucket
    _target: Bucket
    _root: str
    _parent: str
    _found: dict[str, tuple[str, Compared]] = field(default_factory=dict)
    """ETag of each copied object, and by what it was compared."""

    def __enter__(self) -> CopyAction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._source.s3.close()
        self._target.s3.close()

    @property
    def by_service(self) -> bool:
        """Whether S3 copies them; else they pass through this machine."""
        return same_service(self._source.s3, self._target.s3)

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return sum(each.size for each in self.objects)

    @property
    def planned_cost(self) -> float:
        """USD for the transfer of all objects."""
        return self.bytes / BYTES_OF_GIGABYTE * self.price

    def is_whole(self) -> bool:
        """Tells whether the copy is there, verified, and as it was then. Raises CopyFailed."""
        return self._whole() is not None

    def run(
        self, stop: threading.Event | None = None, progress: Callable[[CopyProgress], object] = lambda _: None
    ) -> CopyResult:
        """Copies what is not there yet, verifies all of it, and writes the marker.

        Args:
            stop: ends the copy; what is there stays.
            progress: told of it, in this thread.

        Raises:
            CopyFailed: it is not whole; a `passing` failure may go well another time.
        """
        counted = CopyProgress(len(self.objects), self.bytes, progress)
        marker = self._whole()
        if marker is not None:
            counted.count(self.bytes, copied=False, objects=len(self.objects))
        else:
            self._copy(stop or threading.Event(), counted)
            marker = self._marked(*self._verified())
        return CopyResult(marker, counted.bytes_copied, self.planned_cost if marker.owner == self.owner else 0.0)

    # --- copying -------------------------------------------------------------------------------------------------

    def _copy(self, stop: threading.Event, counted: CopyProgress) -> None:
        there = {each.key: each for each in self._listed()}
        copier = ObjectCopier(self._source, self._target, dict(self._uploads()), self.by_service)

        def one(entry: ListedObject) -> bool:
            if self._is_there(entry, there):
                return False
            self._take(entry, copier.copy(entry, self._key(entry)))
            return True

        def large(entry: ListedObject) -> bool:
            return entry.parts > MANY_PARTS

        def parts(work: Callable[[Piece], str], pieces: Sequence[Piece]) -> Iterable[str]:
            etags: dict[int, str] = {}

            def sent(piece: Piece, etag: str) -> None:
                etags[piece.number] = etag
                counted.count(piece.size, copied=True, objects=0)

            all_at_once(self.parallel, work, pieces, sent, stop)
            return [etags[piece.number] for piece in pieces]

        small = (entry for entry in self.objects if not large(entry))
        all_at_once(self.parallel, one, small, lambda entry, new: counted.count(entry.size, copied=new), stop)
        for entry in filter(large, self.objects):
            if self._is_there(entry, there):
                counted.count(entry.size, copied=False)
            else:
                self._take(entry, copier.copy(entry, self._key(entry), parts))
                counted.count(0, copied=True)  # its parts were counted
        self._abort_uploads()

    def _is_there(self, entry: ListedObject, there: Mapping[str, ListedObject]) -> bool:
        """Tells whether an earlier run has copied an object."""
        found = there.get(self._key(entry))
        by = self._compared(entry, found) if found else None
        if found and by:
            self._found[found.key] = found.etag, by
        return by is not None

    def _take(self, entry: ListedObject, etag: str) -> None:
        """Compares a new copy with what was listed, and notes it."""
        key = self._key(entry)
        by = self._compared(entry, ListedObject(key, entry.size, etag))
        if by is None:
            raise CopyFailed(CopyFailure.TARGET_DIFFERS, f"{self._uri(key)} has other content than {self._from(entry)}")
        self._found[key] = etag, by

    def _compared(self, entry: ListedObject, copy: ListedObject) -> Compared | None:
        if entry.size != copy.size:
            return None
        if entry.etag == copy.etag:
            return Compared.ETAG
        with _failing(writing=False):
            looks = look_at(*self._source, entry.key), look_at(*self._target, copy.key)
        return compared((entry.etag, looks[0]), (copy.etag, looks[1]))

    def _uploads(self) -> list[tuple[str, str]]:
        """Returns key and identifier of every unfinished upload."""
        with _failing(writing=True), self._target.s3.told(self.target):
            pages = self._target.s3.client.get_paginator("list_multipart_uploads")
            listed = pages.paginate(Bucket=self._target.name, Prefix=self._root + OBJECTS)
            return [(each["Key"], each["UploadId"]) for page in listed for each in page.get("Uploads", ())]

    def _abort_uploads(self) -> None:
        """Removes uploads that nobody will finish: their parts cost money."""
        for key, identifier in self._uploads():
            with _failing(writing=True), contextlib.suppress(ObjectMissing), self._target.s3.told(self._uri(key)):
                self._target.s3.client.abort_multipart_upload(Bucket=self._target.name, Key=key, UploadId=identifier)

    # --- verifying -----------------------------------------------------------------------------------------------

    def _verified(self) -> tuple[Counter[Compared], str]:
        """Compares the listing of the copy with that of the data, which must be what it was.

        Returns:
            How many objects were found to be the same, by what; and the digest of the listing of the copy.
        """
        with _failing(writing=False):
            now = list_objects(self._source.s3, *split(self.place))
        if now != self.objects:
            changed = sorted({each.key for each in {*now, *self.objects} - ({*now} & {*self.objects})})
            raise CopyFailed(
                CopyFailure.SOURCE_CHANGED,
                f"{self.place} changed while it was copied: {len(changed)} objects, such as {changed[0]}",
                "start again when nobody writes there; the copy of the new state has a folder of its own",
            )
        listed = self._listed()
        there = {each.key: each for each in listed}
        counts: Counter[Compared] = Counter()
        for entry in self.objects:
            key = self._key(entry)
            copy = there.pop(key, None)
            if copy is None:
                raise CopyFailed(CopyFailure.TARGET_DIFFERS, f"{self._uri(key)} was copied and is not there")
            etag, by = self._found[key]
            found = by if etag == copy.etag and entry.size == copy.size else self._compared(entry, copy)
            if found is None:
                message = f"{self._uri(key)} has other content than {self._from(entry)}"
                raise CopyFailed(CopyFailure.TARGET_DIFFERS, message)
            counts[found] += 1
        if there:
            raise CopyFailed(
                CopyFailure.TARGET_DIFFERS,
                f"{self.target} holds {len(there)} objects that were not copied, such as {self._uri(min(there))}",
                "remove them: a job would read them",
            )
        return counts, digest_of_objects(listed)

    def _marked(self, counts: Counter[Compared], digest: str) -> CopyMarker:
        """Writes the marker."""
        marker = CopyMarker(
            place=self.place,
            source_region=self.source_region,
            objects=len(self.objects),
            bytes=self.bytes,
            source_digest=digest_of_objects(self.objects),
            copy_digest=digest,
            compared={by.value: count for by, count in counts.items()},
            owner=self.owner,
            finished=time.time(),
        )
        with _failing(writing=True):
            write_marker(*self._target, self._root, marker)
        return marker

    def _whole(self) -> CopyMarker | None:
        with _failing(writing=True):
            marker = read_marker(*self._target, self._root)
        if marker is None or marker.source_digest != digest_of_objects(self.objects):
            return None
        return marker if marker.copy_digest == digest_of_objects(self._listed()) else None

    # --- names ---------------------------------------------------------------------------------------------------

    def _listed(self) -> tuple[ListedObject, ...]:
        with _failing(writing=True):
            return list_objects(*self._target, self._root + OBJECTS)

    def _key(self, entry: ListedObject) -> str:
        return f"{self._root}{OBJECTS}{entry.key[len(self._parent) :]}"

    def _uri(self, key: str) -> str:
        return f"s3://{self._target.name}/{key}"

    def _from(self, entry: ListedObject) -> str:
        return f"s3://{self._source.name}/{entry.key}"


def plan_copy(
    place: str,
    copy_to: str,
    *,
    source: S3Access = AS_ENVIRONMENT,
    target: S3Access = AS_ENVIRONMENT,
    price: float = 0.0,
    owner: str = "",
    parallel: int = PARALLEL,
) -> CopyAction:
    """Lists the data, and says where their copy lies. Nothing is written.

    Args:
        place: ``s3://`` place of the data: all objects whose keys begin with it.
        copy_to: ``s3://`` place below which copies lie, in the region of `target`.
        source, target: how the buckets of the two regions are reached; those of `target` copy, and must be allowed to
            read the data.
        price: USD a GB of transfer.
        owner: who pays for the copy, such as the name of a grid.
        parallel: how many objects, or parts of a large one, are copied at once.

    Raises:
        CopyFailed: the data cannot be listed, there are none, or they cannot be copied as they are.
    """
    with _failing(writing=False):
        bucket, prefix = split(place)
        target_bucket, below = split(copy_to)
        clients = {access: S3(TIMEOUT, ATTEMPTS, parallel + 2, access) for access in {source, target}}
        try:
            objects = list_objects(clients[source], bucket, prefix)
            _check(place, objects)
            if bucket == target_bucket and f"{below.rstrip('/')}/".lstrip("/").startswith(prefix):
                raise CopyFailed(CopyFailure.OVERLAP, f"{copy_to} lies in {place}", "copies need a place of their own")
            with _failing(writing=True):
                there = bucket_region(clients[target], target_bucket)
            if target.region and there not in ("", target.region):
                message = f"{copy_to} must be in {target.region}; the bucket is in {there}"
                raise CopyFailed(CopyFailure.WRONG_REGION, message)
        except BaseException:
            for client in clients.values():
                client.close()
            raise
    root = f"{below.rstrip('/')}/".lstrip("/") + _folder(place, objects)
    parent = prefix[: prefix.rfind("/") + 1]
    return CopyAction(
        place=place,
        source_region=source.region,
        objects=objects,
        target=f"s3://{target_bucket}/{root}{OBJECTS}{prefix[len(parent) :]}",
        price=price,
        owner=owner,
        parallel=parallel,
        _source=Bucket(clients[source], bucket),
        _target=Bucket(clients[target], target_bucket),
        _root=root,
        _parent=parent,
    )


def _check(place: str, objects: Sequence[ListedObject]) -> None:
    if not objects:
        hint = "check the prefix, and the account that it is asked of"
        raise CopyFailed(CopyFailure.SOURCE_MISSING, f"{place} holds no objects", hint)
    archived = [each for each in objects if each.storage in ARCHIVES]
    if archived:
        message = f"{place}: {len(archived)} objects are in an archive, such as {archived[0].key}"
        raise CopyFailed(CopyFailure.ARCHIVED, message, "restore them, and copy them to another class of storage")


def _folder(place: str, objects: Iterable[ListedObject]) -> str:
    name = _NAME.sub("-", place.removeprefix("s3://").rstrip("/").rpartition("/")[2])[:64]
    digest = hashlib.sha256(f"{place}\n{digest_of_objects(objects)}".encode()).hexdigest()
    return f"{name}-{digest[:16]}/"


@contextlib.contextmanager
def _failing(*, writing: bool) -> Iterator[None]:
    """Makes a CopyFailed of every error of headrace."""
    try:
        yield
    except HeadraceError as error:
        raise copy_failed(error, writing=writing) from error


def read_from_copies(job: Mapping[str, Any], copies: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys of a job whose channels read copies.

    >>> read_from_copies({"inputs": {"train": "s3://far/data"}}, {"s3://far/data": "s3://near/data-1/objects/data"})
    {'inputs': {'train': 's3://near/data-1/objects/data'}}

    Args:
        job: keys of a job, as `headrace.grid.load_grid.Grid.jobs` has them.
        copies: place of the copy by place of the data, of whole copies only.
    """
    channels = job.get("inputs")
    if not channels:
        return dict(job)
    return {**job, "inputs": {name: _channel(channel, copies) for name, channel in channels.items()}}


def _channel(channel: Any, copies: Mapping[str, str]) -> Any:
    if isinstance(channel, str):
        return copies.get(channel, channel)
    place = channel.get("s3_data", "")
    return {**channel, "s3_data": copies[place]} if place in copies else channel


def access_in(region: str, job: Mapping[str, Any], in_regions: Mapping[str, Mapping[str, object]]) -> S3Access:
    """Returns how the buckets of a region are reached. Pure.

    That is the profile and the address that a job of this region has for the service SageMaker; else as the
    environment says.

    Args:
        region: its name.
        job: keys of the grid's job.
        in_regions: what of it is another in a region, by region.
    """
    fields = in_regions.get(region, {})
    data = apply_values(job, ((place_of(name), value) for name, value in fields.items()), region).data
    engines: Any = data.get("engines") or {}
    options = engines.get("sagemaker") or {}
    endpoint = (options.get("endpoint_urls") or {}).get("s3") or options.get("endpoint_url")
    return S3Access(options.get("profile") or "", region, endpoint or "")


def plan_grid_copy(
    place: str,
    source: str,
    region: str,
    rules: PlacementRules,
    job: Mapping[str, Any],
    in_regions: Mapping[str, Mapping[str, object]],
    owner: str,
) -> CopyAction:
    """Lists the data of a copy, and says where it goes. Nothing is written.

    Args:
        place: ``s3://`` place of the data.
        source, region: where they are, and into which region they go.
        rules: of the grid.
        job: keys of the grid's job, `Grid.template.data`.
        in_regions: what is another in a region, by region.
        owner: who pays for it, such as the grid's name and when it was started: an owner that is asked again, after it
            was killed, is told the cost again.

    Raises:
        CopyFailed: the grid has no place for copies in that region; the data cannot be listed or copied.
    """
    if region not in rules.copy_to:
        hint = f"placement: {{copy_to: {{{region}: s3://BUCKET/PREFIX}}}}"
        message = f"{place} must be copied to {region}, and copy_to names no place there"
        raise CopyFailed(CopyFailure.TARGET_MISSING, message, hint)
    return plan_copy(
        place,
        rules.copy_to[region],
        source=access_in(source, job, in_regions),
        target=access_in(region, job, in_regions),
        price=rules.transfer.price,
        owner=owner,
    )
