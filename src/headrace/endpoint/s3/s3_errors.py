"""S3's errors: code, status and words."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.endpoint.wire.models import ServiceError

_ERRORS: Mapping[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied"),
    "AuthorizationHeaderMalformed": (400, "The authorization header that you provided is not valid."),
    "BadDigest": (400, "The checksum or MD5 that you specified did not match what was received."),
    "BucketAlreadyOwnedByYou": (
        409,
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    "BucketNotEmpty": (409, "The bucket you tried to delete is not empty"),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed size"),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed size"),
    "IncompleteBody": (400, "You did not provide the number of bytes specified by the Content-Length HTTP header"),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidDigest": (400, "The Content-MD5 or checksum value that you specified is not valid."),
    "IllegalLocationConstraintException": (400, "The location constraint is incompatible for the endpoint's region."),
    "InvalidLocationConstraint": (400, "The specified location-constraint is not valid"),
    "InvalidPart": (
        400,
        "One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified "
        "entity tag may not match the part's entity tag.",
    ),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable"),
    "InvalidPartOrder": (
        400,
        "The list of parts was not in ascending order. The parts list must be specified in order by part number.",
    ),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "InvalidRequest": (400, "Invalid Request"),
    "InvalidURI": (400, "Couldn't parse the specified URI."),
    "KeyTooLongError": (400, "Your key is too long"),
    "MalformedXML": (
        400,
        "The XML you provided was not well-formed or did not validate against our published schema",
    ),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size"),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (
        404,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
        "completed.",
    ),
    "NoSuchVersion": (404, "The specified version does not exist."),
    "NotImplemented": (501, "A header or query you provided implies functionality that is not implemented."),
    "NotModified": (304, ""),
    "OperationAborted": (409, "A conflicting conditional operation is currently in progress against this resource."),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
    "RequestTimeout": (400, "Your socket connection to the server was not read from or written to within the timeout."),
    "SignatureDoesNotMatch": (
        403,
        "The request signature we calculated does not match the signature you provided. Check your key and signing "
        "method.",
    ),
}


class S3Error(ServiceError):
    """An error that S3's clients know by its code.

    Args:
        code: S3's.
        message: in place of S3's own words.
        details: further elements of the XML.
        headers: of the reply.
    """

    def __init__(self, code: str, message: str = "", *, headers: tuple[tuple[str, str], ...] = (), **details: str):
        status, words = _ERRORS[code]
        super().__init__(code, message or words, status, details, headers)
