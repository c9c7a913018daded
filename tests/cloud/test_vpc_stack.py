"""The VPC: what its template lets through; stacks are created once, changed when asked to, and removed whole."""

from __future__ import annotations

import json

import msgspec
import pytest
from aws_account import Account

from headrace.cloud.stacks import Outcome, StackTemplate
from headrace.cloud.vpc_template import (
    EPHEMERAL,
    PortRange,
    Traffic,
    VpcOptions,
    host_ports,
    job_lines,
    own_ports,
    vpc_stack,
)
from headrace.errors import CloudError, UsageError
from headrace.instance.frameworks import tf_data_servers
from headrace.instance.launch_plan import (
    TORCH_DISTRIBUTED,
    DistributionPlan,
    GroupPlan,
    HostPlan,
    LaunchPlan,
    Ports,
    TfDataPlan,
)

CHOICES = [
    VpcOptions(),
    VpcOptions(
        traffic=Traffic.COLLECTIVES, zones=("us-east-1a", "us-east-1b"), encrypted=True, buckets=("my-a", "my-b")
    ),
    VpcOptions(cidr="10.9.0.0/27", traffic=Traffic.ALL, ports=own_ports(("6000-6010",))),
]


def largest_plan() -> LaunchPlan:
    """A job with all that listens somewhere, as often as the job file allows."""
    groups = tuple(
        GroupPlan(f"g{n}", "ml.c5.xlarge", (f"algo-{n}",), processes_per_host=1, feed_executors=1) for n in range(1, 6)
    )
    hosts = tuple(HostPlan(f"algo-{n}", f"g{n}", f"algo-{n}", "/opt/ml", "/run") for n in range(1, 6))
    worlds = tuple(DistributionPlan(TORCH_DISTRIBUTED, (group.name,)) for group in groups)
    return LaunchPlan(
        run_id="run", job_name="job", entry_point="train.py", groups=groups, hosts=hosts, leader="algo-1",
        completion_groups=("g1",), distributions=worlds, tf_data=TfDataPlan(("g1", "g2"), 64),
    )  # fmt: skip


@pytest.mark.promise(
    "cloud-reference", "hosts reach each other on all ports they need; others reach none; the way out is S3"
)
def test_every_port_at_which_hosts_meet_is_let_through() -> None:
    plan = largest_plan()
    listening = {
        *msgspec.structs.astuple(Ports()),
        *(server.port for server in tf_data_servers(plan)),
        *map(plan.master_port_of, plan.distributions),
    }
    assert len(listening) == 5 + 64 + 4
    assert listening == {port for each in host_ports() for port in range(each.first, each.last + 1)}


