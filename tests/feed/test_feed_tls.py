"""TLS on the feed's connections: the same bits, and whoever is not the right peer is told so and waits for nothing."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import array_data
import feed_data
import pytest
import trustme
from feed_servers import Server, leave_out_torch, wait_until, write_secret
from source_data import fill_tars, noted

from headrace.errors import FeedError, ProtocolError, WorkersLost
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client import remote_pool, shard_placement
from headrace.feed.client.remote_pool import inquire
from headrace.feed.wire import frames, messages
from headrace.feed.wire.endpoints import ClientHandshake, Endpoints, bind, challenge
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import write_header
from headrace.feed.wire.transport import ClientTls, ServerTls, TlsRefused, client_tls, server_tls
from patience import allowed

SECRET = bytes.fromhex("5e" * 32)


@dataclass(frozen=True)
class Pki:
    """A CA, and files of it."""

    directory: Path
    ca: trustme.CA

    @property
    def ca_file(self) -> str:
        return str(self.directory / "ca.pem")

    def issue(self, *names: str) -> tuple[Path, Path]:
        """Returns the files of a certificate for these names and of its key."""
        cert = self.ca.issue_cert(*names)
        chain, key = self.directory / f"{names[0]}.pem", self.directory / f"{names[0]}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
        key.write_bytes(cert.private_key_pem.bytes())
        return chain, key


def make_pki(directory: Path) -> Pki:
    directory.mkdir(exist_ok=True)
    pki = Pki(directory, trustme.CA())
    pki.ca.cert_pem.write_to_path(pki.ca_file)
    return pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls_server(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose certificate is for 127.0.0.1 and localhost, for the whole module."""
    cert, key = pki.issue("127.0.0.1", "localhost")
    arguments = ["--tls-cert", str(cert), "--tls-key", str(key)]
    with pytest.MonkeyPatch.context() as patch:
        leave_out_torch(patch)
        server = Server(tmp_path_factory.mktemp("tls"), "tls-host", arguments=arguments)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without TLS, for the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_torch(patch)
        server = Server(tmp_path_factory.mktemp("plain"), "plain")
    yield server.wait_ready()
    server.stop()


OPTIONS: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 3, "collate_fn": stack_arrays}


def load(server: Server, pki: Pki, dataset: Any, address: str = "") -> list[bytes]:
    where = {"workers": address or server.tcp, "secret_file": str(server.secret), "tls_ca": pki.ca_file}
    with DataLoader(dataset, **OPTIONS, **where) as loader:
        return [feed_data.flat(batch) for batch in loader]


# Batches


@pytest.mark.promise("feed-guarantees", "with TLS the bits are the same, and nobody in the middle is believed")
def test_batches_over_tls_have_the_same_bits(pki: Pki, tls_server: Server, epochs: Callable[..., list[bytes]]) -> None:
    for pictures in (array_data.pictures(), array_data.pictures(64, shape=[256, 128])):  # of one chunk, and of several
        assert load(tls_server, pki, pictures) == epochs(pictures, **OPTIONS)


def test_a_name_is_checked_as_an_ip_is_the_unix_socket_needs_no_tls_and_the_ca_may_come_from_the_environment(
    pki: Pki, tls_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FEED_TLS_CA", pki.ca_file)
    addresses = f"tcp://localhost:{tls_server.port},{tls_server.tcp},{tls_server.unix_address}"
    answers = inquire(Endpoints(addresses, str(tls_server.secret)), allowed(5.0))
    assert [(answer.status is not None, answer.reason) for answer in answers] == [(True, "")] * 3


@pytest.mark.usefixtures("without_torch")
def test_a_tls_server_that_was_killed_is_replaced_by_another(
    pki: Pki, tls_server: Server, own_server: Callable[..., Server]
) -> None:
    cert, key = pki.issue("127.0.0.1")
    one = own_server("one", arguments=["--tls-cert", str(cert), "--tls-key", str(key)])
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "collate_fn": stack_arrays}
    where = {"workers": f"{one.tcp},{tls_server.tcp}", "secret_file": str(one.secret), "tls_ca": pki.ca_file}
    with DataLoader(array_data.pictures(delay=0.005), **options, **where) as loader:
        batches = iter(loader)
        got = [feed_data.flat(next(batches)) for _ in range(3)]
        one.process.kill()
        got += [feed_data.flat(batch) for batch in batches]
    with DataLoader(array_data.pictures(), **options) as alone:
        assert got == [feed_data.flat(batch) for batch in alone]


