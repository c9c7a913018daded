"""Uploads whose chunks are signed, as older clients send them: every signature counts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from datetime import datetime, timezone

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from wire_client import Wire

from headrace.endpoint.auth.signatures import PAYLOAD, PAYLOAD_TRAILER, ChunkSignatures, Signed
from headrace.endpoint.wire.models import ServiceError
from serve_process import BUCKET, ServeProcess

# The examples of AWS's guide: 66,560 times "a" in chunks of 64 KiB, without and with a trailer.
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHAIN = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)
TRAILER_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
TRAILER_CHAIN = (
    "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
    "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
    "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
)
TRAILER = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
PARTS = tuple(hashlib.sha256(b"a" * size).hexdigest() for size in (65536, 1024, 0))


def chain(seed: str) -> ChunkSignatures:
    moment = datetime(2013, 5, 24, tzinfo=timezone.utc).timestamp()
    return ChunkSignatures(Signed("AKIAIOSFODNN7EXAMPLE", seed, moment, None, "20130524", "us-east-1", "s3"), SECRET)


@pytest.mark.promise("serve", "S3: uploads in signed chunks, as older clients send them")
def test_the_chains_of_awss_guide_are_right_and_each_link_follows_from_the_one_before() -> None:
    plain, trailing = chain(SEED), chain(TRAILER_SEED)
    for signature, other, digest in zip(CHAIN, TRAILER_CHAIN, PARTS, strict=True):
        plain.chunk(signature, digest)
        trailing.chunk(other, digest)
    trailing.trailers(TRAILER, {"x-amz-checksum-crc32c": "sOO8/Q=="})
    with pytest.raises(ServiceError) as found:
        chain(SEED).chunk(CHAIN[1], PARTS[1])
    assert (found.value.code, found.value.status) == ("SignatureDoesNotMatch", 403)


class OldClient(S3SigV4Auth):
    """Signs the head of an upload, and then its chunks, each with the signature of the one before."""

    def __init__(self, credentials: Credentials, word: str) -> None:
        super().__init__(credentials, "s3", "us-east-1")
        self._word = word

    def payload(self, request: AWSRequest) -> str:
        return self._word

    def sign(self, kind: str, *digests: str) -> str:
        text = "\n".join((f"AWS4-HMAC-SHA256-{kind}", self._stamp, self._scope, self._before, *digests))
        self._before = hmac.new(self._key, text.encode(), "sha256").hexdigest()
        return self._before

    def begin(self, url: str, headers: dict[str, str]) -> list[tuple[str, str]]:
        request = AWSRequest("PUT", url, headers=headers)
        self.add_auth(request)
        self._stamp = request.context["timestamp"]
        self._scope = self.credential_scope(request)
        self._before = request.headers["Authorization"].rpartition("Signature=")[2]
        key = f"AWS4{self.credentials.secret_key}".encode()
        for part in self._scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        self._key = key
        return list(request.headers.items())


def put(endpoint: ServeProcess, key: str, data: bytes, word: str, spoil: str = "") -> int:
    """Puts an object in chunks of 8 KiB, with something wrong with it. Returns the status of the answer."""
    client = OldClient(Credentials(*endpoint.keys()), word)
    trailing = word == PAYLOAD_TRAILER
    path = f"/{BUCKET}/{key}"
    more = {"x-amz-trailer": "x-amz-checksum-crc32"} if trailing else {}
    given = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(data)), **more}
    head = client.begin(f"{endpoint.url}{path}", given)
    empty = hashlib.sha256(b"").hexdigest()
    pieces = [data[at : at + 8192] for at in range(0, len(data), 8192)] + [b""]
    if spoil == "order":
        pieces[0], pieces[1] = pieces[1], pieces[0]
    signed = [(piece, client.sign("PAYLOAD", empty, hashlib.sha256(piece).hexdigest())) for piece in pieces]
    if spoil == "order":
        signed[0], signed[1] = signed[1], signed[0]
    body = b""
    for place, (piece, signature) in enumerate(signed):
        shown = b"b" + piece[1:] if spoil == "bytes" and place == 1 else piece
        said = "" if spoil == "none" and place == 1 else f";chunk-signature={signature}"
        if spoil == "last" and not piece:
            said = f";chunk-signature={'0' * 64}"
        body += b"%x%s\r\n%s" % (len(shown), said.encode(), shown)
        body += b"\r\n" if piece else b""
    if trailing:
        value = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        line = f"x-amz-checksum-crc32:{value}"
        signature = client.sign("TRAILER", hashlib.sha256(f"{line}\n".encode()).hexdigest())
        said = "" if spoil == "trailer" else f"x-amz-trailer-signature:{signature}\r\n"
        body += f"{line}\r\n{said}".encode()
    body += b"\r\n"
    lines = [f"PUT {path} HTTP/1.1", f"Host: 127.0.0.1:{endpoint.port}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in head]
    with Wire(endpoint.port) as wire:
        return wire.ask("\n".join(lines), body)[0]


@pytest.mark.promise("serve-reference", "an upload counts only if every signature of its chunks is right")
@pytest.mark.parametrize("word", [PAYLOAD, PAYLOAD_TRAILER])
def test_an_upload_in_signed_chunks_is_the_object_and_one_with_any_other_signature_is_none(
    endpoint: ServeProcess, word: str
) -> None:
    data = bytes(range(256)) * 100
    assert put(endpoint, "right", data, word) == 200
    assert (endpoint.bucket / "right").read_bytes() == data
    for spoil in ("bytes", "order", "none", "last", *(["trailer"] if word == PAYLOAD_TRAILER else [])):
        assert put(endpoint, f"wrong-{spoil}", data, word, spoil) == 403, spoil
    listed = endpoint.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]
    endpoint.close_clients()
    assert [each["Key"] for each in listed] == ["right"]
