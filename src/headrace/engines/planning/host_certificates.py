"""Makes the certificates of a run: an authority of its own, and one certificate a host.

Keys are on the curve P-256. A certificate holds the host's name in the run and no address: names are known before a
platform has given machines, and no host can pass for another one. Clocks of hosts decide nothing: an authority signs
for one run, its key is never written, so certificates need not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from headrace.instance.launch_plan import Certificates

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder

VALID_FROM = datetime(2000, 1, 1, tzinfo=timezone.utc)
VALID_TO = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)  # RFC 5280, 4.1.2.5: no end


def make_certificates(run_id: str, hosts: Iterable[str]) -> Mapping[str, Certificates]:
    """Returns what each host of a run gets, by its name."""
    from cryptography import x509  # loading it takes as long as making the certificates of 100 hosts
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = serialization.Encoding.PEM
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _authority(run_id, ca_key)
    certificates = {}
    for host in hosts:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH, x509.OID_CLIENT_AUTH])
        builder = _builder(f"{host} of {run_id}", key).issuer_name(ca.subject)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        certificate = _sign(builder.add_extension(authority, critical=False), ca_key)
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        certificates[host] = Certificates(ca.public_bytes(pem), certificate.public_bytes(pem), private)
    return certificates


def _authority(run_id: str, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509

    name = f"run {run_id}"
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, key).issuer_name(_name(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _sign(builder.add_extension(usage, critical=True), key)


def _builder(name: str, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509

    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder().subject_name(_name(name)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(VALID_FROM)
    return builder.not_valid_after(VALID_TO).add_extension(identifier, critical=False)


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _sign(builder: CertificateBuilder, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())
