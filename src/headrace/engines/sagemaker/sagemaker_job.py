"""What `plan` and `check` of the SageMaker engine return: a job, its launch plan, and what is asked of the service.

The launch plan is what the hosts start from, and not what they run by: the service gives the groups their hosts, so
each host works out its place from its own resourceconfig.json.

The CreateTrainingJob request is exactly what is sent: the one that `headrace.job` makes of a job, with three
differences. One more input channel, which all groups have, carries headrace, the code and the secret. The container
starts headrace's agent, which starts the job's programs. The name is the run's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import msgspec

from headrace.catalog import instance_types
from headrace.catalog.aws_facts import SOURCE, VERSIONS, find_image, has_gpus, is_neuron, known_regions
from headrace.engines.documents import Submission
from headrace.engines.planning.engine_job import EngineJob
from headrace.engines.planning.pack_files import pythons_of
from headrace.engines.planning.plan_artefacts import check_checkpoint_folder
from headrace.engines.planning.plan_channels import orders_of
from headrace.engines.remote_job import ranks_beside_workers, remote_plan
from headrace.engines.sagemaker.iam_actions import submission_of
from headrace.engines.sagemaker.sagemaker_ticket import training_job_name
from headrace.errors import EngineRefused, JobInvalid
from headrace.hosting.inputs.host_facts import with_data_workers
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.s3 import S3Access
from headrace.job import Job
from headrace.job.job import with_values
from headrace.job.model.fields import Record
from headrace.job.model.sagemaker_options import AUTO_WHEELS, SageMakerOptions, Tag
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import OPTIONS, TOOLKIT_ONLY, service_rules
from headrace.job.sagemaker.check import check_request, check_shape, create_training_job
from headrace.job.sagemaker.translation import (
    ALGORITHM,
    ARGUMENTS,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    put,
    unfit,
    write_request,
)
from headrace.runs import RunPaths
from headrace.runs.segments import attempt_place, joined

Request = dict[str, object]
CHANNEL = "headrace-job"
"""Input channel that carries headrace. Hosts write nothing into it: their own files are in `headrace`, beside it."""
CHANNEL_FOLDER = f"/opt/ml/input/data/{CHANNEL}"
"""Where containers see what carries headrace."""


@dataclass(frozen=True)
class Carrier:
    """What brings headrace into the containers, and what they start.

    Attributes:
        channel_uri: ``s3://`` URI of what becomes the channel: a prefix, or the manifest that names its objects.
        data_type: which of the two it is.
        entrypoint: program and arguments of the container, 1 to 100 texts of 256 characters at most.
        arguments: further arguments; containers get them behind those.
        submit_directory: the job's code as containers see it.
        environment: variables of the container beside the job's.
    """

    channel_uri: str
    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    data_type: Literal["S3Prefix", "ManifestFile"] = "S3Prefix"
    submit_directory: str = f"{CHANNEL_FOLDER}/code"
    environment: Mapping[str, str] = field(default_factory=dict)


def training_request(job: Job, name: str, image: str, carrier: Carrier) -> Request:
    """Returns the request.

    Args:
        job: the job, as it is submitted: its groups have the types that are asked for.
        name: TrainingJobName.
        image: URI of the container image.
        carrier: what brings headrace into the containers.

    Raises:
        JobInvalid: with all that SageMaker refuses, and all that is not in S3.
    """
    named = job.model_copy(update={"job_name": name, "image_uri": image})
    wrong = [*service_rules(job), *map(_with_hint, unfit(named, carrier.submit_directory))]
    request = write_request(named, carrier.submit_directory)
    put(request, ENTRYPOINT, list(carrier.entrypoint))
    algorithm = cast("dict[str, object]", request[ALGORITHM])
    algorithm.pop(ARGUMENTS[1], None)
    if carrier.arguments:
        put(request, ARGUMENTS, list(carrier.arguments))
    channels = cast("list[object]", request.get(CHANNELS, []))
    request[CHANNELS] = [*channels, _channel(job, carrier)]
    if carrier.environment:
        own = cast("Mapping[str, str]", request.get("Environment", {}))
        request["Environment"] = {**own, **carrier.environment}
    wrong += [] if wrong else [*check_request(request), *_of_groups(job)]
    if wrong:
        raise JobInvalid(tuple(job.problem(each.path, each.message, seen=each.seen, hint=each.hint) for each in wrong))
    return request


def own_hyperparameters(job: Job) -> dict[str, dict[str, str]]:
    """Returns the hyperparameters that groups have of their own, as the service would carry them, by group.

    The request has those of the job, for all hosts; headrace's channel carries these.
    """
    found = {}
    for group in job.groups:
        texts = job.hyperparameter_texts_of(group.instance_group_name)
        own = {name: texts[name] for name in group.hyperparameters}
        if own:
            found[group.instance_group_name] = own
    return found


def _of_groups(job: Job) -> Iterator[Finding]:
    """What no hyperparameter of the request could be is none of a group either."""
    own = own_hyperparameters(job)
    shape = create_training_job().members[HYPERPARAMETERS]
    for index, group in enumerate(job.groups):
        texts = own.get(group.instance_group_name, {})
        yield from check_shape(texts, shape, ("instance_groups", index, "hyperparameters"))


def _channel(job: Job, carrier: Carrier) -> Request:
    """Returns the channel that carries headrace: a folder, whatever mode the others have."""
    source: dict[str, object] = {
        "S3DataType": carrier.data_type,
        "S3Uri": carrier.channel_uri,
        "S3DataDistributionType": "FullyReplicated",
    }
    if any(channel.instance_groups is not None for channel in job.inputs.values()):
        source["InstanceGroupNames"] = [group.instance_group_name for group in job.groups]
    return {"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}, "InputMode": "File"}


def _with_hint(finding: Finding) -> Finding:
    if finding.path[0] == "inputs" and not finding.hint:
        hint = "copy it there: aws s3 cp --recursive FOLDER s3://bucket/prefix"
        return Finding(finding.path, finding.message, finding.seen, hint)
    return finding


RUN_TAG = "headrace:run"
"""Tag of a training job that is named after its job: the run's id."""
START = f"{CHANNEL_FOLDER}/headrace.zip"
"""What the containers start; see `host_start`."""
RECORD_VARIABLE = "HEADRACE_RECORD"
"""Variable of a container: the folder of the record of its attempt. An endpoint of ours lets it write there."""
TOOLKIT = ("train",)
"""What starts a program with SageMaker's own toolkit, in the image."""