# Those who do not fit together


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other CA", "its certificate is not accepted: unable to get local issuer certificate"),
        ("other host name", "its certificate is not accepted: .*ismatch, certificate is not valid for '127.0.0.2'"),
        ("no TLS in the client", "it serves TLS only; give tls_ca= or HEADRACE_FEED_TLS_CA"),
        ("no TLS in the server", "it does not speak TLS 1.3"),
        ("other secret", "refuses this client: wrong secret"),
    ],
)
@pytest.mark.usefixtures("without_torch")
def test_peers_that_do_not_fit_are_told_why_with_the_hosts_name_and_nothing_hangs(
    fault: str,
    words: str,
    pki: Pki,
    tls_server: Server,
    plain: Server,
    own_server: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_pool, "START_SECONDS", 600.0)  # a host that is not up yet would be waited for so long
    server = plain if fault == "no TLS in the server" else tls_server
    if fault == "other host name":
        cert, key = pki.issue("127.0.0.1")
        server = own_server("far", arguments=["--tls-cert", str(cert), "--tls-key", str(key)], address="127.0.0.2")
    ca: str | None = make_pki(tmp_path / "other").ca_file if fault == "other CA" else pki.ca_file
    if fault == "no TLS in the client":
        ca = None
    secret = server.secret
    if fault == "other secret":
        secret = tmp_path / "other-secret"
        write_secret(secret, "aa" * 32)
    with (
        DataLoader(
            array_data.pictures(), workers=server.tcp, secret_file=str(secret), tls_ca=ca, collate_fn=stack_arrays
        ) as loader,
        pytest.raises(WorkersLost, match=words) as error,
    ):
        next(iter(loader))
    assert server.tcp in str(error.value)
    [answer] = inquire(Endpoints(server.tcp, str(secret), ca))
    assert answer.status is None
    assert words.partition(":")[0].partition(".*")[0] in answer.reason
    assert "Traceback" not in server.log()
    if fault == "no TLS in the server":
        assert "the peer speaks TLS, this end does not" in server.log()
    if fault == "other CA":
        assert "no TLS connection: tlsv1 alert unknown ca" in server.log()


def test_a_server_that_fits_serves_beside_one_that_does_not(
    pki: Pki, tls_server: Server, plain: Server, epochs: Callable[..., list[bytes]]
) -> None:
    found = load(tls_server, pki, array_data.pictures(), f"{plain.tcp},{tls_server.tcp}")
    assert found == epochs(array_data.pictures(), **OPTIONS)


def test_nobody_waits_for_the_shards_of_a_host_that_does_not_fit(
    pki: Pki, tls_server: Server, plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_placement, "START_SECONDS", 600.0)  # for a host that is not up yet
    fill_tars(tmp_path / "shards", {"a": 4})
    pipeline = noted(str(tmp_path / "shards"), str(tmp_path / "notes"))
    both = f"{plain.tcp},{tls_server.tcp}"
    with (
        DataLoader(
            pipeline, workers=both, secret_file=str(tls_server.secret), tls_ca=pki.ca_file, collate_fn=stack_arrays
        ) as loader,
        pytest.raises(WorkersLost, match=r"cannot be asked what it holds: .*it does not speak TLS") as error,
    ):
        next(iter(loader))
    assert "tls_ca=" in error.value.hint


def test_garbage_instead_of_a_tls_handshake_is_refused_and_others_are_served(pki: Pki, tls_server: Server) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70000, b"HR\2" + b"\0" * 64, b"\x15"):
        with socket.create_connection(("127.0.0.1", tls_server.port), 5) as raw:
            raw.sendall(garbage)
            with contextlib.suppress(OSError):  # it may be refused already
                raw.shutdown(socket.SHUT_WR)  # one that says nothing and stays is below
            raw.settimeout(allowed(10))
            try:
                while raw.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert len(load(tls_server, pki, array_data.pictures())) == 3
    assert "no TLS connection" in tls_server.log()


