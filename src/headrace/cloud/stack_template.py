"""A CloudFormation stack as it shall be: template, parameters, and how it differs from one that is there. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from headrace.errors import UsageError

Document: TypeAlias = "dict[str, Any]"
"""A template or a policy: what JSON can hold."""

KIND_TAG = "headrace"
"""Tag of all stacks and repositories that headrace makes; its value says of which kind. Nothing else is removed."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,47}")
"""CloudFormation allows 128 characters, a role that is named after its stack 64; some are left for what is added."""


@dataclass(frozen=True)
class StackTemplate:
    """A stack.

    Attributes:
        kind: ``vpc`` or ``role``.
        document: the template, with intrinsic functions in their long form (``{"Ref": ...}``).
        parameters: values of all parameters of the template.
        capabilities: what CloudFormation wants to be told that it may do.
    """

    kind: str
    document: Document
    parameters: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The template as YAML, as users would write it."""
        return yaml.safe_dump(self.document, sort_keys=False, width=120, allow_unicode=True)

    @property
    def parameters_text(self) -> str:
        """The parameters, as the AWS CLI takes them: ``--parameters file://...``."""
        return json.dumps(self.parameter_list, indent=2) + "\n"

    @property
    def parameter_list(self) -> list[dict[str, str]]:
        """The parameters, as the API takes them."""
        return [{"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()]

    @property
    def resources(self) -> dict[str, str]:
        """What the stack consists of: type by logical name."""
        return {name: each["Type"] for name, each in self.document["Resources"].items()}


def check_name(name: str) -> str:
    """Returns the name of a stack if there can be one.

    Raises:
        UsageError: there cannot.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a stack's name: a letter, then letters, digits and hyphens, 48 characters at most",
            hint="e.g. --name headrace-training",
        )
    return name


def parse_template(body: object) -> Document:
    """Returns the template of a stack that is there, as the API gives it (a text, or parsed if it is JSON).

    Raises:
        UsageError: it cannot be read: it has tags (``!Ref``), which headrace does not write.
    """
    if not isinstance(body, str):
        return json.loads(json.dumps(body))  # type: ignore[no-any-return]
    try:
        document = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise UsageError(
            "the template of the stack that is there was not written by headrace", hint="take another --name"
        ) from error
    return document if isinstance(document, dict) else {}


def differences(wanted: StackTemplate, document: Document, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what is other in a stack that is there, a line each; none if it is as wanted.

    Descriptions of the template and of parameters do not count.

    Args:
        wanted: the stack as it shall be.
        document, parameters: what is there.
    """
    found = []
    for key in dict.fromkeys([*wanted.parameters, *parameters]):
        there, here = parameters.get(key), wanted.parameters.get(key)
        if there != here:
            found.append(f"{key}: {_shown(there)} is there, {_shown(here)} is asked for")
    for part, one in (("Resources", "resource"), ("Outputs", "output")):
        old, new = document.get(part, {}), wanted.document.get(part, {})
        for name in dict.fromkeys([*old, *new]):
            if name not in new:
                found.append(f"{one} {name}: is there, and is not asked for")
            elif name not in old:
                found.append(f"{one} {name}: is asked for, and is not there")
            elif old[name] != new[name]:
                found.append(f"{one} {name}: is another")
    return tuple(found)


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
