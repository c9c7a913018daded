"""The exception hierarchy, and how long the reason of a failure may be. Imports nothing.

    HeadraceError                 everything that headrace raises on purpose
    ├── UsageError                a user's mistake; the CLI prints error: and hint: and exits with 2
    │   ├── JobInvalid            a job file or Job that breaks a rule; holds all problems at once
    │   ├── NotAvailable          something of a library in whose place headrace stands, which it has not
    │   ├── RunNotFound           no run of that name or id
    │   └── EngineRefused         this engine cannot start this job here and now (port in use, ...); holds its code
    │       ├── NameInUse         a job of that name is there already
    │       └── EngineUnreachable the platform does not answer; no mistake of the user's, so the CLI exits with 1
    ├── RunFailed                 a run ended in another way than success; holds the first cause and its last lines
    ├── StorageError              data that cannot be read or written: no credentials, denied, no answer, disk full
    │   ├── ObjectMissing         no such bucket, object, file or folder
    │   ├── ObjectChanged         it changed while it was read
    │   └── RecordDamaged         a record of a run in an object store that lacks a part, or holds what is none
    ├── CloudError                what AWS refused, or could not make, change or remove; holds its code
    └── FeedError                 the data service
        ├── PipelineError         a pipeline that cannot be named, imported or built
        │   └── PipelineNotBuilt  it was used as the dataset that it names
        ├── ShardError            a shard that is missing, broken or was changed; names file and offset
        ├── PositionError         a saved position that does not fit the loader, or is not a position
        ├── WorkerError           the user's dataset or collate_fn raised in a worker; holds the remote traceback
        ├── WorkersLost           no worker is left that can serve, within the time allowed
        └── ProtocolError         a peer that broke the protocol or could not authenticate

`RunInterrupted` is none of them: it ends the program, as the KeyboardInterrupt does that it is.

Every message says what was wrong, the value seen, what is allowed and where. `hint` says what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FAILURE_CHARACTERS = 1024
"""Characters of SageMaker's FailureReason: output/failure and the reason of a failed run are cut there."""


INTERRUPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a program or a generator. Every other exception of the user's code is an error of what he was called for,
also one that is no `Exception`, as a panic of a library in Rust is."""
_interruptions: list[type[BaseException]] = [*INTERRUPTIONS]


def interruptions() -> tuple[type[BaseException], ...]:
    """Returns those of `INTERRUPTIONS` that are no error of the user's code in this process."""
    return tuple(_interruptions)


def take_interruptions_for_errors() -> None:
    """For a worker process: nobody interrupts it but by its connection, so `sys.exit()` in a row is an error of that
    row. A generator is still closed by GeneratorExit."""
    _interruptions[:] = [GeneratorExit]


class HeadraceError(Exception):
    """Base of all errors that headrace raises on purpose.

    Args:
        message: what was wrong, with the value seen and where.
        hint: what the user can do about it; printed after ``hint:``.
    """

    exit_code = 1
    """Exit code of a command that ends by it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(HeadraceError):
    """A user's mistake. Exit code 2; nothing was started."""

    exit_code = 2


class Broken(Enum):
    """What a value breaks of the shape that a service gives it."""

    TYPE = "type"
    MISSING = "missing"
    LIMIT = "limit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Problem:
    """One broken rule of a job.

    Attributes:
        field: dotted path of the field, e.g. ``instance_groups[1].instance_count``.
        message: what is wrong and what is allowed, in one sentence.
        value: the value seen, as `repr` shows it; empty when the field is missing.
        file: the job file, empty for a `Job` made in Python.
        line: 1-based line in `file`, 0 when there is none.
        hint: what to do, empty when the message says it all.
        code: what SageMaker or its SDK calls this error, e.g. ``ValidationException``; empty for a rule of headrace.
        broken: what of a service's shape the value breaks; None for every other rule.
    """

    field: str
    message: str
    value: str = ""
    file: str = ""
    line: int = 0
    hint: str = ""
    code: str = ""
    broken: Broken | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        seen = f" (got {self.value})" if self.value else ""
        return f"{where}{self.field}: {self.message}{seen}"


