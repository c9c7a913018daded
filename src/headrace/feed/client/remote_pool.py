"""Workers on hosts with feed servers: the own host is reached directly, all others through one receiver process.

Of many hosts a rank uses `MOST_HOSTS`, the first of its own order of them, which is a pure function: so ranks spread
over the hosts. In place of a host that is lost or fails it uses the next one, until that host serves again. Where hosts
hold different data (`WorkerPool.all_needed`) it uses all of them. Placement is free: which hosts are used changes no
batch.

`inquire` asks servers what they are doing.
"""

from __future__ import annotations

import collections
import hashlib
import logging
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import psutil

from headrace.child_python import module_command
from headrace.errors import ProtocolError, WorkersLost
from headrace.exit_status import exit_text, split_status
from headrace.feed.client.worker_pool import (
    RECOVER_SECONDS,
    REFUSED_HINT,
    REFUSED_SECONDS,
    START_SECONDS,
    Keepalive,
    Worker,
    WorkerPool,
    WorkerState,
)
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import (
    HANDSHAKE_SECONDS,
    ClientHandshake,
    Endpoint,
    Endpoints,
    RefusedByServer,
    split_address,
)
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection, Link
from headrace.feed.wire.messages import decode_greeting
from headrace.feed.wire.transport import client_tls, configure_tcp
from headrace.feed.worker.executor_rules import RestartBudget

_log = logging.getLogger(__name__)

CLIENT = "headrace feed status"
MAX_AT_ONCE = 32


@dataclass(frozen=True)
class Answer:
    """The result of asking one server.

    Attributes:
        endpoint: the server.
        status: what it answered; None if it could not be asked.
        reason: why it could not be asked.
    """

    endpoint: Endpoint
    status: messages.Status | None
    reason: str = ""


def inquire(endpoints: Endpoints, timeout: float = 5.0) -> list[Answer]:
    """Asks all servers at the same time.

    Args:
        endpoints: the servers, and the secret.
        timeout: seconds for each.

    Returns:
        One answer for each, in order.
    """
    servers: Sequence[Endpoint] = endpoints.current()
    if not servers:
        return []
    with ThreadPoolExecutor(min(MAX_AT_ONCE, len(servers)), "headrace-inquiry") as pool:
        return list(pool.map(lambda endpoint: _ask(endpoint, endpoints, timeout), servers))


def _ask(endpoint: Endpoint, endpoints: Endpoints, timeout: float) -> Answer:
    deadline = time.monotonic() + timeout
    try:
        channel = _connect(endpoint, endpoints.tls_ca, timeout)
    except OSError as error:
        return Answer(endpoint, None, (error.strerror or str(error)).lower())
    try:
        return Answer(endpoint, _converse(channel, endpoints.secret, deadline))
    except ProtocolError as error:
        return Answer(endpoint, None, error.message)
    except TimeoutError:
        return Answer(endpoint, None, f"no answer within {timeout:g} s")
    except ConnectionClosed as error:
        return Answer(endpoint, None, f"connection lost: {error}")
    finally:
        channel.close()


def _connect(endpoint: Endpoint, tls_ca: str, timeout: float) -> FramedConnection:
    if endpoint.address.startswith("unix:"):
        return connect_unix(endpoint.address).channel
    host, port = split_address(endpoint.address)
    tls = client_tls(tls_ca, endpoint.certified) if tls_ca else None
    connection = socket.create_connection((host, port), timeout)
    configure_tcp(connection)
    return FramedConnection(connection, handshake=decode_greeting, tls=tls)


def _converse(channel: FramedConnection, secret: bytes, deadline: float) -> messages.Status:
    handshake = ClientHandshake(secret, CLIENT)
    while True:
        for frame in channel.wait(max(0.0, deadline - time.monotonic())):
            frame.discard()
            if isinstance(frame.message, messages.Status) and handshake.welcome is not None:
                return frame.message
            handshake.hear(frame.message, channel)
            if handshake.welcome is not None:
                channel.send(messages.StatusRequest())


LOGS_HINT = "see the logs of these hosts"
MOST_HOSTS = 32  # that a rank uses
RETRY_SECONDS, RETRY_LIMIT = 0.2, 1.0  # doubled with every failure; a refusal counts as many


