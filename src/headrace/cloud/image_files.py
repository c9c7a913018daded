"""The definition of an image with headrace in it, for `docker build`, and for AWS CodeBuild where there is no docker.

The image is another one with headrace and its libraries installed. Then a job's hosts install nothing when they start.
Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.catalog.framework_images import SOURCE, VERSIONS, find_image, known_regions
from headrace.errors import UsageError
from headrace.host_libraries import LIBRARIES

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
