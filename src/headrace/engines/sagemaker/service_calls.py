"""What the engine asks of the SageMaker service, and what can go wrong. Answers are plain mappings, as boto3 has them.

Nothing here needs a library; `boto_service` speaks to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from headrace.errors import EngineRefused, EngineUnreachable, NameInUse

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


class TrainingService(Protocol):
    """SageMaker's training jobs of one account and region. Every call raises ServiceUnreachable, ServiceRefused."""

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

    def describe(self, name: str) -> Answer | None:
        """Returns what the service says of a training job; None when it has none of that name."""

    def stop(self, name: str) -> bool:
        """Asks a training job to stop. Returns whether it was still waiting or running."""

    def tags(self, arn: str) -> dict[str, str]:
        """Returns the tags of a training job: key to value."""

    def names(self, containing: str) -> Iterator[str]:
        """Yields the names of all training jobs whose name contains a text, the newest first."""

    def logs(self, name: str, positions: dict[str, str]) -> list[LogEvent]:
        """Returns what the containers of a job have printed since the last call, in the order of its time.

        Args:
            name: the job.
            positions: where the last call has ended in each stream; it is brought up to date. Empty for the beginning.
        """

    def host_points(self, name: str, host: str, metric: str, begin: float, end: float) -> list[HostPoint]:
        """Returns what CloudWatch measured of a host of a job, minute by minute.

        Args:
            name: the job.
            host: e.g. ``algo-1``.
            metric: CloudWatch's name of it, e.g. ``CPUUtilization``.
            begin, end: from when to when, seconds since the epoch.
        """


def is_over(answer: Answer) -> bool:
    """Tells whether a job has ended."""
    return answer.get("TrainingJobStatus") in OVER


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
