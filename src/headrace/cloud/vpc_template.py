"""The network of jobs on SageMaker: a VPC that nothing outside can reach and that leads to S3 only.

* Two subnets in two availability zones, so that the service has a choice. All hosts of a job are in one of them.
* A security group whose members reach each other on headrace's own ports (`port_ranges`). Nothing else reaches them.
* A gateway endpoint of S3 in the route table of both subnets. There is no internet gateway and no NAT.

Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml

from headrace.catalog.aws_facts import why_no_bucket
from headrace.cloud.stacks import Document, StackTemplate
from headrace.errors import CloudError, UsageError
from headrace.instance.launch_plan import Ports

MOST_TF_WORKERS = 64
"""Of tf.data.service on a host, as the job file allows."""
MOST_WORLDS = 5
"""Distributions of a job: each has an instance group, of which there are five."""
LAST_PORT = 65535


@dataclass(frozen=True)
class PortRange:
    """TCP ports from `first` to `last`.

    Attributes:
        name: letters and digits; different for each range of a firewall.
        first, last: the ports, both included.
        purpose: who listens there, for people.
    """

    name: str
    first: int
    last: int
    purpose: str

    def is_within(self, other: PortRange) -> bool:
        """Tells whether another range has all ports of this one."""
        return other.first <= self.first and self.last <= other.last


EPHEMERAL = PortRange("Collectives", 32768, 60999, "NCCL, Gloo, MPI: ports that Linux chooses")
"""What `net.ipv4.ip_local_port_range` is unless somebody has changed it."""


def host_ports() -> tuple[PortRange, ...]:
    """Returns all ports on which some host of a job listens for the others."""
    ports = Ports()
    return (
        PortRange("Control", ports.control, ports.control, "leader"),
        PortRange("Feed", ports.feed, ports.feed, "feed servers"),
        PortRange("TfData", ports.tf_data, ports.tf_data + MOST_TF_WORKERS, "tf.data.service"),
        PortRange("Master", ports.master, ports.master + MOST_WORLDS - 1, "torch.distributed"),
        PortRange("TfConfig", ports.tf_config, ports.tf_config, "MultiWorkerMirroredStrategy"),
    )


def own_ports(given: tuple[str, ...]) -> tuple[PortRange, ...]:
    """Returns ports of the user's own programs.

    Args:
        given: each a port, or a range: ``6000`` or ``6000-6010``.

    Raises:
        UsageError: one of them is neither.

    >>> own_ports(("6000-6010",))[0].last
    6010
    """
    found = []
    for port in dict.fromkeys(given):
        begin, dash, end = port.partition("-")
        numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in (begin, end if dash else begin)]
        if not 1 <= numbers[0] <= numbers[1] <= LAST_PORT:
            raise UsageError(f"--port {port}: not a port, nor a range of ports", hint="e.g. --port 6000-6010")
        name = f"Port{numbers[0]}To{numbers[1]}"
        found.append(PortRange(name, numbers[0], numbers[1], "the job's own programs"))
    return tuple(found)


KIND = "vpc"
_TEMPLATE = Path(__file__).with_name("vpc.yaml")
DEFAULT_CIDR = "10.0.0.0/16"
_WIDEST, _NARROWEST, _USUAL = 16, 28, 24  # prefix lengths: what AWS allows, and that of a subnet of 251 addresses
_ESP, _IKE = "50", 500  # the protocol and the port of IPsec, by which SageMaker encrypts between instances

S3_ACTIONS = (
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
    "s3:GetBucketLocation",
    "s3:GetObject",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
"""What may pass the endpoint when it leads to some buckets only. What each role may do is less, and is the role's."""


class Traffic(str, Enum):
    """What hosts may send each other."""

    HEADRACE = "headrace"  # headrace's own ports
    COLLECTIVES = "collectives"  # and those that NCCL, Gloo and MPI choose
    ALL = "all"  # everything, as EFA needs it


@dataclass(frozen=True)
class VpcOptions:
    """What can be chosen.

    Attributes:
        cidr: addresses of the VPC, /16 to /27.
        zones: two availability zones; empty for the first two of the region.
        traffic: what hosts may send each other.
        ports: ports of the job's own programs.
        encrypted: jobs have `encrypt_inter_container_traffic`.
        buckets: the only buckets that the way to S3 leads to; empty for all.
    """

    cidr: str = DEFAULT_CIDR
    zones: tuple[str, ...] = ()
    traffic: Traffic = Traffic.HEADRACE
    ports: tuple[PortRange, ...] = ()
    encrypted: bool = False
    buckets: tuple[str, ...] = ()


