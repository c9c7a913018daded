"""What a training job on SageMaker needs to be allowed: the one list of IAM actions, by what they are for.

Two parties act: the job's *role*, under which the service and the job's programs work, and the *submitter*, who creates
the job, looks at it and stops it. What only some jobs need has a list of its own.
"""

from __future__ import annotations

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
