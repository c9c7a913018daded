"""Large code is on the disk once a run: hosts share its snapshot, and each has only what it changes for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from stage import groups, text

from headrace.runs import Status
from headrace.runs.disk_use import files_of
from headrace.runs.events import FilesLeft
from needs import require

LARGE = 3_000_000

# Every host does to the code what programs do to files; when all have done so, each says what it sees.
WRITER = """
import json, os, pathlib, shutil, socket, sys, time
me, base, code = os.environ["SM_CURRENT_HOST"], pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"]), pathlib.Path()
first = not (base / "checkpoints" / "first").exists()
(base / "checkpoints" / "first").touch()
def sees():
    return {str(path): path.read_text() for path in sorted(code.rglob("*")) if path.is_file() and path.name != "large"}
print("FOUND", json.dumps(sees()), flush=True)
with open("data/appended", "a") as file:
    file.write(me)
with open("data/changed", "r+") as file:
    file.write(me)
os.chmod("data/mode", 0o600)
os.chmod("closed", 0o600)
(code / "closed").write_text(me)
(code / "closed").chmod(0)
os.unlink("data/removed")
os.rename("data/old", "data/new")
os.link("data/linked", "data/hard")
(code / "data" / "hard").write_text(me)
(code / "link").write_text(me)
shutil.move("moved", "elsewhere")
shutil.rmtree("folder")
os.mkdir("folder")
(code / "folder" / "fresh").write_text(me)
os.mkdir("outp")
(code / "outp" / "result").write_text(me)
(code / "outp" / "sent").symlink_to("../data/same")
(base / "model" / f"of-{me}").symlink_to("/opt/ml/code/data/same")
peers = [host for host in json.loads(os.environ["SM_HOSTS"]) if host != me]
listener = socket.create_server(("0.0.0.0", 6000))
for peer in peers:  # nobody looks before all have written
    while True:
        try:
            socket.create_connection((peer, 6000), timeout=10).close()
            break
        except OSError:
            time.sleep(0.02)
for peer in peers:
    listener.accept()
print("SEEN", json.dumps([sees(), oct(os.stat("closed").st_mode), os.stat("data/linked").st_nlink]), flush=True)
sys.exit(first)
"""
SENT = {
    **{f"data/{name}": f"{name} as it was sent" for name in ("appended", "changed", "mode", "removed", "old")},
    **{f"data/{name}": f"{name} as it was sent" for name in ("linked", "same", "target")},
    **{"folder/inner/deep": "deep", "folder/top": "top", "moved/inner": "inner", "closed": "nobody may read it"},
}


def seen_by(host: str) -> dict[str, str]:
    sent = {name: value for name, value in SENT.items() if name.split("/")[0] == "data"}
    for name in ("removed", "old", "linked", "target"):
        del sent[f"data/{name}"]
    return {
        **sent,
        "data/appended": SENT["data/appended"] + host,
        "data/changed": host + SENT["data/changed"][len(host) :],
        "data/new": SENT["data/old"],
        **dict.fromkeys(("data/linked", "data/hard", "data/target", "link", "closed"), host),
        **{"elsewhere/inner": "inner", "folder/fresh": host, "outp/result": host, "outp/sent": SENT["data/same"]},
    }


@pytest.mark.promise("isolation", "large code is on a machine's disk once a run; a host's changes to it stay with it")
@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_three_hosts_take_the_disk_of_one_copy_and_each_kind_of_write_stays_with_its_host(stage) -> None:
    require("overlays")
    code = stage.folder / "code"
    for name, value in SENT.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(value)
    (code / "large").write_bytes(os.urandom(LARGE))
    (code / "link").symlink_to("data/target")
    (code / "closed").chmod(0 if os.geteuid() == 0 else 0o400)
    handle = stage.start(
        WRITER,
        instance_groups=groups(dnn=3),
        retry={"attempts": 1, "on": "any"},
        output_path=str(stage.folder / "out"),
        keep=["data", "outp"],
    )
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    assert not (handle.paths.root / "channels").exists()
    hosts = ("algo-1", "algo-2", "algo-3")
    sent = {**SENT, "link": SENT["data/target"], "train.py": WRITER}
    for host in hosts:
        found, seen, *again = (
            json.loads(line.split(" ", 1)[1]) for line in text(handle, f"dnn/{host}[0]").splitlines()
        )
        assert again == [found, seen], "another attempt begins with the code as it was sent"
        assert found == dict(sorted(sent.items()))
        assert seen == [dict(sorted({**seen_by(host), "train.py": WRITER}.items())), "0o100000", 2]
    assert {name: (handle.paths.code / name).read_text() for name in SENT} == SENT
    blocks = sum(path.lstat().st_blocks for path in handle.paths.root.rglob("*") if path.is_file()) * 512
    assert blocks < 1.4 * LARGE, "a copy for each host takes 4 times as much"

    written = [file for file in files_of(handle.paths) if file.name.startswith("code/")]
    expected = {"closed", "data/appended", "data/changed", "data/hard", "data/linked", "data/new", "data/target",
                "elsewhere/inner", "folder/fresh", "outp/result", "outp/sent"}  # fmt: skip
    for host in hosts:
        assert {file.name[5:] for file in written if file.host == host} == expected
    command = [
        sys.executable,
        "-m",
        "headrace",
        "files",
        handle.id,
        "*/outp/result",
        "--to",
        str(stage.folder / "copied"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    copied = stage.folder / "copied"
    assert {path.relative_to(copied).as_posix(): path.read_text() for path in copied.rglob("*") if path.is_file()} == {
        f"{host}/code/outp/result": host for host in hosts
    }
    left = [event for event in handle.run.events() if isinstance(event, FilesLeft) and not event.gone]
    assert {event.host for event in left} == set(hosts)
    assert {Path(folder.path).name for event in left for folder in event.folders} == {"code", "elsewhere", "folder"}

    [archive] = (stage.folder / "out").rglob("output.tar.gz")
    with tarfile.open(archive) as packed:
        kept = {member.name: packed.extractfile(member).read().decode() for member in packed if member.isfile()}
    for host in hosts:
        data = {name: value for name, value in seen_by(host).items() if name.startswith(("data/", "outp/"))}
        assert {name.removeprefix(f"{host}/"): value for name, value in kept.items() if name.startswith(host)} == data
    [archive] = (stage.folder / "out").rglob("model.tar.gz")
    with tarfile.open(archive) as packed:
        assert {member.name for member in packed if member.isfile()} == {f"of-{host}" for host in hosts}
