"""The shape of a CreateTrainingJob request: members, types, lengths, patterns, counts.

`request_shapes.json` beside this module has them as the service's model in botocore has them; it is written by
`scripts/request_shapes.py`. Reading it is the only input here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from headrace.catalog import instance_types

FILE = Path(__file__).with_name("request_shapes.json")

_KINDS = {"long": "integer", "timestamp": "number", "double": "number", "float": "number"}
_LINE = "[^\\n\\r\\x85\\u2028\\u2029]"  # what Java's dot matches
_SPACES = "\\u0020\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


@dataclass(frozen=True)
class Shape:
    """One value of a request.

    Attributes:
        kind: ``structure``, ``list``, ``map``, ``string``, ``integer``, ``number`` or ``boolean``.
        low: least length, number of items or value; None means no limit.
        high: greatest of these; None means no limit.
        pattern: of a text, as the service writes it.
        enum: of a text: all that are allowed; empty means any.
        required: members of a structure that must be given.
        members: of a structure, by name.
        inner: ``member`` of a list; ``key`` and ``value`` of a map.
        name: on the wire; empty: that of the member.
        place: ``header``, ``headers`` (which begin with the name), ``querystring`` or ``uri``; empty: the body.
        payload: of a structure: the member that is the whole body.
        flat: of a list: its items stand in XML without an element around them.
    """

    kind: str
    low: int | None = None
    high: int | None = None
    pattern: str = ""
    enum: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    members: Mapping[str, Shape] = field(default_factory=dict)
    inner: Mapping[str, Shape] = field(default_factory=dict)
    name: str = ""
    place: str = ""
    payload: str = ""
    flat: bool = False


@cache
def create_training_job() -> Shape:
    """Returns the shape of the whole request."""
    return read_shape(json.loads(FILE.read_text(encoding="utf-8"))["shapes"], "CreateTrainingJobRequest")


def read_shape(shapes: Mapping[str, Any], root: str) -> Shape:
    """Returns a shape of a service's model, which does not hold itself.

    Args:
        shapes: the model's shapes by name, as botocore has them, or as `FILE` has.
        root: name of the shape.
    """

    def read(reference: Any) -> Shape:
        wire = {"shape": reference} if isinstance(reference, str) else reference
        name = wire["shape"]
        each = shapes[name]
        return Shape(
            kind=_KINDS.get(each["type"], each["type"]),
            low=each.get("min"),
            high=each.get("max"),
            pattern=each.get("pattern", ""),
            enum=tuple(sorted(instance_types.KNOWN) if name == "TrainingInstanceType" else each.get("enum", ())),
            required=frozenset(each.get("required", ())),
            members={member: read(inner) for member, inner in each.get("members", {}).items()},
            inner={key: read(each[key]) for key in ("member", "key", "value") if key in each},
            name=wire.get("locationName", ""),
            place=wire.get("location", ""),
            payload=each.get("payload", ""),
            flat=each.get("flattened", False),
        )

    return read(root)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns one of the service's patterns for `fullmatch`: Java's dialect, where a dot matches no line break."""
    text = pattern.replace("\\p{Alnum}", "A-Za-z0-9").replace("\\p{L}\\p{Z}\\p{N}", "\\w" + _SPACES)
    text = text.replace(".*", _LINE + "*").replace(".+", _LINE + "+")
    return re.compile(text, 0 if "\\p{L}" in pattern else re.ASCII)
