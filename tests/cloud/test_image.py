"""The image: its definition, its wheel, and the way to ECR. `docker` is a program of the test that notes its calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from aws_account import Account
from test_cli_cloud import Typed, typed

from headrace._version import __version__
from headrace.cloud.image_files import ImageOptions, check_repository, content_tag, image_files, own_wheel, registries
from headrace.errors import UsageError

__all__ = ["typed"]

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
WHEEL = ("headrace-1-py3-none-any.whl", b"wheel")
KIND = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST = {"schemaVersion": 2, "mediaType": KIND, "config": {"digest": "sha256:0", "size": 1}, "layers": []}
DOCKER = """#!/usr/bin/env python3
import json, os, pathlib, sys
log = pathlib.Path(__file__).with_name("calls")
given = sys.stdin.read() if sys.argv[1] == "login" else ""
files = sorted(os.listdir(sys.argv[-1])) if sys.argv[1] == "build" else []
with log.open("a") as out:
    out.write(json.dumps([sys.argv[1:], given, files, os.environ.get("BUILDX_NO_DEFAULT_ATTESTATIONS")]) + "\\n")
print("docker", sys.argv[1])
if sys.argv[1] == os.environ.get("DOCKER_FAILS"):
    if "DOCKER_FIRST" in os.environ:
        exec(os.environ["DOCKER_FIRST"])
    sys.exit("no daemon, no network, no luck")
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where docker notes its calls, a line each."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


def test_the_wheel_is_this_headrace_and_pip_installs_it(tmp_path: Path) -> None:
    name, content = own_wheel()
    own_wheel.cache_clear()
    assert own_wheel() == (name, content)
    (tmp_path / name).write_bytes(content)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(tmp_path / "to"), str(tmp_path / name)], check=True)
    script = "import headrace, sys; print(headrace.__version__, headrace.__file__)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"PYTHONPATH": str(tmp_path / "to")}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split() == [__version__, str(tmp_path / "to" / "headrace" / "__init__.py")]
    installed = (tmp_path / "to" / f"headrace-{__version__}.dist-info" / "METADATA").read_text()
    assert "Requires-Dist: msgspec" in installed


def test_the_definition_installs_the_wheel_and_tries_what_a_host_imports() -> None:
    files = image_files(ImageOptions(AWS, WHEEL, b"einops\n", "/opt/python"))
    assert set(files) == {WHEEL[0], "requirements.txt", "Dockerfile", "buildspec.yml"}
    assert files["Dockerfile"].decode().splitlines() == [
        f"FROM {AWS}",
        'COPY ["headrace-1-py3-none-any.whl", "requirements.txt", "/tmp/headrace/"]',
        "RUN /opt/python -m pip install --no-cache-dir /tmp/headrace/headrace-1-py3-none-any.whl "
        "-r /tmp/headrace/requirements.txt \\",
        ' && /opt/python -c "import headrace, msgspec, numpy, psutil, xxhash" \\',
        " && rm -r /tmp/headrace",
    ]
    phases = yaml.safe_load(files["buildspec.yml"])["phases"]
    base, own = phases["pre_build"]["commands"]
    assert '--region us-east-1 | docker login --username AWS --password-stdin "763104351884.dkr.ecr' in base
    assert "${REPOSITORY_URI%%/*}" in own
    assert phases["post_build"]["commands"] == ['docker push "$REPOSITORY_URI:$TAG"']


def test_the_tag_follows_from_all_of_the_definition() -> None:
    options = [
        ImageOptions(AWS, WHEEL), ImageOptions("python:3.12", WHEEL), ImageOptions(AWS, (WHEEL[0], b"other")),
        ImageOptions(AWS, WHEEL, b"einops"), ImageOptions(AWS, WHEEL, python="python"),
    ]  # fmt: skip
    tags = [content_tag(image_files(each)) for each in options]
    assert len(set(tags)) == len(tags)
    assert tags[0] == content_tag(image_files(options[0]))


def test_all_registries_of_aws_in_a_dockerfile_are_entered() -> None:
    text = f"from --platform=linux/amd64 {AWS} AS a\nFROM python:3.12\nCOPY {AWS} b\n"
    assert registries(text) == {"763104351884.dkr.ecr.us-east-1.amazonaws.com": "us-east-1"}


@pytest.mark.parametrize("options", [ImageOptions("a b", WHEEL), ImageOptions(AWS, WHEEL, python="python; rm -rf /")])
def test_what_could_be_something_else_in_a_dockerfile_is_refused(options: ImageOptions) -> None:
    with pytest.raises(UsageError):
        image_files(options)


@pytest.mark.parametrize("name", ["", "A", "-a", "a//b", "a" * 257])
def test_names_that_no_repository_can_have_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_repository(name)


