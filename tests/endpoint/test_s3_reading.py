"""Reading objects and lists: conditions, ranges, presigned parameters, order and pages, also of 100,000 keys."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from effort import SOAK, number
from s3_server import s3_client, s3_serving
from wire_client import Wire

from headrace.endpoint.s3 import bucket_operations
from headrace.endpoint.s3.bucket_operations import KeyListing, Page, _read
from headrace.endpoint.s3.object_store import Known, ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error
from patience import allowed

BUCKET = "bucket"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def served(root: Path) -> Iterator[tuple[Any, int]]:
    """A client of a face with one bucket, and the port."""
    with s3_serving(root) as (server, _):
        client = s3_client(f"http://127.0.0.1:{server.port}")
        client.create_bucket(Bucket=BUCKET)
        yield client, server.port
        client.close()


@pytest.fixture
def folder(root: Path) -> Iterator[ObjectStore]:
    found = ObjectStore(root)
    found.create_bucket(BUCKET)
    yield found
    found.close()


DATA = bytes(range(256)) * 500


@pytest.mark.parametrize(
    ("wanted", "begin", "end"),
    [
        ("bytes=0-0", 0, 1), ("bytes=5-9", 5, 10), ("bytes=100-", 100, 128_000), ("bytes=-7", 127_993, 128_000),
        ("bytes=-999999", 0, 128_000), ("bytes=127999-999999", 127_999, 128_000), ("bytes=1-70000", 1, 70_001),
    ],
)  # fmt: skip
def test_ranges(wanted: str, begin: int, end: int, served: tuple[Any, int]) -> None:
    client, _ = served
    client.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    found = client.get_object(Bucket=BUCKET, Key="k", Range=wanted)
    assert found["Body"].read() == DATA[begin:end]
    assert found["ContentRange"] == f"bytes {begin}-{end - 1}/{len(DATA)}"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert not [name for name in found if name.startswith("Checksum")]


def test_ranges_that_are_none_give_all_and_those_outside_are_refused(served: tuple[Any, int]) -> None:
    client, port = served
    client.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    client.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    for wanted in ("bytes=1-0", "bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "bytes=-"):
        with Wire(port) as wire:
            status, _, body = wire.ask(f"GET /{BUCKET}/k HTTP/1.1\nHost: h\nRange: {wanted}")
            assert (status, body) == (200, DATA)
    for key, wanted in (("k", "bytes=128000-"), ("k", "bytes=-0"), ("empty", "bytes=0-")):
        with pytest.raises(ClientError, match="InvalidRange") as caught:
            client.get_object(Bucket=BUCKET, Key=key, Range=wanted)
        assert caught.value.response["Error"]["ActualObjectSize"] == ("128000" if key == "k" else "0")


def test_conditions(served: tuple[Any, int]) -> None:
    client, _ = served
    etag = client.put_object(Bucket=BUCKET, Key="k", Body=DATA)["ETag"]
    modified = client.head_object(Bucket=BUCKET, Key="k")["LastModified"]
    later, earlier = modified + timedelta(hours=1), modified - timedelta(hours=1)
    for conditions, status in (
        ({"IfMatch": etag}, 200), ({"IfMatch": etag.strip('"')}, 200), ({"IfMatch": '"x"'}, 412),
        ({"IfNoneMatch": etag}, 304), ({"IfNoneMatch": '"x"'}, 200), ({"IfNoneMatch": "*"}, 304),
        ({"IfModifiedSince": earlier}, 200), ({"IfModifiedSince": modified}, 304), ({"IfUnmodifiedSince": later}, 200),
        ({"IfUnmodifiedSince": earlier}, 412), ({"IfMatch": etag, "IfUnmodifiedSince": earlier}, 200),
        ({"IfNoneMatch": '"x"', "IfModifiedSince": later}, 200),
    ):  # fmt: skip
        for ask in (client.get_object, client.head_object):
            try:
                found = ask(Bucket=BUCKET, Key="k", **conditions)["ResponseMetadata"]["HTTPStatusCode"]
            except ClientError as error:
                found = error.response["ResponseMetadata"]["HTTPStatusCode"]
            assert found == status, conditions


def test_what_is_not_there_has_no_body_for_head(served: tuple[Any, int]) -> None:
    _, port = served
    with Wire(port) as wire:
        for path in ("/nobucket", "/nobucket/k", f"/{BUCKET}/k"):
            wire.send(f"HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert wire.head()[0] == 404
            assert wire.buffer == b""
        status, _, body = wire.ask(f"GET /{BUCKET}/k HTTP/1.1\nHost: h")
        assert status == 404
        assert b"<Code>NoSuchKey</Code>" in body


def test_parameters_of_presigned_requests(served: tuple[Any, int]) -> None:
    client, port = served
    client.put_object(Bucket=BUCKET, Key="k", Body=b"x", ContentType="text/a")
    given = "response-content-type=text%2Fb&response-content-disposition=attachment&X-Amz-Signature=0&AWSAccessKeyId=1"
    with Wire(port) as wire:
        status, headers, body = wire.ask(f"GET /{BUCKET}/k?{given} HTTP/1.1\nHost: h")
        assert (status, headers["content-type"], body) == (200, "text/b", b"x")
        assert headers["content-disposition"] == "attachment"
        assert wire.ask(f"GET /{BUCKET}/k?response-content-type=a%0d%0aX:y HTTP/1.1\nHost: h")[0] == 400


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", f"/{BUCKET}?acl", 501, "NotImplemented"), ("GET", f"/{BUCKET}/k?tagging", 501, "NotImplemented"),
        ("POST", f"/{BUCKET}", 405, "MethodNotAllowed"), ("PATCH", f"/{BUCKET}/k", 405, "MethodNotAllowed"),
        ("GET", f"/{BUCKET}/%ff", 400, "InvalidURI"), ("GET", "/no%20bucket?list-type=2", 404, "NoSuchBucket"),
        ("GET", f"/{BUCKET}?list-type=2&max-keys=-1", 400, "InvalidArgument"),
        ("GET", f"/{BUCKET}?list-type=2&max-keys=x", 400, "InvalidArgument"),
        ("GET", f"/{BUCKET}?list-type=2&continuation-token=%21", 400, "InvalidArgument"),
        ("GET", f"/{BUCKET}?list-type=2&continuation-token=", 400, "InvalidArgument"),
        ("GET", f"/{BUCKET}?list-type=2&encoding-type=x", 400, "InvalidArgument"),
        ("GET", f"/{BUCKET}/k?versionId=abc", 400, "InvalidArgument"), ("GET", "/../etc/passwd", 404, "NoSuchBucket"),
        ("GET", f"/{BUCKET}?{'a&' * 200}", 400, "InvalidURI"), ("DELETE", "/", 405, "MethodNotAllowed"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_said_in_the_words_of_s3(
    method: str, target: str, status: int, code: str, served: tuple[Any, int]
) -> None:
    with Wire(served[1]) as wire:
        found, headers, body = wire.ask(f"{method} {target} HTTP/1.1\nHost: h")
        assert (found, headers["content-type"]) == (status, "application/xml")
        assert f"<Code>{code}</Code>".encode() in body


@pytest.mark.parametrize(
    ("endpoint", "asked", "code"),
    [
        ("us-east-1", "", ""), ("us-east-1", "eu-west-1", ""), ("us-east-1", "EU", ""), ("eu-west-1", "eu-west-1", ""),
        ("us-east-1", "us-east-1", "InvalidLocationConstraint"), ("us-east-1", "nowhere", "InvalidLocationConstraint"),
        ("eu-west-1", "us-east-1", "IllegalLocationConstraintException"),
        ("eu-west-1", "", "IllegalLocationConstraintException"),
        ("eu-west-1", "eu-west-2", "IllegalLocationConstraintException"),
    ],
)  # fmt: skip
def test_a_bucket_is_created_where_the_service_would(endpoint: str, asked: str, code: str, tmp_path: Path) -> None:
    body = f"<CreateBucketConfiguration><LocationConstraint>{asked}</LocationConstraint></CreateBucketConfiguration>"
    scope = f"Credential=K/20260101/{endpoint}/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=0"
    signed = f"\nx-amz-date: 20260101T000000Z\nAuthorization: AWS4-HMAC-SHA256 {scope}"
    for bucket, region, head in (("of-the-endpoint", endpoint, ""), ("of-the-signature", "us-west-2", signed)):
        with s3_serving(tmp_path, region) as (server, _), Wire(server.port) as wire:
            data = body.encode() if asked else b""
            status, _, answer = wire.ask(f"PUT /{bucket} HTTP/1.1\nHost: h\nContent-Length: {len(data)}{head}", data)
            assert status == (400 if code else 200)
            assert f"<Code>{code}</Code>".encode() in answer or not code
            assert wire.ask(f"HEAD /{bucket} HTTP/1.1\nHost: h")[0] == (404 if code else 200)


def test_a_page_behind_a_token_does_not_say_where_the_list_began(served: tuple[Any, int]) -> None:
    client, _ = served
    for key in ("s1", "s2", "s3"):
        client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    first = client.list_objects_v2(Bucket=BUCKET, Prefix="s", StartAfter="s1", MaxKeys=1)
    assert (first["StartAfter"], [found["Key"] for found in first["Contents"]]) == ("s1", ["s2"])
    token = first["NextContinuationToken"]
    second = client.list_objects_v2(Bucket=BUCKET, Prefix="s", StartAfter="s1", ContinuationToken=token)
    assert (second["StartAfter"], [found["Key"] for found in second["Contents"]]) == ("s1", ["s3"])


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"<Delete/>", b"<Delete><Object/></Delete>", b"<Other/>", b"\xff\xfe",
     b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>'],
)  # fmt: skip
def test_documents_that_are_none_are_refused(body: bytes, served: tuple[Any, int]) -> None:
    with Wire(served[1]) as wire:
        status, _, answer = wire.ask(f"POST /{BUCKET}?delete HTTP/1.1\nHost: h\nContent-Length: {len(body)}", body)
        assert status == 400
        assert b"<Code>MalformedXML</Code>" in answer


def test_random_requests_are_never_an_error_of_ours(served: tuple[Any, int]) -> None:
    chance = random.Random(20261122)
    names = ["list-type", "prefix", "delimiter", "marker", "uploads", "uploadId", "partNumber", "delete", "max-keys",
             "x", "continuation-token", "start-after", "encoding-type", "versionId", "location", "acl"]  # fmt: skip
    values = ["", "1", "-1", "2", "url", "%ff", "%00", "a/b", "999999999999999999999", "bucket", "%F0%9F%98%80", "//"]
    headers = ["Range: bytes=1-0", "x-amz-copy-source: ", "x-amz-copy-source: /bucket/k", "If-Match: *",
               "Content-MD5: x", "x-amz-copy-source: %ff", "If-Modified-Since: yesterday", "x-amz-checksum-crc32: x",
               "x-amz-checksum-: x", "Content-Encoding: aws-chunked", "x-amz-decoded-content-length: 3",
               "x-amz-metadata-directive: x", "x-amz-checksum-algorithm: x", "x-amz-checksum-type: x",
               "x-amz-copy-source-range: bytes=0-0"]  # fmt: skip
    statuses = set()
    served[0].put_object(Bucket=BUCKET, Key="kept", Body=b"")  # or the bucket would soon be gone
    wire = Wire(served[1])
    for _ in range(1500):
        query = "&".join(f"{chance.choice(names)}={chance.choice(values)}" for _ in range(chance.randrange(4)))
        path = chance.choice(
            [
                "/",
                "/bucket",
                "/bucket/k",
                "/bucket//",
                "/other/k",
                "/bucket/%00",
                "/%2e%2e/x",
                "/bucket/a/b",
                "/bucket/c",
                "/bucket/d",
            ]
        )
        body = chance.choice([b"", b"<Delete/>", b"abc", b"<CompleteMultipartUpload/>"])
        lines = [f"{chance.choice(['GET', 'PUT', 'HEAD', 'POST', 'DELETE'])} {path}?{query} HTTP/1.1", "Host: h",
                 f"Content-Length: {len(body)}", *chance.sample(headers, chance.randrange(3))]  # fmt: skip
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        status, found = wire.head()
        if not lines[0].startswith("HEAD"):
            wire.body(int(found.get("content-length", "0")))
        statuses.add(status)
        assert status != 500, lines
        if found.get("connection") == "close":
            wire.sock.close()
            wire = Wire(served[1])
    wire.sock.close()
    assert {200, 204, 400, 404, 405, 409, 501} <= statuses


def put(folder: ObjectStore, key: bytes) -> None:
    with folder.incoming() as (_, path):
        folder.place(path, BUCKET, key, "e", Known())


def listed(keys: list[bytes], prefix: bytes, delimiter: bytes, after: bytes) -> list[bytes]:
    """Keys and common prefixes, by the definition."""
    shown: list[bytes] = []
    for key in sorted(keys):
        if key <= after or not key.startswith(prefix):
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if at < 0 else key[: at + len(delimiter)]
        if name not in (after, *shown[-1:]):
            shown.append(name)
    return shown


def test_lists_are_what_the_definition_says(folder: ObjectStore) -> None:
    chance = random.Random(5)
    listing = KeyListing(folder)
    letters = [b"a", b"b", b"/", b"-", b".", b"\xc3\xbc", b"ab"]
    keys: set[bytes] = set()
    for _ in range(300):
        key = b"".join(chance.choices(letters, k=chance.randrange(1, 7)))
        with contextlib.suppress(S3Error):  # no file can be that key, beside those that are there
            put(folder, key)
            keys.add(key)
    assert len(keys) > 50
    for _ in range(number(200, 5000)):
        prefix, after = (b"".join(chance.choices(letters, k=chance.randrange(4))) for _ in range(2))
        prefix, after = prefix.decode(errors="ignore").encode(), after.decode(errors="ignore").encode()
        delimiter = chance.choice([b"", b"/", b"/", b"-", b"ab"])
        expected = listed(sorted(keys), prefix, delimiter, after)
        size = chance.choice([1, 3, 1000])
        found: list[bytes] = []
        place = after
        while True:
            page = listing.page(BUCKET, prefix, delimiter, place, size)
            found += sorted([*page.keys, *page.prefixes])
            if not page.more:
                break
            assert len(page.keys) + len(page.prefixes) == size
            place = page.last
        assert found == expected, (prefix, delimiter, after, size)
        changed = b"".join(chance.choices(letters, k=chance.randrange(1, 7)))
        with contextlib.suppress(S3Error):
            if changed in keys:
                folder.remove(BUCKET, changed)
            else:
                put(folder, changed)
            keys ^= {changed}


def test_pages_of_a_large_folder_read_it_once(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, count in (("flat", 10_000), ("deep/er", 500)):
        (folder.root / BUCKET / place).mkdir(parents=True)
        for at in range(count):
            (folder.root / BUCKET / place / f"{at:06}").touch()
    time.sleep(0.06)  # a folder that changed just now is read again, since its time may not tell of a change
    read: list[bytes] = []

    def counted(path: bytes) -> Iterator[bytes]:
        read.append(path)
        return _read(path)

    monkeypatch.setattr(bucket_operations, "_read", counted)
    listing = KeyListing(folder)
    found: list[bytes] = []
    page = Page([], [], b"", more=True)
    while page.more:
        page = listing.page(BUCKET, b"", b"", page.last, 100)
        found += page.keys
    assert found == [b"deep/er/%06d" % at for at in range(500)] + [b"flat/%06d" % at for at in range(10_000)]
    assert len(read) == 4  # each folder once in 105 pages
    assert listing.page(BUCKET, b"", b"/", b"", 100).prefixes == [b"deep/", b"flat/"]
    assert len(read) == 4


if SOAK:  # files are slow to make; the test above is the short one

    def test_a_hundred_thousand_keys_are_paged_in_bounded_time(served: tuple[Any, int], root: Path) -> None:
        client, _ = served
        for place in ("flat", "deep"):
            (root / BUCKET / place).mkdir()
        for at in range(90_000):
            (root / BUCKET / "flat" / f"{at:06}").touch()
        for outer in range(100):
            (root / BUCKET / "deep" / f"{outer:02}").mkdir()
            for inner in range(100):
                (root / BUCKET / "deep" / f"{outer:02}" / f"{inner:02}").touch()
        began = time.process_time()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        keys = [each["Key"] for page in pages for each in page["Contents"]]
        assert len(keys) == 100_000
        assert keys == sorted(keys)
        assert time.process_time() - began < allowed(60)  # the client's part is the larger one
        began = time.process_time()
        found = client.list_objects_v2(Bucket=BUCKET, Delimiter="/")
        assert [each["Prefix"] for each in found["CommonPrefixes"]] == ["deep/", "flat/"]
        last = client.list_objects_v2(Bucket=BUCKET, StartAfter="flat/089998")
        assert [each["Key"] for each in last["Contents"]] == ["flat/089999"]
        assert time.process_time() - began < allowed(1.5)


def test_a_folder_that_changes_between_pages_is_read_again(folder: ObjectStore) -> None:
    listing = KeyListing(folder)
    for at in range(20):
        put(folder, b"a%02d" % at)
        assert len(listing.page(BUCKET, b"", b"", b"", 1000).keys) == at + 1
    for at in range(20):
        folder.remove(BUCKET, b"a%02d" % at)
        assert len(listing.page(BUCKET, b"", b"", b"", 1000).keys) == 19 - at


def test_a_folder_whose_time_may_not_tell_of_a_change_is_read_again(folder: ObjectStore) -> None:
    listing = KeyListing(folder)
    place = folder.root / BUCKET
    tick = time.time_ns() + 10**9  # of a file system whose clock is coarse: the change falls into the same tick
    for at in range(3):
        put(folder, b"a%d" % at)
        os.utime(place, ns=(tick, tick))
        assert len(listing.page(BUCKET, b"", b"", b"", 1000).keys) == at + 1


def test_times_have_whole_seconds_everywhere(served: tuple[Any, int]) -> None:
    client, _ = served
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    client.put_object(Bucket=BUCKET, Key="k", Body=b"")
    head = client.head_object(Bucket=BUCKET, Key="k")["LastModified"]
    listed_at = client.list_objects_v2(Bucket=BUCKET)["Contents"][0]["LastModified"]
    assert head == listed_at
    assert before <= head <= datetime.now(timezone.utc)
