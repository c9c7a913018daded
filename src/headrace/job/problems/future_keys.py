"""Keys that later versions will know, and keys that have another place. They are refused by name, never ignored.

Each comes with what to do today, where there is something.
"""

from __future__ import annotations

from headrace.job.problems.finding import Path

NOT_YET = "is not supported yet"
ELSEWHERE = "has another place in a job file"

_LOCAL = "use engines: {local: ...}"

# `*` stands for any key or index.
_LATER: dict[str, str] = {
    "version": "leave it out",
    "engine": "choose it where the job is started: headrace run, or Job.fit(engine='local')",
    "budget.on_exceed": "leave it out: the job is stopped",
    "array": "write one job file for each, or use --set",
    "placement": "",
    "instance_groups.*.image_uri": "all groups run the same image",
    "instance_groups.*.ports": "ports for the whole job: engines.local.ports",
    "completion.failure": "the first failure ends the job",
    "engines.sagemaker": _LOCAL,
    "engines.ray": _LOCAL,
    "engines.batch": _LOCAL,
}

_MOVED: dict[str, str] = {
    "max_run": "write stopping_condition: {max_run: seconds}",
    "max_wait": "write stopping_condition: {max_wait: seconds}",
    "max_retry_attempts": "write retry: {attempts: 3}",
    "retry_strategy": "write retry: {attempts: 3}",
    "container_entry_point": "write command: [program, argument, ...]",
    "container_arguments": "write command: [program, argument, ...]",
    "distribution.custom_mpi_options": "write mpi: {enabled: true, custom_mpi_options: ...}",
    "distribution.processes_per_host": "write it into the strategy: mpi: {enabled: true, processes_per_host: 2}",
    "completion.success": "name the groups with completion: {instance_groups: [...]}",
    "completion.then_stop": "set the grace with engines: {local: {stop_grace: seconds}}",
    "debugger_hook_config": "write request_extras: {DebugHookConfig: {...}}",
    "profiler_config": "write request_extras: {ProfilerConfig: {...}}",
    "tensorboard_output_config": "write request_extras: {TensorBoardOutputConfig: {...}}",
    "experiment_config": "write request_extras: {ExperimentConfig: {...}}",
    "inputs.*.file_system_id": "mount the file system and name the folder with path",
    "inputs.*.target_attribute_name": "name it in attribute_names",
    "engines.local.cpus": "use cpu_sets or cpu_shares",
    "engines.local.gpu": "use gpus",
    "engines.local.link": "use network: {group: {bandwidth: 200mbit}}",
}


def elsewhere(path: Path) -> tuple[str, str] | None:
    """Returns what to say of a key that is not known here, and what to write today; None when no version knows it."""
    for keys, message in ((_LATER, NOT_YET), (_MOVED, ELSEWHERE)):
        for pattern, hint in keys.items():
            if _matches(path, pattern.split(".")):
                return message, hint
    return None


def _matches(path: Path, pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(want in ("*", step) for step, want in zip(path, pattern, strict=True))
