"""`headrace doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from headrace.child_python import module_command
from headrace.cli.options import output_option, set_option
from headrace.exit_status import INTERRUPTED, short_exit_text, split_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.insight.doctor_report import Observation
    from headrace.insight.offload_decision import Transfer
    from headrace.measuring.run_profiled import Command

POLL_SECONDS = 0.1
SIGN_SECONDS = 5.0  # between two signs of a wait
STAGE_SECONDS = 60.0  # a stage of the trial over TCP may last: it imports torch, beside what else the machine does
ENDING_SECONDS = 5.0
_STARTERS = ("python", "python3", "torchrun", "mpirun", "accelerate", "bash")  # of training scripts
NO_COMMAND = (
    "doctor: no command was given, so this is how this machine separates the hosts of a job; "
    "to learn whether a script's data loading is slow: headrace doctor -- python train.py"
)
OF_A_TRIAL = {
    "steps": "--steps",
    "warmup": "--warmup",
    "cache": "--cache",
    "full": "--full",
    "no_transfer": "--no-transfer",
}


@click.command(
    "doctor",
    short_help="Is my script's data loading slow? How does this machine separate hosts?",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--steps", type=click.IntRange(4), default=100, show_default=True, help="Steps to measure, and to replay."
)
@click.option(
    "--warmup", type=click.IntRange(1), default=5, show_default=True, help="Steps before that, which do not count."
)
@click.option("--cache", type=click.IntRange(1), default=512, show_default=True, help="MiB of batches to keep.")
@click.option("--full", is_flag=True, help="Let the script run to its end; by default it is stopped.")
@click.option("--no-transfer", is_flag=True, help="Do not measure what a batch costs over TCP.")
@click.option("--job", default="", metavar="FILE", help="Without COMMAND: also look at the code of this job.")
@click.option(
    "--engine", default="", metavar="ENGINE", help="Without COMMAND: say what works in this engine, and why not."
)
@set_option
@output_option
@click.argument("script", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def doctor(
    steps: int,
    warmup: int,
    cache: int,
    full: bool,
    no_transfer: bool,
    job: str,
    engine: str,
    overrides: tuple[str, ...],
    output: str,
    script: tuple[str, ...],
) -> int:
    """Run COMMAND, an unchanged training script, and say where its batches should be made.

    torch's DataLoader (torchdata's StatefulDataLoader and headrace's own too) is measured in every Python process of
    the command: python, torchrun, a shell script. After --steps steps, copies of kept batches are handed out for as
    many steps, without any wait: that is the step floor, which no loader can beat. Then the script is stopped as
    by sys.exit, and headrace measures what such a batch costs over TCP, on loopback.

    For some steps the script trains on kept batches, so the model that it saves is useless: give it a separate
    output directory.

    Without COMMAND: say how this machine separates the hosts of a job (engines.local.isolation), why, and with
    --job which of them this job gets. With --engine: say what works in
    that engine from here (of the local one: isolation, limits, GPUs, mpirun, FastFile ...), and what to install for the
    rest.

    Exit codes: 0 there is a verdict; the command's own code when it failed first; 1 there was nothing to measure,
    or with --engine no job can run in that engine from here; 2 usage; 130 Ctrl-C.

    \b
    Examples:
      headrace doctor -- python train.py --epochs 1
      headrace doctor --steps 30 -- torchrun --nproc-per-node 2 -m my.train
      headrace doctor --output json -- bash train.sh > verdict.json
      headrace doctor
      headrace doctor --job job.yaml
      headrace doctor --engine local
    """
    import os
    import sys
    import tempfile
    from pathlib import Path

    import msgspec

    from headrace.cli.options import answer
    from headrace.cli.views.doctor_tables import trial_document
    from headrace.errors import UsageError
    from headrace.insight.doctor_report import read_trial, report
    from headrace.measuring.run_profiled import Command
    from headrace.measuring.watch import Spec

    if engine and (script or job or overrides):
        raise UsageError("--engine is for doctor alone", hint="leave out --job, --set and the command, or --engine")
    if engine:
        return _engine(engine, output)
    if not script:
        context = click.get_current_context()
        for name, option in OF_A_TRIAL.items():
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise UsageError(
                    f"{option} is for a command, and none was given",
                    hint="headrace doctor --steps 30 -- python train.py",
                )
        return _machine(job, overrides, output)
    if job or overrides:
        raise UsageError("--job and --set are for doctor without a command", hint="leave out the command, or them")
    spec = Spec(steps, warmup, cache << 20, full, os.getpid())
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as name:
        folder = Path(name)
        try:
            running = Command(script, folder, spec, sys.stderr if output == "json" else None)
        except OSError as error:
            raise UsageError(f"cannot start {script[0]}: {error.strerror}", hint=_program_hint(script[0])) from error
        crowded = _Crowd()
        try:
            code = _watch(running, folder, spec.steps)
        finally:
            running.close()
        note = "" if running.ended_by_us else crowded.note()
        if code is None:
            click.echo("doctor: stopped; nothing was judged", err=True)
            return INTERRUPTED
        observed = read_trial(folder)
        over = (folder / "over").exists()
        if code != 0 and not over:
            return _failed(code)
        transfer, why_not = (None, "--no-transfer") if no_transfer else _transfer(observed, folder)
        found = report(observed, script, code, stopped=over and not full, transfer=transfer, no_transfer=why_not)
    if found is None:
        raise _nothing(observed)
    found = msgspec.structs.replace(found, crowded=note)
    answer(found, output, lambda: trial_document(found))
    return 0


class _Crowd:
    """What other programs have of the cores that this process may use, while a command runs."""

    def __init__(self) -> None:
        self._before = self._look()

    @staticmethod
    def _look() -> tuple[float, float, float] | None:
        """Returns wall seconds, CPU seconds of the cores whoever uses them, and those of children that have ended."""
        import os
        import resource
        import time

        from headrace.agent.metrics.counters import busy_seconds

        busy, own = busy_seconds(os.sched_getaffinity(0)), resource.getrusage(resource.RUSAGE_CHILDREN)
        return None if busy is None else (time.monotonic(), busy, own.ru_utime + own.ru_stime)

    def note(self) -> str:
        """Returns what to say of the time since this was made; empty where the command had its cores."""
        import os

        from headrace.insight.evidence import crowd_text

        now = self._look()
        if self._before is None or now is None:
            return ""
        seconds, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        whole = max(seconds, 1e-6) * len(os.sched_getaffinity(0)) / 100
        words = crowd_text((busy - own) / whole, own / whole, "its cores", "the command")
        more = "; step time, data wait and worker time are not the script's alone, CPU times are"
        return words and words + more


def _engine(name: str, output: str) -> int:
    """Says what works in an engine. Returns 1 when it lacks something without which no job runs there, else 0."""
    from headrace import engines
    from headrace.cli.options import answer
    from headrace.cli.views.doctor_tables import capability_document, capability_values

    found = engines.capabilities(name)
    answer(capability_values(name, found), output, lambda: capability_document(name, found))
    return 1 if any(one.needed and not one.works for one in found) else 0


def _machine(job: str, overrides: tuple[str, ...], output: str) -> int:
    """Says what this machine offers to the hosts of a job."""
    from headrace.cli.options import answer
    from headrace.cli.views.doctor_tables import isolation_document, machine_report
    from headrace.errors import UsageError

    if overrides and not job:
        raise UsageError("--set changes a job file, and no job file was given", hint="give --job FILE too")
    found = machine_report(job, overrides)
    if not job:
        click.echo(NO_COMMAND, err=True)
    answer(found, output, lambda: isolation_document(found))
    return 0


def _watch(running: Command, folder: Path, steps: int) -> int | None:
    """Waits for the command's end and says what the trial does. Returns its exit code; None after Ctrl-C."""
    import signal
    import time

    from headrace.cli.follow import Interrupts
    from headrace.insight.doctor_report import read_trial, words

    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            click.echo(f"doctor: {text}", err=True)

    with Interrupts() as interrupts:
        heard = 0
        looked = 0.0
        pids: list[int] = []
        while (code := running.poll(pids)) is None:
            if interrupts.count > heard:
                heard = interrupts.count
                running.signal(signal.SIGINT if heard == 1 else signal.SIGKILL)
            if time.monotonic() - looked > 0.5:
                looked = time.monotonic()
                seen = read_trial(folder)
                pids = [rank.rank.pid for rank in seen.ranks]
                for loader in (loader for rank in seen.ranks[:1] for loader in rank.loaders):
                    if "warmup" in loader.phases:
                        say(f"measuring {steps} steps of {words(loader.loader)}")
                    if "cache" in loader.phases:
                        say(f"replaying kept batches for {steps} steps")
            time.sleep(POLL_SECONDS)
    if running.ended_by_us:
        say("the command went on after the trial, and was ended")
    return None if interrupts.count else code


