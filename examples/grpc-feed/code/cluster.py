"""Who am I, and who are the others: from the variables that SageMaker's containers set."""

from __future__ import annotations

import json
import os

DATA_GROUP = "data_group"
DNN_GROUP = "dnn_group"
FEED_PORT = 6000
SHUTDOWN_PORT = 16000


def current_host() -> str:
    """Name of this host, e.g. ``algo-1``."""
    return os.environ["SM_CURRENT_HOST"]


def current_group() -> str:
    """Name of this host's instance group."""
    return os.environ["SM_CURRENT_INSTANCE_GROUP"]


def hosts_of(group: str) -> list[str]:
    """Names of the hosts of a group."""
    return list(json.loads(os.environ["SM_INSTANCE_GROUPS_DICT"])[group]["hosts"])


def token() -> bytes:
    """What all hosts of the job know: $FEED_TOKEN, or else the job's name, which others may guess."""
    return (os.environ.get("FEED_TOKEN") or os.environ["TRAINING_JOB_NAME"]).encode()
