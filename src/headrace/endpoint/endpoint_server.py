"""`headrace serve`: puts the parts of an endpoint together, and runs it until it is told to end.

When it ends, jobs that run go on without it: the next endpoint with the same store finds them.

A request comes in: who sent it, for which service, in which protocol; that service answers or refuses. An error is told
in the caller's protocol, whatever it is. Nothing is read of a body, and nothing is done, before the signature was found
right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from urllib.parse import unquote

import psutil

from headrace.catalog.prices import is_region
from headrace.endpoint.auth.gatekeeper import AccessKeys, Caller, Gatekeeper, Holder, keys_of
from headrace.endpoint.auth.job_rights import JobRights, rights_of
from headrace.endpoint.auth.signatures import HashedBody, Malformed, read_signature
from headrace.endpoint.client_setup import BUCKET, ClientSetup
from headrace.endpoint.http.http_message import BodyProblem, HttpReply, HttpRequest
from headrace.endpoint.http.http_server import HttpServer, listen
from headrace.endpoint.s3.s3_face import S3Face
from headrace.endpoint.services.cloudwatch_logs import logs
from headrace.endpoint.services.cloudwatch_metrics import monitoring
from headrace.endpoint.services.service import ACCOUNT, Service, iam, sts
from headrace.endpoint.training_jobs.job_of_request import STOP_GRACE, EngineSettings, JobMaker, read_rules
from headrace.endpoint.training_jobs.job_runs import JobQueue, JobRuns
from headrace.endpoint.training_jobs.job_store import LOCK, JobStore, lock_store
from headrace.endpoint.training_jobs.training_service import TrainingJobs
from headrace.endpoint.wire.answers import error_answer
from headrace.endpoint.wire.models import Protocol, ServiceError, protocol_of
from headrace.engines.local.isolation_plan import MACHINE_NAME
from headrace.errors import UsageError
from headrace.held_file import is_held
from headrace.home import home_dir
from headrace.job.find_engine import find_engine
from headrace.private_folders import make_closed, write_private

BODY_BYTES = 2 << 20
"""Of a request that is not for S3. The greatest CreateTrainingJob that the limits allow has about half of it."""

_log = logging.getLogger(__name__)
_SECRET = ("x-amz-signature", "signature", "x-amz-security-token")


@dataclass(eq=False)
class Dispatcher:
    """What an endpoint does with a request. Safe for use by several threads.

    Attributes:
        gatekeeper: lets requests in.
        services: by the names that requests are signed for.
        s3: answers what is for S3, and whose signature is right.
        find_job: returns name and rights of the job of a uid; None when there is none.
    """

    gatekeeper: Gatekeeper
    services: Mapping[str, Service]
    s3: S3Face
    find_job: Callable[[str], tuple[str, JobRights] | None]

    def handle(self, request: HttpRequest) -> HttpReply:
        """Answers a request. Raises `HttpProblem` as the body does."""
        try:
            return self._answer(request)
        except ServiceError as error:
            return error_answer(error, _protocol(request))
        except BodyProblem as error:
            if error.closes or error.status != 413:
                raise
            return error_answer(ServiceError("RequestEntityTooLarge", error.message, 413), _protocol(request))
        except Exception:  # noqa: BLE001  (the boundary: it is logged, and told in the caller's protocol)
            _log.exception("%s %s could not be answered", request.method, request.raw_path[:200])
            words = "headrace serve has an error; its log says more"
            return error_answer(ServiceError("InternalFailure", words, 500), _protocol(request))

    def _answer(self, request: HttpRequest) -> HttpReply:
        body: list[bytes] = []

        def read_body() -> bytes:
            if not body:
                body.append(request.body.read_all(BODY_BYTES))
            return body[0]

        caller = self.gatekeeper.admit(request, read_body)
        request.prove()
        rights = None if caller.holder is Holder.USER else JobRights(everywhere=True)
        if caller.job:
            if (job := self.find_job(caller.job)) is None:
                protocol = _protocol(request)
                raise ServiceError(
                    "AccessDenied" if protocol in (Protocol.S3, Protocol.QUERY) else "AccessDeniedException",
                    "the job of this key is not there any more", 403 if protocol is Protocol.S3 else 400,
                )  # fmt: skip
            caller, rights = dataclasses.replace(caller, job=job[0]), job[1]
        query = _without_signature(request.raw_query)
        asked = f"{request.method} {request.raw_path}?{query} {request.headers.get('x-amz-target')}"
        copied = request.headers.get("x-amz-copy-source")
        _log.debug(
            "%s asks %s: %s%s", caller.holder.value, caller.service, asked.strip(), f" of {copied}" if copied else ""
        )
        if caller.service == "s3":
            return self.s3.handle(_with_checked_body(request, caller), rights)
        service = self.services.get(caller.service)
        if service is None:
            known = ", ".join(sorted([*self.services, "s3"]))
            words = f"headrace serve has no service {caller.service[:60]!r}; it has {known}"
            raise ServiceError("UnknownOperationException", words, 404)
        return service.answer(request, read_body(), caller, _protocol(request))


def _without_signature(query: str) -> str:
    """Returns a query without what would let a reader of the log send it again."""
    return "&".join(part for part in query.split("&") if unquote(part.partition("=")[0]).lower() not in _SECRET)


def _with_checked_body(request: HttpRequest, caller: Caller) -> HttpRequest:
    """Returns the request with a body that is compared with what was signed, while it is read."""
    if caller.chunks is not None:
        return dataclasses.replace(request, framing=caller.chunks)
    if caller.body_hash:
        return dataclasses.replace(request, body=HashedBody(request.body, caller.body_hash))
    return request


def _protocol(request: HttpRequest) -> Protocol:
    try:
        signed = read_signature(request)
    except Malformed:
        signed = None
    return protocol_of(request, signed.service if signed else "")


PORT = 7080
REGION = "us-east-1"
MOST_QUEUED = 1000
PROGRAM_VARIABLES = "programs.env"
"""File of the store: the variables by which programs reach the endpoint, as `kubectl create secret` reads them."""
_LOOK_SECONDS = 0.2


def default_store() -> Path:
    """Returns $HEADRACE_HOME/serve, by default ~/.headrace/serve."""
    return home_dir() / "serve"


def buckets_dir() -> Path:
    """Returns the folder of the buckets, which headrace's own estimators use too."""
    return home_dir() / "buckets"


