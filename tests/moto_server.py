"""moto's server, with what its CloudFormation lacks.

* Route tables, endpoints and policies are deleted with their stack.
* When a resource cannot be created, the others are deleted and the events say so, as AWS does with `OnFailure=DELETE`.
"""

from __future__ import annotations

import sys
from typing import Any

from moto.cloudformation.models import Event, Stack, cloudformation_backends
from moto.cloudformation.parsing import OutputMap
from moto.ec2.models import ec2_backends
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.vpcs import VPCEndPoint
from moto.iam.models import ManagedPolicy, iam_backends
from moto.server import main


def delete_table(_: type, resource_name: str, __: Any, account_id: str, region_name: str) -> None:
    ec2_backends[account_id][region_name].delete_route_table(resource_name)


def delete_endpoint(_: type, resource_name: str, __: Any, account_id: str, region_name: str) -> None:
    ec2_backends[account_id][region_name].vpc_end_points[resource_name].state = "deleted"


def delete_policy(_: type, resource_name: str, __: Any, account_id: str, region_name: str) -> None:
    iam_backends[account_id]["aws"].delete_policy(resource_name)


create_resources = Stack.create_resources


def create_or_undo(stack: Stack) -> None:
    try:
        create_resources(stack)
    except Exception as error:  # noqa: BLE001 (whatever moto raises is what AWS would answer for that resource)
        made = stack.resource_map._parsed_resources
        failed = next(name for name in stack.template_dict["Resources"] if name not in made)
        kind = stack.template_dict["Resources"][failed]["Type"]
        stack.events.append(Event(stack.stack_id, stack.name, failed, "", kind, "CREATE_FAILED", str(error), None))
        stack.output_map = OutputMap(stack.resource_map, {}, stack.stack_id)
        stack.delete()
        backend = cloudformation_backends[stack.account_id][stack.region_name]
        backend.deleted_stacks[stack.stack_id] = backend.stacks.pop(stack.stack_id)


RouteTable.delete_from_cloudformation_json = classmethod(delete_table)
ManagedPolicy.delete_from_cloudformation_json = classmethod(delete_policy)
VPCEndPoint.delete_from_cloudformation_json = classmethod(delete_endpoint)
Stack.create_resources = create_or_undo

if __name__ == "__main__":
    main(sys.argv[1:])
