"""`headrace doctor --engine`: what works in an engine, as a table. It only shows."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engines.capability import Capability
from headrace.insight.render.document import Document, Heading, document, section, sentences, table


def values(engine: str, found: Sequence[Capability]) -> dict[str, object]:
    """Returns what output as JSON holds."""
    return {"engine": engine, "capabilities": [one._asdict() for one in found]}


def capability_document(engine: str, found: Sequence[Capability]) -> Document:
    """Returns what works, and what to do where something does not."""
    rows = ((one.name, "yes" if one.works else "no", one.detail) for one in found)
    missing = (f"for {one.name}: {one.hint}" for one in found if not one.works and one.hint)
    return document(section(Heading(f"engine {engine}"), table(("", "works", ""), rows)), section(*sentences(missing)))