@dataclass(frozen=True)
class ServeOptions:
    """What an endpoint is told.

    Attributes:
        host, port: where it listens; port 0 takes one that is free.
        region: that it stands for.
        store: its folder.
        buckets: folder of the buckets of its S3.
        engine: that runs jobs.
        settings: its options, ``engines.ENGINE.OPTION=VALUE``.
        most_running: jobs that run at once.
        images: rules ``NAME=PYTHON``.
        certificate, key: files for TLS.
        stop_jobs: whether jobs are stopped when it ends.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    region: str = REGION
    store: Path = field(default_factory=default_store)
    buckets: Path = field(default_factory=buckets_dir)
    engine: str = "local"
    settings: Sequence[str] = ()
    most_running: int = 4
    images: Sequence[str] = ()
    certificate: Path | None = None
    key: Path | None = None
    stop_jobs: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError: the region has no name of AWS's form."""
        if not is_region(self.region):
            raise UsageError(f"--region {self.region}: no region of AWS is called like that", "e.g. us-east-1")


def setup_of(options: ServeOptions, keys: AccessKeys, port: int) -> ClientSetup:
    """Returns how clients of this machine reach an endpoint."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    bundle = options.certificate.absolute() if options.certificate else None
    return ClientSetup(options.store, _url(options, host, port), options.region, keys.user, bundle)


def address_for_programs(options: ServeOptions, port: int) -> str:
    """Returns where the programs of jobs reach an endpoint, from hosts of its engine without a network of their own."""
    everywhere = options.host in ("0.0.0.0", "::")
    if options.engine == "local" or not everywhere:
        return setup_of(options, keys_of(options.store), port).url
    return _url(options, socket.gethostname().lower(), port)


def _url(options: ServeOptions, host: str, port: int) -> str:
    scheme = "https" if options.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def written_setup(options: ServeOptions) -> ClientSetup:
    """Returns how clients reach the endpoint of a store, and writes what they read, unless one runs and has done so.

    Raises:
        UsageError: the store cannot be used.
    """
    store = options.store
    try:
        make_closed(store)
        setup = setup_of(options, keys_of(store), options.port)
        setup.write(unless=lambda: is_held(store / LOCK))
    except OSError as error:
        raise UsageError(f"{store}: {error.strerror or error}", "name another folder with --store") from error
    return setup


class Endpoint:
    """One endpoint.

    Args:
        options: what it is told.
        keys: that count.

    Attributes:
        setup: how clients reach it.
        handle: answers a request.

    Raises:
        UsageError: it cannot be had.
    """

    def __init__(self, options: ServeOptions, keys: AccessKeys) -> None:
        find_engine(options.engine, "start")
        settings = EngineSettings(options.engine, tuple(options.settings))
        settings.check()
        self._options = options
        listener = listen(options.host, options.port)
        port = int(listener.getsockname()[1])
        self.setup = setup_of(options, keys, port)
        with contextlib.ExitStack() as made:  # what is given back when the rest cannot be had
            made.callback(listener.close)
            self._store = JobStore(options.store)
            made.callback(self._store.close)
            self._s3 = S3Face(options.buckets, ACCOUNT, options.region)
            made.callback(self._s3.close)
            self._s3.create_bucket(BUCKET)
            maker = JobMaker(settings, self._s3.local_path, self._s3.first_key, read_rules(options.images))
            runs = JobRuns(options.store, self._store, maker, options.region, _url(options, MACHINE_NAME, port), keys)
            self._queue = JobQueue(self._store, runs, options.most_running)
            jobs = TrainingJobs(self._store, runs, self._queue, maker, options.region, MOST_QUEUED)
            services = (jobs.service(), logs(runs, options.region), monitoring(runs), sts(), iam())
            gatekeeper = Gatekeeper(keys, _names(options.host))
            by_name = {each.name: each for each in services}
            self.handle = Dispatcher(gatekeeper, by_name, self._s3, self._find_job).handle
            self._server = HttpServer(self.handle, listener, tls=_tls(options))
            self.setup.write()
            made.pop_all()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serves while the block runs. Then what is being answered is finished; jobs go on, or are stopped."""
        self._queue.start()
        self._server.start()
        try:
            yield
        finally:
            self._server.stop()
            self._queue.close()
            try:
                left = self._queue.stop_jobs(STOP_GRACE + 30.0) if self._options.stop_jobs else []
            finally:
                self._store.close()
                self._s3.close()
        if left:
            raise UsageError(f"these jobs have not ended: {', '.join(left)}", "headrace ps; headrace stop RUN --now")

    def _find_job(self, uid: str) -> tuple[str, JobRights] | None:
        """Returns the name of a job and what its key may do."""
        job = self._store.of_uid(uid)
        default = frozenset({BUCKET, f"sagemaker-{self._options.region}-{ACCOUNT}"})
        return None if job is None else (job.name, rights_of(job.request, job.name, default))


