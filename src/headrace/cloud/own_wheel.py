"""This headrace as a wheel, so that an image gets the version that submits jobs. The same files, the same bytes."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import headrace
from headrace.errors import UsageError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = ("METADATA", "entry_points.txt")
_WHEEL = "Wheel-Version: 1.0\nGenerator: headrace\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@functools.cache
def own_wheel() -> tuple[str, bytes]:
    """Returns the name of the wheel, and the wheel.

    Raises:
        UsageError: this headrace was not installed, so that nobody knows what it needs.
    """
    try:
        installed = distribution("headrace")
    except PackageNotFoundError as error:
        raise UsageError("this headrace is not installed", hint="pip install it, also from a checkout") from error
    info = f"headrace-{installed.version}.dist-info"
    files = dict(_package_files())
    files |= {f"{info}/{name}": text.encode() for name in _KEPT if (text := installed.read_text(name)) is not None}
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(entry, content)
    return f"headrace-{installed.version}-py3-none-any.whl", packed.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    package = Path(headrace.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"headrace/{path.relative_to(package).as_posix()}", path.read_bytes()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
