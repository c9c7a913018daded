"""What an isolated host does to its channels stays with it: the user's data, other hosts and other runs see nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from stage import assert_failed, groups, kill, said, text

from headrace.engines.local import isolation_plan
from headrace.hosting.isolation.probing import examine
from headrace.instance.channels import channel_links
from headrace.runs import Status
from needs import require
from objectstore import s3, s3_endpoint
from patience import until

__all__ = ["s3", "s3_endpoint"]

FILES = {"victim": "keep me", "changed": "as it was", "sub/inner": "inner"}

# Every host removes, changes in place and adds, in every channel; then all say what they see, when all have done so.
VANDAL = """
import json, os, pathlib, socket, sys, time
me = os.environ["SM_CURRENT_HOST"]
said = {}
for name in json.load(open("/opt/ml/input/config/inputdataconfig.json")):
    folder = pathlib.Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
    try:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        for path in names:
            with open(folder / path, "r+") as file:
                file.write(me)
        os.remove(folder / names[0])
        (folder / f"new-{me}").write_text(me)
        (folder / "fresh").mkdir()
        (folder / "fresh" / "cache").write_text(me)
    except OSError as error:
        said[name] = [os.strerror(error.errno), names]
        continue
    said[name] = ["", names]
me, *peers = [me, *(host for host in json.loads(os.environ["SM_HOSTS"]) if host != me)]
listener = socket.create_server(("0.0.0.0", 6000))
for peer in peers:  # nobody looks before all have written
    while True:
        try:
            socket.create_connection((peer, 6000), timeout=10).close()
            break
        except OSError:
            time.sleep(0.02)
    listener.accept()
for name, words in said.items():
    folder = pathlib.Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
    words.append({str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()})
print("SAID", json.dumps(said), flush=True)
"""
READ_ONLY = "Read-only file system"


def make(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def told(handle, host: str) -> dict[str, list]:
    [line] = [each.text for each in handle.run.logs() if each.text.startswith("SAID ") and each.stream.host == host]
    return json.loads(line[5:])


def changed(host: str, names: list[str]) -> dict[str, str]:
    """What a host sees that has written to files of these names, as VANDAL does."""
    kept = {name: host + FILES[name][len(host) :] for name in names[1:]}
    return {**kept, f"new-{host}": host, "fresh/cache": host}


@pytest.mark.promise("channels", "what a host does to its channels stays with it")
@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_what_hosts_do_to_their_channels_stays_with_each_of_them(stage, s3) -> None:
    require("overlays")
    data = make(stage.folder / "data, with: all")  # what an option of mount(2) would be cut at
    listed = stage.folder / "list.json"
    listed.write_text(json.dumps([{"prefix": f"{data}/"}, "victim", "sub/inner"]))
    for name, value in FILES.items():
        s3.put(f"train/{name}", value.encode())
    inputs = {
        "plain": str(data),
        "dealt": {"s3_data": str(data), "distribution": "ShardedByS3Key"},
        "named": {"s3_data": str(listed), "s3_data_type": "ManifestFile"},
        "lazy": {"s3_data": str(data), "input_mode": "FastFile"},
        "lazydealt": {"s3_data": str(data), "input_mode": "FastFile", "distribution": "ShardedByS3Key"},
        "object": s3.uri("train/"),
        "objects": {"s3_data": s3.uri("train/"), "distribution": "ShardedByS3Key"},
    }
    handle = stage.start(VANDAL, instance_groups=groups(dnn=2), inputs=inputs)
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    assert not (handle.paths.root / "channels").exists()
    assert content(data) == FILES
    names = sorted(FILES)
    shares = {"algo-1": names[0::2], "algo-2": names[1::2]}
    for host, share in shares.items():
        seen = told(handle, host)
        assert seen["plain"] == ["", names, changed(host, names)]
        assert seen["object"] == ["", names, changed(host, names)]
        assert seen["named"] == ["", ["sub/inner", "victim"], changed(host, ["sub/inner", "victim"])]
        assert seen["dealt"] == ["", share, changed(host, share)]
        assert seen["objects"] == ["", share, changed(host, share)]
        assert seen["lazy"] == [READ_ONLY, names, FILES]
        assert seen["lazydealt"] == [READ_ONLY, share, {name: FILES[name] for name in share}]


# Removes a file of its channel and says what it saw; links that lead out of the folder lead where they lead outside.
ONCE = """
import os, pathlib, sys
folder = pathlib.Path("/opt/ml/input/data/plain")
print("SAW", sorted(path.name for path in folder.iterdir()), (folder / "out").read_text(), flush=True)
(folder / "in").write_text("through a link")
(folder / "victim").unlink()
(folder / "left").write_text("by an attempt")
counted = pathlib.Path("/opt/ml/checkpoints/counted")
if not counted.exists():
    counted.touch()
    sys.exit(1)
