"""The certificate authority of the proxy: what lets unmodified clients take this server for a service of AWS.

It may sign names below amazonaws.com only (a critical name constraint), lives for some days, and its key never leaves
the memory of this process. Needs the library cryptography.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections import OrderedDict
from datetime import datetime, timedelta, timezone

from headrace.endpoint.http.aws_names import AWS_DOMAIN, is_aws_name
from headrace.errors import UsageError
from headrace.install_hint import install_hint

_BEFORE = timedelta(hours=1)  # clocks differ
_CONTEXTS = 512


class ProxyAuthority:
    """Makes certificates for names below amazonaws.com.

    Args:
        valid: how long they are valid; as long as the program that is served may run.

    Raises:
        UsageError: the library cryptography is missing.
    """

    def __init__(self, valid: timedelta = timedelta(days=30)) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise UsageError(
                "the proxy needs the library cryptography, which is not installed",
                hint=install_hint("serve"),
            ) from None
        self._x509 = x509
        self._sha256 = hashes.SHA256()
        self._pem = serialization.Encoding.PEM
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_pem = self._leaf_key.private_bytes(
            self._pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        now = datetime.now(timezone.utc)
        self._from, self._until = now - _BEFORE, now + valid
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"headrace serve {os.getpid()}")])
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        constraint = x509.NameConstraints([x509.DNSName(AWS_DOMAIN)], None)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self._key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(self._from).not_valid_after(self._until)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(constraint, critical=True)
        builder = builder.add_extension(identifier, critical=False)
        self._certificate = builder.sign(self._key, self._sha256)
        self._lock = threading.Lock()
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, PEM: what clients have to trust."""
        return self._certificate.public_bytes(self._pem)

    def context_for(self, host: str) -> ssl.SSLContext:
        """Returns what a server needs to be that host.

        Args:
            host: a name below amazonaws.com, in small letters.

        Raises:
            ValueError: it is another name.
        """
        if not is_aws_name(host):
            raise ValueError(f"{host} is no name below {AWS_DOMAIN}")
        with self._lock:
            if (context := self._contexts.get(host)) is None:
                context = self._contexts[host] = self._make_context(host)
                if len(self._contexts) > _CONTEXTS:
                    self._contexts.popitem(last=False)
            self._contexts.move_to_end(host)
        return context

    def _make_context(self, host: str) -> ssl.SSLContext:
        x509 = self._x509
        builder = x509.CertificateBuilder().issuer_name(self._certificate.subject)
        builder = builder.subject_name(x509.Name([])).public_key(self._leaf_key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(self._from).not_valid_after(self._until)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usage = x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(usage, critical=False).add_extension(authority, critical=False)
        leaf = builder.sign(self._key, self._sha256).public_bytes(self._pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)  # the library reads keys from files only
        try:
            os.write(memory, leaf + self._leaf_pem)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context
