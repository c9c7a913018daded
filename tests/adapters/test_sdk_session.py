"""The first cells of AWS's notebooks, with headrace's names in the place of the SDK's, on one machine."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace import estimator as sagemaker
from headrace.errors import StorageError, UsageError
from headrace.estimator import PyTorch, Session, TrainingInput, get_execution_role
from objectstore import ObjectStore

SCRIPT = """
import os
from pathlib import Path
for name in ("TESTING", "TRAIN", "TRAINING"):
    folder = Path(os.environ[f"SM_CHANNEL_{name}"])
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    print(name, {str(file.relative_to(folder)): file.read_text() for file in files})
Path(os.environ["SM_MODEL_DIR"], "weights").write_text("x")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("data/labels/a.txt", "data/train.npz", "data/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name[-5])
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.promise("security", "runs, temporary files, stores and buckets are closed to other users")
def test_the_buckets_of_the_estimators_are_the_users_alone(there: bool, folder: Path) -> None:
    before = os.umask(0)
    try:
        if there:
            (folder / "home" / "buckets").mkdir(parents=True)
        sagemaker.Session().upload_data("data/train.npz", key_prefix="mnist")
    finally:
        os.umask(before)
    assert (folder / "home" / "buckets").stat().st_mode & 0o777 == 0o700


def test_the_notebooks_upload_train_and_find_their_model(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sess = sagemaker.Session()
    role = get_execution_role()
    output_path = "s3://" + sess.default_bucket() + "/DEMO-MNIST"
    bucket = sess.default_bucket()
    loc = sess.upload_data(path="./data", bucket=bucket, key_prefix="DEMO-MNIST")
    one = sess.upload_data("data/train.npz", key_prefix="mnist")
    assert (loc, one) == (f"s3://{bucket}/DEMO-MNIST", f"s3://{bucket}/mnist/train.npz")
    (folder / "data" / "b.txt").write_text("changed")  # a bucket holds what was uploaded
    estimator = PyTorch(
        "train.py",
        role=role,
        instance_type="local",
        instance_count=1,
        output_path=output_path,
        sagemaker_session=sess,
        hyperparameters={"region": sess.boto_region_name},
    )
    channels = {"training": loc, "testing": TrainingInput(f"{loc}/labels"), "train": one}
    estimator.fit(inputs=channels, job_name="pt-hetero")
    shown = capfd.readouterr().out
    assert "TESTING {'a.txt': 'a'}" in shown
    assert "TRAIN {'train.npz': 'n'}" in shown
    assert "TRAINING {'b.txt': 'b', 'labels/a.txt': 'a', 'train.npz': 'n'}" in shown
    sess.logs_for_job(estimator.latest_training_job.name)
    assert "TRAIN {'train.npz': 'n'}" in capfd.readouterr().out
    model = Path(estimator.model_data.removeprefix("file://"))
    assert model.is_relative_to(folder / "home" / "buckets" / bucket / "DEMO-MNIST")
    with tarfile.open(model) as archive:
        assert "weights" in archive.getnames()


def test_a_region_is_always_named_and_a_bucket_of_s3_stays_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert Session().boto_region_name == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert Session().boto_region_name == "eu-west-1"
    assert Session(SimpleNamespace(region_name="eu-west-3")).boto_region_name == "eu-west-3"
    assert Session(default_bucket="mine").default_bucket() == "mine"
    job = PyTorch("train.py", instance_type="local", instance_count=1, output_path="s3://mine/x").job(
        {"a": "s3://mine/a", "b": TrainingInput("s3://headrace-localities/b")}
    )
    assert (job.output_path, job.inputs["a"].s3_data) == ("s3://mine/x", "s3://mine/a")
    assert job.inputs["b"].s3_data == "s3://headrace-localities/b"
    with pytest.raises(UsageError, match=r"upload_data: .*/nothing does not exist"):
        Session().upload_data("nothing")


def test_an_input_of_the_sdk_may_be_one_file_of_the_bucket(folder: Path) -> None:
    uri = Session().upload_data("data/train.npz", key_prefix="/mnist/")
    source = {"DataSource": {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix"}}, "ContentType": "text/csv"}
    estimator = PyTorch("train.py", instance_type="local", instance_count=1, checkpoint_s3_uri="s3://headrace-local/c")
    job = estimator.job(SimpleNamespace(config=source))
    channel = job.inputs["training"]
    assert (channel.s3_data_type, channel.content_type) == ("ManifestFile", "text/csv")
    bucket = folder / "home" / "buckets" / "headrace-local"
    assert json.loads(Path(channel.s3_data).read_text()) == [{"prefix": f"{bucket}/mnist/"}, "train.npz"]
    assert job.checkpoint_s3_uri == str(bucket / "c")


@pytest.mark.parametrize("kind", ["ManifestFile", "AugmentedManifestFile"])
def test_a_manifest_of_the_bucket_stays_what_it_is(folder: Path, kind: str) -> None:
    uri = Session().upload_data("data/train.npz", key_prefix="/mnist/")
    source = {"DataSource": {"S3DataSource": {"S3Uri": uri, "S3DataType": kind}}}
    if kind == "AugmentedManifestFile":
        source["DataSource"]["S3DataSource"]["AttributeNames"] = ["x"]
        source |= {"InputMode": "Pipe", "RecordWrapperType": "RecordIO"}
    job = PyTorch("train.py", instance_type="local", instance_count=1).job(SimpleNamespace(config=source))
    channel = job.inputs["training"]
    expected = folder / "home" / "buckets" / "headrace-local" / "mnist" / "train.npz"
    assert (channel.s3_data_type, channel.s3_data) == (kind, str(expected))


def test_data_are_uploaded_to_a_bucket_of_s3_that_is_named(folder: Path, s3: ObjectStore) -> None:
    assert Session(default_bucket=s3.bucket).upload_data("data", key_prefix="p") == s3.uri("p")
    assert s3.listed() == ["p/b.txt", "p/labels/a.txt", "p/train.npz"]
    assert s3.get("p/labels/a.txt") == b"a"


def test_what_is_no_data_is_not_uploaded_and_what_cannot_be_is_named(folder: Path) -> None:
    (folder / "data/.headrace-index").mkdir()
    (folder / "data/.headrace-index/tar.index").write_text("x")
    Session().upload_data("data")
    bucket = folder / "home/buckets/headrace-local/data"
    names = [path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file()]
    assert sorted(names) == ["b.txt", "labels/a.txt", "train.npz"]
    (folder / "data/labels/lost").symlink_to("nothing")
    with pytest.raises(StorageError, match=r"data/labels/lost is a link to a file that is not there"):
        Session().upload_data("data")


def test_a_place_of_the_bucket_that_holds_nothing_is_told_as_it_was_written(folder: Path) -> None:
    estimator = PyTorch("train.py", instance_type="local", instance_count=1)
    with pytest.raises(UsageError, match=r"^s3://headrace-local/none: the bucket of this machine") as error:
        estimator.job({"training": "s3://headrace-local/none"})
    assert "upload_data" in error.value.hint
    with pytest.raises(StorageError, match=r"key_prefix '../../esc' leads out of headrace-local") as outside:
        Session().upload_data("data", key_prefix="../../esc")
    assert "rename" not in outside.value.hint
