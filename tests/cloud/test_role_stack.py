"""The role and the policy of who submits: what they allow, on what, and to whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_account import Account

from headrace.catalog import aws_facts
from headrace.cloud.role_template import Prefix, RoleOptions, job_lines, read_prefix, role_stack
from headrace.cloud.stacks import Outcome
from headrace.engines.sagemaker.sagemaker_job import plan_sagemaker_job
from headrace.errors import CloudError, UsageError
from headrace.job import Job
from headrace.runs import RunPaths

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/training:3"
SMALL = RoleOptions((read_prefix("s3://mine/jobs"),))
LARGE = RoleOptions(
    (read_prefix("s3://mine/jobs"), read_prefix("other")), (read_prefix("data/imagenet/"),), (IMAGE,), (KEY,), vpc=True
)
FOR_ALL = {
    *aws_facts.PUT_METRICS, *aws_facts.READ_METRICS, *aws_facts.ENTER_REGISTRY, *aws_facts.LIST_JOBS,
    *aws_facts.USE_NETWORK,
}  # fmt: skip


def documents(options: RoleOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The statements of the role, and of who submits."""
    resources = role_stack(options).document["Resources"]
    (policy,) = resources["Role"]["Properties"]["Policies"]
    submit = resources["SubmitPolicy"]["Properties"]["PolicyDocument"]
    return policy["PolicyDocument"]["Statement"], submit["Statement"]


def actions(statements: list[dict[str, Any]]) -> set[str]:
    return {action for each in statements for action in each["Action"]}


def objects(statements: list[dict[str, Any]], action: str) -> set[str]:
    """Where an action of S3 is allowed: what follows ``arn:...:s3:::``."""
    allowed = [each["Resource"] for each in statements if action in each["Action"]]
    return {place["Fn::Sub"].rpartition(":")[2] for places in allowed for place in places}


@pytest.mark.promise("cloud-reference", "role and policy allow the actions of one list, each on no more than is named")
def test_the_documents_are_the_one_list_of_actions() -> None:
    usual = {
        *aws_facts.READ_OBJECTS, *aws_facts.WRITE_OBJECTS, *aws_facts.REMOVE_OBJECTS, *aws_facts.LIST_BUCKET,
    }  # fmt: skip
    role = {*usual, *aws_facts.WRITE_LOGS, *aws_facts.PUT_METRICS, *aws_facts.PULL_IMAGE}
    role |= set(aws_facts.ENTER_REGISTRY)
    submit = {*usual, *aws_facts.CREATE_JOBS, *aws_facts.TAG_JOBS, *aws_facts.LIST_JOBS}
    submit |= {*aws_facts.PASS_ROLE, *aws_facts.READ_LOGS, *aws_facts.READ_TAGS, *aws_facts.READ_METRICS}
    assert tuple(map(actions, documents(SMALL))) == (role, submit)
    role |= {*aws_facts.USE_NETWORK, *aws_facts.USE_KEYS}
    submit |= set(aws_facts.USE_ENCRYPTED)
    assert tuple(map(actions, documents(LARGE))) == (role, submit)


@pytest.mark.promise("cloud-reference", "role and policy allow the actions of one list, each on no more than is named")
def test_a_job_that_uses_all_needs_exactly_what_the_documents_allow() -> None:
    job = Job(
        "j", source_dir="code", entry_point="train.py", instance_type="ml.m5.large", instance_count=2,
        inputs={"training": "s3://data/imagenet/train"}, role="arn:aws:iam::123456789012:role/r",
        output_path="s3://mine/jobs", checkpoint_s3_uri="s3://mine/jobs/kept", image_uri=IMAGE,
        subnets=["subnet-1"], security_group_ids=["sg-1"], volume_kms_key=KEY, output_kms_key=KEY,
        tags=[{"key": "team", "value": "vision"}], engines={"sagemaker": {"region": "us-east-1", "naming": "job"}},
    )  # fmt: skip
    needed = plan_sagemaker_job(job, RunPaths(Path("/runs/j-20261122-130000-00ff")), {}).submission.permissions
    for party, statements in zip(("role", "submitter"), documents(LARGE), strict=True):
        assert {action for each in needed[party] for action in each.actions} == actions(statements)


