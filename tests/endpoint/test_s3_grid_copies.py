"""A grid copies within `headrace serve`: by the server, with conditions and parts, as within S3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from s3_server import s3_client, s3_serving

from headrace.grid.copied_object import CopyFailed, CopyFailure
from headrace.grid.copy_action import plan_copy
from headrace.instance.s3 import S3Access

PART = 5 << 20


def test_a_copy_is_of_the_listed_objects_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with s3_serving(tmp_path) as (server, _):
        client = s3_client(f"http://127.0.0.1:{server.port}")
        client.create_bucket(Bucket="far")
        client.create_bucket(Bucket="near")
        access = S3Access(region="us-east-1", endpoint=f"http://127.0.0.1:{server.port}")
        place = {"Bucket": "far", "Key": "data/parts"}
        upload = place | {"UploadId": client.create_multipart_upload(**place)["UploadId"]}
        parts = [
            {"PartNumber": n, "ETag": client.upload_part(**upload, PartNumber=n, Body=os.urandom(size))["ETag"]}
            for n, size in enumerate((PART, PART + 1, 3), 1)
        ]
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        client.put_object(Bucket="far", Key="data/one", Body=b"one")
        with plan_copy("s3://far/data", "s3://near", source=access, target=access) as action:
            done = action.run()
            assert (action.by_service, done.marker.compared) == (True, {"etag": 2})
            assert action.is_whole()
        with plan_copy("s3://far/data", "s3://near/again", source=access, target=access) as late:
            client.put_object(Bucket="far", Key="data/one", Body=b"two")
            with pytest.raises(CopyFailed) as failed:
                late.run()
            assert failed.value.failure is CopyFailure.SOURCE_CHANGED
            listed = client.list_objects_v2(Bucket="near", Prefix="again").get("Contents", ())
            assert not any(each["Key"].endswith("one") for each in listed)
