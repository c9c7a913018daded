"""The jobs of the fault table: small ones that wait for what the test wants, each with the parts that a fault needs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from run_places import WITHOUT_TORCH

if TYPE_CHECKING:
    from fault_play import Play

Fields = dict[str, Any]


@dataclass(frozen=True)
class JobShape:
    """A job.

    Attributes:
        script: its train.py.
        groups: instance group to number of hosts.
        fields: more of the job file.
        local: more of `engines.local`.
        settings: of `fault_caller`.
        environment: of the one who runs it.
        late: makes fields that are known when the machine is prepared.
    """

    script: str
    groups: dict[str, int] = field(default_factory=lambda: {"dnn": 2})
    fields: Fields = field(default_factory=dict)
    local: Fields = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    late: Callable[[Play], Fields] = lambda _: {}
    needs: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """Name and content of every file of the code."""
        return {"train.py": textwrap.dedent(self.script)}

    def document(self, play: Play) -> Fields | str:
        """Returns the job file."""
        return {
            "job_name": "job",
            "source_dir": str(play.place / "code"),
            "entry_point": "train.py",
            "instance_groups": [
                {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": count}
                for name, count in self.groups.items()
            ],
            "engines": {"local": {"isolation": "none", "stop_grace": 1.5, **self.local}},
            **self.fields,
            **self.late(play),
        }

    def isolated(self) -> JobShape:
        """The same with hosts in namespaces."""
        return replace(self, local={**self.local, "isolation": "namespace"})

    def having(self, **fields: Any) -> JobShape:
        """The same with other fields of the job file."""
        return replace(self, fields={**self.fields, **fields})

    def running(self, script: str) -> JobShape:
        """The same with another program."""
        return replace(self, script=script)

    def with_settings(self, **settings: Any) -> JobShape:
        """The same with other limits."""
        return replace(self, settings={**self.settings, **settings})


# Says `running`; ends with 0 when there is a file `all`, or one with its host's name. Told to end, it says `saving` and
# goes on: what ends it then is SIGKILL, or the file.
WAIT = """
    import os, signal, sys, time
    host = os.environ["SM_CURRENT_HOST"]
    signal.signal(signal.SIGTERM, lambda *_: print("saving", flush=True))
    print("running", flush=True)
    while not (os.path.exists("all") or os.path.exists(host)):
        time.sleep(0.02)
    print("done", flush=True)
"""
WAITING = JobShape(WAIT)
# Its programs end at once when told to, so that an agent that gives up is gone within a moment.
OBEYING = WAITING.running(
    """
    import os, time
    print("running", flush=True)
    while not os.path.exists("all"):
        time.sleep(0.02)
    """
)
# A program of the first host sends SIGTERM to process 1 when told to.
TERMINATING = WAITING.running(
    """
    import os, signal, time
    print("running", flush=True)
    while not os.path.exists("terminate"):
        time.sleep(0.02)
    if os.environ["SM_CURRENT_HOST"] == "algo-1":
        os.kill(1, signal.SIGTERM)
    time.sleep(600)
    """
)
STALLING = WAITING.having(completion={"stall_after": 2})
# Its programs eat memory when told to: 200 MiB are allowed.
EATING = JobShape(
    """
    import os, time
    print("running", flush=True)
    while not os.path.exists("eat"):
        time.sleep(0.02)
    block = bytearray()
    while os.environ["SM_CURRENT_HOST"] == "algo-2":
        block += b"x" * (8 << 20)
    time.sleep(600)
    """,
    settings={"memory_mib": 200},
)
FEEDING = JobShape(
    WAIT,
    groups={"dnn": 1, "data": 1},
    fields={
        "data_service": {"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
        "environment": WITHOUT_TORCH,
    },
)
# A model that takes some seconds to be stored.
MODEL = JobShape(
    """
    import os
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "wb") as file:
        file.write(os.urandom(64 << 20))
    """,
    groups={"dnn": 1},
)
SAVING = JobShape(
    """
    import os
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "wb") as file:
        for _ in range(16):
            file.write(bytes(1 << 20))
    """,
    groups={"dnn": 1},
)
STORING = replace(MODEL, late=lambda play: {"output_path": str(play.place / "output" / "models")})
# Writes more than its disk holds, then waits.
LOGGING = replace(
    WAITING,
    script="""
    import os, sys, time
    for _ in range(8000):
        print("x" * 1000)
    sys.stdout.flush()
    while not os.path.exists("all"):
        time.sleep(0.02)
    """,
    groups={"dnn": 1},
)
KEEPING = replace(WAITING, groups={"dnn": 1}, late=lambda play: {"checkpoint_s3_uri": str(play.place / "checkpoints")})
PIPING = replace(
    WAITING,
    groups={"dnn": 1},
    late=lambda play: {"inputs": {"train": {"s3_data": str(play.place / "data"), "input_mode": "Pipe"}}},
)
DOWNLOADING = JobShape(
    "print('ran')",
    groups={"dnn": 1},
    fields={"inputs": {"train": {"s3_data": "s3://bucket/train/"}}},
)

MPI_JOB = JobShape(
    """
    import os, signal, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    world.Barrier()
    print("running", world.rank, flush=True)
    while not world.allreduce(os.path.exists("all"), MPI.LOR):
        if os.path.exists("fail") and world.rank == 3:
            sys.exit(3)
        time.sleep(0.02)
    print("finishing", world.rank, flush=True)
    while not os.path.exists("leave"):
        time.sleep(0.02)
    """,
    fields={"distribution": {"mpi": {"enabled": True, "processes_per_host": 2}}},
    needs=("mpirun", "libmpi", "mpi4py"),
)
TORCH_JOB = JobShape(
    """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    ended = torch.zeros(1)
    dist.all_reduce(ended)
    print("running", dist.get_rank(), flush=True)
    while not ended:
        if os.path.exists("fail") and dist.get_rank() == 3:
            sys.exit(3)
        ended.fill_(float(os.path.exists("all")))
        dist.all_reduce(ended)
        time.sleep(0.02)
    print("finishing", dist.get_rank(), flush=True)
    while not os.path.exists("leave"):
        time.sleep(0.02)
    """,
    fields={
        "distribution": {"torch_distributed": {"enabled": True, "processes_per_host": 2}},
        "environment": {"OMP_NUM_THREADS": "1"},
    },
)
ELASTIC = JobShape(
    """
    import os, time
    print("running", os.environ["RANK"], flush=True)
    while not os.path.exists("all"):
        time.sleep(0.02)
    """,
    fields={
        "distribution": {
            "torch_distributed": {
                "enabled": True,
                "processes_per_host": 1,
                "elastic": {"min_hosts": 2, "max_restarts": 0},
            }
        },
        "environment": {"OMP_NUM_THREADS": "1"},
    },
)
