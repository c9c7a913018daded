"""`headrace init`."""

from __future__ import annotations

from pathlib import Path

import click

FILE = "job.yaml"


@click.command("init", short_help="Write a job file beside a script.")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=f"Replace {FILE} where there is one.")
def command(script: Path, force: bool) -> None:
    """Write job.yaml beside SCRIPT, with comments: its folder, its requirements, its command line options as
    hyperparameters, and data that they name as channels. The script is read, and not run.

    \b
    Examples:
      headrace init train.py
      headrace init trainer/main.py --force
    """
    import shlex

    from headrace.errors import UsageError
    from headrace.job.job_of_script import job_of_script

    text = job_of_script(script)
    file = script.parent / FILE
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already", "--force replaces it") from None
    click.echo(f"wrote {file}; next:")
    for action, what in (("plan", "what would run where; starts nothing"), ("run", "run it on this machine")):
        click.echo(f"  headrace {action} {shlex.quote(str(file))}  # {what}")
