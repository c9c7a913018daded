"""A worker's exception, raised again in the trainer. Nothing is unpickled: the type is found by name, if it is known
here."""

from __future__ import annotations

import builtins
import sys
import traceback
import warnings

from headrace import errors
from headrace.errors import FeedError
from headrace.feed.wire.messages import RemoteError


def kind_of(kind: type[BaseException]) -> str:
    """Returns the name of an exception's type in `RemoteError`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def remote_error(error: BaseException) -> RemoteError:
    """Describes an exception for the trainer: with its traceback, unless that leads through no code of the user's."""
    kind = type(error)
    text = "" if _says_it_all(error) else _traceback_of(error)
    return RemoteError(kind_of(kind), errors.text_of(error), errors.sendable(text))


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failed:  # noqa: BLE001 - of attributes that are not what they should be; the error counts
        return f"(it cannot be had: {type(failed).__name__})"


def _says_it_all(error: BaseException) -> bool:
    """Returns whether headrace itself has raised it on purpose."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    own = all(str(frame.f_globals.get("__name__", "")).startswith("headrace.") for frame in frames)
    return own and isinstance(error, errors.HeadraceError)


def warn_user(text: str, kind: type[Warning]) -> None:
    """Warns, with the line of the user's that called into the feed."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headrace.feed."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def in_short(error: RemoteError) -> str:
    """Returns type and message, without the traceback."""
    return f"{error.kind.partition(':')[2]}: {error.message}"


def remade(error: RemoteError, where: str, otherwise: type[FeedError] = errors.WorkerError) -> Exception:
    """Returns a worker's exception, with the remote traceback in its message.

    A built-in exception, one of headrace's, or one whose module is already imported here is made again as its own type,
    as torch's DataLoader does; any other as `otherwise`.
    """
    module, _, name = error.kind.partition(":")
    text = f"{error.message} ({where})"
    if error.traceback:
        text = f"{error.message}\n\n{where}; the traceback there:\n{error.traceback}"
    kind = _exception_type(module, name)
    try:
        if kind is not None:
            return kind(_Verbatim(text) if issubclass(kind, KeyError) else text)
    except Exception:  # noqa: BLE001 - a type whose constructor wants something else: ours tells it
        kind = None
    return otherwise(f"{name}: {text}")


class _Verbatim(str):
    """A text that KeyError shows as it is; it shows `repr` of its argument, which would be a single line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _exception_type(module: str, name: str) -> type[Exception] | None:
    owner = builtins if module == "builtins" else errors if module == "headrace.errors" else sys.modules.get(module)
    found = getattr(owner, "__dict__", {}).get(name)  # no code of the module's runs
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, StopIteration):
        return found
    return None
