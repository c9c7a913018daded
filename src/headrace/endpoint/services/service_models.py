"""The shapes of requests, as botocore has them: only those of the operations that are answered here are kept.

A request that its shape refuses is answered in the words of the service. A model takes 20 MB while it is read, of
which a process gives little back; so a child process reads it.
"""

from __future__ import annotations

import importlib
import os
import re
import traceback
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from headrace.endpoint.protocols import ServiceError
from headrace.errors import Broken, Problem, UsageError
from headrace.install_hint import install_hint
from headrace.job.problems.finding import JobSource
from headrace.job.sagemaker.check import CLIENT, check_shape
from headrace.job.sagemaker.shapes import Shape, read_shape

_CONSTRAINT = "failed to satisfy constraint: "
_INDEX = re.compile(r"\[(\d+)\]")
_MOST_ERRORS = 10


def request_shapes(wanted: Mapping[str, Collection[str]]) -> dict[str, dict[str, Shape]]:
    """Returns the shapes of requests, by botocore's name of the service and by operation.

    Args:
        wanted: names of operations, by service.

    Raises:
        UsageError: botocore is not installed, or has no such operation.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(writing, "wb") as file:  # noqa: PTH123
                file.write(msgspec.json.encode(_read(wanted)))
            code = 0
        except Exception:  # noqa: BLE001  (the boundary: the parent only learns that it failed)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:  # noqa: PTH123
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise UsageError("the models of botocore could not be read", install_hint("serve"))
    found = msgspec.json.decode(answer, type=dict[str, dict[str, Shape]] | str)
    if isinstance(found, str):
        raise UsageError(found, install_hint("serve"))
    return found


def _read(wanted: Mapping[str, Collection[str]]) -> dict[str, dict[str, Shape]] | str:
    """Returns the shapes, or why there are none."""
    try:
        loaders: Any = importlib.import_module("botocore.loaders")
    except ImportError:
        return "headrace serve needs botocore, which is not installed"
    found: dict[str, dict[str, Shape]] = {}
    for service, operations in wanted.items():
        model = loaders.Loader().load_service_model(service, "service-2")
        if missing := [name for name in operations if name not in model["operations"]]:
            return f"the installed botocore has no {service} operation {missing[0]}: it is too old"
        found[service] = {
            name: read_shape(model["shapes"], model["operations"][name]["input"]["shape"])
            if "input" in model["operations"][name]
            else Shape("structure")
            for name in operations
        }
    return found


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
