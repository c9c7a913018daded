"""The shapes of requests, as botocore has them: only those of the operations that are answered here are kept.

A request that its shape refuses is answered in the words of the service.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.endpoint.protocols import ServiceError
from headrace.errors import Broken, Problem, UsageError
from headrace.job.problems.finding import JobSource
from headrace.job.sagemaker.check import CLIENT, check_shape
from headrace.job.sagemaker.shapes import Shape, read_shape

_CONSTRAINT = "failed to satisfy constraint: "
_INDEX = re.compile(r"\[(\d+)\]")
_MOST_ERRORS = 10


def request_shapes(service: str, operations: Iterable[str]) -> dict[str, Shape]:
    """Returns the shape of the request of each operation.

    Args:
        service: botocore's name of it.
        operations: their names.

    Raises:
        UsageError: botocore is not installed, or has no such operation.
    """
    try:
        loaders: Any = importlib.import_module("botocore.loaders")
    except ImportError as error:
        words = "headrace serve needs botocore, which is not installed"
        raise UsageError(words, "pip install 'headrace[serve]'") from error
    model = loaders.Loader().load_service_model(service, "service-2")
    try:
        return {
            name: read_shape(model["shapes"], model["operations"][name]["input"]["shape"])
            if "input" in model["operations"][name]
            else Shape("structure")
            for name in operations
        }
    except KeyError as error:
        hint = "pip install -U 'headrace[serve]'"
        raise UsageError(f"the installed botocore has no {service} operation {error}: it is too old", hint) from error


def check_members(request: Mapping[str, object], shape: Shape, code: str = "ValidationException") -> None:
    """Checks a request against its shape.

    Args:
        request: its members.
        shape: of the operation's request.
        code: what the service calls a value that is not allowed.

    Raises:
        ServiceError: with everything that is wrong.
    """
    source = JobSource()
    problems = [source.problem(finding) for finding in check_shape(request, shape)]
    if problems:
        raise refusal(problems, code)


def refusal(problems: Iterable[Problem], code: str = "ValidationException") -> ServiceError:
    """Returns the error that a service answers with, of what is wrong with a request."""
    found = list(problems)
    for each in found:
        if each.broken is Broken.TYPE:
            return ServiceError("SerializationException", f"{each.field}: {each.message} (got {each.value})")
    told = [_sentence(each) for each in found[:_MOST_ERRORS]]
    if len(found) > _MOST_ERRORS:
        told.append(f"and {len(found) - _MOST_ERRORS} more")
    if all(each.broken in (Broken.LIMIT, Broken.MISSING) for each in found):
        count = f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected: "
        return ServiceError(code, count + "; ".join(told))
    return ServiceError(code, "; ".join(told))


def _sentence(problem: Problem) -> str:
    if problem.broken is Broken.MISSING:
        return f"Value null at '{member_path(problem.field)}' {_CONSTRAINT}Member must not be null"
    if problem.broken is Broken.LIMIT:
        value = problem.value if problem.value[:1] in {"'", '"'} else f"'{problem.value}'"
        return f"Value {value} at '{member_path(problem.field)}' {problem.message}"
    seen = f" (got {problem.value})" if problem.value else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    bare = problem.code in ("", CLIENT) or problem.message[:1].islower()  # not a whole sentence of the service
    place = f"{problem.field}: " if bare else ""
    return f"{place}{problem.message}{seen}{hint if bare else ''}"


def member_path(field: str) -> str:
    """Returns a place in a request as the service names it.

    >>> member_path("ResourceConfig.InstanceGroups[1].InstanceType")
    'resourceConfig.instanceGroups.2.member.instanceType'
    """
    text = _INDEX.sub(lambda found: f".{int(found[1]) + 1}.member", field)
    return ".".join(part[:1].lower() + part[1:] for part in text.split("."))
