"""The definition of an image with headrace in it, for `docker build`, and for AWS CodeBuild where there is no
docker; and images in ECR: built, sent to a repository that is made when there is none, found again by content.

The image is another one with headrace and its libraries installed. Then a job's hosts install nothing when they start.
Its tag follows from its definition, so what is there is not built again. Only repositories with headrace's tag are
removed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import headrace
from headrace.catalog.aws_facts import SOURCE, VERSIONS, find_image, known_regions
from headrace.cloud.aws_calls import Aws, call, pages
from headrace.cloud.stacks import KIND_TAG
from headrace.errors import CloudError, HeadraceError, UsageError
from headrace.install_hint import LIBRARIES

DOCKERFILE = "Dockerfile"
PLATFORM = "linux/amd64"
"""Of all instances on which SageMaker trains."""
_REQUIREMENTS = "requirements.txt"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_REGISTRY = re.compile(r"[0-9]{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_REPOSITORY = re.compile(r"(?=.{2,256}$)[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*")
_TAG_DIGITS = 12


@dataclass(frozen=True)
class ImageOptions:
    """What an image is made of.

    Attributes:
        base: the image to begin with.
        wheel: name and content of headrace's wheel.
        requirements: a requirements file to install too; empty for none.
        python: interpreter in the image.
    """

    base: str
    wheel: tuple[str, bytes]
    requirements: bytes = b""
    python: str = "python3"


def image_files(options: ImageOptions) -> dict[str, bytes]:
    """Returns the files of the definition, by name.

    Raises:
        UsageError: the base or the interpreter cannot be one.
    """
    if not _IMAGE.fullmatch(options.base):
        raise UsageError(f"--base {options.base!r}: not an image", hint="e.g. --base pytorch/pytorch:2.6.0-cuda12.4")
    if not re.fullmatch(r"[\w./-]+", options.python, re.ASCII):
        raise UsageError(f"--python {options.python!r}: not a program", hint="e.g. --python /opt/conda/bin/python")
    wheel, content = options.wheel
    files = {wheel: content}
    if options.requirements:
        files[_REQUIREMENTS] = options.requirements
    files[DOCKERFILE] = _dockerfile(options, list(files)).encode()
    files["buildspec.yml"] = _buildspec(options.base).encode()
    return files


def framework_base(framework: str, version: str | None, region: Callable[[], str], gpus: bool) -> str:
    """Returns AWS's own image of a framework, to begin with.

    Args:
        framework: ``pytorch`` or ``tensorflow``.
        version: of it, such as ``2.8``; None for the newest that is known.
        region: tells whose registry it is taken from.
        gpus: jobs have GPUs.

    Raises:
        UsageError: no such image is known.
    """
    known = VERSIONS[framework]
    image = find_image(framework, version or list(known)[-1])
    if image is None:
        hint = f"known are {', '.join(known)} ({SOURCE}); another image is named by --base"
        raise UsageError(f"--framework-version {version}: no image of {framework} is known for it", hint=hint)
    where = region()
    if where not in known_regions():
        raise UsageError(f"no image of {framework} is known in {where}", hint="name the image by --base")
    return image.uri(where, gpus)


def content_tag(files: Mapping[str, bytes]) -> str:
    """Returns the tag of the image of a definition: the same files, the same tag.

    Args:
        files: the definition.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return f"headrace-{digest.hexdigest()[:_TAG_DIGITS]}"


def registries(dockerfile: str) -> dict[str, str]:
    """Returns the registries in ECR from which a Dockerfile takes images: region by host.

    >>> registries("FROM 763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.6.0")
    {'763104351884.dkr.ecr.eu-west-1.amazonaws.com': 'eu-west-1'}
    """
    instructions = [each.split() for each in dockerfile.splitlines() if each.strip().upper().startswith("FROM ")]
    images = [word for words in instructions for word in words[1:]]
    found = [_REGISTRY.match(image) for image in images]
    return {match[0]: match["region"] for match in found if match is not None}


def check_repository(name: str) -> str:
    """Returns the name of a repository if there can be one.

    Raises:
        UsageError: there cannot.
    """
    if not _REPOSITORY.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a repository's name: small letters, digits and . _ - / between them")
    return name


