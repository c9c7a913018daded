"""Runs the agent of this host: `python -m headrace.agent [--lifeline]`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.instance.launch_plan import read_plan, read_secret
from headrace.instance.lifeline import ATTEMPT, OPTION
from headrace.instance.paths import TreePaths, base_directory
from headrace.log_setup import levels_of_environment, log_to
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.process_table import kill_descendants
from headrace.runs import LogWriter, RunPaths, Stream
from headrace.runs.run_paths import AGENT
from headrace.runs.writers import write_behind

END_SECONDS = 5.0  # for what is killed at the very end


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


def main() -> int:
    """Entry point. Returns 0 if the job is complete; see `HostAgent.run`."""
    become_subreaper()
    base = base_directory()
    try:
        plan = read_plan(base)
        secret = read_secret(base)
        host = str(json.loads(TreePaths(base).resource_config.read_bytes())["current_host"])
        me = plan.host(host)
        attempt = int(os.environ.get(ATTEMPT) or 1)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {base} is not the tree of a host: {error}", file=sys.stderr)
        return 2

    async def run() -> int:
        from headrace.agent.host_agent import HostAgent

        return await HostAgent(plan, host, secret, OPTION in sys.argv[1:], attempt).run()

    with write_behind(), LogWriter(RunPaths(Path(me.record_dir)).log(Stream(me.group, host, AGENT))) as log:
        log_to(AgentLogHandler(log), levels_of_environment(logging.INFO))
        try:
            return asyncio.run(run())
        except HeadraceError as error:
            print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
            return 2
        finally:
            kill_descendants(END_SECONDS)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking the interpreter apart takes long
