"""Which names a bucket of S3 can have: the rules of AWS for general purpose buckets, read in October 2026. Pure."""

from __future__ import annotations

import re

RULE = "3 to 63 lowercase letters, digits, dots and hyphens; a letter or digit at both ends"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_BEGINNINGS = ("xn--", "sthree-", "amzn-s3-demo-")
_ENDINGS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def why_no_bucket(name: str) -> str:
    """Returns why no bucket can have a name, as a predicate; empty when one can.

    >>> why_no_bucket("my-bucket"), why_no_bucket("10.0.0.1")
    ('', 'looks like an IP address')
    """
    if not _NAME.fullmatch(name):
        return f"must be {RULE}"
    if ".." in name or ".-" in name or "-." in name:
        return "has a dot beside a dot or a hyphen"
    if _ADDRESS.fullmatch(name):
        return "looks like an IP address"
    for text in (*_BEGINNINGS, *_ENDINGS):
        if (name.startswith if text in _BEGINNINGS else name.endswith)(text):
            return f"{'begins' if text in _BEGINNINGS else 'ends'} with {text!r}, which S3 keeps for itself"
    return ""
