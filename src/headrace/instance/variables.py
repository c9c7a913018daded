"""The variables of a program: SM_*, and those that headrace and the platform add.

`program_variables` adds to `toolkit_variables` what the toolkit knows but does not tell (the distribution's hosts, the
master's address, the host's rank), what SDK version 3 sets under other names, what the platform sets
(TRAINING_JOB_NAME, TRAINING_JOB_ARN, and AWS_REGION where a region is known), and what a Python program on this
instance needs. headrace's variables win over the user's, as on SageMaker; a program therefore cannot be told a wrong
host or directory.

A variable that no process can be given (longer than the kernel allows, or with ``=`` in its name) is left out, and
its name stands in HEADRACE_LEFT_OUT; its content is in the files of input/config in any case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.instance import toolkit
from headrace.instance.entry_command import search_path
from headrace.instance.environment import TF_DATA_SERVICE, Environment, format_name, format_value, toolkit_variables
from headrace.instance.frameworks import service_address
from headrace.instance.launch_plan import MASTER_PORT, LaunchPlan
from headrace.instance.lifeline import PACKAGE_ENTRY
from headrace.instance.machine import VISIBLE_GPUS
from headrace.instance.paths import BASE_VARIABLE

LEFT_OUT = "HEADRACE_LEFT_OUT"
MAX_VARIABLE_BYTES = 131_071  # Linux: 32 pages for NAME=value with its final NUL (MAX_ARG_STRLEN in binfmts.h)


def program_variables(
    env: Environment, plan: LaunchPlan | None = None, *, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the variables that a program of this instance gets beside those that it inherits.

    Args:
        env: the instance.
        plan: the launch plan: job name, the user's variables, addresses, ports and CPUs come from it. Without one,
            names of hosts must resolve, as they do on SageMaker.
        inherited: variables that the program inherits; by default those of this process. Only PATH and PYTHONPATH are
            read, and what of PYTHONPATH is the agent's own.
    """
    inherited = os.environ if inherited is None else inherited
    user = plan.environment_of(env.current_instance_group) if plan else {}
    job_name = plan.job_name if plan else env.job_name
    variables = toolkit_variables(env, job_name=job_name, **(_machine(plan, env.current_host) if plan else {}))
    variables |= _cluster_variables(env, plan)
    variables |= _sdk3_variables(env)
    variables |= {
        BASE_VARIABLE: str(env.paths().base),
        "TRAINING_JOB_NAME": job_name or "",
        "SAGEMAKER_JOB_NAME": job_name or "",
        "SAGEMAKER_REGION": env.region(),
        "CURRENT_HOST": env.current_host,
        "PATH": _programs_path(plan.python_of(env.current_instance_group) if plan else "", user, inherited),
        "PYTHONPATH": _search_path(env.paths().code, user, inherited),
        "PYTHONUNBUFFERED": user.get("PYTHONUNBUFFERED", "1"),
    }
    for name, value in _meeting(env, plan, variables["SM_MASTER_PORT"]).items():
        if name not in user:
            variables[name] = value
    if plan and plan.job_arn:
        variables["TRAINING_JOB_ARN"] = plan.job_arn
    if env.region() and "AWS_REGION" not in user:  # an empty one is no region, and AWS's libraries would refuse it
        variables["AWS_REGION"] = env.region()
    if plan and plan.tf_data:
        variables[TF_DATA_SERVICE] = service_address(plan)
    gpus = plan.host(env.current_host).gpus if plan else None
    if gpus is not None and VISIBLE_GPUS not in user:
        variables[VISIBLE_GPUS] = ",".join(map(str, gpus))
    return _possible(user | variables)


def _programs_path(python: str, user: Mapping[str, str], inherited: Mapping[str, str]) -> str:
    """PATH: what belongs to the interpreter first, so that `python` and `torchrun` in a script are those of the job."""
    path = user.get("PATH") or inherited.get("PATH") or os.defpath
    own = str(Path(python or sys.executable).parent)
    return path if path.split(os.pathsep)[0] == own else os.pathsep.join([own, path])


