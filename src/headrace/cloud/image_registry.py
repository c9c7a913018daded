"""Images in ECR: built by docker, sent to a repository that is made when there is none, found again by content.

An image's tag follows from its definition, so what is there is not built again. Only repositories with headrace's tag
are removed.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cloud.aws_calls import Aws, call
from headrace.cloud.image_files import DOCKERFILE, PLATFORM, content_tag, registries
from headrace.cloud.stack_template import KIND_TAG
from headrace.errors import CloudError, HeadraceError, UsageError

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
        listed = []
        token: dict[str, object] = {}
        while True:
            answer = call(self._ecr, "describe_images", repositoryName=name, **token)
            listed += answer["imageDetails"]
            if not answer.get("nextToken"):
                break
            token = {"nextToken": answer["nextToken"]}
        listed.sort(key=lambda each: each["imagePushedAt"], reverse=True)
        tags = tuple(tag for each in listed for tag in each.get("imageTags", ()))
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