@pytest.mark.promise("cloud", "an image that exists is not built again; without docker there are its files")
def test_an_image_is_built_once_sent_and_removed(account: Account, typed: Typed, calls: Path, tmp_path: Path) -> None:
    ecr, name = account.aws.client("ecr"), f"team/{account.name}"
    (tmp_path / "r.txt").write_text("einops\n")
    given = ("--name", name, "--base", AWS, "--requirements", str(tmp_path / "r.txt"))
    code, planned, _ = typed("image", "create", *given, "--dry-run")
    assert (code, "would be built and sent\nnothing was changed" in planned) == (0, True)
    assert repositories(account) == []
    calls.unlink()
    code, out, err = typed("image", "create", *given)
    assert code == 0, err
    image = yaml.safe_load(out)["image_uri"]
    uri, _, tag = image.rpartition(":")
    (made,) = ecr.describe_repositories(repositoryNames=[name])["repositories"]
    assert (made["repositoryUri"], made["imageTagMutability"]) == (uri, "IMMUTABLE")
    noted = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [call[0][0] for call in noted] == ["info", "login", "login", "build", "push"]
    assert [call[0][-1] for call in noted[1:3]] == [AWS.partition("/")[0], uri.partition("/")[0]]
    assert all(call[1] and call[1] not in " ".join(call[0]) for call in noted[1:3])  # a password is no argument
    assert noted[3][0][1:5] == ["--platform", "linux/amd64", "--tag", image]
    assert noted[3][2] == ["Dockerfile", "buildspec.yml", own_wheel()[0], "requirements.txt"]
    assert (noted[3][3], noted[4][0]) == ("1", ["push", image])
    ecr.put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag=tag)  # as docker does
    calls.unlink()
    assert json.loads(typed("image", "create", *given, "--output", "json")[1])["outcome"] == "unchanged"
    assert not calls.exists()
    assert typed("image", "show", name)[1] == f"image_uri: {image}\n"
    assert "1 images: would be removed\nnothing was changed" in typed("image", "remove", name, "--dry-run")[1]
    assert typed("image", "remove", name)[0] == 0
    assert repositories(account) == []
    assert typed("image", "remove", name)[0] == 2


FAILURES = {
    "info": "docker does not work here: no daemon, no network, no luck",
    "login": "no entry to 763104351884.dkr.ecr.us-east-1.amazonaws.com",
    "build": "the image could not be built",
    "push": "the image could not be sent",
}


def repositories(account: Account) -> list[str]:
    """The repositories of this test."""
    found = account.aws.client("ecr").describe_repositories()["repositories"]
    return [each["repositoryName"] for each in found if account.name in each["repositoryName"]]


@pytest.mark.promise("cloud", "an image that exists is not built again; without docker there are its files")
def test_when_docker_fails_nothing_is_left(
    account: Account, typed: Typed, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fails, said in FAILURES.items():
        monkeypatch.setenv("DOCKER_FAILS", fails)
        code, out, err = typed("image", "create", "--name", account.name, "--base", AWS)
        assert (code, out) == (2 if fails == "info" else 1, "")
        assert said in err
        assert repositories(account) == []


def test_the_error_is_that_of_docker_also_when_its_repository_cannot_be_removed(
    account: Account, typed: Typed, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ecr = account.aws.client("ecr")
    put = {"repositoryName": account.name, "imageManifest": json.dumps(MANIFEST), "imageTag": "half"}
    monkeypatch.setenv("DOCKER_FAILS", "push")
    monkeypatch.setenv("DOCKER_FIRST", f"import boto3; boto3.client('ecr').put_image(**{put!r})")
    code, _, err = typed("image", "create", "--name", account.name, "--base", AWS)
    assert code == 1
    assert "error: the image could not be sent: " in err
    assert f"the repository {account.name} is left: ecr:DeleteRepository was refused (RepositoryNotEmpty" in err
    ecr.delete_repository(repositoryName=account.name, force=True)


@pytest.mark.promise("cloud", "an image that exists is not built again; without docker there are its files")
def test_without_docker_there_are_the_files(
    account: Account, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = typed("image", "create", "--name", account.name, "--base", AWS)
    assert (code, err.splitlines()[0]) == (
        2, "error: neither docker nor podman is installed here: no image can be built",
    )  # fmt: skip
    assert "`headrace cloud image --to DIR`" in err
    assert repositories(account) == []
    assert typed("image", "--base", AWS, "--to", str(tmp_path / "image"))[0] == 0
    assert (tmp_path / "image" / "Dockerfile").read_text().startswith(f"FROM {AWS}\n")


def test_the_base_is_the_image_of_a_framework_and_its_version_in_the_region(typed: Typed, tmp_path: Path) -> None:
    named = ("--framework", "pytorch", "--framework-version", "2.8", "--region", "eu-west-1")
    for options, kind in (((), "gpu"), (("--cpu",), "cpu")):
        code, _, err = typed("image", *named, *options, "--to", str(tmp_path / kind))
        assert code == 0, err
        first = (tmp_path / kind / "Dockerfile").read_text().splitlines()[0]
        assert first == f"FROM 763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.8.0-{kind}-py312"


@pytest.mark.promise("cloud", "what headrace did not make is never changed or removed")
def test_a_repository_of_others_is_used_and_never_removed(account: Account, typed: Typed, calls: Path) -> None:
    ecr = account.aws.client("ecr")
    ecr.create_repository(repositoryName=account.name)
    assert typed("image", "create", "--name", account.name, "--base", AWS)[0] == 0
    code, _, err = typed("image", "remove", account.name)
    assert (code, "headrace did not make it" in err) == (2, True)
    ecr.delete_repository(repositoryName=account.name)
