"""What a container on SageMaker makes of what the service and headrace's channel have written."""

from __future__ import annotations

import os
import signal
import sys
import time
import zipfile
from pathlib import Path

import msgspec
import pytest
from sagemaker_jobs import planned

from headrace.engines.host_start import START_SCRIPT, after_start_script, install_from
from headrace.engines.planning.pack_files import zipped_wheels
from headrace.engines.platform_news import platform_news
from headrace.engines.sagemaker import submit_training_job
from headrace.engines.sagemaker.container_host import (
    linked_tree,
    placed_plan,
    printed_output,
    stop_orders,
    write_failure,
)
from headrace.engines.sagemaker.refresh_training_job import tell_part
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.ticket import read_ticket
from headrace.errors import UsageError
from headrace.instance.launch_plan import LaunchPlan, Ports
from headrace.instance.paths import TreePaths
from headrace.runs import Run, Status, create_run
from headrace.runs.events import SecondaryStatus, StatusChanged


def config(**groups: list[str]) -> dict[str, object]:
    """Returns resourceconfig.json as the service writes it: in no order."""
    hosts = sorted(host for names in groups.values() for host in names)  # algo-10 before algo-2
    found = [{"instance_group_name": name, "instance_type": "ml.x", "hosts": names} for name, names in groups.items()]
    return {"current_host": hosts[0], "hosts": hosts, "instance_groups": found}


def place(resources: dict[str, object], outer: Ports | None = None, **variables: str) -> LaunchPlan:
    return placed_plan(planned().plan, resources, "/opt/ml", "/tmp/r", variables, outer)


@pytest.mark.promise("engines", "instances, on sagemaker")
def test_hosts_are_those_that_the_service_has_assigned_in_the_order_of_their_numbers() -> None:
    plan = place(config(dnn_group=["algo-2"], data_group=["algo-10", "algo-1"]), TRAINING_JOB_NAME="digits-7")
    assert [(host.name, host.group, host.address) for host in plan.hosts] == [
        ("algo-1", "data_group", "algo-1"),
        ("algo-2", "dnn_group", "algo-2"),
        ("algo-10", "data_group", "algo-10"),
    ]
    assert plan.group("data_group").hosts == ("algo-1", "algo-10")
    assert plan.leader == "algo-2", "the first host of the first completion group"
    assert plan.job_name == "digits-7"
    assert plan.max_run == 0, "the service ends a job that runs for too long"


def test_on_spot_instances_sigterm_is_the_platforms_doing_and_else_a_stop() -> None:
    assert stop_orders(leads=True, spot=True) is None, "SIGTERM is the platform's doing"
    orders = stop_orders(leads=True, spot=False)
    assert orders is not None
    assert not orders[signal.SIGTERM](False).failed, "a stop"


def test_groups_that_are_not_the_jobs_are_refused() -> None:
    with pytest.raises(UsageError, match="other groups"):
        place(config(dnn_group=["algo-1"], data_group=["algo-2"]))


def test_ports_of_another_headrace_on_the_same_hosts_are_left_to_it() -> None:
    resources = config(dnn_group=["algo-2"], data_group=["algo-3", "algo-1"])
    ours, free = place(resources, Ports()).ports, Ports(control=1, feed=2, master=3, tf_data=4, tf_config=5)
    assert not {ours.control, ours.feed} & {Ports().control, Ports().feed}
    assert place(resources, free).ports == place(resources).ports == Ports()
    beside = place(resources, Ports(control=7081, feed=7080)).ports
    assert not set(msgspec.structs.astuple(beside)) & set(msgspec.structs.astuple(ours)), "two jobs at one address"


