"""Speaks to SageMaker and CloudWatch with botocore (extra `sagemaker`), imported when used. Answers are plain mappings.

CreateTrainingJob is not left to botocore's own repetitions: a request whose answer was lost may have created the job,
so the job is looked for by its name first. Every repetition waits, at random and longer each time, because many
clients are throttled at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from headrace.aws_errors import AwsFault, fault_of
from headrace.errors import EngineRefused, EngineUnreachable, NameInUse
from headrace.install_hint import install_hint
from headrace.instance.s3 import share_models

Answer = Mapping[str, Any]

NAME_TAKEN = "ResourceInUse"
NOT_FOUND = "Requested resource not found"
MISSING_SECONDS = 30.0
"""So long the service must say that it does not know a job which it had accepted: its answers may be older."""
OVER = frozenset({"Completed", "Failed", "Stopped"})
"""TrainingJobStatus of a job that has ended."""


class ServiceUnreachable(EngineUnreachable):
    """The service does not answer, or is too busy. That says nothing about a job."""


class ServiceRefused(EngineRefused):
    """The service has refused a request.

    Args:
        code: the service's name of the error, e.g. ``ResourceLimitExceeded``.
        message: what was refused, in the service's words.
        hint: what to do.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NameTaken(ServiceRefused, NameInUse):
    """There is another training job of that name."""


class ServiceAccess(NamedTuple):
    """How the service is reached.

    Attributes:
        region: where.
        profile: profile of the AWS configuration; empty for the credentials of the environment.
        endpoints: address of a service (``sagemaker``, ``logs``) that is asked in place of AWS's.
    """

    region: str
    profile: str = ""
    endpoints: Mapping[str, str] = {}


class LogEvent(NamedTuple):
    """One line that a container has printed.

    Attributes:
        stream: its stream: ``<host>-<number>``.
        milliseconds: when, since the epoch.
        text: the line.
    """

    stream: str
    milliseconds: int
    text: str


class HostPoint(NamedTuple):
    """One value that CloudWatch measured of a host.

    Attributes:
        t: beginning of the minute, seconds since the epoch.
        average: of the minute, %.
    """

    t: float
    average: float


def differences(request: Mapping[str, object], answer: Answer) -> list[str]:
    """Returns the members of a request that a described job has in another way; empty when it is the request's job.

    What the service adds (defaults, times) does not count, nor what a description never has (tags).

    >>> differences({"RoleArn": "a", "Tags": []}, {"RoleArn": "b"})
    ['RoleArn']
    """
    members = [name for name in request if name in _DESCRIBED]
    return [name for name in members if not within(request[name], answer.get(name))]


_DESCRIBED = frozenset(
    (
        "TrainingJobName", "RoleArn", "AlgorithmSpecification", "HyperParameters", "Environment", "InputDataConfig",
        "OutputDataConfig", "ResourceConfig", "VpcConfig", "StoppingCondition", "RetryStrategy", "CheckpointConfig",
        "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining",
    )
)  # fmt: skip
"""Members of a request that headrace writes and that a description has."""


def within(wanted: object, seen: object) -> bool:
    """Tells whether a service has what is wanted: all members of mappings, and whatever it adds to them."""
    if isinstance(wanted, Mapping):
        return isinstance(seen, Mapping) and all(within(value, seen.get(name)) for name, value in wanted.items())
    if isinstance(wanted, (list, tuple)):
        if not isinstance(seen, (list, tuple)) or len(wanted) != len(seen):
            return False
        return all(within(one, other) for one, other in zip(wanted, seen, strict=True))
    return wanted == seen


T = TypeVar("T")

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
CREATE_TRIES, TRIES = 8, 3
_POINTS = 1440  # of a metric in an answer
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0  # seconds
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0

_NO_CREDENTIALS = "set AWS_PROFILE or engines.sagemaker.profile; `aws sts get-caller-identity` shows who you are"
_HINTS = {
    AwsFault.LIMIT: "ask for a higher quota in the console (Service Quotas), or take other instances",
    AwsFault.BAD_KEYS: _NO_CREDENTIALS,
    AwsFault.EXPIRED: _NO_CREDENTIALS,
    AwsFault.DENIED: "the page sagemaker-runs of the docs lists the actions that you and the role need",
}


