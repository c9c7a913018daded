"""Runs Ceph's s3-tests against `headrace serve`, and writes which pass and why others do not.

    python bench/ceph_suite.py FOLDER [--out FILE]

FOLDER is the suite's own (`make oracle` fetches it; it is not on PyPI). Its tests of objects, lists, uploads, copies,
conditions, checksums and signatures run; those of what is not claimed are left out by their markers. The server is a
process of its own that looks at every signature; the suite's several users all have its one key, and what lies in a
bucket behind a test is removed by the list of objects, since there are no versions. A failure that has none of the
reasons below is told, and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from moto_suite import NOT_THERE, conclude, outcomes

LEFT_OUT = (
    "abac_test", "appendobject", "bucket_encryption", "bucket_logging", "bucket_policy", "cloud_restore",
    "cloud_transition", "delete_marker", "encryption", "fails_on_aws", "fails_without_logging_rollover", "group",
    "iam_account", "iam_cross_account", "iam_role", "iam_tenant", "iam_user", "lifecycle", "lifecycle_expiration",
    "lifecycle_transition", "object_lock", "object_ownership", "s3select", "s3website", "sns", "sse_s3",
    "storage_class", "tagging", "target_by_bucket", "versioning", "auth_aws2",
)  # fmt: skip
REASONS = {
    "post_object": "there are no forms",
    "cors|expires_not_expired": "the test asks by OPTIONS: there is no CORS",
    "anon|_gone|object_raw_get$|raw_get_bucket_acl": "what is not signed is refused before anything is looked at",
    "acl|nonowner|not_owned": "there is one user, and there are no access lists",
    "sse_|_enc_|_enc\\[|encrypt": "there are no keys for encryption, and none is shown",
    "object_lock|delete_marker": "there are no versions",
    "delimiter_basic|prefix_ends_with_delimiter|not_skip_special": "a key that no file can have is refused",
    "list_buckets_paginated": "ListBuckets has one page",
    "dns_dot_dash|dns_dash_dot": "S3's rules for names do not forbid a hyphen beside a point",
    "prefix_unreadable": "S3 encodes the prefix of a list of version 1, which botocore leaves encoded",
    "continuationtoken_empty": "S3 refuses an empty token",
    "get_part$": "a part that an object does not have is InvalidPartNumber (416), as S3's documentation says",
    "checksum_sha256|checksum_crc64nvme": "a text that is no checksum is InvalidRequest, as S3 says, and not BadDigest",
    "unicode_metadata": "a byte of Latin-1 comes back as UTF-8",
    "copy_invalid_range": "the range of a copy is InvalidArgument, as S3 says",
    "resend_first": "the list of parts names one part twice, which S3 refuses",
    "aws_chunked": "the test says aws-chunked of a body that has no such framing",
    "authorization_(empty|none)": "the client of the test signs the request all the same",
    "contentlength_none": "the client of the test sends the length all the same",
    "bad_expect": "an Expect that is not 100-continue is 417, as HTTP says",
    "amz_date": "the date of the test is no X-Amz-Date of version 4",
    "read_unreadable": "the key is right UTF-8: there is no such key",
}
USERS = ("s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root")
PLUGIN = """
import s3tests.functional as suite

client = None


def empty():
    global client
    client = client or suite.get_client()
    for bucket in suite.get_buckets_list(client, suite.prefix):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=found["Key"])
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
            for found in page.get("Uploads", ()):
                client.abort_multipart_upload(Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"])
        client.delete_bucket(Bucket=bucket)


def objects(client, bucket, batch_size):
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        if "Contents" in page:
            yield [{"Key": found["Key"]} for found in page["Contents"]]


suite.setup = suite.teardown = empty
suite.list_versions = objects
"""


def settings(store: Path, port: int) -> str:
    """Returns the suite's settings for a server with this store."""
    keys = configparser.ConfigParser()
    keys.read(store / "aws-credentials")
    key, secret = keys["headrace"]["aws_access_key_id"], keys["headrace"]["aws_secret_access_key"]
    user = f"display_name = u\nuser_id = u\nemail = u@u\ntenant = u\naccess_key = {key}\nsecret_key = {secret}\n"
    user += "api_name = eu-west-1\n"
    server = f"[DEFAULT]\nhost = 127.0.0.1\nport = {port}\nis_secure = False\nssl_verify = False\n"
    return f"{server}[fixtures]\nbucket prefix = s3t-{{random}}-\n" + "".join(f"[{name}]\n{user}" for name in USERS)


def main() -> int:
    """Runs the suite."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    commit = ["git", "-C", str(arguments.folder), "rev-parse", "HEAD"]
    version = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    with tempfile.TemporaryDirectory(prefix="ceph-suite-") as folder:
        root = Path(folder)
        environ = {**os.environ, "HEADRACE_HOME": f"{root}/home", "AWS_DEFAULT_REGION": "us-east-1"}
        serve = [sys.executable, "-m", "headrace.cli", "serve", "--port", "0", "--store", f"{root}/store"]
        with subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"http://127.0.0.1:(\d+)", server.stdout.readline())
                assert found is not None, "the server has not started"
                (root / "settings").write_text(settings(root / "store", int(found[1])))
                (root / "emptying.py").write_text(PLUGIN)
                path = f"{root}:{arguments.folder.absolute()}:{os.environ.get('PYTHONPATH', '')}"
                environ |= {"S3TEST_CONF": f"{root}/settings", "PYTHONPATH": path, "AWS_MAX_ATTEMPTS": "1"}
                environ["BOTO_DISABLE_CRT"] = "true"  # else an address that has ended is not signed
                command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--tb", "short", "--timeout", "120"]
                command += ["-p", "emptying", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
                command += ["-m", " and ".join(f"not {marker}" for marker in LEFT_OUT)]
                command += ["--junitxml", f"{root}/found.xml", "s3tests/functional/test_s3.py"]
                command += ["s3tests/functional/test_headers.py"]
                subprocess.run(command, cwd=arguments.folder, env=environ, check=False)
                table = outcomes(root / "found.xml", re.compile(f"{NOT_THERE.pattern}|501"), REASONS)
            finally:
                server.terminate()
    return conclude("s3-tests", version, table, arguments.out)


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
