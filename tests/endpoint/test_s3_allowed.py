"""What the S3 face does not know it does not do, and what it is asked to keep it keeps: nothing is lost by a request
that the service would have refused, or that a later version of the service understands.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from s3_server import SESSION, s3_client, s3_serving
from wire_client import Wire

from headrace.endpoint.auth.gatekeeper import AccessKey, AccessKeys, Gatekeeper, Holder
from headrace.endpoint.http.http_message import Headers, HttpRequest
from headrace.endpoint.wire.models import ServiceError, service_model
from headrace.endpoint.wire.requests import read_xml

BUCKET, KEY = "bucket", "folder/key"
KNOWN = {
    *("ListBuckets", "CreateBucket", "HeadBucket", "DeleteBucket", "GetBucketLocation", "GetBucketVersioning"),
    *("ListObjects", "ListObjectsV2", "GetObject", "HeadObject", "PutObject", "CopyObject", "DeleteObject"),
    *("DeleteObjects", "CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload"),
    *("AbortMultipartUpload", "ListParts", "ListMultipartUploads"),
}
ELSEWHERE = {"WriteGetObjectResponse", "ListDirectoryBuckets"}  # asked of hosts of their own
MODEL = SESSION.get_service_model("s3")
UNKNOWN = sorted({*MODEL.operation_names} - KNOWN - ELSEWHERE)
PART = 5 << 20
DELETE = service_model("s3").operations["DeleteObjects"].input.members["Delete"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, int, Path]]:
    root = tmp_path_factory.mktemp("objects")
    with s3_serving(root) as (server, _):
        client = s3_client(f"http://127.0.0.1:{server.port}", parameter_validation=False)
        client.create_bucket(Bucket=BUCKET)
        yield client, server.port, root
        client.close()


@pytest.fixture(autouse=True)
def _an_object(served: tuple[Any, int, Path]) -> None:
    served[0].put_object(Bucket=BUCKET, Key=KEY, Body=b"kept")


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    return str(error.value.response["Error"]["Code"])


def is_kept(root: Path) -> bool:
    return (root / BUCKET / KEY).read_bytes() == b"kept"


def least(name: str) -> dict[str, Any]:
    """The arguments without which an operation's address cannot be made."""
    shape = MODEL.operation_model(name).input_shape
    members = {} if shape is None else shape.members
    places = {member: each.serialization.get("location") for member, each in members.items()}
    needed = () if shape is None else shape.required_members
    found = {member: "1" for member in needed if places[member] in ("querystring", "header")}
    return found | {name: value for name, value in (("Bucket", BUCKET), ("Key", KEY)) if name in places}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.promise("serve", "S3: an operation, a parameter or a condition that is not known changes nothing")
def test_an_operation_that_is_not_known_is_refused_and_changes_nothing(
    name: str, served: tuple[Any, int, Path]
) -> None:
    client, _, root = served
    method = next(method for method, operation in client.meta.method_to_api_mapping.items() if operation == name)
    assert refused(getattr(client, method), **least(name)) in {"NotImplemented", "InvalidArgument"}
    assert is_kept(root)


@pytest.mark.parametrize("target", [f"/{BUCKET}", f"/{BUCKET}/{KEY}"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "GET", "HEAD"])
@pytest.mark.promise("serve", "S3: an operation, a parameter or a condition that is not known changes nothing")
def test_what_the_service_may_invent_is_refused_too(method: str, target: str, served: tuple[Any, int, Path]) -> None:
    with Wire(served[1]) as wire:
        wire.send(f"{method} {target}?somethingNew HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".encode())
        assert wire.head()[0] == 501
    assert is_kept(served[2])


@pytest.mark.parametrize(
    ("operation", "arguments", "code"),
    [
        ("delete_object", {"IfMatch": '"another"'}, "PreconditionFailed"),
        ("delete_object", {"IfMatchSize": 4}, "NotImplemented"),
        ("delete_object", {"VersionId": "v1"}, "InvalidArgument"),
        ("put_object", {"IfNoneMatch": "*", "Body": b"new"}, "PreconditionFailed"),
        ("put_object", {"IfMatch": '"another"', "Body": b"new"}, "PreconditionFailed"),
        ("copy_object", {"CopySource": f"{BUCKET}/other", "IfNoneMatch": "*"}, "PreconditionFailed"),
        ("copy_object", {"CopySource": f"{BUCKET}/other", "IfMatch": '"another"'}, "PreconditionFailed"),
        ("copy_object", {"CopySource": f"{BUCKET}/other", "CopySourceIfMatch": '"another"'}, "PreconditionFailed"),
    ],
)
@pytest.mark.promise("serve", "S3: an operation, a parameter or a condition that is not known changes nothing")
def test_a_condition_is_kept_or_refused(
    operation: str, arguments: dict[str, Any], code: str, served: tuple[Any, int, Path]
) -> None:
    client, _, root = served
    client.put_object(Bucket=BUCKET, Key="other", Body=b"other")
    assert refused(getattr(client, operation), Bucket=BUCKET, Key=KEY, **arguments) == code
    assert is_kept(root)


