"""The settings file of a user, `settings.yaml` in $HEADRACE_HOME: which of his runs are kept.

retention: {older: 30d, keep: 5}        # as `headrace prune --older 30d --keep 5`, when `headrace run` starts a run
"""

from __future__ import annotations

import time
from typing import Annotated

import click
import msgspec
from pydantic import BeforeValidator, model_validator

from headrace.cli.options import age_seconds
from headrace.errors import HeadraceError
from headrace.grid.load_grid import read_file
from headrace.grid.retention import list_ended, remove_ended
from headrace.home import settings_file
from headrace.insight.render.plain_text import size_text
from headrace.job.model.field_types import whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken, show
from headrace.own_runs import started_here
from headrace.runs import Run, list_runs, supervisor_alive
from headrace.runs.disk_use import Ended, size_of, to_prune
from headrace.runs.event_text import counted
from headrace.runs.reader import Alive
from headrace.runs.store import ASK_ENGINE, is_copy


def _age(value: object) -> str:
    if not isinstance(value, str) or age_seconds(value) is None:
        raise broken("must be an age", seen=show(value), hint="for example 12h, or 30d")
    return value


class Retention(Part):
    """Which runs are removed, see `to_prune`.

    Attributes:
        older: those that ended longer ago; None for any.
        keep: but not the newest of each job.
    """

    older: Annotated[str, BeforeValidator(_age)] | None = None
    keep: Annotated[int, whole(0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Retention:
        if self.older is None and self.keep is None:
            raise broken("must have older, keep, or both", seen="neither")
        return self

    @property
    def words(self) -> str:
        """The rule in words."""
        age = "" if self.older is None else f"ended more than {self.older} ago"
        newest = "" if not self.keep else f"not among the newest {self.keep} of their job"
        return " and ".join(filter(None, [age, newest])) or "all that have ended"

    def chosen(self, alive: Alive) -> list[Ended]:
        """Returns what the rule does not keep of all that has ended, oldest first; `alive` as in `Run`."""
        age = None if self.older is None else age_seconds(self.older)
        return to_prune(list_ended(alive, _tell), age, self.keep or 0, time.time())


class _Settings(Part):
    retention: Retention | None = None


def apply_settings() -> None:
    """Removes what the rule of the settings file does not keep, and says so in a line on standard error. While a run
    goes on on this machine, nothing is removed.

    Raises:
        JobInvalid, UsageError: the file is not what it may be.
    """
    path = settings_file()
    rule = read_file(path, _Settings, "settings").retention
    if rule is None or any(_is_in_use(run) for run in list_runs()):
        return
    runs = bytes_removed = 0
    try:
        for ended in rule.chosen(_as_recorded):
            size = sum(map(size_of, ended.runs))
            remove_ended(ended)
            runs, bytes_removed = runs + len(ended.runs), bytes_removed + size
    except (HeadraceError, OSError) as error:
        _tell(f"not all that {path} says could be removed: {error}")
    if runs:
        _tell(f"removed {counted(runs, 'run')}, {size_text(bytes_removed)}: {rule.words} ({path})")


def _is_in_use(run: Run) -> bool:
    """Whether a process answers for a run of this user: it goes on, or is about to."""
    if is_copy(run.paths) or not started_here(run.paths.root):
        return False
    try:
        return run.header.supervisor_pid != ASK_ENGINE and supervisor_alive(run.header)
    except (OSError, msgspec.DecodeError):
        return False


def _as_recorded(run: Run) -> bool:
    """A platform is not asked now: what its record does not end goes on."""
    return run.header.supervisor_pid == ASK_ENGINE or is_copy(run.paths) or supervisor_alive(run.header)


def _tell(words: str) -> None:
    click.echo(f"headrace: {words}", err=True)
