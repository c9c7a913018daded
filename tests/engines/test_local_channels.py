"""Input channels in real jobs: every source, mode and distribution, and what goes wrong with them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from effort import SOAK
from run_places import flag
from stage import assert_failed, groups, kill, said, text

from headrace import engines
from headrace.engines.planning import plan_channels
from headrace.errors import EngineRefused, JobInvalid
from headrace.hosting.supervision.cleanup import remove_scratch
from headrace.install_hint import install_hint
from headrace.instance.channels import mounts
from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder, write_orders
from headrace.processes.process_table import scan
from headrace.runs import Status, list_runs
from headrace.runs.events import ChannelProgress
from objectstore import s3, s3_endpoint
from patience import allowed, until

__all__ = ["s3", "s3_endpoint"]

needs_fuse = pytest.mark.needs("fuse")

# Prints what a host finds in its channels, one JSON object a line.
LIST = """
import hashlib, json, os, sys
base = os.environ["SAGEMAKER_BASE_DIR"]
found = {}
def content(path):
    data = open(path, "rb").read().decode()
    return data if len(data) < 100 else hashlib.sha256(data.encode()).hexdigest()
for name in json.load(open(f"{base}/input/config/inputdataconfig.json")):
    folder = os.environ[f"SM_CHANNEL_{name.upper()}"]
    found[name] = {
        os.path.relpath(os.path.join(here, file), folder): content(os.path.join(here, file))
        for here, _, files in os.walk(folder) for file in files
    } if os.path.isdir(folder) else None
print("FOUND", json.dumps({"host": os.environ["SM_CURRENT_HOST"], "channels": found}))
"""
# Reads the FIFOs of some epochs.
READ_PIPES = """
import json, os
base = os.environ["SAGEMAKER_BASE_DIR"]
epochs = {
    name: [open(f"{base}/input/data/{name}_{epoch}", "rb").read().hex() for epoch in range(3)]
    for name in json.load(open(f"{base}/input/config/inputdataconfig.json"))
}
print("FOUND", json.dumps({"host": os.environ["SM_CURRENT_HOST"], "channels": epochs}))
"""


def found(handle) -> dict[str, object]:
    lines = [json.loads(line.text[6:]) for line in handle.logs() if line.text.startswith("FOUND ")]
    return {line["host"]: line["channels"] for line in lines}


def mount_points(handle) -> list[Path]:
    return mounts.mounted_below((handle.paths.root / "channels").resolve())


def assert_nothing_left(stage, handle) -> None:
    stage.assert_nothing_left(handle, 2.0)
    assert mount_points(handle) == []
    assert not (handle.paths.root / "channels").exists()
    assert not [path for path in handle.paths.root.rglob("*") if path.is_fifo()]


def completed(stage, handle) -> None:
    status = handle.wait(60)
    assert status is Status.COMPLETED, (str(handle.cause), text(handle))
    assert_nothing_left(stage, handle)


def put_train(s3) -> dict[str, str]:
    data = {"a.txt": "A", "b.txt": "B", "sub/c.txt": "C"}
    for name, content in data.items():
        s3.put(f"train/{name}", content.encode())
    s3.put("train/", b"")  # what the console makes for a folder
    s3.put("other/x.txt", b"X")
    return data


def test_prefixes_shards_and_manifests_of_both_kinds_of_source_reach_the_hosts_of_their_groups(stage, s3) -> None:
    data = put_train(s3)
    local = stage.folder / "local"
    local.mkdir()
    for number in range(3):
        s3.put(f"d/{number}", str(number).encode())
    (local / "part-0").write_text("0")
    s3.put("m.json", json.dumps([{"prefix": s3.uri("train/")}, "sub/c.txt", "a.txt"]).encode())
    (stage.folder / "m.json").write_text('[{"prefix": "here/"}, "y.txt"]')
    (stage.folder / "here").mkdir()
    (stage.folder / "here" / "y.txt").write_text("Y")
    sharded = {"distribution": "ShardedByS3Key", "instance_groups": ["data"]}
    manifest = {"s3_data_type": "ManifestFile", "instance_groups": ["dnn"]}
    handle = stage.start(
        LIST,
        instance_groups=groups(dnn=1, data=2),
        inputs={
            "train": {"s3_data": s3.uri("train"), "instance_groups": ["dnn"]},
            "other": {"s3_data": s3.uri("other/"), "instance_groups": ["data"]},
            "remote": {"s3_data": s3.uri("d/"), **sharded},
            "local": {"s3_data": str(local), **sharded},
            "listed": {"s3_data": s3.uri("m.json"), **manifest},
            "listed_here": {"s3_data": str(stage.folder / "m.json"), **manifest},
        },
    )
    completed(stage, handle)
    dnn = {"train": data, "listed": {"sub/c.txt": "C", "a.txt": "A"}, "listed_here": {"y.txt": "Y"}}
    other = {"x.txt": "X"}
    assert found(handle) == {
        "algo-1": dnn,
        "algo-2": {"other": other, "remote": {"0": "0", "2": "2"}, "local": {"part-0": "0"}},
        "algo-3": {"other": other, "remote": {"1": "1"}, "local": {}},
    }
    told = [event for event in handle.run.events() if isinstance(event, ChannelProgress)]
    assert [(event.files, event.files_total) for event in told if event.channel == "train"][-1] == (3, 3), "once"
    assert [event.files for event in told if event.channel == "other"] == [1], "that all is there is told once"


@needs_fuse
def test_fastfile_reads_what_is_read_whole_or_sharded_and_cannot_be_written_to(stage, s3) -> None:
    data = put_train(s3)
    big = os.urandom(9_000_000).hex()
    s3.put("train/z-big", big.encode())
    write = """
