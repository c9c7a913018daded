"""Variables and arguments of the programs of one host."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.agent.host import launcher_proxy
from headrace.agent.host.host_python import FOLDER, python_on_top, variables_of
from headrace.agent.program_specs import ProgramSpec, feed_hosts, program_argv
from headrace.feed.identifiers import CA_VARIABLE, FEED_VARIABLE
from headrace.feed.metrics.metric_file import METRICS_VARIABLE
from headrace.instance import Environment, hyperparameter_arguments, program_variables, torch_distributed_variables
from headrace.instance.entry_command import make_executable
from headrace.instance.environment import TF_DATA_SERVICE
from headrace.instance.frameworks import is_tf_data, tf_config, torchrun_command, torchrun_variables
from headrace.instance.launch_plan import FEED_NAME, MULTI_WORKER_MIRRORED, LaunchPlan, certificate_files, channel_dir
from headrace.instance.lifeline import ATTEMPT, COST, MACHINE_PYTHON, OF_PLATFORM, RUN_ID, SCRATCH, SPENT
from headrace.instance.machine import VISIBLE_GPUS
from headrace.processes.oom import FD_VARIABLE
from headrace.runs.disk_use import clock_of

_log = logging.getLogger(__name__)

PROXY_OF_RANK = (sys.executable, "-I", "-S", launcher_proxy.__file__, "rank")
"""What a launcher starts in place of a rank."""
OWN_TMP = Path("/tmp")
_OURS = (
    SCRATCH,
    SPENT,
    COST,
    ATTEMPT,
    MACHINE_PYTHON,
    OF_PLATFORM,
    FEED_VARIABLE,
    METRICS_VARIABLE,
    TF_DATA_SERVICE,
    FD_VARIABLE,
    CA_VARIABLE,
)


class HostVariables:
    """The variables and command lines of a host's programs.

    With $HEADRACE_SCRATCH every program has a TMPDIR of its host, which is removed with all that is in it when the
    host ends: a program that was killed cannot remove its temporary files itself. Where the job's Python is the
    machine's, its programs run in an environment of the host's own on top (`host_python`), which is removed, too.

    Args:
        plan: the launch plan.
        host: name of the host.

    Attributes:
        python: interpreter of the host's programs.
        unkept: once prepared, where nothing that programs write is kept: folder, its time then, whether it is lost.
    """

    def __init__(self, plan: LaunchPlan, host: str) -> None:
        self._plan = plan
        self._me = plan.host(host)
        scratch = os.environ.get(SCRATCH)
        self._scratch = Path(scratch) / host if scratch else None
        self.python = plan.python_of(self._me.group) or sys.executable
        self._environment: Environment | None = None
        self._variables: dict[str, str] = {}
        self.unkept: list[tuple[Path, int, bool]] = []

    def prepare(self) -> None:
        """Reads the host's tree; done while the other hosts are still coming. Raises what `Environment` raises."""
        self._remove_files()  # of an agent that this host had before, and that was killed
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        user = self._plan.environment_of(self._me.group)
        environment = Environment(self._me.base_dir, environ=inherited | user)
        variables = self._gather(environment, inherited)
        if self._scratch is not None and "TMPDIR" not in self._plan.environment_of(self._me.group):
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            variables["TMPDIR"] = str(self._scratch)
        if self._scratch is not None and os.environ.get(MACHINE_PYTHON):
            self._layer(self._python_folder(self._scratch), variables)
        self.unkept = [*self._unkept(environment.paths().code)]
        if not self._plan.command_of(self._me.group):
            with contextlib.suppress(OSError):  # its start will report what is wrong
                make_executable(self._plan.entry_point_of(self._me.group), environment.paths().code)

    def _unkept(self, code: Path) -> Iterator[tuple[Path, int, bool]]:
        """Yields folders where nothing is kept that is written from now on, with its clock, and whether it goes with
        the host: /tmp of its own, and the working directory, which stays where it is a folder of the run's directory.
        """
        own_machine = self._scratch is None
        folders = [(code, own_machine)]
        if self._scratch is not None:
            folders.append((self._scratch, True))
        if own_machine or self._scratch == OWN_TMP / self._me.name:
            folders.append((OWN_TMP, True))
        for folder, gone in folders:
            with contextlib.suppress(OSError):  # nothing can be written there
                root = Path(os.path.realpath(folder))
                yield root, clock_of(root), gone

    def _layer(self, folder: Path, variables: dict[str, str]) -> None:
        """Has the programs run in an environment of the host's own, on top of the job's Python. Raises OSError."""
        try:
            self.python = python_on_top(self.python, folder, variables)
        except subprocess.SubprocessError as error:  # the programs cannot be started with it either, and will say so
            _log.warning("no environment on top of %s: %s", self.python, error)
            return
        own = self._plan.environment_of(self._me.group)
        variables |= {
            name: value
            for name, value in variables_of(folder, variables["PATH"]).items()
            if name != "PYTHONUSERBASE" or name not in own
        }

    def _gather(self, environment: Environment, inherited: Mapping[str, str]) -> dict[str, str]:
        """Collects the variables that every program of the host has. Returns them, to be added to."""
        self._environment = environment
        self._variables = {**inherited, **program_variables(environment, self._plan, inherited=inherited)}
        self._variables[RUN_ID] = self._plan.run_id
        return self._variables

    @classmethod
    def overridden(cls, plan: LaunchPlan, spec: ProgramSpec, environment: Environment) -> tuple[str, ...]:
        """Returns which of the user's variables a program does not get, as headrace gives them another value. Pure.

        What headrace adds to (PATH, PYTHONPATH) is not among them.

        Args:
            plan: the launch plan.
            spec: a rank or script, or its launcher.
            environment: its host's.
        """
        group = environment.current_instance_group
        marks = {name: f"<{name}>" for name in plan.environment_of(group)}
        marked = msgspec.structs.replace(
            plan,
            environment=marks,
            groups=tuple(msgspec.structs.replace(each, environment={}) for each in plan.groups),
        )
        variables = cls(marked, environment.current_host)
        variables._gather(environment, {})
        seen = variables.of_program(spec, Path())
        return tuple(name for name, mark in marks.items() if mark not in seen.get(name, ""))

    def argv(self, spec: ProgramSpec) -> list[str]:
        """Returns the command line of a rank, script or launcher."""
        if spec.is_torchrun:
            return torchrun_command(self._plan, self._me.name, PROXY_OF_RANK, self.python)
        assert self._environment is not None
        arguments = hyperparameter_arguments(self._environment.hyperparameters)
        return program_argv(self._plan, self._me.group, arguments, self.python, self._environment.paths().code)

    @property
    def scratch(self) -> str:
        """Directory of the host's temporary files, which is removed with the host; empty if there is none."""
        return str(self._scratch or "")

    def of_program(self, spec: ProgramSpec, metrics: Path) -> dict[str, str]:
        """Returns the variables of a rank or script.

        Args:
            spec: the program.
            metrics: its metric file.
        """
        variables = dict(self._variables)
        variables |= self._of_distribution(spec)
        if feed_hosts(self._plan):
            variables[FEED_VARIABLE] = str(channel_dir(self._me.base_dir) / FEED_NAME)
            if self._plan.encrypt:
                variables[CA_VARIABLE] = str(certificate_files(self._me.base_dir).ca)
        variables[METRICS_VARIABLE] = str(metrics)
        return variables

    def _of_distribution(self, spec: ProgramSpec) -> dict[str, str]:
        world = self._plan.distribution_of(self._me.group)
        cores = len(self._me.cpus) or len(os.sched_getaffinity(0))
        if spec.is_torchrun:
            return torchrun_variables(self._plan, self._me.name, cores=cores)
        if spec.local_rank is None or world is None:
            return {}
        if world.kind == MULTI_WORKER_MIRRORED:
            return {"TF_CONFIG": tf_config(self._plan, self._me.name)}
        return torch_distributed_variables(self._plan, self._me.name, spec.local_rank, cores=cores)

    def of_service(self, stream: str, metrics: Path) -> dict[str, str]:
        """Returns the variables of a server of the data service. TensorFlow's do not take the ranks' GPUs.

        Args:
            stream: the server's.
            metrics: its metric file.
        """
        gpus = {VISIBLE_GPUS: "-1"} if is_tf_data(stream) else {}
        return self._variables | {METRICS_VARIABLE: str(metrics)} | gpus

    def _python_folder(self, scratch: Path) -> Path:
        return scratch.with_name(f"{FOLDER}{self._me.name}")

    def _remove_files(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            shutil.rmtree(self._python_folder(self._scratch), ignore_errors=True)

    def remove_scratch(self) -> None:
        """Removes the temporary files of the host's programs, and what they have installed."""
        self._remove_files()
        if self._scratch is not None:
            with contextlib.suppress(OSError):  # other hosts still have theirs, or the supervisor was first
                self._scratch.parent.rmdir()
