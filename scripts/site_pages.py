"""A hook of MkDocs: writes, in the place of a comment on a page, what is made from code while the site is built.

The keys of the job file, why a loader has as many workers as it has, the promises that the tests are marked with, and
CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
MOST = 12
"""Values of a key that are named; there are 200 instance types."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page with what is made in the place of its comment."""
    for comment, lines in MADE.items():
        if comment in markdown:
            markdown = markdown.replace(comment, "\n".join(lines()))
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Returns a page without the name that click has for an option's default where there is none."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


class Promise(NamedTuple):
    """A mark `@pytest.mark.promise(PAGE, TEXT)` of a test, which is named FILE::TEST."""

    page: str
    text: str
    test: str
    is_in_every_run: bool
    """Whether the test stands outside of `if SOAK`."""


def promises() -> Iterator[Promise]:
    """Yields the marks of all tests, read without an import.

    Raises:
        ValueError: A mark is not on a test, or its two arguments are not texts as they stand.
    """
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.promise" not in (source := path.read_text()):
            continue
        tree = ast.parse(source)
        marks = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "promise"}
        for test in ast.walk(tree):
            for decorator in test.decorator_list if isinstance(test, ast.FunctionDef) else ():
                match decorator:
                    case ast.Call(func=mark, args=[ast.Constant(str(page)), ast.Constant(str(text))]) if mark in marks:
                        marks.remove(mark)
                        yield Promise(page, text, f"{path.relative_to(TESTS)}::{test.name}", test in tree.body)
        if marks:
            lines = sorted(mark.lineno for mark in marks)
            raise ValueError(f'{path}, lines {lines}: a promise is @pytest.mark.promise("PAGE", "TEXT") on a test')


def promise_tables() -> Iterator[str]:
    """Yields a table a page: its promises, and the tests of each."""
    pages: dict[str, dict[str, list[str]]] = {}
    for promise in promises():
        pages.setdefault(promise.page, {}).setdefault(promise.text, []).append(f"`{promise.test}`")
    for page, tests in sorted(pages.items()):
        yield from ("", f"## [{page}](../{page}.md)", "", "| promise | tests |", "|---|---|")
        yield from (f"| {text} | {'<br>'.join(names)} |" for text, names in tests.items())


def contributing() -> Iterator[str]:
    """Yields CONTRIBUTING.md with its links as they lead from a folder of docs/; links to code become text."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    text = re.sub(r"\]\(docs/", "](../", text)
    yield re.sub(r"\[([^\]]*)\]\((?!\.\./|#|https?:)[^)]*\)", r"\1", text)


def job_keys() -> Iterator[str]:
    """Yields a Markdown table a model, the job itself first."""
    from headrace.job.json_schema import job_schema

    schema = job_schema()
    models = {
        name: form
        for name, model in {"The job": schema, **schema["$defs"]}.items()
        for form in (model, *model.get("anyOf", ()))  # a channel is a path, or a mapping
        if "properties" in form
    }
    for name, model in models.items():
        required = model.get("required", ())
        yield from ("", f"## {name.lstrip('_')}", "", "| key | type | default | |", "|---|---|---|---|")
        for key, part in model["properties"].items():
            default = "required" if key in required else f"`{_yaml(part['default'])}`" if "default" in part else ""
            kind = _type(part, models)
            yield f"| `{key}` | {kind} | {default} | {part.get('description', '')} |"


def worker_reasons() -> Iterator[str]:
    """Yields a table of what a loader's number of workers is based on."""
    from headrace.feed_metrics import Because

    yield from ("| `because` | |", "|---|---|")
    yield from (f"| `{because.value}` | {because.text} |" for because in Because)


def _yaml(value: str | float) -> str:
    """Returns a plain value as a job file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(part: dict[str, Any], models: Collection[str]) -> str:
    """Returns what values a key takes, in words; another model is a link."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        heading = name.lstrip("_")
        return f"[{heading}](#{heading.lower()})" if name in models else "any"
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


MADE = {
    "<!-- keys of the job file -->": job_keys,
    '<!-- reasons of "auto" -->': worker_reasons,
    "<!-- promises -->": promise_tables,
    "<!-- CONTRIBUTING.md -->": contributing,
}
