"""The shape of a job: its keys and the type of each. Rules between keys are in `rules`.

`JobFields` is the whole job as data; `headrace.job.Job` adds what follows from it. Larger parts have modules of their
own: `groups`, `channels`, `distribution`, `engine_options`, and `platform_options` for what only SageMaker acts on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from headrace.catalog.prices import DEFAULT_REGION
from headrace.job.model import field_types, path_types, platform_options
from headrace.job.model.channels import ShuffleConfig, TrainingInput
from headrace.job.model.distribution import Distribution
from headrace.job.model.frozen_model import Part
from headrace.job.model.groups import InstanceGroup, Readiness
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.model.local_options import LocalOptions
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.job.model.slurm_options import SlurmOptions

__all__ = [
    "Budget",
    "Completion",
    "DataService",
    "Distribution",
    "Feed",
    "FeedHosts",
    "InstanceGroup",
    "JobFields",
    "LocalOptions",
    "Readiness",
    "Record",
    "Retry",
    "ShuffleConfig",
    "StoppingCondition",
    "TfData",
    "TrainingInput",
]


class Engines(Part):
    """Options of each engine; the rest of the job is the same everywhere.

    Attributes:
        local: one machine plays all hosts.
        slurm: a node of a Slurm cluster is a host.
        kubernetes: a pod of a Kubernetes cluster is a host.
        sagemaker: an instance of Amazon SageMaker is a host.
    """

    local: LocalOptions = LocalOptions()
    slurm: SlurmOptions | None = None
    kubernetes: KubernetesOptions | None = None
    sagemaker: SageMakerOptions | None = None


class FeedHosts(Part):
    """How many hosts of data workers serve, as the ranks need them, while the job runs.

    Attributes:
        min: hosts that serve from the start and always.
        max: hosts that serve at most; None means all instances of the groups.
        idle_after: seconds for which fewer must have done before a host leaves.
    """

    min: field_types.Hosts
    max: field_types.Hosts | None = None
    idle_after: field_types.Seconds = 30.0


class Feed(Part):
    """headrace's data workers.

    Attributes:
        enabled: whether they are started.
        workers_per_host: processes a host, or ``auto``: what the training ranks leave of the cores.
        workers: hosts that join and leave while the job runs; None means that all instances of the groups serve.
    """

    enabled: field_types.Flag
    workers_per_host: field_types.Workers = "auto"
    workers: FeedHosts | None = None


class TfData(Part):
    """TensorFlow's own data service, tf.data.service, which headrace starts, watches and stops.

    Attributes:
        enabled: whether its servers are started.
        workers_per_host: tf.data workers a host, 1 to 64; each uses all CPUs of its host, so one is mostly enough.
        fault_tolerant: whether the dispatcher keeps its state on disk, from which it goes on after a crash.
        worker_timeout: seconds of silence after which the dispatcher counts a worker as missing; None: TensorFlow's.
        job_gc_timeout: seconds after which a dataset that is no longer read is dropped; None: TensorFlow's.
        job_gc_check_interval: seconds between the checks for that; None: TensorFlow's.
        open_ports: whether its servers may listen on all addresses of a machine that others use too. They know no
            authentication: who reaches a port reads and writes the user's files.
    """

    enabled: field_types.Flag
    workers_per_host: field_types.TfWorkers = 1
    fault_tolerant: field_types.Flag = True
    worker_timeout: field_types.Seconds | None = None
    job_gc_timeout: field_types.Seconds | None = None
    job_gc_check_interval: field_types.Seconds | None = None
    open_ports: field_types.Flag = False


class DataService(Part):
    """Where batches are prepared; by one data service at most.

    Attributes:
        feed: headrace's own.
        tf_data: TensorFlow's.
        instance_groups: groups whose hosts run data workers; may be left out when the job has one group. The first
            host of the first one has the dispatcher of tf.data.service.
    """

    feed: Feed | None = None
    tf_data: TfData | None = None
    instance_groups: field_types.GroupNames | None = None


class Completion(Part):
    """When the job has succeeded, and when it fails because it is stalled.

    Attributes:
        instance_groups: groups whose programs must all exit 0. They run the entry point. None means the
            distributions' groups, else all groups that run the entry point.
        stall_after: seconds without any output, metric or delivered batch after which the job fails; None means never.
    """

    instance_groups: field_types.GroupNames | None = None
    stall_after: field_types.Seconds | None = None


class StoppingCondition(Part):
    """When the job is stopped.

    Attributes:
        max_run: seconds that it may run, 1 to 28 days.
        max_wait: seconds to wait for spot capacity and run, at least `max_run`; on SageMaker only.
        max_pending_time: seconds to wait for capacity, 30 minutes to 28 days; on SageMaker only.
    """

    max_run: field_types.MaxRun = field_types.MAX_RUN_DEFAULT
    max_wait: field_types.MaxWait | None = None
    max_pending_time: field_types.MaxPending | None = None


class Budget(Part):
    """What the job may cost, by the list prices of its instance types; it is stopped when it has cost more.

    Attributes:
        max_cost: USD, all attempts together, e.g. ``25`` or ``25.00 USD``.
        region: whose prices are taken.
    """

    max_cost: field_types.Amount
    region: field_types.PricedRegion = DEFAULT_REGION


class Retry(Part):
    """What happens after a failure.

    Attributes:
        attempts: how often the job is started again, with its checkpoints; 1 to 30.
        on: after which failures: ``infrastructure``: a lost host or agent, as SageMaker does it; ``any``: a program
            that failed too. The latter is headrace's own.
    """

    attempts: field_types.Attempts
    on: field_types.RetryOn = "infrastructure"


class Record(Part):
    """Where else the record of the run is kept, while it grows and later; `headrace fetch` brings it from there.

    Attributes:
        uri: ``s3://bucket/prefix``; a run has a folder there, by its id.
        interval: seconds between two requests that store what is new; 1 to 3600.
    """

    uri: path_types.RecordPlace
    interval: field_types.RecordInterval = 3.0


def _one_or_more(value: object) -> object:
    """One distribution is written as itself, several as a list."""
    return (
        (value,)
        if isinstance(value, (Mapping, Distribution))
        else field_types.as_tuple(value, "a mapping, or a list of them")
    )


class _Engines(Engines):
    # Other keys are the names of engines that others have installed (`job_rules.other_engines`); these check their own.
    model_config = ConfigDict(frozen=True, extra="allow")


class JobFields(Part):
    """A job as data, in the order of the job file. See `headrace.job.Job`.

    Attributes:
        job_name: name of the training job.
        source_dir: folder or archive with the code; without it the entry point is a script, which alone is copied.
        entry_point: script inside `source_dir`, ``-m`` and a module, or name of the package that `source_dir` is.
        command: program and arguments, instead of `entry_point`.
        dependencies: files and folders that are put beside the code.
        requirements: file of packages inside `source_dir`; by default its ``requirements.txt``, if there.
        hyperparameters: become the program's arguments.
        hyperparameters_as: ``file`` gives the program no arguments, which everybody on its machine may read.
        environment: variables of every program.
        instance_groups: groups of machines.
        instance_type: the one type of machine of a job without groups.
        instance_count: how many machines, in a job without groups.
        input_mode: of the channels that have none of their own.
        inputs: channels; a path is short for a channel that is nothing else.
        distribution: how ranks are started, and on which groups; one mapping, or a list of them.
        data_service: which groups prepare batches.
        completion: which groups decide that the job has succeeded.
        stopping_condition: time limits.
        budget: what the job may cost.
        retry: whether a failed job is started again.
        checkpoint_s3_uri: where checkpoints are kept: ``s3://`` URI, ``file://`` URI or path.
        checkpoint_local_path: folder inside the instance that is kept there.
        output_path: where model and output go: ``s3://`` URI, ``file://`` URI or path; by default the run's folder.
        earlier_output: what becomes of the model and output that an earlier run of the name has left there.
        keep: places outside of these folders, which go with the output: paths on the host or of its working directory.
        record: where else the record of the run is kept.
        encrypt_inter_container_traffic: whether feed connections between hosts are under TLS, as control always is.
        engines: options of the engines.
        image_uri: container image.
        role: ARN of the role under which the job runs.
        framework_version: version of the framework in the image.
        py_version: Python version in the image.
        volume_size: gigabytes of each instance's volume.
        volume_kms_key: key of the volumes.
        output_kms_key: key of the output.
        code_location: where the code is uploaded.
        subnets: subnets of the instances.
        security_group_ids: security groups of the instances.
        enable_network_isolation: whether instances reach nothing but each other.
        use_spot_instances: whether spare capacity is used.
        keep_alive_period_in_seconds: how long instances are kept for a next job.
        training_plan: ARN of reserved capacity.
        metric_definitions: figures to be found in the logs, by name and regular expression.
        tags: labels of the job.
        request_extras: members of a CreateTrainingJob request that no other key holds; they go back into the request.
    """

    job_name: field_types.JobName
    source_dir: path_types.SourceDir = ""
    entry_point: path_types.EntryPoint = ""
    command: field_types.Command = ()
    dependencies: path_types.Dependencies = ()
    requirements: path_types.Requirements | None = None
    hyperparameters: Annotated[
        dict[field_types.HyperparameterKey, field_types.HyperparameterValue], field_types.AsMapping
    ] = Field(default_factory=dict)
    hyperparameters_as: field_types.HyperparametersAs = "arguments"
    environment: Annotated[dict[field_types.VariableName, field_types.VariableValue], field_types.AsMapping] = Field(
        default_factory=dict
    )
    instance_groups: Annotated[tuple[InstanceGroup, ...], field_types.AsList] = ()
    instance_type: field_types.InstanceType | None = None
    instance_count: field_types.InstanceCount | None = None
    input_mode: field_types.InputMode = "File"
    inputs: Annotated[dict[field_types.ChannelName, TrainingInput], field_types.AsMapping] = Field(default_factory=dict)
    distribution: Annotated[tuple[Distribution, ...], BeforeValidator(_one_or_more)] = ()
    data_service: DataService = DataService()
    completion: Completion | None = None
    stopping_condition: StoppingCondition = StoppingCondition()
    budget: Budget | None = None
    retry: Retry | None = None
    checkpoint_s3_uri: path_types.OutputPath | None = None
    checkpoint_local_path: path_types.InstanceFolder = path_types.CHECKPOINT_FOLDER
    output_path: path_types.OutputPath | None = None
    earlier_output: field_types.EarlierOutput = "replace"
    keep: path_types.KeptPlaces = ()
    record: Record | None = None
    encrypt_inter_container_traffic: field_types.Flag = False
    engines: _Engines = _Engines()
    image_uri: platform_options.Image | None = None
    role: platform_options.Role | None = None
    framework_version: platform_options.Version | None = None
    py_version: platform_options.Version | None = None
    volume_size: platform_options.Gigabytes | None = None
    volume_kms_key: platform_options.KmsKey | None = None
    output_kms_key: platform_options.KmsKey | None = None
    code_location: path_types.OutputPath | None = None
    subnets: platform_options.Subnets = ()
    security_group_ids: platform_options.SecurityGroups = ()
    enable_network_isolation: field_types.Flag = False
    use_spot_instances: field_types.Flag = False
    keep_alive_period_in_seconds: platform_options.KeepAlive | None = None
    training_plan: platform_options.TrainingPlan | None = None
    metric_definitions: platform_options.MetricDefinitions = ()
    tags: platform_options.Tags = ()
    request_extras: platform_options.Extras = Field(default_factory=dict)
