"""Where an object lies below its channel's directory. Pure.

SageMaker takes every key that begins with the prefix, whatever the prefix is: a folder, a folder without its slash,
the beginning of names, or one whole key. The name of a file is what a user who wrote that prefix means:

    prefix      key              name
    data/       data/x/a.csv     x/a.csv         a folder
    data        data/x/a.csv     x/a.csv         the same folder
    data/x      data/x1/a.csv    x1/a.csv        the beginning of names: the key without the prefix's folder
    data/a.csv  data/a.csv       a.csv           one object
                data/a.csv       data/a.csv      a whole bucket

A key that ends in a slash is a folder's marker, no file. Two keys can come to one name, and an S3 key can be what no
file system allows; both are errors that name the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.errors import UsageError

MAX_NAME = 255  # bytes of one component, on all common file systems


def name_of(key: str, prefix: str) -> str:
    """Returns the path of an object below the channel's directory.

    >>> name_of("data/x/a.csv", "data"), name_of("data/x1/a.csv", "data/x"), name_of("data/a.csv", "data/a.csv")
    ('x/a.csv', 'x1/a.csv', 'a.csv')

    Args:
        key: the object's key, which begins with `prefix`.
        prefix: the prefix, as the user gave it.

    Returns:
        The relative path; empty for a folder's marker.
    """
    if key.endswith("/"):
        return ""
    rest = key[len(prefix) :]
    if rest and (not prefix or prefix.endswith("/")):
        return rest
    if rest.startswith("/"):
        return rest[1:]
    return key[prefix.rfind("/") + 1 :]


def check_names(channel: str, named: Iterable[tuple[str, str]]) -> None:
    """Checks that all objects of a channel can lie in one directory.

    Args:
        channel: the channel's name, for messages.
        named: name and key of every object.

    Raises:
        UsageError: a name that no file can have, or that two objects claim.
    """
    keys: dict[str, str] = {}
    for name, key in named:
        why = _impossible(name)
        if why:
            raise UsageError(
                f"channel {channel!r}: {key!r} cannot be a file: {why}",
                "rename the object, or choose a prefix or manifest without it",
            )
        if name in keys:
            raise _clash(channel, name, [keys[name], key])
        keys[name] = key
    for name, key in keys.items():
        for end in (index for index, letter in enumerate(name) if letter == "/"):
            if name[:end] in keys:
                raise _clash(channel, name[:end], [keys[name[:end]], key])


def _impossible(name: str) -> str:
    parts = name.split("/")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "its name is not UTF-8"
    if "\0" in name:
        return "its name holds a zero byte"
    if "" in parts:
        return "its path has an empty part"
    if "." in parts or ".." in parts:
        return "its path holds '.' or '..'"
    if any(len(part.encode()) > MAX_NAME for part in parts):
        return f"a part of its path is longer than {MAX_NAME} bytes"
    return ""


def _clash(channel: str, name: str, keys: Sequence[str]) -> UsageError:
    return UsageError(
        f"channel {channel!r}: {keys[0]!r} and {keys[1]!r} would both lie at {name!r}",
        "end the prefix with '/', or name the objects in a manifest",
    )