def _dockerfile(options: ImageOptions, copied: list[str]) -> str:
    place = "/tmp/headrace"
    wanted = f"{place}/{options.wheel[0]}" + (f" -r {place}/{_REQUIREMENTS}" if options.requirements else "")
    check = f'{options.python} -c "import {", ".join(["headrace", *LIBRARIES])}"'
    return (
        f"FROM {options.base}\n"
        f"COPY {json.dumps([*copied, place + '/'])}\n"
        f"RUN {options.python} -m pip install --no-cache-dir {wanted} \\\n"
        f" && {check} \\\n"
        f" && rm -r {place}\n"
    )


def _buildspec(base: str) -> str:
    """Returns what AWS CodeBuild does: a project with privileged mode, and the variables REPOSITORY_URI and TAG."""
    login = 'aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin "{host}"'
    logins = [login.format(region=region, host=host) for host, region in registries(f"FROM {base}").items()]
    logins.append(login.format(region='"$AWS_REGION"', host="${REPOSITORY_URI%%/*}"))
    steps = {
        "pre_build": logins,
        "build": [f'docker build --platform {PLATFORM} --tag "$REPOSITORY_URI:$TAG" .'],
        "post_build": ['docker push "$REPOSITORY_URI:$TAG"'],
    }
    lines = [
        "# AWS CodeBuild: a project with privileged mode, and the variables REPOSITORY_URI and TAG",
        "version: 0.2",
    ]
    lines += ["env:", "  variables:", "    BUILDX_NO_DEFAULT_ATTESTATIONS: '1'", "phases:"]
    for phase, commands in steps.items():
        lines += [f"  {phase}:", "    commands:", *(f"      - {json.dumps(each)}" for each in commands)]
    return "\n".join(lines) + "\n"


