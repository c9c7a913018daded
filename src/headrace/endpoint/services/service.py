"""One service: its operations by name, asked in JSON, as a form or by a path, and answered in the same protocol.

STS and IAM are here, as far as clients of training jobs ask them: there is one account, and one role which may do all.
Nothing is granted by these answers. What a key may do is decided where its requests are answered.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar
from urllib.parse import quote

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.http.http_message import HttpReply, HttpRequest
from headrace.endpoint.wire.answers import json_answer, query_answer
from headrace.endpoint.wire.models import OperationModel, Protocol, ServiceError, service_model
from headrace.endpoint.wire.requests import Members, check_members, of_form, read_form, read_json

Operation = Callable[[Members, Caller], Members]


T = TypeVar("T")


def token_of(value: object) -> str:
    """Returns a token, by which a client goes on in a list."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def read_token(token: object, kind: type[T], refusal: ServiceError) -> T:
    """Returns the value of a token, or an empty one without a token. Raises `refusal`: nothing here has made it."""
    if token is None:
        return kind()
    try:
        value = json.loads(base64.b64decode(str(token).encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise refusal from None
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise refusal
    return value


@dataclass(frozen=True)
class Service:
    """A service.

    Attributes:
        name: as requests are signed for it.
        models: botocore's names of the models that its operations are of; the first tells how it is asked.
        operations: by name. The request of one that no model here has is checked where it is answered.
        wrong: its code for a value that is not allowed.
    """

    name: str
    models: tuple[str, ...]
    operations: Mapping[str, Operation]
    wrong: str = "ValidationException"

    def answer(self, request: HttpRequest, body: bytes, caller: Caller, protocol: Protocol) -> HttpReply:
        """Answers a request.

        Args:
            request: its head.
            body: all of it.
            caller: who sent it.
            protocol: that the caller speaks.

        Raises:
            ServiceError: as the operation does.
        """
        model = service_model(self.models[0])
        if protocol is Protocol.REST_JSON:
            for each in self._models():
                if each.path != "/" and (each.method, each.path) == (request.method, request.raw_path):
                    return json_answer(self._call(each.name, read_json(body), caller), protocol)
        if request.method != "POST":
            raise ServiceError("MethodNotAllowed", f"{self.name} is asked with POST, not {request.method[:20]}", 405)
        if protocol.is_json and model.target:
            target = request.headers.get("x-amz-target")
            prefix, _, name = target.partition(".")
            name = self._find(name if prefix == model.target else target, "UnknownOperationException")
            return json_answer(self._call(name, read_json(body), caller), protocol)
        if protocol is Protocol.QUERY and model.namespace:
            members = read_form(body, request.raw_query)
            name = self._find(str(members.pop("Action", "")), "InvalidAction")
            members.pop("Version", None)
            operation = model.operations[name]
            result = self._call(name, of_form(members, operation.input), caller)
            return query_answer(operation, result, model.namespace)
        words = f"{self.name} is not asked in this protocol ({protocol.value})"
        raise ServiceError("UnknownOperationException", words)

    def _models(self) -> list[OperationModel]:
        return [each for model in self.models for each in service_model(model).operations.values()]

    def _find(self, name: str, code: str) -> str:
        if name not in self.operations:
            known = ", ".join(self.operations)
            raise ServiceError(code, f"headrace serve has no {self.name} operation {name[:80]!r}; it has {known}")
        return name

    def _call(self, name: str, members: Members, caller: Caller) -> Members:
        for model in self._models():
            if model.name == name:
                check_members(members, model.input, self.wrong)
        return self.operations[name](members, caller)


ACCOUNT = "000000000000"
ROLE_NAME = "headrace"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/{ROLE_NAME}"
_CREATED = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"},
    ],
}


def sts() -> Service:
    """Returns STS: who calls. It is a role that is assumed, because the SDK's `get_execution_role` wants one."""

    def get_caller_identity(_: Members, caller: Caller) -> dict[str, object]:
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE_NAME}/{caller.holder.value}"
        return {"Arn": arn, "UserId": f"{_role_id(ROLE_NAME)}:{caller.holder.value}", "Account": ACCOUNT}

    return Service("sts", ("sts",), {"GetCallerIdentity": get_caller_identity}, "ValidationError")


def iam() -> Service:
    """Returns IAM: every role is there, trusts SageMaker, and may do what is asked for."""

    def get_role(members: Members, _: Caller) -> dict[str, object]:
        name = str(members["RoleName"])
        role = {
            "Path": "/",
            "RoleName": name,
            "RoleId": _role_id(name),
            "Arn": f"arn:aws:iam::{ACCOUNT}:role/{name}",
            "CreateDate": _CREATED,
            "AssumeRolePolicyDocument": quote(json.dumps(_TRUST), safe=""),
            "MaxSessionDuration": 3600,
        }
        return {"Role": role}

    def simulate_principal_policy(members: Members, _: Caller) -> dict[str, object]:
        actions, resources = members["ActionNames"], members.get("ResourceArns") or ["*"]
        assert isinstance(actions, list)
        assert isinstance(resources, list)
        found = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
            for action in actions
            for resource in resources
        ]
        return {"EvaluationResults": found, "IsTruncated": False}

    operations = {"GetRole": get_role, "SimulatePrincipalPolicy": simulate_principal_policy}
    return Service("iam", ("iam",), operations, "ValidationError")


def _role_id(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest().upper()
    return "AROA" + re.sub(r"[^A-Z2-7]", "A", digest)[:17]
