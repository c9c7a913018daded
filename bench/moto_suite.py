"""Runs moto's own tests of S3 against the S3 face of `headrace serve`, and writes which pass and why others do not.

    python bench/moto_suite.py SDIST [--out FILE]

SDIST is moto's source package from PyPI, of the version that is installed (`make oracle` fetches it, and freezegun,
which the tests need). The face is served without signatures, as moto's server is. What fails has one of the reasons
below; a failure that has none is told, and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from headrace.endpoint.http.http_message import HttpReply, HttpRequest
from headrace.endpoint.http.http_server import HttpServer, listen
from headrace.endpoint.s3.s3_face import S3Face

ACCOUNT = "123456789012"
FILES = (
    "test_s3", "test_s3_list_objects", "test_s3_multipart", "test_s3_copyobject", "test_s3_conditionals",
    "test_s3_metadata", "test_s3_response_headers", "test_s3_content_encoding", "test_s3_presigned_url",
    "test_s3_file_handles",
)  # fmt: skip
NOT_THERE = re.compile("NotImplemented|is not implemented|test_policy|assert 501 ==")
REASONS = {
    "reduced_redundancy|storage_class|upload_with_headers": "storage classes have no effect and are not shown",
    "account_regional_namespace": "buckets have no namespaces",
    "encryption|ssm_key|bucketkeyenabled|test_object_headers": "there are no keys for encryption, and none is shown",
    "delete_empty_keys_list": "the bucket of the test is not there, which is told first",
    "from_file_to_presigned_url": "the test sends a form with PUT: the body is kept as it came",
    "private_bucket": "the suite runs without signatures, so everybody is the owner",
    "response_start_after": "a StartAfter that was sent comes back beside a token, as S3's documentation says",
    "truncated_response": "an empty prefix is an empty text, which botocore shows as such",
    "v2_checksum_algo|returns_requestid": "a header of moto's that S3 does not send",
    "presigned_post": "there are no forms",
    "presigned_put_url_with_custom_headers": "metadata in a query is not taken",
    "without_content_type": "the address localhost:5000 stands in the test",
    "with_max_buckets": "ListBuckets has one page",
    "leading_slash|special_characters\\[/": "a key that no file can have is refused",
    "test_list_buckets$": "buckets are listed by name, as S3 does, and the test expects them as it made them",
    "too_small|over_10000|invalid_argument": "the code is the same, the words are not",
    "out_of_order": "parts that are not in order are refused, as AWS's documentation says",
    "copy_key|etag_quotes": "the test copies a range beyond the end of its source, which S3 refuses",
    "test_list_multiparts": "the test ends an upload under another key than it began it",
    "wrong_partnumber": "the number of the part is looked at before the upload",
    "composite_suffix": "a part with another checksum than its upload's is refused",
    "checksum_attributes": "the algorithm is told by CreateMultipartUpload and not where the test looks",
}


class Served:
    """The face, over an empty folder after each of moto's resets."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0
        self._face = S3Face(root / "0", ACCOUNT)

    def handle(self, request: HttpRequest) -> HttpReply:
        """Answers a request of the tests."""
        request.prove()
        if not request.raw_path.startswith("/moto-api"):
            return self._face.handle(request, None)
        request.body.read_all(1 << 20)
        self._face.close()
        self._number += 1
        self._face = S3Face(self._root / str(self._number), ACCOUNT)
        return HttpReply(200, (("Content-Type", "application/json"),), b'{"status": "ok"}')


def outcome(case: ElementTree.Element, not_there: re.Pattern[str], reasons: Mapping[str, str]) -> str:
    """Returns what became of a test: passed, skipped, or why it failed; empty when no reason is known."""
    found = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
    if found is None:
        return "passed" if case.find("skipped") is None else "skipped"
    name, text = case.get("name", ""), f"{found.get('message', '')}{found.text or ''}"
    if not_there.search(f"{name} {text}"):
        return "an operation that is not there (NotImplemented)"
    return next((reason for pattern, reason in reasons.items() if re.search(pattern, name)), "")


def outcomes(file: Path, not_there: re.Pattern[str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Returns what became of each test of a suite.

    Args:
        file: what pytest has written, as JUnit does.
        not_there: what stands in a failure of an operation that is not there.
        reasons: for other failures, by what is in the name of their test.
    """
    cases = ElementTree.parse(file).iter("testcase")
    return {
        f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": outcome(case, not_there, reasons)
        for case in cases
    }


def conclude(suite: str, version: str, table: Mapping[str, str], out: Path | None) -> int:
    """Prints the counts of a suite's table and writes it to a file. Returns 1 if a failure has no reason, else 0."""
    counts: dict[str, int] = {}
    for reason in table.values():
        counts[reason] = counts.get(reason, 0) + 1
    if out:
        document = {suite: version, "counts": counts, "tests": dict(sorted(table.items()))}
        out.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n")
    unknown = [name for name, reason in table.items() if not reason]
    print(
        "\n".join(f"{count:4} {reason or 'WITHOUT A REASON'}" for reason, count in counts.items()), *unknown, sep="\n"
    )
    return 1 if unknown else 0


def main() -> int:
    """Runs the suite."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="moto-suite-"))
    try:
        with tarfile.open(arguments.sdist) as archive:
            archive.extractall(root / "moto", filter="data")
        served = Served(root / "buckets")
        server = HttpServer(served.handle, listen("127.0.0.1", 0))
        server.start()
        settings = {"TEST_SERVER_MODE": "true", "TEST_SERVER_MODE_ENDPOINT": f"http://127.0.0.1:{server.port}"}
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-c", os.devnull, "--rootdir", ".", "--tb", "line", "--junitxml", str(root / "found.xml")]
        command += [f"tests/test_s3/{file}.py" for file in FILES]
        folder = next((root / "moto").iterdir())
        subprocess.run(command, cwd=folder, env={**os.environ, **settings, **keys}, check=False)
        server.stop()
        table = outcomes(root / "found.xml", NOT_THERE, REASONS)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return conclude("moto", arguments.sdist.name, table, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
