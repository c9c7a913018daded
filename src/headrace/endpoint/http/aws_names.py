"""The names that services of AWS have, by which clients reach this server through the proxy."""

from __future__ import annotations

import re

AWS_DOMAIN = "amazonaws.com"
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
_VIRTUAL_HOST = re.compile(r"(.+)\.s3(?:[.-](?:dualstack\.)?[a-z]{2}(?:-[a-z]+)+-\d)?\.amazonaws\.com")


def is_aws_name(host: str) -> bool:
    """Tells whether a name, in small letters, is one that services of AWS have."""
    labels = host.split(".")
    return host.endswith(f".{AWS_DOMAIN}") and len(host) <= 253 and all(0 < len(each) <= 63 for each in labels)


def is_region(name: str) -> bool:
    """Tells whether a name has the form of a region's, such as us-east-1."""
    return _REGION.fullmatch(name) is not None


def bucket_of_host(host: str) -> str | None:
    """Returns the bucket that a name of AWS's S3 begins with; None if the path names it, or it is no name of S3.

    >>> bucket_of_host("my.bucket.s3.eu-west-1.amazonaws.com")
    'my.bucket'
    """
    found = _VIRTUAL_HOST.fullmatch(host)
    return found[1] if found else None
