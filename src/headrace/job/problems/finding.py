"""One broken rule, before its file and line are known.

Rules work on plain values and yield a `Finding`: the path inside the job, what is allowed, the value seen. `JobSource`
turns it into a `headrace.errors.Problem`, with file and line when the job came from a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic_core import PydanticCustomError

from headrace.errors import Broken, Problem
from headrace.sagemaker_parameters import meaning

Path = tuple[str | int, ...]
"""Keys and list indices from the top of the job to a value."""

RULE = "headrace_rule"
"""The type of the pydantic errors that `broken` makes."""

_SHOWN = 60  # characters of a value that a message shows


@dataclass(frozen=True)
class Finding:
    """A broken rule at a place in the job.

    Attributes:
        path: where, as the user spelt it.
        message: what is allowed, in one sentence.
        seen: the value, as text; empty when there is none to show.
        hint: what to do, empty when the message says it.
        line: the line, when it is another than that of the value at `path`; else 0.
        code: what SageMaker or its SDK calls this error; empty for a rule of headrace.
        unknown_key: the path ends in a key that nothing is known of, and what it may stand for was not searched.
        broken: what of a service's shape the value breaks; None for every other rule.
    """

    path: Path
    message: str
    seen: str = ""
    hint: str = ""
    line: int = 0
    code: str = ""
    unknown_key: bool = False
    broken: Broken | None = None


@dataclass(frozen=True)
class JobSource:
    """Where the values of a job were written.

    Attributes:
        file: the job file as the user named it, empty for a job made in Python.
        lines: line (1-based) of every value in the file.
        overrides: the ``--set`` text that wrote a value.
        names: for a job that was made of a request: where in the request a value of the job was.
    """

    file: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
    overrides: Mapping[Path, str] = field(default_factory=dict)
    names: Mapping[Path, Path] = field(default_factory=dict)

    def problem(self, finding: Finding) -> Problem:
        """Gives a finding its file and line: those of the value, or of the nearest one around it."""
        override = next(
            (self.overrides[prefix] for prefix in _prefixes(finding.path) if prefix in self.overrides), None
        )
        path = finding.path if override is not None else self.named(finding.path)
        prefixes = _prefixes(path)
        what = meaning(str(path[-1])) if path and path != finding.path else ""
        nearest_line = next((self.lines[prefix] for prefix in prefixes if prefix in self.lines), 0)
        return Problem(
            field=field_text(path) or "job",
            message=finding.message,
            value=finding.seen,
            file=self.file if override is None else f"--set {override}",
            line=(finding.line or nearest_line) if override is None else 0,
            hint="; ".join(filter(None, (finding.hint, what))),
            code=finding.code,
            broken=finding.broken,
        )

    def named(self, path: Path) -> Path:
        """Returns where in the request a value was: its own place, or that of the nearest one around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.names:
                same_names = path[0] == "request_extras" or all(isinstance(step, int) for step in path[length:])
                inside = path[length:] if same_names else ()
                return self.names[path[:length]] + inside
        return path

    def problems(self, findings: Iterable[Finding]) -> tuple[Problem, ...]:
        """Gives findings their places: in file order, each once, then those of ``--set``."""
        unique = dict.fromkeys(self.problem(finding) for finding in findings)
        files = [self.file, *dict.fromkeys(f"--set {text}" for text in self.overrides.values())]
        return tuple(sorted(unique, key=lambda problem: (files.index(problem.file), problem.line)))


def _prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(len(path), -1, -1)]


def field_text(path: Path) -> str:
    """Writes a path as users do: ``instance_groups[1].instance_count``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def show(value: object) -> str:
    """Returns a value as a message shows it: its repr, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the known name that is most like `name`, empty when none is near. CamelCase is read as snake_case."""
    choices = sorted(known)
    if name in choices:
        return name
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    for cutoff in (0.8, 0.6):
        for spelling in dict.fromkeys((name, snake.replace("-", "_"), name.lower())):
            found = difflib.get_close_matches(spelling, choices, n=1, cutoff=cutoff)
            if found:
                return found[0]
        longer = [choice for choice in choices if len(name) > 2 and choice.startswith(f"{snake}_")]
        if len(longer) == 1:
            return longer[0]
    words = set(snake.split("_"))
    return next((choice for choice in choices if words <= set(choice.split("_"))), "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Says what was probably meant: the nearest known name, else all of them."""
    choices = list(known)
    near = nearest(name, choices)
    if near:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(choices)}" if choices else "none is known"


def broken(message: str, *, seen: str | None = None, hint: str = "") -> PydanticCustomError:
    """Makes the error that a validator raises; `explain` turns it into a `Finding`.

    Args:
        message: what is allowed.
        seen: what the message shows of the value; None means its repr.
        hint: what to do.
    """
    return PydanticCustomError(RULE, "{message}", {"message": message, "seen": seen, "hint": hint})
