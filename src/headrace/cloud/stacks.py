"""CloudFormation stacks: as they shall be, created, changed and removed, with progress, and never twice.

* A stack that is there as asked for is left as it is. One that is other is refused, or changed if that is asked for.
* A creation that fails is undone by CloudFormation; the error names the resource that failed first, and AWS's reason.
* Only stacks with headrace's tag are changed or removed.
* Who is interrupted while he waits interrupts nothing: the same command, given again, waits on.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import yaml

from headrace.cloud.aws_calls import Client, call, pages
from headrace.errors import CloudError, UsageError

Document: TypeAlias = "dict[str, Any]"
"""A template or a policy: what JSON can hold."""

KIND_TAG = "headrace"
"""Tag of all stacks and repositories that headrace makes; its value says of which kind. Nothing else is removed."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,47}")
"""CloudFormation allows 128 characters, a role that is named after its stack 64; some are left for what is added."""


@dataclass(frozen=True)
class StackTemplate:
    """A stack.

    Attributes:
        kind: ``vpc`` or ``role``.
        document: the template, with intrinsic functions in their long form (``{"Ref": ...}``).
        parameters: values of all parameters of the template.
        capabilities: what CloudFormation wants to be told that it may do.
    """

    kind: str
    document: Document
    parameters: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The template as YAML, as users would write it."""
        return yaml.safe_dump(self.document, sort_keys=False, width=120, allow_unicode=True)

    @property
    def parameters_text(self) -> str:
        """The parameters, as the AWS CLI takes them: ``--parameters file://...``."""
        return json.dumps(self.parameter_list, indent=2) + "\n"

    @property
    def parameter_list(self) -> list[dict[str, str]]:
        """The parameters, as the API takes them."""
        return [{"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()]

    @property
    def resources(self) -> dict[str, str]:
        """What the stack consists of: type by logical name."""
        return {name: each["Type"] for name, each in self.document["Resources"].items()}


def check_name(name: str) -> str:
    """Returns the name of a stack if there can be one.

    Raises:
        UsageError: there cannot.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a stack's name: a letter, then letters, digits and hyphens, 48 characters at most",
            hint="e.g. --name headrace-training",
        )
    return name


def parse_template(body: object) -> Document:
    """Returns the template of a stack that is there, as the API gives it (a text, or parsed if it is JSON).

    Raises:
        UsageError: it cannot be read: it has tags (``!Ref``), which headrace does not write.
    """
    if not isinstance(body, str):
        return json.loads(json.dumps(body))  # type: ignore[no-any-return]
    try:
        document = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise UsageError(
            "the template of the stack that is there was not written by headrace", hint="take another --name"
        ) from error
    return document if isinstance(document, dict) else {}


def differences(wanted: StackTemplate, document: Document, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what is other in a stack that is there, a line each; none if it is as wanted.

    Descriptions of the template and of parameters do not count.

    Args:
        wanted: the stack as it shall be.
        document, parameters: what is there.
    """
    found = []
    for key in dict.fromkeys([*wanted.parameters, *parameters]):
        there, here = parameters.get(key), wanted.parameters.get(key)
        if there != here:
            found.append(f"{key}: {_shown(there)} is there, {_shown(here)} is asked for")
    for part, one in (("Resources", "resource"), ("Outputs", "output")):
        old, new = document.get(part, {}), wanted.document.get(part, {})
        for name in dict.fromkeys([*old, *new]):
            if name not in new:
                found.append(f"{one} {name}: is there, and is not asked for")
            elif name not in old:
                found.append(f"{one} {name}: is asked for, and is not there")
            elif old[name] != new[name]:
                found.append(f"{one} {name}: is another")
    return tuple(found)


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


PATIENCE = 1800.0
"""Seconds that a stack may take; those here take minutes."""
POLL = 2.0
_ABSENT = "ValidationError"  # what DescribeStacks answers for a name that can be one, and is none
_TAKEN = "AlreadyExistsException"
_STACK = "AWS::CloudFormation::Stack"
_FAILED_RESOURCE = frozenset(("CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED"))
_GOOD = frozenset(("CREATE_COMPLETE", "UPDATE_COMPLETE"))
_USABLE = _GOOD | {"UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE"}
_GONE = "DELETE_COMPLETE"
_CREATION_ENDS = frozenset(("CREATE_COMPLETE", _GONE, "DELETE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"))
_UPDATE_ENDS = frozenset(("UPDATE_COMPLETE", "UPDATE_FAILED", "UPDATE_ROLLBACK_COMPLETE", "UPDATE_ROLLBACK_FAILED"))
_REMOVAL_ENDS = frozenset((_GONE, "DELETE_FAILED"))
_MOVING = "_IN_PROGRESS"  # how AWS writes the states that pass by themselves
_REVIEW = "REVIEW_IN_PROGRESS"  # nothing but somebody's change set is there, and it does not pass

Tell = Callable[[str], None]


class Outcome(str, Enum):
    """What a command did, or would do."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    UPDATED = "updated"
    REMOVED = "removed"


@dataclass(frozen=True)
class FoundStack:
    """A stack that is there.

    Attributes:
        id: its ARN, which also names it once it is removed.
        name: its name.
        status: AWS's word.
        outputs, parameters, tags: by name.
    """

    id: str
    name: str
    status: str
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Intention:
    """What creating a stack would do.

    Attributes:
        outcome: what would be done.
        found: the stack that is there.
        differences: what is other there, a line each.
    """

    outcome: Outcome
    found: FoundStack | None = None
    differences: tuple[str, ...] = ()


class Stacks:
    """The stacks of an account in a region.

    Args:
        client: of CloudFormation.
        tell: takes a line for each thing that happens.
        poll: seconds between two looks at a stack that is being made.
        patience: seconds that a stack may take.
    """

    def __init__(self, client: Client, tell: Tell, *, poll: float | None = None, patience: float = PATIENCE) -> None:
        self._client = client
        self._tell = tell
        self._poll = POLL if poll is None else poll
        self._patience = patience

    def find(self, name: str) -> FoundStack | None:
        """Returns the stack of a name or an id; None if there is none.

        Raises:
            CloudError, UsageError: it cannot be asked for.
        """
        try:
            answer = call(self._client, "describe_stacks", StackName=name)
        except CloudError as error:
            if error.code == _ABSENT:
                return None
            raise
        return _found(answer["Stacks"][0]) if answer["Stacks"] else None

    def intend(self, wanted: StackTemplate, name: str, *, update: bool) -> Intention:
        """Tells what `create` would do now. Changes nothing; AWS checks the template.

        Args:
            wanted: the stack as it shall be.
            name: its name.
            update: one that is there may be changed.

        Raises:
            UsageError: a stack of that name is there that headrace did not make, or that is other, or failed.
            CloudError: AWS cannot be asked, or refuses the template.
        """
        found = self.find(name)
        if found is None or found.status == _GONE:
            call(self._client, "validate_template", TemplateBody=wanted.text)
            return Intention(Outcome.CREATED)
        self._check_kind(found, wanted.kind)
        other = differences(wanted, self._template(found), found.parameters)
        if found.status.endswith(_MOVING) and found.status != _REVIEW:
            return Intention(Outcome.UPDATED if other else Outcome.UNCHANGED, found, other)
        if found.status not in _USABLE:
            hint = f"`headrace cloud {wanted.kind} remove {name}` removes what is left; then create it"
            raise UsageError(f"the stack {name} is there and cannot be used: {found.status}", hint=hint)
        if not other:
            return Intention(Outcome.UNCHANGED, found)
        if not update:
            listed = "".join(f"\n  {each}" for each in other)
            hint = "give the same options as then, --update to change it, or another --name"
            raise UsageError(f"the stack {name} is there already, and it is other:{listed}", hint=hint)
        call(self._client, "validate_template", TemplateBody=wanted.text)
        return Intention(Outcome.UPDATED, found, other)

    def create(self, wanted: StackTemplate, name: str, *, update: bool = False) -> tuple[Outcome, FoundStack]:
        """Makes sure that a stack is there, and waits until it is.

        Args:
            wanted: the stack as it shall be.
            name: its name.
            update: one that is there may be changed.

        Returns:
            What was done, and the stack.

        Raises:
            UsageError: as `intend` does.
            CloudError: AWS refused, a resource failed, or it took too long.
        """
        while True:
            plan = self.intend(wanted, name, update=update)
            if plan.found is None:
                try:
                    return Outcome.CREATED, self._make(wanted, name)
                except CloudError as error:
                    if error.code != _TAKEN:
                        raise
                    continue  # somebody made one in between
            if plan.found.status.endswith(_MOVING):
                self._tell(f"{name}: waiting for what is going on: {plan.found.status}")
                self._settled(plan.found)
                continue
            if plan.outcome is Outcome.UNCHANGED:
                return Outcome.UNCHANGED, plan.found
            return Outcome.UPDATED, self._change(wanted, plan.found)

    def removable(self, name: str, kind: str) -> tuple[FoundStack, tuple[str, ...]]:
        """Returns the stack that `remove` would remove, and its resources, a line each. Changes nothing.

        Raises:
            UsageError: there is none, or headrace did not make it.
            CloudError: AWS cannot be asked.
        """
        found = self.find(name)
        if found is None or found.status == _GONE:
            hint = "--region says where it is; `aws cloudformation list-stacks` lists all of a region"
            raise UsageError(f"there is no stack {name} in {self._client.meta.region_name}", hint=hint)
        self._check_kind(found, kind)
        listed = call(self._client, "describe_stack_resources", StackName=found.id)["StackResources"]
        return found, tuple(
            f"{each['LogicalResourceId']}  {each['ResourceType']}  {each.get('PhysicalResourceId', '')}".rstrip()
            for each in listed
        )

    def remove(self, name: str, kind: str) -> FoundStack:
        """Removes a stack with all that it consists of, and waits until it is gone.

        Returns:
            What it was.

        Raises:
            UsageError, CloudError: as `removable`; a resource cannot be removed, or it takes too long.
        """
        found, _ = self.removable(name, kind)
        seen = self._event_ids(found.id)
        if found.status != "DELETE_IN_PROGRESS":
            call(self._client, "delete_stack", StackName=found.id, ClientRequestToken=_token())
        gone = self._wait(found.id, _REMOVAL_ENDS, seen)
        if gone is not None and gone.status != _GONE:
            hint = "end what uses it, then remove again; a job's network interfaces go some minutes after the job"
            raise CloudError(f"the stack {name} could not be removed: {self._first_failure(found.id, seen)}", hint)
        return found

    def _make(self, wanted: StackTemplate, name: str) -> FoundStack:
        tags = [{"Key": KIND_TAG, "Value": wanted.kind}]
        made = self._send("create_stack", wanted, name, OnFailure="DELETE", Tags=tags)
        return self._require_good(wanted.kind, name, str(made["StackId"]), _CREATION_ENDS, frozenset(), "created")

    def _change(self, wanted: StackTemplate, there: FoundStack) -> FoundStack:
        seen = self._event_ids(there.id)
        self._send("update_stack", wanted, there.id)
        return self._require_good(wanted.kind, there.name, there.id, _UPDATE_ENDS, seen, "changed")

    def _send(self, operation: str, wanted: StackTemplate, stack: str, **more: object) -> dict[str, Any]:
        return call(
            self._client,
            operation,
            StackName=stack,
            TemplateBody=wanted.text,
            Parameters=wanted.parameter_list,
            Capabilities=list(wanted.capabilities),
            ClientRequestToken=_token(),
            **more,
        )

    def _settled(self, found: FoundStack) -> None:
        """Waits until nothing of a stack goes on."""
        ends = _CREATION_ENDS | _UPDATE_ENDS | _REMOVAL_ENDS | _USABLE | {"CREATE_FAILED"}
        self._wait(found.id, ends, self._event_ids(found.id))

    def _wait(self, stack: str, ends: frozenset[str], seen: frozenset[str]) -> FoundStack | None:
        """Waits until a stack is in one of some states, and tells what happens. Returns it, None if it is gone."""
        deadline, told = time.monotonic() + self._patience, set(seen)
        try:
            while True:
                found = self.find(stack)
                for event in reversed(self._events(stack)) if found is not None else ():
                    if event["EventId"] not in told:
                        told.add(event["EventId"])
                        self._tell(_line(event))
                if found is None or found.status in ends:
                    return found
                if time.monotonic() > deadline:
                    hint = "it goes on: the same command, given again, waits on"
                    raise CloudError(f"{found.name} is still {found.status} after {self._patience:.0f} s", hint)
                time.sleep(self._poll)
        except KeyboardInterrupt:
            self._tell("what was begun goes on in AWS: the same command, given again, waits on")
            raise

    def _require_good(
        self, kind: str, name: str, stack: str, ends: frozenset[str], seen: frozenset[str], done: str
    ) -> FoundStack:
        """Waits until a stack is in one of some states. Raises CloudError: it is not as it was to be."""
        found = self._wait(stack, ends, seen)
        if found is not None and found.status in _GOOD:
            return found
        if found is None or found.status == _GONE:
            hint = "nothing of it is left"
        elif found.status in _USABLE:
            hint = "it is as it was before"
        else:
            hint = f"parts of it are left ({found.status}): `headrace cloud {kind} remove {name}`"
        raise CloudError(f"the stack {name} could not be {done}: {self._first_failure(stack, seen)}", hint)

    def _first_failure(self, stack: str, seen: frozenset[str]) -> str:
        """Returns which resource failed first since some events, and AWS's reason."""
        failed = [
            each
            for each in reversed(self._events(stack))
            if each["ResourceStatus"] in _FAILED_RESOURCE and each["EventId"] not in seen
        ]
        first = next((each for each in failed if each.get("ResourceType") != _STACK), failed[0] if failed else None)
        if first is None:
            return "AWS named no resource that failed"
        why = first.get("ResourceStatusReason") or "AWS gave no reason"
        return f"{first['LogicalResourceId']} ({first.get('ResourceType', '')}): {why}"

    def _events(self, stack: str) -> list[dict[str, Any]]:
        """Returns the events of a stack, the newest first."""
        answers = pages(self._client, "describe_stack_events", StackName=stack)
        return [event for page in answers for event in page["StackEvents"]]

    def _event_ids(self, stack: str) -> frozenset[str]:
        return frozenset(each["EventId"] for each in self._events(stack))

    def _template(self, found: FoundStack) -> Document:
        return parse_template(call(self._client, "get_template", StackName=found.id)["TemplateBody"])

    def _check_kind(self, found: FoundStack, kind: str) -> None:
        there = found.tags.get(KIND_TAG)
        if there is None:
            hint = "take another name; headrace changes and removes only what it made"
            raise UsageError(f"the stack {found.name} is there, and headrace did not make it", hint=hint)
        if there != kind:
            hint = f"take another name, or `headrace cloud {there}`"
            raise UsageError(f"the stack {found.name} is there, and it is a {there}, not a {kind}", hint=hint)


def _found(described: dict[str, Any]) -> FoundStack:
    return FoundStack(
        id=described["StackId"],
        name=described["StackName"],
        status=described["StackStatus"],
        outputs={each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", ())},
        parameters={each["ParameterKey"]: each.get("ParameterValue", "") for each in described.get("Parameters", ())},
        tags={each["Key"]: each["Value"] for each in described.get("Tags", ())},
    )


def _line(event: dict[str, Any]) -> str:
    why = event.get("ResourceStatusReason")
    line = f"{event['ResourceStatus']:<20} {event['LogicalResourceId']} {event.get('ResourceType', '')}".rstrip()
    return f"{line}: {why}" if why else line


def _token() -> str:
    """Returns what makes a call that its client sends again one call."""
    return f"headrace-{uuid.uuid4().hex}"
