"""Reads the head of a request: from its bytes to method, target, headers and how its body is framed.

Strict, so that two readers of one head never see two requests in it: lines end with CR LF, no header is continued on
the next line, no blank stands before a colon, one Content-Length at most and never beside Transfer-Encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.endpoint.http.http_limits import HttpLimits
from headrace.endpoint.http.http_message import Headers, HttpProblem

END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_NAME = re.compile(_TOKEN)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: as it was sent.
        raw_path: path of the target, as it was sent.
        raw_query: what follows the first ``?``.
        headers: in order. Of a target with a host, that host is the only Host.
        length: bytes of the body; None if it is chunked.
        keeps: the client may send another request on the connection.
        expects: the client sends the body after ``100 Continue`` only.
        old: HTTP/1.0, which knows no chunks.
    """

    method: str
    raw_path: str
    raw_query: str
    headers: Headers
    length: int | None
    keeps: bool
    expects: bool
    old: bool


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
    first, *lines = data.split(b"\r\n")
    method, target, minor = _request_line(first, limits)
    if len(lines) > limits.headers:
        raise HttpProblem(431, f"a request may have {limits.headers} headers", closes=True)
    headers = Headers(map(_header, lines))
    headers, path = _host_and_path(method, target, headers, old=minor == 0)
    raw_path, _, raw_query = path.partition("?")
    tokens = {each.strip().lower() for value in headers.get_all("connection") for each in value.split(",")}
    return RequestHead(
        method=method,
        raw_path=raw_path,
        raw_query=raw_query,
        headers=headers,
        length=_length(headers, old=minor == 0, limits=limits),
        keeps="keep-alive" in tokens if minor == 0 else "close" not in tokens,
        expects=_expects(headers, old=minor == 0),
        old=minor == 0,
    )


def _request_line(line: bytes, limits: HttpLimits) -> tuple[str, str, int]:
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise HttpProblem(400, "no request line of HTTP: method, target and version are asked for", closes=True)
    method, target, major, minor = found.groups()
    if len(target) > limits.target_bytes:
        raise HttpProblem(414, f"the target of a request may have {limits.target_bytes} bytes", closes=True)
    if major != b"1":
        raise HttpProblem(505, "HTTP/1.1 is spoken here", closes=True)
    return method.decode(), target.decode(), int(minor)


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
        raise HttpProblem(400, "a line of the head is no header: name, colon and value are asked for", closes=True)
    try:
        return name.decode(), value.decode()
    except UnicodeDecodeError:
        raise HttpProblem(400, f"the value of the header {name.decode()} is no UTF-8", closes=True) from None


def _host_and_path(method: str, target: str, headers: Headers, *, old: bool) -> tuple[Headers, str]:
    hosts = headers.get_all("host")
    if len(hosts) > 1 or (not hosts and not old):
        raise HttpProblem(400, "a request has one Host", closes=True)
    if absolute := _ABSOLUTE.fullmatch(target):
        others = [(name, value) for name, value in headers if name.lower() != "host"]
        headers = Headers([("Host", absolute[1]), *others])
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
        raise HttpProblem(400, "the target of a request begins with /", closes=True)
    return headers, target


def _length(headers: Headers, *, old: bool, limits: HttpLimits) -> int | None:
    lengths, codings = headers.get_all("content-length"), headers.get_all("transfer-encoding")
    if codings:
        if lengths or old:
            raise HttpProblem(400, "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0", closes=True)
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise HttpProblem(501, "the only Transfer-Encoding that is known here is chunked", closes=True)
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HttpProblem(400, "a request has one Content-Length, a number", closes=True)
    if int(lengths[0]) > limits.body_bytes:
        raise HttpProblem(413, f"the body of a request may have {limits.body_bytes} bytes", closes=True)
    return int(lengths[0])


def _expects(headers: Headers, *, old: bool) -> bool:
    if old or "expect" not in headers:
        return False
    if [each.lower() for each in headers.get_all("expect")] != ["100-continue"]:
        raise HttpProblem(417, "the only expectation that is met here is 100-continue", closes=True)
    return True
