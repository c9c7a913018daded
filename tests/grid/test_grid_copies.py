"""Copies of data: whole or not there, whatever happens; nothing twice; what was compared is said."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from flaky_s3 import flaky
from headrace.errors import StorageError
from headrace.grid import copy_action
from headrace.grid.copied_object import Compared, CopyFailed, CopyFailure, Look, compared
from headrace.grid.copy_action import (
    CopyAction,
    CopyProgress,
    access_in,
    plan_copy,
    plan_grid_copy,
    read_from_copies,
)
from headrace.grid.grid_file import PlacementRules
from headrace.instance.channels.object_listing import name_of
from headrace.instance.s3 import S3Access
from headrace.instance.storage import Store, split
from objectstore import ObjectStore
from patience import until

PART = 5 << 20  # S3's smallest


@pytest.fixture
def far(s3: ObjectStore) -> ObjectStore:
    """A bucket with data, of which the other bucket gets copies."""
    bucket = f"far-{s3.bucket}"
    s3.client.create_bucket(Bucket=bucket)
    return ObjectStore(s3.endpoint, bucket, s3.client)


def planned(far: ObjectStore, near: ObjectStore, prefix: str = "data", **more: object) -> CopyAction:
    return plan_copy(far.uri(prefix), near.uri("copies"), price=0.02, **more)


def kept_in(news: list[CopyProgress]) -> Callable[[CopyProgress], None]:
    """Keeps each state of a progress, which counts on."""
    return lambda progress: news.append(replace(progress))


def contents(store: ObjectStore, place: str) -> dict[str, str]:
    """What a channel that reads a place holds: digest by path."""
    with Store() as opened:
        prefix = split(place)[1]
        return {
            name_of(each.key, prefix): hashlib.md5(opened.read(each.uri)).hexdigest() for each in opened.list(place)
        }


def in_parts(store: ObjectStore, key: str, sizes: list[int]) -> None:
    place = {"Bucket": store.bucket, "Key": key}
    upload = place | {"UploadId": store.client.create_multipart_upload(**place, ContentType="x/y")["UploadId"]}
    parts = []
    for number, size in enumerate(sizes, 1):
        etag = store.client.upload_part(**upload, PartNumber=number, Body=os.urandom(size))["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    store.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


@pytest.mark.parametrize("prefix", ["data", "data/", "data/x", "", "data/x/a b+é.csv"])
def test_a_job_finds_in_the_copy_the_files_that_it_would_find_in_the_data(
    prefix: str, far: ObjectStore, s3: ObjectStore
) -> None:
    for key in ("data/x/a b+é.csv", "data/x1/a.csv", "data/empty", "database"):
        far.put(key, key.encode() if key != "data/empty" else b"")
    far.put("data/x/", b"")
    with planned(far, s3, prefix) as action:
        assert not action.is_whole()
        told: list[CopyProgress] = []
        done = action.run(progress=kept_in(told))
        assert action.is_whole()
        assert contents(s3, action.target) == contents(far, far.uri(prefix))
        assert done.marker.objects == len(action.objects) == told[-1].objects_done
        assert (done.marker.bytes, done.bytes_copied) == (action.bytes, action.bytes)
        assert told[-1].bytes_done == action.bytes
        assert done.cost == pytest.approx(action.bytes / 1e9 * 0.02)
        assert done.marker.compared == {"etag": done.marker.objects}
        assert action.by_service
    job = {"inputs": {"train": {"s3_data": far.uri(prefix)}, "test": far.uri(prefix), "other": "s3://other"}, "a": 1}
    read = read_from_copies(job, {far.uri(prefix): action.target})
    assert read == {
        "inputs": {"train": {"s3_data": action.target}, "test": action.target, "other": "s3://other"},
        "a": 1,
    }


def test_the_parts_of_an_object_are_those_of_its_source_so_that_etags_are_compared(
    far: ObjectStore, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts(far, "data/uneven", [PART, PART + 7, 9])
    in_parts(far, "data/one", [3])
    for most in (16, 2):  # in one thread, and by itself
        monkeypatch.setattr(copy_action, "MANY_PARTS", most)
        far.put("data/small", bytes([most]))
        told: list[CopyProgress] = []
        with planned(far, s3) as action:
            done = action.run(progress=kept_in(told))
            assert done.marker.compared == {"etag": 3}
            assert [each.bytes_done for each in told] == sorted(each.bytes_done for each in told)
            assert told[-1].bytes_copied == done.marker.bytes == 2 * PART + 20
            head = s3.client.head_object(Bucket=s3.bucket, Key=f"{split(action.target)[1]}/uneven")
            assert head["ContentType"] == "x/y"
            assert (len(told) > 3) == (most == 2), "the parts of a large object are told of one by one"


KILLED = """
import sys
from headrace.grid.copy_action import plan_copy
from headrace.instance.s3 import S3Access
access = S3Access(region="us-east-1", endpoint=sys.argv[3])
plan_copy(sys.argv[1], sys.argv[2], source=access, target=access, parallel=2).run()
"""


@pytest.mark.promise("grid-reference", "a copy of data is whole or not used; a killed one copies nothing twice")
def test_a_copy_that_is_killed_is_never_taken_for_whole_and_copies_nothing_twice(
    far: ObjectStore, s3: ObjectStore
) -> None:
    in_parts(far, "data/a", [PART, PART, 5])
    for number in range(12):
        far.put(f"data/b{number:02}", os.urandom(10))
    with flaky(s3.endpoint) as proxy:
        access = S3Access(region="us-east-1", endpoint=proxy.endpoint)
        with plan_copy(far.uri("data"), s3.uri("copies"), source=access, target=access) as action:
            for least in (1, 8):  # requests that write
                proxy.requests.clear()
                proxy.delay = 0.3
                command = [sys.executable, "-c", KILLED, far.uri("data"), s3.uri("copies"), proxy.endpoint]
                process = subprocess.Popen(command)
                try:
                    until(lambda least=least: proxy.requests["PUT"] >= least, 60)
                finally:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                until(lambda: not proxy.busy, 60)  # the server has done what was asked
                proxy.delay = 0.0
                assert not action.is_whole()
                assert s3.listed() or least < 8
            there = [key for key in s3.listed() if key.endswith(tuple(each.key for each in action.objects))]
            parts = sum(len(parts_of(s3, each)) for each in uploads_of(s3))
            proxy.requests.clear()
            done = action.run()
            assert there
            left = 13 - len(there) + (0 if any(key.endswith("/a") for key in there) else 2 - parts)
            assert proxy.requests["PUT"] == left + 1, "what was not there, and the marker"
            assert action.is_whole()
            assert done.bytes_copied < done.marker.bytes
            assert done.cost == 0, "nobody said a price"
            assert uploads_of(s3) == []
            assert contents(s3, action.target) == contents(far, far.uri("data"))
            proxy.requests.clear()
            assert action.run().bytes_copied == 0
            assert proxy.requests["PUT"] == 0


def uploads_of(store: ObjectStore) -> list[dict[str, str]]:
    return store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", [])


def parts_of(store: ObjectStore, upload: dict[str, str]) -> list[object]:
    found = store.client.list_parts(Bucket=store.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return found.get("Parts", [])


def test_what_breaks_off_an_upload_in_parts_leaves_its_parts_to_the_next_run(
    far: ObjectStore, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_action, "MANY_PARTS", 2)
    in_parts(far, "data/a", [PART, PART, PART, 5])
    stop = threading.Event()

    def first(progress: CopyProgress) -> None:
        stop.set()

    with planned(far, s3, parallel=1) as action:
        with pytest.raises(CopyFailed) as stopped:
            action.run(stop, first)
        assert (stopped.value.failure, stopped.value.passing) == (CopyFailure.STOPPED, True)
        assert not action.is_whole()
        (upload,) = uploads_of(s3)
        count = len(parts_of(s3, upload))
        assert 0 < count < 4
        with flaky(s3.endpoint) as proxy:
            access = S3Access(region="us-east-1", endpoint=proxy.endpoint)
            with plan_copy(far.uri("data"), s3.uri("copies"), source=access, target=access) as again:
                again.run()
            assert proxy.requests["PUT"] == 4 - count + 1
        assert action.is_whole()


def test_data_that_change_meanwhile_are_an_error_and_their_next_copy_lies_elsewhere(
    far: ObjectStore, s3: ObjectStore
) -> None:
    for number in range(4):
        far.put(f"data/{number}", b"old")

    def changing(progress: CopyProgress) -> None:
        if progress.objects_done == progress.objects:
            far.put("data/2", b"new")

    with planned(far, s3) as action:
        with pytest.raises(CopyFailed, match="such as data/2") as failed:
            action.run(progress=changing)
        assert failed.value.failure is CopyFailure.SOURCE_CHANGED
        assert not action.is_whole()
        with planned(far, s3) as again:
            assert again.target != action.target
            again.run()
            assert contents(s3, again.target) == contents(far, far.uri("data"))


@pytest.mark.promise("grid-reference", "a copy of data is whole or not used; a killed one copies nothing twice")
def test_a_copy_that_was_changed_later_is_not_whole_and_is_mended(far: ObjectStore, s3: ObjectStore) -> None:
    for number in range(4):
        far.put(f"data/{number}", b"old")
    with planned(far, s3, owner="one") as action:
        action.run()
        root = split(action.target)[1]
        s3.put(f"{root}/1", b"bad")
        s3.client.delete_object(Bucket=s3.bucket, Key=f"{root}/2")
        assert not action.is_whole()
        assert action.run().bytes_copied == 6
        assert action.is_whole()
        s3.put(f"{root}/more", b"bad")
        assert not action.is_whole()
        with pytest.raises(CopyFailed, match=f"1 objects that were not copied.*{root}/more") as failed:
            action.run()
        assert failed.value.failure is CopyFailure.TARGET_DIFFERS
        s3.client.delete_object(Bucket=s3.bucket, Key=f"{root}/more")
        assert action.run().cost > 0
    with planned(far, s3, owner="two") as shared:
        assert shared.is_whole()
        assert (shared.run().cost, shared.planned_cost > 0) == (0, True)


def test_errors_that_pass_are_tried_again_and_others_have_a_kind(
    far: ObjectStore, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        far.put(f"data/{number}", os.urandom(5))
    in_parts(far, "data/parts", [PART, 5])
    with flaky(s3.endpoint) as proxy:
        proxy.error = (503, "SlowDown")
        access = S3Access(region="us-east-1", endpoint=proxy.endpoint)
        with plan_copy(far.uri("data"), s3.uri("copies"), source=access, target=access) as action:
            proxy.errors = 0.08
            action.run()
            proxy.errors = 0.0
            assert contents(s3, action.target) == contents(far, far.uri("data"))
            assert uploads_of(s3) == []
        monkeypatch.setattr(copy_action, "ATTEMPTS", 1)
        with plan_copy(far.uri("data"), s3.uri("others"), source=access, target=access) as action:
            proxy.down = True
            for status, code, kind, passing in (
                (503, "SlowDown", CopyFailure.THROTTLED, True),
                (403, "AccessDenied", CopyFailure.DENIED, False),
                (403, "ExpiredToken", CopyFailure.CREDENTIALS, False),
                (404, "NoSuchBucket", CopyFailure.TARGET_MISSING, False),
                (403, "InvalidObjectState", CopyFailure.ARCHIVED, False),
                (418, "Teapot", CopyFailure.OTHER, False),
            ):
                proxy.error = (status, code)
                with pytest.raises(CopyFailed) as failed:
                    action.run()
                assert (failed.value.failure, failed.value.passing) == (kind, passing)
    with pytest.raises(CopyFailed) as failed:
        plan_copy(far.uri("data"), s3.uri(""), source=access)
    assert (failed.value.failure, failed.value.passing) == (CopyFailure.NO_ANSWER, True)


def test_data_that_cannot_be_copied_are_told_of_before_anything_is(far: ObjectStore, s3: ObjectStore) -> None:
    for place, kind in ((far.uri("none"), CopyFailure.SOURCE_MISSING), ("s3://no-such", CopyFailure.SOURCE_MISSING)):
        with pytest.raises(CopyFailed) as failed:
            plan_copy(place, s3.uri("copies"))
        assert failed.value.failure is kind
    far.put("data/new", b"1")
    for key in ("data", "da", ""):
        with pytest.raises(CopyFailed) as failed:
            plan_copy(far.uri(key), far.uri("data/copies"))
        assert failed.value.failure is CopyFailure.OVERLAP
    s3.client.put_object(Bucket=far.bucket, Key="data/old", Body=b"1", StorageClass="GLACIER")
    with pytest.raises(CopyFailed, match="data/old") as failed:
        planned(far, s3)
    assert failed.value.failure is CopyFailure.ARCHIVED


def test_between_two_services_bytes_pass_through_this_machine_and_are_compared(
    far: ObjectStore, s3: ObjectStore
) -> None:
    in_parts(far, "data/a", [PART, 1])
    far.put("data/b", os.urandom(100))
    far.put("data/c", b"")
    with flaky(s3.endpoint) as proxy:  # for a client, a service of its own
        other = S3Access(region="us-west-2", endpoint=proxy.endpoint)
        with planned(far, s3, target=other) as action:
            done = action.run()
            assert not action.by_service
            assert done.marker.compared == {"etag": 3}
            assert contents(s3, action.target) == contents(far, far.uri("data"))
        with plan_copy(far.uri("data"), s3.uri("again"), target=other) as late:
            far.put("data/b", b"other")
            with pytest.raises(CopyFailed) as failed:
                late.run()
            assert failed.value.failure is CopyFailure.SOURCE_CHANGED
            assert not any(key.endswith("b") for key in s3.listed() if key.startswith("again"))


def test_what_cannot_be_compared_is_not_said_to_be() -> None:
    md5, other = '"' + "0" * 32 + '"', '"' + "1" * 32 + '"'
    plain, kms = Look({}, True), Look({}, False)
    assert compared((md5, plain), (other, plain)) is None
    assert compared((md5, plain), (other, kms)) is Compared.SIZE
    assert compared((md5, plain), (other[:-1] + '-2"', plain)) is Compared.SIZE
    one, two = Look({"ChecksumCRC32": "a"}, False), Look({"ChecksumCRC32": "b"}, False)
    assert compared((md5, one), (other, one)) is Compared.CHECKSUM
    assert compared((md5, one), (other, two)) is None
    assert compared((md5, plain), (md5, kms)) is Compared.ETAG


def test_a_planned_copy_goes_where_the_grid_says_and_each_region_is_reached_its_own_way(
    far: ObjectStore, s3: ObjectStore
) -> None:
    far.put("data/a", b"x" * 1000)
    in_regions = {
        "us-west-2": {"engines.sagemaker.profile": "oregon", "engines.sagemaker.endpoint_urls.s3": "http://w"}
    }
    job = {"engines": {"sagemaker": {"profile": "all", "region": "us-east-1"}}}
    assert access_in("us-west-2", job, in_regions) == S3Access("oregon", "us-west-2", "http://w")
    assert access_in("eu-west-1", job, {}) == S3Access("all", "eu-west-1", "")
    rules = PlacementRules.model_validate({"copy_to": {"eu-west-1": s3.uri("c")}, "transfer": {"price": 2}})
    where = (far.uri("data"), "us-east-1", "eu-west-1")
    with plan_grid_copy(*where, rules, {}, {}, "campaigns") as action:
        done = action.run()
        assert action.target.startswith(s3.uri("c/data-"))
        assert done.cost == pytest.approx(2e-6)
    with plan_grid_copy(*where, rules, {}, {}, "campaigns") as again:
        assert again.run().cost == done.cost, "the owner pays for what he was killed at"
    with pytest.raises(CopyFailed, match="copy_to names no place there"):
        plan_grid_copy(*where[:2], "eu-central-1", rules, {}, {}, "campaigns")


def test_what_goes_wrong_outside_the_copy_is_not_taken_for_a_copy_that_failed(
    far: ObjectStore, s3: ObjectStore
) -> None:
    far.put("data/a", b"1")

    def full(_: CopyProgress) -> None:
        raise StorageError("the journal cannot be written")

    with planned(far, s3) as action, pytest.raises(StorageError, match="journal") as failed:
        action.run(progress=full)
    assert not isinstance(failed.value, CopyFailed)