def _machine(plan: LaunchPlan, host: str) -> dict[str, object]:
    """CPUs and GPUs of a host, as far as the plan gives it its own."""
    me = plan.host(host)
    own: dict[str, object] = {"num_cpus": len(me.cpus)} if me.cpus else {}
    if me.gpus is not None and VISIBLE_GPUS not in plan.environment_of(me.group):
        own["num_gpus"] = len(me.gpus)
    return own


def _search_path(code: Path, user: Mapping[str, str], inherited: Mapping[str, str]) -> str:
    """PYTHONPATH: the code first, headrace last. What is there for the agent only is left out.

    Inherited entries may be relative, but the program runs in the code directory.
    """
    own = [*search_path(code), *filter(None, [user.get("PYTHONPATH")])]
    return os.pathsep.join([*own, *inherited_search_path(inherited), toolkit.SEARCH_PATH])


def inherited_search_path(inherited: Mapping[str, str]) -> list[str]:
    """Returns what of an agent's PYTHONPATH is not there for headrace only, as absolute paths."""
    entries = [str(Path(entry).absolute()) for entry in inherited.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [entry for entry in entries if entry not in (toolkit.SEARCH_PATH, inherited.get(PACKAGE_ENTRY))]


def _cluster_variables(env: Environment, plan: LaunchPlan | None) -> dict[str, str]:
    """Where the host stands among those it trains with."""
    peers = env.distribution_hosts if env.current_host in env.distribution_hosts else env.hosts
    port = MASTER_PORT
    if plan:
        own = plan.distribution_of(env.current_instance_group) or next(iter(plan.distributions), None)
        port = plan.master_port_of(own) if own else plan.ports.master
    return {
        "SM_DISTRIBUTION_HOSTS": format_value(env.distribution_hosts),
        "SM_MASTER_ADDR": plan.host(env.master_hostname).address if plan else env.master_hostname,
        "SM_MASTER_PORT": str(port),
        "SM_CURRENT_HOST_RANK": str(peers.index(env.current_host)),
    }


def _meeting(env: Environment, plan: LaunchPlan | None, port: str) -> dict[str, str]:
    """Where programs that make a world of their own meet, as the service's PyTorch containers say it to all: on the
    first host. In a heterogeneous job that is the first of the program's own group, as the others run something else.
    """
    hosts = env.current_instance_group_hosts or env.hosts
    if env.current_host in env.distribution_hosts:
        hosts = env.distribution_hosts
    return {"MASTER_ADDR": plan.host(hosts[0]).address if plan else hosts[0], "MASTER_PORT": port}


def _sdk3_variables(env: Environment) -> dict[str, str]:
    """What SDK version 3 calls by other names, where it means something here."""
    paths = env.paths()
    variables = {
        "SM_HOST_COUNT": str(len(env.hosts)),
        "SM_INPUT_DATA_DIR": str(paths.input_data),
        "SM_OUTPUT_FAILURE": str(paths.failure),
        "SM_SOURCE_DIR": str(paths.code),
        "SM_ENTRY_SCRIPT": env.user_entry_point or "",
    }
    exact = {format_name(f"hp_{name}") for name in env.hyperparameters}
    for name, value in env.hyperparameters.items():
        shell_name = format_name(f"hp_{name}").replace("-", "_")
        if shell_name not in exact:  # SM_HP_BATCH-SIZE is no name that a shell can read
            variables[shell_name] = format_value(value)
    return variables


def _possible(variables: dict[str, str]) -> dict[str, str]:
    """Without the variables that exec would refuse, and with their names in HEADRACE_LEFT_OUT."""
    refused = [name for name, value in variables.items() if "=" in name or _size(name, value) > MAX_VARIABLE_BYTES]
    if not refused:
        return variables
    kept = {name: value for name, value in variables.items() if name not in refused}
    return kept | {LEFT_OUT: format_value(refused)}


def _size(name: str, value: str) -> int:
    return len(os.fsencode(name)) + 1 + len(os.fsencode(value))
