"""The base of a job's parts: frozen models that refuse keys which they do not know."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.errors import JobInvalid
from headrace.job.problems.finding import Finding, JobSource, explain


class PartInvalid(JobInvalid, ValueError):
    """A group or channel that breaks a rule by itself. As a ValueError, pydantic collects it inside a whole job."""

    def __init__(self, error: ValidationError, model: type[BaseModel]) -> None:
        self.findings: tuple[Finding, ...] = tuple(explain(error))
        super().__init__(JobSource().problems(explain(error, model)))


class Part(BaseModel):
    """Base of all parts of a job: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
