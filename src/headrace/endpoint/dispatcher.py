"""A request comes in: who sent it, for which service, in which protocol; that service answers or refuses.

An error is told in the caller's protocol, whatever it is. Nothing is read of a body, and nothing is done, before the
signature was found right.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from headrace.endpoint.auth.access_keys import Holder
from headrace.endpoint.auth.checked_body import HashedBody
from headrace.endpoint.auth.gatekeeper import Caller, Gatekeeper
from headrace.endpoint.auth.job_rights import JobRights
from headrace.endpoint.auth.signatures import Malformed, read_signature
from headrace.endpoint.http.http_message import BodyProblem, HttpReply, HttpRequest
from headrace.endpoint.services.service import Service
from headrace.endpoint.wire.answers import error_answer
from headrace.endpoint.wire.protocols import Protocol, ServiceError, protocol_of

BODY_BYTES = 2 << 20
"""Of a request that is not for S3. The greatest CreateTrainingJob that the limits allow has about half of it."""

S3Face = Callable[[HttpRequest, "JobRights | None"], HttpReply]
"""Answers a request of S3 whose signature is right, with what the caller may do; None for all."""

_log = logging.getLogger(__name__)


class Dispatcher:
    """What an endpoint does with a request. Safe for use by several threads.

    Args:
        gatekeeper: lets requests in.
        services: by the names that requests are signed for.
        s3: answers what is for S3.
        find_job: returns name and rights of the job of a uid; None when there is none.
    """

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        services: Mapping[str, Service],
        s3: S3Face,
        find_job: Callable[[str], tuple[str, JobRights] | None],
    ) -> None:
        self._gatekeeper = gatekeeper
        self._services = services
        self._s3 = s3
        self._find_job = find_job

    def handle(self, request: HttpRequest) -> HttpReply:
        """Answers a request. Raises `HttpProblem` as the body does."""
        try:
            return self._answer(request)
        except ServiceError as error:
            return error_answer(error, _protocol(request))
        except BodyProblem as error:
            if error.closes or error.status != 413:
                raise
            return error_answer(ServiceError("RequestEntityTooLarge", error.message, 413), _protocol(request))
        except Exception:  # noqa: BLE001  (the boundary: it is logged, and told in the caller's protocol)
            _log.exception("%s %s could not be answered", request.method, request.raw_path[:200])
            words = "headrace serve has an error; its log says more"
            return error_answer(ServiceError("InternalFailure", words, 500), _protocol(request))

    def _answer(self, request: HttpRequest) -> HttpReply:
        body: list[bytes] = []

        def read_body() -> bytes:
            if not body:
                body.append(request.body.read_all(BODY_BYTES))
            return body[0]

        caller = self._gatekeeper.admit(request, read_body)
        request.prove()
        rights = None if caller.holder is Holder.USER else JobRights(everywhere=True)
        if caller.job:
            if (job := self._find_job(caller.job)) is None:
                protocol = _protocol(request)
                raise ServiceError(
                    "AccessDenied" if protocol in (Protocol.S3, Protocol.QUERY) else "AccessDeniedException",
                    "the job of this key is not there any more", 403 if protocol is Protocol.S3 else 400,
                )  # fmt: skip
            caller, rights = dataclasses.replace(caller, job=job[0]), job[1]
        asked = f"{request.method} {request.raw_path}?{request.raw_query} {request.headers.get('x-amz-target')}"
        copied = request.headers.get("x-amz-copy-source")
        _log.debug(
            "%s asks %s: %s%s", caller.holder.value, caller.service, asked.strip(), f" of {copied}" if copied else ""
        )
        if caller.service == "s3":
            return self._s3(_with_checked_body(request, caller), rights)
        service = self._services.get(caller.service)
        if service is None:
            known = ", ".join(sorted([*self._services, "s3"]))
            words = f"headrace serve has no service {caller.service[:60]!r}; it has {known}"
            raise ServiceError("UnknownOperationException", words, 404)
        return service.answer(request, read_body(), caller, _protocol(request))


def _with_checked_body(request: HttpRequest, caller: Caller) -> HttpRequest:
    """Returns the request with a body that is compared with what was signed, while it is read."""
    if caller.chunks is not None:
        return dataclasses.replace(request, framing=caller.chunks)
    if caller.body_hash:
        return dataclasses.replace(request, body=HashedBody(request.body, caller.body_hash))
    return request


def _protocol(request: HttpRequest) -> Protocol:
    try:
        signed = read_signature(request)
    except Malformed:
        signed = None
    head = request.headers.get
    service = signed.service if signed else ""
    return protocol_of(head("x-amz-target"), head("content-type"), head("smithy-protocol"), request.raw_query, service)
