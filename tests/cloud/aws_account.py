"""An account of AWS: moto's server, and what is in it."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.client import BaseClient

from headrace.cloud.aws_calls import Aws
from headrace.cloud.stacks import Stacks
from objectstore import ObjectStore

REGION = "us-east-1"


@dataclass
class Account:
    """An account, and names that only this test knows.

    Attributes:
        aws: as headrace speaks to it.
        stacks: its stacks.
        told: the lines that were told.
        name: of a stack that is not there yet.
    """

    aws: Aws
    stacks: Stacks
    told: list[str]
    name: str

    @property
    def ec2(self) -> BaseClient:
        return self.aws.client("ec2")

    def inventory(self) -> dict[str, Any]:
        """All that a stack could leave behind: ids by kind."""
        ec2, iam = self.ec2, self.aws.client("iam")
        listed = self.aws.client("cloudformation").list_stacks()["StackSummaries"]
        return {
            "vpcs": ids(ec2.describe_vpcs()["Vpcs"], "VpcId"),
            "subnets": ids(ec2.describe_subnets()["Subnets"], "SubnetId"),
            "groups": ids(ec2.describe_security_groups()["SecurityGroups"], "GroupId"),
            "routes": ids(ec2.describe_route_tables()["RouteTables"], "RouteTableId"),
            "endpoints": ids(
                [e for e in ec2.describe_vpc_endpoints()["VpcEndpoints"] if e["State"] != "deleted"], "VpcEndpointId"
            ),
            "roles": ids(iam.list_roles()["Roles"], "RoleName"),
            "policies": ids(iam.list_policies(Scope="Local")["Policies"], "Arn"),
            "stacks": ids([each for each in listed if each["StackStatus"] != "DELETE_COMPLETE"], "StackId"),
        }


def ids(found: list[dict[str, Any]], key: str) -> set[str]:
    return {each[key] for each in found}


@functools.cache
def shared(_: str) -> Aws:
    """An account's clients, which cost more to make than most tests. A server has its own."""
    return Aws()


@pytest.fixture
def account(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    aws, told = shared(s3.endpoint), list[str]()
    yield Account(aws, Stacks(aws.client("cloudformation"), told.append, poll=0.05), told, f"t-{uuid.uuid4().hex[:8]}")
    for client in aws._clients.values():
        client.close()  # its connections; it can be used again
