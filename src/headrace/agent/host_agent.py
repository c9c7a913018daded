"""The agent of one host: carries out the coordinator's orders, reports what happens, and leaves nothing behind.

What ends a host: an order to stop; a SIGTERM to the agent, which is its platform's doing without a lifeline or where a
variable says so, else that of one of its programs; the loss of the coordinator, or of the supervisor of this machine.
In every case the programs get SIGTERM and time, then SIGKILL, then whatever they left running is ended, and the agent
exits. If the agent itself is killed, the kernel kills its programs (see `processes.bootstrap`) and the engine's
supervisor ends what they leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import cast

import msgspec

from headrace.agent.control.control_client import Client, CoordinatorLost
from headrace.agent.control.control_messages import (
    Demand,
    Heartbeat,
    Hello,
    HostEnded,
    HostLeaving,
    Orders,
    ProgramsEnded,
    Ready,
    StopOrder,
)
from headrace.agent.coordinator.host_state import is_waited_for
from headrace.agent.host.data_servers import HostServices, write_feed_file
from headrace.agent.host.oom_kills import MemoryKills
from headrace.agent.host.process import Reaper, Running, all_ended, end_leftovers, end_programs
from headrace.agent.host.program_environment import HostVariables
from headrace.agent.host.programs import HostContext, HostPrograms, latest_demand, quiet_times, until_listens
from headrace.agent.launchers.elastic_torchrun import ElasticHost
from headrace.agent.launchers.mpi_host import MpiHost
from headrace.agent.metrics.sampler import HostSampler
from headrace.agent.program_specs import (
    expected_streams,
    is_launcher,
    mpi_world,
    programs_of,
)
from headrace.instance.channels.mountinfo import read_mounts
from headrace.instance.kept_files import bring_in, link_kept
from headrace.instance.launch_plan import LaunchPlan, read_certificates
from headrace.instance.lifeline import COORDINATOR_LOST, OF_PLATFORM
from headrace.instance.paths import TreePaths
from headrace.processes.process_table import descendants
from headrace.runs import EventWriter, RunPaths, Status
from headrace.runs.disk_use import NAMED, written_since
from headrace.runs.events import FilesLeft

_log = logging.getLogger(__name__)

SUPERVISOR_DIED = "the engine's supervisor died"
SIGNALS = (signal.SIGTERM, signal.SIGINT)
ORPHAN_GRACE = 5.0  # at most this long for the programs, when the coordinator or the supervisor is lost
FEED_GRACE = 5.0
LAUNCHER_GRACE = 3.0  # for torchrun, mpirun and its daemons to end after the last rank; then SIGTERM and 1 s
TEMPORARY_BYTES = 1_000_000  # in TMPDIR, which are told: what is there is meant to be temporary
LEAVE_SECONDS = 8.0  # for the coordinator's verdict, when this host has ended


class HostAgent:
    """See the module.

    Args:
        plan: the launch plan.
        host: name of this host.
        secret: the job's secret.
        lifeline: whether standard input is the engine's lifeline.
        attempt: which attempt of the job this is, from 1.
    """

    def __init__(self, plan: LaunchPlan, host: str, secret: bytes, lifeline: bool, attempt: int = 1) -> None:
        self.plan = plan
        self.me = plan.host(host)
        self.group = plan.group(self.me.group)
        self._reaper = Reaper()
        self._feed_generation = 0
        self._started = False
        self._stop: StopOrder | None = None
        self._stop_at = 0.0  # when SIGKILL is due
        self._stop_changed = asyncio.Event()
        self._verdict: Status | None = None
        self._failure = ""
        self._coordinator_lost = False
        self._ended = asyncio.Event()
        self._released = asyncio.Event()
        self._told_to_leave = False
        self._crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._lifeline = lifeline
        self._of_platform = not lifeline or bool(os.environ.get(OF_PLATFORM))  # whose signals are
        self._supervisor = os.getppid()
        paths = RunPaths(Path(self.me.record_dir))
        events = EventWriter(paths.events(host))
        self._client = Client(
            leader=plan.host(plan.leader),
            address=f"{plan.coordinator_address}:{plan.ports.control}",
            tls=read_certificates(self.me.base_dir),
            start_timeout=plan.start_timeout,
            obey=self.obey,
            heartbeat=self._heartbeat,
            attempt=attempt,
        )
        self._context = HostContext(
            plan=plan,
            host=host,
            secret=secret,
            paths=paths,
            events=events,
            variables=HostVariables(plan, host),
            report=self._client.report,
            memory=MemoryKills(self.me.memory),
        )
        self._sampler = HostSampler(plan, host, paths, self._context.activity, events)
        self._programs = HostPrograms(self._context, self._reaper, self._sampler.take)
        self._programs.on_end = self._program_ended
        self._services = HostServices(self._context, self._programs)
        world = mpi_world(plan, host)
        self._mpi = None if world is None else MpiHost(self._context, world, self._programs)
        elastic = any(spec.is_torchrun for spec in programs_of(plan, host))
        self._elastic = ElasticHost(self._context, self._programs) if elastic else None
        self._launched = [each.ranks for each in (self._mpi, self._elastic) if each is not None]

    async def run(self) -> int:
        """Runs the host to its end. Returns the exit code: 0 if the job is complete, COORDINATOR_LOST if that was."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        if self._lifeline:
            self._watch_lifeline()
        self._task(self._talk())
        self._client.report(Hello(self.group.name, self.me.address))
        self._task(self._sampler.run())
        self._task(self._context.memory.watch())
        self._task(self._services.watch())
        self._context.variables.prepare()
        for ranks in self._launched:
            await ranks.open()
        await self._until_crash(self._ended.wait())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_crash(self._verdict_or_leave()), LEAVE_SECONDS)
        self._sampler.close()
        if self._failure:
            self._programs.write_failure(self._failure)
        for ranks in self._launched:
            await ranks.close()
        while self._tasks:  # asyncio.wait_for may swallow a cancellation: ask again
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=0.1)
            self._tasks = [task for task in self._tasks if not task.done()]
        self._services.close()
        self._programs.close_logs()
        self._context.events.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # all has ended: what comes now must not look like a failure
        released = self._stop is not None and self._stop.leave
        if released or self._verdict is Status.COMPLETED:
            return 0
        return COORDINATOR_LOST if self._coordinator_lost else 1

    async def _until_crash(self, work: Coroutine[object, object, object]) -> None:
        """Waits for the work. Raises what any task of this agent raised."""
        task = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[object]] = {task, cast("asyncio.Future[object]", self._crashed)}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._crashed.done():
                self._crashed.result()
        finally:
            task.cancel()

    async def _verdict_or_leave(self) -> None:
        """Waits for the verdict, or until the coordinator has every report of a host that may leave before it."""
        while not (self._released.is_set() or (self._told_to_leave and self._client.delivered)):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._released.wait(), 0.05)

    # --- orders --------------------------------------------------------------------------------------------------

    def obey(self, orders: Orders) -> None:
        """Carries out what is new in the coordinator's orders."""
        if orders.feed_generation > self._feed_generation and orders.feed and self.group.entry_point:
            self._feed_generation = orders.feed_generation
            _log.debug("feed hosts, list %d: %s", orders.feed_generation, [each.host for each in orders.feed])
            try:
                write_feed_file(self.plan, self.me.name, orders, self._context.secret)
            except OSError as error:
                _log.warning("cannot write feed.json: %s", error)
        if orders.stop is not None:
            self.stop(orders.stop)
        elif orders.start and not self._started and self._stop is None:
            self._start_programs()
        if self._mpi is not None:
            self._mpi.obey(orders)
        if orders.verdict is not None:
            self._verdict, self._failure = orders.verdict, orders.failure
            self._released.set()

    def stop(self, order: StopOrder) -> None:
        """Stops the host, or stops it faster."""
        due = time.monotonic() + order.grace
        first = self._stop is None
        self._stop_at = due if first else min(self._stop_at, due)
        feed = order.feed or (self._stop is not None and self._stop.feed)
        if first:
            _log.info("stopping: %s", order.reason)
            for ranks in self._launched:
                ranks.stopping = True
        self._stop = msgspec.structs.replace(order, feed=feed)
        self._told_to_leave = self._told_to_leave or order.leave
        self._stop_changed.set()
        if first:
            self._task(self._stop_host())

    def _signalled(self, number: int) -> None:
        # No engine stops a job by a signal to an agent: it asks the coordinator. The job's own program may have
        # signalled process 1 of its host.
        name = signal.Signals(number).name
        if self._stop is None:
            self._client.report(HostLeaving(name, self._of_platform))
        self._told_to_leave = True
        if not self._client.answered:
            self._released.set()
        self.stop(StopOrder(f"the agent got {name}", self.plan.stop_grace, feed=True))

    def _abandoned(self, reason: str) -> None:
        """Ends the host without orders: the coordinator, or the supervisor in which it is, is lost."""
        self._released.set()  # no verdict will come
        self.stop(StopOrder(reason, min(ORPHAN_GRACE, self.plan.stop_grace), feed=True))

    # --- programs ------------------------------------------------------------------------------------------------

    def _start_programs(self) -> None:
        self._started = True
        self._services.start()
        for spec in programs_of(self.plan, self.me.name):
            if spec.is_service:
                continue
            if spec.is_mpirun and self._mpi is not None:
                self._programs.start_by(spec.stream, self._mpi.start_mpirun)
            elif spec.is_torchrun and self._elastic is not None:
                self._programs.start_by(spec.stream, self._elastic.start_torchrun)
            else:
                self._programs.start(spec)
        if is_waited_for(self.plan, self.group.name):
            self._task(self._report_ready())

    async def _report_ready(self) -> None:
        if self.group.ready.port:
            await until_listens(self.me.address, self.group.ready.port)
        self._client.report(Ready())

    def _heartbeat(self) -> Heartbeat:
        def files(stream: str) -> list[Path]:
            where = self._context.stream(stream)
            return [self._context.paths.log(where), self._context.paths.metrics(where)]

        demands = self._demands()
        wanted = self.plan.stall_after or self.plan.tf_data
        if not wanted:
            return Heartbeat(demands=demands)
        activity = self._context.activity
        return Heartbeat(quiet_times(self._programs.running, files), activity.idle(), activity.unsent(), demands)

    def _demands(self) -> tuple[Demand, ...]:
        if self.plan.feed_range is None or not self.group.entry_point:
            return ()
        streams = [stream for stream, program in self._programs.running.items() if not program.ended.is_set()]
        files = [self._context.paths.metrics(self._context.stream(stream)) for stream in streams]
        return tuple(demand for path in files if (demand := latest_demand(path)) is not None)

    def _program_ended(self) -> None:
        if not self._programs.entry_running() and self._stop is None:
            self._task(self._clear())

    # --- stop ----------------------------------------------------------------------------------------------------

    async def _stop_host(self) -> None:
        self._services.stop()
        entry = [each for each in self._programs.entry_running() if not is_launcher(each.stream)]
        await self._end(entry, float("inf"))
        if expected_streams(self.plan, self.me.name):
            self._client.report(ProgramsEnded())
        while self._stop is not None and not self._stop.feed:
            self._stop_changed.clear()
            await self._stop_changed.wait()
        launchers = self._programs.entry_running()
        if launchers:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(all_ended(launchers), min(LAUNCHER_GRACE, self._stop_at - time.monotonic()))
            await self._end(self._programs.entry_running(), 1.0)
        await self._end(self._services.running(), FEED_GRACE)
        await self._clear()
        self._programs.close_pipes()
        await asyncio.to_thread(self._bring_in)
        await asyncio.to_thread(self._tell_files_left)
        self._context.variables.remove_scratch()
        self._client.report(HostEnded())
        self._ended.set()

    def _bring_in(self) -> None:
        """What the programs leave in the host's own /tmp and linked to goes with the rest, as the places to keep do."""
        for trouble in link_kept(Path(self.me.base_dir), self.me.name, self.plan.keep):
            _log.warning("cannot be kept: %s", trouble)
        sent = RunPaths(Path(self.me.record_dir)).code if self.plan.isolation.shared_code else None
        for trouble in bring_in(Path(self.me.base_dir), lambda: time.monotonic() > self._stop_at, sent):
            _log.warning("a link that leads out of what the host keeps stays as it is: %s", trouble)

    def _tell_files_left(self) -> None:
        """Says what the programs wrote where it goes with the host, or stays behind in its working directory."""
        scratch = self._context.variables.scratch
        for root, since, gone in self._context.variables.unkept:
            try:
                without = {mount.point for mount in read_mounts()} | self._kept() | {scratch}
                files, size, folders = written_since(root, since, without)
            except OSError as error:
                _log.warning("what was written to %s could not be looked at: %s", root, error)
                continue
            if size >= (TEMPORARY_BYTES if str(root) == scratch else 1):
                largest, more = tuple(folders[:NAMED]), len(folders[NAMED:])
                self._context.events.write(
                    FilesLeft(
                        t=time.time(),
                        group=self.group.name,
                        host=self.me.name,
                        files=files,
                        bytes=size,
                        folders=largest,
                        more=more,
                        gone=gone,
                    )
                )

    def _kept(self) -> set[str]:
        code = TreePaths(self.me.base_dir).code
        return {os.path.realpath(code / place) for place in self.plan.keep}

    async def _end(self, programs: list[Running], at_most: float) -> None:
        limit = time.monotonic() + at_most
        await end_programs(programs, lambda: min(self._stop_at, limit) - time.monotonic(), self._stop_changed)

    async def _clear(self) -> None:
        """Ends what the programs left running: whatever descends from this agent and is not one of its programs."""
        alive = [each.pid for each in self._programs.running.values() if not each.ended.is_set()]
        left = await end_leftovers(lambda: descendants(os.getpid(), without=alive), self._reaper.reap)
        if left:
            _log.warning("%d processes that the programs had left running were killed", left)

    # --- connections ---------------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        try:
            await self._client.run()
        except CoordinatorLost as error:
            self._coordinator_lost = True
            _log.error("%s", error)
            self._abandoned(str(error))

    def _watch_lifeline(self) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            if not os.read(0, 1 << 16):
                loop.remove_reader(0)
                self._abandoned(SUPERVISOR_DIED)

        loop.add_reader(0, read)
        self._task(self._watch_parent())

    async def _watch_parent(self) -> None:
        """Notices the supervisor's death, also while another process still holds the other end of the lifeline."""
        while os.getppid() == self._supervisor:
            await asyncio.sleep(0.5)
        self._abandoned(SUPERVISOR_DIED)

    def _task(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            if error is not None and not self._crashed.done():
                self._crashed.set_exception(error)