_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = ("METADATA", "entry_points.txt")
_WHEEL = "Wheel-Version: 1.0\nGenerator: headrace\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@functools.cache
def own_wheel() -> tuple[str, bytes]:
    """Returns the name of the wheel, and the wheel.

    Raises:
        UsageError: this headrace was not installed, so that nobody knows what it needs.
    """
    try:
        installed = distribution("headrace")
    except PackageNotFoundError as error:
        raise UsageError("this headrace is not installed", hint="pip install it, also from a checkout") from error
    info = f"headrace-{installed.version}.dist-info"
    files = dict(_package_files())
    files |= {f"{info}/{name}": text.encode() for name in _KEPT if (text := installed.read_text(name)) is not None}
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(entry, content)
    return f"headrace-{installed.version}-py3-none-any.whl", packed.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    package = Path(headrace.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"headrace/{path.relative_to(package).as_posix()}", path.read_bytes()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


KIND = "image"
_ABSENT = "RepositoryNotFoundException"
_PROGRAMS = ("docker", "podman")
_FILES_ONLY = "`headrace cloud image --to DIR` writes the files, to build elsewhere; buildspec.yml is for AWS CodeBuild"


@dataclass(frozen=True)
class Repository:
    """A repository that is there.

    Attributes:
        name, arn, uri: as ECR has them; the URI has no tag.
        images: tags of its images, the newest first.
    """

    name: str
    arn: str
    uri: str
    images: tuple[str, ...]


class ImageRegistry:
    """The repositories of an account in a region.

    Args:
        aws: the account.
        tell: takes a line for each thing that happens.
    """

    def __init__(self, aws: Aws, tell: Callable[[str], None]) -> None:
        self._aws = aws
        self._ecr = aws.client("ecr")
        self._tell = tell

    def find(self, name: str) -> Repository | None:
        """Returns a repository; None if there is none of that name.

        Raises:
            CloudError, UsageError: it cannot be asked for.
        """
        try:
            (found,) = call(self._ecr, "describe_repositories", repositoryNames=[name])["repositories"]
        except CloudError as error:
            if error.code == _ABSENT:
                return None
            raise
        answers = pages(self._ecr, "describe_images", repositoryName=name)
        images = [image for page in answers for image in page["imageDetails"]]
        images.sort(key=lambda image: image["imagePushedAt"], reverse=True)
        tags = tuple(tag for image in images for tag in image.get("imageTags", ()))
        return Repository(name, found["repositoryArn"], found["repositoryUri"], tags)

    def create(self, name: str, files: Mapping[str, bytes]) -> tuple[bool, str]:
        """Makes sure that the image of a definition is in a repository.

        Args:
            name: of the repository; it is made when there is none.
            files: the definition.

        Returns:
            Whether the image was built, and its URI.

        Raises:
            UsageError: there is no docker here that works.
            CloudError: AWS refused, or docker failed. A repository that was made for it is removed,
                or it is told why it is left.
        """
        tag, found = content_tag(files), self.find(name)
        if found is not None and tag in found.images:
            return False, f"{found.uri}:{tag}"
        docker = find_docker()
        uri = self._make(name) if found is None else found.uri
        image = f"{uri}:{tag}"
        try:
            hosts = registries(files[DOCKERFILE].decode()) | {uri.partition("/")[0]: self._aws.region}
            for host, region in hosts.items():
                self._login(docker, host, region)
            self._build(docker, image, files)
            self._run([docker, "push", image], "the image could not be sent")
        except BaseException:
            if found is None:
                self._remove_again(name)
            raise
        return True, image

    def check_own(self, name: str) -> Repository:
        """Returns a repository that headrace made.

        Raises:
            UsageError: there is none of that name, or headrace did not make it.
            CloudError: AWS cannot be asked.
        """
        found = self.find(name)
        if found is None:
            raise UsageError(f"there is no repository {name} in {self._aws.region}", hint="--region says where it is")
        tags = call(self._ecr, "list_tags_for_resource", resourceArn=found.arn)["tags"]
        if {"Key": KIND_TAG, "Value": KIND} not in tags:
            hint = "headrace removes only what it made; `aws ecr delete-repository` removes it"
            raise UsageError(f"the repository {name} is there, and headrace did not make it", hint=hint)
        return found

    def remove(self, name: str) -> Repository:
        """Removes a repository with its images.

        Returns:
            What it was.

        Raises:
            UsageError, CloudError: as `check_own`.
        """
        found = self.check_own(name)
        call(self._ecr, "delete_repository", repositoryName=name, force=True)
        return found

    def _make(self, name: str) -> str:
        made = call(
            self._ecr,
            "create_repository",
            repositoryName=name,
            imageTagMutability="IMMUTABLE",
            tags=[{"Key": KIND_TAG, "Value": KIND}],
        )
        self._tell(f"the repository {name} was created")
        return str(made["repository"]["repositoryUri"])

    def _remove_again(self, name: str) -> None:
        """Removes a repository that was made for an image that failed, whose error is the one to be raised."""
        try:
            call(self._ecr, "delete_repository", repositoryName=name)  # refused when it has images
        except HeadraceError as error:
            self._tell(f"the repository {name} is left: {error.message}")
        else:
            self._tell(f"the repository {name} was removed again")

    def _login(self, docker: str, host: str, region: str) -> None:
        answer = call(self._aws.client("ecr", region), "get_authorization_token")
        user, _, password = (
            base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode().partition(":")
        )
        self._run(
            [docker, "login", "--username", user, "--password-stdin", host], f"no entry to {host}", given=password
        )

    def _build(self, docker: str, image: str, files: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-image-") as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            self._run([docker, "build", "--platform", PLATFORM, "--tag", image, folder], "the image could not be built")

    def _run(self, command: list[str], failed: str, given: str = "") -> None:
        """Runs docker; what it prints goes to standard error."""
        sys.stderr.flush()
        # SageMaker takes no image whose manifest is an index, and docker makes one when it adds attestations
        environment = os.environ | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        done = subprocess.run(command, input=given, stdout=2, env=environment, text=True, check=False)
        if done.returncode:
            words = " ".join(command[:2])
            raise CloudError(f"{failed}: {words} ended with {done.returncode}", "its own lines stand above")


def find_docker() -> str:
    """Returns the program that builds images here: docker, else podman.

    Raises:
        UsageError: none of them is installed, or it cannot reach its daemon.
    """
    found = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        raise UsageError("neither docker nor podman is installed here: no image can be built", hint=_FILES_ONLY)
    asked = subprocess.run([found, "info"], capture_output=True, text=True, check=False)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["without a word"])[-1]
        raise UsageError(f"{found} does not work here: {last}", hint=_FILES_ONLY)
    return found
