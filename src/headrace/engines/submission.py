"""What an engine sends to a platform for a job: for `headrace plan`, before anything is sent.

An engine whose planned job has `submission` shows it there.
"""

from __future__ import annotations

import msgspec


class Upload(msgspec.Struct, frozen=True):
    """What is stored somewhere before the job is submitted.

    Attributes:
        what: what it is, in words.
        to: the place.
    """

    what: str
    to: str


class Permission(msgspec.Struct, frozen=True):
    """What one party must be allowed.

    Attributes:
        actions: names of actions.
        resources: on which.
        why: what for, in a few words.
        optional: most runs do without; only what `why` names fails without it.
        service: the platform itself acts on it, under the role; no program of headrace does.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    why: str
    optional: bool = False
    service: bool = False


class Submission(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        operation: what is asked of the platform.
        region: where.
        request: what is sent, whole.
        uploads: what is stored before.
        permissions: what must be allowed, by party.
    """

    operation: str
    region: str
    request: dict[str, object]
    uploads: tuple[Upload, ...]
    permissions: dict[str, tuple[Permission, ...]]
