"""The variables by which a program, unmodified, reaches this server under the names of AWS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.endpoint.http.aws_names import AWS_DOMAIN
from headrace.endpoint.http.connect_proxy import Proxy
from headrace.private_folders import write_private

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_DIRECT = ("127.0.0.1", "localhost", "::1", "169.254.169.254", ".internal")


@contextmanager
def proxied_child(
    proxy: Proxy, address: str, port: int, environ: Mapping[str, str], bundle: Path
) -> Iterator[dict[str, str]]:
    """Yields the variables for a program whose calls of AWS arrive here. The file of certificates lasts as long.

    Args:
        proxy: the server's.
        address: where the server listens.
        port: where the server listens.
        environ: the variables that the program would have otherwise; what they say about certificates and hosts
            without a proxy stays in force, except that no service of AWS goes around this one.
        bundle: where the file of certificates is written; what a killed server has left there is replaced.
    """
    write_private(bundle, _bundle(proxy.authority.certificate, environ))
    try:
        yield proxy_environment(proxy.url(address, port), bundle, environ)
    finally:
        bundle.unlink(missing_ok=True)


def proxy_environment(url: str, bundle: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to set, beside those that a program has.

    Args:
        url: of the proxy, with its token.
        bundle: certificates that the program trusts: all that it trusted before, and the proxy's authority.
        environ: the variables that it has.
    """
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    kept = [each for each in (part.strip() for part in given.split(",")) if each and not _hides_aws(each)]
    direct = ",".join(dict.fromkeys([*kept, *_DIRECT]))
    # OpenSSL's own variable replaces the system's certificates, which stand in the bundle if they are in one file.
    names = _BUNDLES if _system_file(environ) else _BUNDLES[:2]
    return {
        "HTTPS_PROXY": url,
        "https_proxy": url,
        "NO_PROXY": direct,
        "no_proxy": direct,
        **dict.fromkeys(names, str(bundle)),
    }


def _hides_aws(entry: str) -> bool:
    name = entry.lower().lstrip("*").lstrip(".")
    return not name or name == AWS_DOMAIN or name.endswith(f".{AWS_DOMAIN}") or f".{AWS_DOMAIN}".endswith(f".{name}")


def _system_file(environ: Mapping[str, str]) -> str:
    return environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or ""


def _bundle(own: bytes, environ: Mapping[str, str]) -> bytes:
    """Returns every certificate that a program trusts, and the proxy's authority, each once."""
    sources = [environ.get(name, "") for name in _BUNDLES]
    sources += [_system_file(environ), _certifi()]
    found = dict.fromkeys(_CERTIFICATE.findall(own))
    for source in filter(None, sources):
        path = Path(source)
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                found.update(dict.fromkeys(_CERTIFICATE.findall(file.read_bytes())))
    return b"\n".join(found) + b"\n"


def _certifi() -> str:
    try:
        import certifi
    except ImportError:
        return ""  # programs without it trust the system's certificates
    return certifi.where()
