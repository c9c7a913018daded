"""What clients need to find an endpoint: an AWS profile, a configuration of the SageMaker SDK, and variables.

The profile's keys are the endpoint's own. So a client that ignores the address, as old ones do, is refused by AWS.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from headrace.endpoint.auth.gatekeeper import AccessKey
from headrace.endpoint.services.service import ROLE_ARN
from headrace.held_file import alone_in
from headrace.job.model.path_types import LOCAL_BUCKET
from headrace.private_folders import write_private

PROFILE = "headrace"
BUCKET = LOCAL_BUCKET
_CONFIG, _CREDENTIALS, _SDK = "aws-config", "aws-credentials", "sagemaker-config.yaml"
_SERVICES = ("S3", "SAGEMAKER", "SAGEMAKER_METRICS", "STS", "CLOUDWATCH", "CLOUDWATCH_LOGS")
_HOOK = Path(__file__).with_name("bootstrap")  # holds a `sitecustomize`
_UNSET = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_CA_BUNDLE"),
    *("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ENDPOINT_URL", *(f"AWS_ENDPOINT_URL_{name}" for name in _SERVICES)),
)
"""Variables that count more than a profile."""


@dataclass(frozen=True)
class ClientSetup:
    """How an endpoint is reached.

    Attributes:
        store: its folder.
        url: of the endpoint.
        region: that it stands for.
        key: of the user.
        ca_bundle: certificates by which its own is known; None without TLS.
    """

    store: Path
    url: str
    region: str
    key: AccessKey
    ca_bundle: Path | None = None

    def write(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Writes the profile and the configuration into the store, for its owner only. Raises OSError.

        Args:
            unless: asked when nobody else writes there: it is to stay as it is.
        """
        with alone_in(self.store):
            if not unless():
                self._write()

    def _write(self) -> None:
        config = {"region": self.region, "endpoint_url": self.url, "output": "json"}
        if self.ca_bundle is not None:
            config["ca_bundle"] = str(self.ca_bundle)
        keys = {"aws_access_key_id": self.key.key_id, "aws_secret_access_key": self.key.secret}
        write_private(self.store / _CONFIG, _section(f"profile {PROFILE}", config))
        write_private(self.store / _CREDENTIALS, _section(PROFILE, keys))
        write_private(self.store / _SDK, sdk_configuration().encode())

    def variables(self) -> dict[str, str]:
        """Returns the variables of a program that uses the profile."""
        return {
            "AWS_CONFIG_FILE": str(self.store / _CONFIG),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.store / _CREDENTIALS),
            "AWS_PROFILE": PROFILE,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "SAGEMAKER_USER_CONFIG_OVERRIDE": str(self.store / _SDK),
        }

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns all variables of a program that finds the endpoint, in a Python also by the names of AWS's services.

        Args:
            environ: the variables that it would have otherwise. Those of AWS, which are no concern of the endpoint's,
                are left out; its own proxies are not asked for this machine.
        """
        direct = environ.get("no_proxy") or environ.get("NO_PROXY")
        search = environ.get("PYTHONPATH")
        return {
            **{name: value for name, value in environ.items() if not name.startswith("AWS_")},
            **self.variables(),
            "AWS_ACCESS_KEY_ID": self.key.key_id,
            "AWS_SECRET_ACCESS_KEY": self.key.secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, [direct, urlsplit(self.url).hostname]))),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_HOOK), search])),
        }

    def shell(self) -> str:
        """Returns the lines for a shell: `eval "$(headrace serve --print-env)"`."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables().items()]
        return "\n".join([f"unset {' '.join(_UNSET)}", *lines])


def sdk_configuration() -> str:
    """Returns the configuration of the SageMaker SDK: its bucket and role, and that it tells nobody what it does."""
    modules = {"TelemetryOptOut": True, "Session": {"DefaultS3Bucket": BUCKET}}
    document = {
        "SchemaVersion": "1.0",
        "SageMaker": {"PythonSDK": {"Modules": modules}, "TrainingJob": {"RoleArn": ROLE_ARN}},
    }
    return str(yaml.safe_dump(document, sort_keys=False))


def _section(name: str, values: Mapping[str, str]) -> bytes:
    return "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in values.items()), ""]).encode()
