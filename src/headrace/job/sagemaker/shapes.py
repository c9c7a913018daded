"""The shape of a CreateTrainingJob request: members, types, lengths, patterns, counts.

Facts of the service's model, sagemaker/2017-07-24 as botocore 1.44.5 carries it. Names, limits and patterns are the
service's own; `tests/job/test_job_request_shapes.py` compares them with a copy of the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_LINE = "[^\\n\\r\\x85\\u2028\\u2029]"  # what Java's dot matches
_SPACES = "\\u0020\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


@dataclass(frozen=True)
class Text:
    """A string. `high` 0 means any length; `pattern` is written as the service writes it."""

    low: int = 0
    high: int = 0
    pattern: str = ""


@dataclass(frozen=True)
class Choice:
    """One of a few strings."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class InstanceType:
    """One of the instance types of training."""


@dataclass(frozen=True)
class Whole:
    """A whole number; None means no limit."""

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class Switch:
    """True or false."""


@dataclass(frozen=True)
class Items:
    """A list."""

    item: Shape
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Table:
    """A mapping of names to texts."""

    key: Text
    value: Text
    high: int


@dataclass(frozen=True)
class Record:
    """A structure."""

    members: dict[str, Shape]
    required: frozenset[str]


Shape = Text | Choice | InstanceType | Whole | Switch | Items | Table | Record


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns one of the service's patterns for `fullmatch`: Java's dialect, in which a dot is no line break."""
    text = pattern.replace("\\p{Alnum}", "A-Za-z0-9").replace("\\p{L}\\p{Z}\\p{N}", "\\w" + _SPACES)
    text = text.replace(".*", _LINE + "*").replace(".+", _LINE + "+")
    return re.compile(text, 0 if "\\p{L}" in pattern else re.ASCII)


def _record(**members: Shape | tuple[Shape]) -> Record:
    """A tuple of one shape stands for a member that is required."""
    shapes = {name: shape[0] if isinstance(shape, tuple) else shape for name, shape in members.items()}
    return Record(shapes, frozenset(name for name, shape in members.items() if isinstance(shape, tuple)))


def _line(high: int) -> Text:
    return Text(0, high, ".*")


_NAME = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,%d}"
_S3 = Text(0, 1024, "(https|s3)://([^/]+)/?(.*)")
_KMS = Text(0, 2048, "[a-zA-Z0-9:/_-]*")
_PATH = _line(4096)
_IMAGE = _line(255)
_TEXT256 = _line(256)
_KEY256 = Text(1, 256, ".*")
_MODE = Choice(("Pipe", "File", "FastFile"))
_GROUP = Text(1, 64, ".+")
_PLAN = Text(50, 2048, "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]*:[0-9]{12}:training-plan/.*")
_LABEL = "([\\p{L}\\p{Z}\\p{N}_.:/=+\\-@]*)"
_TITLE = Text(1, 120, _NAME % 119)
_HUB = "(arn:[a-z0-9-\\.]{1,63}:sagemaker:\\w+(?:-\\w+)+:(\\d{12}|aws):hub-content\\/)[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
_VERSION = "\\/[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}(\\/\\d{1,4}.\\d{1,4}.\\d{1,4})?"
_COUNT = Whole(0)
_PARAMETERS = Table(_KEY256, _TEXT256, 20)

_RULE = _record(
    RuleConfigurationName=(_KEY256,),
    LocalPath=_PATH,
    S3OutputPath=_S3,
    RuleEvaluatorImage=(_IMAGE,),
    InstanceType=Text(),  # processing types, which headrace does not know
    VolumeSizeInGB=_COUNT,
    RuleParameters=Table(_KEY256, _TEXT256, 100),
)

_CHANNEL = _record(
    ChannelName=(Text(1, 64, "[A-Za-z0-9\\.\\-_]+"),),
    DataSource=(
        _record(
            S3DataSource=_record(
                S3DataType=(Choice(("ManifestFile", "S3Prefix", "AugmentedManifestFile", "Converse")),),
                S3Uri=(_S3,),
                S3DataDistributionType=Choice(("FullyReplicated", "ShardedByS3Key")),
                AttributeNames=Items(Text(1, 256, ".+"), 0, 16),
                InstanceGroupNames=Items(_GROUP, 0, 5),
                ModelAccessConfig=_record(AcceptEula=(Switch(),)),
                HubAccessConfig=_record(HubContentArn=(_IMAGE,)),
            ),
            FileSystemDataSource=_record(
                FileSystemId=(Text(11, 21, "(fs-[0-9a-f]{8,})"),),
                FileSystemAccessMode=(Choice(("rw", "ro")),),
                FileSystemType=(Choice(("EFS", "FSxLustre")),),
                DirectoryPath=(_PATH,),
            ),
            DatasetSource=_record(DatasetArn=(Text(0, 2048, _HUB + "\\/DataSet" + _VERSION),)),
        ),
    ),
    ContentType=_TEXT256,
    CompressionType=Choice(("None", "Gzip")),
    RecordWrapperType=Choice(("None", "RecordIO")),
    InputMode=_MODE,
    ShuffleConfig=_record(Seed=(Whole(),)),
)

_ALGORITHM = _record(
    TrainingImage=_IMAGE,
    AlgorithmName=Text(
        1,
        170,
        "(arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]*:[0-9]{12}:[a-z\\-]*\\/)?([a-zA-Z0-9]([a-zA-Z0-9-]){0,62})(?<!-)",
    ),
    TrainingInputMode=(_MODE,),
    MetricDefinitions=Items(_record(Name=(Text(1, 255, ".+"),), Regex=(Text(1, 500, ".+"),)), 0, 40),
    EnableSageMakerMetricsTimeSeries=Switch(),
    ContainerEntrypoint=Items(_TEXT256, 1, 100),
    ContainerArguments=Items(_TEXT256, 1, 100),
    TrainingImageConfig=_record(
        TrainingRepositoryAccessMode=(Choice(("Platform", "Vpc")),),
        TrainingRepositoryAuthConfig=_record(
            TrainingRepositoryCredentialsProviderArn=(
                Text(1, 2048, "arn:[\\p{Alnum}\\-]+:lambda:[\\p{Alnum}\\-]+:[0-9]{12}:function:.*"),
            )
        ),
    ),
)

_RESOURCES = _record(
    InstanceType=InstanceType(),
    InstanceCount=_COUNT,
    VolumeSizeInGB=_COUNT,
    VolumeKmsKeyId=_KMS,
    KeepAlivePeriodInSeconds=Whole(0, 21600),
    InstanceGroups=Items(
        _record(InstanceType=(InstanceType(),), InstanceCount=(_COUNT,), InstanceGroupName=(_GROUP,)), 0, 5
    ),
    TrainingPlanArn=_PLAN,
    InstancePlacementConfig=_record(
        EnableMultipleJobs=Switch(),
        PlacementSpecifications=Items(_record(UltraServerId=Text(0, 256), InstanceCount=(_COUNT,)), 0, 10),
    ),
    InstancePreferences=Items(
        _record(InstanceType=(InstanceType(),), InstanceCount=_COUNT, TrainingPlanArns=Items(_PLAN, 1, 1)), 1, 5
    ),
    SelectedInstanceType=InstanceType(),
    SelectedInstanceCount=_COUNT,
)

CREATE_TRAINING_JOB = _record(
    TrainingJobName=(Text(1, 63, _NAME % 62),),
    HyperParameters=Table(_line(256), _line(2500), 100),
    AlgorithmSpecification=_ALGORITHM,
    RoleArn=(Text(20, 2048, "arn:aws[a-z\\-]*:iam::\\d{12}:role/?[a-zA-Z_0-9+=,.@\\-_/]+"),),
    InputDataConfig=Items(_CHANNEL, 1, 20),
    OutputDataConfig=(_record(KmsKeyId=_KMS, S3OutputPath=(_S3,), CompressionType=Choice(("GZIP", "NONE"))),),
    ResourceConfig=_RESOURCES,
    VpcConfig=_record(
        SecurityGroupIds=(Items(Text(0, 32, "[-0-9a-zA-Z]+"), 1, 5),),
        Subnets=(Items(Text(0, 32, "[-0-9a-zA-Z]+"), 1, 16),),
    ),
    StoppingCondition=_record(
        MaxRuntimeInSeconds=Whole(1), MaxWaitTimeInSeconds=Whole(1), MaxPendingTimeInSeconds=Whole(1800, 2419200)
    ),
    Tags=Items(_record(Key=(Text(1, 128, _LABEL),), Value=(Text(0, 256, _LABEL),)), 0, 50),
    EnableNetworkIsolation=Switch(),
    EnableInterContainerTrafficEncryption=Switch(),
    EnableManagedSpotTraining=Switch(),
    CheckpointConfig=_record(S3Uri=(_S3,), LocalPath=_PATH),
    DebugHookConfig=_record(
        LocalPath=_PATH,
        S3OutputPath=(_S3,),
        HookParameters=_PARAMETERS,
        CollectionConfigurations=Items(_record(CollectionName=_KEY256, CollectionParameters=_PARAMETERS), 0, 20),
    ),
    DebugRuleConfigurations=Items(_RULE, 0, 20),
    TensorBoardOutputConfig=_record(LocalPath=_PATH, S3OutputPath=(_S3,)),
    ExperimentConfig=_record(ExperimentName=_TITLE, TrialName=_TITLE, TrialComponentDisplayName=_TITLE, RunName=_TITLE),
    ProfilerConfig=_record(
        S3OutputPath=_S3,
        ProfilingIntervalInMilliseconds=Whole(),
        ProfilingParameters=_PARAMETERS,
        DisableProfiler=Switch(),
    ),
    ProfilerRuleConfigurations=Items(_RULE, 0, 20),
    Environment=Table(Text(0, 512, "[a-zA-Z_][a-zA-Z0-9_]*"), Text(0, 512, "[\\S\\s]*"), 100),
    RetryStrategy=_record(MaximumRetryAttempts=(Whole(1, 30),)),
    RemoteDebugConfig=_record(EnableRemoteDebug=Switch()),
    InfraCheckConfig=_record(EnableInfraCheck=Switch()),
    SessionChainingConfig=_record(EnableSessionTagChaining=Switch()),
    ServerlessJobConfig=_record(
        BaseModelArn=(Text(1, 2048, _HUB + "\\/Model" + _VERSION),),
        AcceptEula=Switch(),
        JobType=(Choice(("FineTuning", "Evaluation")),),
        CustomizationTechnique=Choice(("SFT", "DPO", "RLVR", "RLAIF")),
        Peft=Choice(("LORA",)),
        EvaluationType=Choice(("LLMAJEvaluation", "CustomScorerEvaluation", "BenchmarkEvaluation")),
        EvaluatorArn=Text(0, 0, ".*"),
        SequenceLength=Text(1, 50, "\\d+K"),
    ),
    MlflowConfig=_record(
        MlflowResourceArn=(Text(0, 2048, "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]*:[0-9]{12}:mlflow-[a-zA-Z-]*/.*"),),
        MlflowExperimentName=_KEY256,
        MlflowRunName=_KEY256,
    ),
    ModelPackageConfig=_record(
        ModelPackageGroupArn=(
            Text(1, 2048, "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]{9,16}:[0-9]{12}:model-package-group/[\\S]{1,2048}"),
        ),
        SourceModelPackageArn=Text(
            1, 2048, "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]{9,16}:[0-9]{12}:model-package/[\\S]{1,2048}"
        ),
    ),
)
"""The whole request."""