def _program_hint(name: str) -> str:
    """Returns what to give in the place of a program that cannot be started."""
    import difflib
    from pathlib import Path

    if Path(name).is_file():
        return f"it is not executable: `headrace doctor -- python {name}`, if it is a script of Python"
    near = difflib.get_close_matches(name, _STARTERS, n=1)
    return f"did you mean {near[0]!r}?" if near else "give the command as a shell would take it"


def _failed(code: int) -> int:
    """Says that the command failed by itself. Returns its exit code as a shell tells it."""
    click.echo(f"error: the command failed before the trial was over: {short_exit_text(*split_status(code))}", err=True)
    click.echo(
        "hint: its own output is above; run it without `headrace doctor` to see whether it works alone", err=True
    )
    return code if code > 0 else 128 - code


def _transfer(observed: Observation, folder: Path) -> tuple[Transfer | None, str]:
    """Measures what a batch costs over TCP, in a process of its own. Returns it, or why it could not be measured."""
    import importlib.util

    import msgspec

    from headrace.insight.doctor_report import judged
    from headrace.insight.offload_decision import Transfer

    loaders = [judged(rank) for rank in observed.ranks]
    batch = next((loader.batch for loader in loaders if loader is not None and loader.batch is not None), None)
    if batch is None:
        return None, "no batch was kept"
    if importlib.util.find_spec("torch") is None:
        return None, "torch is not installed beside headrace"
    described = folder / "batch.json"
    described.write_bytes(msgspec.json.encode(batch.tree))
    click.echo("doctor: measuring what such a batch costs over TCP, on loopback", err=True)
    answer, why_not = _in_stages(module_command("headrace.measuring.transfer", "--batch", str(described)))
    return (None, why_not) if why_not else (msgspec.json.decode(answer, type=Transfer), "")


