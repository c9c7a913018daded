"""The head of a request: what is read from it, and what is refused. Nothing else than HttpProblem is ever raised."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.endpoint.http.http_message import HttpLimits, HttpProblem
from headrace.endpoint.http.request_stream import parse_head

LIMITS = HttpLimits(headers=10, target_bytes=100, head_bytes=1000, body_bytes=500)


def lines(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def test_target_and_headers_are_kept_as_they_were_sent() -> None:
    head = parse_head(lines("PUT /b//a%20b/../c?x=%2F&y?z HTTP/1.1\nHost: h:1\nX-A:  one \t\nx-a: two\nB:ü"), LIMITS)
    assert (head.method, head.raw_path, head.raw_query) == ("PUT", "/b//a%20b/../c", "x=%2F&y?z")
    assert list(head.headers) == [("Host", "h:1"), ("X-A", "one"), ("x-a", "two"), ("B", "ü")]
    assert head.headers.get_all("X-a") == ["one", "two"]
    assert head.headers.get("X-A") == "one"
    assert (head.length, head.expects) == (0, False)


def test_the_host_of_an_absolute_target_counts() -> None:
    head = parse_head(lines("GET http://other:8/a?b HTTP/1.1\nHost: h"), LIMITS)
    assert (head.headers.get_all("host"), head.raw_path, head.raw_query) == (["other:8"], "/a", "b")
    assert parse_head(lines("GET http://other HTTP/1.1\nHost: h"), LIMITS).raw_path == "/"


@pytest.mark.parametrize(
    ("head", "length", "expects"),
    [
        ("PUT / HTTP/1.1\nHost: h\nContent-Length: 500", 500, False),
        ("PUT / HTTP/1.1\nHost: h\nTransfer-Encoding: Chunked", None, False),
        ("PUT / HTTP/1.1\nHost: h\nExpect: 100-Continue", 0, True),
        ("GET / HTTP/1.0", 0, False),
        ("GET / HTTP/1.0\nConnection: Keep-Alive\nExpect: 100-continue", 0, False),
    ],
)
def test_framing(head: str, length: int | None, expects: bool) -> None:
    found = parse_head(lines(head), LIMITS)
    assert (found.length, found.expects) == (length, expects)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("", 400),
        ("GET /", 400),
        ("GET  / HTTP/1.1\nHost: h", 400),
        ("GET / HTTP/1.1 \nHost: h", 400),
        ("G@T / HTTP/1.1\nHost: h", 400),
        ("GET /ü HTTP/1.1\nHost: h", 400),
        ("GET a HTTP/1.1\nHost: h", 400),
        ("GET * HTTP/1.1\nHost: h", 400),
        ("GET / HTTP/1.1", 400),
        ("GET / HTTP/1.1\nHost: a\nHost: b", 400),
        ("GET / HTTP/2.0\nHost: h", 505),
        ("PRI * HTTP/2.0", 505),
        ("GET / HTTP/1.1\nHost: h\nA : b", 400),
        ("GET / HTTP/1.1\nHost: h\nA: b\n continued", 400),
        ("GET / HTTP/1.1\nHost: h\n: b", 400),
        ("GET / HTTP/1.1\nHost: h\nA", 400),
        ("GET / HTTP/1.1\nHost: h\nA: \0", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: 1\nContent-Length: 1", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: 1, 1", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: -1", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: +1", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: ٣", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length:", 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: " + "1" * 20, 400),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: 501", 413),
        ("GET / HTTP/1.1\nHost: h\nContent-Length: 1\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.0\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.1\nHost: h\nTransfer-Encoding: gzip, chunked", 501),
        ("GET / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked", 501),
        ("GET / HTTP/1.1\nHost: h\nExpect: miracles", 417),
        ("GET /" + "a" * 100 + " HTTP/1.1\nHost: h", 414),
        ("GET / HTTP/1.1\nHost: h" + "\nA: b" * 10, 431),
        ("GET / HTTP/1.1\nHost: h\nA: " + "b" * 1000, 431),
    ],
)
def test_what_is_refused(head: str, status: int) -> None:
    with pytest.raises(HttpProblem) as caught:
        parse_head(lines(head), LIMITS)
    assert caught.value.status == status
    assert caught.value.closes


def test_lines_end_with_cr_lf_and_values_are_utf_8() -> None:
    for data in (b"GET / HTTP/1.1\nHost: h", b"GET / HTTP/1.1\r\nHost: h\nA: b", b"GET / HTTP/1.1\r\nHost: \xff"):
        with pytest.raises(HttpProblem, match=r"CR LF|UTF-8") as caught:
            parse_head(data, LIMITS)
        assert caught.value.status == 400


PIECES = st.sampled_from(
    [b"GET", b"PUT", b" ", b"/", b"*", b"?", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b"\t", b":", b"Host: h",
     b"Content-Length: ", b"7", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Connection: close", b"\0",
     b"\xff", b"http://h", b"CONNECT", b"h:443", b","]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | st.binary(max_size=8), max_size=30).map(b"".join))
def test_any_bytes_are_a_head_or_a_problem_of_the_client(data: bytes) -> None:
    try:
        head = parse_head(data, LIMITS)
    except HttpProblem as found:
        problem = found
    else:
        assert head.length is None or 0 <= head.length <= LIMITS.body_bytes
        return
    assert problem.status in {400, 413, 414, 417, 431, 501, 505}
