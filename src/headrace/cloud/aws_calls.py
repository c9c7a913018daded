"""Calls of AWS: clients by boto3, and every way in which a call can fail as an error with a hint.

Credentials, profile, region and addresses (`AWS_ENDPOINT_URL`) are found as by the AWS CLI. What is refused for want of
a right names the action: it follows from the call, not from AWS's words.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.aws_errors import AwsFault, fault_of
from headrace.catalog.prices import OFFER, Price, newest, product_rows
from headrace.errors import CloudError, HeadraceError, UsageError
from headrace.install_hint import install_hint

if TYPE_CHECKING:
    from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]


MISSING_OPTION = "--region, AWS_REGION, or `region` in a profile of ~/.aws/config"
_NO_CLIENT = "--region is a name such as eu-west-1; AWS_ENDPOINT_URL, when it is set, begins with https://"
_TRIES = 6
_HINTS = {
    AwsFault.BAD_KEYS: "AWS does not know these credentials: `aws sts get-caller-identity` shows which ones are used",
    AwsFault.EXPIRED: "the credentials have expired: log in again",
    AwsFault.LIMIT: "a limit of the account: remove what is not needed, or have it raised in Service Quotas",
    AwsFault.BUSY: "too many calls in this account just now: try again in a minute",
}


class Client(Protocol):
    """A client of boto3, of which the operations are methods."""

    meta: Any

    def __getattr__(self, operation: str) -> Any:
        """Returns an operation."""


class Aws:
    """An account in a region.

    Args:
        region: None for that of the environment or the profile.
        profile: of the AWS configuration; None for that of the environment.

    Raises:
        UsageError: boto3 is not installed, there is no such profile, or no region is known.
    """

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        try:
            import boto3  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError("boto3 is not installed", hint=install_hint("sagemaker")) from error
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped, unused-ignore]

        try:
            self._session = boto3.Session(profile_name=profile, region_name=region)
        except BotoCoreError as error:
            raise UsageError(str(error), hint="`aws configure list-profiles` names the profiles") from error
        found = self._session.region_name
        if not found:
            raise UsageError("no region is known", hint=MISSING_OPTION)
        self.region: str = found
        self._clients: dict[str, Client] = {}

    def client(self, service: str, region: str | None = None) -> Client:
        """Returns the client of a service.

        Args:
            service: boto3's name of it.
            region: another than this one's.

        Raises:
            UsageError: the region or the service's address is none, or the AWS configuration cannot be read.
        """
        from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped, unused-ignore]

        name = f"{service}/{region or self.region}"
        if name not in self._clients:
            config = Config(retries={"mode": "standard", "max_attempts": _TRIES}, connect_timeout=10, read_timeout=60)
            try:
                self._clients[name] = self._session.client(service, region_name=region or self.region, config=config)
            except (BotoCoreError, ValueError) as error:
                raise UsageError(f"no client of {service}: {error}", hint=_NO_CLIENT) from error
        return self._clients[name]

    @functools.cached_property
    def account(self) -> str:
        """Number of the account. It also tells whether AWS knows the credentials.

        Raises:
            CloudError, UsageError: it cannot be asked.
        """
        return str(call(self.client("sts"), "get_caller_identity")["Account"])

    def close(self) -> None:
        """Closes the connections."""
        for each in self._clients.values():
            each.close()
        self._clients.clear()


def call(client: Client, operation: str, **arguments: object) -> dict[str, Any]:
    """Calls an operation of AWS.

    Args:
        client: of its service.
        operation: boto3's name of it.
        arguments: its arguments.

    Raises:
        UsageError: there are no credentials.
        CloudError: it was refused, or there was no answer.
    """
    from botocore.exceptions import (  # type: ignore[import-untyped, unused-ignore]
        BotoCoreError,
        ClientError,
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped, unused-ignore]

    try:
        answer: dict[str, Any] = getattr(client, operation)(**arguments)
    except ClientError as error:
        raise _refused(client, error) from error
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        hint = "`aws configure`, AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError(f"no credentials of AWS: {error}", hint=hint) from error
    except (SSOError, TokenRetrievalError) as error:
        raise UsageError(f"no credentials of AWS: {error}", hint="`aws sso login`") from error
    except (HTTPClientError, ConnectionError) as error:
        hint = f"is {client.meta.endpoint_url} reachable, and the region's name right?"
        raise CloudError(f"no answer from AWS: {error}", hint) from error
    except ResponseParserError as error:
        hint = f"is {client.meta.endpoint_url} AWS, and no proxy between?"
        raise CloudError(f"{_action(client, operation)}: the answer cannot be read", hint) from error
    except BotoCoreError as error:
        raise CloudError(f"{_action(client, operation)}: {error}") from error
    return answer


def pages(client: Client, operation: str, **arguments: object) -> Iterator[dict[str, Any]]:
    """Yields all pages of a list. Arguments and errors are those of `call`."""
    token: dict[str, object] = {}
    while True:
        page = call(client, operation, **arguments, **token)
        yield page
        token = {name: page[name] for name in ("NextToken", "nextToken") if page.get(name)}
        if not token:
            return


def _refused(client: Client, error: ClientError) -> HeadraceError:
    fault = error.response.get("Error", {})
    code = str(fault.get("Code", ""))
    action = f"{_prefix(client)}:{error.operation_name}"
    said = f"{action} was refused ({code}): {fault.get('Message', '') or 'without a reason'}"
    return CloudError(said, _hint(code, action), code)


def _hint(code: str, action: str) -> str:
    fault = fault_of(code)
    if fault is AwsFault.DENIED:
        return f"these credentials lack the right {action}: have it added to their policy"
    return _HINTS.get(fault, "")


def _action(client: Client, operation: str) -> str:
    return f"{_prefix(client)}:{client.meta.method_to_api_mapping.get(operation, operation)}"


def _prefix(client: Client) -> str:
    """Returns the service as policies name it: that which signatures name, of all services that are used here."""
    return str(client.meta.service_model.signing_name)


API_REGION = "us-east-1"
"""The API is in few regions, and has the prices of all."""
_TRAINING = {"Type": "CONTAINS", "Field": "usagetype", "Value": "Train:ml."}
_PAGE = 100


def asked_prices(client: Client, regions: Sequence[str], read_on: str) -> tuple[Price, ...]:
    """Asks for the prices of training.

    Args:
        client: of ``pricing``.
        regions: of which; none for all.
        read_on: today, ISO 8601, which the source names.

    Raises:
        CloudError, UsageError: the API cannot be asked, or its answer is not a price list.
    """
    try:
        rows = [row for region in regions or ("",) for each in _products(client, region) for row in product_rows(each)]
        return newest(rows, read_on)
    except ValueError as error:
        raise CloudError(f"pricing:GetProducts: the answer cannot be read: {error}") from error


def _products(client: Client, region: str) -> Iterator[Any]:
    filters = [_TRAINING, *([{"Type": "EQUALS", "Field": "regionCode", "Value": region}] if region else [])]
    for page in pages(client, "get_products", ServiceCode=OFFER, Filters=filters, MaxResults=_PAGE):
        yield from map(json.loads, page.get("PriceList", ()))
