"""One service: its operations by name, asked in JSON, as a form or by a path, and answered in the same protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.http.http_message import HttpReply, HttpRequest
from headrace.endpoint.wire.answers import json_answer, query_answer
from headrace.endpoint.wire.models import OperationModel, service_model
from headrace.endpoint.wire.protocols import Protocol, ServiceError
from headrace.endpoint.wire.requests import Members, check_members, of_form, read_form, read_json

Operation = Callable[[Members, Caller], Members]


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
