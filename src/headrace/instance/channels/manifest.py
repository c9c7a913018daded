"""Manifest files and augmented manifest files. Pure: bytes in, URIs or lines out.

A manifest is a JSON list: ``{"prefix": "s3://bucket/folder/"}``, then texts that are appended to the prefix, as they
are. An augmented manifest has a JSON object on every line; a channel delivers some of its attributes. One whose name
ends in ``-ref`` holds the URI of an object, whose content is delivered; the value of another one is delivered itself:
a text as it is, anything else as compact JSON.

Beyond SageMaker, URIs may also be ``file://`` and paths, which are relative to the manifest's folder.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import UsageError

REF = "-ref"
_HINT = 'a manifest looks like [{"prefix": "s3://bucket/folder/"}, "a.csv", "b.csv"]'


@dataclass(frozen=True)
class Manifest:
    """What a manifest file says.

    Attributes:
        prefix: an absolute path or an ``s3://`` URI.
        suffixes: what is appended to it, one for each object, in the manifest's order.
    """

    prefix: str
    suffixes: tuple[str, ...]


@dataclass(frozen=True)
class Ref:
    """A value that is the content of an object."""

    uri: str


Part = bytes | Ref


@dataclass(frozen=True)
class Line:
    """One line of an augmented manifest.

    Attributes:
        number: from 1.
        parts: the values of the channel's attributes, in their order.
    """

    number: int
    parts: tuple[Part, ...]


def parse_manifest(channel: str, data: bytes, uri: str) -> Manifest:
    """Reads a manifest.

    Args:
        channel: for messages.
        data: the file.
        uri: where it was: an absolute path or ``s3://...``.

    Raises:
        UsageError: it is none.
    """
    where = f"channel {channel!r}: manifest {uri}"
    try:
        content = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}", _HINT) from None
    head = content[0] if isinstance(content, list) and content else None
    prefix = head.get("prefix") if isinstance(head, dict) and len(head) == 1 else None
    if not isinstance(prefix, str) or not prefix:
        raise UsageError(f'{where} must be a list that begins with {{"prefix": "..."}}', _HINT)
    suffixes = content[1:]
    for index, suffix in enumerate(suffixes, 1):
        if not isinstance(suffix, str) or not suffix:
            raise UsageError(f"{where}: entry {index} must be a text (got {json.dumps(suffix)[:80]})", _HINT)
    if not suffixes:
        raise UsageError(f"{where} names no object", _HINT)
    twice = next((name for name, count in Counter(suffixes).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names {twice!r} twice", "name every object once")
    return Manifest(resolve(channel, prefix, uri), tuple(suffixes))


def parse_augmented(channel: str, data: bytes, uri: str, attributes: Sequence[str]) -> list[Line]:
    """Reads an augmented manifest.

    Args:
        channel: for messages.
        data: the file.
        uri: where it was.
        attributes: those that are wanted.

    Raises:
        UsageError: a line that is no JSON object, or lacks an attribute.
    """
    lines = []
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        where = f"channel {channel!r}: {uri}:{number}"
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{where}: no JSON: {error}", "an augmented manifest has one JSON object a line") from None
        if not isinstance(content, dict):
            raise UsageError(f"{where}: must be a JSON object", "an augmented manifest has one JSON object a line")
        lines.append(Line(number, tuple(_part(channel, where, content, name, uri) for name in attributes)))
    if not lines:
        raise UsageError(f"channel {channel!r}: {uri} has no line", "an augmented manifest has one JSON object a line")
    return lines


def resolve(channel: str, uri: str, manifest: str) -> str:
    """Returns an absolute path or ``s3://`` URI for what a manifest names.

    Raises:
        UsageError: another scheme, or something of this machine in a manifest that is not.
    """
    if uri.startswith("s3://"):
        return uri
    if "://" in uri and not uri.startswith("file://"):
        raise UsageError(f"channel {channel!r}: {manifest} names {uri!r}", "use s3:// or file:// URIs, or paths")
    path = uri.removeprefix("file://")
    if path.startswith("/"):
        return path
    if manifest.startswith("s3://"):
        raise UsageError(f"channel {channel!r}: {manifest} names {uri!r}, no s3:// URI", "write the whole URI")
    return posixpath.join(posixpath.dirname(manifest), path)


def _part(channel: str, where: str, content: dict[str, object], name: str, uri: str) -> Part:
    if name not in content:
        there = ", ".join(repr(key) for key in content) or "none"
        raise UsageError(f"{where}: no attribute {name!r}; there is {there}", "check attribute_names of the channel")
    value = content[name]
    if name.endswith(REF):
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {name} must be the URI of an object", "an attribute that ends in -ref is one")
        return Ref(resolve(channel, value, uri))
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
