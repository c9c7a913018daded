"""What the container of a host does before its supervisor starts: engine/container.json of its run."""

from __future__ import annotations

import msgspec

from headrace.runs import RunPaths

CONTAINER_ORDER = "container"
CODE = "code.tar.gz"
"""Name in headrace's own channel of the archive of the code."""


class ContainerOrder(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        source: ``s3://`` archive of the code, which the host fetches; empty when it has travelled with the job.
        ranks: groups with the ranks of a host, whose data workers are as many as these leave CPUs.
        requirements: file of requirements inside the code, by group; without one the default, if it is there.
        spot: the service may take the instances away, and start the job anew.
        attempt: number of the run's attempt with which the containers of this job begin.
        hyperparameters: what groups have of their own, over the job's, as texts of hyperparameters.json, by group.
    """

    source: str = ""
    ranks: dict[str, int] = {}
    requirements: dict[str, str] = {}
    spot: bool = False
    attempt: int = 1
    hyperparameters: dict[str, dict[str, str]] = {}


def read_container_order(paths: RunPaths) -> ContainerOrder:
    """Reads the order. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode((paths.engine / f"{CONTAINER_ORDER}.json").read_bytes(), type=ContainerOrder)


def write_container_order(paths: RunPaths, order: ContainerOrder) -> None:
    """Writes the order. Raises OSError."""
    paths.engine.mkdir(exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(order)) + b"\n"
    (paths.engine / f"{CONTAINER_ORDER}.json").write_bytes(data)
