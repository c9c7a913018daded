"""Keys and values that later versions will know. They are refused by name, never ignored.

Each comes with what to do today, where there is something.
"""

from __future__ import annotations

from headrace.job.findings import Path

NOT_YET = "is not supported yet"

_RUN_ELSEWHERE = "the local engine needs none; leave it out"
_LOCAL_FILES = "copy the data to this machine and name its folder: path: data/training"
_WHOLE_FOLDER = "every host gets the whole channel (FullyReplicated); read a part of it by rank in the program"
_TORCH = "use torch_distributed, or start the processes in the program"
_BY_HAND = "start the processes in the program: it knows its hosts from SM_HOSTS and SM_CURRENT_HOST"
_INSTALLED = "install the packages into the Python that runs headrace"
_CHECKPOINTS = "write checkpoints to a folder of your own; the run keeps what is under /opt/ml/checkpoints"
_ENTRY_POINT = "let the job's entry point branch on SM_CURRENT_INSTANCE_GROUP"
_LIMIT = "limit the time with stopping_condition: {max_run: seconds}"
_AGAIN = "run the job again by hand"

# `*` stands for any key or index.
_KEYS: dict[str, str] = {
    "version": "leave it out",
    "engine": "choose it where the job is started: headrace run, or Job.fit(engine='local')",
    "image_uri": "the local engine runs in the Python that runs headrace; leave it out",
    "role": _RUN_ELSEWHERE,
    "framework_version": _INSTALLED,
    "py_version": _INSTALLED,
    "requirements": _INSTALLED,
    "dependencies": "put the files into source_dir",
    "container_entry_point": "name a Python script with entry_point",
    "container_arguments": "use hyperparameters; they become the program's arguments",
    "checkpoint_s3_uri": _CHECKPOINTS,
    "checkpoint_local_path": _CHECKPOINTS,
    "output_path": "artefacts stay in the run's folder",
    "output_kms_key": _RUN_ELSEWHERE,
    "code_location": _RUN_ELSEWHERE,
    "volume_size": _RUN_ELSEWHERE,
    "volume_kms_key": _RUN_ELSEWHERE,
    "keep_alive_period_in_seconds": _RUN_ELSEWHERE,
    "training_plan": _RUN_ELSEWHERE,
    "subnets": _RUN_ELSEWHERE,
    "security_group_ids": _RUN_ELSEWHERE,
    "enable_network_isolation": _RUN_ELSEWHERE,
    "encrypt_inter_container_traffic": "the local engine's traffic stays on this machine; leave it out",
    "tags": "",
    "metric_definitions": "print the figures; they are in the run's logs",
    "input_mode": "input_mode: File belongs to a channel, and is the default",
    "debugger_hook_config": "",
    "profiler_config": "",
    "tensorboard_output_config": "write TensorBoard files into the model or output folder",
    "experiment_config": "",
    "use_spot_instances": "leave it out",
    "max_wait": _LIMIT,
    "max_run": "write stopping_condition: {max_run: seconds}",
    "max_retry_attempts": _AGAIN,
    "retry": _AGAIN,
    "retry_strategy": _AGAIN,
    "budget": _LIMIT,
    "array": "write one job file for each, or use --set",
    "placement": "",
    "instance_groups.*.entry_point": _ENTRY_POINT,
    "instance_groups.*.image_uri": "all groups run the same Python",
    "instance_groups.*.ports": "ports for the whole job: engines.local.ports",
    "instance_groups.*.ready": "wait in the program, with a deadline",
    "instance_groups.*.depends_on": "wait in the program, with a deadline",
    "distribution.mpi": _TORCH,
    "distribution.horovod": _TORCH,
    "distribution.custom_mpi_options": _TORCH,
    "distribution.smdistributed": _TORCH,
    "distribution.pytorchddp": "use torch_distributed",
    "distribution.pytorchxla": _TORCH,
    "distribution.parameter_server": _BY_HAND,
    "distribution.multi_worker_mirrored_strategy": _BY_HAND,
    "data_service.tf_data": "for PyTorch use feed; for TensorFlow start tf.data.service in the program",
    "completion.success": "name the groups with completion: {instance_groups: [...]}",
    "completion.then_stop": "set the grace with engines: {local: {stop_grace: seconds}}",
    "completion.failure": "the first failure ends the job",
    "completion.stall_after": _LIMIT,
    "stopping_condition.max_wait": _LIMIT,
    "stopping_condition.max_pending_time": _LIMIT,
    "inputs.*.s3_data_type": "leave it out: a channel is a folder",
    "inputs.*.compression": "unpack the files first",
    "inputs.*.compression_type": "unpack the files first",
    "inputs.*.record_wrapping": "",
    "inputs.*.record_wrapper_type": "",
    "inputs.*.shuffle_config": "shuffle in the data loader",
    "inputs.*.attribute_names": "",
    "inputs.*.target_attribute_name": "",
    "inputs.*.file_system_id": "mount the file system and name the folder with path",
    "engines.sagemaker": "use engines: {local: ...}",
    "engines.slurm": "use engines: {local: ...}",
    "engines.kubernetes": "use engines: {local: ...}",
    "engines.ray": "use engines: {local: ...}",
    "engines.batch": "use engines: {local: ...}",
    "engines.local.cpus": "use cpu_sets or cpu_shares",
    "engines.local.gpu": "",
    "engines.local.network": "hosts have addresses of their own: see address_prefix",
    "engines.local.link": "",
}

_VALUES: dict[tuple[str, str], str] = {
    ("distribution", "ShardedByS3Key"): _WHOLE_FOLDER,
    ("input_mode", "Pipe"): "use input_mode: File",
    ("input_mode", "FastFile"): "use input_mode: File",
    ("s3_data_type", "ManifestFile"): "leave it out: a channel is a folder",
    ("s3_data_type", "AugmentedManifestFile"): "leave it out: a channel is a folder",
    ("scheme", "s3"): _LOCAL_FILES,
    ("scheme", "https"): _LOCAL_FILES,
}


def later_key(path: Path) -> str | None:
    """Returns what to use today instead of a key of a later version; None when no version will know it."""
    return next((hint for pattern, hint in _KEYS.items() if _matches(path, pattern.split("."))), None)


def later_value(field: str, value: str) -> str | None:
    """Returns what to use today instead of a value of a later version; None when no version will know it."""
    return _VALUES.get((field, value))


def _matches(path: Path, pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(want in ("*", step) for step, want in zip(path, pattern, strict=True))
