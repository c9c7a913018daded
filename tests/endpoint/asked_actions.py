"""Which IAM actions were used, out of the log of a `headrace serve` that tells every request."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

_LINE = re.compile(r"(user|program) asks ([a-z0-9-]+): ([A-Z]+) ([^ ?]*)\?(\S*)(?: ([A-Za-z0-9_.]+))?(?: of (\S+))?$")
_PREFIXES = {"monitoring": "cloudwatch"}


def used_actions(log: str) -> dict[str, set[str]]:
    """Returns the actions by who asked: ``user`` is whoever submits, ``program`` the job's own side.

    Args:
        log: what the endpoint has logged, at the level debug.
    """
    found: dict[str, set[str]] = {"user": set(), "program": set()}
    for line in log.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        holder, service, method, path, query, target, copied = match.groups()
        if service == "s3":
            found[holder] |= _of_s3(method, path, query, bool(copied))
        else:
            assert target is not None, line
            found[holder].add(f"{_PREFIXES.get(service, service)}:{target.rpartition('.')[2]}")
    return found


def _of_s3(method: str, path: str, query: str, copied: bool) -> set[str]:
    """Returns the actions of a request of S3, which has other names than its operations."""
    asked = parse_qs(query, keep_blank_values=True)
    of_bucket = path.strip("/").count("/") == 0
    if method == "DELETE":
        return {"s3:AbortMultipartUpload" if "uploadId" in asked else "s3:DeleteObject"}
    if method == "POST":
        return {"s3:DeleteObject" if "delete" in asked else "s3:PutObject"}
    if method == "PUT":
        return {"s3:PutObject", *(["s3:GetObject"] if copied else [])}
    return {"s3:ListBucket" if of_bucket else "s3:GetObject"}
