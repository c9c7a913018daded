"""The servers of the data service of a job: feed servers, and servers of tf.data.service.

A job goes on while a data worker can still serve, marked degraded. It cannot go on when no feed server is left; when
tf.data.service has lost its dispatcher, or all its workers, for good; when one of its servers cannot run on its host,
because TensorFlow is missing or its port is taken; or when the servers have different versions of TensorFlow, because
they exchange graphs. (Patch versions may differ: TensorFlow keeps its graphs compatible within a minor
version.)

A pipeline that needs more memory than a host has ends one worker after the other, with the data that they held. So the
job ends when the kernel kills a server of tf.data.service for memory twice within `MEMORY_WINDOW` seconds.

A dispatcher without fault tolerance that is started again has lost its state. Trainers that have read all their data
are not affected; one that asks for more fails, and then the dispatcher is the cause.

A worker of tf.data.service that is lost for good while others serve is a case of its own: TensorFlow's client goes on
with the others, and waits for it without end when the epoch ends; see `headrace.agent.coordinator.stall`.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.agent.control.control_messages import ServerDown, ServerUp
from headrace.agent.coordinator.host_state import LOST, READY, STARTING, HostState, ServerState
from headrace.agent.coordinator.stall import Missing
from headrace.instance.frameworks import DISPATCHER
from headrace.instance.launch_plan import FeedHost, LaunchPlan
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import ServerReady

MEMORY_WINDOW = 3600.0
_NAMED = 4  # workers that a cause names
_FORGOTTEN = "not found"  # TensorFlow's error when a dispatcher does not know what it is asked for: NOT_FOUND


class DataServices:
    """See the module. It keeps its state in the hosts.

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
