"""The proxy: unmodified clients reach the server under the names of AWS, and nothing else through it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire_client import Wire, serving, until

from headrace.endpoint.http.aws_names import is_aws_name
from headrace.endpoint.http.connect_proxy import USER, Proxy
from headrace.endpoint.http.http_message import HttpReply, HttpRequest
from headrace.endpoint.http.http_server import HttpServer
from headrace.endpoint.http.proxy_authority import ProxyAuthority
from headrace.endpoint.http.proxy_environment import proxied_child, proxy_environment

S3 = "my.bucket.s3.eu-west-1.amazonaws.com"


def name_it(request: HttpRequest) -> HttpReply:
    return HttpReply(200, (("X-Secure", str(request.secure)),), request.proxied_host.encode())


@pytest.fixture(scope="module")
def authority() -> ProxyAuthority:
    return ProxyAuthority()


@pytest.fixture
def proxy(authority: ProxyAuthority) -> Proxy:
    return Proxy(authority)


@pytest.fixture
def server(proxy: Proxy) -> Iterator[HttpServer]:
    with serving(name_it, proxy=proxy) as running:
        yield running


def connect(wire: Wire, proxy: Proxy, target: str) -> int:
    """Asks for a connection. Returns the status."""
    token = base64.b64encode(f"{USER}:{proxy.token}".encode()).decode()
    wire.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
    return wire.head()[0]


def trusting(authority: ProxyAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate.decode())


def test_a_name_of_aws_is_this_server_and_the_name_is_passed_on(server: HttpServer, proxy: Proxy) -> None:
    with Wire(server.port) as outer:
        assert connect(outer, proxy, f"{S3.upper()}:443") == 200
        with trusting(proxy.authority).wrap_socket(outer.sock, server_hostname=S3) as secured, Wire(0, secured) as wire:
            for host in (S3, f"{S3}:443"):
                status, headers, body = wire.ask(f"GET /a HTTP/1.1\nHost: {host}")
                assert (status, headers["x-secure"], body) == (200, "True", S3.encode())
            assert wire.ask("CONNECT sts.amazonaws.com:443 HTTP/1.1\nHost: h")[0] == 405
    with Wire(server.port) as outer:
        assert connect(outer, proxy, f"{S3}:443") == 200
        with trusting(proxy.authority).wrap_socket(outer.sock, server_hostname=S3) as secured, Wire(0, secured) as wire:
            assert wire.ask("GET /a HTTP/1.1\nHost: sts.amazonaws.com")[0] == 421
            assert wire.rest() == b""


@pytest.mark.parametrize(
    ("target", "status"),
    [("pypi.org:443", 403), ("169.254.169.254:80", 403), ("sts.amazonaws.com:80", 403), ("amazonaws.com:443", 403),
     ("evilamazonaws.com:443", 403), ("amazonaws.com.evil.org:443", 403), ("sts.amazonaws.com", 400), ("a:0", 400),
     ("a:99999", 400), ("/", 400), ("[::1]:22", 403)],
)  # fmt: skip
def test_other_hosts_are_refused(target: str, status: int, server: HttpServer, proxy: Proxy) -> None:
    with Wire(server.port) as wire:
        assert connect(wire, proxy, target) == status
        wire.rest()


def test_only_the_program_with_the_token_may_use_it(server: HttpServer) -> None:
    for given in ("", "\nProxy-Authorization: Basic aGVhZHJhY2U6YQ==", "\nProxy-Authorization: Bearer x"):
        with Wire(server.port) as wire:
            status, headers, _ = wire.ask(f"CONNECT sts.amazonaws.com:443 HTTP/1.1\nHost: h{given}")
            assert (status, headers["connection"]) == (407, "close")
            assert headers["proxy-authenticate"].startswith("Basic ")


def test_a_server_without_proxy_refuses_connect() -> None:
    with serving(name_it) as plain, Wire(plain.port) as wire:
        assert wire.ask("CONNECT sts.amazonaws.com:443 HTTP/1.1\nHost: h")[0] == 405


def test_the_authority_can_be_no_other_host(authority: ProxyAuthority) -> None:
    with pytest.raises(ValueError, match="pypi"):
        authority.context_for("pypi.org")
    forged = authority._make_context("pypi.org")  # what somebody with its key could make
    for context, host, trusted in ((authority.context_for(S3), S3, True), (forged, "pypi.org", False)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            thread = threading.Thread(target=quiet_handshake, args=(context, theirs))
            thread.start()
            client = trusting(authority).wrap_socket(ours, server_hostname=host, do_handshake_on_connect=False)
            with client:
                if trusted:
                    client.do_handshake()
                else:
                    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
                        client.do_handshake()
            thread.join()


def quiet_handshake(context: ssl.SSLContext, sock: socket.socket) -> None:
    with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True):
        pass


def test_certificates_are_made_once_a_name(authority: ProxyAuthority) -> None:
    assert authority.context_for(S3) is authority.context_for(S3)
    assert [is_aws_name(name) for name in ("a.amazonaws.com", "a..amazonaws.com", ".amazonaws.com")] == [
        True,
        False,
        False,
    ]


def test_a_client_that_does_not_trust_or_speak_tls_harms_nobody(server: HttpServer, proxy: Proxy) -> None:
    for speak in (b"GET / HTTP/1.1\r\n\r\n", b""):
        with Wire(server.port) as wire:
            assert connect(wire, proxy, f"{S3}:443") == 200
            with contextlib.suppress(OSError):  # the server may have gone by now
                wire.send(speak)
                wire.sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                wire.rest()
    with Wire(server.port) as wire:
        assert connect(wire, proxy, f"{S3}:443") == 200
        with pytest.raises(ssl.SSLError), ssl.create_default_context().wrap_socket(wire.sock, server_hostname=S3):
            pass
    until(lambda: server.connections == 0)


def test_allowed_hosts_are_tunnelled_in_both_directions(authority: ProxyAuthority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        allowing = Proxy(authority, lambda host, asked: (host, asked) == ("127.0.0.1", port))
        with serving(name_it, proxy=allowing) as running, Wire(running.port) as wire:
            token = base64.b64encode(f"{USER}:{allowing.token}".encode())
            wire.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: h\r\n" % port)
            wire.send(b"Proxy-Authorization: Basic %s\r\n\r\nearly" % token)
            upstream, _ = listener.accept()
            with upstream, Wire(0, upstream) as far:
                assert wire.head()[0] == 200
                far.body(5)
                sent = os.urandom(1_000_000)
                there = threading.Thread(target=wire.send, args=(sent,))
                there.start()
                back = threading.Thread(target=far.send, args=(sent[::-1],))
                back.start()
                assert far.body(len(sent)) == sent
                assert wire.body(len(sent)) == sent[::-1]
                there.join()
                back.join()
                wire.sock.shutdown(socket.SHUT_WR)
                assert far.rest() == b""  # one direction ends, the other goes on
                far.send(b"late")
                far.sock.shutdown(socket.SHUT_WR)
                assert wire.rest() == b"late"
        with serving(name_it, proxy=allowing) as running, Wire(running.port) as wire:
            listener.close()
            assert connect(wire, allowing, f"127.0.0.1:{port}") == 502


PROGRAM = """
import json, sys, boto3, requests
url = sys.argv[1]
said = {"identity": boto3.client("sts", region_name="eu-west-1").get_caller_identity()["Account"]}
s3 = boto3.client("s3", region_name="eu-west-1")
s3.put_object(Bucket="bucket", Key="a b", Body=b"x" * 100_000)
said["direct"] = requests.get(url).text
said["metadata"] = requests.get("https://sm-pysdk-t-eu-west-1.s3.eu-west-1.amazonaws.com/telemetry").status_code
try:
    requests.get("https://pypi.org/simple")
