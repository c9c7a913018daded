"""Facts of AWS: the IAM actions that each thing needs, and what a bucket may be called.

Two parties act: the job's *role*, under which the service and the job's programs work, and the *submitter*, who creates
the job, looks at it and stops it. What only some jobs need has a list of its own. The rules of buckets
are those of AWS, read in October 2026. Pure.
"""

from __future__ import annotations

import re

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