def vpc_stack(options: VpcOptions) -> StackTemplate:
    """Returns the stack of a VPC.

    Raises:
        UsageError: addresses, zones or buckets that cannot be.
    """
    for name in options.buckets:
        if why := why_no_bucket(name):
            raise UsageError(f"--bucket {name}: {why}", hint="the name alone, e.g. --bucket my-bucket")
    vpc, subnets = _networks(options.cidr)
    if options.zones and len(set(options.zones)) != 2:
        raise UsageError("--zone: name two different availability zones, or none", hint="--zone us-east-1a --zone ...")
    zones = options.zones or ("", "")
    parameters = {"VpcCidr": vpc}
    parameters |= {f"Subnet{number}Cidr": cidr for number, cidr in enumerate(subnets, 1)}
    parameters |= {f"Zone{number}": zone for number, zone in enumerate(zones, 1)}
    return StackTemplate(KIND, _document(options), parameters)


def job_lines(outputs: Mapping[str, str]) -> dict[str, object]:
    """Returns the keys of a job file for a job in the VPC.

    Args:
        outputs: those of the stack.

    Raises:
        CloudError: they are not those of such a stack.
    """
    if missing := {"Subnet1", "Subnet2", "SecurityGroup"} - outputs.keys():
        raise CloudError(f"the stack lacks the outputs {', '.join(sorted(missing))}", "remove it and create it again")
    return {"subnets": [outputs["Subnet1"], outputs["Subnet2"]], "security_group_ids": [outputs["SecurityGroup"]]}


def _networks(cidr: str) -> tuple[str, tuple[str, str]]:
    """Returns the addresses of the VPC, and the first two parts of them."""
    try:
        vpc = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise UsageError(f"--cidr {cidr}: {error}", hint=f"e.g. --cidr {DEFAULT_CIDR}") from error
    if not _WIDEST <= vpc.prefixlen < _NARROWEST:
        raise UsageError(f"--cidr {cidr}: a VPC of two subnets is /16 to /27", hint=f"e.g. --cidr {DEFAULT_CIDR}")
    parts = vpc.subnets(new_prefix=max(vpc.prefixlen + 1, _USUAL))
    return str(vpc), (str(next(parts)), str(next(parts)))


def _document(options: VpcOptions) -> Document:
    document: Document = yaml.safe_load(_TEMPLATE.read_text(encoding="utf-8"))
    resources = document["Resources"]
    endpoint = resources.pop("S3Endpoint")
    if options.buckets:
        arns = [f"arn:${{AWS::Partition}}:s3:::{name}{rest}" for name in options.buckets for rest in ("", "/*")]
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": list(S3_ACTIONS),
            "Resource": [{"Fn::Sub": arn} for arn in arns],
        }
        endpoint["Properties"]["PolicyDocument"] = {"Version": "2012-10-17", "Statement": [statement]}
    document["Resources"] = {**resources, **_rules(options), "S3Endpoint": endpoint}
    return document


def _rules(options: VpcOptions) -> Document:
    """Returns what hosts may send each other, as resources."""
    if options.traffic is Traffic.ALL:
        every: Document = {"IpProtocol": "-1", "Description": "all traffic between hosts, as EFA needs it"}
        out = {"GroupId": _group_id(), "DestinationSecurityGroupId": _group_id(), **every}
        return {
            "EgressAll": {"Type": "AWS::EC2::SecurityGroupEgress", "Properties": out},
            "IngressAll": _ingress(every),
        }
    usual = (*host_ports(), EPHEMERAL) if options.traffic is Traffic.COLLECTIVES else host_ports()
    more = (each for each in options.ports if not any(each.is_within(other) for other in usual))
    rules = {
        f"Ingress{each.name}": _ingress(
            {"IpProtocol": "tcp", "FromPort": each.first, "ToPort": each.last, "Description": each.purpose}
        )
        for each in (*usual, *more)
    }
    if options.encrypted:
        ike: Document = {"IpProtocol": "udp", "FromPort": _IKE, "ToPort": _IKE, "Description": "IPsec: keys"}
        rules["IngressIpsecKeys"] = _ingress(ike)
        rules["IngressIpsecTraffic"] = _ingress({"IpProtocol": _ESP, "Description": "IPsec: traffic"})
    return rules


def _ingress(rule: Document) -> Document:
    properties = {"GroupId": _group_id(), "SourceSecurityGroupId": _group_id(), **rule}
    return {"Type": "AWS::EC2::SecurityGroupIngress", "Properties": properties}


def _group_id() -> Document:
    return {"Fn::GetAtt": ["SecurityGroup", "GroupId"]}