class JobInvalid(UsageError):
    """A job that breaks one or more rules. All of them are in `problems`, in file order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems

    def __str__(self) -> str:
        shown = (f"{problem}\nhint: {problem.hint}" if problem.hint else str(problem) for problem in self.problems)
        return "\n".join(shown)


class NotAvailable(UsageError, AttributeError):
    """Something of a library in whose place headrace stands, which it has not. The hint names what to do instead.

    `hasattr` says False, as it should.
    """


class RunNotFound(UsageError):
    """No run of that name or id in the runs directory."""


class EngineRefused(UsageError):
    """This engine cannot start this job here and now; nothing was started.

    Attributes:
        code: the platform's own name of the error, e.g. ``ResourceLimitExceeded``; empty where it has none.
    """

    code = ""


class NameInUse(EngineRefused):
    """A job of that name is there already."""


class EngineUnreachable(EngineRefused):
    """The platform of this engine does not answer, or is too busy. That says nothing about a job, or about a run."""

    exit_code = 1


class RunFailed(HeadraceError):
    """A run ended in another way than success.

    Args:
        message: how it ended, with the first cause.
        hint: what to do next.
        last_lines: the last output of the program that failed; empty when there is none.
    """

    def __init__(self, message: str, hint: str = "", last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.last_lines = last_lines

    def __str__(self) -> str:
        shown = "".join(f"\n  | {line}" for line in self.last_lines)
        return f"{self.message}{shown}\nhint: {self.hint}" if self.hint else f"{self.message}{shown}"


class RunInterrupted(SystemExit, KeyboardInterrupt):
    """The user pressed Ctrl-C in a program that waited for its run, which has been stopped. `code` is 130.

    Nobody needs to catch it: the program ends with that code, and Python shows no traceback.
    """


class StorageError(HeadraceError):
    """Data that cannot be read or written, here or in an object store."""


class StorageUnreachable(StorageError):
    """An object store does not answer. That says nothing about what is in it."""


class ObjectMissing(StorageError):
    """No such bucket, object, file or folder."""


class ObjectChanged(StorageError):
    """An object or file changed while it was read."""


class RecordDamaged(StorageError):
    """The record of a run in an object store lacks a part, or holds what is none. It stays so."""


class CloudError(HeadraceError):
    """AWS refused a call, or could not make, change or remove what `headrace cloud` asked for.

    Args:
        message: what was refused, with AWS's own words.
        hint: what the user can do about it.
        code: AWS's code of the error, e.g. ``AccessDenied``; empty when there was no answer.
    """

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class FeedError(HeadraceError):
    """Base of the data service's errors."""


class PipelineError(FeedError):
    """A pipeline that cannot be named, imported or built."""


class PipelineNotBuilt(PipelineError, AttributeError, TypeError):
    """A pipeline was used as the dataset that it only names. An AttributeError too, so that `hasattr` says no, and a
    TypeError, as for other things without a length."""


class ShardError(FeedError):
    """A shard that is missing, broken or was changed. The message names the file, and the offset where it is broken."""


class PositionError(FeedError):
    """A saved position (`DataLoader.state_dict`) that does not fit the loader, or is not a position."""


class WorkerError(FeedError, RuntimeError):
    """The user's dataset or collate_fn raised in a worker, or ended it. The message holds the remote traceback.

    A RuntimeError too, as with torch's DataLoader.
    """


class WorkersLost(FeedError, RuntimeError):
    """No worker is left that can serve, within the time allowed. Names who was waited for.

    A RuntimeError too, as with torch's DataLoader.
    """


class ProtocolError(FeedError):
    """A peer that broke the protocol, or could not authenticate."""


def text_of(error: BaseException) -> str:
    """Returns what any exception says, in UTF-8; that of a user's may have a method that fails."""
    try:
        return sendable(str(error))
    except Exception as failed:  # noqa: BLE001 - the failure of a method must not hide the error
        return f"(its text cannot be had: {type(failed).__name__})"


def sendable(text: str) -> str:
    """Returns a text that is UTF-8: half surrogates, as in names of files that are not, are written as escapes."""
    return text.encode(errors="backslashreplace").decode()