@dataclass(frozen=True)
class SageMakerJob(EngineJob):
    """A job for Amazon SageMaker.

    Attributes:
        asked: the job as the user wrote it.
        region: where it runs.
        image: URI of the container image.
        attempt: how often it has been submitted, this time included.
    """

    ENGINE = "sagemaker"

    asked: Job
    region: str
    image: str
    attempt: int = 1

    @property
    def options(self) -> SageMakerOptions:
        """What the job says of the service."""
        return self.job.sagemaker

    @property
    def name(self) -> str:
        """TrainingJobName of this attempt."""
        by_job = self.options.naming == "job" and self.job.job_name
        return training_job_name(by_job or self.plan.run_id, self.attempt)

    @property
    def root(self) -> str:
        """The run's directory on this machine, whose path hosts have too."""
        return self.plan.hosts[0].record_dir

    @property
    def base(self) -> str:
        """``s3://`` URI below which everything of the engine's own lies."""
        return f"{(self.job.code_location or self.job.output_path or '').rstrip('/')}/headrace"

    @property
    def channel_uri(self) -> str:
        """Where this run's channel is staged: a prefix that ends in ``/``; one place for all attempts in a region."""
        return f"{self.base}/channels/{training_job_name(self.plan.run_id)}/"

    @property
    def record_place(self) -> str:
        """Place below which this attempt has its record: none takes the end of another one for its own."""
        place = self.job.record.uri if self.job.record is not None else ""
        return attempt_place(place, self.attempt) if place else ""

    @property
    def shared_uri(self) -> str:
        """Where what many runs have in common is staged, by the digest of its content."""
        return f"{self.base}/shared"

    @property
    def model_uri(self) -> str:
        """Where the service stores the model of this attempt."""
        return f"{(self.job.output_path or '').rstrip('/')}/{self.name}/output/model.tar.gz"

    @property
    def pythons(self) -> tuple[str, ...]:
        """Which Python the image may have."""
        return pythons_of(self.image, self.job.py_version)

    @property
    def access(self) -> S3Access:
        """How its buckets are reached."""
        return S3Access(self.options.profile or "", self.region, self.options.endpoint_of("s3") or "")

    @property
    def carrier(self) -> Carrier:
        """What brings headrace into the containers."""
        return Carrier(self.channel_uri, (self.options.python, START, self.plan.run_id))

    def at(self, attempt: int) -> SageMakerJob:
        """Returns the same run as the attempt of that number, from 1, submits it."""
        return replace(self, attempt=attempt)

    def after(self, cost: float) -> SageMakerJob:
        """Returns the same attempt behind others of the run that have cost so much, in the budget's currency."""
        budget = self.plan.budget
        if budget is None:
            return self
        plan = msgspec.structs.replace(self.plan, budget=msgspec.structs.replace(budget, before=cost))
        return replace(self, plan=plan)

    def request(self, carrier: Carrier | None = None) -> Request:
        """Returns the CreateTrainingJob request of this attempt.

        Args:
            carrier: what brings headrace into the containers; by default `carrier`.

        Raises:
            JobInvalid: SageMaker would refuse it.
        """
        job = self.job
        if self.options.naming == "job":  # whoever finds it there learns which run it is
            job = job.model_copy(update={"tags": (*job.tags, Tag(key=RUN_TAG, value=self.plan.run_id))})
        carrier = carrier or self.carrier
        if self.record_place:  # what it may write stands in its request
            record = joined(self.record_place, self.plan.run_id, "")  # with its slash: no run whose name begins so
            carrier = replace(carrier, environment={**carrier.environment, RECORD_VARIABLE: record})
        return training_request(job, self.name, self.image, carrier)

    @property
    def submission(self) -> Submission:
        """What is sent, stored and needed."""
        return submission_of(self)

    @property
    def limits(self) -> tuple[str, ...]:
        """Where the instances are, and what they are, in sentences."""
        at = self.options.endpoint_of("sagemaker")
        found = [f"region: {self.region}{f', asked at {at}' if at else ''}; image: {self.image}"]
        for group in self.plan.groups:
            count = len(group.hosts)
            shape = instance_types.shape(group.instance_type)
            size = "" if shape is None else f" ({shape.vcpus} vCPU, {shape.memory_gib:g} GiB"
            if shape is not None:
                size += f", {shape.gpus} GPU{'' if shape.gpus == 1 else 's'})" if shape.gpus else ")"
            found.append(f"{group.name}: {count} instance{'' if count == 1 else 's'} of {group.instance_type}{size}")
        return (*found, *self._more())

    def _more(self) -> Iterator[str]:
        if self.options.wheels == AUTO_WHEELS:
            yield f"libraries: wheels for Python {', '.join(self.pythons)} travel with the job, downloaded once by pip"
        if self.job.use_spot_instances:
            kept = "checkpoints are kept" if self.job.checkpoint_s3_uri else "no checkpoints are kept: it begins anew"
            yield f"spare capacity, which may be taken back; {kept}"
        if self.job.keep_alive_period_in_seconds:
            yield f"the instances stay, and cost, {self.job.keep_alive_period_in_seconds} s for a next job"