@pytest.mark.promise("cloud-reference", "role and policy allow the actions of one list, each on no more than is named")
@pytest.mark.parametrize("options", [SMALL, LARGE])
def test_nothing_is_allowed_on_everything_that_could_be_allowed_on_less(options: RoleOptions) -> None:
    for statement in (*documents(options)[0], *documents(options)[1]):
        assert not any("*" in action for action in statement["Action"])
        if "*" in statement["Resource"]:
            assert set(statement["Action"]) <= FOR_ALL


def test_objects_are_those_of_the_named_prefixes() -> None:
    for statements in documents(LARGE):
        assert objects(statements, "s3:PutObject") == {"mine/jobs/*", "other/*"}
        assert objects(statements, "s3:DeleteObject") == {"mine/jobs/*", "other/*"}
        assert objects(statements, "s3:GetObject") == {"mine/jobs/*", "other/*", "data/imagenet/*"}
        assert objects(statements, "s3:ListBucket") == {"mine", "other", "data"}


def test_images_and_keys_are_those_that_are_named() -> None:
    (small, _), (large, _) = documents(SMALL), documents(LARGE)
    (aws,) = (each["Resource"] for each in small if each["Sid"] == "Image")
    assert [place["Fn::Sub"].rpartition("/")[2] for place in aws] == ["pytorch-training", "tensorflow-training"]
    (own,) = (each["Resource"] for each in large if each["Sid"] == "Image")
    assert [p["Fn::Sub"].partition(":ecr:")[2] for p in own] == ["us-east-1:123456789012:repository/team/training"]
    assert [each["Resource"] for each in large if each["Sid"] == "Keys"] == [[KEY]]


@pytest.mark.parametrize(
    "uri", ["", "s3://", "B", "a", "my_bucket", "s3://mine/a*", "s3://mine/${x}", "https://mine/a"]
)
def test_what_is_no_bucket_is_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        read_prefix(uri)


def test_a_prefix_is_read_in_all_its_forms() -> None:
    assert {read_prefix(uri) for uri in ("s3://mine/a", "mine/a", "mine/a/")} == {Prefix("mine", "a/")}
    assert {read_prefix(uri) for uri in ("s3://mine", "mine", "s3://mine/")} == {Prefix("mine")}


def test_images_and_keys_that_are_none_are_refused() -> None:
    for wrong in (RoleOptions(SMALL.storage, images=("pytorch:1",)), RoleOptions(SMALL.storage, keys=("alias/a",))):
        with pytest.raises(UsageError) as error:
            role_stack(wrong)
        assert error.value.hint


def parsed(document: Any) -> dict[str, Any]:
    """A policy, which moto gives as a text where it came with a stack."""
    return yaml.safe_load(document) if isinstance(document, str) else document


def test_role_and_policy_are_made_for_sagemaker_and_removed(account: Account) -> None:
    before, iam = account.inventory(), account.aws.client("iam")
    outcome, found = account.stacks.create(role_stack(LARGE), account.name)
    assert outcome is Outcome.CREATED
    role = iam.get_role(RoleName=account.name)["Role"]
    assert job_lines(found.outputs) == {"role": role["Arn"]}
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert (trust["Principal"], trust["Action"]) == ({"Service": "sagemaker.amazonaws.com"}, "sts:AssumeRole")
    policy = parsed(iam.get_role_policy(RoleName=account.name, PolicyName="training")["PolicyDocument"])
    places = {place for each in policy["Statement"] for place in each["Resource"]}
    assert "arn:aws:s3:::mine/jobs/*" in places  # CloudFormation has put the ARNs together
    assert f"arn:aws:logs:*:{account.aws.account}:log-group:/aws/sagemaker/TrainingJobs:*" in places
    submit = iam.get_policy_version(PolicyArn=found.outputs["SubmitPolicy"], VersionId="v1")["PolicyVersion"]
    document = parsed(submit["Document"])
    (give,) = (each for each in document["Statement"] if "iam:PassRole" in each["Action"])
    assert give["Resource"] == [role["Arn"]]
    assert give["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    assert account.stacks.create(role_stack(LARGE), account.name)[0] is Outcome.UNCHANGED
    account.stacks.remove(account.name, "role")
    assert account.inventory() == before
    iam.create_role(RoleName=account.name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17"}))
    with pytest.raises(CloudError, match=r"could not be created: Role \(AWS::IAM::Role\): .*already exists"):
        account.stacks.create(role_stack(SMALL), account.name)  # somebody's role of that name is left alone
    assert account.inventory() == before | {"roles": before["roles"] | {account.name}}
    iam.delete_role(RoleName=account.name)
