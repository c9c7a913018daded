"""The nodes of a Slurm allocation as the supervisor's instances: an attempt is one `srun` for each component.

* The coordinator is in this process, on the leader's node. The agents of all nodes get their orders from it.
* srun ends when the task of every node has ended. Of a node that is gone it learns only after SlurmdTimeout, and its
  exit code is no verdict: so some time after the coordinator's verdict the step is ended.
* A component whose hosts have all been released gives its nodes back at once.
* A data host that is asked for while the job runs gets a job of its own, which ends with it or is cancelled. Where
  Slurm takes none, the coordinator is told, and the run goes on without it.
* Slurm itself may end the job (scancel, preemption, a node): then the cause is what Slurm says, and never "stopped".
* Another attempt takes the same nodes if all of them are there; else the job is queued again (see `lead`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping

from headrace.child_python import UTF8, module_command
from headrace.engines.host_order import HostOrder, read_host_order
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import components
from headrace.engines.slurm.handover import HOST_SCRIPT, read_placement, restarts, scratch_key
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_state import (
    Termination,
    is_launch_failed,
    said_by_slurm,
    why_no_agents,
    why_terminated,
)
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text
from headrace.hosting.supervision.cleanup import remove_scratch
from headrace.hosting.supervision.host_agents import AttemptEnd
from headrace.hosting.supervision.instances import Outcome, cause_of
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import ATTEMPT, AgentGone, StopJob
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import spawn
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths, Status

_log = logging.getLogger(__name__)

ENTER = "headrace.engines.slurm.enter_host"
AFTER_VERDICT = 15.0  # for the agents of all nodes to end, after the coordinator's verdict
FORCED = 5.0  # between asking srun to end the step and killing it
ASK_SECONDS = 2.5  # for Slurm to say why it ends the job, which has little time left
LOOK = 0.5  # seconds between two looks at the record
LAST_LINES = 20
SRUN_LOG, JOB_LOG = "srun.log", "slurm.log"  # below the run's engine directory
NODE_LOG = "agent-{}.log"  # there too: of what a node printed before its agent wrote a log of its own


def step_words(paths: RunPaths, start: HostOrder, group: str, host: str = "") -> list[str]:
    """Returns the srun that starts agents.

    Args:
        paths: the run's directory.
        start: how.
        group: of the hosts.
        host: the one of a node of its own; empty for all of a component.
    """
    named = [host] if host else []
    return [
        *("srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--export=ALL"),
        f"--output={str(paths.engine).replace('%', '%%')}/{NODE_LOG.format('%N')}",
        *("--open-mode=append", "--unbuffered"),
        *start.step_options.get(group, ()),
        *start.launcher,
        *module_command(ENTER, str(paths.root), group, *named, options=UTF8, python=start.python),
    ]


class SlurmInstances:
    """See the module, and `headrace.hosting.supervision.instances.Instances`.

    Args:
        plan: the launch plan, with the nodes' addresses.
        paths: the run's directory.
        events: the event file of the lead.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> None:
        self._plan = plan
        self._paths = paths
        self._start = read_host_order(paths)
        self._end = AttemptEnd(plan, paths, events)
        self._components = components(plan)
        self._job_id = int(os.environ["SLURM_JOB_ID"])
        self._jobs: dict[str, tuple[int, int]] = {}  # of hosts with one of their own: which time asked for, and its id
        self._new_attempt()

    def _new_attempt(self) -> None:
        self._steps: dict[int, int] = {}  # the pid of each srun that runs, and the number of its component
        self._given_back: set[int] = set()
        self._printed_before: dict[str, int] = {}  # bytes of each log that are of earlier attempts
        self._how = ""
        self._launch_failed = False
        self._termination: Termination | None = None
        self._unanswered: StopJob | None = None  # the stop by Slurm of which Slurm has not said why
        self._asked_for: dict[str, int] = {}  # hosts, with the last time for which a job was submitted
        self._begun = time.monotonic()
        self._killed_at = float("inf")
        self._look_at = 0.0

    @property
    def hosts(self) -> Collection[str]:
        """All hosts: their trees are on the file system that the nodes share."""
        return [host.name for host in self._plan.hosts]

    @property
    def pids(self) -> Collection[int]:
        """The sruns that run."""
        return list(self._steps)

    @property
    def others(self) -> Collection[int]:
        """None."""
        return []

    @property
    def decided(self) -> bool:
        """See `Instances.decided`: where no agent has come, srun says why."""
        if not (self._steps or self._end.registered) or self._killed_at < float("inf"):
            return True
        return self._end.decided(running=bool(self._steps))

    def prepare(self) -> None:
        """Makes nothing: the nodes are there."""

    def start(self, used: Mapping[str, str]) -> None:
        """Starts the agents of all nodes, one step for each component."""
        self._end_jobs(self._jobs)
        self._new_attempt()
        self._attempt = used.get(ATTEMPT) or "1"
        self._printed_before = {file.name: file.stat().st_size for file in self._paths.engine.glob("*.log")}
        self._end.begin(used)
        with (self._paths.engine / SRUN_LOG).open("ab") as log:
            for number, group in enumerate(self._components):
                words = step_words(self._paths, self._start, group.name)
                words[1:1] = [f"--het-group={number}"] if len(self._components) > 1 else []
                step = spawn(
                    words,
                    env={**os.environ, **used},
                    cwd=self._paths.root,
                    tied=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                self._steps[step.pid] = number
                step.returncode = 0  # the supervisor reaps it
                _log.info("component %d: %s", number, words)

    def stop(self, command: StopJob) -> None:
        """Has the coordinator stop the job, or stop it faster. Of a stop by Slurm the cause is asked for afterwards."""
        first = self._end.ask(command)
        if first and command.infrastructure:
            self._find_termination(command)

    def explained(self, command: StopJob) -> StopJob:
        """See `Instances.explained`: what Slurm says of its job. Whether the job may return is known then, too."""
        return self._find_termination(command)

    def _find_termination(self, command: StopJob) -> StopJob:
        self._termination = self._why_terminated(command)
        cause = self._termination.cause
        failed = cause.kind is not CauseKind.MAX_RUN
        self._end.asked = StopJob(cause.kind.value, cause.reason, failed, command.grace, cause.infrastructure)
        return self._end.asked

    def _why_terminated(self, command: StopJob) -> Termination:
        try:
            shown = slurm_commands.show(self._job_id, ASK_SECONDS)
        except SlurmUnreachable as error:
            _log.warning("Slurm does not say why it ends its job: %s", error)
            shown = ()
        said = said_by_slurm((self._paths.engine / JOB_LOG).read_text(errors="replace"))
        kept = [each for each in shown if each.offset not in self._given_back]
        found = why_terminated(self._job_id, kept, restarts(os.environ), said)
        self._unanswered = None if found.known else command
        return found

    def ended(self, pid: int, status: int) -> Cause | None:
        """Takes the wait status of a child. When all sruns have ended, the attempt has."""
        if pid in self._steps:
            number = self._steps.pop(pid)
            how = exit_text(*describe_exit(status))
            if number == 0:
                self._how = how
            _log.info("component %d: srun %s", number, how)
            stopped = self._end.verdict is not None or self._end.asked is not None
            came = not self._end.registered.isdisjoint(self._components[number].hosts)
            if status != 0 and not stopped and not came:  # the coordinator has heard from no host of the component
                if 0 in self._steps.values():
                    return self._no_agents(how, f"of {self._components[number].name} ")
                self._end.end_within(0)  # there is no coordinator that the others could find
            self._give_back(number)
        return None

    def _give_back(self, number: int) -> None:
        """Gives the nodes of a component back whose hosts have all been released."""
        if (
            number == 0
            or self._end.verdict is not None
            or not self._end.released.issuperset(self._components[number].hosts)
        ):
            return
        try:
            slurm_commands.cancel_component(self._job_id, number)
        except SlurmUnreachable as error:
            _log.warning("component %d keeps its nodes until the job ends: %s", number, error)
            return
        self._given_back.add(number)

    def _keep_jobs(self, wanted: Mapping[str, int]) -> None:
        """Has Slurm keep a node for each host that was asked for, and for no other one that has a job of its own."""
        self._end_jobs([name for name, (number, _) in self._jobs.items() if wanted.get(name) != number])
        for name, number in wanted.items():
            if number <= self._asked_for.get(name, 0):
                continue
            self._asked_for[name] = number
            script = self._paths.engine / HOST_SCRIPT.format(name)
            try:
                self._jobs[name] = (number, slurm_commands.submit(script, self._attempt))
            except HeadraceError as error:
                _log.warning("%s gets no node: %s", name, error.message)
                self._end.gone(AgentGone(name, f"it gets no node: {error.message}"))

    def _end_jobs(self, hosts: Collection[str]) -> None:
        for name in list(hosts):
            _, job_id = self._jobs.pop(name)
            try:
                slurm_commands.cancel(job_id)
            except SlurmUnreachable as error:  # it ends with its agent, or does nothing when it gets its node
                _log.warning("the job %d of %s was not cancelled: %s", job_id, name, error.message)

    def look_after(self) -> None:
        """Ends the steps when their time is over."""
        now = time.monotonic()
        if not self._steps or now < self._look_at:
            return
        self._look_at = now + LOOK
        if self._end.verdict is None and self._end.asked is None:
            self._keep_jobs(self._end.wanted or {})
        if self._end.verdict is not None:
            self._end.end_within(AFTER_VERDICT)
        if not self._end.registered and now - self._begun > self._plan.start_timeout:
            self._end.end_within(0)
        first = {host for each in self._components for host in each.hosts} - self._asked_for.keys()
        missing = not self._end.registered >= first
        if missing and not self._launch_failed and is_launch_failed(self._printed(SRUN_LOG)):
            self._launch_failed = True  # that host will never come, and the others would wait for it
            self._end.end_within(0)
        if now > self._killed_at + FORCED:
            self._signal(signal.SIGKILL)
        elif now >= self._end.kill_at and self._killed_at == float("inf"):
            _log.warning("components %s do not end: they are ended", sorted(self._steps.values()))
            self._killed_at = now
            self._signal(signal.SIGTERM)  # srun then ends its step by force

    def _signal(self, number: int) -> None:
        for pid in self._steps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # not reaped yet, so the pid is still its own

    def verdict(self) -> Outcome:
        """Returns how the attempt ended."""
        verdict = self._end.verdict
        if verdict is not None and verdict.status is Status.COMPLETED:
            return verdict.status, None
        if self._launch_failed and self._end.asked is None:
            return Status.FAILED, self._no_agents(self._how)
        if self._unanswered is not None:  # once more: whether the job has been queued again depends on it
            self._find_termination(self._unanswered)
        asked = self._end.asked
        if asked is not None and self._termination is not None:  # Slurm signals the agents too: the verdict is theirs
            return (Status.FAILED if asked.failed else Status.STOPPED), cause_of(asked)
        return self._end.outcome(self._without_verdict())

    def _without_verdict(self) -> Cause:
        if not self._end.registered:
            return self._no_agents(self._how)
        why, last = self._complaints()
        words = f"the coordinator ended without a verdict; srun {self._how}: {why}"
        return Cause(CauseKind.COORDINATOR_LOST, words, last_lines=last, infrastructure=True)

    def _no_agents(self, how: str, which: str = "") -> Cause:
        why, last = self._complaints()
        seconds = f"{time.monotonic() - self._begun:.0f} s"
        words = f"Slurm did not start the agents {which}on the nodes ({seconds}; srun {how}): {why}"
        return Cause(CauseKind.INSTANCE_NOT_STARTED, words, last_lines=last, infrastructure=True)

    def _complaints(self) -> tuple[str, tuple[str, ...]]:
        """Returns the line that tells best why the steps ended, and the last lines of all."""
        srun = self._printed(SRUN_LOG)
        logs = sorted(self._paths.engine.glob(NODE_LOG.format("*")))
        by_node = {log.stem.removeprefix("agent-"): self._printed(log.name) for log in logs}
        of_nodes = [line for lines in by_node.values() for line in lines]
        return why_no_agents(by_node, srun), (*of_nodes, *srun)[-LAST_LINES:]

    def _printed(self, name: str) -> list[str]:
        """Returns what a log has of this attempt."""
        with (self._paths.engine / name).open("rb") as log:
            log.seek(self._printed_before.get(name, 0))
            return [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]

    def needs_others(self) -> bool:
        """See `Instances.needs_others`: nodes were given back, taken, did not answer, or are down."""
        if self._termination is not None:
            return self._termination.may_return
        if self._given_back or self._killed_at < float("inf") or not self._end.registered:
            return True
        try:
            return bool(slurm_commands.nodes_down(read_placement(self._paths).nodes))
        except SlurmUnreachable as error:
            _log.warning("Slurm does not say whether all nodes are there: %s", error)
            return False

    def close(self) -> None:
        """Ends the coordinator, and what hosts have jobs of their own."""
        self._end.close()
        self._end_jobs(self._jobs)

    def remove(self) -> None:
        """Removes temporary files on this node; the agents have removed those of their nodes."""
        remove_scratch(scratch_key(self._plan, self._plan.leader))
