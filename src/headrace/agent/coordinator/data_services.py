"""The data service of a job: feed servers, data hosts that come and go, and servers of tf.data.service. Pure.

A job goes on while a data worker can still serve, marked degraded. It cannot go on when no feed server is left; when
tf.data.service has lost its dispatcher, or all its workers, for good; when one of its servers cannot run on its host,
because TensorFlow is missing or its port is taken; or when the servers have different versions of TensorFlow, because
they exchange graphs. (Patch versions may differ: TensorFlow keeps its graphs compatible within a minor
version.)

A pipeline that needs more memory than a host has ends one worker after the other, with the data that they held. So the
job ends when the kernel kills a server of tf.data.service for memory twice within `MEMORY_WINDOW` seconds.

A dispatcher without fault tolerance that is started again has lost its state. Trainers that have read all their data
are not affected; one that asks for more fails, and then the dispatcher is the cause.

A worker of tf.data.service that is lost for good while others serve is a case of its own: at the end of an epoch
TensorFlow's client waits without end for it. So then a job also ends when nothing is printed or measured for
`GONE_LIMIT` seconds while nothing works: no other worker sends data, and no host uses its CPUs or GPUs (see
`Activity`). A training that works silently goes on. Ranks that wait for another one may spin, and look busy: a job
without a limit of its own has `SPIN_LIMIT` seconds in which nothing is printed, measured or sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.agent.control.control_messages import ServerDown, ServerUp, StopOrder
from headrace.agent.coordinator.budget_limits import BudgetLimits
from headrace.agent.coordinator.host_state import LEAVING, LOST, READY, STARTING, Effects, HostState, ServerState
from headrace.agent.metrics.counters import BUSY_CORES
from headrace.feed.tuning.executor_rule import desired_hosts
from headrace.instance.frameworks import DISPATCHER
from headrace.instance.launch_plan import FeedHost, LaunchPlan
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import HostJoined, HostReleased, ServerReady

GONE_LIMIT = 60.0  # seconds without any sign or work, while a server of tf.data.service is gone for good
SPIN_LIMIT = 600.0  # seconds without any sign or data, then


@dataclass(frozen=True)
class Missing:
    """A server of tf.data.service that does not serve.

    Attributes:
        since: when it was lost, on the coordinator's clock.
        for_good: whether it is not started again.
        cause: its end, with its place.
        worked, sent: when any host last worked, and any worker last sent data, see `headrace.agent.metrics.counters`.
    """

    since: float
    for_good: bool
    cause: Cause
    worked: float
    sent: float


def stalled(hosts: Sequence[HostState], limit: float, now: float, missing: Missing | None = None) -> Cause | None:
    """Returns why the job counts as stalled, None if it does not.

    One program that shows a sign of life is enough: ranks wait for each other, and often only one of them writes.

    Args:
        hosts: those of the completion groups.
        limit: seconds without any sign; 0 means none.
        now: the time on the coordinator's clock.
        missing: a server of tf.data.service that does not serve.
    """
    if not limit and (missing is None or not missing.for_good):
        return None
    if not all(host.started for host in hosts):
        return None  # one waits for another group, and that has a limit of its own
    signs = [(sign, host, stream, done) for host in hosts for sign, stream, done in _signs(host)]
    last = max(missing.since if missing else 0.0, 0.0, *(sign for sign, *_ in signs))
    if now - last <= min(seconds for seconds in (limit, GONE_LIMIT if missing else 0.0) if seconds):
        return None
    running = sorted(((sign, host, stream) for sign, host, stream, done in signs if not done), key=lambda each: each[0])
    if not running:
        return None
    silence = f"no output or metrics for {{:g}} s; the quietest: {_named(running, now)}"
    if limit and now - last > limit:
        detail = silence.format(limit)
    elif missing is None or not missing.for_good:
        return None
    elif now - max(last, missing.sent, missing.worked) > GONE_LIMIT:
        detail = (
            f"{silence.format(GONE_LIMIT)}; in that time no worker of tf.data.service sent anything "
            f"(the last {now - missing.sent:.0f} s ago), and no host used {BUSY_CORES:.0%} of a core or a GPU "
            f"(the last {now - missing.worked:.0f} s ago)"
        )
    elif not limit and now - max(last, missing.sent) > SPIN_LIMIT:
        detail = (
            f"{silence.format(SPIN_LIMIT)}; in that time no worker of tf.data.service sent anything "
            f"(the last {now - missing.sent:.0f} s ago), though processes used CPUs or GPUs"
        )
    else:
        return None
    if missing is not None:
        return msgspec.structs.replace(missing.cause, then=Cause(CauseKind.STALLED, detail))
    _, host, stream = running[0]
    return Cause(CauseKind.STALLED, detail, host.group, host.name, stream)


def _signs(host: HostState) -> Iterator[tuple[float, str, bool]]:
    """Yields the last sign of life of each program of a host, its name, and whether it has ended."""
    for stream in host.streams:
        done = host.exits.get(stream)
        yield max(host.started, host.signs.get(stream, 0.0), done.at if done else 0.0), stream, done is not None


def _named(running: Sequence[tuple[float, HostState, str]], now: float) -> str:
    named = ", ".join(f"{host.place}[{stream}] ({now - sign:.0f} s)" for sign, host, stream in running[:_NAMED])
    return f"{named} and {len(running) - _NAMED} more" if len(running) > _NAMED else named


MEMORY_WINDOW = 3600.0
_NAMED = 4  # workers or programs that a cause names
_FORGOTTEN = "not found"  # TensorFlow's error when a dispatcher does not know what it is asked for: NOT_FOUND


class DataServices:
    """The servers of the data service. It keeps its state in the hosts.

    Args:
        plan: the launch plan.
        hosts: all hosts by name.

    Attributes:
        generation: grows with every change of `feed`.
        feed: the list of feed servers, for every host with programs.
        readers: names of these hosts.
    """

    def __init__(self, plan: LaunchPlan, hosts: Mapping[str, HostState]) -> None:
        self.generation = 0
        self.feed: tuple[FeedHost, ...] = ()
        self._port = plan.ports.feed
        self._forgets = plan.tf_data is not None and not plan.tf_data.fault_tolerant
        self._memory_killed = float("-inf")  # when a server was killed for memory last
        self._unusable: Cause | None = None
        self._hosts = hosts
        self._down: HostState | None = None  # whose feed server was down last
        self.readers = [host.name for host in hosts.values() if host.streams]
        self._changed = True
        self._listed = float("-inf")

    def feed_changed(self, host: HostState, state: str, reason: str = "") -> None:
        """A feed server starts, is ready or lost. `reason`: why, when it was down."""
        host.feed = state
        if reason:
            host.feed_reason = reason
            self._down = host
        self._changed = True

    def server_up(self, host: HostState, message: ServerUp, now: float) -> tuple[ServerReady, Cause | None]:
        """A server of tf.data.service serves. Returns the event, and a cause if its version does not fit."""
        stream, version = message.stream, message.version
        ready = ServerReady(t=now, group=host.group, host=host.name, stream=stream, version=version)
        host.servers[stream].state = READY
        host.servers[stream].version = version
        for other, name, server in self._servers():
            if server.version and _minor(server.version) != _minor(version):
                reason = (
                    f"the servers of tf.data.service have different versions of TensorFlow: {server.version} on "
                    f"{other.place} ({name}), {version} on {host.place} ({stream}); all of them need the same one"
                )
                return ready, Cause(CauseKind.DATA_SERVICE_REFUSED, reason, host.group, host.name, stream)
        return ready, None

    def server_down(self, host: HostState, message: ServerDown, now: float) -> None:
        """A server of tf.data.service ended."""
        stream, reason = message.stream, message.cause.reason
        server = host.servers[stream]
        server.state = LOST if message.gone else STARTING
        server.cause, server.since = message.cause, now
        if stream == DISPATCHER and self._forgets:
            server.forgotten = _cause(
                host, stream, "the dispatcher of tf.data.service has lost its state (fault_tolerant: false)"
            )
        again = False
        if message.cause.kind is CauseKind.OUT_OF_MEMORY:
            again, self._memory_killed = now - self._memory_killed < MEMORY_WINDOW, now
        if message.refused and not server.version:
            detail = f"a server of tf.data.service cannot run: {reason}"
            self._unusable = Cause(CauseKind.DATA_SERVICE_REFUSED, detail, host.group, host.name, stream)
        elif again:
            what = "the kernel has killed servers of tf.data.service for memory twice within an hour, the last"
            advice = (
                "the pipeline needs less memory (num_parallel_calls, shuffle, batch, prefetch) or a larger instance"
            )
            cause = _cause(host, stream, what)
            self._unusable = msgspec.structs.replace(
                cause, kind=CauseKind.DATA_SERVICE_OUT_OF_MEMORY, detail=f"{cause.detail}; {advice}"
            )

    def over(self) -> Cause | None:
        """Returns why no server of the data service can serve any more; None while one can, or if the job has none."""
        return self._unusable or self._feed_over({LOST}) or self._tf_data_over({LOST})

    def blame(self, last_lines: Iterable[str]) -> Cause | None:
        """Returns the end of a server that made a program fail: no server serves now, or the dispatcher has lost the
        state that the program needs. None when the program failed for another reason.

        Args:
            last_lines: the program's last output.
        """
        return self._feed_over({LOST, STARTING}) or self._tf_data_over({LOST, STARTING}) or self._forgotten(last_lines)

    def missing(self) -> Missing | None:
        """Returns the server of tf.data.service that is gone; the first that is gone for good, else the first."""
        down = [each for each in self._servers() if each[2].state != READY and each[2].cause]
        if not down:
            return None
        host, name, server = min(down, key=lambda each: (each[2].state != LOST, each[2].since))
        for_good = server.state == LOST
        how = "is gone for good" if for_good else "is not back"
        cause = _cause(host, name, f"{how}, and TensorFlow's client may wait for it")
        worked, sent = (max(getattr(each, what) for each in self._hosts.values()) for what in ("worked", "sent"))
        return Missing(server.since, for_good, cause, worked, sent)

    def _forgotten(self, last_lines: Iterable[str]) -> Cause | None:
        if not any(_FORGOTTEN in line.lower() or "notfounderror" in line.lower() for line in last_lines):
            return None
        return next((server.forgotten for _, _, server in self._servers() if server.forgotten), None)

    def _feed_over(self, states: set[str]) -> Cause | None:
        host = self._down
        if any(each.may_come for each in self._hosts.values()):
            return None
        if host is None or not all(each.feed in {"", *states} for each in self._hosts.values()):
            return None
        reason = f"no data worker is left: {host.feed_reason}"
        return Cause(CauseKind.DATA_SERVICE_LOST, reason, host.group, host.name, "feed", infrastructure=host.lost)

    def _tf_data_over(self, states: set[str]) -> Cause | None:
        workers = []
        for host, name, server in self._servers():
            down = server.state in states and server.cause is not None
            if name != DISPATCHER:
                workers.append((host, name, server, down))
            elif down:
                return _cause(host, name, "no dispatcher of tf.data.service is left")
        if not workers or not all(down for *_, down in workers):
            return None
        workers.sort(key=lambda each: each[2].since, reverse=True)
        host, name, _, _ = workers[0]
        words = [f"{host.place}[{name}] {server.cause}" for host, name, server, _ in workers[:_NAMED]]
        more = f" and {len(workers) - _NAMED} more" if len(workers) > _NAMED else ""
        count = f", all {len(workers)} are down, the last first" if len(workers) > 1 else ""
        reason = f"no worker of tf.data.service is left{count}: {'; '.join(words)}{more}"
        return Cause(CauseKind.DATA_SERVICE_LOST, reason, host.group, host.name, name, infrastructure=host.lost)

    def _servers(self) -> Iterator[tuple[HostState, str, ServerState]]:
        for host in self._hosts.values():
            for name, server in host.servers.items():
                yield host, name, server

    def list_feed(self, now: float) -> bool:
        """Makes the list anew when it has changed. Returns whether it is another one.

        Of many hosts it is made less often, because all of it goes to each: at 100 readers of 100 servers every 10 ms.
        """
        pause = len(self.readers) * len(self.feed) // 10_000 / 100
        if not self._changed or now - self._listed < pause:
            return False
        self._changed, self._listed = False, now
        self.generation += 1
        self.feed = tuple(
            FeedHost(each.name, each.group, f"tcp://{each.address}:{self._port}", each.executors, each.feed)
            for each in self._hosts.values()
            if each.feed
        )
        return True


def _cause(host: HostState, stream: str, what: str) -> Cause:
    detail = f"{what}: {stream} {host.servers[stream].cause}"
    return Cause(CauseKind.DATA_SERVICE_LOST, detail, host.group, host.name, stream, infrastructure=host.lost)


def _minor(version: str) -> str:
    """``2.21`` of ``2.21.0``."""
    return ".".join(version.split(".")[:2])


GROW_SECONDS = 2.0  # for which more must be desired
LEAVE_SECONDS = 3.0  # for clients to see that a host leaves, and to take what they had asked it for
AGAIN_SECONDS = 10.0  # the pause after a loss; each one after it in a row is twice as long
AGAIN_LATER = 600.0  # the longest pause
FORGIVEN_AFTER = 600.0  # after which a loss counts as the first


class DataHosts:
    """Data hosts that come and go while the job runs, as its ranks need them.

    `least` of them are there from the start. The ranks tell what they need; more are asked for when the rule says so
    for a moment. When fewer would have done for `idle_after` seconds, the last one leaves: clients are told to ask it
    for nothing more, and a moment later it is released. What it still owed then, they ask of others.

    One that is lost is replaced by one that is not there, or is asked for again after a pause that doubles. So is one
    that was asked for and does not come. What the engine makes of a host that is asked for is its own: see
    `HostState.absent`.

    Args:
        plan: the launch plan.
        hosts: all hosts by name.
        services: the data service.
        limits: of the job's cost.
        now: when the coordinator begins.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        hosts: Mapping[str, HostState],
        services: DataServices,
        limits: BudgetLimits,
        now: float,
    ) -> None:
        self._plan, self._range = plan, plan.feed_range
        self._every = list(hosts.values())
        self._hosts = [] if plan.feed_range is None else [hosts[name] for name in plan.feed_range.hosts]
        self._services, self._limits = services, limits
        self._more_since = self._fewer_since = 0.0
        self._told = False
        self._desired_last = len(self._hosts)
        for host in self._hosts:
            if plan.comes_later(host.name):
                host.absent = True
                services.feed_changed(host, "")
                limits.released(host.name, now)

    def begin(self, effects: Effects, now: float) -> None:
        """Records which hosts are not there in the beginning, once: an attempt before may have had them."""
        if not self._told:
            self._told = True
            effects.records += [HostReleased(host.group, host.name, t=now) for host in self._hosts if host.absent]

    def turn(self, effects: Effects, now: float) -> None:
        """Decides who is asked for and who leaves now."""
        if self._range is None:
            return
        for host in self._hosts:
            if (host.leaving and now - host.leaving >= LEAVE_SECONDS) or (host.feed == LOST and not host.lost):
                self._release(host, effects, now)
        serving = [host for host in self._hosts if not (host.absent or host.leaving or host.release)]
        free = sorted(
            (host for host in self._hosts if host.may_be_asked and now >= host.away_until), key=lambda host: host.losses
        )
        desired = self._desired(serving)
        wanted = max(self._range.least, min(desired, self._range.most))
        self._more_since = (self._more_since or now) if wanted > len(serving) else 0.0
        self._fewer_since = (self._fewer_since or now) if wanted < len(serving) else 0.0
        if self._more_since and (len(serving) < self._range.least or now - self._more_since >= GROW_SECONDS):
            for host in free[: wanted - len(serving)]:
                host.come(now)
                self._services.feed_changed(host, STARTING)
                effects.renewed.add(host.name)
            self._desired_last = desired
            self._more_since = 0.0
        elif self._fewer_since and now - self._fewer_since >= self._range.idle_after:
            last = next((host for host in serving if not host.registered), serving[-1])
            last.leaving = now
            self._services.feed_changed(last, LEAVING)
            self._fewer_since = now

    def late(self, now: float) -> list[HostState]:
        """Returns those that were asked for and have not come in time."""
        limit = self._plan.start_timeout
        return [host for host in self._hosts if host.asked and not host.registered and now - host.asked > limit]

    def came(self, host: HostState, effects: Effects, now: float) -> None:
        """A host has registered."""
        if host.asked:
            self._limits.joined(host.name, now)
            effects.records.append(HostJoined(host.group, host.name, self._desired_last, t=now))

    def left(self, host: HostState, effects: Effects, now: float) -> None:
        """A host has ended as it was told to, or is lost: it costs no more, and its instance can go."""
        if host.registered or not host.asked:
            effects.records.append(HostReleased(host.group, host.name, t=now))
            self._limits.released(host.name, now)
        if self._plan.comes_and_goes(host.name):
            if host.lost:
                served = host.registered and now - (host.asked or host.started or now) > FORGIVEN_AFTER
                host.losses = 1 if served else host.losses + 1
                host.away_until = now + min(AGAIN_SECONDS * 2 ** (host.losses - 1), AGAIN_LATER)
            elif host.feed != LOST:
                self._services.feed_changed(host, "")
            host.absent, host.asked, host.leaving = True, 0.0, 0.0

    def _desired(self, serving: list[HostState]) -> int:
        demands = [demand for host in self._every for demand in host.demands]
        if not demands or not serving:
            return len(serving)
        executors = sum(host.executors for host in serving) / len(serving)
        stall = sum(demand.stall for demand in demands) / len(demands)
        link = sum(demand.link for demand in demands) / len(demands)
        return desired_hosts(sum(demand.needed for demand in demands), executors, len(serving), stall, link)

    def _release(self, host: HostState, effects: Effects, now: float) -> None:
        if host.release is None and not host.absent:
            host.release = StopOrder("it is not needed", self._plan.stop_grace, feed=True, leave=True)
            effects.wake.add(host.name)
            if not host.registered:
                self.left(host, effects, now)
