"""Presigned addresses that boto3 makes, in both versions, are the signatures that are checked."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.config import Config
from s3_server import SESSION

from headrace.endpoint.auth.signatures import UNSIGNED, matches, read_signature
from headrace.endpoint.http.http_message import Headers, HttpRequest

KEYS = ["a", "a b/ü", "p+q&r%41=", "x//y", "../z", "/lead", "k?q#", "~"]


@pytest.mark.parametrize("version", ["s3", "s3v4"])
@pytest.mark.promise("serve", "S3: presigned addresses of boto3, both versions")
def test_a_presigned_address_is_verified_and_bound_to_its_object(version: str) -> None:
    client = SESSION.create_client(
        "s3", "eu-west-1", aws_access_key_id="id", aws_secret_access_key="secret",
        endpoint_url="http://127.0.0.1:7080",
        config=Config(signature_version=version),
    )  # fmt: skip
    more: dict[str, Any] = {"ResponseContentType": "text/z", "ResponseContentDisposition": 'attachment; filename="ü"'}
    for key in KEYS:
        url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": key, **more})
        address, _, query = url.partition("?")
        blank = f"{address}?{query.replace('%20', '+')}"  # as clients write it that make queries as forms are made
        asked = ((url, True), (blank, True), (url.replace("text", "tent"), False), (url.replace("?", "x?", 1), False))
        for changed, right in asked:
            parts = urlsplit(changed)
            headers = Headers([("Host", parts.netloc)])
            request = HttpRequest("GET", parts.path, parts.query, headers)
            signed = read_signature(request)
            assert signed is not None
            assert signed.version == (2 if version == "s3" else 4)
            assert matches(signed, request, "secret", UNSIGNED) is right, changed
            assert not matches(signed, request, "another", UNSIGNED)
    client.close()


@pytest.mark.promise("serve", "S3: presigned addresses of boto3, both versions")
def test_a_presigned_address_of_version_2_may_be_a_buckets() -> None:
    client = SESSION.create_client(
        "s3", "eu-west-1", aws_access_key_id="id", aws_secret_access_key="secret",
        endpoint_url="http://127.0.0.1:7080",
        config=Config(signature_version="s3"),
    )  # fmt: skip
    asked = [
        ("list_objects_v2", "GET"),
        ("head_bucket", "HEAD"),
        ("get_bucket_location", "GET"),
        ("delete_objects", "POST"),
    ]
    for operation, method in asked:
        more = {"Delete": {"Objects": []}} if operation == "delete_objects" else {}
        address = urlsplit(client.generate_presigned_url(operation, Params={"Bucket": "bucket", **more}))
        headers = Headers([("Host", address.netloc)])
        request = HttpRequest(method, address.path, address.query, headers)
        signed = read_signature(request)
        assert signed is not None
        assert matches(signed, request, "secret", UNSIGNED), operation
    client.close()