def connect_unix(address: str) -> Link:
    """Connects to a feed server of this host, ``unix:@name``. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)  # where too many wait to be accepted, it is an error, and tried again
    try:
        connection.connect("\0" + address.removeprefix("unix:").removeprefix("@"))
    except OSError:
        connection.close()
        raise
    return Link(FramedConnection(connection, handshake=decode_greeting))


@dataclass(eq=False)
class ReceiverLink(Link):
    """To the receiver process, which holds the TCP connections."""

    process: subprocess.Popen[bytes]

    def reason(self) -> str:
        """Returns how the receiver ended."""
        try:
            return f"the receiver process {exit_text(*split_status(self.process.wait(1.0)))}"
        except subprocess.TimeoutExpired:
            return "the receiver process closed its connection"

    def cpu_seconds(self) -> float:
        """Returns the process's CPU time, also when it has ended and was not waited for."""
        try:
            times = psutil.Process(self.process.pid).cpu_times() if self.process.returncode is None else None
        except psutil.NoSuchProcess:  # somebody else has waited for it
            times = None
        return 0.0 if times is None else times.user + times.system

    def close(self) -> None:
        """Closes the connection; the receiver ends at that."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def start_receiver() -> ReceiverLink:
    """Starts a receiver process."""
    ours, theirs = socket.socketpair()
    with ExitStack() as undo, theirs:
        undo.callback(ours.close)
        command = module_command("headrace.feed.client.receiver")
        command += ["--socket", str(theirs.fileno()), "--parent", str(os.getpid())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        undo.pop_all()
    return ReceiverLink(FramedConnection(ours), process, shared=True)


@dataclass
class _Host:
    """What a pool knows of one host, connected or not.

    Attributes:
        retry: when it may be connected to again.
        delay: until the time after that, seconds.
        refused: since when it refuses this client; None if it does not.
        unserved: whether what it refuses is the pipeline: it has welcomed this client.
        failed: whether it failed, or cannot be used, since it served last: others are used in its place.
        problem: what was wrong lately.
    """

    retry: float = 0.0
    delay: float = RETRY_SECONDS
    refused: float | None = None
    unserved: bool = False
    failed: bool = False
    problem: str = ""


def in_order_of(job: str, rank: int, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Returns feed servers in the order in which a rank uses them: its own host's, then by a hash of rank and host.

    The first of the next rank's hash is among those that are used: so neighbours have a server in common, which
    compares their plans, and of ranks with different plans some neighbours have different ones.
    """

    def place(of: int, endpoint: Endpoint) -> bytes:
        return hashlib.blake2b(f"{job} {of} {endpoint.name}".encode(), digest_size=8).digest()

    order = sorted(endpoints, key=lambda endpoint: (not endpoint.address.startswith("unix:"), place(rank, endpoint)))
    shared = order.index(min(order, key=partial(place, rank + 1))) if order else 0
    if shared >= MOST_HOSTS:
        order.insert(MOST_HOSTS - 1, order.pop(shared))
    return order


