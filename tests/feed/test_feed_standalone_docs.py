"""The pages about feed servers do what they say: shells are run, manifests name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from effort import SOAK
from feed_servers import free_port, wait_until

from headrace.cli.main import cli as headrace
from observer import processes_of

ROOT = Path(__file__).parents[2]
TEXT = "".join(
    (ROOT / "docs" / name).read_text()
    for name in ("feed-standalone.md", "feed-tls.md", "feed-pool.md", "feed-cluster.md")
)
MARK = "headrace-docs-test"


def section(title: str) -> str:
    """Returns the text of a section."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of a language, a pattern."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in fences if re.fullmatch(language, name)]


def shell(text: str, title: str) -> str:
    """Returns the script whose first line says which shell it is for."""
    [found] = [block for block in blocks(text, "bash") if block.startswith(f"# {title}\n")]
    return found


class Place:
    """A directory with the files of the page, and shells in it. The page's port is replaced by one that is free."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = str(free_port())
        self._servers: list[subprocess.Popen[str]] = []
        bin_directory = directory / "bin"
        bin_directory.mkdir()
        for name, module in (("headrace", "-m headrace.cli "), ("python", "")):
            command = bin_directory / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
            command.chmod(0o755)
        dropped = {name for name in os.environ if name.startswith("HEADRACE_")}
        self.environment = {name: value for name, value in os.environ.items() if name not in dropped} | {
            "PATH": f"{bin_directory}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}",
            "HEADRACE_RUN_ID": f"{MARK}-{self.port}",
        }
        for block in blocks(section("Two shells"), "python"):
            name = re.match(r"# (\w+\.py)\n", block)
            if name is not None:
                (directory / name[1]).write_text(block)

    def script(self, text: str) -> list[str]:
        """Returns what runs a text. `serve` without an address listens on 127.0.0.1:7070, which may be in use here."""
        text = re.sub(r"feed serve (?!--bind)", "feed serve --bind 127.0.0.1:7070 ", text)
        return ["bash", "-euo", "pipefail", "-c", text.replace("7070", self.port)]

    def run(self, text: str, **environment: str) -> str:
        done = subprocess.run(
            self.script(text), cwd=self.directory, env=self.environment | environment, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, text: str) -> str:
        """Starts a shell that serves; returns the line that it prints when it is ready."""
        child = subprocess.Popen(
            self.script(text), cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        self._servers.append(child)
        assert child.stdout is not None
        return child.stdout.readline()

    def close(self) -> None:
        for child in self._servers:
            child.terminate()
            child.communicate(timeout=15)
        mark = self.environment["HEADRACE_RUN_ID"]
        wait_until(lambda: not processes_of(mark, Path("/nonexistent")), "nothing is left behind", 10)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


TOLD = "16 batches, the sum of all squares is 332833500\n"


def test_the_two_shells_work_as_they_stand(place: Place) -> None:
    text = section("Two shells")
    place.run(shell(text, "once"))
    ready = place.serve(shell(text, "shell 1"))
    assert f'workers="tcp://127.0.0.1:{place.port}"' in ready
    assert place.run(shell(text, "shell 2")) == TOLD
    told = place.run(f"headrace feed status 127.0.0.1:{place.port} --secret-file feed.secret --output json")
    assert '"slices": 0,' not in told.partition('"queue"')[2], "the server has made the batches"


if SOAK:  # the two shells run the same script, with workers

    def test_the_script_runs_alone_too(place: Place) -> None:
        assert place.run("python train.py") == TOLD


if (
    SOAK
):  # test_feed_tls.py has a server and its status from the shell; the commands and flags of the page are checked above

    def test_the_shells_of_the_tls_section_work_as_they_stand(place: Place) -> None:
        text = section("Certificates")
        place.run(shell(section("Two shells"), "once"))
        place.run(shell(text, "once"))
        assert "ready" in place.serve(shell(text, "shell 1"))
        assert place.run(shell(text, "shell 2")) == TOLD
        answer = place.run(
            f"headrace feed status localhost:{place.port} --secret-file feed.secret --tls-ca ca.pem --output json"
        )
        assert '"error": null' in answer
        plain = f"! headrace feed status localhost:{place.port} --secret-file feed.secret --output json"
        assert "it serves TLS only; give tls_ca=" in place.run(plain)


SRUN = """#!/bin/bash
# What srun does with a step, on this machine: one task, and SIGTERM is passed on.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
[[ "$1 $2" == "show hostnames" ]] && echo "$3"
"""


def test_the_slurm_script_serves_trains_and_leaves_nothing(place: Place) -> None:
    [script] = [block for block in blocks(section("Slurm"), "bash") if block.startswith("#!/bin/bash")]
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (place.directory / "bin" / name).write_text(text)
        (place.directory / "bin" / name).chmod(0o755)
    batch = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST_HET_GROUP_0": "127.0.0.1"}
    assert TOLD in place.run(script, **batch)
    assert not list(place.directory.glob("*.secret"))
    (place.directory / "train.py").write_text("import sys; sys.exit(3)")
    batch["PYTHONPATH"] = f"{ROOT / 'tests/without_torch'}:{place.environment['PYTHONPATH']}"  # nobody needs it
    done = subprocess.run(
        place.script(script), cwd=place.directory, env=place.environment | batch, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 3, "the trainer's exit code is the job's"


# Manifests and flags


def flags(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def subcommand(*names: str) -> click.Command:
    found: click.Command = headrace
    for name in names:
        assert isinstance(found, click.Group)
        following = found.get_command(click.Context(found), name)
        assert following is not None, f"there is no headrace {' '.join(names)}"
        found = following
    return found


def test_every_headrace_command_of_the_page_exists_with_its_flags() -> None:
    lines = [line for block in blocks(TEXT, "(?:bash)?") for line in block.replace("\\\n", " ").splitlines()]
    used = [line.partition(" #")[0] for line in lines if "headrace feed " in line and not line.startswith("#")]
    assert len(used) >= 8
    for line in used:
        name = re.findall(r"headrace feed (\w+)", line)[0]
        given = re.findall(r"(?<=\s)--[a-z-]+", line.partition(f"headrace feed {name}")[2].partition("|")[0])
        assert set(given) <= flags(subcommand("feed", name)), line


def test_every_option_of_the_table_exists() -> None:
    options = re.findall(r"^\| `(--[a-z-]+)", TEXT, re.MULTILINE)
    assert len(options) >= 4
    assert set(options) <= flags(subcommand("feed", "serve"))


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    [text] = blocks(section("Kubernetes"), "yaml")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_the_manifests_start_what_there_is(manifests: dict[str, Any]) -> None:
    [container] = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "headrace"
    serve = subcommand(*container["command"][1:])
    given = dict(argument.split("=", 1) for argument in container["args"])
    assert set(given) <= flags(serve)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given["--bind"] == f"0.0.0.0:{ports['feed']}"
    assert given["--metrics-port"] == f"0.0.0.0:{ports['metrics']}"
    annotations = manifests["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])
    assert given["--secret-file"] == f"{container['volumeMounts'][0]['mountPath']}/secret"


def test_the_manifests_fit_together(manifests: dict[str, Any]) -> None:
    service, servers, job = manifests["Service"], manifests["StatefulSet"]["spec"], manifests["Job"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == servers["serviceName"]
    assert service["spec"]["selector"] == servers["selector"]["matchLabels"]
    assert servers["template"]["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    [trainer] = job["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in trainer["env"]}
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    named = [f"{name}-{number}.{name}:{port}" for number in range(servers["replicas"])]
    assert environment["HEADRACE_FEED"] == f"tcp://{','.join(named)}"
    assert environment["HEADRACE_FEED_SECRET_FILE"] == f"{trainer['volumeMounts'][0]['mountPath']}/secret"
    for pod in (servers["template"]["spec"], job["spec"]["template"]["spec"]):
        [container] = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        secret = pod["volumes"][0]["secret"]
        assert secret["secretName"] == "headrace-feed"
        assert "create secret generic headrace-feed --from-file=secret=" in TEXT


def test_a_bad_flag_on_the_page_would_be_found() -> None:
    assert "--no-such-flag" not in flags(subcommand("feed", "serve"))
    assert {"--bind", "--secret-file", "--tls-cert"} <= flags(subcommand("feed", "serve"))
