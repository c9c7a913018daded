"""Instance groups: machines of one type that do the same work, and what a group has of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field, ValidationError

from headrace.job.model import field_types, path_types
from headrace.job.model.frozen_model import Part, PartInvalid, given

READY_SECONDS = 300.0


class Readiness(Part):
    """When a group counts as ready, for the groups that wait for it.

    Attributes:
        port: TCP port on which every host of the group must accept connections; without one a group is ready when its
            programs and its feed server run.
        timeout: seconds within which the group must be ready; else the job fails.
    """

    port: field_types.Port | None = None
    timeout: field_types.Seconds = READY_SECONDS


class InstanceGroup(Part):
    """Machines of one type that do the same work.

    >>> InstanceGroup("data_group", "ml.c5.18xlarge", 2).instance_count
    2

    Attributes:
        instance_group_name: 1 to 64 characters on one line, unique in the job. Also spelt `name`.
        instance_type: a type of SageMaker training, e.g. ``ml.c5.xlarge``. Also spelt `type`.
        instance_count: hosts, at least 1. Also spelt `count`.
        entry_point: what this group runs instead of the job's entry point.
        environment: variables of this group's programs, over the job's; at most 100 together.
        hyperparameters: hyperparameters of this group, over the job's; at most 100 together.
        requirements: file of packages inside `source_dir` for this group, instead of the job's.
        depends_on: groups that must be ready before this group's programs start.
        ready: when this group is ready; by default as soon as its programs run.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    instance_group_name: field_types.GroupName = Field(validation_alias=AliasChoices("instance_group_name", "name"))
    instance_type: field_types.InstanceType = Field(validation_alias=AliasChoices("instance_type", "type"))
    instance_count: field_types.InstanceCount = Field(validation_alias=AliasChoices("instance_count", "count"))
    entry_point: path_types.EntryPoint | None = None
    environment: Annotated[dict[field_types.VariableName, field_types.VariableValue], field_types.AsMapping] = Field(
        default_factory=dict
    )
    hyperparameters: Annotated[
        dict[field_types.HyperparameterKey, field_types.HyperparameterValue], field_types.AsMapping
    ] = Field(default_factory=dict)
    requirements: path_types.Requirements | None = None
    depends_on: field_types.GroupNames = ()
    ready: Readiness | None = None

    def __init__(
        self,
        /,
        instance_group_name: str | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        **others: object,
    ) -> None:
        named = {
            "instance_group_name": instance_group_name,
            "instance_type": instance_type,
            "instance_count": instance_count,
        }
        try:
            super().__init__(**given(named), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None
