"""TLS for the feed's TCP connections: version 1.3 only, and what each end needs for it.

The server shows a certificate. The client accepts it if it was signed by the CA that it was given (and by no other:
the system's CAs do not count) and names the host or IP of the address that it dials. Who the client is, it proves
with the secret, as without TLS.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import FeedError

CA_VARIABLE = "HEADRACE_FEED_TLS_CA"


@dataclass(frozen=True)
class ServerTls:
    """The server's end. `digest`: SHA-256 of its certificate."""

    context: ssl.SSLContext
    digest: bytes


@dataclass(frozen=True)
class ClientTls:
    """The client's end. `host`: name or IP that the certificate must hold."""

    context: ssl.SSLContext
    host: str


def server_tls(certificate: Path, key: Path) -> ServerTls:
    """Loads a server's certificate (PEM, with its chain behind it) and private key (PEM, not encrypted).

    Raises:
        FeedError: one of them cannot be read, or they do not belong together.
    """

    def refuse() -> str:
        raise FeedError(f"the private key {key} is encrypted", hint="a server cannot ask for a passphrase: decrypt it")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key, refuse)
        leaf = certificate.read_text().partition("-----BEGIN CERTIFICATE-----")
        pem = leaf[1] + leaf[2].partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
        return ServerTls(context, hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise FeedError(f"cannot use the certificate {certificate} with the key {key}: {_reason(error)}") from error


def client_tls(ca: str, host: str) -> ClientTls:
    """Loads the CA (PEM) that must have signed the server's certificate.

    Raises:
        FeedError: it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies the certificate and its host name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise FeedError(f"cannot read the CA of the feed servers from {ca}: {_reason(error)}") from error
    return ClientTls(context, host)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