def test_the_start_script_of_the_image_does_its_duty_and_leaves_its_variables(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    script = image / START_SCRIPT
    script.write_text(f'echo "$1" > {image}/ran\nLD_LIBRARY_PATH=/cuda/compat train\n')
    script.chmod(0o755)
    before = {"PATH": f"{image}:{os.environ['PATH']}", "KEPT": "a b"}
    after = after_start_script(tmp_path, before)
    assert (image / "ran").read_text() == "train\n"
    assert after["LD_LIBRARY_PATH"] == "/cuda/compat"
    assert {name: after[name] for name in before} == before, "its own train is in no PATH afterwards"
    assert "HEADRACE_TOLD" not in after
    assert after_start_script(tmp_path, {"PATH": str(Path(sys.executable).parent)}) == {
        "PATH": str(Path(sys.executable).parent)
    }


def test_where_another_headrace_plays_the_instance_the_tree_is_one_of_links(tmp_path: Path) -> None:
    service = TreePaths(tmp_path / "service")
    for folder in (service.input_config, service.channel("training"), service.channel("headrace"), service.model):
        folder.mkdir(parents=True)
    (service.channel("training") / "x").write_text("data")
    tree = TreePaths(linked_tree(service, tmp_path / "ml"))
    (tree.model / "weights").write_text("w")
    assert (service.model / "weights").read_text() == "w"
    assert (tree.channel("training") / "x").read_text() == "data"
    assert not tree.channel("headrace").exists()


def test_the_words_of_the_user_stay_the_failure(tmp_path: Path) -> None:
    tree = TreePaths(tmp_path)
    write_failure(tree, "x" * 2000)
    assert tree.failure.read_text() == "x" * 1024
    write_failure(tree, "later")
    assert tree.failure.read_text() == "x" * 1024


@pytest.mark.promise("engines", "queue, on sagemaker")
def test_a_run_says_in_the_words_of_the_service_what_it_waits_for(tmp_path: Path) -> None:
    paths = create_run("digits", "sagemaker", tmp_path)
    message = "Preparing the instances for training"
    starting = {"SecondaryStatus": "Starting", "SecondaryStatusTransitions": [{"StatusMessage": message}]}
    training = {"SecondaryStatus": "Training", "SecondaryStatusTransitions": [{"StatusMessage": "runs"}]}
    for answer in ({"SecondaryStatus": "Pending"}, starting, starting, training):
        with platform_news(paths) as news:
            tell_part(news, answer, time.time(), over=False)
    told = [(event.status, event.message) for event in Run(paths).events() if isinstance(event, StatusChanged)]
    assert told == [(SecondaryStatus.PENDING, ""), (SecondaryStatus.STARTING, message)], "its record says the rest"


def test_what_the_images_python_lacks_is_installed_from_the_wheels_that_came_along(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "README").write_text("no wheel")
    with pytest.raises(UsageError, match="has no wheels"):
        zipped_wheels(folder)
    with zipfile.ZipFile(folder / "millwheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("millwheel.py", "turns = True\n")
        info = "millwheel-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: millwheel\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    archive, target = tmp_path / "libraries.zip", tmp_path / "libraries"
    with pytest.raises(OSError, match="has no millwheel, and none came with the job"):
        install_from(archive, ["millwheel"], tmp_path / "unpacked", target)
    archive.write_bytes(zipped_wheels(folder))
    assert zipped_wheels(folder) == archive.read_bytes()
    install_from(archive, ["millwheel"], tmp_path / "unpacked", target)
    assert (target / "millwheel.py").is_file()
    with pytest.raises(OSError, match="saw cannot be installed"):
        install_from(archive, ["saw"], tmp_path / "again", target)


def test_a_submission_writes_its_ticket_before_it_packs_and_keeps_what_paths_are_relative_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = create_run("digits", "sagemaker", tmp_path, base_path="/project")
    first = planned({"wheels": "wheels"})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submit_training_job, "prepare_sagemaker_run", killed)
    with pytest.raises(KeyboardInterrupt):
        submit_training_job.submit_training_job(first, paths)
    assert (read_ticket(paths, ServiceTicket).name, read_ticket(paths, ServiceTicket).submitted) == (first.name, False)
    assert submit_training_job.asked_of(paths).base_path == Path("/project")


class _Lost:
    """A service that has taken the job, whose answer is lost."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def create(self, request: object, look: float | None = None) -> str:
        raise KeyboardInterrupt

    def stop(self, name: str) -> bool:
        self.stopped.append(name)
        return True


@pytest.mark.parametrize("kept", [False, True])
def test_a_job_whose_answer_was_not_awaited_is_stopped_unless_it_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    paths, job, service = create_run("digits", "sagemaker", tmp_path), planned(), _Lost()
    monkeypatch.setattr(submit_training_job, "BotoService", lambda _: service)
    for name in ("prepare_sagemaker_run", "shared_content", "stage_channel", "remove_channel"):
        monkeypatch.setattr(submit_training_job, name, lambda *_: {})
    with pytest.raises(KeyboardInterrupt):
        submit_training_job.submit_attempt(job, paths, kept)
    assert service.stopped == ([] if kept else [job.name])


def test_a_run_whose_files_cannot_be_used_when_it_is_submitted_again_ends_with_that_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = create_run("digits", "sagemaker", tmp_path)
    job = planned({"retry": {"attempts": 2, "delay": 0}})
    submit_training_job.write_ticket(paths, submit_training_job.ticket_of(job))
    submit_training_job.write_asked(paths, job.asked)
    asked: list[bool] = []

    def no_wheels(*_: object, kept: bool) -> None:
        asked.append(kept)
        raise UsageError("the folder has no wheels")

    monkeypatch.setattr(submit_training_job, "submit_attempt", no_wheels)
    assert submit_training_job.submit_again(paths, read_ticket(paths, ServiceTicket), "CapacityError", 0.0)
    state = Run(paths).state()
    assert (state.status, asked) == (Status.FAILED, [True])
    assert "the folder has no wheels" in str(state.cause)


def test_a_container_does_not_print_again_what_one_before_it_has_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = create_run("digits", "sagemaker", tmp_path)
    log = paths.root / "logs" / "dnn_group" / "algo-1" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-11-20T19:01:02.123456Z o before\n")
    with printed_output(paths, "algo-1"), log.open("a") as file:
        file.write("2026-11-20T19:02:02.123456Z o after\n")
    assert capsys.readouterr().out == "after\n"
