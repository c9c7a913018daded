"""A hook of MkDocs: writes the keys of the job file into docs/reference/job-keys.md while the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "<!-- keys of the job file -->"
MOST = 12
"""Values of a key that are named; there are 200 instance types."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page with the keys in the place of the mark."""
    return markdown.replace(MARK, "\n".join(job_keys())) if MARK in markdown else markdown


def job_keys() -> Iterator[str]:
    """Yields a Markdown table a model, the job itself first."""
    from headrace.job.file.json_schema import job_schema

    schema = job_schema()
    models = {name for name, model in schema["$defs"].items() if "properties" in model}
    for name, model in {"The job": schema, **schema["$defs"]}.items():
        if "properties" in model:
            required = model.get("required", ())
            yield from ("", f"## {name}", "", "| key | type | default | |", "|---|---|---|---|")
            for key, part in model["properties"].items():
                default = "required" if key in required else f"`{part['default']}`" if "default" in part else ""
                kind = _type(part, models)
                yield f"| `{key}` | {kind} | {default} | {part.get('description', '')} |"


def _type(part: dict[str, Any], models: set[str]) -> str:
    """Returns what values a key takes, in words; another model is a link."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in models else "any"
    if "anyOf" in part:
        return " or ".join(
            dict.fromkeys(_type(choice, models) for choice in part["anyOf"] if choice != {"type": "null"})
        )
    if values := part.get("enum"):
        return ", ".join(f"`{value}`" for value in values[:MOST]) + (" ..." if len(values) > MOST else "")
    if "const" in part:
        return f"`{part['const']}`"
    kind = part.get("type", "any")
    if kind == "array":
        return f"list of {_type(part.get('items', {}), models)}"
    if kind == "object" and isinstance(part.get("additionalProperties"), dict):
        return f"mapping to {_type(part['additionalProperties'], models)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
