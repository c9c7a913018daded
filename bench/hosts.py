"""What a job of N hosts costs its one authority; the hosts are simulated: the agents' protocol, no programs.

    python -m bench.hosts 16 200 1000 --output bench/results/hosts.jsonl

The authority is the real one, in a process of its own, over loopback, under the run's own certificates. All hosts are
in this process; each has the real client with its heartbeats, and does what a host does that obeys: half of them have a
rank, half a feed server. CPU seconds are of the authority's process and mean the same on a busy machine; wall seconds
are upper bounds, because this process, which plays all hosts, shares the machine. A row has:

    certificates_cpu_s      the submitting side makes the certificates of all hosts
    plan_cpu_s              the authority reads the plan and is made
    start_s, start_cpu_s    from its open port until every rank has the list in which every feed server is ready
    idle                    share of a core while there are heartbeats only, one a second from every host: the CPU
                            seconds by the heartbeats that were answered, because a busy machine answers fewer
    busy                    the same while each heartbeat tells of programs, and in each second one of a hundred hosts
                            loses an executor and one feed server is started again
    idle_beats, busy_beats  heartbeats a host and second that were answered
    complete_s, _cpu_s      from the exit of all ranks with 0 until every host has the verdict
    lost_s, _cpu_s          of a second job: from the death of ten data hosts until every rank has the list without them
    stop_s, _cpu_s          from the exit of one rank with 1 until every host that lives has the order to stop
    failure_s, _cpu_s       and until every one of them has the verdict
    kilobytes_per_host      resident memory of the authority when all hosts are busy, beyond that without hosts
    sent_kilobytes_per_host what each host gets from the start to the verdict, without TLS's own

With `--slow 10` all clocks of the protocol run ten times slower, here and in the authority, so that its CPU seconds by
heartbeat are those at full speed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import psutil

from headrace.agent.control import control_client
from headrace.agent.control.control_client import Client
from headrace.agent.control.control_messages import (
    Demand,
    ExecutorLost,
    Exited,
    Heartbeat,
    Hello,
    HostEnded,
    Orders,
    ProgramsEnded,
    ServerDown,
    ServerUp,
)
from headrace.agent.coordinator import authority, host_state, state_machine
from headrace.agent.coordinator.authority import Authority
from headrace.agent.program_specs import expected_streams
from headrace.engines.planning.host_certificates import make_certificates
from headrace.instance.launch_plan import (
    TORCH_DISTRIBUTED,
    Certificates,
    DistributionPlan,
    GroupPlan,
    HostPlan,
    LaunchPlan,
    Ports,
    plan_text,
    read_certificates,
    read_plan,
    write_certificates,
    write_plan,
    write_secret,
)
from headrace.runs import Cause, CauseKind, EventWriter, Status

LIMIT = 600.0  # seconds for what must happen
TOGETHER = 25  # hosts that connect at one time: this process is the other end of all handshakes
EXECUTORS = 4
DYING = 10  # data hosts that die at once, of half of them at most
TRAIN, DATA = "train", "data"


def slow_down(times: float) -> None:
    """Makes all clocks of the protocol slower, for a machine on which one process cannot play all hosts in time."""
    authority.TICK *= times
    host_state.QUIET *= times
    state_machine.SILENCE_LIMIT *= times
    state_machine.PAUSE *= times
    control_client.HEARTBEAT *= times
    control_client.LOOK, control_client.SILENCE_LIMIT = 0.9, LIMIT  # one process has the clocks of all


def make_plan(hosts: int, folder: Path) -> LaunchPlan:
    """Returns the plan of a job: the first half of its hosts has a rank each, the other half a feed server each."""
    names = [f"algo-{number}" for number in range(1, hosts + 1)]
    ranks, data = tuple(names[: (hosts + 1) // 2]), tuple(names[(hosts + 1) // 2 :])
    groups = (
        GroupPlan(TRAIN, "ml.g5.xlarge", ranks, processes_per_host=1),
        GroupPlan(DATA, "ml.c5.xlarge", data, entry_point=False, feed_executors=EXECUTORS),
    )
    address = f"127.{200 + os.getpid() % 50}.9.1"
    plans = tuple(
        HostPlan(name, TRAIN if name in ranks else DATA, address, str(folder / "leader"), str(folder)) for name in names
    )
    return LaunchPlan(
        *("hosts", "hosts-1", "train.py", groups, plans, names[0], (DistributionPlan(TORCH_DISTRIBUTED, (TRAIN,)),)),
        completion_groups=(TRAIN,),
        start_timeout=LIMIT,
        stall_after=3600.0,
        ports=Ports(),
    )


class SimulatedHost:
    """A host that obeys its orders at once and has no programs.

    Args:
        plan: the launch plan.
        host: its name.
        tls: its certificates.
    """

    def __init__(self, plan: LaunchPlan, host: HostPlan, tls: Certificates) -> None:
        self.name = host.name
        self.busy = False
        self.answers = 0  # orders that came
        self.ready = 0  # feed servers that are ready, in the list that it has
        self.started = self.stopping = self.ended = self.dead = False
        self.verdict: Status | None = None
        self._serves = plan.group(host.group).feed_executors
        self._streams = expected_streams(plan, host.name)
        self._client = Client(
            leader=plan.host(plan.leader),
            address=f"{plan.coordinator_address}:{plan.ports.control}",
            tls=tls,
            start_timeout=plan.start_timeout,
            obey=self._obey,
            heartbeat=self._heartbeat,
        )
        self._client.report(Hello(host.group))
        self.report = self._client.report

    async def run(self) -> None:
        """Talks until the verdict, or until it is dead."""
        talking = asyncio.ensure_future(self._client.run())
        try:
            while self.verdict is None and not self.dead:
                if talking.done():
                    talking.result()
                await asyncio.sleep(0.05)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def exit(self, code: int) -> None:
        """Its programs end."""
        for stream in self._streams:
            self.report(Exited(stream, time.time(), exit_code=code, stopped=self.stopping))

    def restart_feed(self) -> None:
        """Its feed server ends, and another one serves."""
        self.report(ServerDown("feed", Cause(CauseKind.PROGRAM_EXITED, signal=9), gone=False))
        self.report(ServerUp("feed", executors=EXECUTORS))

    def lose_executor(self) -> None:
        """One of its data workers dies."""
        self.report(ExecutorLost(1, Cause(CauseKind.PROGRAM_EXITED, signal=9), replaced=True))

    def _heartbeat(self) -> Heartbeat:
        if not self.busy:
            return Heartbeat()
        demands = (Demand(3.0, 0.1, 0.2),) if self._streams else ()
        return Heartbeat(dict.fromkeys(self._streams, 0.3), 0.1, 0.1, demands)

    def _obey(self, orders: Orders) -> None:
        self.answers += 1
        if orders.start and not self.started:
            self.started = True
            if self._serves:
                self.report(ServerUp("feed", executors=EXECUTORS))
        if orders.feed:
            self.ready = sum(host.state == "ready" for host in orders.feed)
        if orders.stop is not None and not self.stopping:
            self.stopping = True
            if self._streams:
                self.report(ProgramsEnded())
        if orders.stop is not None and orders.stop.feed and not self.ended:
            self.ended = True
            self.report(HostEnded())
        self.verdict = orders.verdict


class AuthorityProcess:
    """The authority in a process of its own, see `serve`.

    Args:
        folder: with the plan and the leader's certificates.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.hosts",
                "--authority",
                str(folder),
                "--slow",
                f"{control_client.HEARTBEAT:g}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # when the port is open
        if not line:
            raise SystemExit(f"the authority did not start: exit code {self._process.wait()}")
        self.plan_cpu = float(line)
        self._handle = psutil.Process(self._process.pid)
        self.memory_before = self.memory()

    def cpu(self) -> float:
        """CPU seconds so far."""
        times = self._handle.cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Resident bytes."""
        return int(self._handle.memory_info().rss)

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._process.kill()
        self._process.communicate()


def serve(folder: Path) -> None:
    """What the process of the authority does: prints its CPU seconds when the port is open, ends with the verdict."""
    began = time.process_time()
    plan = read_plan(folder / "leader")
    events = EventWriter(folder / "events" / "supervisor.jsonl")
    deciding = Authority(plan, events, read_certificates(folder / "leader"), apart=True)
    deciding.start()
    print(time.process_time() - began, flush=True)
    while deciding.verdict is None:
        time.sleep(0.25)
    deciding.close()


class Clocks:
    """Wall seconds and CPU seconds of the authority since it was made."""

    def __init__(self, authority: AuthorityProcess) -> None:
        self._authority = authority
        self._wall, self._cpu = time.monotonic(), authority.cpu()

    def row(self, name: str) -> dict[str, float]:
        """Returns both, under their names."""
        return {f"{name}_s": round(self.wall, 3), f"{name}_cpu_s": round(self.cpu, 3)}

    @property
    def wall(self) -> float:
        return time.monotonic() - self._wall

    @property
    def cpu(self) -> float:
        return self._authority.cpu() - self._cpu


@contextlib.asynccontextmanager
async def job(
    plan: LaunchPlan, certificates: Mapping[str, Certificates], folder: Path
) -> AsyncIterator[tuple[AuthorityProcess, list[SimulatedHost], dict[str, float]]]:
    """Starts a job, and yields it when all of it runs, with what the start has cost. It must end in the block."""
    authority = AuthorityProcess(folder)
    clocks = Clocks(authority)
    hosts = [SimulatedHost(plan, host, certificates[host.name]) for host in plan.hosts]
    ranks, servers = plan.group(TRAIN).hosts, plan.group(DATA).hosts
    talking: list[asyncio.Future[None]] = []
    try:
        for at in range(0, len(hosts), TOGETHER):
            coming = hosts[at : at + TOGETHER]
            talking += [asyncio.ensure_future(host.run()) for host in coming]
            await until(functools.partial(all_answered, coming), talking)
        trainers = [host for host in hosts if host.name in ranks]
        await until(lambda: all(host.started and host.ready == len(servers) for host in trainers), talking)
        yield authority, hosts, clocks.row("start")
        await asyncio.wait_for(asyncio.gather(*talking), LIMIT)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        authority.close()


def all_answered(hosts: list[SimulatedHost]) -> bool:
    """Whether the authority has answered all of them."""
    return all(host.answers for host in hosts)


async def until(condition: Callable[[], bool], talking: list[asyncio.Future[None]]) -> None:
    """Waits for a condition. Raises what a host raised, and TimeoutError."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        for task in talking:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT:g} s")
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def share(authority: AuthorityProcess, hosts: list[SimulatedHost], row: dict[str, float], name: str) -> Iterator[None]:
    """Adds the authority's share of a core in the block to a row, see the module."""
    clocks, before = Clocks(authority), sum(host.answers for host in hosts)
    yield
    beats = (sum(host.answers for host in hosts) - before) / len(hosts)
    row |= {
        name: round(clocks.cpu / beats, 5),
        f"{name}_beats": round(beats * control_client.HEARTBEAT / clocks.wall, 2),
    }