def test_objects_of_a_list_go_under_the_conditions_beside_their_keys(served: tuple[Any, int, Path]) -> None:
    client, _, root = served
    right = client.put_object(Bucket=BUCKET, Key="right", Body=b"x")["ETag"]
    wanted = [
        {"Key": KEY, "ETag": '"another"'},
        {"Key": f"{KEY}2", "VersionId": "v1"},
        {"Key": f"{KEY}3", "Size": 4},
        {"Key": "right", "ETag": right},
    ]
    for each in wanted[1:3]:
        client.put_object(Bucket=BUCKET, Key=each["Key"], Body=b"kept")
    answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted})
    assert [each["Key"] for each in answer["Deleted"]] == ["right"]
    assert [each["Code"] for each in answer["Errors"]] == ["PreconditionFailed", "NoSuchVersion", "NotImplemented"]
    assert is_kept(root)
    assert len(list((root / BUCKET / "folder").iterdir())) == 3
    client.delete_object(Bucket=BUCKET, Key=KEY, IfMatch=client.head_object(Bucket=BUCKET, Key=KEY)["ETag"])
    assert not (root / BUCKET / KEY).exists()


def upload(client: Any, key: str, numbers: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    begun = client.create_multipart_upload(Bucket=BUCKET, Key=key)
    of = {"Bucket": BUCKET, "Key": key, "UploadId": begun["UploadId"]}
    parts = [
        {"PartNumber": n, "ETag": client.upload_part(**of, PartNumber=n, Body=bytes([n]) * PART)["ETag"]}
        for n in range(1, numbers + 1)
    ]
    return of, parts


@pytest.mark.promise("serve", "S3: an upload in parts that is refused is whole for the next try")
def test_an_upload_that_is_not_accepted_is_whole_for_the_next_try(served: tuple[Any, int, Path]) -> None:
    client, _, root = served
    of, parts = upload(client, "large", 3)
    whole = b"".join(bytes([number]) * PART for number in (1, 2, 3))
    sha256 = base64.b64encode(hashlib.sha256(whole).digest()).decode()
    crc32 = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
    client.put_object(Bucket=BUCKET, Key="large", Body=b"there")
    two, three = {"MultipartUpload": {"Parts": parts[:2]}}, {"MultipartUpload": {"Parts": parts}}
    complete = client.complete_multipart_upload
    assert refused(complete, **of, **two, IfNoneMatch="*") == "PreconditionFailed"
    assert refused(complete, **of, **two, MpuObjectSize=3 * PART) == "InvalidRequest"
    assert refused(complete, **of, **two, ChecksumSHA256=sha256) == "BadDigest"
    assert refused(complete, **of, **two, ChecksumCRC32=crc32) == "BadDigest"
    assert refused(complete, **of, **three, ChecksumType="COMPOSITE") == "InvalidRequest"
    assert (root / BUCKET / "large").read_bytes() == b"there"
    complete(
        **of, **three, MpuObjectSize=3 * PART, ChecksumSHA256=sha256, ChecksumCRC32=crc32, ChecksumType="FULL_OBJECT"
    )
    assert (root / BUCKET / "large").read_bytes() == whole
    of, parts = upload(client, "short", 3)
    complete(**of, MultipartUpload={"Parts": parts[:2]})
    assert (root / BUCKET / "short").read_bytes() == whole[: 2 * PART]


def test_a_copy_has_the_checksum_that_was_asked_for(served: tuple[Any, int, Path]) -> None:
    client, _, _ = served
    copied = client.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/{KEY}", ChecksumAlgorithm="SHA256")
    wanted = base64.b64encode(hashlib.sha256(b"kept").digest()).decode()
    assert copied["CopyObjectResult"]["ChecksumSHA256"] == wanted
    assert client.head_object(Bucket=BUCKET, Key="copy", ChecksumMode="ENABLED")["ChecksumSHA256"] == wanted
    assert client.list_objects_v2(Bucket=BUCKET, Prefix="copy")["Contents"][0]["ChecksumAlgorithm"] == ["SHA256"]


@pytest.mark.parametrize("name", ["x-amz-copy-source", "X-Amz-Metadata-Directive", "x-amz-meta-x", "x-amz-new"])
@pytest.mark.promise("security", "a presigned address is good for its object, time and headers only")
@pytest.mark.promise("serve", "S3: whoever has a presigned address can do with it what was signed")
def test_whoever_has_a_presigned_address_adds_no_header_of_s3s_own(name: str) -> None:
    key = AccessKey(Holder.USER, "HEADRACEAAAA", "secret")
    gate = Gatekeeper(AccessKeys((key, AccessKey(Holder.PROGRAM, "HEADRACEBBBB", "secret2"))))
    signed = AWSRequest("PUT", "http://127.0.0.1:7080/b/mine", headers={})
    S3SigV4QueryAuth(Credentials(key.key_id, key.secret), "s3", "us-east-1", expires=600).add_auth(signed)
    address = urlsplit(signed.url)

    def admit(*more: tuple[str, str]) -> None:
        headers = Headers((("Host", "127.0.0.1:7080"), ("Content-Length", "0"), *more))
        gate.admit(HttpRequest("PUT", address.path, address.query, headers), lambda: b"")

    admit(("content-type", "text/plain"), ("x-amzn-trace-id", "1"))
    with pytest.raises(ServiceError, match=f"not signed: {name.lower()}") as error:
        admit((name, "/other/secret"))
    assert error.value.code == "AccessDenied"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-7"])
def test_a_document_type_is_seen_in_every_encoding(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE Delete [<!ENTITY a "aa">]><Delete>&a;</Delete>'
    for document in (text, text.partition("?>")[2]):
        with pytest.raises(ServiceError) as error:
            read_xml(document.encode(encoding), "Delete", DELETE)
        assert error.value.code == "MalformedXML"
