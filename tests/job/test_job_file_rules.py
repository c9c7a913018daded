"""Every rule of the job file: snippet, field, line, words of the message. Each snippet breaks one rule, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from snippets import HEAD, ONE, TWO

from headrace.errors import Problem

Problems = Callable[..., tuple[Problem, ...]]


def hyperparameters(count: int) -> str:
    return ONE + "hyperparameters:\n" + "".join(f"  k{index}: 1\n" for index in range(count))


def environment(count: int) -> str:
    return ONE + "environment:\n" + "".join(f"  K{index}: a\n" for index in range(count))


def channels(count: int) -> str:
    return ONE + "inputs:\n" + "".join(f"  c{index}: data\n" for index in range(count))


def groups(count: int) -> str:
    rows = "".join(f"  - {{name: g{index}, type: ml.c5.xlarge, count: 1}}\n" for index in range(count))
    return HEAD + ("instance_groups:\n" + rows if count else "instance_groups: []\n")


def group(fields: str) -> str:
    return HEAD + f"instance_groups:\n  - {{{fields}}}\n"


def local(options: str) -> str:
    return TWO + f"engines:\n  local: {{{options}}}\n"


GROUP = "name: a, type: ml.c5.xlarge"

KEYS = [
    # did you mean
    (ONE + "hyperparams: {}", "hyperparams", 6, ["unknown key; did you mean 'hyperparameters'?"]),
    (ONE + "StoppingCondition: {}", "StoppingCondition", 6, ["did you mean 'stopping_condition'?"]),
    (ONE + "input: {}", "input", 6, ["did you mean 'inputs'?"]),
    (ONE + "qqq: 1", "qqq", 6, ["unknown key; known: job_name, source_dir, entry_point", "engines"]),
    (ONE + "self: 1", "self", 6, ["unknown key"]),
    (ONE + "base_path: /", "base_path", 6, ["unknown key"]),
    (group(f"{GROUP}, count: 1, counts: 1"), "instance_groups[0].counts", 5, ["did you mean 'count'?"]),
    (group(f"{GROUP}, count: 1, self: 1"), "instance_groups[0].self", 5, ["unknown key"]),
    (ONE + "inputs:\n  a: {path: data, mode: File}", "inputs.a.mode", 7, ["did you mean 'input_mode'?"]),
    (ONE + "inputs:\n  s3_data: {path: data, zz: File}", "inputs.s3_data.zz", 7, ["known: s3_data, path, dist"]),
    (ONE + "distribution:\n  torch: {enabled: true}", "distribution.torch", 7, ["did you mean 'torch_distributed'?"]),
    (ONE + "stopping_condition: {maxrun: 3}", "stopping_condition.maxrun", 6, ["did you mean 'max_run'?"]),
    (ONE + "engines: {locale: {}}", "engines.locale", 6, ["did you mean 'local'?"]),
    (local("cpu_set: {}"), "engines.local.cpu_set", 8, ["did you mean 'cpu_sets'?"]),
    (local("ports: {fed: 1}"), "engines.local.ports.fed", 8, ["did you mean 'feed'?"]),
    # two spellings of one key
    (group(f"{GROUP}, count: 1, instance_count: 1"), "instance_groups[0].count", 5, ["another name", "instance_count"]),
    (ONE + "inputs:\n  a: {path: data, s3_data: data}", "inputs.a.path", 7, ["another name of 's3_data'"]),
    # required
    ("source_dir: code\nentry_point: train.py\ninstance_type: ml.c5.xlarge", "instance_count", 1, ["must be set"]),
    (ONE.replace("source_dir: code\nentry_point: train.py", "entry_point: -m train"), "source_dir", 1, ["is required"]),
    (ONE.replace("source_dir: code\nentry_point: train.py", "entry_point: trainer"), "source_dir", 1, ["is required"]),
    (ONE.replace("entry_point: train.py", "entry_point:"), "entry_point", 3, ["is required"]),
    (group("name: a, type: ml.c5.xlarge"), "instance_groups[0].count", 5, ["is required"]),
    (group("instance_group_name: a, type: ml.c5.xlarge"), "instance_groups[0].instance_count", 5, ["is required"]),
    (ONE + "inputs:\n  a: {content_type: text/csv}", "inputs.a.s3_data", 7, ["is required"]),
    (ONE + "inputs:\n  a: {compression_type: None}", "inputs.a.path", 7, ["is required"]),
    (ONE + "distribution:\n  torch_distributed: {}", "distribution.torch_distributed.enabled", 7, ["is required"]),
    (ONE + "data_service: {feed: {}}", "data_service.feed.enabled", 6, ["is required"]),
    (ONE + "completion: {}", "completion.instance_groups", 6, ["is required"]),
    (ONE + "distribution: {mpi: {}}", "distribution.mpi.enabled", 6, ["is required"]),
    (ONE + "distribution: [{horovod: {}}]", "distribution[0].horovod.enabled", 6, ["is required"]),
    (ONE + "retry: {}", "retry.attempts", 6, ["is required"]),
    (ONE + "tags: [{Key: a}]", "tags[0].Value", 6, ["is required"]),
    (ONE + "subnets: [s-1]", "security_group_ids", 1, ["is required together with subnets"]),
    (ONE + "security_group_ids: [s-1]", "subnets", 1, ["is required together with security_group_ids"]),
    (
        ONE + "inputs: {a: {path: s3://b/m, s3_data_type: AugmentedManifestFile, input_mode: Pipe}}",
        "inputs.a.attribute_names",
        6,
        ["is required with AugmentedManifestFile"],
    ),
    (
        ONE + "distribution: {torch_distributed: {enabled: true, elastic: {}}}",
        "distribution.torch_distributed.elastic.min_hosts",
        6,
        ["is required"],
    ),
    (
        ONE + "distribution:\n  - mpi: {enabled: true, custom_mpi_option: x}",
        "distribution[0].mpi.custom_mpi_option",
        7,
        ["did you mean 'custom_mpi_options'?"],
    ),
    (group(f"{GROUP}, count: 1, ready: {{prot: 1}}"), "instance_groups[0].ready.prot", 5, ["did you mean 'port'?"]),
]

TYPES = [
    (ONE + "hyperparameters: [1]", "hyperparameters", 6, ["must be a mapping"]),
    (ONE + "environment: 3", "environment", 6, ["must be a mapping"]),
    (ONE + "environment:\n  A: 3", "environment.A", 7, ["must be a string"]),
    (ONE + "environment:\n  A:", "environment.A", 7, ["must be a string"]),
    (HEAD + "instance_groups: {a: 1}", "instance_groups", 4, ["must be a list"]),
    (HEAD + "instance_groups:\n  - a\n", "instance_groups[0]", 5, ["must be a mapping"]),
    (group("name: 3, type: ml.c5.xlarge, count: 1"), "instance_groups[0].name", 5, ["must be a string"]),
    (group(f"{GROUP}, count: '1'"), "instance_groups[0].count", 5, ["must be a whole number"]),
    (group(f"{GROUP}, count: 1.0"), "instance_groups[0].count", 5, ["must be a whole number"]),
    (group(f"{GROUP}, count: true"), "instance_groups[0].count", 5, ["must be a whole number"]),
    (ONE + "inputs: data", "inputs", 6, ["must be a mapping"]),
    (ONE + "inputs:\n  a: 3", "inputs.a", 7, ["must be a mapping"]),
    (TWO + "distribution: yes", "distribution", 7, ["must be a mapping"]),
    (
        ONE + "distribution: {torch_distributed: {enabled: yes}}",
        "distribution.torch_distributed.enabled",
        6,
        ["true or"],
    ),
    (ONE + "completion: {instance_groups: a}", "completion.instance_groups", 6, ["must be a list"]),
    (ONE + "stopping_condition: 3", "stopping_condition", 6, ["must be a mapping"]),
    (ONE + "stopping_condition: {max_run: 1h}", "stopping_condition.max_run", 6, ["must be a whole number"]),
    (local("cpu_sets: 0-3"), "engines.local.cpu_sets", 8, ["must be a mapping"]),
    (local("stop_grace: soon"), "engines.local.stop_grace", 8, ["must be a number of seconds"]),
    (ONE.replace("entry_point: train.py", "command: python"), "command", 3, ["must be a list"]),
    (ONE + "dependencies: lib", "dependencies", 6, ["must be a list"]),
    (ONE + "retry: 3", "retry", 6, ["must be a mapping"]),
    (ONE + "budget: 25", "budget", 6, ["must be a mapping"]),
    (ONE + "encrypt_inter_container_traffic: 1", "encrypt_inter_container_traffic", 6, ["true or false"]),
    (ONE + "request_extras: []", "request_extras", 6, ["must be a mapping"]),
    (ONE + "distribution: [3]", "distribution[0]", 6, ["must be a mapping"]),
    (group(f"{GROUP}, count: 1, depends_on: b"), "instance_groups[0].depends_on", 5, ["must be a list"]),
    (group(f"{GROUP}, count: 1, environment: {{A: 1}}"), "instance_groups[0].environment.A", 5, ["must be a string"]),
]

LIMITS = [
    (HEAD.replace("demo", "a_b") + "instance_type: ml.c5.xlarge\ninstance_count: 1", "job_name", 1, ["1 to 63"]),
    (ONE.replace("demo", "a" * 64), "job_name", 1, ["1 to 63"]),
    (ONE.replace("demo", "a-"), "job_name", 1, ["end with a letter or digit"]),
    (ONE.replace("train.py", "train.txt"), "entry_point", 3, ["ends in .py or .sh", "'-m' and a module", "package"]),
    (ONE.replace("train.py", "../code/train.py"), "entry_point", 3, ["must lie inside source_dir"]),
    (ONE.replace("train.py", "/code/train.py"), "entry_point", 3, ["must lie inside source_dir"]),
    (hyperparameters(101), "hyperparameters", 6, ["at most 100"]),
    (ONE + f"hyperparameters:\n  {'k' * 257}: 1", f"hyperparameters.{'k' * 257}", 7, ["1 to 256 characters"]),
    (ONE + f"hyperparameters:\n  k: {'v' * 2501}", "hyperparameters.k", 7, ["at most 2500 characters"]),
    (ONE + f"hyperparameters:\n  k: [{'1, ' * 833}10]", "hyperparameters.k", 7, ["at most 2500 characters as JSON"]),
    (ONE + "hyperparameters:\n  k: .nan", "hyperparameters.k", 7, ["finite"]),
    (
        ONE + "hyperparameters:\n  sagemaker_program: a",
        "hyperparameters.sagemaker_program",
        7,
        ["reserved"],
    ),
    (environment(101), "environment", 6, ["at most 100"]),
    (ONE + f"environment:\n  {'K' * 513}: a", f"environment.{'K' * 513}", 7, ["1 to 512 characters"]),
    (ONE + f"environment:\n  K: {'v' * 513}", "environment.K", 7, ["0 to 512 characters"]),
    (ONE + "environment:\n  2K: a", "environment.2K", 7, ["not start with a digit"]),
    (ONE + "environment:\n  A-B: a", "environment.A-B", 7, ["letters, digits and underscores"]),
    (groups(6), "instance_groups", 4, ["1 to 5 instance groups"]),
    (groups(0), "instance_groups", 4, ["1 to 5 instance groups"]),
    (group("name: '', type: ml.c5.xlarge, count: 1"), "instance_groups[0].name", 5, ["1 to 64 characters"]),
    (group(f"name: {'n' * 65}, type: ml.c5.xlarge, count: 1"), "instance_groups[0].name", 5, ["1 to 64 characters"]),
    (group(f"{GROUP}, instance_count: 0"), "instance_groups[0].instance_count", 5, ["must be at least 1"]),
    (group(f"{GROUP}, count: 1001"), "instance_groups", 4, ["at most 1000 hosts"]),
    (group("name: a, type: c5.xlarge, count: 1"), "instance_groups[0].type", 5, ["did you mean 'ml.c5.xlarge'?"]),
    (group("name: a, type: ml.c5.large, count: 1"), "instance_groups[0].type", 5, ["must be an instance type"]),
    (ONE.replace("ml.c5.xlarge", "ml.c5"), "instance_type", 4, ["there are ml.c5.xlarge, ml.c5.2xlarge"]),
    (ONE.replace("ml.c5.xlarge", "localhost"), "instance_type", 4, ["must be an instance type of SageMaker training"]),
    (channels(21), "inputs", 6, ["1 to 20 channels"]),
    (ONE + "inputs: {}", "inputs", 6, ["1 to 20 channels"]),
    (ONE + f"inputs:\n  {'c' * 65}: data", f"inputs.{'c' * 65}", 7, ["1 to 64 characters"]),
    (ONE + "inputs:\n  a b: data", "inputs.a b", 7, ["letters, digits, dots, hyphens and underscores"]),
    (ONE + "inputs:\n  ..: data", "inputs...", 7, ["usable as the name of a folder"]),
    (ONE + "inputs:\n  headrace: data", "inputs.headrace", 7, ["reserved"]),
    (ONE + "inputs:\n  a: ftp://host/data", "inputs.a", 7, ["local path or a file:// URI"]),
    (ONE + "inputs:\n  a: file://", "inputs.a", 7, ["must name a folder"]),
    (ONE + f"inputs:\n  a: {{path: data, content_type: {'t' * 257}}}", "inputs.a.content_type", 7, ["0 to 256"]),
    (
        ONE + "distribution: {torch_distributed: {enabled: true, processes_per_host: 0}}",
        "distribution.torch_distributed.processes_per_host",
        6,
        ["at least 1"],
    ),
    (
        ONE + "data_service: {feed: {enabled: true, workers_per_host: 0}}",
        "data_service.feed.workers_per_host",
        6,
        ["'auto' or a whole number"],
    ),
    (
        ONE + "data_service: {tf_data: {enabled: true, workers_per_host: auto}}",
        "data_service.tf_data.workers_per_host",
        6,
        ["must be a whole number"],
    ),
    (
        ONE + "data_service: {tf_data: {enabled: true, workers_per_host: 65}}",
        "data_service.tf_data.workers_per_host",
        6,
        ["must be 1 to 64"],
    ),
    (
        ONE + "data_service: {tf_data: {enabled: true, worker_timeout: 0}}",
        "data_service.tf_data.worker_timeout",
        6,
        ["must be above 0"],
    ),
    (
        ONE + "data_service: {tf_data: {enabled: true}, feed: {enabled: true}}",
        "data_service.tf_data",
        6,
        ["feed and tf_data cannot be used together"],
    ),
    (ONE + "stopping_condition: {max_run: 0}", "stopping_condition.max_run", 6, ["1 to 2419200 seconds (28 days)"]),
    (ONE + "stopping_condition: {max_run: 2419201}", "stopping_condition.max_run", 6, ["1 to 2419200 seconds"]),
    (local("stop_grace: -1"), "engines.local.stop_grace", 8, ["0 to 3600"]),
    (local("stop_grace: .nan"), "engines.local.stop_grace", 8, ["0 to 3600"]),
    (local("stop_grace: 3601"), "engines.local.stop_grace", 8, ["0 to 3600"]),
    (local("cpu_sets: {dnn: 3-1}"), "engines.local.cpu_sets.dnn", 8, ["'0-3,5'"]),
    (local("cpu_sets: {dnn: ''}"), "engines.local.cpu_sets.dnn", 8, ["'0-3,5'"]),
    (local("cpu_shares: {dnn: 0, data: 1}"), "engines.local.cpu_shares.dnn", 8, ["above 0"]),
    (local("address_prefix: 10.0.1"), "engines.local.address_prefix", 8, ["loopback"]),
    (local("address_prefix: 127.0.256"), "engines.local.address_prefix", 8, ["loopback"]),
    (local("address_prefix: 127.0.0.1"), "engines.local.address_prefix", 8, ["loopback"]),
    (local("ports: {feed: 0}"), "engines.local.ports.feed", 8, ["1 to 65535"]),
    (local("ports: {feed: 65536}"), "engines.local.ports.feed", 8, ["1 to 65535"]),
    (ONE.replace("entry_point: train.py", "command: ['']"), "command", 3, ["begin with a program"]),
    (ONE.replace("entry_point: train.py", f"command: [a, {'x' * 257}]"), "command[1]", 3, ["0 to 256"]),
    (ONE.replace("train.py", "'-m 1a'"), "entry_point", 3, ["a module"]),
    (ONE + "requirements: ../r.txt", "requirements", 6, ["must lie inside source_dir"]),
    (ONE + "retry: {attempts: 0}", "retry.attempts", 6, ["1 to 30"]),
    (ONE + "retry: {attempts: 31}", "retry.attempts", 6, ["1 to 30"]),
    (ONE + "checkpoint_local_path: here", "checkpoint_local_path", 6, ["absolute path"]),
    (ONE + "checkpoint_local_path: /opt/../x", "checkpoint_local_path", 6, ["without '..'"]),
    (ONE + "checkpoint_s3_uri: ftp://x", "checkpoint_s3_uri", 6, ["or an s3:// URI"]),
    (ONE + "output_path: s3://", "output_path", 6, ["s3://bucket/prefix"]),
    (ONE + "output_path: s3:/bucket", "output_path", 6, ["or an s3:// URI"]),
    (ONE + "checkpoint_s3_uri: s3//b/x", "checkpoint_s3_uri", 6, ["or an s3:// URI"]),
    (ONE + "inputs:\n  a: s3:/b/x", "inputs.a", 7, ["or an s3:// URI"]),
    (ONE.replace("source_dir: code", "source_dir: s3://b/code"), "source_dir", 2, ["archive"]),
    (ONE + f"inputs: {{a: s3://b/{'x' * 1020}}}", "inputs.a", 6, ["at most 1024"]),
    (ONE + "inputs: {a: {path: data, input_mode: Stream}}", "inputs.a.input_mode", 6, ["File, FastFile, Pipe"]),
    (ONE + "inputs: {a: {path: data, compression: Gzip}}", "inputs.a.compression", 6, ["input_mode Pipe only"]),
    (ONE + "inputs: {a: {path: data, record_wrapper_type: RecordIO}}", "inputs.a.record_wrapper_type", 6, ["Pipe"]),
    (ONE + "inputs: {a: {path: data, attribute_names: [b]}}", "inputs.a.attribute_names", 6, ["Augmented"]),
    (ONE + "inputs: {a: {path: data, shuffle_config: {seed: x}}}", "inputs.a.shuffle_config.seed", 6, ["whole"]),
    (ONE + "stopping_condition: {max_pending_time: 1799}", "stopping_condition.max_pending_time", 6, ["1800 to"]),
    (ONE + "stopping_condition: {max_wait: 60}", "stopping_condition.max_wait", 6, ["at least max_run", "86400"]),
    (ONE + "completion: {stall_after: 0}", "completion.stall_after", 6, ["above 0"]),
    (ONE + "keep_alive_period_in_seconds: 21601", "keep_alive_period_in_seconds", 6, ["0 to 21600"]),
    (ONE + "volume_size: -1", "volume_size", 6, ["at least 0"]),
    (ONE + "tags: [{key: 'a?', value: b}]", "tags[0].key", 6, ["letters, digits"]),
    (ONE + "tags: [{key: a, value: b}, {key: a, value: c}]", "tags[1].key", 6, ["twice"]),
    (ONE + "tags: [" + ", ".join(f"{{key: k{n}, value: b}}" for n in range(51)) + "]", "tags", 6, ["at most 50"]),
    (ONE + f"metric_definitions: [{{name: a, regex: {'x' * 501}}}]", "metric_definitions[0].regex", 6, ["1 to 500"]),
    (ONE + "metric_definitions: [{name: a, regex: '(b'}]", "metric_definitions[0].regex", 6, ["regular exp"]),
    (
        ONE + "metric_definitions: [{name: a, regex: (b)}, {name: b, regex: (b)}, {Name: a, Regex: (c)}]",
        "metric_definitions[2].Name",
        6,
        ["different from the other metrics'"],
    ),
    (ONE + "metric_definitions: [{name: a, regex: b}]", "metric_definitions[0].regex", 6, ["must have a group"]),
    (ONE + "distribution: {mpi: {enabled: true, processes_per_host: 0}}", "distribution.mpi.processes_per_host", 6, []),
    (
        TWO + "distribution: [{torch_distributed: {enabled: true, elastic: {min_hosts: 2}}, instance_groups: [dnn]}]",
        "distribution[0].torch_distributed.elastic.min_hosts",
        7,
        ["at most the hosts of the distribution, which are 1"],
    ),
    (group(f"{GROUP}, count: 1, ready: {{timeout: 0}}"), "instance_groups[0].ready.timeout", 5, ["above 0"]),
    (group(f"{GROUP}, count: 1, ready: {{port: 0}}"), "instance_groups[0].ready.port", 5, ["1 to 65535"]),
    (local("isolation: docker"), "engines.local.isolation", 8, ["auto, none, shared_network, namespace"]),
    (local("limits: some"), "engines.local.limits", 8, ["auto, none"]),
    (local("gpus: {dnn: a}"), "engines.local.gpus.dnn", 8, ["GPU ids"]),
    (local("gpus: {x: 0}"), "engines.local.gpus.x", 8, ["name of an instance group"]),
    (local("network: {dnn: {bandwidth: fast}}"), "engines.local.network.dnn.bandwidth", 8, ["'200mbit'"]),
    (local("network: {dnn: {bandwidth: 1kbit}}"), "engines.local.network.dnn.bandwidth", 8, ["at least 8kbit"]),
    (local("network: {x: {bandwidth: 1gbit}}"), "engines.local.network.x", 8, ["name of an instance group"]),
    (local("isolation: none, network: {dnn: {bandwidth: 1gbit}}"), "engines.local.network", 8, ["namespace only"]),
    (
        local("isolation: shared_network, network: {dnn: {bandwidth: 1gbit}}"),
        "engines.local.network",
        8,
        ["namespace only"],
    ),
    (local("ports: {master: 9000, feed: 9000}"), "engines.local.ports.master", 8, ["differ from the feed port"]),
]

BETWEEN_KEYS = [
    (HEAD, "instance_groups", 1, ["instance_count and instance_type must be set if instance_groups is not set"]),
    (HEAD + "instance_count: 1", "instance_type", 1, ["must be set if instance_groups is not set"]),
    (
        TWO + "instance_count: 1",
        "instance_count",
        7,
        ["InstanceType or InstanceCount cannot be specified with InstanceGroups"],
    ),
    (
        TWO + "instance_type: ml.c5.xlarge\ninstance_count: 1",
        "instance_type",
        7,
        ["InstanceType or InstanceCount cannot be specified with InstanceGroups"],
    ),
    (TWO.replace("name: dnn", "name: data"), "instance_groups[1].name", 6, ["unique", "instance_groups[0]"]),
    (
        TWO + "inputs:\n  a: {path: data, instance_groups: [date]}",
        "inputs.a.instance_groups[0]",
        8,
        ["must be the name of an instance group: 'data', 'dnn'"],
    ),
    (
        TWO + "inputs:\n  a:\n    path: data\n    instance_group_names:\n      - data\n      - x",
        "inputs.a.instance_group_names[1]",
        12,
        ["must be the name of an instance group"],
    ),
    (TWO + "inputs:\n  a: {path: data, instance_groups: []}", "inputs.a.instance_groups", 8, ["at least one group"]),
    (
        TWO + "inputs:\n  a: {path: data, instance_groups: [data, data]}",
        "inputs.a.instance_groups[1]",
        8,
        ["names a group twice"],
    ),
    (
        TWO + "inputs:\n  a: {path: data, instance_groups: [data]}\n  b: data\n  c: {path: more}",
        "inputs.b",
        9,
        ["Some channels have assigned instance groups: [a] while others not: [b, c]"],
    ),
    (ONE + "inputs:\n  train: data\n  Train: more", "inputs.Train", 8, ["SM_CHANNEL_TRAIN", "'train'"]),
    (
        TWO + "distribution: {torch_distributed: {enabled: true}, instance_groups: [gpu]}",
        "distribution.instance_groups[0]",
        7,
        ["must be the name of an instance group"],
    ),
    (
        TWO + "distribution: {torch_distributed: {enabled: true}}",
        "distribution.instance_groups",
        7,
        ["is required in a job with several groups; they are 'data', 'dnn'"],
    ),
    (  # null is no list of groups
        TWO + "distribution: {torch_distributed: {enabled: true}, instance_groups: null}",
        "distribution.instance_groups",
        7,
        ["is required in a job with several groups; they are 'data', 'dnn'"],
    ),
    (
        TWO + "data_service: {feed: null, instance_groups: [data]}",
        "data_service.instance_groups",
        7,
        ["names groups while no data service is enabled"],
    ),
    (  # what is wrong by itself is named, and not what would follow from it
        TWO + "data_service: {feed: 5, instance_groups: [data]}",
        "data_service.feed",
        7,
        ["must be a mapping"],
    ),
    (
        TWO + "distribution:\n  instance_groups: [dnn]",
        "distribution.instance_groups",
        8,
        ["Don't set training instance groups while no distribution strategies enabled!"],
    ),
    (
        TWO + "distribution:\n  torch_distributed: {enabled: false}\n  instance_groups: [dnn]",
        "distribution.instance_groups",
        9,
        ["no distribution strategies enabled"],
    ),
    (
        TWO + "data_service: {feed: {enabled: true}}",
        "data_service.instance_groups",
        7,
        ["is required in a job with several groups"],
    ),
    (
        TWO + "data_service: {feed: {enabled: false}, instance_groups: [data]}",
        "data_service.instance_groups",
        7,
        ["names groups while no data service is enabled"],
    ),
    (
        TWO + "data_service: {tf_data: {enabled: true}}",
        "data_service.instance_groups",
        7,
        ["is required in a job with several groups"],
    ),
    (
        TWO + "data_service: {tf_data: {enabled: false}, instance_groups: [data]}",
        "data_service.instance_groups",
        7,
        ["names groups while no data service is enabled"],
    ),
    (ONE + "command: [a]", "command", 6, ["cannot be used together with entry_point"]),
    (
        TWO + "distribution: {mpi: {enabled: true}, horovod: {enabled: true}, instance_groups: [dnn]}",
        "distribution",
        7,
        ["one way of starting ranks", "mpi, horovod"],
    ),
    (
        TWO
        + "distribution:\n  - {mpi: {enabled: true}, instance_groups: [dnn]}\n"
        + "  - {torch_distributed: {enabled: true}, instance_groups: [data, dnn]}",
        "distribution[1].instance_groups[1]",
        9,
        ["in distribution[0] already"],
    ),
    (
        ONE + "distribution: [{mpi: {enabled: true}}, {torch_distributed: {enabled: true}}]",
        "distribution[1].instance_groups",
        6,
        ["in distribution[0] already"],
    ),
    (
        TWO + "distribution: [{mpi: {enabled: true}, instance_groups: [gpu]}]",
        "distribution[0].instance_groups[0]",
        7,
        ["Invalid training instance group gpu !"],
    ),
    (
        ONE + "distribution: {mpi: {enabled: true}, instance_groups: [gpu]}",
        "distribution.instance_groups[0]",
        6,
        ["Instance groups not specified in the estimator !"],
    ),
    (
        group(f"{GROUP}, count: 1, depends_on: [a]"),
        "instance_groups[0].depends_on",
        5,
        ["the group would wait for itself: a -> a"],
    ),
    (group(f"{GROUP}, count: 1, depends_on: [b]"), "instance_groups[0].depends_on[0]", 5, ["name of an instance"]),
    (
        group(f"{GROUP}, count: 1, environment: {{" + ", ".join(f"K{n}: ''" for n in range(101)) + "}"),
        "instance_groups[0].environment",
        5,
        ["at most 100 variables, the job's included"],
    ),
    (TWO + "completion: {instance_groups: []}", "completion.instance_groups", 7, ["at least one group"]),
    (TWO + "completion: {instance_groups: [x]}", "completion.instance_groups[0]", 7, ["name of an instance group"]),
    (ONE + "completion: {instance_groups: [x]}", "completion.instance_groups[0]", 6, ["'homogeneousCluster'"]),
    (local("cpu_sets: {x: '0'}"), "engines.local.cpu_sets.x", 8, ["name of an instance group"]),
    (
        local("cpu_sets: {dnn: '0'}, cpu_shares: {dnn: 1, data: 1}"),
        "engines.local.cpu_shares",
        8,
        ["cannot be used together"],
    ),
    (local("cpu_shares: {dnn: 1}"), "engines.local.cpu_shares", 8, ["every group; missing: data"]),
]

FILES = [
    (ONE.replace("source_dir: code", "source_dir: cod"), "source_dir", 2, ["must be a folder", "does not exist"]),
    (ONE.replace("source_dir: code", "source_dir: code/train.py"), "source_dir", 2, ["is a file"]),
    (ONE.replace("train.py", "test.py"), "entry_point", 3, ["must be a file in source_dir"]),
    (ONE.replace("source_dir: code\n", ""), "entry_point", 2, ["must be a file", "train.py does not exist"]),
    (ONE + "inputs:\n  a: dat", "inputs.a", 7, ["must be a folder", "does not exist"]),
    (ONE + "inputs:\n  a: {s3_data: code/train.py}", "inputs.a.s3_data", 7, ["is a file"]),
    (ONE + "inputs:\n  a:\n    path: file:///no/such", "inputs.a.path", 8, ["/no/such does not exist"]),
    (ONE + "inputs:\n  a: file://dat", "inputs.a", 7, ["dat does not exist"]),
    (ONE + "inputs: {a: {path: m, s3_data_type: ManifestFile}}", "inputs.a.path", 6, ["must be a file"]),
    (ONE + "requirements: r.txt", "requirements", 6, ["must be a file in source_dir"]),
    (ONE + "dependencies: [lib]", "dependencies[0]", 6, ["must be a file or folder"]),
    (ONE.replace("train.py", "trainer"), "entry_point", 3, ["setup.py or pyproject.toml"]),
    (ONE.replace("source_dir: code", "source_dir: code.tar.gz"), "source_dir", 2, ["must be a file"]),
    (group(f"{GROUP}, count: 1, entry_point: b.py"), "instance_groups[0].entry_point", 5, ["must be a file in"]),
]

TEXT = [
    ("", "job", 0, ["is empty"]),
    ("- a\n", "job", 1, ["must be a mapping of keys to values"]),
    (ONE + "a: b: c\n", "YAML", 6, ["mapping values are not allowed here"]),
    (ONE + "a: [1, 2\n", "YAML", 7, ["while parsing a flow sequence"]),
    (ONE + "a: \x07\n", "YAML", 6, ["control characters"]),
    (ONE + "job_name: x\n", "job_name", 6, ["is given twice: in line 1 and again here"]),
    (ONE + "hyperparameters:\n  a: 1\n  a: 2\n", "hyperparameters.a", 8, ["is given twice: in line 7"]),
    (ONE + "hyperparameters:\n  a: !!python/object:os.system x\n", "hyperparameters.a", 7, ["!!python/object"]),
    (ONE + "hyperparameters:\n  a: !mine [1]\n", "hyperparameters.a", 7, ["tag that is not supported: !mine"]),
    (ONE + "hyperparameters:\n  a: !!int x\n", "hyperparameters.a", 7, ["is no int"]),
    (ONE + "hyperparameters:\n  <<: {a: 1}\n", "hyperparameters.<<", 7, ["merge keys are not supported"]),
    (ONE + "hyperparameters:\n  [a]: 1\n", "hyperparameters.?", 7, ["keys must be text"]),
    (ONE + "hyperparameters:\n  a: &x [*x]\n", "hyperparameters.a[0]", 7, ["must not contain itself"]),
    (ONE + "hyperparameters: {a: " + "[" * 1500 + "]" * 1500 + "}\n", "job", 0, ["nested too deeply"]),
]


@pytest.mark.promise("job-file", "a mistake in a job file is named with file, line, field and what is allowed")
@pytest.mark.parametrize(("text", "field", "line", "words"), KEYS + TYPES + LIMITS + BETWEEN_KEYS + FILES + TEXT)
@pytest.mark.promise("sagemaker-differences", "absent here: wrong groups and mixed channels are found after the upload")
def test_a_broken_rule_is_one_problem_with_file_line_field_and_what_is_allowed(
    problems: Problems, text: str, field: str, line: int, words: list[str]
) -> None:
    (problem,) = problems(text)
    assert (problem.file, problem.field, problem.line) == ("job.yaml", field, line)
    for word in words:
        assert word in problem.message


@pytest.mark.parametrize(
    "text",
    [
        ONE.replace("demo", "a" * 63),
        ONE.replace("demo", "a"),
        ONE.replace("demo", "a--b"),
        ONE.replace("entry_point: train.py", "entry_point: deep/train.py"),
        ONE.replace("entry_point: train.py", "entry_point: ./train.py"),
        hyperparameters(100),
        ONE + f"hyperparameters:\n  {'k' * 256}: 1",
        ONE + f"hyperparameters:\n  k: {'v' * 2500}",
        ONE + f"hyperparameters:\n  k: [{'1, ' * 832}10]",
        ONE + "hyperparameters: {}",
        environment(100),
        ONE + f"environment:\n  ? {'K' * 512}\n  : a",
        ONE + f"environment:\n  K: {'v' * 512}",
        ONE + "environment:\n  K: ''",
        groups(1),
        groups(5),
        group(f"name: {'n' * 64}, type: ml.c5.xlarge, count: 1"),
        group("name: 'any / thing ü', type: ml.c5.xlarge, count: 1"),
        group(f"{GROUP}, count: 1000"),
        channels(1),
        channels(20),
        ONE + f"inputs:\n  {'c' * 64}: data",
        ONE + "inputs:\n  a: file://data",
        ONE
        + f"inputs:\n  a: {{path: data, content_type: {'t' * 256}, distribution: FullyReplicated, input_mode: File}}",
        ONE + "stopping_condition: {max_run: 1}",
        ONE + "stopping_condition: {max_run: 2419200}",
        ONE + "distribution: {torch_distributed: {enabled: true, processes_per_host: 1}}",
        ONE + "distribution: {torch_distributed: {enabled: false}}",
        ONE + "data_service: {feed: {enabled: true, workers_per_host: 1}}",
        ONE + "data_service: {feed: {enabled: true, workers_per_host: auto}}",
        ONE + "data_service: {feed: {enabled: false}, tf_data: {enabled: true, workers_per_host: 64}}",
        ONE + "data_service: {tf_data: {enabled: true, fault_tolerant: false, worker_timeout: 0.5}}",
        ONE + "completion: {instance_groups: [homogeneousCluster]}",
        ONE + "engines: {local: {cpu_sets: {homogeneousCluster: 0}}}",
        TWO + "distribution: {torch_distributed: {enabled: true}, instance_groups: [dnn, data]}",
        local("stop_grace: 0"),
        local("stop_grace: 3600"),
        local("address_prefix: 127.255.0"),
        local("cpu_sets: {dnn: '0-3, 5'}"),
        local("cpu_shares: {dnn: 0.5, data: 3}"),
        local("ports: {control: 7070, feed: 7071, master: 65535}"),
        local("ports: {control: 7070}"),
        ONE.replace("train.py", "'-m trainer.main'"),
        ONE.replace("entry_point: train.py", "command: [python, -c, 'print(1); # $(rm -rf x)']"),
        ONE.replace("source_dir: code\nentry_point: train.py", f"command: [{', '.join(['a'] * 200)}]"),
        ONE.replace("source_dir: code", "source_dir: s3://b/code.tar.gz"),
        ONE + "retry: {attempts: 30}\ncheckpoint_s3_uri: s3://b/c\noutput_path: out\n",
        ONE + "checkpoint_s3_uri: ./s3:/b\noutput_path: s3/b\n",
        ONE
        + "inputs: {a: s3://b/c, d: {path: s3://b/d, input_mode: Pipe, compression: Gzip, record_wrapping: RecordIO}}",
        ONE + "input_mode: Pipe\ninputs: {a: {path: s3://b/d, compression_type: Gzip, shuffle_config: {seed: -1}}}",
        ONE + "inputs: {a: {path: s3://b/d, distribution: ShardedByS3Key, s3_data_type: ManifestFile}}",
        ONE + "stopping_condition: {max_run: 60, max_wait: 60, max_pending_time: 1800}",
        ONE + "completion: {stall_after: 0.5}",
        ONE + "tags: [" + ", ".join(f"{{Key: k{n}, Value: ''}}" for n in range(50)) + "]",
        ONE + "subnets: [" + "a, " * 16 + "]\nsecurity_group_ids: [" + "a, " * 5 + "]",
        ONE
        + "distribution: {smdistributed: {modelparallel: {enabled: true, parameters: {a: 1}}}, mpi: {enabled: true}}",
        TWO
        + "distribution:\n  - {mpi: {enabled: true, processes_per_host: 2}, instance_groups: [dnn]}\n"
        + "  - {multi_worker_mirrored_strategy: {enabled: true}, instance_groups: [data]}",
        group(f"{GROUP}, count: 1, entry_point: deep/train.py, hyperparameters: {{a: null}}, ready: {{port: 1}}"),
        local("isolation: namespace, network: {dnn: {bandwidth: 200mbit}}, limits: none, gpus: {dnn: '0,1'}"),
        "\ufeff" + ONE,
        "---\n" + ONE + "...\n",
    ],
)
def test_a_value_at_its_limit_is_allowed(problems: Problems, text: str) -> None:
    assert problems(text) == ()


@pytest.mark.parametrize(
    ("field", "written", "meant"),
    [
        ("output_path", "s3:/bucket", "s3://bucket"),
        ("output_path", "S3:/b/x", "s3://b/x"),
        ("output_path", "'s3:'", "s3://bucket/prefix"),
        ("output_path", "https:/b.s3.amazonaws.com/x", "https://b.s3.amazonaws.com/x"),
        ("checkpoint_s3_uri", "s3//b/x", "s3://b/x"),
        ("checkpoint_s3_uri", "s3:bucket", "s3://bucket"),
        ("checkpoint_s3_uri", "S3://b/x", "s3://b/x"),
        ("checkpoint_s3_uri", "file:/data/x", "file:///data/x"),
        ("checkpoint_s3_uri", "file//data", "file://data"),
        ("code_location", "s3:/b", "s3://b"),
        ("record.uri", "s3:/b/x", "s3://b/x"),
        ("inputs.a", "s3:/b/x", "s3://b/x"),
        ("source_dir", "s3:/b/c.tar.gz", "s3://b/c.tar.gz"),
    ],
)
def test_a_mistyped_scheme_is_no_folder_and_the_uri_that_is_meant_is_named(
    problems: Problems, field: str, written: str, meant: str
) -> None:
    key, _, inner = field.partition(".")
    text = f"{key}: {{{inner}: {written}}}\n" if inner else f"{key}: {written}\n"
    base = ONE.replace("source_dir: code\n", "") if field == "source_dir" else ONE
    (problem,) = problems(base + text)
    assert (problem.file, problem.line, problem.field) == ("job.yaml", len(base.splitlines()) + 1, field)
    bare = written.strip("'")
    folder = "" if "://" in bare else f" (a folder of this name: './{bare}')"
    assert problem.hint == f"did you mean {meant!r}?{folder}"


@pytest.mark.parametrize(
    ("snippet", "field", "instead"),
    [
        ("placement: x", "placement", ""),
        ("budget: {max_cost: 3, on_exceed: fail}", "budget.on_exceed", "stopped"),
        ("array: {grid: {}}", "array", "--set"),
        ("engines: {ray: {}}", "engines.ray", "local"),
    ],
)
def test_what_a_later_version_will_know_is_refused_by_name_and_says_what_to_use_today(
    problems: Problems, snippet: str, field: str, instead: str
) -> None:
    (problem,) = problems(ONE + snippet)
    assert (problem.field, problem.line) == (field, 6)
    assert "not supported yet" in problem.message
    assert instead in problem.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sagemaker_program", "the script to run, as SageMaker's SDK writes it; a job file says entry_point"),
        ("sagemaker_submit_directory", "a job file says source_dir"),
        (
            "sagemaker_mpi_enabled",
            "how ranks are started, as SageMaker's SDK writes it",
        ),
        ("sagemaker_other", "choose another name"),
    ],
)
def test_a_hyperparameter_that_sagemaker_reserves_is_explained(problems: Problems, name: str, hint: str) -> None:
    (problem,) = problems(f"{ONE}hyperparameters:\n  {name}: x")
    assert hint in problem.hint


def test_a_key_of_a_group_that_a_later_version_will_know_says_what_to_use_today(problems: Problems) -> None:
    (problem,) = problems(group(f"{GROUP}, count: 1, image_uri: x"))
    assert problem.field == "instance_groups[0].image_uri"
    assert problem.message == "is not supported yet"
    assert "same image" in problem.hint


@pytest.mark.parametrize(
    ("snippet", "field", "instead"),
    [
        ("max_run: 3", "max_run", "stopping_condition: {max_run: seconds}"),
        ("max_wait: 3", "max_wait", "stopping_condition: {max_wait: seconds}"),
        ("max_retry_attempts: 3", "max_retry_attempts", "retry: {attempts: 3}"),
        ("container_entry_point: [a]", "container_entry_point", "command"),
        ("distribution: {custom_mpi_options: x}", "distribution.custom_mpi_options", "mpi"),
        ("experiment_config: {}", "experiment_config", "request_extras"),
        ("engines: {local: {gpu: 1}}", "engines.local.gpu", "gpus"),
    ],
)
def test_a_key_of_the_sdk_that_is_elsewhere_says_where(
    problems: Problems, snippet: str, field: str, instead: str
) -> None:
    (problem,) = problems(ONE + snippet)
    assert (problem.field, problem.line, problem.message) == (field, 6, "has another place in a job file")
    assert instead in problem.hint


def test_the_examples_of_the_documentation_read_as_they_should(problems: Problems) -> None:
    text = HEAD.replace("source_dir", "hyperparams: {}\nsource_dir") + (
        "instance_groups:\n"
        "  - {name: a, type: ml.c5.xlarge, count: 1}\n"
        "  - name: b\n"
        "    instance_type: ml.c5.xlarge\n"
        "    instance_count: 0\n"
    )
    assert [str(problem) for problem in problems(text)] == [
        "job.yaml:2: hyperparams: unknown key; did you mean 'hyperparameters'?",
        "job.yaml:9: instance_groups[1].instance_count: must be at least 1 (got 0)",
    ]


def test_all_problems_come_at_once_and_in_the_order_of_the_file(problems: Problems) -> None:
    text = """\
