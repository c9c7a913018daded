"""STS and IAM, as far as clients of training jobs ask them: there is one account, and one role which may do all.

Nothing is granted by these answers. What a key may do is decided where its requests are answered.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timezone
from urllib.parse import quote

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.services.service import Service
from headrace.endpoint.wire.requests import Members

ACCOUNT = "000000000000"
ROLE_NAME = "headrace"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/{ROLE_NAME}"
_CREATED = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"},
    ],
}


def sts() -> Service:
    """Returns STS: who calls. It is a role that is assumed, because the SDK's `get_execution_role` wants one."""

    def get_caller_identity(_: Members, caller: Caller) -> dict[str, object]:
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE_NAME}/{caller.holder.value}"
        return {"Arn": arn, "UserId": f"{_role_id(ROLE_NAME)}:{caller.holder.value}", "Account": ACCOUNT}

    return Service("sts", ("sts",), {"GetCallerIdentity": get_caller_identity}, "ValidationError")


def iam() -> Service:
    """Returns IAM: every role is there, trusts SageMaker, and may do what is asked for."""

    def get_role(members: Members, _: Caller) -> dict[str, object]:
        name = str(members["RoleName"])
        role = {
            "Path": "/",
            "RoleName": name,
            "RoleId": _role_id(name),
            "Arn": f"arn:aws:iam::{ACCOUNT}:role/{name}",
            "CreateDate": _CREATED,
            "AssumeRolePolicyDocument": quote(json.dumps(_TRUST), safe=""),
            "MaxSessionDuration": 3600,
        }
        return {"Role": role}

    def simulate_principal_policy(members: Members, _: Caller) -> dict[str, object]:
        actions, resources = members["ActionNames"], members.get("ResourceArns") or ["*"]
        assert isinstance(actions, list)
        assert isinstance(resources, list)
        found = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
            for action in actions
            for resource in resources
        ]
        return {"EvaluationResults": found, "IsTruncated": False}

    operations = {"GetRole": get_role, "SimulatePrincipalPolicy": simulate_principal_policy}
    return Service("iam", ("iam",), operations, "ValidationError")


def _role_id(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest().upper()
    return "AROA" + re.sub(r"[^A-Z2-7]", "A", digest)[:17]
