"""What travels to the pods: whole, the same bytes for the same input, small enough, and each secret only where it
belongs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from effort import SOAK
from kube_jobs import DATA, DNN, FEED, kube_job

from headrace.engines.host_start import host_named, unpack_run
from headrace.engines.kubernetes.kubernetes_job import plan_kubernetes_job
from headrace.engines.kubernetes.objects import objects, rendered
from headrace.engines.kubernetes.pack_run import MOST_BYTES, Payload, package_zip, prepare_kubernetes_run
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import read_secret
from headrace.job import Job
from headrace.runs import RunPaths

SUBMITTING = ("pydantic", "click", "yaml", "rich", "botocore", "cryptography", "lightkube", "torch")
IN_PODS = (
    "headrace.engines.kubernetes.pod, headrace.engines.kubernetes.send_record, headrace.agent.__main__, "
    "headrace.agent.ask, headrace.feed.serve, headrace.hosting.helpers.stage, headrace.hosting.helpers.sync, "
    "headrace.hosting.helpers.restore, headrace.hosting.helpers.collect, headrace.hosting.helpers.install, "
    "headrace.hosting.helpers.serve_channels, headrace.hosting.helpers.store_record"
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "again").symlink_to("train.py")
    return folder


def prepared(job: Job, root: Path) -> Payload:
    paths = RunPaths(root)
    root.mkdir(parents=True)
    (root / "run.json").write_text("{}")
    return prepare_kubernetes_run(plan_kubernetes_job(job, paths).in_run(paths), paths)


def files_of(packed: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: member for member in archive}


def test_all_hosts_share_the_code_and_each_gets_its_own_tree(code: Path, tmp_path: Path) -> None:
    job = kube_job({}, DATA, DNN, source_dir=str(code), data_service=FEED, inputs={"training": "s3://bucket/data"})
    payload = prepared(job, tmp_path / "run-1")
    shared = files_of(payload.shared)
    assert {"code/train.py", "code/run.sh", "code/again", "plan.json", "job.json", "engine/stage.json"} <= shared.keys()
    assert shared["code/again"].linkname == "train.py"
    assert shared["code/run.sh"].mode == 0o755
    assert not any(name.startswith("hosts/") or "secret" in name for name in shared)
    for host, packed in payload.hosts.items():
        names = files_of(packed)
        secret = names[f"hosts/{host}/input/data/headrace/secret"]
        assert secret.mode == 0o600
        assert f"hosts/{host}/input/config/resourceconfig.json" in names
        assert "engine/host_order.json" in names
        assert f"hosts/{host}/input/data/headrace/plan.json" not in names  # it is the run's own
        others = set(payload.hosts) - {host}
        assert not any(name.startswith(f"hosts/{other}/") for other in others for name in names)


def test_the_same_input_gives_the_same_bytes(code: Path, tmp_path: Path) -> None:
    job = kube_job({}, DNN, source_dir=str(code))
    first = prepared(job, tmp_path / "a" / "run-1")
    (tmp_path / "a" / "run-1").rename(tmp_path / "earlier")
    os.utime(code / "train.py", (1, 1))
    assert prepared(job, tmp_path / "a" / "run-1").shared == first.shared
    assert package_zip() == first.package == package_zip()


@pytest.mark.promise("kubernetes", "on Kubernetes the job's secret is in no rendered text, ConfigMap or shared file")
def test_no_rendered_text_and_no_shared_file_holds_the_jobs_secret(code: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1")
    job = kube_job({}, DATA, DNN, source_dir=str(code), encrypt_inter_container_traffic=True)
    payload = prepared(job, paths.root)
    planned = plan_kubernetes_job(job, paths).in_run(paths)
    secret = read_secret(paths.host("algo-1")).hex()
    texts = "".join(document.text for document in rendered(planned))
    assert secret not in texts
    assert "PRIVATE KEY" not in texts
    with tarfile.open(fileobj=io.BytesIO(payload.shared)) as archive:
        contents = b"".join(file.read() for member in archive if (file := archive.extractfile(member)))
    assert secret.encode() not in contents
    assert b"PRIVATE KEY" not in contents
    maps = [made for made in objects(planned, payload) if made["kind"] == "ConfigMap"]
    assert all(secret not in str(made) for made in maps)


def test_code_that_is_too_large_is_refused_with_what_to_do(code: Path, tmp_path: Path) -> None:
    (code / "weights").write_bytes(os.urandom(MOST_BYTES))
    with pytest.raises(EngineRefused, match="too large") as caught:
        prepared(kube_job({}, DNN, source_dir=str(code)), tmp_path / "run-1")
    assert "s3://" in caught.value.hint
    (code / "weights").write_bytes(bytes(8 * MOST_BYTES))  # it is what is packed that counts
    assert prepared(kube_job({}, DNN, source_dir=str(code)), tmp_path / "run-2")


def test_code_in_s3_does_not_travel(tmp_path: Path) -> None:
    payload = prepared(kube_job({}, DNN, source_dir="s3://bucket/code.tar.gz"), tmp_path / "run-1")
    assert not any(name.startswith("code") for name in files_of(payload.shared))
    with tarfile.open(fileobj=io.BytesIO(payload.hosts["algo-1"])) as archive:
        order = archive.extractfile("engine/host_order.json")
        assert order is not None
        assert b"s3://bucket/code.tar.gz" in order.read()


@pytest.mark.parametrize("count", [200 if SOAK else 40])
def test_hosts_fit_into_their_secrets_in_bounded_time(code: Path, tmp_path: Path, count: int) -> None:
    groups = ({**DATA, "count": count - 16}, {**DNN, "count": 16})
    began = time.process_time()
    payload = prepared(kube_job({}, *groups, source_dir=str(code), data_service=FEED), tmp_path / "run-1")
    assert time.process_time() - began < 30
    assert len(payload.hosts) == count
    assert max(map(len, payload.hosts.values())) < 10_000
    assert sum(map(len, payload.hosts.values())) * 200 < MOST_BYTES * count  # in a JobSet a group has one Secret


def test_the_package_fits_into_a_config_map_and_is_all_that_a_pod_needs(tmp_path: Path) -> None:
    packed = package_zip()
    assert len(packed) <= MOST_BYTES * 0.9, "leave room, or leave something out"
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path)
    block = f"import sys; sys.modules.update(dict.fromkeys({SUBMITTING!r})); "
    test = f"{block}import {IN_PODS}; import headrace; print(headrace.__file__)"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    words = [sys.executable, "-W", "error", "-c", test]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_what_is_unpacked_is_what_was_packed(code: Path, tmp_path: Path) -> None:
    payload = prepared(kube_job({}, DATA, source_dir=str(code)), tmp_path / "submitted" / "run-1")
    source, run = tmp_path / "in", tmp_path / "pod" / "run-1"
    source.mkdir()
    (run / "hosts" / "algo-2").mkdir(parents=True)
    (source / "run.tar.gz").write_bytes(payload.shared)
    (source / "algo-2.tar.gz").write_bytes(payload.hosts["algo-2"])
    unpack_run(source, run, "algo-2")
    assert (run / "code" / "again").readlink() == Path("train.py")
    assert (run / "code" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (run / "hosts/algo-2/input/data/headrace/secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (run / "hosts").iterdir()] == ["algo-2"]
    assert (run / "plan.json").read_bytes() == (tmp_path / "submitted/run-1/plan.json").read_bytes()


def test_a_host_is_named_or_follows_from_the_pods_index() -> None:
    assert [host_named("algo-7", "3"), host_named("5+", "3")] == ["algo-7", "algo-8"]


def test_pip_brings_only_what_the_image_lacks(tmp_path: Path) -> None:
    archive, wheels, target = tmp_path / "headrace.zip", tmp_path / "wheels", tmp_path / "libraries"
    archive.write_bytes(package_zip())
    wheels.mkdir()
    info = "tiny_library-1.0.dist-info"
    with zipfile.ZipFile(wheels / "tiny_library-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_library.py", "HERE = True\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny_library\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def install(*libraries: str) -> int:
        words = [sys.executable, str(archive), "install", str(target), *libraries]
        return subprocess.run(words, check=False, capture_output=True, env=offline, timeout=60).returncode

    assert install("numpy>=1.24", "psutil>=6.0") == 0
    assert not target.exists()
    if not SOAK:
        return
    assert install("numpy>=1.24", "tiny_library>=0.9") == 0
    assert (target / "tiny_library.py").is_file()
    assert not (target / "numpy").exists()
    assert install("no_such_library>=1") != 0
