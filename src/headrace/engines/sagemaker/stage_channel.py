"""Stages headrace's own input channel in S3: what containers need to become the hosts of a run, without an own image.

    <base>/channels/<name>/     this run's channel, as all containers see it
        headrace.zip            the package, which containers start; it unpacks itself (`host_start`)
        libraries-3.12.zip      wheels of what the image's Python may lack, for each that it may be
        libraries.zip           the same, of a folder that the job names
        run.tar.gz              job, plan, orders
        code.tar.gz             the user's code, unless it is in S3 already
        secret.tar.gz           the job's secret and certificates; removed at the end of the run
    <base>/shared/<digest>/     what runs have in common, by the digest of its content

What is shared is sent once: a second run has the service copy it from there into its own channel.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.engines.host_order import HostOrder, write_host_order
from headrace.engines.host_start import PACKAGE, RUN_FILES, SECRET, WHEELS, wheels_for
from headrace.engines.planning.host_certificates import make_certificates
from headrace.engines.planning.pack_files import (
    PYTHONS,
    downloaded_libraries,
    files_below,
    package_zip,
    packed,
    zipped_wheels,
)
from headrace.engines.planning.prepare_run import bring_job_code, write_job
from headrace.engines.remote_job import ranks_beside_workers
from headrace.engines.sagemaker.container_host import CODE
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, own_hyperparameters
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.instance.launch_plan import CA_NAME, CERTIFICATE_NAME, KEY_NAME, SECRET_NAME, LaunchPlan, plan_text
from headrace.instance.storage import Store, is_s3, join
from headrace.job.model.sagemaker_options import AUTO_WHEELS, NO_WHEELS
from headrace.runs import RunPaths

SHARED_FILES = ("job.yaml", "job.json", "request.json", "plan.json", "run.json", "engine")


def prepare_sagemaker_run(planned: SageMakerJob, paths: RunPaths, number: int = 1) -> dict[str, bytes]:
    """Fills the run's directory on this machine, and packs what is this run's alone: name in the channel to content.

    Args:
        planned: the job, in this run.
        paths: the run's directory, which exists.
        number: of the run's attempt with which its containers begin.

    Raises:
        UsageError, StorageError: code that cannot be used.
        OSError: something cannot be read or written.
    """
    job = planned.job
    write_job(job, paths)
    if not is_s3(job.source_dir) and not paths.code.exists():  # another attempt has brought it
        bring_job_code(job, paths)
    paths.plan.write_text(plan_text(planned.plan), encoding="utf-8")
    assert job.record is not None
    write_order(paths, RecordOrder(planned.record_place, job.record.interval))
    requirements = {group.name: job.requirements_of(group.name) for group in planned.plan.groups}
    order = HostOrder(
        source=job.source_dir if is_s3(job.source_dir) else "",
        ranks=ranks_beside_workers(job),
        requirements={name: file for name, file in requirements.items() if file},
        spot=job.use_spot_instances,
        attempt=number,
        hyperparameters=own_hyperparameters(job),
    )
    write_host_order(paths, order)
    secret = dict(_secrets(planned.plan))
    return {
        RUN_FILES: packed(files_below(paths.root, SHARED_FILES)),
        SECRET: packed(secret.items(), private=secret),
    }


def _secrets(plan: LaunchPlan) -> Iterator[tuple[str, bytes]]:
    """Yields the job's secret, and the certificates of its hosts, in a folder for each."""
    yield SECRET_NAME, secrets.token_hex(32).encode()
    for host, certificates in make_certificates(plan.run_id, [host.name for host in plan.hosts]).items():
        yield f"{host}/{CA_NAME}", certificates.ca
        yield f"{host}/{CERTIFICATE_NAME}", certificates.certificate
        yield f"{host}/{KEY_NAME}", certificates.key


def shared_content(planned: SageMakerJob, paths: RunPaths) -> dict[str, bytes | Path]:
    """Returns what runs have in common: name in the channel to content, or to a file that holds it.

    Raises:
        UsageError: a folder of wheels that has none; wheels that cannot be downloaded (EngineRefused).
        OSError: something cannot be read or kept.
    """
    found: dict[str, bytes | Path] = {PACKAGE: package_zip("engines/sagemaker")}
    if not is_s3(planned.job.source_dir):
        found[CODE] = packed(files_below(paths.code, sorted(each.name for each in paths.code.iterdir())))
    wheels = planned.options.wheels
    if wheels == AUTO_WHEELS:
        found |= {wheels_for(python): downloaded_libraries(python) for python in planned.pythons}
    elif wheels != NO_WHEELS:
        found[WHEELS] = zipped_wheels(planned.job.base_path / wheels)
    return found


def stage_channel(
    planned: SageMakerJob, own: Mapping[str, bytes], shared: Mapping[str, bytes | Path], objects: Store
) -> None:
    """Sends what containers need.

    Args:
        planned: the job, in its run.
        own: what is this run's alone, by name in the channel.
        shared: what runs have in common, likewise; sent if it is not there yet.
        objects: where to.

    Raises:
        StorageError: it cannot be sent.
        OSError: a file cannot be read.
    """
    for name, content in shared.items():
        data = content.read_bytes() if isinstance(content, Path) else content
        place = join(planned.shared_uri, hashlib.sha256(data).hexdigest()[:32], name)
        if not objects.has(place):
            objects.write(data, place)
        objects.copy(place, join(planned.channel_uri, name))
    for name, data in own.items():
        objects.write(data, join(planned.channel_uri, name))


def remove_channel(channel_uri: str, objects: Store) -> None:
    """Removes a run's channel when no container needs it any more: the secret first. Raises StorageError."""
    for name in (SECRET, RUN_FILES, CODE, WHEELS, *map(wheels_for, PYTHONS), PACKAGE):
        objects.remove(join(channel_uri, name))