def plan_sagemaker_job(job: Job, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> SageMakerJob:
    """Returns the job with its launch plan and what is asked of the service. Sends nothing.

    Args:
        job: the job.
        paths: the run's directory; it need not exist.
        environment: variables in which a region may be named.

    Raises:
        JobInvalid: what this engine or the service does not take.
        EngineRefused: a folder for checkpoints that hosts cannot have; no region.
    """
    job.check_engine("sagemaker")
    check_checkpoint_folder(job, True)
    planned = planned_in(job, paths, region_of(job.sagemaker, environment))
    planned.request()
    return planned


def planned_in(job: Job, paths: RunPaths, region: str) -> SageMakerJob:
    """Returns the first attempt of a job in a region.

    Args:
        job: the job as the user wrote it.
        paths: the run's directory; it need not exist.
        region: where it runs.

    Raises:
        JobInvalid: it could not run there: a type without the price that its budget needs, for example.
    """
    there = _in_region(job, region)
    image = image_of(there, region)
    plan = _launch_plan(there, paths, region)
    return SageMakerJob(_with_record(there), plan, orders_of(there), job, region, image)


def _in_region(job: Job, region: str) -> Job:
    """Returns the job with its region, which the budget's prices are of."""
    changed: dict[str, object] = {}
    if job.budget is not None and job.budget.region != region:
        changed["budget"] = job.budget.model_copy(update={"region": region})
    if job.sagemaker.region != region:
        options = job.sagemaker.model_copy(update={"region": region})
        changed["engines"] = job.engines.model_copy(update={"sagemaker": options})
    return with_values(job, changed)


def region_of(options: SageMakerOptions, environment: Mapping[str, str]) -> str:
    """Returns the region of jobs with these options: their own, that of the environment, that of their profile.

    Raises:
        EngineRefused: none is named.
    """
    named = options.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    found = named or _region_of_profile(options.profile)
    if not found:
        hint = "write engines: {sagemaker: {region: eu-west-1}}, or --region, or set AWS_REGION"
        raise EngineRefused("no region is named", hint)
    return found


def image_of(job: Job, region: str) -> str:
    """Returns the URI of the job's image in a region.

    Raises:
        JobInvalid: AWS's image is not known.
    """
    framework = job.sagemaker.framework
    if job.image_uri or framework is None:
        return job.image_uri or ""
    types = [group.instance_type for group in job.groups]
    image = find_image(framework, job.framework_version or "")
    if image is None:
        known = ", ".join(VERSIONS[framework])
        hint = f"known are {known} ({SOURCE}); another image is named by image_uri"
        message = f"no image of {framework} is known for this version"
        raise JobInvalid((job.problem(("framework_version",), message, seen=repr(job.framework_version), hint=hint),))
    if job.py_version not in (None, image.python):
        message = f"the image of {framework} {image.version} has {image.python}"
        hint = "leave py_version out, or name another image by image_uri"
        raise JobInvalid((job.problem(("py_version",), message, seen=repr(job.py_version), hint=hint),))
    neuron = next((name for name in types if is_neuron(name)), "")
    if neuron or region not in known_regions():
        where = f"for {neuron}" if neuron else f"in {region}"
        hint = "name the image by image_uri"
        message = f"no image of {framework} is known {where}"
        raise JobInvalid((job.problem((*OPTIONS, "framework"), message, seen=repr(framework), hint=hint),))
    return image.uri(region, any(map(has_gpus, types)))


def _region_of_profile(profile: str | None) -> str | None:
    """Returns the region of a profile in AWS's own configuration; None where there is none, or nothing to read it."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        return None
    try:
        found = Session(profile=profile).get_config_variable("region")
    except BotoCoreError as error:
        raise EngineRefused(str(error), "name the region: engines.sagemaker.region") from error
    return str(found) if found else None


def _with_record(job: Job) -> Job:
    """Returns the job with a place for the record of its run: the hosts reach no other."""
    if job.record is not None:
        return job
    place = f"{(job.code_location or job.output_path or '').rstrip('/')}/headrace/runs"
    return job.model_copy(update={"record": Record(uri=place)}) if place.startswith("s3://") else job


def _launch_plan(job: Job, paths: RunPaths, region: str) -> LaunchPlan:
    if any(world.kind in TOOLKIT_ONLY for world in job.distributions):
        job = job.model_copy(update={"distribution": (), "command": TOOLKIT, "entry_point": ""})
    plan = remote_plan(job, paths, "", own_trees=True, options=job.sagemaker)
    plan = msgspec.structs.replace(plan, region=region)
    shapes = {group.name: instance_types.shape(group.instance_type) for group in plan.groups}
    cpus = {name: shape.vcpus for name, shape in shapes.items() if shape is not None}
    ranks = {name: each for name, each in ranks_beside_workers(job).items() if name in cpus}
    return with_data_workers(plan, cpus, ranks)
