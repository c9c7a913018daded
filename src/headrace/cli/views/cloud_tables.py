"""What `headrace cloud` made, would make or removed: as documents, and as lines to copy into a job file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

SUBMIT_POLICY = "SubmitPolicy"

if TYPE_CHECKING:
    from headrace.cloud.stacks import FoundStack


def made_document(
    where: Mapping[str, str],
    outcome: str,
    found: FoundStack | None,
    job_lines: Callable[[Mapping[str, str]], dict[str, object]],
) -> dict[str, object]:
    """Returns what became of a stack.

    Args:
        where: kind, name, region, account.
        outcome: what was done, or its status.
        found: the stack; None when it is not there yet.
        job_lines: makes keys of the job file of its outputs.
    """
    outputs = {} if found is None else dict(found.outputs)
    return {
        **where,
        "outcome": str(getattr(outcome, "value", outcome)),
        "dry_run": False,
        "stack_id": None if found is None else found.id,
        "outputs": outputs,
        "job": job_lines(outputs) if outputs else {},
        "notes": [f"attach to who submits: {outputs[SUBMIT_POLICY]}"] if SUBMIT_POLICY in outputs else [],
    }


def show_made(document: Mapping[str, object]) -> None:
    """Prints what became of a stack; without a dry run, what is printed is YAML for the job file."""
    words = f"the stack {document['name']} in {document['region']}, account {document['account']}"
    if document["dry_run"]:
        same = document["outcome"] == "unchanged"
        click.echo(f"{words}: {'is there as asked for' if same else 'would be ' + str(document['outcome'])}")
        for line in _lines(document["differences"]):
            click.echo(f"  {line}")
        for line in _lines(document["resources"]) if document["outcome"] == "created" else ():
            click.echo(f"  {line}")
        click.echo("nothing was changed")
        return
    click.echo(f"# {words}: {document['outcome']}")
    for note in _lines(document["notes"]):
        click.echo(f"# {note}")
    click.echo(job_yaml(document["job"]), nl=False)


def show_removed(document: Mapping[str, object]) -> None:
    """Prints what was removed, or would be."""
    words = f"the stack {document['name']} in {document['region']}, account {document['account']}"
    if not document["dry_run"]:
        click.echo(f"{words}: removed")
        return
    click.echo(f"{words}: would be removed")
    for line in _lines(document["resources"]):
        click.echo(f"  {line}")
    click.echo("nothing was changed")


def job_yaml(job: object) -> str:
    """Returns keys of a job file; lists stand on one line."""
    import yaml

    if not job:
        return ""
    return str(yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=1000))


def _lines(values: object) -> list[str]:
    if isinstance(values, dict):
        return [f"{name}  {kind}" for name, kind in values.items()]
    return [str(each) for each in values] if isinstance(values, list) else []
