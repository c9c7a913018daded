"""How the engine of an endpoint runs its jobs: `--set engines.slurm.partition=gpu`, which a request has no member for.

They hold for every job. Those of a group hold for the jobs that have a group of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import JobInvalid, UsageError
from headrace.job import Job
from headrace.job.job_document import apply, parse_path
from headrace.job.problems.finding import JobSource

GROUPS = "groups"
_SHARED_FILES = ("local", "slurm")
_WITH_GRACE = (*_SHARED_FILES, "kubernetes")


@dataclass(frozen=True)
class EngineSettings:
    """An engine and the options of its jobs.

    Args:
        engine: its name.
        texts: ``engines.ENGINE.OPTION=VALUE``, as `headrace run --set` takes them.
    """

    engine: str
    texts: tuple[str, ...] = ()

    @property
    def shares_files(self) -> bool:
        """Whether hosts see the files of this machine, so that a bucket's folder can be linked."""
        return self.engine in _SHARED_FILES

    def put_into(self, data: Mapping[str, object], stop_grace: float, python: str) -> dict[str, object]:
        """Returns a job's data with the options of its engine.

        Args:
            data: keys of a job file.
            stop_grace: seconds between SIGTERM and SIGKILL, unless an option says otherwise.
            python: of the programs; empty for what the options say, else the engine's default.

        Raises:
            UsageError: an option has no place there, or its value cannot be read.
        """
        groups = data.get("instance_groups")
        names = {str(each.get("instance_group_name")) for each in groups} if isinstance(groups, Sequence) else set()
        base: dict[str, object] = {"stop_grace": stop_grace} if self.engine in _WITH_GRACE else {}
        with_base = {**data, "engines": {self.engine: base}} if base else dict(data)
        found = apply(with_base, [text for text in self.texts if (group := _group_of(text)) is None or group in names])
        if found.findings:
            wrong = "; ".join(f"{found.texts[each.path]}: {each.message}" for each in found.findings)
            raise UsageError(f"--set {wrong}", f"e.g. engines.{self.engine}.OPTION=VALUE")
        engines = found.data.get("engines")
        options = engines.get(self.engine) if isinstance(engines, dict) else None
        if python and isinstance(options, dict):
            options["python"] = python
        return found.data

    def check(self) -> None:
        """Checks the options by the rules of jobs.

        Raises:
            UsageError: they are not of this engine, or a job could not have them.
        """
        for text in self.texts:
            try:
                path = parse_path(text)
            except ValueError as error:
                raise UsageError(f"--set {text}: {error}", f"e.g. engines.{self.engine}.OPTION=VALUE") from error
            if path[:2] != ("engines", self.engine) or len(path) < 3:
                hint = f"give options of the engine that runs the jobs: engines.{self.engine}.OPTION=VALUE"
                raise UsageError(f"--set {text}: a job's own values stand in its request", hint)
        groups = sorted({group for text in self.texts if (group := _group_of(text)) is not None}) or ["group"]
        data: dict[str, object] = {
            "job_name": "settings",
            "entry_point": "train.py",
            "source_dir": ".",
            "image_uri": "image",
            "instance_groups": [
                {"instance_group_name": name, "instance_type": "ml.m5.xlarge", "instance_count": 1} for name in groups
            ],
        }
        try:
            Job.from_source(self.put_into(data, 30.0, ""), JobSource(), Path(), look=False)
        except JobInvalid as error:
            wrong = "; ".join(f"{each.field}: {each.message}" for each in error.problems)
            raise UsageError(f"--set: {wrong}", "`headrace schema` lists the options of the engines") from error


def _group_of(text: str) -> str | None:
    """Returns the group that an option is for; None for one that is for all."""
    path = parse_path(text)
    return str(path[3]) if len(path) > 3 and path[2] == GROUPS else None
