"""Engines by name: what each would submit as files, and one that somebody else has installed by entry point."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli

from installed_engines import install_engine

POST = '''\
"""An engine that would post a job to a queue of its own."""

from headrace.engines import Document
from headrace.engines.local import engine as local

plan, check, start, stop = local.plan, local.check, local.start, local.stop


def render(job):
    desk = job.engine_options("post").get("desk", "none")
    hosts = [f"host {host.name} of {host.group} at {desk}" for host in plan(job).plan.hosts]
    return (Document("post.txt", "\\n".join(hosts) + "\\n"), Document("env/names.txt", job.job_name))
'''


@pytest.fixture
def post(cli: Cli, tmp_path: Path) -> None:
    """Installs the engine `post` as another package does: a module, and an entry point in its metadata."""
    folder = tmp_path / "site"
    install_engine(folder, "post", POST)
    cli.env["PYTHONPATH"] += os.pathsep + str(folder)


@pytest.mark.promise("own-engine", "an engine of your own is found by entry point, and every command takes its runs")
def test_what_an_engine_of_somebody_else_would_submit_is_written_as_files(
    cli: Cli, job_file: Callable[..., str], post: None, tmp_path: Path
) -> None:
    job = job_file("")
    done = cli("plan", job, "--engine", "post", "--set", "engines.post.desk=7", "--render", "out", "--output", "json")
    assert done.returncode == 0, done.stderr
    named = [("post.txt", "out/post.txt"), ("env/names.txt", "out/env/names.txt")]
    documents = [{"name": name, "file": file} for name, file in named]
    assert json.loads(done.stdout) == {"engine": "post", "documents": documents}
    assert (tmp_path / "out" / "post.txt").read_text() == "host algo-1 of dnn at 7\n"
    assert (tmp_path / "out" / "env" / "names.txt").read_text() == "small"
    shown = cli("plan", job, "--engine", "post")
    assert "algo-1" in shown.stdout
    other = cli("plan", job, "--engine", "posh")
    assert (other.returncode, other.stderr.splitlines()[0]) == (2, "error: no engine is called 'posh'")
    assert "there is: kubernetes, local, post, sagemaker, slurm; did you mean post?" in other.stderr


def test_an_engine_that_lacks_a_function_or_renders_a_bad_name_is_told(
    cli: Cli, job_file: Callable[..., str], post: None, tmp_path: Path
) -> None:
    (tmp_path / "site" / "post_engine.py").write_text(
        "from headrace.engines import Document\ndef render(job): return (Document('../esc.txt', ''),)\n"
    )
    job = job_file("")
    partial = cli("run", job, "--engine", "post")
    assert (partial.returncode, partial.stderr.splitlines()) == (
        2,
        [
            "error: the engine 'post' (post_engine) has no function start",
            "hint: the page own-engine of the docs says which functions an engine has",
        ],
    )
    out = cli("plan", job, "--engine", "post", "--render", "out")
    assert (out.returncode, out.stderr.splitlines()[0]) == (
        2,
        "error: what the engine 'post' renders cannot be written: '../esc.txt' is no name of a document",
    )


@pytest.mark.promise("engines", "`doctor --engine` says what works in an engine, and what to install")
def test_doctor_says_what_works_in_an_engine_and_what_to_install(cli: Cli, post: None) -> None:
    done = cli("doctor", "--engine", "local", "--output", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["engine"] == "local"
    found = {one["name"]: one for one in told["capabilities"]}
    assert {"isolation: namespace", "limits: memory", "mpi, horovod", "channels: FastFile", "GPUs"} <= set(found)
    assert all(one["detail"] for one in told["capabilities"])
    (mine,) = (one for one in told["capabilities"] if one["name"] == "isolation: none")
    assert mine["works"]
    other = cli("doctor", "--engine", "post")
    assert (other.returncode, other.stderr.splitlines()[0]) == (
        2,
        "error: the engine 'post' does not say what works in it",
    )
    assert cli("doctor", "--engine", "local", "--", "python", "x.py").returncode == 2


def test_doctor_ends_with_1_when_no_job_can_run_in_the_engine(cli: Cli, tmp_path: Path) -> None:
    cli.env["KUBECONFIG"] = str(tmp_path / "none")
    cli.env.pop("KUBERNETES_SERVICE_HOST", None)
    done = cli("doctor", "--engine", "kubernetes", "--output", "json")
    assert done.returncode == 1, done.stderr
    (one,) = json.loads(done.stdout)["capabilities"]
    assert (one["name"], one["works"], one["needed"]) == ("kubernetes", False, True)


@pytest.mark.promise("engines", "what it submits, on local")
@pytest.mark.promise("running", "`plan --render` writes exactly what would be submitted, and overwrites no other file")
def test_rendering_writes_the_launch_plan_of_a_local_job_and_overwrites_nothing_else(
    cli: Cli, job_file: Callable[..., str], tmp_path: Path
) -> None:
    job = job_file("")
    done = cli("plan", job, "--render", "out")
    assert (done.returncode, done.stdout) == (0, "out/plan.json\n"), done.stderr
    file = tmp_path / "out" / "plan.json"
    plan = json.loads(file.read_text())
    assert [host["name"] for host in plan["hosts"]] == ["algo-1"]
    assert not (tmp_path / "home").exists(), "nothing is started or prepared"
    assert cli("plan", job, "--render", "out").returncode == 0, "the same files may be there already"
    refused = cli("plan", job, "--set", "job_name=other", "--render", "out")
    assert refused.returncode == 2
    assert "out/plan.json is there already" in refused.stderr
    assert json.loads(file.read_text()) == plan
    assert [path.name for path in file.parent.iterdir()] == ["plan.json"]
