"""What an isolated host does to its channels stays with it: the user's data, other hosts and other runs see nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage import assert_failed, groups, kill, said, text, until

from headrace import engines
from headrace.engines.local.channel_area import remove_views
from headrace.engines.local.isolation import views
from headrace.engines.local.isolation.layout import View
from headrace.engines.local.isolation.probing import examine
from headrace.engines.local.scratch import remove_scratch
from headrace.instance.channels import linking
from headrace.processes.table import scan
from headrace.runs import RunPaths, Status, list_runs
from objectstore import s3, s3_endpoint

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


@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_what_hosts_do_to_their_channels_stays_with_each_of_them(stage, s3) -> None:
    if why := examine().overlay:
        pytest.skip(f"no overlays here: {why}")
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
