"""What a notebook's first cell asks the SDK for: a session with a bucket and a region, and a role.

    sess = Session()
    role = get_execution_role()
    loc = sess.upload_data(path="./data", bucket=sess.default_bucket(), key_prefix="demo")

Nothing here asks AWS, unless the user names a bucket of S3. The default bucket is a folder of this machine that a
notebook reads and writes under `s3://headrace-local/`. It lies in `$HEADRACE_HOME/buckets` (by default
`~/.headrace/buckets`). Only estimators know it: they give the job the path that a URI stands for. A key is a file, so
it cannot be the beginning of another key's folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from headrace.errors import NotAvailable, RunFailed, StorageError, UsageError
from headrace.home import home_dir
from headrace.instance import storage
from headrace.instance.storage import Store
from headrace.job import Job, RunHandle, run_handle
from headrace.job.model.path_types import LOCAL_BUCKET
from headrace.job.sagemaker.translation import with_places
from headrace.private_folders import make_closed
from headrace.runs import Run
from headrace.runs.describe import describe
from headrace.runs.store import job_name_of

MANIFESTS = f"{LOCAL_BUCKET}.manifests"


def buckets_dir() -> Path:
    """Returns the folder that holds the bucket."""
    return home_dir() / "buckets"


def place_of(uri: str) -> str:
    """Returns the path that a URI of the bucket stands for; any other place as it is.

    Raises:
        StorageError: a key that cannot be a path.
        OSError: the folder of the buckets cannot be made, or closed to other users.
    """
    if not storage.is_s3(uri) or uri.split("/")[2] != LOCAL_BUCKET:
        return uri
    make_closed(buckets_dir())
    folder = buckets_dir() / LOCAL_BUCKET
    key = uri.removeprefix(f"s3://{LOCAL_BUCKET}").strip("/")
    return str(storage.inside(folder, key) if key else folder)


def with_local_places(data: Mapping[str, object]) -> dict[str, object]:
    """Returns a job's data with paths of this machine in place of the bucket's URIs.

    Args:
        data: keys of a job file, read from a request.

    Raises:
        StorageError: a key that cannot be a path.
        UsageError: the bucket of this machine has nothing where a channel's data are to be.
    """
    return with_places(data, place_of, _source_of)


def _source_of(channel: Mapping[str, object]) -> dict[str, object]:
    """Returns where a channel's data are: at a path; of one file, in a manifest that names it."""
    uri = str(channel.get("s3_data", ""))
    place = place_of(uri)
    if place == uri:
        return {}
    if channel["s3_data_type"] != "S3Prefix":  # else the file says what the data are
        return {"s3_data": place}
    if not Path(place).exists():
        words = f"the bucket of this machine, {buckets_dir() / LOCAL_BUCKET}, has nothing there"
        raise UsageError(f"{uri}: {words}", "put the data there first: Session().upload_data(path, key_prefix=...)")
    if not Path(place).is_file():
        return {"s3_data": place}
    manifest = buckets_dir() / MANIFESTS / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    with Store() as store:
        store.write(json.dumps([{"prefix": f"{Path(place).parent}/"}, Path(place).name]).encode(), str(manifest))
    return {"s3_data": str(manifest), "s3_data_type": "ManifestFile"}


def upload(path: str, bucket: str, key_prefix: str) -> str:
    """Copies a file, or all files below a folder, into a bucket: this one, or one of S3.

    Returns:
        The URI of the prefix; of one file, that of its key.

    Raises:
        UsageError: there is nothing at the path.
        StorageError: something cannot be read or written, or is neither file nor folder.
    """
    source = Path(path)
    if not source.exists():
        raise UsageError(f"upload_data: {source.absolute()} does not exist", "give the path of a file or folder")
    root = storage.local_path(path) if source.is_dir() else source.parent
    uri = storage.join(f"s3://{bucket}", *filter(None, [key_prefix.strip("/")]))
    try:
        place_of(uri)
    except StorageError as error:
        hint = "give names with / between them, without . and .."
        raise StorageError(f"upload_data: key_prefix {key_prefix!r} leads out of {bucket}", hint) from error
    with Store() as store:
        files = [source] if source.is_file() else [file.uri for file in store.list(f"{root}/", data=True)]
        pairs = [(file, place_of(storage.join(uri, Path(file).relative_to(root).as_posix()))) for file in files]
        store.upload_all(pairs)
    return storage.join(uri, source.name) if source.is_file() else uri


OTHERWISE = "what there is: see the page sagemaker of the docs; for all of the SDK run it itself against headrace serve"