folder = os.environ["SM_CHANNEL_WHOLE"]
for attempt in (lambda: open(folder + "/new", "w"), lambda: open(folder + "/a.txt", "a"),
                lambda: os.remove(folder + "/a.txt"), lambda: os.mkdir(folder + "/d")):
    try:
        attempt()
    except OSError as error:
        print("errno", error.errno)
print(os.path.exists(folder + "/nothing"), open(folder + "/a.txt").read())
"""
    channel = {"s3_data": s3.uri("train/"), "input_mode": "FastFile"}
    handle = stage.start(
        LIST + write,
        instance_groups=groups(dnn=2),
        inputs={"whole": channel, "shard": {**channel, "distribution": "ShardedByS3Key"}},
    )
    completed(stage, handle)
    everything = {**data, "z-big": hashlib.sha256(big.encode()).hexdigest()}
    seen = found(handle)
    assert [host["whole"] for host in seen.values()] == [everything, everything]
    shards = [sorted(seen[f"algo-{number}"]["shard"]) for number in (1, 2)]
    assert shards == [["a.txt", "sub/c.txt"], ["b.txt", "z-big"]]
    assert seen["algo-1"]["shard"] | seen["algo-2"]["shard"] == everything
    for number in (1, 2):
        assert text(handle, f"dnn/algo-{number}[0]").splitlines()[1:] == ["errno 30"] * 4 + ["False A"]


def test_a_pipe_has_a_fifo_an_epoch_in_an_order_of_its_own_or_records_of_a_manifest(stage, s3) -> None:
    local = stage.folder / "local"
    local.mkdir()
    for letter in "abcdef":
        s3.put(f"d/{letter}", gzip.compress(letter.encode()))
        (local / letter).write_bytes(gzip.compress(letter.encode()))
    s3.put("img/1", b"one")
    s3.put("m", json.dumps({"source-ref": s3.uri("img/1"), "label": {"x": 1}}).encode())
    shuffled = {
        "input_mode": "Pipe",
        "compression": "Gzip",
        "shuffle_config": {"seed": 11},
        "distribution": "ShardedByS3Key",
    }
    handle = stage.start(
        READ_PIPES,
        instance_groups=groups(dnn=2),
        inputs={
            "s3": {"s3_data": s3.uri("d/"), **shuffled},
            "local": {"s3_data": str(local), **shuffled},
            "augmented": {
                "s3_data": s3.uri("m"),
                "s3_data_type": "AugmentedManifestFile",
                "attribute_names": ["source-ref", "label"],
                "record_wrapping": "RecordIO",
                "input_mode": "Pipe",
            },
        },
    )
    completed(stage, handle)
    hosts = list(found(handle).values())
    for source in ("s3", "local"):
        epochs = [[bytes.fromhex(data).decode() for data in host[source]] for host in hosts]
        wholes = ["".join(shares) for shares in zip(*epochs, strict=True)]
        assert [sorted(whole) for whole in wholes] == [list("abcdef")] * 3
        assert len(set(wholes)) == 3
    config = json.loads((handle.paths.host("algo-1") / "input/config/inputdataconfig.json").read_text())
    assert config["augmented"]["TrainingInputMode"] == "Pipe"
    assert config["augmented"]["RecordWrapperType"] == "RecordIO"
    one = b"\x0a\x23\xd7\xce\x03\0\0\0one\0" + b'\x0a\x23\xd7\xce\x07\0\0\0{"x":1}\0'
    for host in hosts:
        assert [bytes.fromhex(data) for data in host["augmented"]] == [one] * 3


@pytest.mark.promise("engines", "channels, on local")
@needs_fuse
@pytest.mark.namespaces
@pytest.mark.promise("sagemaker-differences", "absent here: `File` and `FullyReplicated` only")
def test_every_mode_is_seen_from_an_isolated_instance(stage, s3) -> None:
    data = put_train(s3)
    inputs = {
        "file": s3.uri("train/"),
        "fast": {"s3_data": s3.uri("train/"), "input_mode": "FastFile"},
        "train": {"s3_data": s3.uri("train/"), "input_mode": "Pipe"},
    }
    script = LIST + 'print("PIPE", open("/opt/ml/input/data/train_0").read())'
    handle = stage.start(script, inputs=inputs, local={"isolation": "namespace"})
    completed(stage, handle)
    assert found(handle)["algo-1"] == {"file": data, "fast": data, "train": None}
    assert "PIPE ABC" in text(handle)


# What is wrong before the start


def refused(stage, channel, **fields) -> EngineRefused:
    before = time.monotonic()
    with pytest.raises(EngineRefused) as error:
        engines.start(stage.job("pass", inputs={"train": channel}, **fields))
    assert time.monotonic() - before < allowed(30)
    assert list_runs() == []
    assert error.value.message.startswith("channel 'train': ")
    assert error.value.hint
    return error.value


@pytest.mark.parametrize(
    ("uri", "kind", "words"),
    [
        ("s3://{}/nothing/", "S3Prefix", "no object whose key begins so"),
        ("s3://no-such-bucket-here/x", "S3Prefix", "no such bucket"),
        ("s3://{}/m.json", "ManifestFile", "m.json"),
    ],
)
def test_what_is_not_there_is_refused(stage, s3, uri, kind, words) -> None:
    put_train(s3)
    assert words in refused(stage, {"s3_data": uri.format(s3.bucket), "s3_data_type": kind}).message


def test_a_prefix_that_holds_only_an_index_of_the_feed_has_no_data(stage, s3) -> None:
    s3.put("train/.headrace-index/tar.index", b"x")
    assert "no object whose key begins so" in refused(stage, s3.uri("train/")).message


def test_missing_credentials_are_refused(stage, s3, monkeypatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = refused(stage, s3.uri("train/"))
    assert "credentials" in error.message
    assert "AWS_ACCESS_KEY_ID" in error.hint


def test_an_endpoint_that_does_not_answer_is_refused_soon(stage, s3, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and says nothing
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "AWS_ENDPOINT_URL" in refused(stage, s3.uri("train/")).hint


def test_without_the_extra_it_is_said_how_to_get_it(stage, s3, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert refused(stage, s3.uri("train/")).hint == install_hint("s3")


def test_a_fastfile_channel_where_nothing_can_be_mounted_is_refused_by_plan_and_start(stage, s3, monkeypatch) -> None:
    put_train(s3)
    monkeypatch.setattr(mounts, "DEVICE", "/nonexistent")
    monkeypatch.setattr(mounts.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(mounts, "LIBRARIES", (None,))  # this process itself can always be loaded
    job = stage.job("pass", inputs={"train": {"s3_data": s3.uri("train/"), "input_mode": "FastFile"}})
    for ask in (engines.plan, engines.check, engines.start):
        with pytest.raises(
            EngineRefused, match="FUSE mount, which is not possible here: there is no /nonexistent"
        ) as e:
            ask(job)
        assert "input_mode: File" in e.value.hint
    assert list_runs() == []


def test_a_local_file_that_is_no_manifest_fails_the_run_before_its_programs(stage) -> None:
    (stage.folder / "m.json").write_text("{}")
    channel = {"s3_data": str(stage.folder / "m.json"), "s3_data_type": "ManifestFile"}
    handle = engines.start(stage.job("print('ran')", inputs={"train": channel}))
    stage.handles.append(handle)
    assert handle.wait(30) is Status.FAILED
    assert "must be a list that begins" in str(handle.cause)
    assert "ran" not in text(handle)
    assert_nothing_left(stage, handle)


@pytest.mark.parametrize(
    ("make", "what"),
    [(lambda path: path.symlink_to("nothing"), "a link to a file that is not there"), (os.mkfifo, "no ordinary file")],
)
@pytest.mark.parametrize(
    "fields",
    [
        {"input_mode": "Pipe"},
        {"input_mode": "FastFile", "distribution": "ShardedByS3Key"},
        {"distribution": "ShardedByS3Key"},
    ],
)
def test_a_name_without_data_is_refused_and_never_passed_over(stage, fields, make, what) -> None:
    data = stage.folder / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a").write_text("A")
    make(data / "sub" / "b")
    error = refused(stage, {"s3_data": str(data), **fields})
    assert f"{data}/sub/b is {what}" in str(error)
    assert error.hint == "put the file there, or take this name away: it is never passed over"


def test_the_index_of_the_feed_is_no_file_of_a_channel(stage) -> None:
    data = stage.folder / "data"
    (data / ".headrace-index").mkdir(parents=True)
    for name in (".headrace-index/tar.index", "a", "b"):
        (data / name).write_text(name)
    sharded = {"s3_data": str(data), "distribution": "ShardedByS3Key"}
    handle = stage.start(
        LIST,
        instance_groups=groups(dnn=2),
        inputs={"file": sharded, "fast": {**sharded, "input_mode": "FastFile"}},
    )
    completed(stage, handle)
    assert found(handle) == {
        "algo-1": {"file": {"a": "a"}, "fast": {"a": "a"}},
        "algo-2": {"file": {"b": "b"}, "fast": {"b": "b"}},
    }
    handle = stage.start(READ_PIPES, inputs={"piped": {"s3_data": str(data), "input_mode": "Pipe"}})
    completed(stage, handle)
    assert found(handle) == {"algo-1": {"piped": [b"ab".hex()] * 3}}


def test_a_folder_that_is_not_there_is_refused(stage) -> None:
    with pytest.raises(JobInvalid, match="does not exist"):
        engines.start(stage.job("pass", inputs={"train": str(stage.folder / "nowhere")}))


# Faults


class Proxy:
    """Stands before the S3 server and passes on what comes.

    Attributes:
        hold: answers stand still when so many bytes have passed, until `open` is set; `held` says that one does.
        cut_held: those that stood still are cut off then.
        cut_all: bytes after which every answer is cut off.
    """

    def __init__(self, endpoint: str) -> None:
        self._target = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.open = threading.Event()
        self.held = threading.Event()
        self.hold = self.cut_all = 1 << 40
        self.cut_held = False
        self._passed = 0
        self._sockets: list[socket.socket] = [self._server]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.open.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            for work in ((client, server, False), (server, client, True)):
                self._threads.append(threading.Thread(target=self._pass_on, args=work))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        seen = 0
        try:
            while data := source.recv(1 << 16):
                seen += len(data)
                self._passed += len(data) if answers else 0
                stood = answers and self._passed > self.hold and not self.open.is_set()
                if stood:
                    self.held.set()
                    self.open.wait(60)
                if answers and (seen > self.cut_all or (stood and self.cut_held)):
                    for end in (source, target):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)
        except OSError:
            pass


@pytest.fixture
def proxy(s3, monkeypatch):
    proxy = Proxy(s3.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()


def downloading(stage, s3, proxy, **channel):
    """A run that stands in the middle of its download."""
    for number in range(4):
        s3.put(f"train/{number}", os.urandom(2_000_000))
    proxy.hold = 500_000
    handle = stage.start("print('ran')", inputs={"train": {"s3_data": s3.uri("train/"), **channel}})
    assert proxy.held.wait(30)
    return handle


@pytest.mark.promise("channels", "a channel never appears half, and a changed object is named")
def test_nothing_is_visible_while_it_is_downloaded_and_a_stop_stops_it(stage, s3, proxy) -> None:
    handle = downloading(stage, s3, proxy)
    assert not (handle.paths.host("algo-1") / "input/data/train").exists()
    began = time.monotonic()
    handle.stop()
    proxy.open.set()
    assert handle.wait(20) is Status.STOPPED
    assert time.monotonic() - began < allowed(10)
    assert "ran" not in text(handle)
    assert_nothing_left(stage, handle)


@pytest.mark.promise("channels", "a channel never appears half, and a changed object is named")
@pytest.mark.parametrize("fault", ["changed", *(["vanished"] if SOAK else [])])
def test_an_object_that_changes_or_vanishes_during_the_download_fails_the_run(stage, s3, proxy, fault) -> None:
    handle = downloading(stage, s3, proxy)
    began = time.monotonic()
    for number in range(4):
        if fault == "changed":
            s3.put(f"train/{number}", os.urandom(2_000_000))
        else:
            s3.client.delete_object(Bucket=s3.bucket, Key=f"train/{number}")
    proxy.cut_held = True  # what was being read must be asked for again
    proxy.open.set()
    assert_failed(handle, began)
    assert "filling the channels failed: channel 'train': s3://" in str(handle.cause)
    assert ("changed while it was read" if fault == "changed" else "no such object") in str(handle.cause)
    assert "ran" not in text(handle)
    assert_nothing_left(stage, handle)


def test_an_interrupted_stage_goes_on_where_it_was(tmp_path, s3) -> None:
    names = [f"{number:02}" for number in range(16)]
    for name in names:
        s3.put(f"train/{name}", os.urandom(300_000))
    run = tmp_path / "run"
    host = run / "hosts/algo-1"
    (host / "input/data").mkdir(parents=True)
    order = StageOrder(
        "run", str(run / "channels"), {"algo-1": str(host)}, (ChannelOrder("train", s3.uri("train/"), ("algo-1",)),)
    )
    write_orders(order, run)
    incoming = order.area("train") / "incoming/0"
    proxy = Proxy(s3.endpoint)
    try:
        proxy.hold = 2_000_000
        command = [sys.executable, "-m", "headrace.hosting.helpers.stage", str(run)]
        with subprocess.Popen(command, env={**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}) as first:
            try:
                assert proxy.held.wait(20)
                until(lambda: len(list(incoming.glob("[0-9]*"))) >= 2, 20)
            finally:
                first.kill()
    finally:
        proxy.close()
    kept = {path.name: path.stat().st_ino for path in incoming.glob("[0-9]*")}
    assert 2 <= len(kept) < 16
    assert not (host / "input/data/train").exists()
    subprocess.run(command, check=True, timeout=60)
    data = host / "input/data/train"
    assert sorted(path.name for path in data.iterdir()) == names
    assert {name: (data / name).stat().st_ino for name in kept} == kept
    assert (data / "15").read_bytes() == s3.get("train/15")


@needs_fuse
@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        ("FastFile", "changed"),
        *([("FastFile", "vanished"), ("Pipe", "changed"), ("Pipe", "vanished")] if SOAK else []),
    ],
)
def test_an_object_that_goes_bad_while_it_is_served_fails_the_run(stage, s3, mode, fault) -> None:
    put_train(s3)
    script = """
    import os, time
    base = os.environ["SAGEMAKER_BASE_DIR"] + "/input/data"
    print("running", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    name = base + "/train_0" if os.path.exists(base + "/train_0") else base + "/train/b.txt"
    try:
        print("read", open(name, "rb").read(), flush=True)
    except OSError:
        time.sleep(60)
    """
    handle = stage.start(script, inputs={"train": {"s3_data": s3.uri("train/"), "input_mode": mode}})
    until(said(handle, "running"))
    if fault == "changed":
        s3.put("train/b.txt", b"other")
    else:
        s3.client.delete_object(Bucket=s3.bucket, Key="train/b.txt")
    began = time.monotonic()
    flag(handle, "go")
    assert_failed(handle, began)
    assert "serving the channels failed: channel 'train': s3://" in str(handle.cause)
    assert "train/b.txt" in str(handle.cause)
    assert_nothing_left(stage, handle)


RUNNING = "import time; print('running', flush=True); time.sleep(600)"


def serving(stage, s3):
    put_train(s3)
    handle = stage.start(
        RUNNING,
        inputs={
            "fast": {"s3_data": s3.uri("train/"), "input_mode": "FastFile"},
            "pipe": {"s3_data": s3.uri("train/"), "input_mode": "Pipe"},
        },
    )
    until(said(handle, "running"))
    assert len(mount_points(handle)) == 1
    return handle


@needs_fuse
def test_the_death_of_the_supervisor_leaves_no_mount(stage, s3) -> None:
    handle = serving(stage, s3)
    began = time.monotonic()
    kill(handle.run.header.supervisor_pid)
    assert_failed(handle, began)
    assert_nothing_left(stage, handle)


@pytest.mark.promise("isolation", "what must stay when all are killed at once is removed by the next start")
@needs_fuse
def test_when_everything_is_killed_the_mount_goes_too_and_the_next_start_removes_the_rest(stage, s3) -> None:
    put_train(s3)
    code = stage.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(RUNNING)
    script = f"""
from headrace import engines
from headrace.job import Job
fields = {{"source_dir": {str(code)!r}, "entry_point": "train.py"}}
fields |= {{"instance_type": "ml.c5.xlarge", "instance_count": 1}}
local = {{"local": {{"address_prefix": {stage.prefix!r}}}}}
inputs = {{"file": {s3.uri("train/")!r}, "fast": {{"s3_data": {s3.uri("train/")!r}, "input_mode": "FastFile"}}}}
engines.start(Job("doomed", inputs=inputs, engines=local, **fields)).wait()
"""
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: len(list_runs()) == 1, 60)
        [run] = list_runs()
        folder = (run.paths.root / "channels").resolve()
        until(lambda: "running" in "".join(line.text for line in run.logs()), 30)
        [point] = mounts.mounted_below(folder)
        assert (point / "fast/0/a.txt").read_text() == "A"
    finally:
        # All at once, the process that would unmount included.
        mark = f"HEADRACE_RUN_ID={list_runs()[0].id}".encode()
        doomed = [caller.pid, *(process.pid for process in scan() if marked(process.pid, mark))]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):  # the kernel was first: its parent is dead
                    os.kill(pid, number)
        caller.wait()
    until(lambda: not any(marked(pid, mark) for pid in doomed[1:]), 10)
    assert (folder / "data/file").exists()  # nobody could remove it
    assert stage.start("pass").wait(30) is Status.COMPLETED
    assert mounts.mounted_below(folder) == []
    assert not folder.exists()
    remove_scratch(run.id)


def marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


# The data service over shards


def test_a_store_that_takes_the_question_and_does_not_answer_ends_the_check_of_a_channel_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_channels, "CHECK_SECONDS", 0.1)
    for name, value in [("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("REGION", "us-east-1")]:
        monkeypatch.setenv(f"AWS_{name}", value)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(EngineRefused, match=r"channel 'train'.* 2 times") as refused:
            plan_channels.check_channels([ChannelOrder("train", "s3://bucket/rows", ("algo-1",))])
    assert refused.value.hint
