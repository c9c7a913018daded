"""The entry point `headrace`: finds the command, and turns every error into `error:`, `hint:` and an exit code.

Exit codes: 0 success, 1 a run or command that failed, 2 a user's mistake (nothing was started), 4 a run that has
used up its budget, 130 stopped by Ctrl-C or `headrace stop`, 141 the reader of the output is gone.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from headrace._version import __version__
from headrace.cli.options import FAILED, USAGE, failed_by
from headrace.cli.views.terminal import VisibleStream, discard
from headrace.errors import HeadraceError
from headrace.exit_status import INTERRUPTED
from headrace.log_setup import VARIABLE, log_to_stderr

COMMANDS = {
    "init": "jobs", "run": "jobs", "plan": "jobs", "schema": "jobs", "ps": "runs", "status": "runs", "logs":
    "output", "stacks": "output", "files": "output", "fetch": "output", "wait": "runs", "stop": "runs",
    "rm": "runs", "prune": "runs", "timeline": "runs", "metrics": "figures", "report": "figures", "compare":
    "figures", "export": "figures", "cost": "figures", "prices": "prices", "advise": "figures", "ui": "servers",
    "serve": "servers", "cloud": "cloud", "grid": "grid", "feed": "feed", "doctor": "doctor",
}  # fmt: skip
"""Every command in the order of `--help`, and the module of `headrace.cli.commands` in which it is."""

_TYPO = 0.8  # of an option; one that is less alike (--epochs and --detach) is taken for an argument of the program
BROKEN_PIPE = 141


class _ReaderGone(Exception):
    """The reader of standard output is gone. Click would turn a BrokenPipeError into exit code 1."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raises _ReaderGone when what was written inside cannot be delivered."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise _ReaderGone from error


class _Commands(click.Group):
    """Imports a command's module when the command is asked for."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:  # where --help and --version write
        with _writing():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> object:
        with _writing():
            result: object = super().invoke(ctx)
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}: did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"headrace.cli.commands.{COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 success, 1 failed, 2 usage, 4 budget used up, 130 stopped. "
        "Runs are in $HEADRACE_HOME/runs (~/.headrace/runs)."
    ),
)
@click.version_option(__version__, prog_name="headrace", message="%(prog)s %(version)s")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log what headrace itself does, here and in the processes that it starts (-vv: in detail); sets HEADRACE_LOG.",
)
def cli(verbose: int) -> None:
    """One training job on two kinds of machines: CPU hosts prepare the batches, GPU hosts only train.

    \b
    headrace init train.py                  write job.yaml beside a script
    headrace plan job.yaml                  what would run where; starts nothing
    headrace run job.yaml                   run it on this machine
    headrace run job.yaml --detach          start it and return; then ps, status, logs -f, wait, stop
    headrace logs my-job -f                 follow the newest run of that job
    headrace compare homogeneous heterogeneous
    headrace ui                             all of it on a local web page, live
    headrace serve                          SageMaker's API on this machine, for its own clients
    headrace cloud vpc create               network, role, image for jobs on SageMaker, in your account
    headrace advise my-job                  how many data hosts would help, and at what price?
    headrace doctor -- python train.py      is its data loading slow, and what would help?
    """
    if verbose:
        os.environ[VARIABLE] = "info" if verbose == 1 else "debug"
        log_to_stderr(os.environ[VARIABLE])


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what follows `headrace`; those of the process if None.

    Returns:
        The exit code.
    """
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="headrace", standalone_mode=False
        )
        return code if isinstance(code, int) else 0
    except HeadraceError as error:
        return failed_by(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            near = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=_TYPO)
            error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
        click.echo(f"error: {error.format_message()}", err=True)
        click.echo(f"hint: {_help_hint(error, sys.argv[1:] if arguments is None else arguments)}", err=True)
        return USAGE if isinstance(error, click.UsageError | click.FileError) else FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (_ReaderGone, BrokenPipeError):
        return BROKEN_PIPE
    except OSError as error:
        click.echo(f"error: {error.filename or 'input/output'}: {error.strerror or error}", err=True)
        return FAILED


def _help_hint(error: click.ClickException, arguments: Sequence[str]) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    found = f"see `{context.command_path if context else 'headrace'} --help`"
    if context is None or not isinstance(error, click.NoSuchOption):
        return found
    from headrace.job.model.fields import JobFields

    name = error.option_name.lstrip("-")
    field = name.replace("-", "_")
    if not any("--set" in each.opts for each in context.command.params):
        return found
    if field == "dry_run":
        return f"`headrace plan JOB` shows what would run where, and starts nothing; {found}"
    if field in JobFields.model_fields:
        return f"a field of the job file is given as `--set {field}=...`; {found}"
    if error.option_name.startswith("--") and not name.startswith("no-") and not error.possibilities:
        value = _value_of(error.option_name, arguments)
        return f"an argument of the program is a hyperparameter: `--set hyperparameters.{name}={value}`; {found}"
    return found


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """Returns what was given for an option that nobody knows, as a shell takes it; ``...`` when that is not clear."""
    for index, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return shlex.quote(word.removeprefix(f"{option}="))
        if word == option and index + 1 < len(arguments) and not arguments[index + 1].startswith("--"):
            return shlex.quote(arguments[index + 1])
    return "..."


def main() -> None:
    """Entry point of the script `headrace`.

    A character that the terminal's or the pipe's encoding does not have is written as its escape (``\\xfc``): a name
    that cannot be shown must not end a job. Control characters are shown as escapes, too: see `VisibleStream`. What
    is written to a stream that was closed when the process began is discarded, and what standard error does not take:
    it decides no exit code.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name in ("stdout", "stderr"):
        setattr(sys, name, VisibleStream(getattr(sys, name), lossy=name == "stderr"))
    code = invoke()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # it is told; Python flushes once more, and would end with 120
            discard(stream.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
