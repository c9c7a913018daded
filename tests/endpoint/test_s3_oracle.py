"""The same random operations by the same client against this face and against moto: the answers are equal.

What is compared is what S3 defines: status, code of the error, and the fields below; not times, texts or identifiers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from effort import SOAK
from s3_server import s3_client, s3_serving

from notes import note

FIELDS = (
    "ETag", "ContentLength", "ContentType", "ContentRange", "Metadata", "CacheControl", "ContentDisposition",
    "ContentEncoding", "ContentLanguage", "KeyCount", "IsTruncated", "MaxKeys", "Name", "Prefix", "Delimiter",
    "LocationConstraint", "ChecksumCRC32", "ChecksumSHA256", "Bucket", "Key", "CopyObjectResult", "CopyPartResult",
    "PartsCount",
)  # fmt: skip
BUCKETS = ("bucket-one", "bucket-two")
KEYS = ("a", "a-", "b/c", "b/d/e", "b-", "ü ö", "x+y&z%41", "d/e.txt", "d/f.txt", "~", "Case", "case", "...")
PREFIXES = ("", "a", "b", "b/", "d/", "b//", "nothing", "ü")
PART = 5 << 20
Answer = dict[str, Any]
Ask = Callable[[Any], Any]


def shown(found: Any) -> Any:
    """An answer without what differs by nature."""
    kept: Answer = {"status": found["ResponseMetadata"]["HTTPStatusCode"]}
    for name in FIELDS:
        value = found.get(name)
        if isinstance(value, dict):
            value = {key: each for key, each in value.items() if key in ("ETag", *FIELDS)} if "ETag" in value else value
        kept[name] = value
    if "Body" in found:
        kept["body"] = found["Body"].read()
    kept["Prefix"] = kept["Prefix"] or ""
    kept["contents"] = [(each["Key"], each["Size"], each["ETag"]) for each in found.get("Contents", ())]
    kept["prefixes"] = [each["Prefix"] for each in found.get("CommonPrefixes", ())]
    kept["deleted"] = sorted(each["Key"] for each in found.get("Deleted", ()))
    kept["parts"] = [(each["PartNumber"], each["Size"], each["ETag"]) for each in found.get("Parts", ())]
    kept["buckets"] = [each["Name"] for each in found.get("Buckets", ())]
    return kept


def answer(client: Any, ask: Ask) -> Any:
    try:
        return shown(ask(client))
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]


class Both:
    """This face and the oracle."""

    def __init__(self, ours: Any, oracle: Any) -> None:
        self.ours, self.oracle = ours, oracle
        self.asked = 0
        self.failed = 0

    def same(self, what: str, ask: Ask) -> Any:
        """Asks both, and compares. Returns the answer."""
        ours, expected = answer(self.ours, ask), answer(self.oracle, ask)
        assert ours == expected, what
        self.asked += 1
        self.failed += isinstance(ours, tuple)
        return ours


def options(chance: random.Random) -> Answer:
    """What may come with an upload."""
    every: Answer = {
        "Metadata": {"one": "1", "two-b": "b c"}, "ContentType": "text/x", "CacheControl": "no-cache",
        "ContentDisposition": "attachment", "ContentLanguage": "de", "ContentEncoding": "gzip",
    }  # fmt: skip
    return {name: value for name, value in every.items() if chance.random() < 0.3}


def one_operation(both: Both, chance: random.Random) -> None:
    bucket = chance.choice(BUCKETS)
    key = chance.choice(KEYS)
    place = {"Bucket": bucket, "Key": key}
    match chance.choice(
        ["put"] * 5 + ["get"] * 3 + ["range"] * 2 + ["if"] * 2 + ["head"] * 2 + ["copy"] * 3 + ["delete"] * 3
        + ["deletes", "list", "list", "pages", "pages", "v1", "v1", "buckets", "make", "parts", "drop"]
    ):  # fmt: skip
        case "put":
            body = chance.randbytes(chance.choice([0, 1, 100, 5000]))
            more = options(chance)
            if chance.random() < 0.3:
                more["ChecksumAlgorithm"] = chance.choice(["SHA256", "CRC32"])
            if chance.random() < 0.1:
                more["IfNoneMatch"] = "*"
            both.same(f"put {place} {more}", lambda c: c.put_object(**place, **more, Body=body))
        case "get":
            both.same(f"get {place}", lambda c: c.get_object(**place))
        case "range":
            low, high = sorted((chance.randrange(6000), chance.randrange(6000)))
            wanted = chance.choice([f"bytes={low}-{high}", f"bytes={low}-", f"bytes=-{high}", "bytes=0-0"])

            def part(client: Any) -> Any:
                empty = client.head_object(**place)["ContentLength"] == 0  # the oracle has a last part of nothing
                found = client.get_object(**place, Range="bytes=0-0" if empty else wanted)
                return {name: value for name, value in found.items() if not name.startswith("Checksum")}

            # The checksum of the whole object, which the oracle tells with a part of it, is left out.
            both.same(f"get {place} {wanted}", part)
        case "if":
            name = chance.choice(["IfMatch", "IfNoneMatch"])
            value = chance.choice(['"d41d8cd98f00b204e9800998ecf8427e"', "now"])

            def with_condition(client: Any) -> Any:
                etag = client.head_object(**place)["ETag"] if value == "now" else value
                return client.get_object(**place, **{name: etag})

            both.same(f"get {place} {name} {value}", with_condition)
        case "head":
            both.same(f"head {place}", lambda c: c.head_object(**place, ChecksumMode="ENABLED"))
            both.same(f"head {bucket}", lambda c: c.head_bucket(Bucket=bucket))
        case "copy":
            source = {"Bucket": chance.choice(BUCKETS), "Key": chance.choice(KEYS)}
            more = {"MetadataDirective": "REPLACE", **options(chance)} if chance.random() < 0.5 else {}
            both.same(f"copy {source} {place} {more}", lambda c: c.copy_object(**place, CopySource=source, **more))
        case "delete":
            both.same(f"delete {place}", lambda c: c.delete_object(**place))
        case "deletes":
            names = [{"Key": each} for each in chance.sample(KEYS, 3)]
            both.same(f"delete {names}", lambda c: c.delete_objects(Bucket=bucket, Delete={"Objects": names}))
        case "list":
            asked = listing(chance)
            both.same(f"list {bucket} {asked}", lambda c: c.list_objects_v2(Bucket=bucket, **asked))
        case "pages":
            asked = listing(chance)
            size = chance.randrange(1, 4)
            ours, expected = (every_page(c, bucket, size, asked) for c in (both.ours, both.oracle))
            assert ours == expected, f"pages of {size} of {bucket} {asked}"
        case "v1":
            asked = listing(chance)
            asked.pop("StartAfter", None)
            if "Delimiter" in asked:
                asked["MaxKeys"] = 100  # the oracle counts keys and prefixes apart
            both.same(f"list {bucket} {asked}", lambda c: c.list_objects(Bucket=bucket, **asked) | {"Prefix": ""})
        case "buckets":

            def ours_alone(client: Any) -> Any:  # other tests have buckets in the oracle
                found = client.list_buckets()
                return found | {"Buckets": [each for each in found["Buckets"] if each["Name"] in BUCKETS]}

            both.same("buckets", ours_alone)
        case "make":
            both.same(f"make {bucket}", lambda c: c.create_bucket(Bucket=bucket))
            both.same(f"where {bucket}", lambda c: c.get_bucket_location(Bucket=bucket))
        case "drop" if chance.random() < 0.3:
            both.same(f"drop {bucket}", lambda c: c.delete_bucket(Bucket=bucket))
        case "parts":
            in_parts(both, chance, place)


def listing(chance: random.Random) -> Answer:
    asked: Answer = {"MaxKeys": chance.choice([2, 100])}
    if chance.random() < 0.7:
        asked["Prefix"] = chance.choice(PREFIXES)
    if chance.random() < 0.5:
        asked["Delimiter"] = chance.choice(["/", "/", "b"])
    if chance.random() < 0.2:
        asked["StartAfter"] = chance.choice(["a", "a-", "b", "Z"])
    return asked


def every_page(client: Any, bucket: str, size: int, asked: Answer) -> Any:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, **asked | {"MaxKeys": size})
    try:
        found = [shown(each) for each in pages]
    except ClientError as error:
        return error.response["Error"]["Code"]
    keys = [each for page in found for each in page["contents"]]
    return keys, [each for page in found for each in page["prefixes"]]


def in_parts(both: Both, chance: random.Random, place: Answer) -> None:
    more = options(chance)
    begun = [client.create_multipart_upload(**place, **more)["UploadId"] if exists(client, place) else None
             for client in (both.ours, both.oracle)]  # fmt: skip
    if begun[0] is None:
        return
    ids = dict(zip((id(both.ours), id(both.oracle)), begun, strict=True))
    numbers = sorted(chance.sample(range(1, 20), chance.randrange(1, 3)))
    etags: list[Answer] = []
    order = numbers[:]
    chance.shuffle(order)
    for number in order:
        body = bytes([number]) * (PART if number != numbers[-1] or chance.random() < 0.2 else chance.randrange(1, 1000))
        found = both.same(
            f"part {number} of {place}",
            lambda c, n=number, b=body: c.upload_part(**place, UploadId=ids[id(c)], PartNumber=n, Body=b),
        )
        etags.append({"PartNumber": number, "ETag": found["ETag"]})
    etags.sort(key=lambda each: each["PartNumber"])
    both.same(f"parts of {place}", lambda c: c.list_parts(**place, UploadId=ids[id(c)]))
    kind = chance.choice(["complete"] * 4 + ["abort", "wrong"])
    if kind == "wrong":
        etags[0]["ETag"] = '"d41d8cd98f00b204e9800998ecf8427e"'
    if kind != "abort":
        both.same(
            f"{kind} {place}",
            lambda c: c.complete_multipart_upload(**place, UploadId=ids[id(c)], MultipartUpload={"Parts": etags}),
        )
        both.same(f"then get {place}", lambda c: c.get_object(**place))
    if kind != "complete":
        both.same(f"abort {place}", lambda c: c.abort_multipart_upload(**place, UploadId=ids[id(c)]))
        both.same(f"gone {place}", lambda c: c.list_parts(**place, UploadId=ids[id(c)]))


def exists(client: Any, place: Answer) -> bool:
    try:
        client.head_bucket(Bucket=place["Bucket"])
    except ClientError:
        return False
    return True


@pytest.fixture
def both(tmp_path: Path, s3_endpoint: str) -> Iterator[Both]:
    oracle = s3_client(s3_endpoint)
    with s3_serving(tmp_path / "objects") as (server, _):
        ours = s3_client(f"http://127.0.0.1:{server.port}")
        yield Both(ours, oracle)
        ours.close()
    for bucket in oracle.list_buckets()["Buckets"]:
        if bucket["Name"] in BUCKETS:
            for each in oracle.list_objects_v2(Bucket=bucket["Name"]).get("Contents", ()):
                oracle.delete_object(Bucket=bucket["Name"], Key=each["Key"])
            oracle.delete_bucket(Bucket=bucket["Name"])
    oracle.close()


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
@pytest.mark.promise("serve", "S3 has the same answers as moto's")
def test_random_operations_have_the_answers_of_the_oracle(seed: int, both: Both) -> None:
    chance = random.Random(f"oracle-{seed}")
    for bucket in BUCKETS:
        both.same(f"make {bucket}", lambda c, b=bucket: c.create_bucket(Bucket=b))
    for _ in range(150 if SOAK else 110):
        one_operation(both, chance)
    assert both.asked > 80
    assert both.failed > 5  # errors were compared too
    note("S3 face and moto", f"seed {seed}: {both.asked} answers compared, {both.failed} of them errors")
