"""What the API server of a real cluster said of a host's Job (kubernetes_traces), step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.engines.kubernetes.pod_states import seconds_of

FOLDER = Path(__file__).parent / "kubernetes_traces"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

Object = dict[str, Any]


@dataclass
class Seen:
    """What is there at one moment of a trace.

    Attributes:
        at: seconds since the trace began.
        now: seconds since the epoch.
    """

    at: float = 0.0
    now: float = 0.0
    pods: dict[str, Object] = field(default_factory=dict)
    jobs: dict[str, Object] = field(default_factory=dict)
    events: dict[str, Object] = field(default_factory=dict)

    def events_of(self, uid: str) -> list[Object]:
        return [each for each in self.events.values() if each["involvedObject"].get("uid") == uid]


def steps(name: str) -> list[Object]:
    """The steps of a trace."""
    return json.loads((FOLDER / f"{name}.json").read_text())["steps"]


def replay(name: str) -> Iterator[Seen]:
    """Yields what is there after each step; the same object, changed."""
    seen = Seen()
    first = min(
        seconds_of(step["object"]["metadata"].get("creationTimestamp")) - step["at"]
        for step in steps(name) if step["type"] == "ADDED"
    )  # fmt: skip
    for step in steps(name):
        objects, made = getattr(seen, step["kind"]), step["object"]
        key = made["metadata"].get("uid") or made["metadata"]["name"]
        if step["type"] == "DELETED":
            objects.pop(key, None)
        else:
            objects[key] = made
        seen.at, seen.now = step["at"], first + step["at"]
        yield seen
