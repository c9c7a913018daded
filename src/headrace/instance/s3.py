"""Objects of an S3 bucket, through botocore; its errors become headrace's.

botocore is an extra (`s3`), imported when the first object is asked for.
Credentials, region and endpoint are found as every AWS tool finds them: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION,
AWS_ENDPOINT_URL, ~/.aws. Measured against s3fs with 400 files of 20 KB and of 500 KB: threads around botocore cost
0.8 to 1.0 of its CPU seconds, and half of its start. Against s3transfer with one file of 200 MB, 16 MB a part: the
same for an upload (0.4 s), half for a download (0.12 s and 0.24 s), which also goes on where it broke off.

A read that breaks off goes on where it was, of the very same object (If-Match). Safe for use by several threads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.aws_errors import AwsFault, fault_of
from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError, StorageUnreachable, UsageError
from headrace.install_hint import install_hint

CHUNK = 1 << 18
PART = 16 << 20
PARTS_AT_ONCE = 4
MOST_PARTS = 10_000  # S3's limit
CONNECT_SECONDS = 10.0
ATTEMPTS = 3

_log = logging.getLogger(__name__)

_MISSING = {"NoSuchBucket", "NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_CHANGED = {"PreconditionFailed", "412", "InvalidRange", "416"}
_REGION = {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SET_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class S3Access(NamedTuple):
    """How S3 is reached, where that is not as the environment says.

    Attributes:
        profile: of ~/.aws; empty for that of the environment.
        region: empty likewise.
        endpoint: address that is asked in place of AWS's; empty likewise.
    """

    profile: str = ""
    region: str = ""
    endpoint: str = ""


AS_ENVIRONMENT = S3Access()


@functools.cache
def _models(folders: str | None) -> Any:
    return importlib.import_module("botocore.loaders").create_loader(folders)


def share_models(session: Any) -> None:
    """Lets a session of botocore read the model of a service once in a process: five sixths of what a client costs."""
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))


class S3:
    """A client for all buckets.

    Args:
        timeout: seconds without an answer after which a request is tried again.
        attempts: how often a request is made at most; 0 means as AWS_MAX_ATTEMPTS says, else 3.
        connections: open connections at most; as many threads can work at once.
        access: how S3 is reached.

    Attributes:
        client: botocore's, for what has no method here; called in `told`.
        endpoint: address that is asked.

    Raises:
        UsageError: the extra is not installed, or the configuration of AWS names something that does not exist.
    """

    def __init__(
        self, timeout: float = 20.0, attempts: int = 0, connections: int = 16, access: S3Access = AS_ENVIRONMENT
    ) -> None:
        try:
            session = importlib.import_module("botocore.session")
            config = importlib.import_module("botocore.config")
            self._errors = importlib.import_module("botocore.exceptions")
        except ImportError as error:
            raise UsageError(
                f"s3:// needs a library that is not installed: {error.name}", install_hint("s3")
            ) from error
        self._broken = (
            self._errors.ResponseStreamingError,
            self._errors.ReadTimeoutError,
            self._errors.IncompleteReadError,
        )
        with self.told("s3://"):
            self._core = core = session.Session(profile=access.profile or None)
            share_models(core)
            self._attempts = attempts or int(core.get_config_variable("max_attempts") or ATTEMPTS)
            self.client: Any = core.create_client(
                "s3",
                region_name=access.region or None,
                endpoint_url=access.endpoint or None,
                config=config.Config(
                    connect_timeout=min(CONNECT_SECONDS, timeout),
                    read_timeout=timeout,
                    retries={"total_max_attempts": self._attempts, "mode": "standard"},
                    max_pool_connections=connections,
                ),
            )
        self.endpoint: str = self.client.meta.endpoint_url

    def key(self) -> tuple[str, str, str | None]:
        """Returns key id, secret and token, renewed where they end. Raises UsageError if there are none."""
        with self.told("s3://"):
            credentials = self._core.get_credentials()
            if credentials is None:
                raise self._errors.NoCredentialsError
            frozen = credentials.get_frozen_credentials()
            return frozen.access_key, frozen.secret_key, frozen.token

    @property
    def of_aws(self) -> bool:
        """Whether AWS answers, whose regions are those of the price list, and not a server of somebody else."""
        return (urlsplit(self.endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def place_of(self, bucket: str) -> tuple[str, str]:
        """Returns the endpoint that was set ("": AWS's own) and the region of a bucket. Raises as `list`."""
        region = self.client.meta.region_name or ""
        region = "us-east-1" if region in ("", "aws-global") else region
        if not self.of_aws:
            return self.endpoint, region
        with self.told(f"s3://{bucket}"):
            try:
                answer = self.client.head_bucket(Bucket=bucket)
            except self._errors.ClientError as error:  # the region is told also to whom the rest is denied
                answer = error.response
            headers = answer["ResponseMetadata"]["HTTPHeaders"]
            return "", str(headers.get("x-amz-bucket-region", region))

    def close(self) -> None:
        """Closes all connections."""
        self.client.close()

    def list(self, bucket: str, prefix: str, after: str = "") -> Iterator[tuple[str, int, str]]:
        """Yields (key, bytes, etag) of every object whose key begins with the prefix, in S3's order.

        Folder markers (keys that end with a slash) are left out, and keys up to `after`.
        """
        with self.told(f"s3://{bucket}/{prefix}"):
            more = {"StartAfter": after} if after else {}
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, **more):
                for entry in page.get("Contents", ()):
                    if not entry["Key"].endswith("/"):
                        yield entry["Key"], entry["Size"], entry["ETag"]

    def folders(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yields the beginnings of keys from the prefix up to the next slash, that slash included, each once."""
        with self.told(f"s3://{bucket}/{prefix}"):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
            for page in pages:
                for entry in page.get("CommonPrefixes", ()):
                    yield entry["Prefix"]

    def head(self, bucket: str, key: str) -> tuple[int, str]:
        """Returns (bytes, etag) of an object. Raises ObjectMissing."""
        with self.told(f"s3://{bucket}/{key}"):
            answer = self.client.head_object(Bucket=bucket, Key=key)
            return answer["ContentLength"], answer["ETag"]

    def check_bucket(self, bucket: str) -> None:
        """Asks whether the bucket is there and may be used. Raises StorageError."""
        with self.told(f"s3://{bucket}"):
            self.client.head_bucket(Bucket=bucket)

    def read(
        self,
        bucket: str,
        key: str,
        etag: str,
        start: int,
        length: int,
        write: Callable[[bytes], object],
        *,
        ranged: bool = False,
    ) -> None:
        """Reads a range of an object, in pieces.

        Args:
            bucket, key: the object.
            etag: what it must be; empty for whatever it is.
            start: first byte.
            length: bytes; all of them come, or an error is raised.
            write: gets the pieces in order.
            ranged: ask for this range also where it begins with the object: it is not all of it.

        Raises:
            ObjectMissing, ObjectChanged, StorageError: it cannot be read.
        """
        uri = f"s3://{bucket}/{key}"
        arguments = {"Bucket": bucket, "Key": key} | ({"IfMatch": etag} if etag else {})
        got = 0
        for left in reversed(range(self._attempts)):
            if got or start or not etag or ranged:
                arguments["Range"] = f"bytes={start + got}-{start + length - 1}"
            with self.told(uri):
                body = self.client.get_object(**arguments)["Body"]
                try:
                    with contextlib.closing(body):
                        while got < length and (piece := body.read(min(CHUNK, length - got))):
                            write(piece)
                            got += len(piece)
                        body.read(1)  # the end, where botocore compares length and checksum
                    break
                except self._broken:
                    if not left:
                        raise
        if got < length:
            raise ObjectChanged(f"{uri} ends at byte {start + got}, expected were {start + length}")

    def get(self, bucket: str, key: str) -> bytes:
        """Returns the whole of a small object. Raises ObjectMissing or StorageError."""
        for left in reversed(range(self._attempts)):
            with self.told(f"s3://{bucket}/{key}"):
                try:
                    with contextlib.closing(self.client.get_object(Bucket=bucket, Key=key)["Body"]) as body:
                        data: bytes = body.read()
                    return data
                except self._broken:
                    if not left:
                        raise
        raise AssertionError("at least one attempt is made")

    def upload(self, descriptor: int, size: int, bucket: str, key: str, check: Callable[[], None]) -> None:
        """Writes an open file as an object; it is there as a whole or not at all.

        Args:
            descriptor: the file, open for reading.
            size: its bytes.
            bucket, key: the object.
            check: called when all is read and before the object appears; raises if the file has changed meanwhile.

        Raises:
            ObjectMissing, StorageError, UsageError: it cannot be written.
        """
        place = {"Bucket": bucket, "Key": key}
        if size <= PART:
            data = os.pread(descriptor, size, 0)
            check()
            self.put(data, bucket, key)
            return
        part = max(PART, -(-size // MOST_PARTS))
        with self.told(f"s3://{bucket}/{key}", verb="written"):
            upload = place | {"UploadId": self.client.create_multipart_upload(**place)["UploadId"]}

            def send(number: int) -> dict[str, object]:
                data = os.pread(descriptor, part, (number - 1) * part)
                return {
                    "PartNumber": number,
                    "ETag": self.client.upload_part(Body=data, PartNumber=number, **upload)["ETag"],
                }

            try:
                with ThreadPoolExecutor(PARTS_AT_ONCE, "headrace-s3") as pool:
                    sending = [pool.submit(send, number) for number in range(1, -(-size // part) + 1)]
                    try:
                        parts = [future.result() for future in sending]
                    finally:
                        pool.shutdown(cancel_futures=True)
                check()
                self.client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
            except BaseException:
                with contextlib.suppress(self._errors.BotoCoreError, self._errors.ClientError):
                    self.client.abort_multipart_upload(**upload)
                raise

    def put(self, data: bytes, bucket: str, key: str) -> None:
        """Writes bytes as an object."""
        with self.told(f"s3://{bucket}/{key}", verb="written"):
            self.client.put_object(Bucket=bucket, Key=key, Body=data)

    def copy(self, source: tuple[str, str], bucket: str, key: str) -> None:
        """Has the service copy an object, (bucket, key), of at most 5 GB. Raises ObjectMissing, StorageError."""
        with self.told(f"s3://{bucket}/{key}", verb="written"):
            self.client.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": source[0], "Key": source[1]})

    def remove(self, bucket: str, key: str) -> None:
        """Removes an object, if it is there. Raises StorageError."""
        with self.told(f"s3://{bucket}/{key}", verb="removed"):
            self.client.delete_object(Bucket=bucket, Key=key)

    @contextlib.contextmanager
    def told(self, uri: str, verb: str = "read") -> Iterator[None]:
        """Turns what botocore raises into headrace's errors."""
        try:
            yield
        except HeadraceError:
            raise
        except self._errors.ClientError as error:
            raise _of_answer(error.response, uri, verb) from error
        except (self._errors.NoCredentialsError, self._errors.PartialCredentialsError) as error:
            raise UsageError(f"{uri} cannot be {verb}: no AWS credentials were found", _SET_CREDENTIALS) from error
        except (
            self._errors.ProfileNotFound,
            self._errors.CredentialRetrievalError,
            self._errors.InvalidRegionError,
            self._errors.TokenRetrievalError,
            self._errors.ConfigParseError,
        ) as error:
            raise UsageError(
                f"{uri} cannot be {verb}: {error}", "look at AWS_PROFILE, AWS_REGION and ~/.aws"
            ) from error
        except (self._errors.HTTPClientError, self._errors.ConnectionError, *self._broken) as error:
            _log.info("%s cannot be %s: %s", uri, verb, error)  # with the whole query of its URL
            tried = "once" if self._attempts == 1 else f"{self._attempts} times"
            raise StorageUnreachable(
                f"{uri} cannot be {verb}: no answer from {self.endpoint}, tried {tried}: {_without_query(error)}",
                "is the endpoint right (AWS_ENDPOINT_URL), and does the network reach it?",
            ) from error
        except (self._errors.BotoCoreError, ValueError) as error:
            raise StorageError(f"{uri} cannot be {verb}: {error}") from error


def _without_query(error: Exception) -> str:
    """Returns the words of one of botocore's errors, in which the URL has no query."""
    values = getattr(error, "kwargs", {})
    if "endpoint_url" not in values:
        return str(error)
    url = str(values["endpoint_url"]).partition("?")[0]
    return str(type(error)(**values | {"endpoint_url": url}))


def _of_answer(response: dict[str, Any], uri: str, verb: str) -> HeadraceError:
    """Turns an error that the service answered into one of headrace."""
    fault = response.get("Error", {})
    code, words = str(fault.get("Code", "")), str(fault.get("Message", ""))
    text = f"{uri} cannot be {verb}: {code} {words}".rstrip()
    if code in _MISSING:
        what = "bucket" if code == "NoSuchBucket" or uri.count("/") < 3 else "object"
        return ObjectMissing(f"{uri}: there is no such {what}", "check the name, and the account that it is asked of")
    if code in _CHANGED:
        return ObjectChanged(f"{uri} changed while it was read", "do not change data that a running job reads")
    if fault_of(code) in (AwsFault.BAD_KEYS, AwsFault.EXPIRED):
        return StorageError(text, f"the credentials are wrong or too old: {_SET_CREDENTIALS}")
    if fault_of(code) is AwsFault.DENIED:
        return StorageError(text, "these credentials may not do that: ask for s3:ListBucket, GetObject and PutObject")
    if code in _REGION:
        return StorageError(text, "the bucket is in another region: set AWS_REGION")
    return StorageError(text)