class BotoService:
    """SageMaker's training jobs of one account and region. Every call raises ServiceUnreachable, ServiceRefused.

    Args:
        access: how the service is reached.
        sleep: waits for so many seconds.
        jitter: returns a number from 0 to 1.
    """

    def __init__(
        self,
        access: ServiceAccess,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        try:
            import botocore.config
            import botocore.exceptions
            import botocore.session
        except ImportError as error:
            message = f"the sagemaker engine needs a library that is not installed: {error.name}"
            raise EngineRefused(message, install_hint("sagemaker")) from error
        self._errors: Any = botocore.exceptions
        self._sleep, self._jitter = sleep, jitter
        config = botocore.config.Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        try:
            session = botocore.session.Session(profile=access.profile or None)
            share_models(session)
            create = functools.partial(session.create_client, region_name=access.region, config=config)
            self.sagemaker: Any = create("sagemaker", endpoint_url=access.endpoints.get("sagemaker"))
            self.cloudwatch_logs: Any = create("logs", endpoint_url=access.endpoints.get("logs"))
            self._cloudwatch = functools.partial(create, "cloudwatch", endpoint_url=access.endpoints.get("cloudwatch"))
        except (self._errors.BotoCoreError, ValueError) as error:
            raise EngineRefused(f"AWS cannot be asked: {error}", _NO_CREDENTIALS) from error

    def close(self) -> None:
        """Closes the connections."""
        self.sagemaker.close()
        self.cloudwatch_logs.close()
        if "cloudwatch" in vars(self):
            self.cloudwatch.close()

    @functools.cached_property
    def cloudwatch(self) -> Any:
        """CloudWatch, made when it is asked: few runs need it."""
        return self._cloudwatch()

    @property
    def address(self) -> str:
        """Where training jobs are asked for."""
        return str(self.sagemaker.meta.endpoint_url)

    def create(self, request: Mapping[str, object], look: float | None = None) -> str:
        """Creates a training job, once: what was accepted although its answer was lost is found again by its name.

        Args:
            request: the CreateTrainingJob request.
            look: seconds for which a job of that name is looked for when the service refuses the request, because
                somebody may have sent it before; None: nobody can.

        Returns:
            TrainingJobArn, of the new job or of one that has this name and this request already.

        Raises:
            NameTaken: a job of that name has another request.
        """
        name = str(request["TrainingJobName"])

        def send() -> str:
            try:
                return str(self.sagemaker.create_training_job(**request)["TrainingJobArn"])
            except self._errors.ClientError as error:
                if _code(error) != NAME_TAKEN:
                    raise
                return self._own(request, self._at_last(lambda: self.describe(name), MISSING_SECONDS), error)

        def found() -> str | None:
            answer = self.describe(name)
            return None if answer is None else self._own(request, answer, None)

        return self._repeated(f"the training job {name} cannot be created", send, found, CREATE_TRIES, look)

    def describe(self, name: str) -> Answer | None:
        """Returns what the service says of a training job; None when it has none of that name."""

        def send() -> Answer | None:
            try:
                answer: Answer = self.sagemaker.describe_training_job(TrainingJobName=name)
            except self._errors.ClientError as error:
                if NOT_FOUND in _message(error) or _code(error) == "ResourceNotFound":
                    return None
                raise
            return answer

        return self._repeated(f"the training job {name} cannot be asked for", send)

    def stop(self, name: str) -> bool:
        """Asks a training job to stop. Returns whether it was still waiting or running."""

        def send() -> bool:
            try:
                self.sagemaker.stop_training_job(TrainingJobName=name)
            except self._errors.ClientError as error:
                answer = self.describe(name) if _code(error) in ("ValidationException", "ResourceNotFound") else {}
                if answer is None or answer.get("TrainingJobStatus") in OVER:
                    return False
                raise
            return True

        return self._repeated(f"the training job {name} cannot be stopped", send)

    def tags(self, arn: str) -> dict[str, str]:
        """Returns the tags of a training job: key to value."""
        pages = self._pages("the tags cannot be read", self.sagemaker.list_tags, "NextToken", ResourceArn=arn)
        return {each["Key"]: each["Value"] for page in pages for each in page["Tags"]}

    def names(self, containing: str) -> Iterator[str]:
        """Yields the names of all training jobs whose name contains a text, the newest first."""
        asked = {"NameContains": containing, "MaxResults": 100, "SortBy": "CreationTime", "SortOrder": "Descending"}
        ask = self.sagemaker.list_training_jobs
        for page in self._pages("the training jobs cannot be listed", ask, "NextToken", **asked):
            yield from (str(each["TrainingJobName"]) for each in page["TrainingJobSummaries"])

    def logs(self, name: str) -> list[LogEvent]:
        """Returns what the containers of a job have printed, in the order of its time."""
        events: list[LogEvent] = []
        for stream in self._streams(name):
            asked = {"logGroupName": LOG_GROUP, "logStreamName": stream, "startFromHead": True}
            while True:
                read = functools.partial(self.cloudwatch_logs.get_log_events, **asked)
                page = self._repeated(f"the logs of {name} cannot be read", read)
                short = stream.rpartition("/")[2]
                events += (LogEvent(short, each["timestamp"], each["message"]) for each in page["events"])
                if page["nextForwardToken"] == asked.get("nextToken"):  # of the last page, its own
                    break
                asked["nextToken"] = page["nextForwardToken"]
        return sorted(events, key=lambda event: event.milliseconds)

    def host_points(self, name: str, host: str, metric: str, begin: float, end: float) -> list[HostPoint]:
        """Returns what CloudWatch measured of a host of a job, minute by minute.

        Args:
            name: the job.
            host: e.g. ``algo-1``.
            metric: CloudWatch's name of it, e.g. ``CPUUtilization``.
            begin, end: from when to when, seconds since the epoch.
        """
        points: list[HostPoint] = []
        last = math.ceil(end / 60) * 60
        for start in range(math.floor(begin / 60) * 60, math.ceil(end), _POINTS * 60):
            read = functools.partial(
                self.cloudwatch.get_metric_statistics,
                Namespace=LOG_GROUP,  # of the metrics, too
                MetricName=metric,
                Dimensions=[{"Name": "Host", "Value": f"{name}/{host}"}],
                StartTime=start,
                EndTime=min(start + _POINTS * 60, last),
                Period=60,
                Statistics=["Average"],
            )
            page = self._repeated(f"the metrics of {name} cannot be read", read)
            points += (HostPoint(each["Timestamp"].timestamp(), each["Average"]) for each in page["Datapoints"])
        return sorted(points)

    def _streams(self, name: str) -> list[str]:
        def ask(**asked: object) -> Answer:
            try:
                answer: Answer = self.cloudwatch_logs.describe_log_streams(**asked)
            except self._errors.ClientError as error:
                if _code(error) == "ResourceNotFoundException":  # nothing was logged yet
                    return {"logStreams": []}
                raise
            return answer

        beginning = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{name}/"}
        pages = self._pages(f"the logs of {name} cannot be listed", ask, "nextToken", **beginning)
        return [each["logStreamName"] for page in pages for each in page["logStreams"]]

    def _pages(self, what: str, ask: Callable[..., Answer], token: str, **asked: object) -> Iterator[Answer]:
        """Yields the pages of a list, each of which names the next one by a token."""
        while True:
            page = self._repeated(what, functools.partial(ask, **asked))
            yield page
            if not page.get(token):
                return
            asked[token] = page[token]

    def _own(self, request: Mapping[str, object], answer: Answer | None, taken: Exception | None) -> str:
        """Returns the ARN of the job that has the request's name, when it is the request's. Raises NameTaken."""
        name = str(request["TrainingJobName"])
        others = [] if answer is None else differences(request, answer)
        if answer is None or others:
            what = f"; it differs in {', '.join(others)}" if others else ""
            message = f"there is another training job called {name}{what}"
            raise NameTaken(NAME_TAKEN, message, "run the job again: it gets a new name") from taken
        return str(answer["TrainingJobArn"])

    def _at_last(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Looks for so long for what the service may not know for a moment. Returns None when it is not there."""
        waited, pause = 0.0, FIRST_PAUSE
        while (answer := look()) is None and waited < seconds:
            self._sleep(pause)
            waited, pause = waited + pause, min(LONGEST_PAUSE, 2 * pause)
        return answer

    def _repeated(
        self,
        what: str,
        send: Callable[[], T],
        found: Callable[[], T | None] | None = None,
        tries: int = TRIES,
        look: float | None = None,
    ) -> T:
        """Sends a request until it is answered.

        Args:
            what: what cannot be done, in words.
            send: sends it once.
            found: looks for what a request has made whose answer was lost; None: sending it twice is harmless.
            tries: how often it is sent at most.
            look: seconds for which `found` looks when it is refused, because it may have been sent before; None: it
                looks only when an answer to this very call was lost, for as long as the service may not know a job.

        Raises:
            ServiceRefused: it was refused.
            ServiceUnreachable: it was not answered, often enough.
        """
        errors = self._errors
        last: Exception | None = None
        for number in range(tries):
            if last is not None:
                self._sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (number - 1)) * (0.5 + self._jitter() / 2))
            if last is not None and found is not None and not _is_busy(last) and (made := found()) is not None:
                return made
            try:
                return send()
            except errors.ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
                if not _is_busy(error) and status < 500:
                    if found is not None and look is not None and (made := self._at_last(found, look)) is not None:
                        return made
                    code = _code(error)
                    hint = _HINTS.get(fault_of(code), "")
                    raise ServiceRefused(code, f"{what}: {code}: {_message(error)}", hint) from error
                look = look if _is_busy(error) else MISSING_SECONDS
                last = error
            except (errors.HTTPClientError, errors.ConnectionError) as error:
                look, last = MISSING_SECONDS, error
            except errors.BotoCoreError as error:
                raise EngineRefused(f"{what}: {error}", _NO_CREDENTIALS) from error
        if found is not None and last is not None and not _is_busy(last):
            with contextlib.suppress(ServiceUnreachable):  # the error that is raised says more
                if (made := found()) is not None:
                    return made
        hint = "the service is busy or cannot be reached: try again later"
        raise ServiceUnreachable(f"{what}: {last}", hint) from last


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _message(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))


def _is_busy(error: Any) -> bool:
    return getattr(error, "response", None) is not None and fault_of(_code(error)) is AwsFault.BUSY
