"""Reads the head of a request by h11: method, target, headers and how its body is framed.

Stricter than h11, so that two readers of one head never see two requests in it: lines end with CR LF, no header is
continued on the next line, one Content-Length at most and never beside Transfer-Encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from headrace.endpoint.http.http_limits import HttpLimits
from headrace.endpoint.http.http_message import Headers, HttpProblem

END = b"\r\n\r\n"
_FRAMING_BYTES = 4096  # of a line before a chunk, and of trailers
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTINUED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]{1,19}[ \t]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: as it was sent.
        raw_path: path of the target, as it was sent.
        raw_query: what follows the first ``?``.
        headers: in order. Of a target with a host, that host is the only Host.
        length: bytes of the body; None if it is chunked.
        expects: the client sends the body after ``100 Continue`` only.
        wire: reads the chunks of the body, and frames the reply.
    """

    method: str
    raw_path: str
    raw_query: str
    headers: Headers
    length: int | None
    expects: bool
    wire: h11.Connection


def is_hopeless(data: bytes | bytearray, limits: HttpLimits, since: int = 0) -> HttpProblem | None:
    """Returns why the beginning of a head can be refused before its end has come; None if it may still be right.

    Args:
        data: what came of it.
        limits: how large it may be.
        since: bytes that were looked at before.
    """
    if _BARE_LF.search(data, since):
        return HttpProblem(400, "lines of a request end with CR LF", closes=True)
    if len(data) > limits.head_bytes:
        return HttpProblem(431, f"request line and headers may have {limits.head_bytes} bytes", closes=True)
    return None


def parse_head(data: bytes, limits: HttpLimits) -> RequestHead:
    """Reads a head.

    Args:
        data: request line and headers, without the empty line after them.
        limits: how large it may be.

    Raises:
        HttpProblem: it is none, or asks for what is not done here.
    """
    if problem := is_hopeless(data, limits):
        raise problem
    lengths = _LENGTH.findall(data)
    if _CONTINUED.search(data) or len(lengths) > 1 or not all(map(_NUMBER.fullmatch, lengths)):
        raise HttpProblem(400, "a header stands on one line, and Content-Length, a number, once at most", closes=True)
    wire = h11.Connection(h11.SERVER, max_incomplete_event_size=_FRAMING_BYTES)
    wire.receive_data(data + END)
    try:
        request = wire.next_event()
    except h11.RemoteProtocolError as error:
        raise HttpProblem(error.error_status_hint, f"no request of HTTP: {error}", closes=True) from None
    assert isinstance(request, h11.Request)
    if len(request.target) > limits.target_bytes:
        raise HttpProblem(414, f"the target of a request may have {limits.target_bytes} bytes", closes=True)
    if not request.http_version.startswith(b"1."):
        raise HttpProblem(505, "HTTP/1.1 is spoken here", closes=True)
    pairs = request.headers.raw_items()
    if len(pairs) > limits.headers:
        raise HttpProblem(431, f"a request may have {limits.headers} headers", closes=True)
    try:
        headers = Headers((name.decode(), value.decode()) for name, value in pairs)
    except UnicodeDecodeError:
        raise HttpProblem(400, "the value of a header is no UTF-8", closes=True) from None
    headers, path = _host_and_path(request.method.decode(), request.target.decode(), headers)
    raw_path, _, raw_query = path.partition("?")
    old = request.http_version == b"1.0"
    return RequestHead(
        request.method.decode(), raw_path, raw_query, headers, _length(headers, old=old, limits=limits),
        _expects(headers, old=old), wire,
    )  # fmt: skip


def _host_and_path(method: str, target: str, headers: Headers) -> tuple[Headers, str]:
    if absolute := _ABSOLUTE.fullmatch(target):
        others = [(name, value) for name, value in headers if name.lower() != "host"]
        headers = Headers([("Host", absolute[1]), *others])
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
        raise HttpProblem(400, "the target of a request begins with /", closes=True)
    return headers, target


def _length(headers: Headers, *, old: bool, limits: HttpLimits) -> int | None:
    if "transfer-encoding" in headers:
        if old or "content-length" in headers:
            raise HttpProblem(400, "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0", closes=True)
        return None
    length = int(headers.get("content-length", "0"))
    if length > limits.body_bytes:
        raise HttpProblem(413, f"the body of a request may have {limits.body_bytes} bytes", closes=True)
    return length


def _expects(headers: Headers, *, old: bool) -> bool:
    if old or "expect" not in headers:
        return False
    if [value.lower() for value in headers.get_all("expect")] != ["100-continue"]:
        raise HttpProblem(417, "the only expectation that is met here is 100-continue", closes=True)
    return True
