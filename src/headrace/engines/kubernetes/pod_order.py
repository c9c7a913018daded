"""What the pod of a host does before its supervisor starts, and after it has ended: engine/pod.json of its run."""

from __future__ import annotations

import msgspec

from headrace.runs import RunPaths

POD_ORDER = "pod"


class PodOrder(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        source: ``s3://`` archive of the code; empty when the code has travelled with the job.
        links: channels that are folders of a volume, with their paths.
        ranks: the host's group, with the ranks of a host, when its data workers are as many as these leave CPUs.
        requirements: file of requirements inside the code; empty for the default, if it is there.
        linger: seconds to wait at the end until the record is fetched; 0 for none.
        kept: record and output are stored elsewhere, so that nobody need be waited for.
        named: the cluster's DNS has other names for hosts: their own are written into /etc/hosts, if that may be done.
        quiet: the pod ends with code 0 whatever became of its host: its failure is none of what it belongs to.
    """

    source: str = ""
    links: dict[str, str] = {}
    ranks: dict[str, int] = {}
    requirements: str = ""
    linger: float = 0.0
    kept: bool = False
    named: bool = False
    quiet: bool = False


def read_pod_order(paths: RunPaths) -> PodOrder:
    """Reads the order of this pod. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode((paths.engine / f"{POD_ORDER}.json").read_bytes(), type=PodOrder)
