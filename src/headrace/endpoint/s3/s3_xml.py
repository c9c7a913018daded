"""S3's XML: documents of replies, and those that requests bring."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from urllib.parse import quote
from xml.etree import ElementTree

from headrace.endpoint.http.http_message import HttpReply
from headrace.endpoint.s3.s3_errors import S3Error, request_id

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_SPECIAL = re.compile('[\x00-\x08\x0a-\x1f&<>"\x7f\ufffe\uffff]')

Children = Iterable["Element"]
Element = tuple[str, "str | int | bool | Children"]
"""Name and content of an element: text, or the elements in it."""


def document(name: str, content: str | Children) -> bytes:
    """Returns a document.

    Args:
        name: of its outermost element.
        content: text, or the elements in it.
    """
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{NAMESPACE}">{_inner(content)}</{name}>'.encode()


def xml_reply(name: str, content: str | Children, headers: tuple[tuple[str, str], ...] = ()) -> HttpReply:
    """Returns a reply of status 200 with a document."""
    fixed = (("Content-Type", "application/xml"), ("x-amz-request-id", request_id()))
    return HttpReply(200, (*fixed, *headers), document(name, content))


def key_text(key: bytes, *, encoded: bool) -> str:
    """Returns a key as lists show it.

    Args:
        key: UTF-8.
        encoded: the client asked for ``encoding-type=url``.
    """
    return quote(key, safe="/") if encoded else key.decode()


def time_text(seconds: float) -> str:
    """Returns a time as documents show it: whole seconds, as S3 keeps them."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _element(each: Element) -> str:
    name, content = each
    return f"<{name}>{_inner(content)}</{name}>"


def _inner(content: str | int | Children) -> str:
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, str | int):
        return _SPECIAL.sub(lambda found: f"&#x{ord(found[0]):x};", str(content))
    return "".join(map(_element, content))


def parse(data: bytes, name: str) -> ElementTree.Element:
    """Reads the document of a request. Names in it have no namespace any more.

    Args:
        data: the body.
        name: that its outermost element has to have.

    Raises:
        S3Error: it is no such document.
    """
    try:
        # Whatever its first line says: in another encoding the next look sees nothing.
        decoded = data.decode("utf-8-sig")
        if "\0" in decoded or "<!DOCTYPE" in decoded or "<!ENTITY" in decoded:
            raise S3Error("MalformedXML")
        root = ElementTree.fromstring(decoded)
    except (ElementTree.ParseError, ValueError, LookupError):
        raise S3Error("MalformedXML") from None
    for each in root.iter():
        each.tag = str(each.tag).rpartition("}")[2]
    if root.tag != name:
        raise S3Error("MalformedXML")
    return root


def text_of(element: ElementTree.Element, name: str) -> str:
    """Returns the text of an element's child; empty if there is none."""
    return element.findtext(name) or ""