"""


def linked(folder: Path) -> Path:
    """A folder as caches and annexes make them: of links, some of them relative, out of it."""
    data = make(folder / "data")
    (folder / "blob").write_text("a blob")
    (data / "out").symlink_to("../blob")
    (data / "in").symlink_to(data / "changed")
    return data


@pytest.mark.promise("runs", "`retry` starts again what infrastructure failed, never what was stopped")
@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_another_attempt_finds_its_channels_as_they_were_and_links_lead_where_they_lead(stage) -> None:
    require("overlays")
    data = linked(stage.folder)
    shown = {"BLOBS": str(stage.folder)}  # tests lie below /tmp, of which an instance sees what is named
    handle = stage.start(ONCE, inputs={"plain": str(data)}, environment=shown, retry={"attempts": 1, "on": "any"})
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    saw = "SAW ['changed', 'in', 'out', 'sub', 'victim'] a blob"
    assert [line.text for line in handle.run.logs() if line.text.startswith("SAW")] == [saw, saw]
    assert {name: (data / name).read_text() for name in FILES} == FILES
    assert not (data / "left").exists()


@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_where_no_overlay_can_be_had_a_write_is_refused(stage, monkeypatch) -> None:
    """Because the machine allows none, or because the run lies in the data."""
    data = make(stage.folder / "data")
    inputs = {"dealt": {"s3_data": str(data), "distribution": "ShardedByS3Key"}, "all": str(stage.folder)}
    first = stage.start(VANDAL, inputs={"all": inputs["all"]})
    assert first.wait(60) is Status.COMPLETED, text(first)
    assert "is shown read-only: the run's own folder lies in it" in (first.paths.engine / "algo-1.log").read_text()
    monkeypatch.setattr(isolation_plan, "examine", lambda: msgspec.structs.replace(examine(), overlay="not here"))
    inputs["all"] = str(data)
    second = stage.start(VANDAL, inputs=inputs)
    assert second.wait(60) is Status.COMPLETED, text(second)
    assert told(first, "algo-1")["all"][0] == READ_ONLY
    for name in inputs:
        assert told(second, "algo-1")[name] == [READ_ONLY, sorted(FILES), FILES]
    assert content(data) == FILES
    stage.assert_nothing_left(second)


@pytest.mark.namespaces
@pytest.mark.needs("root")  # the overlay in which the runs lie is root's to mount
def test_the_machine_is_asked_where_the_runs_lie(tmp_path) -> None:
    """Most containers have an overlay for root directory, which cannot hold what is written to another one."""
    script = f"""
import os, pathlib
from headrace.hosting.isolation import filesystem
from headrace.hosting.isolation import filesystem, syscalls
base = pathlib.Path({str(tmp_path)!r})
for name in ("below", "runs"):
    (base / name).mkdir()
syscalls.unshare(syscalls.CLONE_NEWNS)
filesystem.keep_mounts_inside()
own = base / "own"
filesystem.overlay([str(base / "below")], base / "runs", (own / "upper", own / "work"), user_namespace=False)
from headrace.hosting.isolation.probing import examine
print(examine().namespace, examine().overlay)
"""
    env = {**os.environ, "HEADRACE_HOME": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "mount overlay on" in done.stdout
    assert "$HEADRACE_HOME on a file system that can hold none" in done.stdout
    assert not list((tmp_path / "own" / "upper").iterdir()), "nothing is left of the trial"


@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_a_killed_supervisor_leaves_nothing_of_what_was_written(stage) -> None:
    data = make(stage.folder / "data")
    script = VANDAL + "time.sleep(600)"
    handle = stage.start(script, inputs={"plain": str(data)})
    until(said(handle, "SAID"))
    began = time.monotonic()
    kill(handle.run.header.supervisor_pid)
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    assert not (handle.paths.root / "channels").exists()
    assert content(data) == FILES


def marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


# Without a job


def test_only_links_that_would_lead_elsewhere_are_redirected(tmp_path) -> None:
    data = make(tmp_path / "data")
    for name, target in {
        "out": "../blob",
        "sub/out": "../../deep/blob",
        "in": str(data / "victim"),
        "sub/in": str(data / "victim"),
        "beside": "victim",
        "sub/up": "../victim",
        "far": "/usr/bin",
        "nowhere": "/no/such",
    }.items():
        (data / name).symlink_to(target)
    (data / "sub").chmod(0o750)
    expected = {
        "out": f"{data}/../blob",
        "sub/out": f"{data}/sub/../../deep/blob",
        "in": "victim",
        "sub/in": "../victim",
    }
    assert dict(channel_links.redirected(str(data))) == expected
    layer = tmp_path / "layer"
    assert channel_links.redirect(str(data), layer)
    assert {str(path.relative_to(layer)): str(path.readlink()) for path in layer.rglob("*") if path.is_symlink()} == (
        expected
    )
    assert (layer / "sub").stat().st_mode == (data / "sub").stat().st_mode, "the uppermost folder's mode is seen"
    assert not channel_links.redirect(str(make(tmp_path / "plain")), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_files_are_found_below_the_folder_that_holds_all_of_them(tmp_path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_text("one")
    data = make(tmp_path / "snapshots" / "data")
    (data / "linked").symlink_to("../../blobs/1")
    (tmp_path / "other").symlink_to(data)
    found = channel_links.places([f"{tmp_path}/other/victim", f"{data}/sub/inner"])
    assert found.root == str(data)
    assert found.below("/there", f"{tmp_path}/other/victim") == "/there/victim"
    found = channel_links.places([f"{data}/victim", f"{data}/linked"])
    assert found.root == str(tmp_path)
    assert found.below("/there", f"{data}/linked") == "/there/blobs/1"
    assert channel_links.places([]).root == ""
