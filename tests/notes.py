"""What a test run has to say at its end beside failures: what was not run, and why; seeds. Workers hand it on."""

from __future__ import annotations

NOTES: dict[str, list[str]] = {}


def note(section: str, line: str) -> None:
    """Adds a line to a section of the notes at the end, once."""
    lines = NOTES.setdefault(section, [])
    if line not in lines:
        lines.append(line)