source_dir: nowhere
entry_point: train.txt
hyperparams: {}
instance_type: ml.c5.xlarge
instance_groups:
  - name: dnn
    type: ml.p4d.24xlarg
    count: 0
  - {name: dnn, type: ml.c5.xlarge, count: 1}
inputs:
  a: {path: nodata, instance_groups: [dnnn]}
  b: data
inputs: {}
distribution:
  mpi: {enable: true}
engines:
  local:
    cpu_sets: {x: 0-a}
environment:
  A: 1
"""
    found = [(problem.line, problem.field) for problem in problems(text)]
    assert found == [
        (1, "source_dir"),
        (2, "entry_point"),
        (3, "hyperparams"),
        (4, "instance_type"),
        (7, "instance_groups[0].type"),
        (8, "instance_groups[0].count"),
        (9, "instance_groups[1].name"),
        (11, "inputs.a.instance_groups[0]"),
        (11, "inputs.a.path"),
        (12, "inputs.b"),
        (13, "inputs"),
        (15, "distribution.mpi.enabled"),
        (15, "distribution.mpi.enable"),
        (18, "engines.local.cpu_sets.x"),
        (18, "engines.local.cpu_sets.x"),
        (20, "environment.A"),
    ]


def test_a_long_value_is_cut_and_a_secret_of_the_wrong_length_is_not_shown(problems: Problems) -> None:
    (problem,) = problems(ONE + f"stopping_condition: {{max_run: {'x' * 1000}}}")
    assert len(problem.value) <= 60
    (problem,) = problems(ONE + f"environment: {{TOKEN: {'hunter2' * 100}}}")
    assert "hunter2" not in str(problem)
    assert "700 characters" in str(problem)


def test_a_file_that_grows_by_aliases_is_refused_in_little_time(problems: Problems) -> None:
    rows = ["  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
    messages = [problem.message for problem in problems(ONE + "hyperparameters:\n" + "\n".join(rows))]
    assert "must hold at most 100000 values" in messages


def test_a_value_where_a_mapping_belongs_is_told_the_keys(problems: Problems) -> None:
    (problem,) = problems(ONE + "budget: 25")
    assert problem.hint == "write e.g. {max_cost: ...}; its keys: max_cost, region"
    (channels,) = problems(ONE + "inputs: data")
    assert "write e.g." not in channels.hint, "its keys are the user's own names"
