"""Who serves data in a job: the feed servers, and the servers of tf.data.service.

A job goes on while a data worker can still serve, marked degraded. It cannot go on when no feed server is left; when
tf.data.service has lost its dispatcher, or all its workers, for good; or when its servers have different versions of
TensorFlow, because the graphs that they exchange need equal ones. (Patch versions may differ: TensorFlow keeps its
graphs compatible within a minor version.)

A worker of tf.data.service that is lost for good while others serve is a case of its own: TensorFlow's client goes on
with the others, and waits for it without end when the epoch ends; see `headrace.agent.stall`.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.agent.hoststate import LOST, READY, STARTING, HostState, ServerState
from headrace.agent.messages import ServerUp
from headrace.agent.stall import Missing
from headrace.instance.launch import FeedHost, LaunchPlan
from headrace.instance.tfdata import DISPATCHER
from headrace.runs.events import Cause, ServerReady


class Serving:
    """See the module. It keeps its state in the hosts.

    Args:
        plan: the launch plan.
        hosts: all hosts by name.

    Attributes:
        generation: grows with every change of `feed`.
        feed: the feed servers, as every host is told of them.
    """

    def __init__(self, plan: LaunchPlan, hosts: Mapping[str, HostState]) -> None:
        self.generation = 0
        self.feed: tuple[FeedHost, ...] = ()
        self._port = plan.ports.feed
        self._hosts = hosts
        self._down: HostState | None = None  # whose feed server was down last
        self._list_feed()

    def feed_is(self, host: HostState, state: str, word: str = "") -> None:
        """A feed server starts, is ready or lost; `word` says why, when it was down."""
        host.feed = state
        if word:
            host.feed_word = word
            self._down = host
        self._list_feed()

    def server_up(self, host: HostState, message: ServerUp, now: float) -> tuple[ServerReady, Cause | None]:
        """A server of tf.data.service serves. Returns the event, and why it must not: its version is another one."""
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
                return ready, Cause(reason, host.group, host.name, stream)
        return ready, None

    def server_down(self, host: HostState, stream: str, word: str, gone: bool, now: float) -> None:
        """A server of tf.data.service ended; `gone`: for good."""
        server = host.servers[stream]
        server.state = LOST if gone else STARTING
        server.word, server.since = word, now

    def over(self) -> Cause | None:
        """Returns why nobody can serve data any more; None as long as somebody can, or nobody ever should."""
        return self._feed_over({LOST}) or self._tf_data_over({LOST})

    def blame(self) -> Cause | None:
        """Returns why nobody serves data at this moment, because of a death; None while somebody serves."""
        return self._feed_over({LOST, STARTING}) or self._tf_data_over({LOST, STARTING})

    def missing(self) -> Missing | None:
        """Returns the server of tf.data.service that is gone; the first that is gone for good, else the first."""
        down = [each for each in self._servers() if each[2].state != READY and each[2].word]
        if not down:
            return None
        host, name, server = min(down, key=lambda each: (each[2].state != LOST, each[2].since))
        for_good = server.state == LOST
        how = "is gone for good" if for_good else "is not back"
        return Missing(server.since, for_good, _cause(host, name, f"{how}, and TensorFlow's client may wait for it"))

    def _feed_over(self, states: set[str]) -> Cause | None:
        host = self._down
        if host is None or not all(each.feed in {"", *states} for each in self._hosts.values()):
            return None
        reason = f"no data worker is left: {host.feed_word}"
        return Cause(reason, host.group, host.name, "feed", infrastructure=host.lost)

    def _tf_data_over(self, states: set[str]) -> Cause | None:
        workers = []
        for host, name, server in self._servers():
            down = server.state in states and bool(server.word)
            if name != DISPATCHER:
                workers.append((host, name, down, server.since))
            elif down:
                return _cause(host, name, "no dispatcher of tf.data.service is left")
        if not workers or not all(down for _, _, down, _ in workers):
            return None
        host, name, _, _ = max(workers, key=lambda each: each[3])
        return _cause(host, name, "no worker of tf.data.service is left")

    def _servers(self) -> Iterator[tuple[HostState, str, ServerState]]:
        for host in self._hosts.values():
            for name, server in host.servers.items():
                yield host, name, server

    def _list_feed(self) -> None:
        """Makes the list that goes to every host, with every order: once for each generation."""
        self.generation += 1
        self.feed = tuple(
            FeedHost(each.name, each.group, f"tcp://{each.address}:{self._port}", each.executors, each.feed)
            for each in self._hosts.values()
            if each.feed
        )


def _cause(host: HostState, stream: str, what: str) -> Cause:
    word = host.servers[stream].word
    return Cause(f"{what}: {stream} {word}", host.group, host.name, stream, infrastructure=host.lost)


def _minor(version: str) -> str:
    """``2.21`` of ``2.21.0``."""
    return ".".join(version.split(".")[:2])
