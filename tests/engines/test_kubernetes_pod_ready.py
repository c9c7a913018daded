"""What a pod finds out and fetches before its supervisor starts: code in S3, requirements, CPUs, its network."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from kube_jobs import DATA, FEED, kube_job

from headrace.engines.host_order import HostOrder
from headrace.engines.kubernetes.kubernetes_job import plan_kubernetes_job
from headrace.engines.kubernetes.pack_run import prepare_kubernetes_run
from headrace.engines.kubernetes.pod import make_ready
from headrace.errors import HeadraceError, StorageError, UsageError
from headrace.hosting.inputs.requirements import VirtualEnvironment
from headrace.instance.launch_plan import HostPlan, LaunchPlan, read_plan
from headrace.instance.paths import TreePaths
from headrace.runs import RunPaths
from objectstore import ObjectStore

pytestmark = pytest.mark.s3


def prepared(tmp_path: Path, source: str) -> tuple[RunPaths, LaunchPlan, HostPlan]:
    """A pod's directory: its tree is below the test's folder, and its address is this machine's."""
    job = kube_job({}, {**DATA, "count": 1}, source_dir=source, data_service=FEED)
    paths = RunPaths(tmp_path / "run-1")
    paths.root.mkdir()
    planned = plan_kubernetes_job(job, paths).in_run(paths)
    prepare_kubernetes_run(planned, paths)
    (host,) = planned.plan.hosts
    here = msgspec.structs.replace(host, address="127.0.0.1", base_dir=str(paths.host(host.name)))
    return paths, msgspec.structs.replace(planned.plan, hosts=(here,)), here


def archive(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def test_code_in_s3_is_fetched_and_its_requirements_are_installed_for_the_hosts_group(
    tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    s3.client.put_object(Bucket=s3.bucket, Key="code.tar.gz", Body=archive(train_py="print(1)", requirements_txt="x\n"))
    source = f"s3://{s3.bucket}/code.tar.gz"
    paths, plan, host = prepared(tmp_path, source)
    assert not paths.code.exists()
    make_ready(paths, plan, host, HostOrder(source=source, ranks={"data_group": 0}))
    tree = TreePaths(host.base_dir)
    assert (tree.code / "train.py").read_text() == "print(1)"
    ready = read_plan(host.base_dir)
    (wanted,) = msgspec.json.decode((paths.engine / "install.json").read_bytes(), type=list[VirtualEnvironment])
    assert ready.python_of("data_group") == wanted.python
    assert wanted.path.startswith(str(tmp_path / "home"))
    assert ready.group("data_group").feed_executors == len(os.sched_getaffinity(0))
    assert msgspec.json.decode(paths.plan.read_bytes(), type=LaunchPlan) == ready
    assert json.loads(tree.resource_config.read_bytes())["network_interface_name"] == "lo"


@pytest.mark.parametrize(
    ("order", "error", "words"),
    [
        (HostOrder(source="s3://{bucket}/nothing.tar.gz"), StorageError, "nothing.tar.gz"),
        (HostOrder(links={"training": "/nowhere/data"}), UsageError, "/nowhere/data does not exist in the pod"),
    ],
)
def test_what_is_not_there_is_told(
    tmp_path: Path, s3: ObjectStore, order: HostOrder, error: type[HeadraceError], words: str
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    paths, plan, host = prepared(tmp_path, "s3://bucket/code.tar.gz" if order.source else str(code))
    order = msgspec.structs.replace(order, source=order.source.format(bucket=s3.bucket))
    with pytest.raises(error, match=words):
        make_ready(paths, plan, host, order)


def test_a_host_whose_address_is_not_this_pods_is_told(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    paths, plan, host = prepared(tmp_path, str(code))
    with pytest.raises(UsageError, match="no interface with the address of algo-1"):
        make_ready(paths, plan, msgspec.structs.replace(host, address="192.0.2.1"), HostOrder())


def test_a_wheel_in_the_code_is_a_requirement_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    with zipfile.ZipFile(code / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
    (code / "of_data.txt").write_text("./tiny-1.0-py3-none-any.whl\n")
    paths, plan, host = prepared(tmp_path, str(code))
    make_ready(paths, plan, host, HostOrder(requirements={"data_group": "of_data.txt"}))
    (wanted,) = msgspec.json.decode((paths.engine / "install.json").read_bytes(), type=list[VirtualEnvironment])
    assert (wanted.requirements, wanted.groups) == ("of_data.txt", ("data_group",))
