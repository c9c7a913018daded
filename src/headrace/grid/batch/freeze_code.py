"""The code of a grid's jobs: packed once, however many lines have it, for machines that have none of it.

What is packed is named after its content: other code is another job, also when it lies under the old name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.engines.planning.pack_files import files_below, packed
from headrace.engines.planning.prepare_run import bring_job_code
from headrace.errors import UsageError
from headrace.grid.batch.grid_bundle import content_digest
from headrace.grid.controller.line_jobs import CODE
from headrace.job import Job
from headrace.job.model.path_types import is_remote
from headrace.job.model.sagemaker_options import AUTO_WHEELS, NO_WHEELS
from headrace.runs import RunPaths, runs_dir

_DIGITS = 12


@dataclass(frozen=True)
class _Packed:
    """What a job names in the bundle in place of files of this machine.

    Attributes:
        own: keys of the job.
        groups: keys of each group.
        wheels: folder of its wheels; empty for none.
    """

    own: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    wheels: str


class FrozenCode:
    """See the module.

    Args:
        base: what relative paths of the jobs are relative to.

    Attributes:
        files: of the bundle, by name.
    """

    def __init__(self, base: Path) -> None:
        self.files: dict[str, bytes] = {}
        self._base = base
        self._packed: dict[bytes, _Packed] = {}

    def freed(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a job, in which its files are those of the bundle.

        Args:
            data: keys of the job, which has options of SageMaker.

        Raises:
            JobInvalid, UsageError, StorageError, OSError: a file that is not there or cannot be used.
        """
        groups = data.get("instance_groups") or ()
        options = data["engines"]["sagemaker"]
        named = [[each.get(name) for name in CODE] for each in (data, *groups)]
        known = msgspec.json.encode([named, options.get("wheels")])
        if known not in self._packed:
            self._packed[known] = self._pack(Job(base_path=self._base, **data))
        found = self._packed[known]
        free: dict[str, Any] = {key: value for key, value in data.items() if key != "dependencies"}
        free.update(found.own)
        if groups:
            free["instance_groups"] = [{**group, **more} for group, more in zip(groups, found.groups, strict=True)]
        if found.wheels:
            free["engines"] = {**data["engines"], "sagemaker": {**options, "wheels": found.wheels}}
        return free

    def _pack(self, job: Job) -> _Packed:
        folder = job.sagemaker.wheels
        wheels = "" if folder in (AUTO_WHEELS, NO_WHEELS) else self._pack_wheels(self._base / folder)
        if is_remote(job.source_dir) or not (job.source_dir or job.scripts or job.dependencies):
            return _Packed({}, tuple({} for _ in job.instance_groups), wheels)
        job.check_files()
        with tempfile.TemporaryDirectory(prefix="headrace-code-") as copied:
            paths = RunPaths(Path(copied))
            bring_job_code(job, paths, runs_dir())
            content = packed(files_below(paths.code, sorted(each.name for each in paths.code.iterdir())))
        name = f"code-{content_digest('.gz', content)[:_DIGITS]}.tar.gz"
        self.files[name] = content
        own = {"source_dir": name, **({"entry_point": job.in_code(job.entry_point)} if job.entry_point else {})}
        groups = (group.entry_point for group in job.instance_groups)
        return _Packed(own, tuple({"entry_point": job.in_code(each)} if each else {} for each in groups), wheels)

    def _pack_wheels(self, folder: Path) -> str:
        found = {wheel.name: wheel.read_bytes() for wheel in sorted(folder.glob("*.whl"))}
        if not found:
            hint = "fill it with `pip download`; see docs/sagemaker-runs.md"
            raise UsageError(f"engines.sagemaker.wheels: {folder} has no wheels", hint=hint)
        listed = "".join(f"{name} {content_digest(name, content)}\n" for name, content in found.items())
        place = f"wheels-{content_digest('', listed.encode())[:_DIGITS]}"
        self.files.update({f"{place}/{name}": content for name, content in found.items()})
        return place
