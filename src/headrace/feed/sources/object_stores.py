"""Object stores of `s3://`, `gs://`, `az://` and `https://`, read through obstore.

obstore tries again, with growing pauses, where a service throttles or a connection breaks. Credentials are found as
the store's own tools find them; those of S3, its region and its endpoint by botocore where that is installed (profiles,
SSO), else by obstore. Stores belong to a process. obstore's threads do not survive a fork, and a request would wait for
them without end: a forked process loads the library anew, from memory of its own. Needs `headrace[objects]`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError, UsageError
from headrace.install_hint import install_hint

SCHEMES = ("s3://", "gs://", "az://", "https://", "http://")
RETRIES = 10
FIRST_PAUSE = timedelta(seconds=0.1)  # before the second attempt; each later one is longer
RETRY_TIME = timedelta(minutes=3)
_CLIENT = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=20),  # without a byte
    "timeout": timedelta(minutes=15),
    "allow_http": True,
}
_NOT_SHOWN = re.compile(r"(?s:\n\nDebug source:.*)|(?<=[^\s<])\?[^\s\"')]*")
_LEAVE = "do not change data that a running job reads"
_KEY_LIFE = timedelta(minutes=10)  # then botocore is asked again, which renews a key before it ends

_stores: dict[str, Any] = {}
_left_behind: list[Any] = []  # of the process that this one was forked from: to free them may wait for its threads


class _Loaded:
    """Of the library in this process."""

    stale = False  # its threads are in the process that this one was forked from


def _forked() -> None:
    _Loaded.stale = "obstore" in sys.modules
    _left_behind.append(dict(_stores))
    _stores.clear()


os.register_at_fork(after_in_child=_forked)


def _library() -> Any:
    """Returns obstore. Raises UsageError: it is not there, or cannot be loaded a second time."""
    try:
        if _Loaded.stale:
            _load_anew()
            _Loaded.stale = False
        return importlib.import_module("obstore")
    except ModuleNotFoundError as error:
        message = f"object stores need a library that is not installed: {error.name}"
        raise UsageError(message, install_hint("objects")) from error
    except (ImportError, OSError) as error:
        raise UsageError(
            f"obstore cannot be loaded a second time, in a process that was forked from one that uses it: {error}",
            "give the loader multiprocessing_context='forkserver', or read no rows before its workers start",
        ) from error


def _load_anew() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        _left_behind.append(sys.modules.pop(name))
    package, name = importlib.util.find_spec("obstore"), "obstore._obstore"
    places = package.submodule_search_locations if package is not None else None
    origin = importlib.machinery.PathFinder.find_spec(name, places)
    if origin is None or origin.origin is None:
        raise ModuleNotFoundError(name=name)
    with os.fdopen(os.memfd_create("obstore"), "wb") as copy:  # another file: one that is loaded is not loaded again
        copy.write(Path(origin.origin).read_bytes())
        copy.flush()
        path = f"/proc/self/fd/{copy.fileno()}"
        loader = importlib.machinery.ExtensionFileLoader(name, path)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)


class Entry(NamedTuple):
    """An object, as it was listed.

    Attributes:
        key: below the root.
        size: bytes.
        version: its ETag, or the time of its last change where it has none.
    """

    key: str
    size: int
    version: str


def entries(root: str, prefix: str) -> Iterator[Entry]:
    """Yields the objects whose keys begin with a prefix, which ends with a slash or is empty.

    Args:
        root: ``s3://bucket``, ``gs://bucket`` or ``az://container``.
        prefix: of the keys.

    Raises:
        UsageError, StorageError, ObjectMissing: they cannot be listed.
    """
    with _told(f"{root}/{prefix}") as library:
        listed = [_entry(meta) for page in library.list(_store(root), prefix or None) for meta in page]
    folders = {key.rpartition("/")[0] for key, _, _ in listed}
    yield from (entry for entry in listed if entry.size or entry.key not in folders)  # an object may mark a folder


def entry(root: str, key: str) -> Entry:
    """Returns one object. Raises ObjectMissing, UsageError, StorageError."""
    with _told(f"{root}/{key}") as library:
        found = _entry(library.head(_store(root), key))
    if not found.version:
        raise StorageError(f"{root}/{key} has neither an ETag nor a time of change, so that other bytes could come")
    return found


def read(root: str, entry: Entry, begin: int, end: int) -> bytes:
    """Returns a range of an object. Raises ObjectChanged, ObjectMissing, UsageError, StorageError."""
    uri = f"{root}/{entry.key}"
    condition = {"if_match": entry.version} if entry.version.startswith('"') else {}
    with _told(uri) as library:
        answer = library.get(_store(root), entry.key, options={"range": (begin, end), **condition})
        if _entry(answer.meta)[1:] != entry[1:]:  # a server that knows no conditions
            raise ObjectChanged(f"{uri} changed while it was read", _LEAVE)
        return bytes(answer.bytes())


def _entry(meta: Any) -> Entry:
    changed = meta["last_modified"]
    return Entry(meta["path"], meta["size"], meta["e_tag"] or (changed.isoformat() if changed is not None else ""))


def _store(root: str) -> Any:
    if root not in _stores:
        library = importlib.import_module("obstore.store")
        scheme, _, name = root.partition("://")
        common = {
            "client_options": _CLIENT,
            "retry_config": {
                "max_retries": RETRIES,
                "retry_timeout": RETRY_TIME,
                "backoff": {"init_backoff": FIRST_PAUSE},
            },
        }
        if scheme == "s3":
            _stores[root] = library.S3Store(name, **_by_botocore(name), **common)
        elif scheme == "gs":
            _stores[root] = library.GCSStore(name, **common)
        elif scheme == "az":
            _stores[root] = library.AzureStore(name, **common)
        else:
            _stores[root] = library.HTTPStore(root, **common)
    return _stores[root]


def _by_botocore(bucket: str) -> dict[str, Any]:
    """Returns region, endpoint and credentials as botocore finds them; nothing if it is not installed."""
    if importlib.util.find_spec("botocore") is None:
        return {}
    from headrace.instance.s3 import S3

    client = S3()
    endpoint, region = client.place_of(bucket)
    options: dict[str, Any] = {"region": region} | ({"endpoint": endpoint} if endpoint else {})
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return options
    client.key()  # says what is missing

    def provider() -> dict[str, Any]:
        key = client.key()
        until = datetime.now(timezone.utc) + _KEY_LIFE
        return {"access_key_id": key[0], "secret_access_key": key[1], "token": key[2], "expires_at": until}

    return options | {"credential_provider": provider}


@contextlib.contextmanager
def _told(uri: str) -> Iterator[Any]:
    """Gives the library, and turns what it raises into headrace's errors."""
    library = _library()
    kinds = library.exceptions
    try:
        yield library
    except HeadraceError:
        raise
    except FileNotFoundError as error:
        what = "object" if uri.count("/") > 2 + uri.endswith("/") else "bucket"
        raise ObjectMissing(
            f"{uri}: there is no such {what}", "check the name, and the account that it is asked of"
        ) from error
    except kinds.PreconditionError as error:
        raise ObjectChanged(f"{uri} changed while it was read", _LEAVE) from error
    except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
        raise StorageError(
            f"{uri} cannot be read: {_words(error)}", "these credentials may not do that, or are wrong or too old"
        ) from error
    except (kinds.BaseError, ValueError) as error:
        raise StorageError(f"{uri} cannot be read: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Returns the words of an error of obstore, in which no URL has a query: it may hold a key."""
    return _NOT_SHOWN.sub("", str(error))
