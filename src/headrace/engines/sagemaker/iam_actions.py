"""What a job needs to be allowed: the actions of whoever submits it, and of the role under which it runs. Pure.

Which actions these are stands in `headrace.catalog.aws_facts`, of which `headrace cloud role` makes its documents.
`headrace plan` shows them with the resources of one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.catalog import aws_facts
from headrace.catalog.aws_facts import partition_of
from headrace.engines.documents import Permission, Submission, Upload
from headrace.instance.storage import split

if TYPE_CHECKING:
    from headrace.engines.sagemaker.sagemaker_job import SageMakerJob


def submission_of(planned: SageMakerJob) -> Submission:
    """Returns what is sent for a job: the request, what is stored before, and what must be allowed."""
    return Submission(
        operation="CreateTrainingJob",
        region=planned.region,
        request=planned.request(),
        uploads=(Upload("headrace, the job, its code and its secret", planned.channel_uri),),
        permissions={"submitter": _merged(_submitter(planned)), "role": _merged(_role(planned))},
    )


def _submitter(planned: SageMakerJob) -> Iterator[Permission]:
    job, there = planned.job, partition_of(planned.region)
    jobs = (f"arn:{there}:sagemaker:{planned.region}:*:training-job/*",)
    once = planned.options.naming == "job"
    tags = (*(aws_facts.TAG_JOBS if job.tags or once else ()), *(aws_facts.READ_TAGS if once else ()))
    yield Permission((*aws_facts.SUBMIT_JOBS, *tags), jobs, "the training job")
    yield Permission(aws_facts.STOP_JOBS, jobs, "`headrace stop`, and a budget that is used up", optional=True)
    yield Permission(aws_facts.LIST_JOBS, ("*",), "`headrace doctor --engine sagemaker`", optional=True)
    yield Permission(aws_facts.PASS_ROLE, (job.role or "",), "to give it its role")
    yield from _objects(there, "code and headrace", planned.base, read=True, write=True, remove=True)
    yield from _objects(there, "the record of the run", planned.job.record.uri if planned.job.record else "", read=True)
    yield from _objects(there, "model and output", job.output_path or "", read=True)
    streams = (f"arn:{there}:logs:{planned.region}:*:log-group:{aws_facts.LOG_GROUP}:*",)
    yield Permission(
        aws_facts.READ_LOGS, streams, "`headrace logs --platform`: what its containers print", optional=True
    )
    words = "what CloudWatch measured of hosts whose own record is lost"
    yield Permission(aws_facts.READ_METRICS, ("*",), words, optional=True)
    if job.output_kms_key:
        yield Permission(aws_facts.USE_ENCRYPTED, _keys(planned, [job.output_kms_key]), "the key of its output")


def _role(planned: SageMakerJob) -> Iterator[Permission]:
    job, there = planned.job, partition_of(planned.region)
    yield from (replace(each, service=True) for each in _of_service(planned, there))
    record = job.record.uri if job.record else ""
    yield from _objects(there, "the record of the run", record, write=True)
    again = "the record of the run, when the service starts its containers again"
    yield from _objects(there, again, record, read=True, listed=False, optional=not job.use_spot_instances)


def _of_service(planned: SageMakerJob, there: str) -> Iterator[Permission]:
    """What the service does under the role: it brings channels and image, and stores what was made."""
    job = planned.job
    yield from _objects(there, "code and headrace", planned.channel_uri, read=True)
    for name, channel in job.inputs.items():
        objects = "" if channel.s3_data_type == "S3Prefix" else ", and what its manifest names"
        yield from _objects(there, f"the channel {name}{objects}", channel.s3_data, read=True, folder=False)
    yield from _objects(there, "model and output", job.output_path or "", read=False, write=True)
    yield from _objects(there, "checkpoints", job.checkpoint_s3_uri or "", read=True, write=True, remove=True)
    streams = (f"arn:{there}:logs:{planned.region}:*:log-group:{aws_facts.LOG_GROUP}:*",)
    yield Permission(aws_facts.WRITE_LOGS, streams, "what its containers print")
    yield Permission(aws_facts.PUT_METRICS, ("*",), "its metrics")
    yield from _images(planned, there)
    if job.subnets:
        yield Permission(aws_facts.USE_NETWORK, ("*",), "its network")
    keys = tuple(dict.fromkeys(key for key in (job.volume_kms_key, job.output_kms_key) if key))
    if keys:
        yield Permission(aws_facts.USE_KEYS, _keys(planned, keys), "its keys")


def _keys(planned: SageMakerJob, keys: Iterable[str]) -> tuple[str, ...]:
    every = f"arn:{partition_of(planned.region)}:kms:{planned.region}:*:*"
    return tuple(dict.fromkeys(key if key.startswith("arn:") else every for key in keys))


def _images(planned: SageMakerJob, partition: str) -> Iterator[Permission]:
    host, _, path = planned.image.partition("/")
    account, _, rest = host.partition(".dkr.ecr.")
    if not rest:
        return  # no registry of AWS
    region = rest.partition(".")[0]
    repository = path.partition("@")[0].partition(":")[0]
    yield Permission(
        aws_facts.PULL_IMAGE, (f"arn:{partition}:ecr:{region}:{account}:repository/{repository}",), "the image"
    )
    yield Permission(aws_facts.ENTER_REGISTRY, ("*",), "the image")


def _objects(
    partition: str,
    why: str,
    uri: str,
    *,
    read: bool = False,
    write: bool = False,
    remove: bool = False,
    folder: bool = True,
    listed: bool = True,
    optional: bool = False,
) -> Iterator[Permission]:
    """What is done with the objects below a place, or, when it is no folder, whose keys begin like it; and a list."""
    if not uri.startswith("s3://"):
        return
    bucket, key = split(uri)
    wanted = [*(aws_facts.READ_OBJECTS if read else ()), *(aws_facts.PUT_OBJECTS if write else ())]
    wanted += aws_facts.REMOVE_OBJECTS if remove else ()
    beginning = f"{key.rstrip('/')}/" if folder and key else key
    objects = (f"arn:{partition}:s3:::{bucket}/{beginning}*",)
    yield Permission(tuple(sorted(wanted)), objects, why, optional)
    if write:
        yield Permission(aws_facts.ABORT_UPLOADS, objects, "to remove what an upload in parts left that failed", True)
    if listed:
        yield Permission(aws_facts.LIST_BUCKET, (f"arn:{partition}:s3:::{bucket}",), why)


def _merged(permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    """Returns each combination of actions and resources once, with all that it is for."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Permission] = {}
    for each in permissions:
        key = (each.actions, each.resources)
        known = found.get(key)
        found[key] = each if known is None else _both(known, each)
    return tuple(found.values())


def _both(one: Permission, other: Permission) -> Permission:
    """Returns two permissions for the same as one, which is needed when one of them is."""
    why = "; ".join(dict.fromkeys((one.why, other.why)))
    return Permission(one.actions, one.resources, why, one.optional and other.optional, one.service and other.service)
