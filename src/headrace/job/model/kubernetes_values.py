"""Values in the words of Kubernetes: names, labels, quantities. Each checks itself and says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator, JsonValue, WithJsonSchema

from headrace.job.model.field_types import AsList, AsMapping, one_line, sized, whole
from headrace.job.problems.finding import broken, show

OWN_PREFIX = "headrace/"
"""What the keys of headrace's own labels begin with."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_SCALES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0} | {
    letter + ending: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for ending, base in (("i", 1024.0), ("", 1000.0))
} | {"k": 1000.0}  # fmt: skip


def _dns_label(value: object) -> str:
    text = one_line(value, 1, 63)
    if not _DNS_LABEL.fullmatch(text):
        raise broken("must be small letters, digits and hyphens, and begin and end with a letter or digit")
    return text


def _dns_name(value: object) -> str:
    text = one_line(value, 1, 253)
    if not _DNS_NAME.fullmatch(text):
        raise broken(
            "must be small letters, digits, hyphens and dots, and begin and end with a letter or digit",
            hint="it is the name of an object of the cluster",
        )
    return text


def _label_key(value: object) -> str:
    text = one_line(value, 1, 317)
    prefix, slash, name = text.rpartition("/")
    if (slash and (not _DNS_NAME.fullmatch(prefix) or len(prefix) > 253)) or not _NAME.fullmatch(name):
        raise broken("must be a key such as 'team' or 'example.com/team'", seen=show(text))
    if len(name) > 63:
        raise broken("must have at most 63 characters after the '/'", seen=f"{len(name)} characters")
    return text


def _own_key(value: object) -> str:
    text = _label_key(value)
    if text.startswith(OWN_PREFIX):
        raise broken(f"keys that begin with {OWN_PREFIX!r} are headrace's own", seen=show(text))
    return text


def _label_value(value: object) -> str:
    if isinstance(value, bool):
        raise broken("must be a string", hint=f'write it in quotes, such as "{str(value).lower()}"')
    text = one_line(value, 0, 63)
    if text and not _NAME.fullmatch(text):
        rule = "must be letters, digits, '-', '_' and '.', and begin and end with a letter or digit"
        raise broken(rule, seen=show(text))
    return text


def _quantity(value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise broken("must be a quantity such as 2, '500m' or '16Gi'")
    return text


def amount_of(quantity: str) -> float:
    """Returns what a quantity stands for.

    >>> amount_of("500m"), amount_of("2Ki"), amount_of("1e3")
    (0.5, 2048.0, 1000.0)
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no quantity")
    number, scale = match[1], match[2] or ""
    return float(number + scale) if scale[:1] in ("e", "E") and scale[1:] else float(number) * _SCALES[scale]


def _image(value: object) -> str:
    text = one_line(value, 1, 1024)
    if re.search(r"\s", text):
        raise broken("must be the name of an image, without blanks", seen=show(text))
    return text


def absolute_folder(value: object) -> str:
    """Returns an absolute path in its shortest form. It must not be the root."""
    text = one_line(value, 1, 1024)
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or ":" in text or len(path.parts) < 2:
        raise broken("must be an absolute path, without '..' and ':'", seen=show(text))
    return str(path)


def _inside(value: object) -> str:
    text = one_line(value, 1, 1024)
    if text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise broken("must be a path inside the volume, without '..'", seen=show(text))
    return text


def _plain(low: int, high: int) -> Callable[[object], str]:
    def check(value: object) -> str:
        text = one_line(value, low, high)
        if text != text.strip():
            raise broken("must not begin or end with a blank", seen=show(text))
        return text

    return check


DnsLabel = Annotated[str, BeforeValidator(_dns_label)]
DnsName = Annotated[str, BeforeValidator(_dns_name)]
DnsNames = Annotated[tuple[DnsName, ...], AsList]
LabelKey = Annotated[str, BeforeValidator(_label_key)]
OwnKey = Annotated[str, BeforeValidator(_own_key)]
LabelValue = Annotated[str, BeforeValidator(_label_value)]
Labels = Annotated[dict[OwnKey, LabelValue], AsMapping]
NodeSelector = Annotated[dict[LabelKey, LabelValue], AsMapping]
Annotations = Annotated[dict[OwnKey, Annotated[str, BeforeValidator(lambda value: sized(value, 0, 65536))]], AsMapping]
Quantity = Annotated[str, BeforeValidator(_quantity), WithJsonSchema({"type": ["string", "number"]})]
Quantities = Annotated[dict[LabelKey, Quantity], AsMapping]
ImageName = Annotated[str, BeforeValidator(_image)]
Folder = Annotated[str, BeforeValidator(absolute_folder)]
InsideVolume = Annotated[str, BeforeValidator(_inside)]
Text = Annotated[str, BeforeValidator(_plain(1, 1024))]
User = Annotated[int, BeforeValidator(whole(1, 2**31 - 1))]
Gpus = Annotated[int, BeforeValidator(whole(0, 1024))]
Lifetime = Annotated[int, BeforeValidator(whole(0, 366 * 24 * 3600, " seconds"))]
Patch = Annotated[dict[str, JsonValue], AsMapping]
