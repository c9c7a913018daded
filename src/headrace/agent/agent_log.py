"""Sends the agent's log records into its log of the run."""

from __future__ import annotations

import logging

from headrace.runs import LogWriter


class AgentLogHandler(logging.Handler):
    """Writes the text of a record as one entry of a log; a record below INFO says its level and logger first.

    Args:
        log: the log; it belongs to the caller.
    """

    def __init__(self, log: LogWriter) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record."""
        try:
            text = self.format(record)
            if record.levelno < logging.INFO:
                text = f"{record.levelname.lower()} {record.name}: {text}"
            self._log.write_line("o", text.encode(errors="replace"), record.created)
        except Exception:  # noqa: BLE001  (a record that cannot be formatted is reported by `logging`, on stderr)
            self.handleError(record)
