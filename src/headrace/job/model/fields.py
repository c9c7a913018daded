"""The shape of a job: its keys and the type of each. Rules between keys are in `rules`.

`JobFields` is the whole job as data; `headrace.job.Job` adds what follows from it. Larger parts have modules of their
own: `parts`, `engine_options`, `kubernetes_options`, and `sagemaker_options` for what only SageMaker acts on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from headrace.catalog.prices import DEFAULT_REGION
from headrace.job.model import field_types, path_types, sagemaker_options
from headrace.job.model.engine_options import LocalOptions, SlurmOptions
from headrace.job.model.field_types import AsList, AsMapping, line, one_of, whole
from headrace.job.model.frozen_model import Part
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.model.parts import Distribution, InstanceGroup, Readiness, ShuffleConfig, TrainingInput
from headrace.job.model.sagemaker_options import SageMakerOptions

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
        local: options of the local engine: this machine runs all hosts.
        slurm: options for Slurm: a node of a cluster is a host.
        kubernetes: options for Kubernetes: a pod of a cluster is a host.
        sagemaker: options for Amazon SageMaker: an instance is a host.
    """

    local: LocalOptions = LocalOptions()
    slurm: SlurmOptions | None = None
    kubernetes: KubernetesOptions | None = None
    sagemaker: SageMakerOptions | None = None


class FeedHosts(Part):
    """How many hosts of data workers serve, as the ranks need them, while the job runs.

    Attributes:
        min: hosts that serve from the start and always, at least 1.
        max: hosts that serve at most; by default, and at most, all instances of the groups.
        idle_after: seconds for which fewer hosts must have been enough before one leaves.
    """

    min: field_types.Hosts
    max: field_types.Hosts | None = None
    idle_after: field_types.Seconds = 30.0


class Feed(Part):
    """headrace's data workers.

    Attributes:
        enabled: whether the data workers are started.
        workers_per_host: worker processes a host, at least 1; ``auto``: the cores that the training ranks leave.
        workers: data hosts that join and leave while the job runs; by default all instances of the groups serve.
    """

    enabled: field_types.Flag
    workers_per_host: field_types.Workers = "auto"
    workers: FeedHosts | None = None


class TfData(Part):
    """TensorFlow's own data service, tf.data.service, which headrace starts, watches and stops.

    Attributes:
        enabled: whether its servers are started.
        workers_per_host: tf.data workers a host, 1 to 64; each uses all CPUs of its host, so one is mostly enough.
        fault_tolerant: whether the dispatcher keeps its state on disk and goes on after a crash; without that a crash
            ends the training.
        worker_timeout: seconds of silence after which the dispatcher counts a worker as missing; by default
            TensorFlow's 60.
        job_gc_timeout: seconds after which a dataset that is no longer read is dropped; by default TensorFlow's 300.
        job_gc_check_interval: seconds between the checks for that; by default TensorFlow's 600.
        open_ports: whether its servers may listen on all addresses of a machine that hosts share (isolation ``none``
            and ``shared_network``). They know no authentication: who reaches a port reads and writes the user's files.
    """

    enabled: field_types.Flag
    workers_per_host: Annotated[int, whole(1, 64)] = 1
    fault_tolerant: field_types.Flag = True
    worker_timeout: field_types.Seconds | None = None
    job_gc_timeout: field_types.Seconds | None = None
    job_gc_check_interval: field_types.Seconds | None = None
    open_ports: field_types.Flag = False


class DataService(Part):
    """Where batches are prepared; by one data service at most.

    Attributes:
        feed: headrace's own, for PyTorch.
        tf_data: TensorFlow's own. A job has one of the two.
        instance_groups: groups whose hosts run data workers; required when the job has several groups. The dispatcher
            of tf.data.service is on the first host of the first one.
    """

    feed: Feed | None = None
    tf_data: TfData | None = None
    instance_groups: field_types.GroupNames | None = None


class Completion(Part):
    """When the job has succeeded, and when it fails because it is stalled.

    Attributes:
        instance_groups: groups whose programs must all exit with 0; the rest is then stopped. By default the
            distributions' groups, else every group that runs the entry point.
        stall_after: seconds without any output, metric or delivered batch after which the job fails; by default never.
    """

    instance_groups: field_types.GroupNames | None = None
    stall_after: field_types.Seconds | None = None


class StoppingCondition(Part):
    """When the job is stopped.

    Attributes:
        max_run: seconds that the job may run, 1 to 2,419,200 (28 days); then it is stopped.
        max_wait: seconds to wait for spot capacity and run, at least `max_run`; on SageMaker only.
        max_pending_time: seconds to wait for capacity, 1,800 to 2,419,200; on SageMaker only.
    """

    max_run: Annotated[int, whole(1, field_types.MAX_RUN_LIMIT, " seconds (28 days)")] = field_types.MAX_RUN_DEFAULT
    max_wait: Annotated[int, whole(1)] | None = None
    max_pending_time: Annotated[int, whole(1800, field_types.MAX_RUN_LIMIT, " seconds")] | None = None


class Budget(Part):
    """What the job may cost, by the list prices of its instance types; it is stopped when it has cost more.

    Attributes:
        max_cost: USD, above 0, all attempts together, e.g. ``25`` or ``25.00 USD``.
        region: whose list prices are taken; every instance type must have one there (`headrace prices`).
    """

    max_cost: field_types.Amount
    region: field_types.PricedRegion = DEFAULT_REGION


