"""Uploads: the framing that clients put around them, their checksums, and uploads in parts."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import random
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from awscrt import checksums
from botocore.exceptions import ClientError
from s3_server import s3_client, s3_serving
from s3transfer.manager import TransferConfig, TransferManager
from wire_client import Wire, until

from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_store import OWN
from headrace.endpoint.s3.s3_face import S3Face
from headrace.endpoint.s3.upload_body import of_parts

BUCKET = "bucket"
MIB = 1 << 20
PART = 5 * MIB


class Served:
    """A served face with one bucket, a client of it, and its folder."""

    def __init__(self, root: Path, port: int, face: S3Face, client: Any) -> None:
        self.root, self.port, self.face, self.client = root, port, face, client

    def own(self, folder: str) -> list[Path]:
        """Files of the store's own folder."""
        return sorted(each for each in (self.root / OWN / folder).rglob("*") if each.is_file())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with s3_serving(tmp_path / "objects") as (server, face):
        client = s3_client(f"http://127.0.0.1:{server.port}")
        client.create_bucket(Bucket=BUCKET)
        yield Served(tmp_path / "objects", server.port, face, client)
        client.close()


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def crc64(data: bytes) -> str:
    return base64.b64encode(checksums.crc64nvme(data).to_bytes(8, "big")).decode()


def framed(data: bytes, trailer: str, sizes: int = 7) -> bytes:
    """Bytes in the framing aws-chunked."""
    chunks = [data[at : at + sizes] for at in range(0, len(data), sizes)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks)
    return body + b"0\r\n" + (f"{trailer}\r\n\r\n".encode() if trailer else b"\r\n")