def serve(options: ServeOptions, ready: Callable[[ClientSetup], None], command: Sequence[str] = ()) -> int:
    """Runs an endpoint until SIGTERM or Ctrl-C, or until its command ends.

    Args:
        options: what it is told.
        ready: is called when it answers.
        command: a program that runs with it, unmodified: its calls of AWS arrive here.

    Returns:
        0, or the exit code of the command.

    Raises:
        UsageError: it cannot be had.
    """
    with lock_store(options.store):
        keys = keys_of(options.store)
        ended = threading.Event()
        environ = dict(os.environ)
        endpoint = Endpoint(options, keys)
        _own_variables(options, keys, endpoint)
        with _signals(ended), endpoint.running():
            ready(endpoint.setup)
            if command:
                return _run(command, endpoint.setup.environment(environ), ended)
            ended.wait()
            return 0


def _own_variables(options: ServeOptions, keys: AccessKeys, endpoint: Endpoint) -> None:
    """Gives this process, and so all that it starts for jobs, the key of programs and no other.

    Hosts that have no variables of this process get the same from a file of the store, by way of their engine.
    """
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    variables = {
        "AWS_ACCESS_KEY_ID": keys.program.key_id,
        "AWS_SECRET_ACCESS_KEY": keys.program.secret,
        "AWS_ENDPOINT_URL": address_for_programs(options, endpoint.port),
        "AWS_DEFAULT_REGION": options.region,
        "AWS_REGION": options.region,
    }
    lines = [f"{name}={value}\n" for name, value in variables.items()]
    write_private(options.store / PROGRAM_VARIABLES, "".join(lines).encode())
    os.environ |= variables
    if endpoint.setup.ca_bundle is not None:
        os.environ["AWS_CA_BUNDLE"] = str(endpoint.setup.ca_bundle)


def _run(command: Sequence[str], environ: dict[str, str], ended: threading.Event) -> int:
    """Runs a program to its end; SIGTERM and Ctrl-C are passed on. Returns its exit code, as a shell has it."""
    try:
        child = subprocess.Popen(command, env=environ)
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror or error}", "give a program that is there") from error
    told = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(_LOOK_SECONDS)
            return 128 - code if code < 0 else code
        if ended.is_set() and not told:
            told = True
            child.terminate()


@contextlib.contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the endpoint in order; a second Ctrl-C breaks off what it still does."""

    def heard(number: int, frame: FrameType | None) -> None:
        if ended.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _names(host: str) -> frozenset[str]:
    """Returns the names by which an endpoint is called that does not only listen on loopback."""
    if host not in ("0.0.0.0", "::"):
        return frozenset({host, f"[{host}]"})
    addresses = {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    return frozenset(
        {socket.gethostname().lower(), socket.getfqdn().lower(), *addresses, *(f"[{a}]" for a in addresses)}
    )


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
    except (OSError, ssl.SSLError) as error:
        hint = "give files in PEM; --tls-key may be left out when one file has both"
        raise UsageError(f"--tls-cert {options.certificate}: {error}", hint) from error
    return context
