"""What was seen when the table of engines was played on a real cluster, as JSON: KUBERNETES_RECORD, by default
.cache/kubernetes/table.json. A copy of one is below bench/results; docs/developers/engine-tables.md shows it."""

from __future__ import annotations

import json
import os
import platform as machine
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_table_platform import Platform
from engine_table_play import Play

ROOT = Path(__file__).parents[2]


@dataclass
class Row:
    """What was seen of one row.

    Attributes:
        platform: where.
        name: of the row.
        holds: whether all held that the table says, to the last look at what is left.
        same_losses: whether they were those of the local run in every byte; None where there are none.
    """

    platform: Platform
    name: str = ""
    holds: bool = False
    same_losses: bool | None = None
    _play: Play | None = None
    _began: float = field(default_factory=time.monotonic)
    _struck: float = 0.0
    _seconds: float = 0.0
    _code: int | None = None

    def watched(self, strike: Callable[[Play], None]) -> Callable[[Play], None]:
        """Returns `Play.strike` that tells this row when it was."""

        def struck(play: Play) -> None:
            self._struck = time.monotonic()
            strike(play)

        return struck

    def ended(self, wait: Callable[[Play, float], int]) -> Callable[[Play, float], int]:
        """Returns `Play.wait` that tells this row how it ended."""

        def waited(play: Play, seconds: float) -> int:
            if play.platform is not self.platform:  # the local run beside it
                return wait(play, seconds)
            self._play = play
            try:
                self._code = wait(play, seconds)
                return self._code
            finally:
                self._seconds = time.monotonic()

        return waited

    def seen(self) -> dict[str, Any]:
        """Returns it as what JSON has."""
        found: dict[str, Any] = {"row": self.name, "holds": self.holds}
        if self._play is None:
            return found
        run = self._play.run
        cause = run.cause
        found |= {
            "status": run.status.value,
            "cause": None if cause is None else cause.kind.value,
            "text": "" if cause is None else str(cause),
            "infrastructure": cause is not None and cause.infrastructure,
            "degraded": run.degraded,
            "exit_code": self._code,
            "seconds": round(self._seconds - self._began, 1),
        }
        if self._struck:
            found["seconds_from_fault"] = round(self._seconds - self._struck, 1)
        return found if self.same_losses is None else {**found, "same_losses": self.same_losses}


class TableRecord:
    """The rows of one play of the table."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, row: Row) -> None:
        """Adds a row that was played; a row that was skipped has no play."""
        self._rows.append(row.seen())

    def write(self) -> None:
        """Writes the file."""
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        version = subprocess.run(["kubectl", "version", "-o", "json"], capture_output=True, text=True, check=True)
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit.stdout.strip(),
            "machine": f"{os.cpu_count()} CPUs, Linux {machine.release()}",
            "kubernetes": json.loads(version.stdout)["serverVersion"]["gitVersion"],
            "nodes": 4,
            "load": os.getloadavg()[0],
        }
        path = Path(os.environ.get("KUBERNETES_RECORD") or ROOT / ".cache" / "kubernetes" / "table.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**about, "rows": self._rows}, indent=1) + "\n")
