"""Keys as files: which key lies where, keys that no file can have, folders of the user's, and what others wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3_server import ACCOUNT, s3_client, s3_serving

from headrace.endpoint.auth.gatekeeper import keys_of
from headrace.endpoint.endpoint_server import Endpoint, ServeOptions
from headrace.endpoint.s3.object_store import OWN
from headrace.endpoint.s3.s3_face import S3Face
from headrace.errors import UsageError

BUCKET = "bucket"
NO_FILE = [
    "a/",
    "a//b",
    "/a",
    "//",
    "..",
    "../x",
    "a/../b",
    ".",
    "./a",
    "a/.",
    "nul\0l",
    "x" * 300,
    "y" * 256 + "/z",
    "/" * 1024,
]
"""Keys that no file of a folder can have."""
PLAIN = [
    "a-",
    "a.txt",
    "b/c/d",
    "zz zz+%25&=?#",
    "ü/ö",
    "日本",
    "Case",
    "case",
    "...",
    "-",
    "\r\n\t",
    "x" * 255,
    OWN,
    "~/~",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def face(root: Path) -> Iterator[tuple[Any, S3Face]]:
    """A client of a face with one bucket, and the face."""
    with s3_serving(root) as (server, face):
        client = s3_client(f"http://127.0.0.1:{server.port}")
        client.create_bucket(Bucket=BUCKET)
        yield client, face
        client.close()


@pytest.mark.parametrize("name", ["xn--data", "data-s3alias", "a.-b", "10.0.0.1"])
def test_a_name_that_aws_refuses_is_no_bucket_also_where_a_folder_has_it(
    face: tuple[Any, S3Face], root: Path, name: str
) -> None:
    client, _ = face
    with pytest.raises(ClientError) as refused:
        client.create_bucket(Bucket=name)
    assert refused.value.response["Error"]["Code"] == "InvalidBucketName"
    (root / name).mkdir()
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == [BUCKET]


def keys(client: Any, **asked: Any) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **asked)
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


def body(client: Any, key: str) -> bytes:
    found: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return found


@pytest.mark.promise("serve", "S3: any key that a file can have")
def test_any_key_that_a_file_can_have_can_be_put_read_listed_and_removed(face: tuple[Any, S3Face], root: Path) -> None:
    client, _ = face
    for key in PLAIN:
        client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    assert keys(client) == sorted(PLAIN, key=str.encode)
    for key in PLAIN:
        assert body(client, key) == key.encode()
        assert client.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == len(key.encode())
    assert sorted(
        str(each.relative_to(root / BUCKET)) for each in (root / BUCKET).rglob("*") if each.is_file()
    ) == sorted(PLAIN)
    assert {each.name for each in root.iterdir()} == {BUCKET, OWN}  # nothing went beside the bucket
    for key in PLAIN:
        client.delete_object(Bucket=BUCKET, Key=key)
        with pytest.raises(ClientError, match="NoSuchKey"):
            body(client, key)
    assert keys(client) == []
    assert list((root / BUCKET).iterdir()) == []
    client.delete_bucket(Bucket=BUCKET)


def uploads_of(key: str) -> list[Callable[[Any], object]]:
    """All ways to put an object."""
    place = {"Bucket": BUCKET, "Key": key}
    return [
        lambda client: client.put_object(**place, Body=b"x"),
        lambda client: client.copy_object(**place, CopySource=f"{BUCKET}/there/below"),
        lambda client: client.create_multipart_upload(**place),
    ]


@pytest.mark.parametrize("key", [*NO_FILE, "there", "there/below/it"], ids=lambda key: repr(key)[:20])
def test_a_key_that_no_file_can_have_is_refused_and_never_there(key: str, face: tuple[Any, S3Face], root: Path) -> None:
    client, _ = face
    client.put_object(Bucket=BUCKET, Key="there/below", Body=b"it")
    for put in uploads_of(key):
        with pytest.raises(ClientError, match="no file can be this key") as caught:
            put(client)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert caught.value.response["Error"]["Code"] == "InvalidArgument"
    with pytest.raises(ClientError, match="NoSuchKey"):
        body(client, key)
    client.delete_object(Bucket=BUCKET, Key=key)  # as of one that is not there
    assert keys(client) == ["there/below"]
    assert {each.name for each in root.iterdir()} == {BUCKET, OWN}  # nothing went beside the bucket


def test_an_upload_whose_key_became_a_folder_is_refused_and_can_still_be_aborted(face: tuple[Any, S3Face]) -> None:
    client, _ = face
    place = {"Bucket": BUCKET, "Key": "a"}
    place["UploadId"] = client.create_multipart_upload(**place)["UploadId"]
    part = {"PartNumber": 1, "ETag": client.upload_part(**place, PartNumber=1, Body=b"x")["ETag"]}
    client.put_object(Bucket=BUCKET, Key="a/b", Body=b"")
    with pytest.raises(ClientError, match="InvalidArgument"):
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": [part]})
    client.delete_object(Bucket=BUCKET, Key="a/b")
    client.complete_multipart_upload(**place, MultipartUpload={"Parts": [part]})
    assert body(client, "a") == b"x"


def test_keys_that_are_too_long_or_no_text_are_refused(face: tuple[Any, S3Face]) -> None:
    client, _ = face
    client.put_object(Bucket=BUCKET, Key="k/" * 511 + "kk", Body=b"")
    with pytest.raises(ClientError, match="KeyTooLongError"):
        client.put_object(Bucket=BUCKET, Key="k" * 1025, Body=b"")


@pytest.mark.parametrize("name", ["..", ".headrace-s3", "A-Bucket", "a", "a..b", "192.168.0.1", "a" * 64, "-ab"])
def test_names_of_buckets_are_names_and_no_paths(name: str, root: Path, tmp_path: Path) -> None:
    served = S3Face(root)
    try:
        (tmp_path / "secret").write_text("x")
        assert served.local_path(name, "secret") is None
    finally:
        served.close()


def test_what_others_write_into_a_bucket_is_there_and_has_a_steady_etag(face: tuple[Any, S3Face], root: Path) -> None:
    client, _ = face
    client.put_object(Bucket=BUCKET, Key="put", Body=b"one", Metadata={"a": "b"})
    (root / BUCKET / "sub").mkdir()
    (root / BUCKET / "empty" / "er").mkdir(parents=True)
    (root / BUCKET / "sub" / "file").write_bytes(b"12345")
    os.mkfifo(root / BUCKET / "fifo")
    assert keys(client) == ["put", "sub/file"]
    first = client.head_object(Bucket=BUCKET, Key="sub/file")
    assert first["ContentLength"] == 5
    assert first["ETag"].endswith('-1"')  # says that it is no MD5
    assert body(client, "sub/file") == b"12345"
    for key in ("fifo", "sub", "empty/er", "empty/er/"):
        with pytest.raises(ClientError, match="NoSuchKey"):
            body(client, key)
    assert client.get_object(Bucket=BUCKET, Key="sub/file", IfMatch=first["ETag"])["Body"].read() == b"12345"
    assert client.list_objects_v2(Bucket=BUCKET, Prefix="sub")["Contents"][0]["ETag"] == first["ETag"]
    (root / BUCKET / "put").write_bytes(b"another")
    changed = client.get_object(Bucket=BUCKET, Key="put")
    assert (changed["Body"].read(), changed["Metadata"]) == (b"another", {})
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.get_object(Bucket=BUCKET, Key="put", IfMatch='"f97c5d29941bfb1b2fdab0874906ab82"')
    client.put_object(Bucket=BUCKET, Key="empty", Body=b"")  # empty folders are in nobody's way
    assert (root / BUCKET / "empty").is_file()


@pytest.mark.promise("sagemaker-differences", "data without S3, by headrace serve")
def test_a_linked_folder_is_read_and_never_changed(face: tuple[Any, S3Face], root: Path, tmp_path: Path) -> None:
    client, served = face
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "file").write_bytes(b"mine")
    (data / "loop").symlink_to(data)
    (root / BUCKET / "train").mkdir()
    (root / BUCKET / "train" / "set").symlink_to(data)
    assert keys(client) == ["train/set/deep/file"]
    folder, file = (served.local_path(BUCKET, key) for key in ("train/set/", "train/set/deep/file"))
    assert folder is not None
    assert file is not None
    assert (folder.resolve(), file.read_bytes()) == (data, b"mine")
    assert body(client, "train/set/deep/file") == b"mine"
    for attempt in (
        lambda: client.put_object(Bucket=BUCKET, Key="train/set/deep/file", Body=b"x"),
        lambda: client.put_object(Bucket=BUCKET, Key="train/set/new", Body=b"x"),
        lambda: client.put_object(Bucket=BUCKET, Key="train/set/deep/file/below", Body=b"x"),
        lambda: client.delete_object(Bucket=BUCKET, Key="train/set/deep/file"),
        lambda: client.copy_object(Bucket=BUCKET, Key="train/set/x", CopySource=f"{BUCKET}/train/set/deep/file"),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            attempt()
    told = client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "train/set/deep/file"}, {"Key": "no"}]})
    assert [each["Code"] for each in told["Errors"]] == ["AccessDenied"]
    assert [each["Key"] for each in told["Deleted"]] == ["no"]
    with pytest.raises(ClientError, match="InvalidArgument"):
        client.put_object(Bucket=BUCKET, Key="train/set", Body=b"in place of the folder")
    client.put_object(Bucket=BUCKET, Key="train/beside", Body=b"x")
    assert keys(client) == ["train/beside", "train/set/deep/file"]
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        client.delete_bucket(Bucket=BUCKET)
    client.delete_object(Bucket=BUCKET, Key="train/beside")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        client.delete_bucket(Bucket=BUCKET)
    (root / "whole-folder").symlink_to(data)
    assert client.list_objects_v2(Bucket="whole-folder")["Contents"][0]["Key"] == "deep/file"
    with pytest.raises(ClientError, match="AccessDenied"):
        client.put_object(Bucket="whole-folder", Key="x", Body=b"")
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_bucket(Bucket="whole-folder")
    assert sorted(each.name for each in data.rglob("*") if not each.is_symlink()) == ["deep", "file"]


def test_a_reader_sees_the_old_object_or_the_new_one(face: tuple[Any, S3Face]) -> None:
    client, _ = face
    sizes = (100_000, 300_000)
    client.put_object(Bucket=BUCKET, Key="k", Body=bytes([0]) * sizes[0])
    done = threading.Event()

    def write() -> None:
        for at in range(60):
            client.put_object(Bucket=BUCKET, Key="k", Body=bytes([at % 2]) * sizes[at % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[bytes] = set()
    while not done.is_set() or len(seen) < 1:
        found = client.get_object(Bucket=BUCKET, Key="k")
        data = found["Body"].read()
        assert data in {bytes([at]) * sizes[at] for at in (0, 1)}
        seen.add(data[:1] + found["ETag"].encode())
    writer.join()
    assert len(seen) <= 2  # one ETag for each


@pytest.mark.parametrize("fails", ["index", "endpoint"])
def test_a_server_that_cannot_be_had_keeps_neither_its_port_nor_its_folders(fails: str, tmp_path: Path) -> None:
    root, store = tmp_path / "buckets", tmp_path / "store"
    S3Face(root).close()
    index = root / OWN / "objects.sqlite"
    kept = index.read_bytes()
    if fails == "index":
        index.write_bytes(b"no database" * 100)
        with pytest.raises(Exception, match="database"):
            S3Face(root)
        index.write_bytes(kept)
    else:
        store.mkdir(mode=0o700)
        options = ServeOptions(port=0, store=store, buckets=root, images=["Nothing=no-such-python"])
        with pytest.raises(UsageError, match="Nothing"):
            Endpoint(options, keys_of(store))
    S3Face(root).close()  # in the same process


def test_what_was_put_is_there_after_a_restart(root: Path) -> None:
    for _ in range(2):
        with s3_serving(root) as (server, _):
            client = s3_client(f"http://127.0.0.1:{server.port}")
            if not (root / BUCKET).exists():
                client.create_bucket(Bucket=BUCKET)
                for key in ("a", "b/c"):
                    client.put_object(Bucket=BUCKET, Key=key, Body=key.encode(), Metadata={"k": key})
                created = client.list_buckets()["Buckets"]
                (root / OWN / "incoming" / "left").write_bytes(b"of a server that was killed")
                with pytest.raises(UsageError, match="another server uses"):
                    S3Face(root)
            else:
                assert client.list_buckets()["Buckets"] == created
                for key in ("a", "b/c"):
                    assert client.head_object(Bucket=BUCKET, Key=key)["Metadata"] == {"k": key}
                assert list((root / OWN / "incoming").iterdir()) == []
            client.close()


def test_the_owner_that_a_client_expects_is_checked(face: tuple[Any, S3Face]) -> None:
    client, _ = face
    client.put_object(Bucket=BUCKET, Key="k", Body=b"", ExpectedBucketOwner=ACCOUNT)
    client.head_bucket(Bucket=BUCKET, ExpectedBucketOwner=ACCOUNT)
    with pytest.raises(ClientError, match="AccessDenied"):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"", ExpectedBucketOwner="999999999999")
    with pytest.raises(ClientError, match="403"):
        client.head_bucket(Bucket=BUCKET, ExpectedBucketOwner="999999999999")
