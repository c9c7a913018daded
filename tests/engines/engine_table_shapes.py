"""The jobs of the table of engines: each as a job file that every engine takes, with its code and its data.

A job file here names folders of this machine. What an engine needs besides (a partition, an image, a bucket) its
platform adds: `Platform.fitted`.
"""

from __future__ import annotations

import json
import runpy
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from headrace.job import load_job

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Fields = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A job.

    Attributes:
        files: name and content of every file of its code; none for an example.
        groups: instance group to number of hosts.
        fields: more of the job file.
        example: job file below `examples`, which has code and groups of its own.
        overrides: of the example, as `--set` takes them.
        data: program below `examples` that writes the example's data.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=lambda: {"dnn": 2})
    fields: Fields = field(default_factory=dict)
    example: str = ""
    overrides: tuple[str, ...] = ()
    data: str = ""

    def having(self, **fields: Any) -> Shape:
        """The same with other fields of the job file."""
        return replace(self, fields={**self.fields, **fields})

    def document(self, name: str, folder: Path) -> Fields:
        """Writes the code, and returns the job file.

        Args:
            name: of the job.
            folder: where code and data may lie.
        """
        if self.example:
            return self._of_example(name)
        code = folder / name
        code.mkdir(parents=True)
        for file, text in self.files.items():
            (code / file).write_text(textwrap.dedent(text))
        groups = [{"name": group, "type": "ml.c5.xlarge", "count": count} for group, count in self.groups.items()]
        job: Fields = {"job_name": name, "source_dir": str(code), "entry_point": "train.py", "instance_groups": groups}
        return {**job, **self.fields}

    def _of_example(self, name: str) -> Fields:
        file = EXAMPLES / self.example
        if self.data:
            _prepare(self.data)
        job = load_job(str(file), [f"job_name={name}", *self.overrides])
        given: Fields = json.loads(job.to_json())
        given["source_dir"] = str(file.parent / given["source_dir"])
        for channel in given.get("inputs", {}).values():
            channel["s3_data"] = str((file.parent / channel["s3_data"]).resolve())
        given.pop("engines", None)
        given["instance_groups"] = [
            {key.removeprefix("instance_group_").removeprefix("instance_"): value for key, value in group.items()}
            for group in given["instance_groups"]
        ]
        one_thread = {"OMP_NUM_THREADS": "1"}  # the hosts share the cores of this machine
        given["environment"] = {**given.get("environment", {}), **one_thread}
        return {**given, **self.fields}


@cache
def _prepare(program: str) -> None:
    runpy.run_path(str(EXAMPLES / program))["main"](EXAMPLES / Path(program).parent / "data")


def script(text: str, **more: Any) -> Shape:
    """A job with one program."""
    return Shape(files={"train.py": text}, **more)


HELLO = script(
    """
    import headrace, os
    env = headrace.Environment()
    print("hello", env.current_host, env.current_instance_group, sorted(env.hosts), len(os.environ["SM_HOSTS"]) > 9)
    """,
    groups={"data": 1, "dnn": 1},
)
MPI = Shape(example="mpi-hello/mpi-hello.yaml")
HOROVOD = Shape(
    example="horovod-mnist/job.yaml", overrides=("hyperparameters.epochs=1",), data="horovod-mnist/prepare.py"
)
DIGITS = Shape(example="digits/heterogeneous.yaml", overrides=("hyperparameters.epochs=1",), data="digits/prepare.py")
ELASTIC = script(
    """
    import json, os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train():  # its model, which holds the group's communicators, is gone before the group is
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(5)
        model = DistributedDataParallel(torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        rows, losses = torch.randn(20, 8, 16), []
        print("world of", world, flush=True)
        for batch in rows:
            mine = batch[rank::world]
            loss = ((model(mine) - mine.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        if rank == 0:
            with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "result.json"), "w") as file:
                json.dump({"losses": losses, "world": world}, file)
        dist.barrier()

    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
    os._exit(0)  # torch's threads abort one process in a hundred while the interpreter ends, under torchrun alone too
    """,
    fields={
        "distribution": {
            "torch_distributed": {
                "enabled": True,
                "processes_per_host": 1,
                "elastic": {"min_hosts": 2, "max_restarts": 3},
            }
        },
        "environment": {"OMP_NUM_THREADS": "1"},
    },
)
TF_DATA = script(
    """
    import json, os
    import tensorflow as tf
    from headrace.tensorflow import distribute

    tf.config.threading.set_intra_op_parallelism_threads(1)
    rows = tf.data.Dataset.range(400).map(lambda row: tf.cast(row, tf.float32) / 400.0).batch(20)
    weight, losses = tf.Variable(0.25), []
    for x in distribute(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.sin(3.0 * x) - weight * x) ** 2)
        weight.assign_sub(0.5 * tape.gradient(loss, weight))
        losses.append(float(loss).hex())
    with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "result.json"), "w") as file:
        json.dump({"losses": losses}, file)
    """,
    groups={"data": 1, "dnn": 1},
    fields={
        "data_service": {"tf_data": {"enabled": True}, "instance_groups": ["data"]},
        "completion": {"instance_groups": ["dnn"]},
        "environment": {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    },
)

# Says `running`; ends with 0 when there is a file `all` in its folder. Told to end, it saves and ends.
WAITING = script(
    """
    import os, pathlib, signal, sys, time
    def save(*_):
        pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text("saved")
        print("saving", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("running", flush=True)
    while not os.path.exists("all"):
        time.sleep(0.05)
    print("done", flush=True)
    """
)
RESTARTED = replace(WAITING, fields=ELASTIC.fields)
THREE = replace(WAITING, groups={"dnn": 3})
LIMITED = replace(WAITING, groups={"dnn": 1}).having(stopping_condition={"max_run": 5})
# Fills the disk of its model when told to.
WRITING = script(
    """
    import os, time
    print("running", flush=True)
    while not os.path.exists("all"):
        time.sleep(0.05)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    """,
    groups={"dnn": 1},
)
# The program of algo-2 takes memory when told to, until there is no more.
EATING = script(
    """
    import os, time
    print("running", flush=True)
    while not os.path.exists("all"):
        time.sleep(0.05)
    block = bytearray()
    while os.environ["SM_CURRENT_HOST"] == "algo-2":
        block += b"x" * (8 << 20)
    time.sleep(600)
    """
)
# Two data hosts feed one trainer, which has 100 steps and says each.
FED = Shape(
    files={
        "train.py": """
            from data import squares
            from headrace import feed
            print("running", flush=True)
            total = 0
            for batch in feed.DataLoader(squares(), global_batch_size=4, shuffle=True, seed=3):
                total += int(sum(batch))
                print("step", flush=True)
            print("sum", total, flush=True)
            """,
        "data.py": """
            import time
            from headrace import feed
            class Squares:
                def __len__(self): return 400
                def __getitem__(self, index):
                    time.sleep(0.05)
                    return index * index
            @feed.pipeline
            def squares(): return Squares()
            """,
    },
    groups={"data": 2, "dnn": 1},
    fields={
        "data_service": {"feed": {"enabled": True, "workers_per_host": 2}, "instance_groups": ["data"]},
        "completion": {"instance_groups": ["dnn"]},
    },
)
SUM_OF_SQUARES = sum(index * index for index in range(400))
