"""`Environment`: what a program can know about its instance and its job.

The names, values and mapping behaviour are those of `sagemaker_training.environment.Environment`, so that a script
changes one import. It reads the three files of input/config when it is made, and is a snapshot: it writes nothing,
not even variables, and asks for GPUs only when their number is read.

Where it differs from the toolkit (each difference is in the table of tests/instance/test_oracle.py):

* outside a job it raises an error that says so, instead of inventing a tree in the home directory;
* `num_cpus` counts the CPUs that this process may use;
* `distribution_hosts` follow the order in which the distribution names its groups, which is the order of the ranks;
* `job_name` is also known without TRAINING_JOB_NAME.

The SM_* variables that SageMaker's training toolkit sets, in its format. Pure.

``SM_`` and the name in upper case (hyphens stay), a string as it is, None as the empty string, all else as compact JSON
with sorted keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn, cast

from headrace.errors import UsageError
from headrace.instance import machine
from headrace.instance.entry_command import decode, hyperparameter_arguments
from headrace.instance.paths import BASE_VARIABLE, TreePaths, base_directory
from headrace.sagemaker_parameters import (
    ABOUT_THE_JOB,
    GROUPS,
    HOMOGENEOUS,
    JOB_NAME,
    LOG_LEVEL,
    PROGRAM,
    REGION,
    S3_OUTPUT,
    STRATEGIES,
    SUBMIT_DIRECTORY,
    is_reserved,
)

TF_DATA_SERVICE = "HEADRACE_TF_DATA_SERVICE"

# With one of these and no `GROUPS` the own group is the distribution, as on a homogeneous job.
_DISTRIBUTION_FLAGS = tuple(name for name in STRATEGIES if name.endswith("_enabled"))

_INFO = 20  # logging.INFO


class UnknownChannel(UsageError, KeyError):
    """A channel that this instance does not have. Also a KeyError, as with the toolkit."""

    def __str__(self) -> str:
        return self.message


class _Channels(dict[str, str]):
    """Channel name to directory. Says what there is when asked for what there is not."""

    def __init__(self, directories: Mapping[str, str], where: str) -> None:
        super().__init__(directories)
        self._where = where

    def __missing__(self, name: str) -> NoReturn:
        channels = ", ".join(repr(channel) for channel in sorted(self)) or "none"
        raise UnknownChannel(
            f"no channel {name!r} on {self._where}; its channels: {channels}",
            "name it under `inputs` in the job file; a channel with instance_group_names exists in those groups only",
        )


class Environment(Mapping[str, object]):
    """The instance and the job, as a program of this instance sees them.

    It is also a read-only mapping of its properties: ``env["model_dir"] == env.model_dir``.

    >>> from headrace import Environment
    >>> env = Environment()                             # doctest: +SKIP
    >>> env.current_instance_group, env.channel("training"), env.hyperparameters["epochs"]  # doctest: +SKIP
    ('dnn_group', '/opt/ml/input/data/training', 3)

    Args:
        base_dir: base directory of the tree; by default $SAGEMAKER_BASE_DIR, else /opt/ml.
        resource_config: use this instead of resourceconfig.json.
        input_data_config: use this instead of inputdataconfig.json.
        hyperparameters: use these (decoded) instead of hyperparameters.json.
        environ: variables to look at; by default those of this process.

    Raises:
        UsageError: there is no tree (this is not an instance of a job), or it cannot be read.
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str] | None = None,
        *,
        resource_config: Mapping[str, object] | None = None,
        input_data_config: Mapping[str, object] | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._paths = TreePaths(base_directory(self._environ) if base_dir is None else base_dir)
        self._resource_config = dict(resource_config or _read(self._paths.resource_config))
        self._input_data_config = dict(
            _read(self._paths.input_data_config) if input_data_config is None else input_data_config
        )
        every = dict(decode(_read(self._paths.hyperparameters)) if hyperparameters is None else hyperparameters)
        reserved = {name: value for name, value in every.items() if is_reserved(name)}
        self._hyperparameters = {name: value for name, value in every.items() if name not in reserved}
        self._reserved = {name: value for name, value in reserved.items() if name in ABOUT_THE_JOB}
        self._framework = {name: value for name, value in reserved.items() if name not in ABOUT_THE_JOB}
        for key, expected in (("current_host", str), ("hosts", list)):
            if not isinstance(self._resource_config.get(key), expected):
                raise UsageError(
                    f"{self._paths.resource_config}: no {expected.__name__} {key!r} in it",
                    "it is written by the engine",
                )

    # Mapping behaviour, and what the toolkit has as methods.

    def properties(self) -> list[str]:
        """Names of all properties, sorted: the keys of the mapping."""
        return sorted(name for name in dir(type(self)) if isinstance(getattr(type(self), name), property))

    def __getitem__(self, name: str) -> object:
        if not isinstance(getattr(type(self), name, None), property):
            raise KeyError(f"Environment has no property {name!r}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties())

    def __len__(self) -> int:
        return len(self.properties())

    def __str__(self) -> str:
        return str(dict(self))

    def channel(self, name: str) -> str:
        """Directory of an input channel. Raises UnknownChannel if this instance does not have it."""
        return self.channel_input_dirs[name]

    def to_cmd_args(self) -> list[str]:
        """The hyperparameters as arguments of a program."""
        return hyperparameter_arguments(self._hyperparameters)

    def to_env_vars(self) -> dict[str, str]:
        """The SM_* variables of the toolkit. `program_variables` has those of headrace too."""
        return toolkit_variables(self)

    def sagemaker_s3_output(self) -> str | None:
        """Where output/intermediate is copied to while the job runs, None if it is not."""
        return cast("str | None", self._reserved.get(S3_OUTPUT))

    def region(self) -> str:
        """AWS region of the job; empty when it runs in none."""
        variables = (self._environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
        return str(self._reserved.get(REGION) or next(filter(None, variables), ""))

    def tf_data_service(self) -> str | None:
        """Address of the job's tf.data.service, e.g. ``grpc://10.77.0.1:7072``; None when the job has none."""
        return self._environ.get(TF_DATA_SERVICE) or None

    def paths(self) -> TreePaths:
        """Every path of the tree, for those that have no property."""
        return self._paths

    # The host and its cluster.

    @property
    def current_host(self) -> str:
        """Name of this host, e.g. ``algo-1``."""
        return cast(str, self._resource_config["current_host"])

    @property
    def hosts(self) -> list[str]:
        """Names of all hosts of the job, of all groups."""
        return cast("list[str]", self._resource_config["hosts"])

    @property
    def current_instance_type(self) -> str:
        """Instance type of this host, e.g. ``ml.c5.xlarge``."""
        return cast(str, self._resource_config.get("current_instance_type", "local"))

    @property
    def current_instance_group(self) -> str:
        """Name of this host's instance group; ``homogeneousCluster`` in a job without groups."""
        return cast(str, self._resource_config.get("current_group_name", HOMOGENEOUS))

    @property
    def current_instance_group_hosts(self) -> list[str]:
        """Names of the hosts of this host's group."""
        return self._hosts_of(self.current_instance_group)

    @property
    def instance_groups(self) -> list[str]:
        """Names of all instance groups."""
        return list(self.instance_groups_dict)

    @property
    def instance_groups_dict(self) -> dict[str, dict[str, object]]:
        """Group name to its ``instance_group_name``, ``instance_type`` and ``hosts``."""
        groups = cast("list[dict[str, object]]", self._resource_config.get("instance_groups", []))
        return {cast(str, group["instance_group_name"]): group for group in groups}

    @property
    def is_hetero(self) -> bool:
        """Whether the job has more than one instance group."""
        return len(self.instance_groups) > 1

    @property
    def distribution_instance_groups(self) -> list[str]:
        """Names of the groups that train together, in rank order; empty without a distribution."""
        named = self._framework.get(GROUPS)
        if named is not None:
            return cast("list[str]", named)
        enabled = any(self._framework.get(flag, False) for flag in _DISTRIBUTION_FLAGS)
        return [self.current_instance_group] if enabled else []

    @property
    def distribution_hosts(self) -> list[str]:
        """Names of the hosts that train together, in rank order; empty without a distribution."""
        if not self.instance_groups_dict:  # the SDK's local mode writes no groups
            return list(self.hosts)
        return [host for group in self.distribution_instance_groups for host in self._hosts_of(group)]

    @property
    def master_hostname(self) -> str:
        """Name of the first host of the distribution; of the job, when there is no distribution."""
        return (self.distribution_hosts or self.hosts)[0]

    @property
    def is_master(self) -> bool:
        """Whether this host is the master."""
        return self.current_host == self.master_hostname

    @property
    def network_interface_name(self) -> str:
        """Network interface between the hosts, e.g. ``eth0``."""
        return cast(str, self._resource_config.get("network_interface_name", "eth0"))

    @property
    def topology(self) -> list[dict[str, object]]:
        """Host to capacity unit on UltraServers, else empty."""
        return cast("list[dict[str, object]]", self._resource_config.get("topology", []))

    @property
    def num_cpus(self) -> int:
        """CPUs that this process may use."""
        return machine.num_cpus()

    @property
    def num_gpus(self) -> int:
        """GPUs of this host."""
        return machine.num_gpus()

    @property
    def num_neurons(self) -> int:
        """Neuron cores of this host."""
        return machine.num_neurons(self.current_instance_type)

    # The job.

    @property
    def job_name(self) -> str | None:
        """Name of the training job."""
        return self._environ.get("TRAINING_JOB_NAME") or cast("str | None", self._reserved.get(JOB_NAME))

    @property
    def hyperparameters(self) -> dict[str, object]:
        """The user's hyperparameters, decoded."""
        return self._hyperparameters

    @property
    def additional_framework_parameters(self) -> dict[str, object]:
        """Hyperparameters whose names start with ``sagemaker_``, without those that have a property of their own."""
        return self._framework

    @property
    def user_entry_point(self) -> str | None:
        """The user's script, e.g. ``train.py``."""
        return self._environ.get("SAGEMAKER_PROGRAM") or cast("str | None", self._reserved.get(PROGRAM))

    @property
    def module_name(self) -> str | None:
        """The user's script without ``.py``."""
        program = self.user_entry_point
        return program[:-3] if program and program.endswith(".py") else program

    @property
    def module_dir(self) -> str:
        """Where the user's code comes from: its directory, or an S3 URI on SageMaker."""
        return str(self._reserved.get(SUBMIT_DIRECTORY, self._paths.code))

    @property
    def framework_module(self) -> str | None:
        """The framework container's own entry point, ``module:function``."""
        return self._environ.get("SAGEMAKER_TRAINING_MODULE")

    @property
    def log_level(self) -> int:
        """Log level that the user asked for, a number of the `logging` module."""
        return cast(int, self._reserved.get(LOG_LEVEL, _INFO))

    # Files and directories.

    @property
    def input_data_config(self) -> dict[str, object]:
        """Content of inputdataconfig.json."""
        return self._input_data_config

    @property
    def resource_config(self) -> dict[str, object]:
        """Content of resourceconfig.json."""
        return self._resource_config

    @property
    def channel_input_dirs(self) -> dict[str, str]:
        """Channel name to directory. An unknown name raises UnknownChannel, which is a KeyError."""
        directories = {name: str(self._paths.channel(name)) for name in self._input_data_config}
        return _Channels(directories, f"{self.current_host} (group {self.current_instance_group!r})")

    @property
    def input_dir(self) -> str:
        """Directory of configuration and input data."""
        return str(self._paths.input)

    @property
    def input_config_dir(self) -> str:
        """Directory of the three configuration files."""
        return str(self._paths.input_config)

    @property
    def model_dir(self) -> str:
        """Directory for the trained model."""
        return str(self._paths.model)

    @property
    def output_dir(self) -> str:
        """Directory for everything else, and for the failure file."""
        return str(self._paths.output)

    @property
    def output_data_dir(self) -> str:
        """Directory for artefacts that are not the model."""
        return str(self._paths.output_data)

    @property
    def output_intermediate_dir(self) -> str:
        """Directory for artefacts that are wanted while the job runs."""
        return str(self._paths.output_intermediate)

    # SageMaker's own libraries.

    @property
    def is_modelparallel_enabled(self) -> bool:
        """Whether SageMaker's model parallel library is on."""
        return self._environ.get("SM_HP_MP_PARAMETERS", "{}") not in ("", "{}")

    @property
    def is_smddprun_installed(self) -> bool:
        """Whether SageMaker's data parallel launcher is installed."""
        return machine.is_installed("smddprun")

    @property
    def is_smddpmprun_installed(self) -> bool:
        """Whether SageMaker's model and data parallel launcher is installed."""
        return machine.is_installed("smddpmprun")

    def _hosts_of(self, group: str) -> list[str]:
        return cast("list[str]", self.instance_groups_dict.get(group, {}).get("hosts", []))


def _read(path: Path) -> dict[str, object]:
    """One configuration file. Raises UsageError."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"this is not an instance of a job: {path} does not exist",
            f"start it with `headrace run job.yaml`, or set {BASE_VARIABLE} to the base directory of an instance",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "it is written by the engine, not by hand") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object", "it is written by the engine, not by hand")
    return content


# Properties of `Environment` that are no variables, or have another name as such.
_OTHER_NAME = {
    "additional_framework_parameters",
    "channel_input_dirs",
    "distribution_hosts",
    "hyperparameters",
    "is_master",
    "is_modelparallel_enabled",
    "is_smddpmprun_installed",
    "is_smddprun_installed",
    "job_name",
    "master_hostname",
    "topology",
}


def format_value(value: object) -> str:
    """Returns a value as the toolkit writes it into a variable.

    >>> format_value("a b"), format_value(None), format_value({"b": [1, True], "a": None})
    ('a b', '', '{"a":null,"b":[1,true]}')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def format_name(name: str) -> str:
    """Returns the variable of a name: ``format_name("hp_batch-size") == "SM_HP_BATCH-SIZE"``."""
    return f"SM_{name}".upper()


def toolkit_variables(env: Environment, **instead: object) -> dict[str, str]:
    """Returns the SM_* variables that SageMaker's training toolkit would set on this instance.

    Args:
        env: the instance.
        **instead: properties that have another value than in `env`.
    """
    values = {**env, **instead}
    named: dict[str, object] = {name: value for name, value in values.items() if name not in _OTHER_NAME}
    named |= {
        "hps": values["hyperparameters"],
        "framework_params": values["additional_framework_parameters"],
        "channels": sorted(env.channel_input_dirs),
        "training_env": values,
        "user_args": hyperparameter_arguments(env.hyperparameters),
    }
    if env.topology:
        named["topology"] = env.topology
    named |= {f"channel_{name}": path for name, path in env.channel_input_dirs.items()}
    named |= {f"hp_{name}": value for name, value in env.hyperparameters.items()}
    return {format_name(name): format_value(value) for name, value in named.items()}
