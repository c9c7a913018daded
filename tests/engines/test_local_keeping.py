"""Real jobs whose model, output, checkpoints and packages are where the job wants them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from effort import SOAK
from stage import Stage, said, text

from headrace import engines
from headrace.engines.local.engine import plan
from headrace.errors import EngineRefused
from headrace.runs import Status
from headrace.runs.events import CheckpointsRestored
from needs import require
from objectstore import ObjectStore
from patience import until

SAVING = """
    import os, pathlib, sys, time
    base = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    host = os.environ["SM_CURRENT_HOST"]
    step = base / "checkpoints" / f"{host}.step"
    print("found", step.read_text() if step.exists() else "nothing", flush=True)
    step.write_text(str(int(step.read_text()) + 1 if step.exists() else 1))
    (base / "model" / f"{host}.pt").write_text("weights of " + host)
    (base / "model" / "config.json").write_text("{}")
    (base / "model" / "clash").write_text(host)
    (base / "output" / "data" / "scores").write_text("1")
    (base / "output" / "intermediate" / f"{host}.png").write_text("picture")
"""


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as file:
        return sorted(file.getnames())


def test_what_two_hosts_made_is_in_the_runs_folder(stage: Stage) -> None:
    handle = stage.start(SAVING, instance_count=2)
    assert handle.wait(60) is Status.COMPLETED
    output = handle.paths.output
    assert names(output / "model.tar.gz") == ["algo-1.pt", "algo-2.pt", "clash", "config.json"]
    assert names(output / "output.tar.gz") == ["scores"]
    assert sorted(path.name for path in (output / "intermediate").iterdir()) == ["algo-1.png", "algo-2.png"]
    model = {each.name: each for each in handle.run.artefacts}["model"]
    assert [(clash.path, clash.kept, clash.dropped) for clash in model.clashes] == [("clash", "algo-1", ("algo-2",))]
    stage.assert_nothing_left(handle)


@pytest.mark.promise("sagemaker-differences", "absent here: no checkpoints")
def test_a_job_in_s3_and_the_next_one_finds_its_checkpoints(stage: Stage, s3: ObjectStore) -> None:
    for attempt in (1, 2):
        handle = stage.start(
            SAVING, name=f"job-{attempt}", instance_count=2, output_path=s3.uri("out"), checkpoint_s3_uri=s3.uri("kept")
        )
        assert handle.wait(90) is Status.COMPLETED, handle.cause
        assert s3.get("kept/algo-2.step") == str(attempt).encode()
        assert said(handle, "found nothing" if attempt == 1 else "found 1")()
        config = json.loads((handle.paths.host("algo-2") / "input/config/checkpointconfig.json").read_text())
        assert config["LocalPath"].endswith("/checkpoints")
        stage.assert_nothing_left(handle)
    restored = [event for event in handle.run.events() if isinstance(event, CheckpointsRestored)]
    assert [event.files for event in restored] == [2]
    assert s3.listed() == ["kept/algo-1.step", "kept/algo-2.step"] + [
        f"out/job-{attempt}/output/{name}"
        for attempt in (1, 2)
        for name in ("intermediate/algo-1.png", "intermediate/algo-2.png", "model.tar.gz", "output.tar.gz")
    ]


def test_what_a_stopped_job_has_saved_is_kept(stage: Stage, tmp_path: Path) -> None:
    script = SAVING + '    print("saved", flush=True)\n    time.sleep(600)\n'
    handle = stage.start(script, checkpoint_s3_uri=str(tmp_path / "kept"), output_path=str(tmp_path / "out"))
    until(said(handle, "saved"), 60)
    until((tmp_path / "kept/algo-1.step").exists, 30, "the checkpoint, while the job runs")
    handle.stop()
    assert handle.wait(60) is Status.STOPPED
    assert names(tmp_path / "out/job/output/model.tar.gz") == ["algo-1.pt", "clash", "config.json"]
    stage.assert_nothing_left(handle)


@pytest.mark.promise("artefacts", "a model is stored whole or not at all, and a job without it has failed")
def test_a_job_whose_model_cannot_be_stored_is_failed(stage: Stage, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = SAVING + f'    pathlib.Path({str(out)!r}).write_text("in the way")\n'
    handle = stage.start(script, output_path=str(out), local={"isolation": "none"})
    assert handle.wait(60) is Status.FAILED
    assert "ClientError: " in handle.cause.reason
    assert "upload failed" in handle.cause.reason
    stage.assert_nothing_left(handle)


@pytest.mark.parametrize("stage", [pytest.param("namespace", marks=pytest.mark.namespaces)], indirect=True)
@pytest.mark.parametrize(
    "folder", ["/srv/deep/kept", *(["/tmp/deep/kept", "/opt/ml/kept", "/opt/kept", "/elsewhere/kept"] if SOAK else [])]
)
def test_an_isolated_host_has_its_checkpoints_where_the_job_wants_them(
    stage: Stage, tmp_path: Path, folder: str
) -> None:
    script = f"""
        import json, os, pathlib
        config = json.loads(pathlib.Path("/opt/ml/input/config/checkpointconfig.json").read_text())
        assert config == {{"LocalPath": {folder!r}}}, config
        pathlib.Path({folder!r}, os.environ["SM_CURRENT_HOST"]).write_text("saved")
        print("ROOT", json.dumps(sorted(os.listdir("/"))))
        assert "algo-2" in open("/etc/hosts").read()
        assert os.listdir("/dev/shm") == []
        assert len([name for name in os.listdir("/proc") if name.isdigit()]) < 10
    """
    kept = str(tmp_path / "kept")
    handle = stage.start(script, instance_count=2, checkpoint_local_path=folder, checkpoint_s3_uri=kept)
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    where = "kept" if folder == "/opt/ml/kept" else "checkpoints"
    for host in ("algo-1", "algo-2"):
        assert (handle.paths.host(host) / where / host).read_text() == "saved"
    assert folder == "/opt/ml/kept" or not Path(folder).exists()
    top = {path.name for path in Path("/").iterdir()} | {Path(folder).parts[1]}
    roots = [line.text.removeprefix("ROOT ") for line in handle.run.logs() if line.text.startswith("ROOT ")]
    assert roots == [json.dumps(sorted(top))] * 2, "all of the machine's root directory is there, and the folder"
    stage.assert_nothing_left(handle)


@pytest.mark.parametrize("isolation", ["none", pytest.param("namespace", marks=pytest.mark.namespaces)])
def test_plan_refuses_a_folder_for_checkpoints_that_hosts_cannot_have(stage: Stage, isolation: str) -> None:
    if isolation == "namespace":
        require("namespaces")
    local = {"isolation": isolation}
    for folder in ("/", "/opt/ml", "/opt/ml/input/data", "/proc/kept", "/dev/shm/kept"):
        with pytest.raises(EngineRefused, match="used for something else in an instance"):
            plan(stage.job("pass", checkpoint_local_path=folder, local=local))
    wanted = stage.job("pass", checkpoint_local_path="/elsewhere/kept", local=local)
    if isolation == "none":
        with pytest.raises(EngineRefused, match="hosts share one file system, and cannot each have /elsewhere/kept"):
            plan(wanted)
    else:
        assert plan(wanted).plan.isolation.level == "namespace"


def test_requirements_that_cannot_be_installed_fail_the_job_before_any_program(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/requirements.txt").write_text("no-such-package-at-all\n")
    handle = stage.start("print('never')")
    assert handle.wait(120) is Status.FAILED
    assert "InstallRequirementsError: requirements.txt: pip ended with code 1" in handle.cause.reason
    assert any("no-such-package-at-all" in line for line in handle.cause.last_lines)
    assert text(handle) == ""
    stage.assert_nothing_left(handle)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"output_path": f"{__file__}/out"}, "is no folder"),
        ({"checkpoint_s3_uri": "s3://no-such-bucket-at-all/x"}, "no such bucket"),
        ({"checkpoint_local_path": "/opt/ml/model"}, "something else"),
        ({"checkpoint_local_path": "/elsewhere", "local": {"isolation": "none"}}, "without isolation"),
    ],
)
def test_places_that_cannot_be_are_refused_before_anything_is_started(
    stage: Stage, tmp_path: Path, s3: ObjectStore, fields: dict[str, object], words: str
) -> None:
    with pytest.raises(EngineRefused, match=words) as caught:
        engines.start(stage.job("pass", **fields))
    assert caught.value.hint
    assert not (tmp_path / "home/runs").exists()
