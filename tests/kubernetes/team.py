"""The namespace of a team on the cluster: its user has the rights that `headrace.engines.kubernetes.cluster` names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from headrace.engines.kubernetes.cluster import ROLE, ROLE_OF_RANGE

NAMESPACE = "team"
FOLDER = Path(os.environ.get("KUBERNETES_CLUSTER", "."))
ADMIN_CONF = str(FOLDER / "admin.conf")
USER_CONF = str(FOLDER / "user.conf")


def kubectl(*words: str, given: object = None, check: bool = True) -> str:
    """Runs kubectl as the administrator."""
    done = subprocess.run(
        ["kubectl", "--kubeconfig", ADMIN_CONF, "--namespace", NAMESPACE, "--request-timeout=20s", *words],
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


def listed(what: str, *words: str) -> list[dict[str, Any]]:
    """Returns objects, as `kubectl get` shows them."""
    items: list[dict[str, Any]] = json.loads(kubectl("get", what, "-o", "json", *words))["items"]
    return items


def make_team(without: str = "") -> str:
    """Makes the namespace, the role and who has it, or changes the role. Returns the namespace's name.

    Args:
        without: a resource to which the role gives no right.
    """
    rules = [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in (*ROLE, *ROLE_OF_RANGE)
        if rule.resource != without
    ]
    rbac = "rbac.authorization.k8s.io"
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "headrace"}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "headrace"},
            "subjects": [{"kind": "User", "name": "user", "apiGroup": rbac}],
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "headrace"},
        },
    ]
    for each in objects:
        kubectl("apply", "-f", "-", given=each)
    return NAMESPACE
