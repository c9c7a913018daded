"""AWS's own images of PyTorch and TensorFlow for training, by framework, version and region. Pure.

The tables hold facts of AWS: which versions there are for Python 3.10 and later, and which account keeps a region's
images. Their source is the table of the SageMaker Python SDK 2.257.7 (`image_uri_config`, read on 2026-11-22). An image
that is newer, or another one, is named by the job's `image_uri`.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.catalog.aws_facts import registry_of

SOURCE = "the table of the SageMaker Python SDK 2.257.7, read on 2026-11-22"

VERSIONS: dict[str, dict[str, str]] = {
    "pytorch": {
        "2.0.0": "py310",
        "2.0.1": "py310",
        "2.1.0": "py310",
        "2.2.0": "py310",
        "2.3.0": "py311",
        "2.4.0": "py311",
        "2.5.1": "py311",
        "2.6.0": "py312",
        "2.7.1": "py312",
        "2.8.0": "py312",
    },
    "tensorflow": {
        "2.12.0": "py310",
        "2.13.0": "py310",
        "2.14.1": "py310",
        "2.16.2": "py310",
        "2.18.0": "py310",
        "2.19.0": "py312",
    },
}
"""Framework, version, and the Python in its image."""

MAIN_ACCOUNT = "763104351884"
MAIN_REGIONS = frozenset(
    (
        "ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2", "ca-central-1",
        "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1", "us-east-1", "us-east-2",
        "us-west-1", "us-west-2",
    )
)  # fmt: skip
OTHER_ACCOUNTS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}


class FrameworkImage(NamedTuple):
    """A framework's image, in every region.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        version: e.g. ``2.8.0``.
        python: e.g. ``py312``.
    """

    framework: str
    version: str
    python: str

    def uri(self, region: str, gpus: bool) -> str:
        """Returns the image's URI.

        Args:
            region: where the job runs; one of `known_regions`.
            gpus: the job has GPUs. All groups have one image: with GPUs, if one of them has some.

        Raises:
            KeyError: no account is known for the region.
        """
        account = MAIN_ACCOUNT if region in MAIN_REGIONS else OTHER_ACCOUNTS[region]
        kind = "gpu" if gpus else "cpu"
        return f"{registry_of(account, region)}/{self.framework}-training:{self.version}-{kind}-{self.python}"


def has_gpus(instance_type: str) -> bool:
    """Tells whether an instance type has GPUs of NVIDIA: its family begins with g or p."""
    return instance_type.removeprefix("ml.").startswith(("g", "p"))


def is_neuron(instance_type: str) -> bool:
    """Tells whether an instance type has Trainium devices, for which images are others."""
    return instance_type.removeprefix("ml.").startswith("trn")


def known_regions() -> tuple[str, ...]:
    """Returns the regions whose images are known, sorted."""
    return tuple(sorted(MAIN_REGIONS | OTHER_ACCOUNTS.keys()))


def find_image(framework: str, version: str) -> FrameworkImage | None:
    """Returns the image of a framework's version; None when none is known.

    Args:
        framework: ``pytorch`` or ``tensorflow``.
        version: ``2.8.0``, or ``2.8`` for the newest 2.8.

    >>> find_image("pytorch", "2.5")
    FrameworkImage(framework='pytorch', version='2.5.1', python='py311')
    """
    known = VERSIONS[framework]
    full = (
        version if version in known else next((each for each in reversed(known) if each.startswith(f"{version}.")), "")
    )
    return FrameworkImage(framework, full, known[full]) if full else None
