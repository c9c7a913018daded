"""The keys of an endpoint: the user's own; that of those who carry the data of his jobs; and one of each job.

The first two are made once, at random, and lie in the store in a file that only its owner may read. No AWS account
knows them: a client that ignores the endpoint's address is refused by AWS and harms nothing. The key of a job follows
from the second one and the job's uid, so it is the same after the endpoint was started again.
"""

from __future__ import annotations

import hmac
import secrets
import string
from enum import Enum
from pathlib import Path

import msgspec

from headrace.errors import UsageError
from headrace.private_folders import write_private

FILE = "keys.json"
_LETTERS = string.ascii_uppercase + "234567"


class Holder(str, Enum):
    """Who has a key: the user, or a job's programs and those who carry its data."""

    USER = "user"
    PROGRAM = "program"


class AccessKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key: who has it, its id and its secret; of a job's programs, the uid of the job."""

    holder: Holder
    key_id: str
    secret: str
    job: str = ""

    def __repr__(self) -> str:
        return f"AccessKey({self.holder.value}, {self.key_id})"


_decoder = msgspec.json.Decoder(tuple[AccessKey, ...])


class AccessKeys:
    """The keys of an endpoint."""

    def __init__(self, keys: tuple[AccessKey, ...]) -> None:
        self._by_id = {key.key_id: key for key in keys}
        self.user = next(key for key in keys if key.holder is Holder.USER)
        self.program = next(key for key in keys if key.holder is Holder.PROGRAM)

    def find(self, key_id: str) -> AccessKey | None:
        """Returns the key of that id."""
        uid = key_id.removeprefix(self.program.key_id).lower() if key_id.startswith(self.program.key_id) else ""
        return self.of_job(uid) if uid else self._by_id.get(key_id)

    def of_job(self, uid: str) -> AccessKey:
        """Returns the key of the programs of a job."""
        secret = hmac.digest(self.program.secret.encode(), uid.encode(errors="replace"), "sha256").hex()
        return AccessKey(Holder.PROGRAM, f"{self.program.key_id}{uid.upper()}", secret, uid)


def keys_of(store: Path) -> AccessKeys:
    """Returns the keys of a store, which are made when they are not there.

    Raises:
        UsageError: the file can be read by others, is damaged, or cannot be written.
    """
    path = store / FILE
    try:
        _make(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise UsageError(f"{path}: its mode is {mode:o}, so others can read the keys", f"chmod 600 {path}")
        return AccessKeys(_decoder.decode(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "name another folder with --store") from error
    except (msgspec.DecodeError, StopIteration) as error:
        raise UsageError(f"{path} holds no keys: {error}", "remove it; new keys are made then") from error


def _make(path: Path) -> None:
    if path.exists():
        return
    keys = tuple(AccessKey(holder, _key_id(), secrets.token_urlsafe(30)) for holder in Holder)
    write_private(path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")


def _key_id() -> str:
    return "HEADRACE" + "".join(secrets.choice(_LETTERS) for _ in range(12))
