"""Facts of AWS: the IAM actions that each thing needs, and what a bucket may be called.

Two parties act: the job's *role*, under which the service and the job's programs work, and the *submitter*, who creates
the job, looks at it and stops it. What only some jobs need has a list of its own. The rules of buckets
are those of AWS, read in October 2026. Pure.

AWS's own images of PyTorch and TensorFlow for training, by framework, version and region. Pure.

The tables hold facts of AWS: which versions there are for Python 3.10 and later, and which account keeps a region's
images. Their source is the table of the SageMaker Python SDK 2.257.7 (`image_uri_config`, read on 2026-11-22). An image
that is newer, or another one, is named by the job's `image_uri`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
"""Of CloudWatch Logs, where SageMaker writes what containers print."""
SERVICE = "sagemaker.amazonaws.com"
"""Who takes the role."""

READ_OBJECTS = ("s3:GetObject",)
PUT_OBJECTS = ("s3:PutObject",)
ABORT_UPLOADS = ("s3:AbortMultipartUpload",)
WRITE_OBJECTS = (*ABORT_UPLOADS, *PUT_OBJECTS)
REMOVE_OBJECTS = ("s3:DeleteObject",)
LIST_BUCKET = ("s3:ListBucket",)

WRITE_LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
PUT_METRICS = ("cloudwatch:PutMetricData",)
PULL_IMAGE = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
ENTER_REGISTRY = ("ecr:GetAuthorizationToken",)
USE_NETWORK = (
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
)  # fmt: skip
USE_KEYS = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey")

SUBMIT_JOBS = ("sagemaker:CreateTrainingJob", "sagemaker:DescribeTrainingJob")
STOP_JOBS = ("sagemaker:StopTrainingJob",)
CREATE_JOBS = (*SUBMIT_JOBS, *STOP_JOBS)
TAG_JOBS = ("sagemaker:AddTags",)
READ_TAGS = ("sagemaker:ListTags",)
LIST_JOBS = ("sagemaker:ListTrainingJobs",)
PASS_ROLE = ("iam:PassRole",)
READ_METRICS = ("cloudwatch:GetMetricStatistics",)
READ_LOGS = ("logs:DescribeLogStreams", "logs:GetLogEvents")
USE_ENCRYPTED = ("kms:Decrypt", "kms:GenerateDataKey")
"""To put and get objects that a key encrypts."""


def partition_of(region: str) -> str:
    """Returns the partition of AWS that a region is in, as ARNs begin with it.

    >>> partition_of("eu-west-1"), partition_of("cn-north-1")
    ('aws', 'aws-cn')
    """
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def registry_of(account: str, region: str) -> str:
    """Returns the registry of images of an account.

    >>> registry_of("123456789012", "cn-north-1")
    '123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn'
    """
    return f"{account}.dkr.ecr.{region}.amazonaws.com{'.cn' if partition_of(region) == 'aws-cn' else ''}"


ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):role/[\w+=,.@/-]{1,512}", re.ASCII)
"""The name of a role, with the account that has it."""

RULE = "3 to 63 lowercase letters, digits, dots and hyphens; a letter or digit at both ends"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_BEGINNINGS = ("xn--", "sthree-", "amzn-s3-demo-")
_ENDINGS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def why_no_bucket(name: str) -> str:
    """Returns why no bucket can have a name, as a predicate; empty when one can.

    >>> why_no_bucket("my-bucket"), why_no_bucket("10.0.0.1")
    ('', 'looks like an IP address')
    """
    if not _NAME.fullmatch(name):
        return f"must be {RULE}"
    if ".." in name or ".-" in name or "-." in name:
        return "has a dot beside a dot or a hyphen"
    if _ADDRESS.fullmatch(name):
        return "looks like an IP address"
    for text in (*_BEGINNINGS, *_ENDINGS):
        if (name.startswith if text in _BEGINNINGS else name.endswith)(text):
            return f"{'begins' if text in _BEGINNINGS else 'ends'} with {text!r}, which S3 keeps for itself"
    return ""


SOURCE = "the table of the SageMaker Python SDK 2.257.7, read on 2026-11-22"

VERSIONS: dict[str, dict[str, str]] = {
    "pytorch": {
        "2.0.0": "py310",
        "2.0.1": "py310",
        "2.1.0": "py310",
        "2.2.0": "py310",
        "2.3.0": "py311",
        "2.4.0": "py311",
        "2.5.1": "py311",
        "2.6.0": "py312",
        "2.7.1": "py312",
        "2.8.0": "py312",
    },
    "tensorflow": {
        "2.12.0": "py310",
        "2.13.0": "py310",
        "2.14.1": "py310",
        "2.16.2": "py310",
        "2.18.0": "py310",
        "2.19.0": "py312",
    },
}
"""Framework, version, and the Python in its image."""

MAIN_ACCOUNT = "763104351884"
MAIN_REGIONS = frozenset(
    (
        "ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2", "ca-central-1",
        "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1", "us-east-1", "us-east-2",
        "us-west-1", "us-west-2",
    )
)  # fmt: skip
OTHER_ACCOUNTS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}


class FrameworkImage(NamedTuple):
    """A framework's image, in every region.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        version: e.g. ``2.8.0``.
        python: e.g. ``py312``.
    """

    framework: str
    version: str
    python: str

    def uri(self, region: str, gpus: bool) -> str:
        """Returns the image's URI.

        Args:
            region: where the job runs; one of `known_regions`.
            gpus: the job has GPUs. All groups have one image: with GPUs, if one of them has some.

        Raises:
            KeyError: no account is known for the region.
        """
        account = MAIN_ACCOUNT if region in MAIN_REGIONS else OTHER_ACCOUNTS[region]
        kind = "gpu" if gpus else "cpu"
        return f"{registry_of(account, region)}/{self.framework}-training:{self.version}-{kind}-{self.python}"


def has_gpus(instance_type: str) -> bool:
    """Tells whether an instance type has GPUs of NVIDIA: its family begins with g or p."""
    return instance_type.removeprefix("ml.").startswith(("g", "p"))


def is_neuron(instance_type: str) -> bool:
    """Tells whether an instance type has Trainium devices, for which images are others."""
    return instance_type.removeprefix("ml.").startswith("trn")


def known_regions() -> tuple[str, ...]:
    """Returns the regions whose images are known, sorted."""
    return tuple(sorted(MAIN_REGIONS | OTHER_ACCOUNTS.keys()))


def find_image(framework: str, version: str) -> FrameworkImage | None:
    """Returns the image of a framework's version; None when none is known.

    Args:
        framework: ``pytorch`` or ``tensorflow``.
        version: ``2.8.0``, or ``2.8`` for the newest 2.8.

    >>> find_image("pytorch", "2.5")
    FrameworkImage(framework='pytorch', version='2.5.1', python='py311')
    """
    versions = VERSIONS[framework]
    full = (
        version
        if version in versions
        else next((listed for listed in reversed(versions) if listed.startswith(f"{version}.")), "")
    )
    return FrameworkImage(framework, full, versions[full]) if full else None
