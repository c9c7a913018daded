"""Certificates of a run's hosts, where they lie in an instance's tree.

They travel with the plan and the secret, in headrace's own channel:

    ca.pem     the run's certificate authority; it signed the certificates of this run's hosts and nothing else
    tls.pem    certificate of this host, for its name in the run
    tls.key    its private key, mode 0600

Control connections are always under TLS, and both ends show a certificate. Where the job asks for it, feed connections
are, too; there the server shows one, and the client proves with the secret who it is. The authority's own key is not
kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.instance.launch_plan import channel_dir
from headrace.private_folders import write_atomically

CA_NAME = "ca.pem"
CERTIFICATE_NAME = "tls.pem"
KEY_NAME = "tls.key"


@dataclass(frozen=True)
class Certificates:
    """What one host has, each as PEM."""

    ca: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class CertificateFiles:
    """Where it has them."""

    ca: Path
    certificate: Path
    key: Path


def certificate_files(base_dir: str | os.PathLike[str]) -> CertificateFiles:
    """Returns where a host's certificates are."""
    folder = channel_dir(base_dir)
    return CertificateFiles(folder / CA_NAME, folder / CERTIFICATE_NAME, folder / KEY_NAME)


def write_certificates(base_dir: str | os.PathLike[str], certificates: Certificates) -> None:
    """Writes them into a tree that has the plan already. Raises OSError."""
    files = certificate_files(base_dir)
    write_atomically(files.ca, certificates.ca)
    write_atomically(files.certificate, certificates.certificate)
    write_atomically(files.key, certificates.key, mode=0o600)


def read_certificates(base_dir: str | os.PathLike[str]) -> Certificates:
    """Reads them. Raises OSError."""
    files = certificate_files(base_dir)
    return Certificates(files.ca.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes())