@pytest.mark.promise(
    "cloud-reference", "hosts reach each other on all ports they need; others reach none; the way out is S3"
)
@pytest.mark.promise("cloud", "a dry run changes nothing, and removing leaves nothing")
def test_a_network_is_made_that_leads_to_s3_only_and_removing_it_leaves_nothing(account: Account) -> None:
    before = account.inventory()
    plan = account.stacks.intend(vpc_stack(VpcOptions()), account.name, update=False)
    assert (plan.outcome, plan.found) == (Outcome.CREATED, None)
    assert account.inventory() == before
    outcome, found = account.stacks.create(vpc_stack(VpcOptions()), account.name)
    assert outcome is Outcome.CREATED
    assert any(line.startswith("CREATE_COMPLETE") for line in account.told)
    job, vpc = job_lines(found.outputs), {"Name": "vpc-id", "Values": [found.outputs["Vpc"]]}
    group = account.ec2.describe_security_groups(GroupIds=job["security_group_ids"])["SecurityGroups"][0]
    assert group["VpcId"] == found.outputs["Vpc"]
    rules = group["IpPermissions"]
    assert [(r["IpRanges"], r["Ipv6Ranges"], r["PrefixListIds"]) for r in rules] == [([], [], [])] * len(rules)
    assert {tuple(pair["GroupId"] for pair in rule["UserIdGroupPairs"]) for rule in rules} == {(group["GroupId"],)}
    open_ports = sorted((rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules)
    assert open_ports == sorted(("tcp", each.first, each.last) for each in host_ports())
    subnets = account.ec2.describe_subnets(SubnetIds=job["subnets"])["Subnets"]
    assert sorted(subnet["CidrBlock"] for subnet in subnets) == ["10.0.0.0/24", "10.0.1.0/24"]
    assert {subnet["AvailabilityZone"] for subnet in subnets} == {"us-east-1a", "us-east-1b"}
    (endpoint,) = account.ec2.describe_vpc_endpoints(Filters=[vpc])["VpcEndpoints"]
    assert (endpoint["VpcEndpointType"], endpoint["ServiceName"]) == ("Gateway", "com.amazonaws.us-east-1.s3")
    (table,) = account.ec2.describe_route_tables(RouteTableIds=endpoint["RouteTableIds"])["RouteTables"]
    routes = {route.get("GatewayId") for route in table["Routes"]}
    assert routes <= {"local", endpoint["VpcEndpointId"]}  # no way to the internet
    assert account.ec2.describe_internet_gateways()["InternetGateways"] == []
    made = account.inventory()
    _, resources = account.stacks.removable(account.name, "vpc")
    assert any(found.outputs["Vpc"] in line for line in resources)
    assert account.inventory() == made
    account.stacks.remove(account.name, "vpc")
    assert account.inventory() == before
    with pytest.raises(UsageError, match="there is no stack"):
        account.stacks.remove(account.name, "vpc")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (VpcOptions(traffic=Traffic.COLLECTIVES), {("tcp", EPHEMERAL.first, EPHEMERAL.last)}),
        (VpcOptions(encrypted=True), {("udp", 500, 500), ("50", None, None)}),
        (VpcOptions(ports=own_ports(("6000", "8000-8010", "7071"))), {("tcp", 6000, 6000), ("tcp", 8000, 8010)}),
    ],
)
def test_what_is_let_through_besides(options: VpcOptions, more: set[object]) -> None:
    assert rules_of(vpc_stack(options)) - rules_of(vpc_stack(VpcOptions())) == more


def rules_of(stack: StackTemplate) -> set[tuple[str, int | None, int | None]]:
    """What the group lets in; each rule is for members of the group itself."""
    own = {"Fn::GetAtt": ["SecurityGroup", "GroupId"]}
    found = [each["Properties"] for each in stack.document["Resources"].values() if each["Type"].endswith("Ingress")]
    assert all(each["SourceSecurityGroupId"] == each["GroupId"] == own for each in found)
    assert "SecurityGroupIngress" not in stack.document["Resources"]["SecurityGroup"]["Properties"]
    return {(each["IpProtocol"], each.get("FromPort"), each.get("ToPort")) for each in found}


def test_all_traffic_is_between_members_in_both_directions() -> None:
    stack = vpc_stack(VpcOptions(traffic=Traffic.ALL))
    assert rules_of(stack) == {("-1", None, None)}
    out = stack.document["Resources"]["EgressAll"]["Properties"]
    assert out["DestinationSecurityGroupId"] == out["GroupId"]


def test_the_way_to_s3_leads_to_the_buckets_that_are_named_only() -> None:
    endpoint = vpc_stack(VpcOptions(buckets=("mine",))).document["Resources"]["S3Endpoint"]["Properties"]
    (statement,) = endpoint["PolicyDocument"]["Statement"]
    names = [each["Fn::Sub"].rpartition(":")[2] for each in statement["Resource"]]
    assert names == ["mine", "mine/*"]
    assert not any("*" in action for action in statement["Action"])


@pytest.mark.parametrize(
    "options",
    [VpcOptions(cidr="10.0.0.1/16"), VpcOptions(cidr="10.0.0.0/28"), VpcOptions(cidr="10.0.0.0/8"),
     VpcOptions(cidr="x"), VpcOptions(zones=("a",)), VpcOptions(zones=("a", "a"))],
)  # fmt: skip
def test_networks_that_cannot_be_are_refused(options: VpcOptions) -> None:
    with pytest.raises(UsageError) as error:
        vpc_stack(options)
    assert error.value.hint


@pytest.mark.parametrize("text", ["0", "65536", "9-8", "x", "1-", "-1", "1-2-3", "٣"])
def test_ports_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        own_ports((text,))


