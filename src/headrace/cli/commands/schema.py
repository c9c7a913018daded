"""`headrace schema`."""

from __future__ import annotations

import click


@click.command("schema", short_help="Print the JSON Schema of job files.")
@click.option("--request", is_flag=True, help="Print the schema of CreateTrainingJob requests instead.")
def command(request: bool) -> None:
    """Print the JSON Schema (draft 2020-12) of job files, with every key and what it means.

    \b
    Examples:
      headrace schema > headrace.schema.json
      # first line of a job file, for editors with a YAML language server:
      # yaml-language-server: $schema=headrace.schema.json
    """
    import json

    from headrace.job.file.json_schema import job_schema
    from headrace.job.sagemaker.request_schema import request_schema

    click.echo(json.dumps(request_schema() if request else job_schema(), indent=2, ensure_ascii=False))
