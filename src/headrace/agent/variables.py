"""Variables and arguments of the programs of one host."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

from headrace.agent.programs import ProgramSpec, feed_hosts
from headrace.instance import Environment, hyperparameter_arguments, program_variables, torch_distributed_variables
from headrace.instance.certificates import certificate_files
from headrace.instance.launch import FEED_NAME, LaunchPlan, channel_dir
from headrace.instance.lifeline import RUN_ID, SCRATCH, SPENT

FEED_VARIABLE = "HEADRACE_FEED"
METRICS_VARIABLE = "HEADRACE_METRICS"
TLS_CA_VARIABLE = "HEADRACE_FEED_TLS_CA"
_OURS = (SCRATCH, SPENT, FEED_VARIABLE, METRICS_VARIABLE, TLS_CA_VARIABLE, "GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")


class HostVariables:
    """What the programs of a host get to know.

    With $HEADRACE_SCRATCH every program has a TMPDIR of its host, which is removed with all that is in it when the
    host ends: a program that was killed cannot remove its temporary files itself.

    Args:
        plan: the launch plan.
        host: name of the host.
    """

    def __init__(self, plan: LaunchPlan, host: str) -> None:
        self._plan = plan
        self._me = plan.host(host)
        scratch = os.environ.get(SCRATCH)
        self._scratch = Path(scratch) / host if scratch else None
        self._environment: Environment | None = None
        self._variables: dict[str, str] = {}

    def prepare(self) -> None:
        """Reads the host's tree; done while the other hosts are still coming. Raises what `Environment` raises."""
        self._environment = Environment(self._me.base_dir)
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        variables = inherited | program_variables(self._environment, self._plan, inherited=inherited)
        variables[RUN_ID] = self._plan.run_id
        if self._scratch is not None and "TMPDIR" not in self._plan.environment:
            self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            variables["TMPDIR"] = str(self._scratch)
        self._variables = variables

    def argv(self) -> list[str]:
        """Returns the command line of the user's script."""
        assert self._environment is not None
        arguments = hyperparameter_arguments(self._environment.hyperparameters)
        return [self._plan.python or sys.executable, self._plan.entry_point, *arguments]

    def of_program(self, spec: ProgramSpec, metrics: Path) -> dict[str, str]:
        """Returns the variables of a rank or script.

        Args:
            spec: the program.
            metrics: its metric file.
        """
        variables = dict(self._variables)
        if spec.local_rank is not None:
            cores = len(self._me.cpus) or len(os.sched_getaffinity(0))
            variables |= torch_distributed_variables(self._plan, self._me.name, spec.local_rank, cores=cores)
        if feed_hosts(self._plan):
            variables[FEED_VARIABLE] = str(channel_dir(self._me.base_dir) / FEED_NAME)
            if self._plan.encrypt:
                variables[TLS_CA_VARIABLE] = str(certificate_files(self._me.base_dir).ca)
        variables[METRICS_VARIABLE] = str(metrics)
        return variables

    def of_feed(self) -> dict[str, str]:
        """Returns the variables of the feed server."""
        return dict(self._variables)

    def remove_scratch(self) -> None:
        """Removes the temporary files of the host's programs."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            with contextlib.suppress(OSError):  # other hosts still have theirs, or the supervisor was first
                self._scratch.parent.rmdir()
