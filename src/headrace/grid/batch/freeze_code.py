"""The code of a grid's jobs: copied once, however many lines have it, and packed for machines that have none of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.engines.planning.pack_files import files_below, packed
from headrace.engines.planning.prepare_run import bring_job_code
from headrace.errors import UsageError
from headrace.job import Job
from headrace.job.model.path_types import is_remote
from headrace.runs import RunPaths, runs_dir

_CODE, _WHEELS = "code", "wheels"
_NAMED = ("source_dir", "entry_point", "dependencies")


@dataclass(frozen=True)
class _Copied:
    """What a job names in the archive in place of files of this machine.

    Attributes:
        own: keys of the job.
        groups: keys of each group.
        wheels: folder of its wheels; empty for none.
    """

    own: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    wheels: str


class FrozenCode:
    """See the module. A context, in which there is a folder for the copies.

    Args:
        base: what relative paths of the jobs are relative to.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._copied: dict[str, _Copied] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-grid-")
        self._root = Path(self._folder.name)

    def __enter__(self) -> FrozenCode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def freed(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a job, in which its files are those of the archive.

        Args:
            data: keys of the job, which has options of SageMaker.

        Raises:
            JobInvalid, UsageError, StorageError, OSError: a file that is not there or cannot be used.
        """
        groups = data.get("instance_groups") or ()
        options = data["engines"]["sagemaker"]
        named = [{name: each.get(name) for name in _NAMED} for each in (data, *groups)]
        known = json.dumps([named, options.get("wheels")])
        if known not in self._copied:
            self._copied[known] = self._copy(Job(base_path=self._base, **data))
        copied = self._copied[known]
        free: dict[str, Any] = {key: value for key, value in data.items() if key != "dependencies"}
        free.update(copied.own)
        if groups:
            free["instance_groups"] = [group | more for group, more in zip(groups, copied.groups, strict=True)]
        if copied.wheels:
            free["engines"] = data["engines"] | {"sagemaker": options | {"wheels": copied.wheels}}
        return free

    def pack(self) -> bytes:
        """Returns the archive, ``.tar.gz``; empty when no job names a file."""
        names = sorted(each.name for each in self._root.iterdir())
        return packed(files_below(self._root, names)) if names else b""

    def _copy(self, job: Job) -> _Copied:
        number = str(len(self._copied))
        wheels = f"{_WHEELS}/{number}" if job.sagemaker.wheels else ""
        if job.sagemaker.wheels:
            self._copy_wheels(self._base / job.sagemaker.wheels, wheels)
        if is_remote(job.source_dir) or not (job.source_dir or job.scripts or job.dependencies):
            return _Copied({}, tuple({} for _ in job.instance_groups), wheels)
        job.check_files()
        place = f"{_CODE}/{number}"
        with tempfile.TemporaryDirectory(prefix="headrace-code-") as folder:
            paths = RunPaths(Path(folder))
            bring_job_code(job, paths, runs_dir())
            self._root.joinpath(_CODE).mkdir(exist_ok=True)
            shutil.move(paths.code, self._root / place)
        own: dict[str, Any] = {"source_dir": place}
        own |= {"entry_point": job.in_code(job.entry_point)} if job.entry_point else {}
        groups = (group.entry_point for group in job.instance_groups)
        return _Copied(own, tuple({"entry_point": job.in_code(each)} if each else {} for each in groups), wheels)

    def _copy_wheels(self, folder: Path, place: str) -> None:
        found = sorted(folder.glob("*.whl"))
        if not found:
            hint = "fill it with `pip download`; see docs/sagemaker-engine.md"
            raise UsageError(f"engines.sagemaker.wheels: {folder} has no wheels", hint=hint)
        (self._root / place).mkdir(parents=True)
        for wheel in found:
            shutil.copy2(wheel, self._root / place)