class Retry(Part):
    """What happens after a failure.

    Attributes:
        attempts: how often a failed job is started again, with its checkpoints; 1 to 30.
        on: after which failures: ``infrastructure``: a lost host or agent, as on SageMaker; ``any``: a failed program
            too.
    """

    attempts: Annotated[int, whole(1, 30)]
    on: Annotated[Literal["infrastructure", "any"], one_of] = "infrastructure"


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
        job_name: 1 to 63 letters, digits and hyphens, a letter or digit first and last. By default the file's name
            without its ending, in which a run of other characters becomes a hyphen; required in Python.
        source_dir: the code: a folder, an archive (``.tar.gz``) or the ``s3://`` URI of an archive. Without it the
            entry point is a script, which alone is copied.
        entry_point: what every host runs: a Python or shell script inside `source_dir`, ``-m`` and a module, or the
            name of the package that `source_dir` is. Required unless there is a `command`.
        command: program and arguments, instead of `entry_point`; 1 to 200 texts of at most 256 characters. No shell
            reads them.
        dependencies: files and folders that are put beside the code.
        requirements: file of Python packages inside `source_dir`; by default its ``requirements.txt``, if there.
        hyperparameters: at most 100, which become the program's arguments. A name has 1 to 256 characters and does not
            begin with ``sagemaker_``; a value is text or becomes JSON, at most 2,500 characters.
        hyperparameters_as: ``arguments``: in the command line, which every user of a machine can read, and in the file;
            ``file``: only in /opt/ml/input/config/hyperparameters.json and ``SM_HPS``.
        environment: at most 100 variables of every program. A name has letters, digits and underscores, at most 512; a
            value is text of at most 512 characters. What headrace sets itself keeps its value.
        instance_groups: 1 to 5 groups of machines with at most 1,000 hosts together; or else `instance_type` and
            `instance_count`.
        instance_type: the one type of machine of a job without groups.
        instance_count: machines of a job without groups, 1 to 1,000.
        input_mode: mode of the channels that name none.
        inputs: 1 to 20 channels by name; a path alone is short for a channel with defaults. A name has 1 to 64 letters,
            digits, dots, hyphens and underscores; ``headrace`` is reserved, and no two names differ only in case.
        distribution: how ranks are started; one mapping, or a list of at most five for different groups. By default
            every host runs the entry point as a plain script.
        data_service: where batches are prepared; by default in the training processes.
        completion: when the job has succeeded, and when it counts as stalled.
        stopping_condition: time limits.
        budget: what the job may cost by the list prices of its instance types; it is stopped when it has cost more.
        retry: whether a failed job is started again; by default it is not.
        checkpoint_s3_uri: where checkpoints are kept: ``s3://`` URI, ``file://`` URI or path.
        checkpoint_local_path: folder inside the instance that is kept there.
        output_path: where model and output go: ``s3://`` URI, ``file://`` URI or path; by default the run's folder.
        earlier_output: model and output that an earlier run of the same name has left at `output_path`: ``replace``
            them at the end of this run, or ``refuse`` to start.
        keep: files and folders elsewhere that go with the output, as ``<host>/<path>`` in output.tar.gz: absolute, or
            relative to the working directory. What a host does not have is passed.
        record: where else the record of the run is kept, while it grows and later.
        encrypt_inter_container_traffic: whether feed connections between hosts are under TLS. By default they are
            authenticated, and samples travel in clear; control is always under TLS.
        engines: options of the engines.
        image_uri: container image, for SageMaker and Kubernetes.
        role: ARN of the role under which the job runs.
        framework_version: version of the framework in the image.
        py_version: Python version in the image.
        volume_size: gigabytes of each instance's volume.
        volume_kms_key: key of the volumes.
        output_kms_key: key of the output.
        code_location: where the code is uploaded.
        subnets: 1 to 16 subnets of the instances, together with `security_group_ids`.
        security_group_ids: 1 to 5 security groups of the instances.
        enable_network_isolation: whether instances reach nothing but each other.
        use_spot_instances: whether spare capacity is used.
        keep_alive_period_in_seconds: how long instances are kept for a next job, 0 to 21,600.
        training_plan: ARN of reserved capacity.
        metric_definitions: at most 40 figures to be found in the lines that programs print, by name and regular
            expression.
        tags: at most 50 labels of the job.
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
    hyperparameters_as: Annotated[Literal["arguments", "file"], one_of] = "arguments"
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
    earlier_output: Annotated[Literal["replace", "refuse"], one_of] = "replace"
    keep: path_types.KeptPlaces = ()
    record: Record | None = None
    encrypt_inter_container_traffic: field_types.Flag = False
    engines: _Engines = _Engines()
    image_uri: Annotated[str, line(1, 255)] | None = None
    role: Annotated[str, line(1, 2048)] | None = None
    framework_version: sagemaker_options.Version | None = None
    py_version: sagemaker_options.Version | None = None
    volume_size: Annotated[int, whole(0)] | None = None
    volume_kms_key: sagemaker_options.KmsKey | None = None
    output_kms_key: sagemaker_options.KmsKey | None = None
    code_location: path_types.OutputPath | None = None
    subnets: Annotated[tuple[sagemaker_options.NetworkId, ...], AsList] = ()
    security_group_ids: Annotated[tuple[sagemaker_options.NetworkId, ...], AsList] = ()
    enable_network_isolation: field_types.Flag = False
    use_spot_instances: field_types.Flag = False
    keep_alive_period_in_seconds: Annotated[int, whole(0, 21600, " seconds")] | None = None
    training_plan: sagemaker_options.TrainingPlan | None = None
    metric_definitions: Annotated[tuple[sagemaker_options.MetricDefinition, ...], AsList] = ()
    tags: Annotated[tuple[sagemaker_options.Tag, ...], AsList] = ()
    request_extras: Annotated[dict[str, JsonValue], AsMapping] = Field(default_factory=dict)
