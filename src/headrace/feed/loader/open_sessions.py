"""The sessions of one loader: one for each pass that goes on, and the one that waits for the next pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.feed.client.session import Session


class OpenSessions:
    """See the module. It keeps no reference to the loader, so that a loader that nobody uses closes them."""

    def __init__(self) -> None:
        self._opened: list[Session] = []
        self._idle: Session | None = None
        self._goes_on_with: int | None = None

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._opened))

    def __bool__(self) -> bool:
        return bool(self._opened)

    def waiting(self, make: Callable[[], Session]) -> Session:
        """Returns the session that waits for the next pass; makes one if there is none."""
        if self._idle is not None and self._idle.inherited:
            self._idle.close()  # nothing of the other process's
        if self._idle is None or self._idle.closed:
            self._opened[:] = [session for session in self._opened if not session.closed]
            self._idle, self._goes_on_with = make(), None
            self._opened.append(self._idle)
        return self._idle

    def take(self, make: Callable[[], Session]) -> tuple[Session, int | None]:
        """Returns the session of a pass, which is the pass's until it is given back, and the epoch that it has begun.

        A session begins the epoch after the latest one by itself, where it can; else that number is None.
        """
        session, begun = self.waiting(make), self._goes_on_with
        self._idle = self._goes_on_with = None
        return session, begun

    def give_back(self, session: Session, goes_on_with: int | None, *, keep: bool) -> None:
        """Keeps the session of a pass for the next one, or ends it.

        Args:
            session: the session.
            goes_on_with: the epoch that it has begun by itself, if it has.
            keep: whether workers are kept over epochs.
        """
        if keep and self._idle is None and not session.closed:
            self._idle, self._goes_on_with = session, goes_on_with
            return
        session.close()
        if session in self._opened:
            self._opened.remove(session)

    def position_set(self) -> None:
        """The next pass begins elsewhere: what a session has begun by itself is not wanted."""
        self._goes_on_with = None

    def close(self) -> None:
        """Closes all."""
        while self._opened:
            self._opened.pop().close()
        self._idle = self._goes_on_with = None