def _in_stages(child: Sequence[str]) -> tuple[bytes, str]:
    """Runs a program that prints documents of JSON, a line each: texts say what it waits for, which is passed on when
    it takes long; the other one is its answer. Returns the answer, and why there is none."""
    import os
    import select
    import signal
    import subprocess
    import tempfile
    import time

    import msgspec

    stage, answer, rest = "its process starts", b"", b""
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(child, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as process,
    ):
        assert process.stdout is not None
        try:
            while True:
                if not select.select([process.stdout], [], [], SIGN_SECONDS)[0]:
                    waited = time.monotonic() - began
                    if waited >= STAGE_SECONDS:
                        return b"", f"it was not over after {waited:.0f} s of waiting: {stage}"
                    click.echo(f"doctor: still waiting, for {waited:.0f} s: {stage}", err=True)
                    continue
                text = process.stdout.read1(65536)  # type: ignore[attr-defined]
                if not text:
                    break
                *whole, rest = (rest + text).split(b"\n")
                for line in whole:
                    document = msgspec.json.decode(line)
                    if isinstance(document, str):
                        stage, began = document, time.monotonic()
                    else:
                        answer = line
            code = process.wait()
        finally:
            if process.poll() is None:  # it ends its feed server
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(ENDING_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
        errors.seek(0)
        lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    if code:
        return b"", lines[-1] if lines else f"exit code {code}"
    return answer, ""


def _nothing(observed: Observation) -> Exception:
    from headrace.errors import HeadraceError
    from headrace.insight.doctor_report import LEAST_STEPS, words

    loaders = [loader for rank in observed.ranks for loader in rank.loaders]
    if loaders:
        seen = ", ".join(f"{words(loader.loader)}: {loader.total} steps" for loader in loaders)
        return HeadraceError(
            f"the script made too few steps to judge ({seen})",
            hint=f"it must make a first step and {LEAST_STEPS} more: give it more data or epochs; "
            "a loop that makes a new iterator for every batch cannot be measured",
        )
    if observed.imported:
        return HeadraceError(
            "the script never iterated over a DataLoader of torch, torchdata or headrace",
            hint="doctor measures these loaders only; for another one use headrace.track(loader)",
        )
    if observed.pythons:
        return HeadraceError(
            "the script never imported torch.utils.data.DataLoader",
            hint="doctor measures the loaders of torch, torchdata and headrace",
        )
    return HeadraceError(
        "the command started no Python process that could be measured",
        hint="the probe needs PYTHONPATH, which does not reach python -E, -I and -S, containers and other hosts",
    )
