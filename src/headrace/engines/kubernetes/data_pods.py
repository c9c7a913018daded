"""Pods of data hosts that come and go: the leader's pod has their Jobs make one pod, or none.

It may change these Jobs and nothing else (`objects`), with a token that travels like the other inputs. Libraries of the
instance side only.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

TOKEN, AUTHORITY, NAMESPACE = "token", "ca.crt", "namespace"
"""Keys of the Secret that the cluster fills for a service account."""
ANSWER_SECONDS = 3.0
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"  # every pod has them


class DataPods:
    """See the module.

    Args:
        jobs: the Jobs, by host.
        folder: where the Secret is mounted.
    """

    def __init__(self, jobs: Mapping[str, str], folder: Path) -> None:
        self._jobs = jobs
        self._folder = folder

    def keep(self, host: str, kept: bool) -> None:
        """Has the cluster keep a pod of a host, or none: one that runs is ended. Raises OSError."""
        tls = ssl.create_default_context(cafile=str(self._folder / AUTHORITY))
        token, namespace = ((self._folder / name).read_text().strip() for name in (TOKEN, NAMESPACE))
        server = http.client.HTTPSConnection(
            os.environ.get(HOST, ""), int(os.environ.get(PORT) or 443), timeout=ANSWER_SECONDS, context=tls
        )
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{self._jobs[host]}"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        try:
            server.request("PATCH", path, json.dumps({"spec": {"parallelism": int(kept)}}), headers)
            answer = server.getresponse()
            text = answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise OSError(f"the API server answered with something else: {error!r}") from error
        finally:
            server.close()
        if answer.status != http.client.OK:
            raise OSError(f"the API server refused to change the Job {self._jobs[host]}: {answer.status} {text[:300]}")
