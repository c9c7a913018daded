"""`headrace grid submit` against moto's Batch and S3: once, found again, and again only when that is asked for."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from click.testing import CliRunner

from batch_grids import SEED, exported, write_grid
from headrace.cli.commands.grid_batch import copy, submit
from headrace.cloud.aws_calls import Aws
from headrace.cloud.stacks import Outcome, Stacks
from headrace.errors import UsageError
from headrace.grid.batch.run_step import read_bundled_line
from headrace.grid.batch.submit_array import BatchExport, BatchSubmission, submit_array
from objectstore import ObjectStore

REGION = "us-east-1"


class Account:
    """An account with a job queue, whose jobs run in no container.

    Args:
        store: its buckets.
        folder: of its grids.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.aws = Aws(REGION)
        self.batch = self.aws.client("batch")
        self.queue = f"queue-{uuid.uuid4().hex[:8]}"
        self.grid = f"grid-{uuid.uuid4().hex[:8]}"
        roles = self.aws.client("iam")
        trust = {"Version": "2012-10-17", "Statement": []}
        role = roles.create_role(RoleName=self.queue, AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
        made = self.batch.create_compute_environment(
            computeEnvironmentName=self.queue, type="UNMANAGED", state="ENABLED", serviceRole=role
        )
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        self.batch.create_job_queue(jobQueueName=self.queue, state="ENABLED", priority=1, computeEnvironmentOrder=order)

    def file(self, lines: str = SEED, **other: Any) -> Path:
        batch = {"queue": self.queue, "region": REGION, "bundle": f"s3://{self.store.bucket}/grids"}
        return write_grid(self.folder, lines, batch=batch, name=self.grid, **other)

    def submit(self, export: BatchExport, **options: bool) -> BatchSubmission:
        return submit_array(export, self.aws, "", lambda line: None, **options)

    def jobs(self) -> list[dict[str, Any]]:
        filters = [{"name": "JOB_NAME", "values": ["*"]}]
        listed = self.batch.list_jobs(jobQueue=self.queue, filters=filters)["jobSummaryList"]
        return [each for each in listed if ":" not in each["jobId"]]  # moto lists children too


@pytest.fixture
def account(s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for uses in (False, True):
        if uses:
            made = Account(s3, tmp_path)
            yield made
            made.aws.close()
        data = json.dumps({"batch": {"use_docker": uses}}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{s3.endpoint}/moto-api/config", data=data)).close()


@pytest.mark.promise("grid-batch", "a grid is submitted to AWS Batch once")
def test_a_grid_is_submitted_once_and_found_by_whoever_submits_it_later(account: Account) -> None:
    export = exported(account.file())
    planned = account.submit(export, dry_run=True)
    assert (planned.submits, planned.registers, planned.job_id, planned.uploads[-1]) == (True, True, "", "grid.json")
    assert (account.jobs(), account.store.listed()) == ([], [])
    first = account.submit(export)
    assert first == BatchSubmission(export.names.job, first.job_id, "", planned.uploads, True, True)
    for name, content in export.bundle.items():
        assert account.store.get(f"grids/{export.names.job}/{name}") == content
    (job,) = account.batch.describe_jobs(jobs=[first.job_id])["jobs"]
    assert job["arrayProperties"]["size"] == 4
    again = account.submit(exported(account.file()))
    assert (again.submits, again.job_id, again.uploads) == (False, first.job_id, ())
    assert [each["jobId"] for each in account.jobs()] == [first.job_id]

    other = account.submit(exported(account.file("".join(SEED.splitlines(True)[:2]))))
    assert (other.submits, other.registers, other.job_id != first.job_id) == (True, False, True)
    found = account.batch.describe_job_definitions(jobDefinitionName=export.names.definition)["jobDefinitions"]
    assert [each["revision"] for each in found] == [1], "the definition of another grid of that name is the same"


def test_a_job_makes_the_copies_that_lines_read_and_no_line_begins_before(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    place, near = f"s3://{account.store.bucket}/data", f"s3://{account.store.bucket}/near"
    for name in ("data/one", "data/two"):
        account.store.put(name, name.encode())
    rules = {"data": {place: {"region": "eu-west-1", "gigabytes": 1}}, "copy_to": {REGION: near}}
    file = account.file(f"{REGION},{place}\n{REGION},{place}\n", placement=rules)
    export = exported(file)
    assert exported(file).files == export.files
    first = account.submit(export)
    (waits,) = account.batch.describe_jobs(jobs=[first.job_id])["jobs"]
    assert [each["jobId"] for each in waits["dependsOn"]] == [first.copies_id]
    assert (account.submit(export).submits, len(account.jobs())) == (False, 2)
    (copying,) = [each for each in account.jobs() if each["jobId"] == first.copies_id]
    assert copying["jobName"] == f"{first.job}-copies"
    (policy,) = export.roles.document["Resources"]["JobRole"]["Properties"]["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    allowed = {each["Sid"]: each["Resource"] for each in statements}
    assert allowed["Data"] == [f"arn:aws:s3:::{account.store.bucket}/data*"]
    assert allowed["Copies"] == [f"arn:aws:s3:::{account.store.bucket}/near/*"]

    with pytest.raises(UsageError, match=r"the copy of .*data in us-east-1 is not whole"):
        read_bundled_line(export.names.bundle, 0)
    runner = CliRunner()
    command = export.copying["containerOverrides"]["command"]
    assert command[:3] == ["headrace", "grid", "copy"]
    for copied in ("1.6e-08 GB copied now", "0 GB copied now"):
        ran = runner.invoke(copy, command[3:], standalone_mode=False)
        assert (ran.return_value, copied in ran.output) == (0, True), ran.output
    found = read_bundled_line(export.names.bundle, 1)
    read = found.job.inputs["train"].s3_data
    assert read.startswith(near)
    key = read.removeprefix(f"s3://{account.store.bucket}/")
    assert account.store.get(f"{key}/one") == b"data/one"

    account.store.put("data/two", b"other")
    ran = runner.invoke(copy, command[3:], standalone_mode=False)
    assert (ran.return_value, "has changed since the grid was exported" in ran.stderr) == (1, True), ran.output
    other = account.submit(exported(file))
    assert (other.submits, other.copies_id != first.copies_id) == (True, True)


def test_a_submission_that_failed_is_not_taken_for_one_that_goes_on(account: Account) -> None:
    export = exported(account.file(SEED.splitlines()[0] + "\n"))
    filters = [{"name": "JOB_NAME", "values": [export.names.job]}]
    asked = {"jobQueue": account.queue, "filters": filters}
    failed = {"jobSummaryList": [{"jobId": "a-b-c", "jobName": export.names.job, "status": "FAILED", "createdAt": 7}]}
    definition = {
        **export.definition, "jobDefinitionArn": "arn:aws:batch:us-east-1:1:job-definition/x:3", "revision": 3,
    }  # fmt: skip
    with Stubber(account.batch) as service:
        service.add_response("list_jobs", failed, asked)
        with pytest.raises(UsageError, match="was submitted before, and has failed: a-b-c"):
            account.submit(export)
        service.add_response("list_jobs", failed, asked)
        service.add_response("describe_job_definitions", {"jobDefinitions": [definition]})
        request = {**export.submission, "jobDefinition": definition["jobDefinitionArn"]}
        given = [*export.submission["containerOverrides"]["environment"], {"name": "GRID_RUNS", "value": "2"}]
        request["containerOverrides"] = {"environment": given}
        service.add_response("submit_job", {"jobName": export.names.job, "jobId": "d-e-f"}, request)
        again = account.submit(export, again=True)
    assert (again.submits, again.registers, again.job_id) == (True, False, "d-e-f")


def test_the_command_prints_the_job_and_json(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(account.file())
    runner = CliRunner()
    planned = runner.invoke(submit, [file, "--dry-run"])
    assert "4 lines would be submitted" in planned.output
    assert "nothing was changed" in planned.output
    done = json.loads(runner.invoke(submit, [file, "--output", "json"]).stdout)
    assert (done["lines"], done["submits"], done["queue"]) == (4, True, account.queue)
    assert runner.invoke(submit, [file]).stdout.strip() == done["job_id"]


def test_the_exported_roles_are_a_stack_that_can_be_created(account: Account) -> None:
    export = exported(account.file())
    assert export.roles is not None
    stacks = Stacks(account.aws.client("cloudformation"), lambda line: None, poll=0.05)
    outcome, found = stacks.create(export.roles, account.grid, update=False)
    assert outcome is Outcome.CREATED
    names = {arn.rpartition("/")[2] for arn in found.outputs.values()}
    assert names == {arn.rpartition("/")[2] for arn in (export.names.job_role, export.names.execution_role)}
    stacks.remove(account.grid, export.roles.kind)
