"""Signs of life: when to ask a silent feed server for one, and when to give it up.

A stopped or frozen host keeps its connections: its kernel goes on acknowledging. So a client asks (`Ping`) when it has
heard nothing for a while. A feed server answers at once, whatever its executors do; one that does not answer is gone,
and its work is asked for elsewhere.

The caller reads what has come before it checks, so a caller that was busy itself gives up no server: only the silence
after the question counts. The connection decides what counts as a sign (`FramedConnection.signs_of_life`): single bytes
do not, so a connection over which nothing useful comes counts as silent.
"""

from __future__ import annotations

from typing import Literal

ASK_AFTER = 1.0
GONE_AFTER = 3.0


class Keepalive:
    """Watches one peer.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._heard = now
        self._asked: float | None = None
        self._received = 0

    def check(self, now: float, received: int) -> Literal["", "ask", "gone"]:
        """Returns what to do now.

        Args:
            now: monotonic seconds.
            received: number that has grown if the peer has given a sign of life.
        """
        if received != self._received:
            self._received, self._heard, self._asked = received, now, None
        if self._asked is not None:
            return "gone" if now - self._asked > GONE_AFTER else ""
        if now - self._heard > ASK_AFTER:
            self._asked = now
            return "ask"
        return ""
