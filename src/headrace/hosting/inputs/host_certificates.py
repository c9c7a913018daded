"""Makes the certificates of a job whose connections are under TLS: one authority a job, one certificate a host.

Keys are on the curve P-256. A certificate holds the host's address and name, so no host can pass for another one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from headrace.errors import EngineRefused
from headrace.install_hint import install_hint
from headrace.instance.certificates import Certificates
from headrace.instance.launch_plan import LaunchPlan

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder

BEFORE = timedelta(hours=1)  # clocks differ
VALID = timedelta(days=60)  # a job runs for 28 days at most, and may wait


def check_certificates(plan: LaunchPlan) -> None:
    """Checks that certificates can be made if the job needs them.

    Raises:
        EngineRefused: the library is missing.
    """
    if plan.encrypt:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise EngineRefused(
                "encrypt_inter_container_traffic needs the library cryptography, which is not installed",
                hint=install_hint("tls"),
            ) from None


def make_certificates(plan: LaunchPlan) -> Mapping[str, Certificates]:
    """Returns what each host of a job gets, by its name; nothing for a job without TLS."""
    if not plan.encrypt:
        return {}
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = serialization.Encoding.PEM
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _authority(plan, ca_key)
    found = {}
    for host in plan.hosts:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host.name)]
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.address)))
        except ValueError:
            names.append(x509.DNSName(host.address))
        usage = x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH, x509.OID_CLIENT_AUTH])
        builder = _builder(f"{host.name} of {plan.run_id}", key).issuer_name(ca.subject)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        certificate = _sign(builder.add_extension(authority, critical=False), ca_key)
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        found[host.name] = Certificates(ca.public_bytes(pem), certificate.public_bytes(pem), private)
    return found


def _authority(plan: LaunchPlan, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509

    name = f"job {plan.run_id}"
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

    now = datetime.now(timezone.utc)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder().subject_name(_name(name)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - BEFORE)
    return builder.not_valid_after(now + VALID).add_extension(identifier, critical=False)


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _sign(builder: CertificateBuilder, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())