def test_an_older_tls_is_refused(pki: Pki, tls_server: Server) -> None:
    context = ssl.create_default_context(cafile=pki.ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", tls_server.port), 5) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


@pytest.mark.parametrize("stage", ["at once", "after the first byte"])
def test_a_silent_tls_client_is_closed_soon(stage: str, tls_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", tls_server.port), 5) as raw:
        if stage != "at once":
            raw.sendall(b"\x16")
        raw.settimeout(allowed(10))
        while raw.recv(4096):
            pass
    wait_until(lambda: "it does not speak TLS" in tls_server.log(), "it is logged")


# Somebody in the middle


class Middle:
    """Ends the client's TLS with a certificate of its own, and speaks TLS with the server as a client does."""

    def __init__(self, server: Server, pki: Pki, certificate: tuple[Path, Path]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        self._outward = ssl.create_default_context(cafile=pki.ca_file)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.seen = b""

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._relay(connection)

    def _relay(self, connection: socket.socket) -> None:
        with (
            self._context.wrap_socket(connection, server_side=True) as inner,
            socket.create_connection(("127.0.0.1", self._server.port)) as raw,
            self._outward.wrap_socket(raw, server_hostname="127.0.0.1") as outer,
        ):
            for source, target in ((outer, inner), (inner, outer), (outer, inner)):
                data = source.recv(65536)
                self.seen += data
                target.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.mark.promise("feed-guarantees", "with TLS the bits are the same, and nobody in the middle is believed")
@pytest.mark.promise("security", "who stands between a trainer and a feed server is refused")
def test_somebody_in_the_middle_with_a_certificate_of_the_same_ca_is_found_out(
    pki: Pki, tls_server: Server, tmp_path: Path
) -> None:
    thief = Pki(tmp_path, pki.ca)
    middle = Middle(tls_server, pki, thief.issue("127.0.0.1"))
    try:
        [answer] = inquire(Endpoints(middle.address, str(tls_server.secret), pki.ca_file))
    finally:
        middle.close()
    assert answer.reason == "the feed server refuses this client: wrong secret"
    assert b"Hello" in middle.seen, "it did read what passed, and could do nothing with it"


def test_proofs_are_bound_to_the_certificate() -> None:
    assert bind(SECRET, b"") == SECRET
    assert len({SECRET, bind(SECRET, b"a" * 32), bind(SECRET, b"b" * 32)}) == 3
    said: list[messages.Message] = []
    offered = challenge()
    for binding in (b"", b"a" * 32, b"b" * 32):
        ClientHandshake(SECRET, "c").step(offered, said.append, binding)
    assert len({hello.mac for hello in said if isinstance(hello, messages.Hello)}) == 3


# The channel


def connected(pki: Pki) -> tuple[socket.socket, socket.socket, ServerTls, ClientTls]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs, server_tls(*pki.issue("127.0.0.1")), client_tls(pki.ca_file, "127.0.0.1")


def shake(client: FramedConnection, server: FramedConnection) -> None:
    wait_until(lambda: _advance(client, server), "the TLS handshake")


def _advance(*channels: FramedConnection) -> bool:
    for channel in channels:
        channel.flush()
        assert channel.receive() == []
    return all(channel.stream.ready for channel in channels)


def test_a_channel_over_tls_carries_frames_both_ways_while_both_ends_write(pki: Pki) -> None:
    ours, theirs, for_server, for_client = connected(pki)
    buffers = {"client": bytearray(48 << 20), "server": bytearray(48 << 20)}
    client = FramedConnection(ours, sink=lambda *_: [memoryview(buffers["client"])], tls=for_client)
    server = FramedConnection(theirs, sink=lambda *_: [memoryview(buffers["server"])], tls=for_server)
    shake(client, server)
    assert client.stream.binding == server.stream.binding == for_server.digest
    data = {"client": bytes(range(256)) * (48 << 12), "server": bytes(range(255, -1, -1)) * (48 << 12)}
    client.send(
        messages.Ping(), payload=frames.Payload([memoryview(data["client"])[:1], memoryview(data["client"])[1:]])
    )
    server.send(messages.Pong(), payload=frames.Payload([memoryview(data["server"])]))
    came: dict[str, list[messages.Message]] = {"client": [], "server": []}
    while not (came["client"] and came["server"]):
        for name, channel in (("client", client), ("server", server)):
            channel.flush()
            came[name] += [frame.message for frame in channel.receive()]
    assert came == {"client": [messages.Pong()], "server": [messages.Ping()]}
    assert buffers["server"] == data["client"]
    assert buffers["client"] == data["server"]
    client.close()
    with pytest.raises(ConnectionClosed):
        server.wait(5)
    server.close()


def test_no_sum_is_made_behind_tls(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, for_server, for_client = connected(pki)
    got = bytearray(3 << 20)
    client = FramedConnection(ours, sink=lambda *_: [memoryview(got)], tls=for_client)
    server = FramedConnection(theirs, tls=for_server)
    shake(client, server)
    made: list[memoryview] = []
    monkeypatch.setattr(frames, "checksum", made.append)
    sent = bytes(range(256)) * (3 << 12)
    server.send(messages.Pong(), payload=frames.Payload([memoryview(sent)]))
    while not client.receive():
        server.flush()
    assert got == sent
    assert not made
    assert server.stream.authentic
    client.close()
    server.close()


def test_frames_that_tls_has_decrypted_already_are_not_left_to_a_select_that_does_not_see_them(pki: Pki) -> None:
    ours, theirs, for_server, for_client = connected(pki)
    client, server = FramedConnection(ours, tls=for_client), FramedConnection(theirs, tls=for_server)
    shake(client, server)
    sent = [messages.Cancelled(number) for number in range(1000)]
    bodies = [messages.encode(message) for message in sent]
    joined = memoryview(b"".join(write_header(body) + body for body in bodies))  # hundreds of frames in each record
    assert client.stream.send([joined]) == joined.nbytes
    got: list[messages.Message] = []
    while len(got) < len(sent):
        assert select.select([server], [], [], 5)[0], f"{len(got)} frames came, and select sees no more"
        got += [frame.message for frame in server.receive()]
    assert got == sent
    client.close()
    server.close()


def test_a_damaged_record_ends_the_connection(pki: Pki) -> None:
    ours, theirs, for_server, for_client = connected(pki)
    client, server = FramedConnection(ours, tls=for_client), FramedConnection(theirs, tls=for_server)
    shake(client, server)
    socket.socket.send(client.stream._socket, b"\x17\x03\x03\x00\x20" + b"x" * 32)
    with pytest.raises(ProtocolError, match="the TLS connection broke: decryption failed or bad record mac"):
        server.wait(5)
    client.close()
    server.close()


def test_a_client_does_not_believe_a_certificate_of_the_systems_cas_or_of_none(pki: Pki, tmp_path: Path) -> None:
    ours, theirs, for_server, _ = connected(pki)
    client = FramedConnection(ours, tls=client_tls(make_pki(tmp_path / "x").ca_file, "127.0.0.1"))
    server = FramedConnection(theirs, tls=for_server)
    with pytest.raises(TlsRefused, match="its certificate is not accepted"):
        shake(client, server)
    client.close()
    server.close()


# Files


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no certificate", "cannot use the certificate .*nowhere.pem .*: No such file"),
        ("other key", "cannot use the certificate .*: key values mismatch"),
        ("not a certificate", "cannot use the certificate .*: "),
        ("encrypted key", "the private key .* is encrypted"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_an_error_that_names_the_file(
    fault: str, words: str, pki: Pki, tmp_path: Path
) -> None:
    cert, key = pki.issue("127.0.0.1")
    if fault == "no certificate":
        cert = tmp_path / "nowhere.pem"
    elif fault == "other key":
        key = pki.issue("localhost")[1]
    elif fault == "not a certificate":
        cert = tmp_path / "words.pem"
        cert.write_text("words")
    else:
        from cryptography.hazmat.primitives import serialization as form

        loaded = form.load_pem_private_key(key.read_bytes(), None)
        key = tmp_path / "encrypted.key"
        sealed = form.BestAvailableEncryption(b"pass")
        key.write_bytes(loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, sealed))
    with pytest.raises(FeedError, match=words):
        server_tls(cert, key)


@pytest.mark.parametrize("text", [None, "words"])
def test_a_ca_that_cannot_be_read_is_an_error_before_anything_is_dialled(text: str | None, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    if text is not None:
        ca.write_text(text)
    write_secret(tmp_path / "secret")
    with pytest.raises(FeedError, match=r"cannot read the CA of the feed servers from .*ca.pem"):
        Endpoints("tcp://h1:7070", str(tmp_path / "secret"), str(ca))


def test_a_certificate_without_its_key_is_an_error(pki: Pki, tmp_path: Path) -> None:
    from headrace.feed.serve import serve
    from headrace.feed.worker.feed_server import ServeOptions

    write_secret(tmp_path / "secret")
    cert, _ = pki.issue("127.0.0.1")
    with pytest.raises(FeedError, match="TLS needs a certificate and its private key"):
        serve(ServeOptions("127.0.0.1:0", 1, tmp_path / "secret", tls_cert=cert))


# At the shell


@pytest.mark.usefixtures("without_torch")
def test_a_server_from_the_shell_speaks_tls_and_status_asks_it(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_secret(tmp_path / "secret")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("HEADRACE_FEED_SECRET_FILE", str(tmp_path / "secret"))
    cert, key = pki.issue("127.0.0.1")
    headrace = [sys.executable, "-m", "headrace.cli", "feed"]
    serve = [*headrace, "serve", "--bind", "0.0.0.0:0", "--executors", "1", "--host-name", "127.0.0.1"]
    serve += ["--tls-cert", str(cert), "--tls-key", str(key)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split('"')[1]
        status = [*headrace, "status", address]
        good = subprocess.run(
            [*status, "--tls-ca", pki.ca_file], capture_output=True, text=True, timeout=60, check=False
        )
        plain = subprocess.run(status, capture_output=True, text=True, timeout=60, check=False)
        server.terminate()
        _, err = server.communicate(timeout=15)
    assert (good.returncode, address in good.stdout) == (0, True)
    assert (plain.returncode, "it serves TLS only" in plain.stdout) == (1, True)
    assert "warning" not in err, "what is encrypted needs no warning"
