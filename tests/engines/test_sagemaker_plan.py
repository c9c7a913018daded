"""What `headrace plan` shows of a job for SageMaker: the request, what is uploaded, what must be allowed."""

from __future__ import annotations

from sagemaker_jobs import ROLE, planned

from headrace.engines.documents import Permission

SPOT = {"use_spot_instances": True, "stopping_condition": {"max_run": 60, "max_wait": 120}}


def actions(permissions: tuple[Permission, ...], about: str = "") -> set[str]:
    return {action for each in permissions if about in each.resources[0] for action in each.actions}


def test_the_actions_are_those_that_a_job_needs_and_no_more() -> None:
    shown = planned().submission
    assert (shown.operation, shown.region, shown.request) == ("CreateTrainingJob", "eu-west-1", planned().request())
    submitter, role = shown.permissions["submitter"], shown.permissions["role"]
    assert actions(submitter) == {
        "sagemaker:CreateTrainingJob",
        "sagemaker:DescribeTrainingJob",
        "sagemaker:StopTrainingJob",
        "sagemaker:ListTrainingJobs",
        "iam:PassRole",
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetObject",
        "s3:ListBucket",
        "s3:PutObject",
        "logs:DescribeLogStreams",
        "logs:GetLogEvents",
        "cloudwatch:GetMetricStatistics",
    }
    assert not any(action.endswith("*") for party in (submitter, role) for action in actions(party))
    assert [each.resources for each in submitter if "iam:PassRole" in each.actions] == [(ROLE,)]
    assert actions(role, "s3:::bucket/data*") == {"s3:GetObject"}
    assert actions(role, "repository/pytorch-training") == {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:GetDownloadUrlForLayer",
    }
    assert not actions(role) & {"kms:Decrypt", "ec2:CreateNetworkInterface"}


def test_what_is_needed_for_several_things_stands_once() -> None:
    for party in planned().submission.permissions.values():
        shown = [(each.actions, each.resources) for each in party]
        assert len(set(shown)) == len(shown)
    listed = [each.why for each in planned().submission.permissions["submitter"] if each.actions == ("s3:ListBucket",)]
    assert listed == ["code and headrace; the record of the run; model and output"]


def test_a_network_keys_tags_and_checkpoints_need_more() -> None:
    network = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}
    keys = {"volume_kms_key": "arn:aws:kms:eu-west-1:123456789012:key/k", "output_kms_key": "alias/key"}
    tagged = {"tags": [{"key": "team", "value": "vision"}], "checkpoint_s3_uri": "s3://kept/checkpoints"}
    shown = planned(**SPOT, **network, **keys, **tagged).submission.permissions
    assert "sagemaker:AddTags" in actions(shown["submitter"])
    assert {"ec2:CreateNetworkInterface", "kms:Decrypt"} <= actions(shown["role"])
    assert actions(shown["role"], "s3:::kept/checkpoints/") == {
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetObject",
        "s3:PutObject",
    }


def test_arns_are_in_the_partition_of_the_region_and_a_registry_of_nobody_needs_no_right() -> None:
    shown = planned({"region": "cn-north-1"}).submission
    assert "arn:aws-cn:ecr:cn-north-1:727897471807:repository/pytorch-training" in str(shown.permissions)
    assert ".amazonaws.com.cn/" in str(shown.request)
    assert "arn:aws:" not in str(shown.permissions).replace(ROLE, "")
    assert not any(
        "ecr" in str(each) for each in planned(image_uri="registry.example.com/a:1").submission.permissions["role"]
    )