except requests.exceptions.ProxyError as error:
    said["refused"] = str(error)
print(json.dumps(said))
"""
IDENTITY = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/x</Arn><UserId>x</UserId><Account>123456789012</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""


def test_an_unmodified_program_arrives_here(authority: ProxyAuthority, tmp_path: Path) -> None:
    came: list[tuple[str, str, str]] = []

    def handle(request: HttpRequest) -> HttpReply:
        body = request.body.read_all(1 << 20)
        came.append((request.method, request.proxied_host, request.raw_path))
        if request.proxied_host.startswith("sts."):
            return HttpReply(200, (("Content-Type", "text/xml"),), IDENTITY)
        assert request.method != "PUT" or len(body) > 100_000  # aws-chunked framing is around it
        return HttpReply(200, (("ETag", '"x"'),), b"" if request.proxied_host else b"direct")

    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "no_proxy": "*", "NO_PROXY": "*"}
    environ["AWS_CONFIG_FILE"] = environ["AWS_SHARED_CREDENTIALS_FILE"] = str(tmp_path / "none")
    proxy, place = Proxy(authority), tmp_path / "certificates.pem"
    place.write_text("what a killed server has left")
    with serving(handle, proxy=proxy) as running:
        with proxied_child(proxy, "127.0.0.1", running.port, environ, place) as variables:
            bundle = Path(variables["AWS_CA_BUNDLE"])
            assert b"PRIVATE" not in bundle.read_bytes()
            assert (bundle, bundle.stat().st_mode & 0o777) == (place, 0o600)
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, f"http://127.0.0.1:{running.port}/"],
                env=environ | variables, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        assert not bundle.exists()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["identity"], said["direct"], said["metadata"]) == ("123456789012", "direct", 200)
    assert "headrace serve does not connect to pypi.org:443" in said["refused"]
    assert ("POST", "sts.eu-west-1.amazonaws.com", "/") in came
    assert ("PUT", "bucket.s3.eu-west-1.amazonaws.com", "/a%20b") in came


def test_variables_keep_what_was_trusted_and_let_no_name_of_aws_go_around(tmp_path: Path) -> None:
    given = {"NO_PROXY": "corp.example, .amazonaws.com,s3.us-east-1.amazonaws.com,*,com", "SSL_CERT_FILE": "x"}
    variables = proxy_environment("http://u:t@h:1", tmp_path / "b", given)
    direct = variables["NO_PROXY"].split(",")
    assert direct[0] == "corp.example"
    assert {"127.0.0.1", "localhost", "::1"} <= set(direct)
    assert not any("aws" in each or each in ("*", "com") for each in direct)
    assert variables["SSL_CERT_FILE"] == variables["REQUESTS_CA_BUNDLE"] == str(tmp_path / "b")
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://u:t@h:1"


def test_the_bundle_has_all_that_was_trusted(authority: ProxyAuthority, tmp_path: Path) -> None:
    own = ProxyAuthority().certificate
    (tmp_path / "corporate.pem").write_bytes(b"# a comment\n" + own)
    proxy = Proxy(authority)
    with proxied_child(proxy, "127.0.0.1", 1, {"AWS_CA_BUNDLE": str(tmp_path)}, tmp_path / "out") as variables:
        data = Path(variables["AWS_CA_BUNDLE"]).read_bytes()
        assert own.strip() in data
        assert authority.certificate.strip() in data
        context = ssl.create_default_context(cafile=variables["AWS_CA_BUNDLE"])
        assert context.cert_store_stats()["x509_ca"] > 50  # the public authorities too
