"""What AWS's error codes mean. Services name the same error in several ways; here is the one table. Pure."""

from __future__ import annotations

import enum


class AwsFault(enum.Enum):
    """What an error code says."""

    DENIED = "denied"
    """The caller is known, and lacks a right."""
    BAD_KEYS = "bad keys"
    """AWS does not know the credentials, or the signature is wrong."""
    EXPIRED = "expired"
    """The credentials were good and have expired."""
    LIMIT = "limit"
    """A quota of the account is used up."""
    CAPACITY = "capacity"
    """There are no such instances just now."""
    BUSY = "busy"
    """Too many calls: the same one may be accepted later."""
    INTERNAL = "internal"
    """The service itself has failed: the same call may go well later."""
    OTHER = "other"
    """What is wrong with the call itself."""


_CODES = {
    AwsFault.DENIED: (
        "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError",
        "UnauthorizedException", "OptInRequired", "403", "Forbidden", "AllAccessDisabled", "AccountProblem",
    ),
    AwsFault.BAD_KEYS: (
        "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
        "AuthFailure", "IncompleteSignature", "InvalidAccessKeyId", "MissingAuthenticationToken", "InvalidToken",
    ),
    AwsFault.EXPIRED: ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
    AwsFault.LIMIT: (
        "LimitExceeded", "LimitExceededException", "QuotaExceeded", "ServiceQuotaExceededException",
        "ResourceLimitExceeded", "ResourceLimitExceededException",
    ),
    AwsFault.CAPACITY: ("CapacityError", "InsufficientCapacityError"),
    AwsFault.BUSY: (
        "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException", "SlowDown",
    ),
    AwsFault.INTERNAL: (
        "InternalServerError", "InternalFailure", "InternalError", "500", "ServiceUnavailable",
        "ServiceUnavailableException", "503", "RequestTimeout", "OperationAborted",
    ),
}  # fmt: skip
_FAULTS = {code: fault for fault, codes in _CODES.items() for code in codes}


def fault_of(code: str) -> AwsFault:
    """Returns what an error code of AWS says.

    >>> fault_of("ThrottlingException"), fault_of("ValidationException")
    (<AwsFault.BUSY: 'busy'>, <AwsFault.OTHER: 'other'>)
    """
    return _FAULTS.get(code, AwsFault.OTHER)