def put_framed(port: int, body: bytes, size: int, more: str = "", chunked: int = 0) -> tuple[int, bytes]:
    """Sends a framed upload, with Transfer-Encoding in pieces of `chunked` bytes. Returns status and body."""
    head = f"PUT /{BUCKET}/k HTTP/1.1\nHost: h\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: {size}"
    head += f"\nx-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER{more}"
    if chunked:
        head += "\nTransfer-Encoding: chunked"
        pieces = [body[at : at + chunked] for at in range(0, len(body), chunked)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"
    else:
        head += f"\nContent-Length: {len(body)}"
    with Wire(port) as wire:
        status, _, answer = wire.ask(head, body)
        return status, answer


DATA = bytes(range(256)) * 3
TRAILER = "\nx-amz-trailer: x-amz-checksum-crc32"


@pytest.mark.parametrize("chunked", [0, 1, 5, 10_000])
@pytest.mark.parametrize("sizes", [1, 7, 10_000])
def test_the_framing_of_an_upload_is_not_part_of_the_object(chunked: int, sizes: int, served: Served) -> None:
    body = framed(DATA, f"x-amz-checksum-crc64nvme:{crc64(DATA)}", sizes)
    status, answer = put_framed(served.port, body, len(DATA), "\nx-amz-trailer: x-amz-checksum-crc64nvme", chunked)
    assert (status, answer) == (200, b"")
    found = served.client.get_object(Bucket=BUCKET, Key="k")
    assert found["Body"].read() == DATA
    assert "ContentEncoding" not in found
    assert found["ChecksumCRC64NVME"] == crc64(DATA)
    assert (served.root / BUCKET / "k").read_bytes() == DATA


@pytest.mark.parametrize(
    ("body", "size", "more", "code"),
    [
        (framed(DATA, f"x-amz-checksum-crc32:{crc32(b'other')}"), 768, TRAILER, "BadDigest"),
        (framed(DATA, "x-amz-checksum-crc32:!!"), 768, TRAILER, "InvalidRequest"),
        (framed(DATA, f"x-amz-checksum-crc32:{crc32(DATA)}"), 768, "", "InvalidRequest"),
        (framed(DATA, ""), 768, TRAILER, "InvalidRequest"),
        (framed(DATA, ""), 767, "", "IncompleteBody"),
        (framed(DATA, ""), 769, "", "IncompleteBody"),
        (framed(DATA, "")[:-100], 768, "", "IncompleteBody"),
        (b"zz\r\n", 768, "", "IncompleteBody"),
        (b"3\r\nabcd\r\n0\r\n\r\n", 3, "", "IncompleteBody"),
        (b"1" * 2000, 3, "", "IncompleteBody"),
        (b"3\r\nabc\r\n0\r\n" + b"".join(b"a%d: b\r\n" % at for at in range(20)) + b"\r\n", 3, "", "IncompleteBody"),
        (b"3\r\nabc\r\n0\r\n\r\n", 3, "\nx-amz-trailer: x-amz-checksum-xxhash64", "NotImplemented"),
        (b"3\r\nabc\r\n0\r\n\r\n", 6 << 30, "", "EntityTooLarge"),
    ],
)  # fmt: skip
@pytest.mark.promise("serve", "S3: an upload that is not what it says is no object")
def test_an_upload_that_is_not_what_it_says_is_no_object(
    body: bytes, size: int, more: str, code: str, served: Served
) -> None:
    status, answer = put_framed(served.port, body, size, more)
    assert status in (400, 501)
    assert f"<Code>{code}</Code>".encode() in answer
    assert "Contents" not in served.client.list_objects_v2(Bucket=BUCKET)
    assert served.own("incoming") == []


def test_checksums_and_md5_of_plain_uploads_are_checked(served: Served) -> None:
    client = served.client
    good: dict[str, Any] = {
        "ChecksumCRC32C": base64.b64encode(checksums.crc32c(DATA).to_bytes(4, "big")).decode(),
        "ChecksumSHA1": base64.b64encode(hashlib.sha1(DATA).digest()).decode(),
        "ChecksumSHA256": base64.b64encode(hashlib.sha256(DATA).digest()).decode(),
        "ChecksumCRC64NVME": crc64(DATA),
        "ContentMD5": base64.b64encode(hashlib.md5(DATA).digest()).decode(),
    }
    for name, value in good.items():
        client.put_object(Bucket=BUCKET, Key=name, Body=DATA, **{name: value})
        head = client.head_object(Bucket=BUCKET, Key=name, ChecksumMode="ENABLED")
        assert head["ETag"] == f'"{hashlib.md5(DATA).hexdigest()}"'
        if name != "ContentMD5":
            assert head[name] == value
        with pytest.raises(ClientError, match="BadDigest"):
            client.put_object(Bucket=BUCKET, Key=name, Body=DATA + b"x", **{name: value})
        with pytest.raises(ClientError, match=r"InvalidRequest|InvalidDigest"):
            client.put_object(Bucket=BUCKET, Key=name, Body=DATA, **{name: "AAAA"})
        assert client.get_object(Bucket=BUCKET, Key=name)["Body"].read() == DATA  # what was there is still there


@pytest.mark.parametrize(
    ("head", "status"),
    [("", 411), ("\nContent-Length: 0\nx-amz-object-lock-mode: GOVERNANCE", 501),
     ("\nContent-Length: 0\nx-amz-server-side-encryption-customer-algorithm: AES256", 501),
     ("\nContent-Length: 0\nx-amz-meta-a: " + "b" * 2100, 400), ("\nContent-Length: 0\nIf-None-Match: \"x\"", 501)],
)  # fmt: skip
def test_uploads_that_are_refused_by_their_head(head: str, status: int, served: Served) -> None:
    with Wire(served.port) as wire:
        assert wire.ask(f"PUT /{BUCKET}/k HTTP/1.1\nHost: h{head}")[0] == status


def test_an_upload_that_breaks_off_leaves_nothing(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.send(f"PUT /{BUCKET}/k HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n".encode() + bytes(500_000))
        until(lambda: len(served.own("incoming")) == 1)
    until(lambda: served.own("incoming") == [])
    with pytest.raises(ClientError, match="NoSuchKey"):
        served.client.get_object(Bucket=BUCKET, Key="k")


def test_a_full_disk_is_told_and_leaves_what_was_there(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.client.put_object(Bucket=BUCKET, Key="k", Body=b"old")
    upload = begin(served)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ClientError, match=r"InternalError.*No space left on device"):
            served.client.put_object(Bucket=BUCKET, Key="k", Body=b"new")
        with pytest.raises(ClientError, match=r"InternalError.*No space left on device"):
            part(served, upload, 1, b"new")
    assert served.client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"old"
    assert served.own("incoming") == []
    assert "Parts" not in served.client.list_parts(Bucket=BUCKET, Key="k", UploadId=upload)
    complete(served, upload, [part(served, upload, 1, b"again")])
    assert served.client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"again"


@pytest.mark.promise("serve", "S3: boto3's transfer manager")
def test_sixty_four_megabytes_by_the_transfer_manager_lie_where_they_belong(served: Served, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(64 * MIB + 12_345)
    (tmp_path / "data").write_bytes(data)
    before = psutil.Process().memory_info().rss
    with TransferManager(served.client, TransferConfig(multipart_threshold=8 * MIB)) as manager:
        manager.upload(str(tmp_path / "data"), BUCKET, "big").result()
        assert served.own("uploads") == []
        manager.download(BUCKET, "big", str(tmp_path / "back")).result()
    assert hashlib.md5((tmp_path / "back").read_bytes()).digest() == hashlib.md5(data).digest()
    head = served.client.head_object(Bucket=BUCKET, Key="big", ChecksumMode="ENABLED")
    parts = [data[at : at + 8 * MIB] for at in range(0, len(data), 8 * MIB)]
    joined = hashlib.md5(b"".join(hashlib.md5(each).digest() for each in parts)).hexdigest()
    assert head["ETag"] == f'"{joined}-{len(parts)}"'
    assert head["ChecksumCRC32"].endswith(f"-{len(parts)}")
    second = served.client.head_object(Bucket=BUCKET, Key="big", PartNumber=2)
    assert (second["PartsCount"], second["ContentLength"]) == (len(parts), 8 * MIB)
    assert psutil.Process().memory_info().rss - before < 400 * MIB  # the client is in it; the server's is in the bench


def test_small_uploads_do_not_wait(served: Served) -> None:
    began = time.monotonic()
    for at in range(60):
        served.client.put_object(Bucket=BUCKET, Key=f"small/{at}", Body=b"x")
    assert time.monotonic() - began < 30  # a second each, where 100 Continue is not sent


def begin(served: Served, key: str = "k", **more: Any) -> str:
    found: str = served.client.create_multipart_upload(Bucket=BUCKET, Key=key, **more)["UploadId"]
    return found


def part(served: Served, upload: str, number: int, body: bytes, key: str = "k") -> dict[str, Any]:
    found = served.client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=body)
    return {"PartNumber": number, "ETag": found["ETag"]}


def complete(served: Served, upload: str, parts: list[dict[str, Any]], key: str = "k") -> Any:
    return served.client.complete_multipart_upload(
        Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
    )


@pytest.mark.parametrize(
    ("order", "apart"),
    [([1, 2, 3], 0), ([3, 2, 1], 1), ([2, 3, 1, 2], 1), ([1, 3], 0), ([3, 1, 2], 1)],
)
def test_parts_in_any_order_and_number_become_the_object(order: list[int], apart: int, served: Served) -> None:
    upload = begin(served)
    bodies: dict[int, bytes] = {}
    etags: dict[int, dict[str, Any]] = {}
    for place, number in enumerate(order):
        bodies[number] = bytes([number, place]) * (PART // 2 if number < 3 else 1000)
        etags[number] = part(served, upload, number, bodies[number])
    own = [path.name for path in served.own("uploads") if path.name != "data"]
    assert len(own) == apart  # came first though it is the last, or came twice
    result = complete(served, upload, [etags[number] for number in sorted(etags)])
    expected = b"".join(bodies[number] for number in sorted(bodies))
    assert served.client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == expected
    assert (served.root / BUCKET / "k").read_bytes() == expected
    assert served.own("uploads") == []
    again = complete(served, upload, [etags[number] for number in sorted(etags)])  # a client whose answer was lost
    told = [name for name in result if name == "ETag" or name.startswith("Checksum")]
    assert [again.get(name) for name in told] == [result[name] for name in told]


def test_parts_at_the_same_time_from_many_threads(served: Served) -> None:
    upload = begin(served)
    bodies = [bytes([number]) * PART for number in range(1, 9)]
    etags: dict[int, dict[str, Any]] = {}

    def send(number: int) -> None:
        etags[number] = part(served, upload, number, bodies[number - 1])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(1, 9) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    complete(served, upload, [etags[number] for number in range(1, 9)])
    assert (served.root / BUCKET / "k").read_bytes() == b"".join(bodies)


def test_a_part_that_comes_while_the_same_part_comes_is_whole(served: Served) -> None:
    upload = begin(served)
    slow, quick = b"s" * PART, b"q" * PART
    with Wire(served.port) as wire:
        head = f"PUT /{BUCKET}/k?uploadId={upload}&partNumber=1 HTTP/1.1\r\nHost: h\r\nContent-Length: {PART}\r\n\r\n"
        wire.send(head.encode() + slow[: PART // 2])
        until(lambda: any(path.stat().st_size for path in served.own("uploads")))
        part(served, upload, 1, quick)
        wire.send(slow[PART // 2 :])
        status, headers, _ = wire.reply()
    assert status == 200
    complete(served, upload, [{"PartNumber": 1, "ETag": headers["etag"]}])
    assert (served.root / BUCKET / "k").read_bytes() == slow  # the one that came to its end last


def test_what_cannot_be_completed(served: Served) -> None:
    upload = begin(served)
    one, two = part(served, upload, 1, bytes(PART)), part(served, upload, 2, b"end")
    small = part(served, upload, 3, b"last")
    for parts, code in (
        ([two, one], "InvalidPartOrder"), ([one, one], "InvalidPartOrder"), ([one, two, small], "EntityTooSmall"),
        ([one, {"PartNumber": 9, "ETag": one["ETag"]}], "InvalidPart"), ([one, two | {"ETag": "x"}], "InvalidPart"),
    ):  # fmt: skip
        with pytest.raises(ClientError, match=code):
            complete(served, upload, parts)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        complete(served, "none", [one])
    with pytest.raises(ClientError, match="NoSuchUpload"):
        complete(served, upload, [one], key="another")
    with pytest.raises(ClientError, match="InvalidArgument"):
        part(served, upload, 10_001, b"")
    served.client.put_object(Bucket=BUCKET, Key="k", Body=b"there")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        served.client.complete_multipart_upload(
            Bucket=BUCKET, Key="k", UploadId=upload, MultipartUpload={"Parts": [one]}, IfNoneMatch="*"
        )
    complete(served, upload, [one, two])
    assert (served.root / BUCKET / "k").read_bytes() == bytes(PART) + b"end"


def test_uploads_are_listed_given_up_and_age_out(served: Served) -> None:
    client = served.client
    ids = [begin(served, key) for key in ("b", "a", "c", "a")]
    part(served, ids[0], 2, b"two", "b")
    found = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [each["Key"] for each in found] == ["a", "a", "b", "c"]
    pages = list(client.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET, MaxUploads=1))
    assert [each["UploadId"] for page in pages for each in page["Uploads"]] == [ids[1], ids[3], ids[0], ids[2]]
    assert [each["PartNumber"] for each in client.list_parts(Bucket=BUCKET, Key="b", UploadId=ids[0])["Parts"]] == [2]
    client.abort_multipart_upload(Bucket=BUCKET, Key="b", UploadId=ids[0])
    with pytest.raises(ClientError, match="NoSuchUpload"):
        part(served, ids[0], 3, b"late", "b")
    old = MultipartUploads(served.face._store)  # as a server that starts again
    assert old.age_out(3600) == 0
    assert old.age_out(-1) == 3
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET)
    assert list((served.root / OWN / "uploads").iterdir()) == []
    begin(served)
    client.delete_bucket(Bucket=BUCKET)
    assert list((served.root / OWN / "uploads").iterdir()) == []


def test_parts_are_copied_from_objects(served: Served) -> None:
    client = served.client
    source = random.Random(2).randbytes(PART + 5000)
    client.put_object(Bucket=BUCKET, Key="source", Body=source)
    upload = begin(served)
    parts = []
    asked = {"Bucket": BUCKET, "Key": "k", "UploadId": upload, "CopySource": f"{BUCKET}/source"}
    for number, wanted in ((1, f"bytes=0-{PART - 1}"), (2, f"bytes={PART}-{PART + 4999}")):
        found = client.upload_part_copy(**asked, PartNumber=number, CopySourceRange=wanted)
        parts.append({"PartNumber": number, "ETag": found["CopyPartResult"]["ETag"]})
    with pytest.raises(ClientError, match="InvalidArgument"):
        client.upload_part_copy(**asked, PartNumber=3, CopySourceRange="bytes=0-99999999")
    complete(served, upload, parts)
    assert (served.root / BUCKET / "k").read_bytes() == source
    copied = client.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/k")
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(source).hexdigest()}"'  # one part again


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME"])
def test_the_checksum_of_a_whole_object_is_made_of_its_parts(algorithm: str, served: Served) -> None:
    made = served.client.create_multipart_upload(
        Bucket=BUCKET, Key="k", ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT"
    )
    bodies = [os.urandom(PART), os.urandom(1234)]
    parts = []
    for number, body in enumerate(bodies, start=1):
        found = served.client.upload_part(
            Bucket=BUCKET, Key="k", UploadId=made["UploadId"], PartNumber=number, Body=io.BytesIO(body),
            ChecksumAlgorithm=algorithm,
        )  # fmt: skip
        name = f"Checksum{algorithm}"
        parts.append({"PartNumber": number, "ETag": found["ETag"], name: found[name]})
    done = complete(served, made["UploadId"], parts)
    function = {"CRC32": zlib.crc32, "CRC32C": checksums.crc32c, "CRC64NVME": checksums.crc64nvme}[algorithm]
    value = function(b"".join(bodies)).to_bytes(8 if algorithm == "CRC64NVME" else 4, "big")
    assert done[f"Checksum{algorithm}"] == base64.b64encode(value).decode()
    assert done["ChecksumType"] == "FULL_OBJECT"


def test_a_composite_checksum_is_that_of_the_parts_checksums() -> None:
    parts = [(hashlib.sha256(each).digest(), len(each)) for each in (b"a", b"b")]
    expected = base64.b64encode(hashlib.sha256(parts[0][0] + parts[1][0]).digest()).decode()
    assert of_parts("sha256", "COMPOSITE", parts) == f"{expected}-2"