def test_the_parts_of_a_vpc_fit_into_it() -> None:
    assert dict(vpc_stack(VpcOptions(cidr="10.9.0.0/27")).parameters)["Subnet2Cidr"] == "10.9.0.16/28"
    assert dict(vpc_stack(VpcOptions(cidr="10.9.0.0/18")).parameters)["Subnet2Cidr"] == "10.9.1.0/24"
    assert own_ports(("6000",)) == (PortRange("Port6000To6000", 6000, 6000, "the job's own programs"),)


@pytest.mark.promise("cloud", "what exists as asked is left alone; what differs is refused, or changed by `--update`")
def test_what_is_there_is_left_as_it_is_or_refused_or_changed(account: Account) -> None:
    _, first = account.stacks.create(vpc_stack(VpcOptions()), account.name)
    before = account.inventory()
    assert account.stacks.create(vpc_stack(VpcOptions()), account.name) == (Outcome.UNCHANGED, first)
    other = vpc_stack(VpcOptions(traffic=Traffic.COLLECTIVES))
    with pytest.raises(UsageError, match="resource IngressCollectives: is asked for"):
        account.stacks.create(other, account.name)
    with pytest.raises(UsageError, match=r"VpcCidr: '10.0.0.0/16' is there, '10.3.0.0/16' is asked for"):
        account.stacks.create(vpc_stack(VpcOptions(cidr="10.3.0.0/16")), account.name)
    changes = account.stacks.intend(other, account.name, update=True).differences
    assert changes == ("resource IngressCollectives: is asked for, and is not there",)
    assert account.inventory() == before
    outcome, second = account.stacks.create(other, account.name, update=True)
    assert (outcome, second.id, job_lines(second.outputs)) == (Outcome.UPDATED, first.id, job_lines(first.outputs))
    group = account.ec2.describe_security_groups(GroupIds=[second.outputs["SecurityGroup"]])["SecurityGroups"][0]
    assert (EPHEMERAL.first, EPHEMERAL.last) in {(r["FromPort"], r["ToPort"]) for r in group["IpPermissions"]}
    assert account.stacks.create(other, account.name)[0] is Outcome.UNCHANGED
    account.stacks.remove(account.name, "vpc")


@pytest.mark.promise("cloud", "what headrace did not make is never changed or removed")
def test_stacks_of_others_are_left_alone(account: Account) -> None:
    template = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket"}}}
    client = account.aws.client("cloudformation")
    client.create_stack(StackName=account.name, TemplateBody=json.dumps(template))
    before = account.inventory()
    for act in (account.stacks.remove, account.stacks.removable):
        with pytest.raises(UsageError, match="headrace did not make it"):
            act(account.name, "vpc")
    with pytest.raises(UsageError, match="headrace did not make it"):
        account.stacks.create(vpc_stack(VpcOptions()), account.name, update=True)
    assert account.inventory() == before
    client.delete_stack(StackName=account.name)
    made = vpc_stack(VpcOptions())
    account.stacks.create(made, account.name)
    with pytest.raises(UsageError, match="it is a vpc, not a role"):
        account.stacks.remove(account.name, "role")
    account.stacks.remove(account.name, "vpc")


@pytest.mark.promise("cloud", "a creation that fails is undone, and names the resource and AWS's reason")
def test_a_creation_that_fails_in_the_middle_is_undone_and_names_the_resource_and_the_reason(account: Account) -> None:
    before = account.inventory()
    wanted = vpc_stack(VpcOptions(zones=("us-east-1a", "us-east-1z")))
    reason = r"could not be created: Subnet2 \(AWS::EC2::Subnet\): .*us-east-1z"
    with pytest.raises(CloudError, match=reason) as error:
        account.stacks.create(wanted, account.name)
    assert error.value.hint == "nothing of it is left"
    assert any(line.startswith("CREATE_FAILED") for line in account.told)
    assert account.inventory() == before
    assert account.stacks.create(vpc_stack(VpcOptions()), account.name)[0] is Outcome.CREATED
    account.stacks.remove(account.name, "vpc")
    assert account.inventory() == before