async def complete(
    plan: LaunchPlan, certificates: Mapping[str, Certificates], folder: Path, seconds: float
) -> dict[str, float]:
    """Plays a job that is idle, then busy, then complete. Returns its part of a row."""
    chance = random.Random(5)
    async with job(plan, certificates, folder) as (authority, hosts, row):
        row["plan_cpu_s"] = round(authority.plan_cpu, 3)
        await asyncio.sleep(1)
        with share(authority, hosts, row, "idle"):
            await asyncio.sleep(seconds * control_client.HEARTBEAT)
        for host in hosts:
            host.busy = True
        servers = [host for host in hosts if host.name in plan.group(DATA).hosts]
        with share(authority, hosts, row, "busy"):
            for _ in range(round(seconds)):
                await asyncio.sleep(control_client.HEARTBEAT)
                for host in chance.sample(servers, -(-len(hosts) // 100)):
                    host.lose_executor()
                chance.choice(servers).restart_feed()
        row["kilobytes_per_host"] = round((authority.memory() - authority.memory_before) / len(hosts) / 1000, 1)
        clocks = Clocks(authority)
        for host in hosts:
            host.exit(0)
        await until(lambda: all(host.verdict is not None for host in hosts), [])
        row.update(clocks.row("complete"))
    assert {host.verdict for host in hosts} == {Status.COMPLETED}
    return row


async def fail(plan: LaunchPlan, certificates: Mapping[str, Certificates], folder: Path) -> dict[str, float]:
    """Plays a job in which data hosts die, and then its last rank exits with 1. Returns its part of a row."""
    async with job(plan, certificates, folder) as (authority, hosts, _):
        trainers = [host for host in hosts if host.name in plan.group(TRAIN).hosts]
        servers = [host for host in hosts if host not in trainers]
        dying = servers[: min(DYING, len(servers) // 2)]
        living = [host for host in hosts if host not in dying]
        clocks = Clocks(authority)
        for host in dying:
            host.dead = True
        await until(lambda: all(host.ready == len(servers) - len(dying) for host in trainers), [])
        row = clocks.row("lost")
        clocks = Clocks(authority)
        trainers[-1].exit(1)
        await until(lambda: all(host.stopping for host in living), [])
        row |= clocks.row("stop")
        await until(lambda: all(host.verdict is not None for host in living), [])
        row |= clocks.row("failure")
    assert {host.verdict for host in living} == {Status.FAILED}
    return row


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the bytes of the orders that come, in one number."""
    received, decode = [0], control_client.decode_orders

    def count(body: bytes) -> Orders:
        received[0] += len(body)
        return decode(body)

    control_client.decode_orders = count
    try:
        yield received
    finally:
        control_client.decode_orders = decode


def prepare(plan: LaunchPlan, folder: Path) -> Mapping[str, Certificates]:
    """Writes what the authority reads. Returns the certificates of all hosts."""
    certificates = make_certificates(plan.run_id, [host.name for host in plan.hosts])
    write_plan(plan_text(plan), folder / "leader")
    write_secret("00" * 32, folder / "leader")
    write_certificates(folder / "leader", certificates[plan.leader])
    return certificates


def measure(hosts: int, seconds: float) -> dict[str, float]:
    """Plays both jobs with so many hosts. Returns a row."""
    with tempfile.TemporaryDirectory(prefix="headrace-hosts-") as name:
        folder = Path(name)
        plan = make_plan(hosts, folder)
        began = time.process_time()
        certificates = prepare(plan, folder)
        row: dict[str, float] = {"hosts": hosts, "certificates_cpu_s": round(time.process_time() - began, 3)}
        with counted() as received:
            row |= asyncio.run(complete(plan, certificates, folder, seconds))
        row["sent_kilobytes_per_host"] = round(received[0] / hosts / 1000, 1)
        row |= asyncio.run(fail(plan, certificates, folder))
    return row


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="bench.hosts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("hosts", type=int, nargs="*", help="how many hosts; each is two jobs")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a job is idle, and busy (default 20)")
    parser.add_argument("--slow", type=float, default=1.0, help="how many times slower all clocks are (default 1)")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    parser.add_argument("--authority", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    slow_down(options.slow)
    if options.authority:
        serve(options.authority)
        return
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    for hosts in options.hosts:
        row = measure(hosts, options.seconds)
        print(json.dumps(row), flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps({"t": round(time.time()), **machine, "load": os.getloadavg()[0], **row}) + "\n")


if __name__ == "__main__":
    main()
