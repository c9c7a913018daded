"""What a job keeps and where: the files that tell `restore`, `sync` and `collect` what to do.

    <output_path>/<job name>/output/model.tar.gz     what all hosts left in /opt/ml/model
    <output_path>/<job name>/output/output.tar.gz    what they left in /opt/ml/output/data
    <output_path>/<job name>/output/intermediate/    what they close in /opt/ml/output/intermediate, while the job runs
    <checkpoint_s3_uri>/                             /opt/ml/checkpoints of every host, there and back
    <output_path>/<job name>/output/parts/<host>/    model and output of a machine, when several have hosts of the job

Without `output_path` the folder is `output` in the run's own. With OutputDataConfig's CompressionType NONE there are
folders `model` and `data` in place of the archives.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.instance import storage
from headrace.instance.paths import TreePaths
from headrace.runs import RunPaths

RESTORE, SYNC, COLLECT = "restore", "sync", "collect"
PARTS = "parts"  # below the output
EARLIER = (("model.tar.gz", "model"), ("output.tar.gz", "data"))  # what a run of the same name may have left there


class HostArtefacts(msgspec.Struct, frozen=True):
    """Folders of one host, on this machine.

    Attributes:
        name: the host.
        base: its /opt/ml.
        checkpoints: its folder of checkpoints.
    """

    name: str
    base: str
    checkpoints: str


class ArtefactPlan(msgspec.Struct, frozen=True):
    """`engine/restore.json`, `engine/sync.json` and `engine/collect.json`.

    Attributes:
        output: where model, output and intermediate go; absolute.
        hosts: those of this machine, by number, the leader first: its file is kept where several hosts have one of the
            same name.
        checkpoints: where checkpoints are kept; absolute, empty when they stay with the hosts.
        compress: whether model and output become archives.
        remote: the user chose `output`: intermediate files go there while the job runs.
        part: name of what this machine contributes when other machines have hosts of the job, too; else empty.
    """

    output: str
    hosts: tuple[HostArtefacts, ...]
    checkpoints: str = ""
    compress: bool = True
    remote: bool = False
    part: str = ""

    @property
    def collected(self) -> str:
        """Where model and output of this machine's hosts go: no two machines store at one place."""
        return storage.join(self.output, PARTS, self.part) if self.part else self.output

    @property
    def intermediate(self) -> str:
        """Where intermediate files go."""
        return storage.join(self.output, "intermediate")


def read_plan(run: RunPaths, name: str) -> ArtefactPlan:
    """Reads the plan for one of the processes. Raises OSError or msgspec.DecodeError."""
    return msgspec.json.decode((run.engine / f"{name}.json").read_bytes(), type=ArtefactPlan)


def has_artefacts(run: RunPaths) -> bool:
    """Tells whether any host left something to collect, so that no process need be started when none did."""
    for base in (run.root / "hosts").glob("*"):
        tree = TreePaths(base)
        for folder in (tree.model, tree.output_data, tree.output_intermediate):
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
                return True
    return False


def holds_earlier(run: RunPaths) -> bool:
    """Tells whether an earlier run of the same name may have left model or output at the place of this one."""
    plan = read_plan(run, COLLECT)
    if not plan.remote or storage.is_s3(plan.collected):
        return plan.remote
    return any(os.path.lexists(Path(plan.collected, name)) for names in EARLIER for name in names)
