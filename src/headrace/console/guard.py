"""Access control of the page: every request needs its token, and gets 403 without it.

The address that `headrace ui` prints holds the token; a browser that it starts gets another one, for one use, in a file
that is this user's alone, since everybody sees the command line of a process. The first page answers with a cookie
(HttpOnly, SameSite=Strict) and its script takes the token out of the address bar. Further:

* the Host header must name this machine by 127.0.0.1, localhost or ::1, so no other name can be made to point here
  (DNS rebinding);
* a request that another site's page makes is refused, unless it brings the token;
* only GET and HEAD exist, and nothing on the page may load, send or be framed from elsewhere.
"""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "headrace-ui"
HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_REFUSED = "This page needs the address that `headrace ui` printed, with its token.\n"


class Guard:
    """Lets requests with the token through to the page.

    Args:
        app: the page.
        token: the token.
        port: where it listens; cookies of pages on other ports have other names.
        once: another token, for the first request that brings it; empty for none.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, once: str = "") -> None:
        self._app = app
        self._token = token.encode()
        self._once = once.encode()
        self._cookie = f"{COOKIE}-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks WebSocket
            return
        headers = Headers(scope=scope)
        given = self._given(scope)
        refusal = self._refusal(scope["method"], headers, given)
        if refusal is not None:
            await refusal(scope, receive, self._sealed(send, with_cookie=False))
            return
        await self._app(scope, receive, self._sealed(send, with_cookie=given is not None))

    def _refusal(self, method: str, headers: Headers, given: str | None) -> PlainTextResponse | None:
        if _host(headers.get("host", "")) not in HOSTS:
            return PlainTextResponse("This page answers to 127.0.0.1 and localhost only.\n", 403)
        known = given if given is not None else self._from_cookie(headers)
        if given and self._once and secrets.compare_digest(given.encode(), self._once):
            self._once, known = b"", self._token.decode()
        if known is None or not secrets.compare_digest(known.encode(), self._token):
            return PlainTextResponse(_REFUSED, 403)
        if given is None and _is_foreign(headers):
            return PlainTextResponse("Requests from other sites are refused.\n", 403)
        if method not in {"GET", "HEAD"}:
            return PlainTextResponse("This page only shows; it changes nothing.\n", 405, {"allow": "GET, HEAD"})
        return None

    @staticmethod
    def _given(scope: Scope) -> str | None:
        """Returns the token of the address, None if there is none; empty (never right) if there are several."""
        tokens = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("token")
        if tokens is None:
            return None
        return tokens[0] if len(tokens) == 1 else ""

    def _from_cookie(self, headers: Headers) -> str | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return None if found is None else found.value

    def _sealed(self, send: Send, *, with_cookie: bool) -> Send:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if with_cookie:
                    cookie = f"{self._cookie}={self._token.decode()}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", cookie)
            await send(message)

        return sealed


def _is_foreign(headers: Headers) -> bool:
    """Tells whether a page from elsewhere makes the request; not every client sends both headers, or one of them."""
    site, origin, host = (headers.get(name) for name in ("sec-fetch-site", "origin", "host"))
    return site not in (None, "same-origin", "none") or origin not in (None, f"http://{host}")


def _host(header: str) -> str:
    """Returns the name in a Host header, without its port; empty when the header is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