class RemotePool(WorkerPool):
    """Feed servers, on the own host and on others.

    Args:
        endpoints: where they are.
        client: name of this client, for their logs.
        rank, world_size: of this client.
        job: what tells its ranks from those of others that share the hosts.
    """

    def __init__(self, endpoints: Endpoints, client: str, rank: int, world_size: int, job: str = "") -> None:
        super().__init__()
        self._endpoints = endpoints
        self._identity = (client, rank, world_size)
        self._job = job
        self._receiver: ReceiverLink | None = None
        self._receiver_cpu = 0.0  # of those that have ended
        self._receivers = RestartBudget()
        self._hosts = collections.defaultdict[str, _Host](_Host)  # by address
        self._ordered: tuple[tuple[Endpoint, ...], list[Endpoint]] = ((), [])  # as read, and in the rank's order
        self._looked = 0.0  # when `maintain` was called last
        self._welcomed: list[Worker] = []
        self._was_connected = False  # to any server that has accepted this client
        self._alone_since: float | None = None
        self._owner = os.getpid()

    def _host(self, worker: Worker) -> _Host:
        return self._hosts[worker.endpoint.address]

    def links(self) -> list[Link]:
        """Returns the connections; the receiver's also while no host is connected."""
        found = super().links()
        if self._receiver is not None and self._receiver not in found:
            found.append(self._receiver)
        return found

    def absent(self) -> list[str]:
        """Returns the hosts that are not ready, the lost ones included, and not those that are left out."""
        known = {
            worker.endpoint.address
            for worker in self._workers.values()
            if worker.state in (WorkerState.READY, WorkerState.LEFT_OUT)
        }
        return [endpoint.name for endpoint in self._endpoints.current() if endpoint.address not in known]

    @property
    def hosts(self) -> int:
        """See WorkerPool."""
        return sum(
            endpoint.state == "ready" and not self._hosts[endpoint.address].failed
            for endpoint in self._endpoints.current()
        )

    def starting(self) -> set[str]:
        """See WorkerPool."""
        return {endpoint.name for endpoint in self._endpoints.current() if endpoint.state == "starting"}

    def refused(self, now: float) -> set[str]:
        """See WorkerPool."""
        refused = {endpoint.name: self._hosts[endpoint.address].refused for endpoint in self._endpoints.current()}
        return {name for name, since in refused.items() if since is not None and now - since > REFUSED_SECONDS}

    def refuse(self, worker: Worker, reason: str) -> None:
        """The host computes differently and is not used."""
        super().refuse(worker, reason)
        self._failed(worker, reason)

    def maintain(self, now: float) -> list[Worker]:
        """Connects to the hosts that are to be used, and dismisses those that are not."""
        self._looked = now
        endpoints = self._endpoints.current()
        if endpoints is not self._ordered[0]:
            self._ordered = endpoints, in_order_of(self._job, self._identity[1], endpoints)
            self._dismiss(endpoint for endpoint in endpoints if endpoint.state == "leaving")
        most, used = len(endpoints) if self.all_needed else MOST_HOSTS, 0
        connected = {worker.endpoint.address: worker for worker in self._workers.values()}
        for endpoint in self._ordered[1]:
            worker, host = connected.get(endpoint.address), self._hosts[endpoint.address]
            if worker is None and endpoint.state not in ("lost", "leaving") and now >= host.retry:
                self._connect(endpoint, now)
                used += not host.failed
            elif worker is not None and not worker.leaves:
                used += not host.failed
            if used >= most:
                break
        ready = {address for address, worker in connected.items() if worker.ready}
        if len(ready) > most:
            self._dismiss([endpoint for endpoint in self._ordered[1] if endpoint.address in ready][most:])
        welcomed, self._welcomed = self._welcomed, []
        self._judge(endpoints, now)
        return welcomed

    def _dismiss(self, endpoints: Iterable[Endpoint]) -> None:
        addresses = {endpoint.address for endpoint in endpoints}
        for worker in self._workers.values() if addresses else ():
            if worker.endpoint.address in addresses:
                self.dismiss(worker)

    def release(self, worker: Worker) -> None:
        """Ends the connection to a host; the receiver ends its own."""
        self._workers.pop(worker.number, None)
        if worker.link.shared:
            worker.link.post(messages.Down("it is not needed"), worker.route)
        else:
            worker.link.close()

    def _judge(self, endpoints: tuple[Endpoint, ...], now: float) -> None:
        """Raises WorkersLost when no worker serves and the time allowed has passed."""
        serving = [
            worker
            for worker in self._workers.values()
            if worker.state is not WorkerState.LEFT_OUT and not self._host(worker).unserved
        ]
        if any(worker.handshake is not None and worker.handshake.welcome for worker in serving):
            self._was_connected, self._alone_since = True, None
            return
        if self.starting():  # however long it takes on a busy machine: who starts it says when it is lost
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        begins = self._receiver is not None and not self._receiver.channel.bytes_received
        allowed = RECOVER_SECONDS if self._was_connected and not begins else START_SECONDS
        workers = self._workers.values()
        unused = {worker.endpoint.address for worker in workers if worker.state is WorkerState.LEFT_OUT}
        refused = {address for address, host in self._hosts.items() if host.refused is not None}
        if all(endpoint.state == "lost" or endpoint.address in refused | unused for endpoint in endpoints):
            allowed = REFUSED_SECONDS
        if now - self._alone_since > allowed:
            raise WorkersLost(
                f"no data worker is left: {self.describe()}",
                hint=REFUSED_HINT if any(not self._hosts[address].unserved for address in refused) else LOGS_HINT,
            )

    def _connect(self, endpoint: Endpoint, now: float) -> None:
        host = self._hosts[endpoint.address]
        host.retry, host.delay = now + host.delay, min(2 * host.delay, RETRY_LIMIT)
        try:
            if endpoint.address.startswith("unix:"):
                worker = self._add(endpoint.name, connect_unix(endpoint.address), endpoint, own_host=True)
                worker.handshake = ClientHandshake(self._endpoints.secret, *self._identity)
                worker.deadline, worker.keepalive = now + HANDSHAKE_SECONDS, Keepalive(now)
            else:
                if self._receiver is None:
                    self._receiver = start_receiver()
                worker = self._add(endpoint.name, self._receiver, endpoint)
                secret, tls_ca = self._endpoints.secret, self._endpoints.tls_ca
                dial = messages.Dial(endpoint.address, secret, *self._identity, tls_ca, endpoint.certified)
                self._receiver.channel.send(dial, route=worker.route)
                worker.handshake = ClientHandshake(b"", self._identity[0])
        except OSError as error:
            host.problem, host.failed = (error.strerror or str(error)).lower(), True
            _log.debug("%s: cannot connect to %s: %s", endpoint.name, endpoint.address, error)
        except ConnectionClosed as error:
            host.problem, host.failed = str(error), True

    def receiver_cpu(self) -> float:
        """Returns the CPU seconds of receivers, those that have ended included."""
        return self._receiver_cpu + (self._receiver.cpu_seconds() if self._receiver is not None else 0.0)

    def handshake(self, worker: Worker, message: messages.Message) -> None:
        """Takes a step of the handshake; a receiver has already made it for the remote ones."""
        assert worker.handshake is not None
        if worker.link.shared and isinstance(message, messages.Welcome):
            worker.handshake.welcome = message
        else:
            try:
                worker.handshake.hear(message, worker.link.channel)
            except RefusedByServer:
                self._refuse(worker)
                raise
        if worker.handshake.welcome is not None:
            host = self._host(worker)
            host.delay, host.refused = RETRY_SECONDS, host.refused if host.unserved else None
            worker.executors = max(1, worker.handshake.welcome.executors)
            worker.name = f"{worker.handshake.welcome.host}"
            self._welcomed.append(worker)
            _log.info("%s: connected; it has %d executors", worker.name, worker.executors)

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """A feed server's connection, or the receiver with all of its hosts, is gone."""
        gone = [worker for worker in self._workers.values() if worker.link is link]
        self._receiver_cpu += link.cpu_seconds() if isinstance(link, ReceiverLink) else 0.0
        why = link.reason() if link.shared else reason
        for worker in gone:
            self.down(worker, why)
        link.close()
        if link is self._receiver:
            self._receiver = None
            if not self._receivers.spend(now, begun=link.channel.bytes_received > 0):
                raise WorkersLost(
                    f"{self._receivers.describe('receiver processes')}; the last one: {why}",
                    hint="see what it wrote above: it is started as `python -m headrace.feed.client.receiver`",
                )
        return gone

    def down(self, worker: Worker, reason: str, *, refused: bool = False) -> None:
        """A host is gone; it is tried again."""
        super().down(worker, reason)
        if refused:
            self._refuse(worker)
        self._welcomed = [other for other in self._welcomed if other is not worker]
        self._failed(worker, reason)

    def _failed(self, worker: Worker, reason: str) -> None:
        host = self._host(worker)
        host.problem, host.failed = reason, True

    def opened(self, worker: Worker) -> None:
        """See WorkerPool."""
        super().opened(worker)
        host = self._host(worker)
        host.unserved, host.refused, host.failed = False, None, False

    def _refuse(self, worker: Worker) -> None:
        host, greeted = self._host(worker), worker.handshake
        host.unserved = host.unserved or (greeted is not None and greeted.welcome is not None)
        host.refused = self._looked if host.refused is None else host.refused
        host.delay = RETRY_LIMIT

    def silent(self, now: float) -> list[tuple[Link, str]]:
        """Asks the own host's feed server for a sign of life; the receiver does so with the others."""
        silent: list[tuple[Link, str]] = []
        for worker in [worker for worker in self._workers.values() if worker.keepalive is not None]:
            assert worker.keepalive is not None
            verdict = worker.keepalive.check(now, worker.link.channel.signs_of_life)
            if worker.handshake is None or worker.handshake.welcome is None:
                if now > worker.deadline:
                    silent.append((worker.link, "no answer in time"))
            elif verdict == "gone":
                silent.append((worker.link, "it gives no sign of life"))
            elif verdict == "ask":
                try:
                    worker.link.channel.send(messages.Ping())
                except ConnectionClosed as error:
                    silent.append((worker.link, str(error)))
        return silent

    def describe(self) -> str:
        """Names every host, its state and its last problem."""
        hosts = []
        for endpoint in self._endpoints.current():
            problem = self._hosts[endpoint.address].problem
            hosts.append(f"{endpoint.name} ({endpoint.address}){f': {problem}' if problem else f' {endpoint.state}'}")
        return "; ".join(hosts) or "no feed server is known"

    def close(self) -> None:
        """Ends the connections and the receiver. In a forked child of the owner nothing is touched."""
        if os.getpid() == self._owner:
            with ExitStack() as stack:  # all of them, also when one cannot be
                for link in self.links():
                    stack.callback(link.close)
        self._workers.clear()
        self._receiver = None
