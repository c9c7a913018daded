"""Where the values of a job are in a CreateTrainingJob request: one table, for both directions; and reaching them."""

from __future__ import annotations

from headrace.job.problems.finding import Path
from headrace.sagemaker_parameters import GROUPS

ALGORITHM = "AlgorithmSpecification"
CHANNELS = "InputDataConfig"
HYPERPARAMETERS = "HyperParameters"
ENTRYPOINT = (ALGORITHM, "ContainerEntrypoint")
ARGUMENTS = (ALGORITHM, "ContainerArguments")
INSTANCE_GROUPS = ("ResourceConfig", "InstanceGroups")
PREFERENCES = ("ResourceConfig", "InstancePreferences")
METRICS = (ALGORITHM, "MetricDefinitions")
WORLD_GROUPS = (HYPERPARAMETERS, GROUPS)

VALUES: tuple[tuple[Path, Path], ...] = (
    (("TrainingJobName",), ("job_name",)),
    (("RoleArn",), ("role",)),
    ((ALGORITHM, "TrainingImage"), ("image_uri",)),
    ((ALGORITHM, "TrainingInputMode"), ("input_mode",)),
    (("Environment",), ("environment",)),
    (("OutputDataConfig", "S3OutputPath"), ("output_path",)),
    (("OutputDataConfig", "KmsKeyId"), ("output_kms_key",)),
    (("ResourceConfig", "InstanceType"), ("instance_type",)),
    (("ResourceConfig", "InstanceCount"), ("instance_count",)),
    (("ResourceConfig", "VolumeSizeInGB"), ("volume_size",)),
    (("ResourceConfig", "VolumeKmsKeyId"), ("volume_kms_key",)),
    (("ResourceConfig", "KeepAlivePeriodInSeconds"), ("keep_alive_period_in_seconds",)),
    (("ResourceConfig", "TrainingPlanArn"), ("training_plan",)),
    (("VpcConfig", "SecurityGroupIds"), ("security_group_ids",)),
    (("VpcConfig", "Subnets"), ("subnets",)),
    (("StoppingCondition", "MaxRuntimeInSeconds"), ("stopping_condition", "max_run")),
    (("StoppingCondition", "MaxWaitTimeInSeconds"), ("stopping_condition", "max_wait")),
    (("StoppingCondition", "MaxPendingTimeInSeconds"), ("stopping_condition", "max_pending_time")),
    (("RetryStrategy", "MaximumRetryAttempts"), ("retry", "attempts")),
    (("CheckpointConfig", "S3Uri"), ("checkpoint_s3_uri",)),
    (("CheckpointConfig", "LocalPath"), ("checkpoint_local_path",)),
    (("EnableNetworkIsolation",), ("enable_network_isolation",)),
    (("EnableInterContainerTrafficEncryption",), ("encrypt_inter_container_traffic",)),
    (("EnableManagedSpotTraining",), ("use_spot_instances",)),
)
"""Values that are in one place of the request and in one of the job."""

CHANNEL: tuple[tuple[Path, Path], ...] = (
    (("DataSource", "S3DataSource", "S3Uri"), ("s3_data",)),
    (("DataSource", "S3DataSource", "S3DataType"), ("s3_data_type",)),
    (("DataSource", "S3DataSource", "S3DataDistributionType"), ("distribution",)),
    (("DataSource", "S3DataSource", "AttributeNames"), ("attribute_names",)),
    (("DataSource", "S3DataSource", "InstanceGroupNames"), ("instance_groups",)),
    (("InputMode",), ("input_mode",)),
    (("ContentType",), ("content_type",)),
    (("CompressionType",), ("compression",)),
    (("RecordWrapperType",), ("record_wrapping",)),
    (("ShuffleConfig", "Seed"), ("shuffle_config", "seed")),
)
"""Values of a channel: inside an item of InputDataConfig, and inside a `TrainingInput`."""

LISTS: tuple[tuple[Path, str, tuple[tuple[str, str], ...]], ...] = (
    (
        INSTANCE_GROUPS,
        "instance_groups",
        (
            ("InstanceGroupName", "instance_group_name"),
            ("InstanceType", "instance_type"),
            ("InstanceCount", "instance_count"),
        ),
    ),
    (METRICS, "metric_definitions", (("Name", "name"), ("Regex", "regex"))),
    (("Tags",), "tags", (("Key", "key"), ("Value", "value"))),
)
"""Lists of small structures: where in the request, key of the job, and the names of their members in both."""


def get(tree: object, path: Path) -> object:
    """Returns the value at a place in nested mappings; None when there is none."""
    for step in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(step)
    return tree


def put(tree: dict[str, object], path: Path, value: object) -> None:
    """Sets a value, and makes the mappings around it. Nothing is set below a value that is not a mapping."""
    for step in path[:-1]:
        inner = tree.setdefault(str(step), {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[str(path[-1])] = value


def take(tree: dict[str, object], path: Path) -> object:
    """Takes a value out, and the mappings around it that this empties."""
    inner = tree[str(path[0])]
    if len(path) == 1:
        return tree.pop(str(path[0]))
    if not isinstance(inner, dict):
        return None
    value = take(inner, path[1:])
    if not inner:
        del tree[str(path[0])]
    return value