def not_available(what: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Returns the error for what only the SDK's class has.

    Args:
        what: headrace's own, in words.
        name: that it was asked for.
        instead: what to do, by name.
    """
    if name.startswith("_"):
        return AttributeError(f"{what} has no {name}")
    return NotAvailable(f"{what} of headrace has no {name!r}", instead.get(name, OTHERWISE))


class TrainingJob:
    """One started job.

    Args:
        run: the run.
        job: what it runs, if its failure may be explained by it.
    """

    def __init__(self, run: RunHandle, job: Job | None = None) -> None:
        self._handle = run
        self._job = job

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the job; `headrace logs` and `headrace status` take it, and then mean its newest run."""
        return job_name_of(self._handle.id)

    job_name = name

    @property
    def run_id(self) -> str:
        """Id of the run; every command takes it."""
        return self._handle.id

    def describe(self) -> dict[str, object]:
        """Returns the job in the shape of DescribeTrainingJob."""
        return describe(Run.open(self.run_id))

    @property
    def model_data(self) -> str | None:
        """Where the model lies, None when there is none (yet)."""
        artefacts = self.describe().get("ModelArtifacts")
        return str(artefacts["S3ModelArtifacts"]) if isinstance(artefacts, dict) else None

    def logs(self, follow: bool = False) -> None:
        """Prints the output of all programs; `follow` goes on to the end of the run."""
        run_handle.show(self._handle.logs(follow=follow), self.run_id)

    def wait(self, logs: bool = True) -> None:
        """Waits for the end.

        Args:
            logs: print the output of all programs meanwhile, and what the run does before and after them.

        Raises:
            RunFailed: it has failed. One that was stopped is no failure, as in the SDK: standard error says so.
        """
        try:
            run_handle.wait_for_success(self._handle, logs=logs, job=self._job)
        except RunFailed as error:
            if self._handle.status.value != "Stopped":
                raise
            print(f"headrace: {error.message}; see whether it has made what you need", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Stops the job."""
        self._handle.stop()


DEFAULT_REGION = "us-east-1"
ROLE = "arn:aws:iam::000000000000:role/headrace"


def get_execution_role(sagemaker_session: object = None, use_default: bool = False) -> str:
    """Returns the ARN of a role that no AWS account knows. No role is taken here.

    Args:
        sagemaker_session, use_default: the SDK's; of no effect.
    """
    del sagemaker_session, use_default
    return ROLE


class Session:
    """Takes the place of the SDK's session: a bucket, a region, and the estimators' jobs by name.

    Args:
        boto_session: of boto3; only its region counts.
        default_bucket: a bucket of S3, in place of this machine's folder.
    """

    def __init__(self, boto_session: object = None, *, default_bucket: str | None = None) -> None:
        self._region = getattr(boto_session, "region_name", None)
        self._bucket = default_bucket or LOCAL_BUCKET
        self._jobs: dict[str, TrainingJob] = {}

    @property
    def boto_region_name(self) -> str:
        """The region of `boto_session`, else that of AWS_REGION or AWS_DEFAULT_REGION, else ``us-east-1``."""
        named = (self._region, os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION"))
        return next((str(name) for name in named if name), DEFAULT_REGION)

    def default_bucket(self) -> str:
        """Returns the name of the bucket: ``headrace-local``, a folder of this machine, or the one given."""
        return self._bucket

    def upload_data(self, path: str | os.PathLike[str], bucket: str | None = None, key_prefix: str = "data") -> str:
        """Copies a file, or all files below a folder, into a bucket.

        Args:
            path: the file or folder.
            bucket: by default `default_bucket`. Any other than ``headrace-local`` is one of S3.
            key_prefix: what the keys begin with.

        Returns:
            The URI of the prefix, for `fit`; of one file, that of its key.

        Raises:
            UsageError: there is nothing at the path.
            StorageError: something cannot be read or written.
        """
        return upload(os.fspath(path), bucket or self._bucket, key_prefix)

    def add(self, job: TrainingJob) -> TrainingJob:
        """Adds a job and returns it."""
        self._jobs[job.name] = self._jobs[job.run_id] = job
        return job

    def logs_for_job(self, job_name: str, wait: bool = False) -> None:
        """Prints the output of a job; `wait` goes on to its end.

        Raises:
            UsageError: no job of that name was started here.
        """
        self._job(job_name).logs(follow=wait)

    def describe_training_job(self, job_name: str) -> dict[str, object]:
        """Returns a job in the shape of DescribeTrainingJob. Raises UsageError."""
        return self._job(job_name).describe()

    def stop_training_job(self, job_name: str) -> None:
        """Stops a job. Raises UsageError."""
        self._job(job_name).stop()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Names what to do in place of what only the SDK's session has. Raises NotAvailable."""
            raise not_available("a session", name, {})

    def _job(self, name: str) -> TrainingJob:
        if name not in self._jobs:
            raise UsageError(f"no job named {name!r} was started with this session")
        return self._jobs[name]
