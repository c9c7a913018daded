"""What AWS does and moto does not: stacks that take time, fail, roll back, refuse; with botocore's stub."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import ANY, Stubber

from headrace.cloud.aws_calls import Aws, call
from headrace.cloud.stacks import Outcome, Stacks
from headrace.cloud.vpc_template import VpcOptions, vpc_stack
from headrace.errors import CloudError, HeadraceError, UsageError

ARN = "arn:aws:cloudformation:us-east-1:123456789012:stack/net/1"
WANTED = vpc_stack(VpcOptions())
WHEN = datetime.datetime(2026, 1, 1)


class Service:
    """CloudFormation, of which a test says what it answers, call by call."""

    def __init__(self) -> None:
        self.client = boto3.client(
            "cloudformation", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b",
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.told: list[str] = []
        self.stacks = Stacks(self.client, self.told.append, poll=0.01, patience=5)

    def answers(self, operation: str, answer: dict[str, Any], expected: dict[str, Any] | None = None) -> None:
        self.stub.add_response(operation, answer, expected)

    def refuses(self, operation: str, code: str, message: str = "words of AWS") -> None:
        self.stub.add_client_error(operation, code, message)

    def absent(self) -> None:
        self.refuses("describe_stacks", "ValidationError", "Stack with id net does not exist")

    def is_in(self, status: str, *, template: bool = False, **more: Any) -> None:
        found = {
            "StackId": ARN, "StackName": "net", "CreationTime": WHEN, "StackStatus": status,
            "Tags": [{"Key": "headrace", "Value": "vpc"}], "Parameters": WANTED.parameter_list,
        } | more  # fmt: skip
        self.answers("describe_stacks", {"Stacks": [found]})
        if template:
            self.answers("get_template", {"TemplateBody": WANTED.text})

    def events(self, *rows: tuple[str, str, str], token: str = "") -> None:
        """The events of the stack, the oldest first."""
        made = [
            {
                "StackId": ARN, "StackName": "net", "Timestamp": WHEN, "EventId": f"{number}{name}{status}",
                "LogicalResourceId": name, "ResourceStatus": status, "ResourceStatusReason": why,
                "ResourceType": "AWS::CloudFormation::Stack" if name == "net" else f"AWS::EC2::{name}",
            }
            for number, (name, status, why) in enumerate(rows)
        ]  # fmt: skip
        self.answers("describe_stack_events", {"StackEvents": made[::-1]} | ({"NextToken": token} if token else {}))

    def accepts_creation(self) -> None:
        self.absent()
        self.answers("validate_template", {})
        expected = {
            "StackName": "net", "TemplateBody": WANTED.text, "Parameters": WANTED.parameter_list, "Capabilities": [],
            "OnFailure": "DELETE", "Tags": [{"Key": "headrace", "Value": "vpc"}], "ClientRequestToken": ANY,
        }  # fmt: skip
        self.answers("create_stack", {"StackId": ARN}, expected)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.stub.assert_no_pending_responses()
    made.client.close()


BEGUN = ("net", "CREATE_IN_PROGRESS", "User Initiated")
VPC = ("Vpc", "CREATE_COMPLETE", "")
LIMIT = ("Subnet1", "CREATE_FAILED", "The maximum number of subnets has been reached.")
CANCELLED = ("Subnet2", "CREATE_FAILED", "Resource creation cancelled")
FAILED = ("net", "CREATE_FAILED", "The following resource(s) failed to create: [Subnet1, Subnet2].")


def test_progress_is_told_once_and_waited_for(service: Service) -> None:
    service.accepts_creation()
    service.is_in("CREATE_IN_PROGRESS")
    service.events(BEGUN)
    service.is_in("CREATE_IN_PROGRESS")
    service.events(BEGUN, VPC)
    service.is_in("CREATE_COMPLETE")
    service.events(BEGUN, VPC, ("net", "CREATE_COMPLETE", ""))
    assert service.stacks.create(WANTED, "net")[0] is Outcome.CREATED
    assert [line.split()[:2] for line in service.told] == [
        ["CREATE_IN_PROGRESS", "net"], ["CREATE_COMPLETE", "Vpc"], ["CREATE_COMPLETE", "net"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "hint"),
    [("DELETE_COMPLETE", "nothing of it is left"), ("DELETE_FAILED", "`headrace cloud vpc remove net`"),
     ("ROLLBACK_FAILED", "`headrace cloud vpc remove net`")],
)  # fmt: skip
def test_the_resource_that_failed_first_is_named_when_all_has_been_undone(
    service: Service, last: str, hint: str
) -> None:
    service.accepts_creation()
    service.is_in("CREATE_FAILED")
    service.events(BEGUN, VPC, LIMIT, CANCELLED, FAILED)
    service.is_in(last)
    service.events(BEGUN, VPC, LIMIT, CANCELLED, FAILED)
    service.events(BEGUN, VPC, LIMIT, CANCELLED, FAILED)
    with pytest.raises(CloudError, match=r"Subnet1 \(AWS::EC2::Subnet1\): The maximum number of subnets") as error:
        service.stacks.create(WANTED, "net")
    assert hint in error.value.hint


def test_all_pages_of_events_are_read(service: Service) -> None:
    service.accepts_creation()
    service.is_in("DELETE_COMPLETE")
    for _ in range(2):
        service.events(CANCELLED, FAILED, token="next")
        service.events(BEGUN, LIMIT)
    with pytest.raises(CloudError, match="Subnet1"):
        service.stacks.create(WANTED, "net")


def test_who_creates_what_another_is_creating_waits_for_it(service: Service) -> None:
    service.absent()
    service.answers("validate_template", {})
    service.refuses("create_stack", "AlreadyExistsException")
    service.is_in("CREATE_IN_PROGRESS", template=True)
    service.events(BEGUN)
    service.is_in("CREATE_IN_PROGRESS")
    service.events(BEGUN, VPC)
    service.is_in("CREATE_COMPLETE")
    service.events(BEGUN, VPC)
    service.is_in("CREATE_COMPLETE", template=True)
    assert service.stacks.create(WANTED, "net")[0] is Outcome.UNCHANGED


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS"])
def test_what_is_left_of_a_failure_is_said_to_be_removed_first(service: Service, status: str) -> None:
    service.is_in(status, template=True)
    with pytest.raises(UsageError, match=status) as error:
        service.stacks.create(WANTED, "net", update=True)
    assert "`headrace cloud vpc remove net`" in error.value.hint


def test_a_change_that_fails_says_that_all_is_as_before(service: Service) -> None:
    old = ("Vpc", "CREATE_FAILED", "of an earlier time")
    service.is_in("CREATE_COMPLETE", Parameters=[{"ParameterKey": "VpcCidr", "ParameterValue": "10.9.0.0/16"}])
    service.answers("get_template", {"TemplateBody": WANTED.text})
    service.answers("validate_template", {})
    service.events(old)
    service.answers("update_stack", {"StackId": ARN})
    for _ in range(2):
        rows = (old, BEGUN, ("Subnet1", "UPDATE_FAILED", "in use"))
        if _ == 0:
            service.is_in("UPDATE_ROLLBACK_COMPLETE")
        service.events(*rows)
    with pytest.raises(CloudError, match=r"could not be changed: Subnet1 .*: in use") as error:
        service.stacks.create(WANTED, "net", update=True)
    assert error.value.hint == "it is as it was before"


def test_what_cannot_be_removed_is_named(service: Service) -> None:
    service.is_in("CREATE_COMPLETE")
    service.answers("describe_stack_resources", {"StackResources": []})
    service.events(BEGUN)
    service.answers("delete_stack", {}, {"StackName": ARN, "ClientRequestToken": ANY})
    service.is_in("DELETE_FAILED")
    in_use = ("SecurityGroup", "DELETE_FAILED", "resource sg-1 has a dependent object")
    service.events(BEGUN, in_use)
    service.events(BEGUN, in_use)
    with pytest.raises(CloudError, match=r"SecurityGroup .*: resource sg-1 has a dependent object") as error:
        service.stacks.remove("net", "vpc")
    assert "network interfaces" in error.value.hint


def test_waiting_ends_and_says_what_goes_on(service: Service) -> None:
    service.stacks = Stacks(service.client, service.told.append, poll=0, patience=0)
    service.accepts_creation()
    service.is_in("CREATE_IN_PROGRESS")
    service.events(BEGUN)
    with pytest.raises(CloudError, match="still CREATE_IN_PROGRESS") as error:
        service.stacks.create(WANTED, "net")
    assert "waits on" in error.value.hint


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AccessDenied", "lack the right cloudformation:DescribeStacks"),
        ("InvalidClientTokenId", "does not know these credentials"),
        ("ExpiredToken", "log in again"),
        ("LimitExceededException", "Service Quotas"),
        ("Throttling", "try again"),
    ],
)
def test_what_aws_refuses_is_told_with_its_words_and_what_to_do(service: Service, code: str, hint: str) -> None:
    service.refuses("describe_stacks", code)
    with pytest.raises(
        CloudError, match=rf"cloudformation:DescribeStacks was refused \({code}\): words of AWS"
    ) as error:
        service.stacks.find("net")
    assert hint in error.value.hint
    assert error.value.code == code


def no_credentials(patch: pytest.MonkeyPatch) -> HeadraceError:
    patch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    return failure(lambda aws: aws.account)


def no_answer(patch: pytest.MonkeyPatch) -> HeadraceError:
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return failure(lambda aws: call(aws.client("sts"), "get_caller_identity"))


def no_region(patch: pytest.MonkeyPatch) -> HeadraceError:
    patch.delenv("AWS_DEFAULT_REGION")
    return failure(lambda aws: aws.region)


def no_profile(patch: pytest.MonkeyPatch) -> HeadraceError:
    patch.setenv("AWS_PROFILE", "nobody")
    return failure(lambda aws: aws.region)


def failure(act: Callable[[Aws], object]) -> HeadraceError:
    def use() -> None:
        with closing(Aws()) as aws:
            act(aws)

    with pytest.raises(HeadraceError) as error:
        use()
    return error.value


@pytest.mark.parametrize(
    ("act", "kind", "hint"),
    [
        (no_credentials, UsageError, "aws configure"),
        (no_answer, CloudError, "reachable"),
        (no_region, UsageError, "--region"),
        (no_profile, UsageError, "list-profiles"),
    ],
)
def test_what_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[pytest.MonkeyPatch], HeadraceError],
    kind: type[HeadraceError],
    hint: str,
) -> None:
    monkeypatch.setattr("headrace.cloud.aws_calls._TRIES", 1)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    error = act(monkeypatch)
    assert type(error) is kind
    assert hint in error.hint


@pytest.mark.parametrize(("region", "address"), [("eu west", ""), ("eu-west-1", "foo")])
def test_a_region_or_an_address_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, region: str, address: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with closing(Aws(region)) as aws, pytest.raises(UsageError, match=address or region) as found:
        aws.client("ecr")
    assert "eu-west-1; AWS_ENDPOINT_URL" in found.value.hint
