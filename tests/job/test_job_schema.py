"""The JSON Schema of job files: valid, complete, in step with the rules and with the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path

import pytest
from snippets import ONE, TWO

from headrace.job import Job, job_document
from headrace.job.json_schema import job_schema, request_schema
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import known_keys

ROOT = Path(__file__).parent.parent.parent


def keys(schema: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Every key of the schema with its place, and what is said of it."""

    def below(part: object, path: str) -> Iterator[tuple[str, dict[str, object]]]:
        if isinstance(part, list):
            for each in part:
                yield from below(each, path)
        elif isinstance(part, dict):
            part = part | schema["$defs"].get(part.get("$ref", "").removeprefix("#/$defs/"), {})
            for name, inner in part.get("properties", {}).items():
                yield f"{path}.{name}".lstrip("."), inner
                yield from below(inner, f"{path}.{name}")
            for key in ("anyOf", "items", "additionalProperties"):
                yield from below(part.get(key), path)

    return below(schema, "")


def test_every_key_is_described() -> None:
    for place, part in keys(job_schema()):
        assert part.get("description"), place


def test_the_schema_has_every_key_of_the_models_and_their_other_names() -> None:
    assert set(job_schema()["properties"]) == set(known_keys((), JobFields))  # type: ignore[arg-type]
    places = {place for place, _ in keys(job_schema())}
    assert {"instance_groups.name", "instance_groups.instance_group_name", "inputs.path", "inputs.s3_data"} <= places
    assert {"distribution.mpi.enabled", "engines.local.network.bandwidth", "tags.Key"} <= places


@pytest.mark.promise("job-file", "a mistake in a job file is named with file, line, field and what is allowed")
def test_the_page_of_keys_has_a_row_for_every_key() -> None:
    page = run_path(str(ROOT / "scripts" / "site_pages.py"))
    text = page["on_page_markdown"]((ROOT / "docs" / "reference" / "job-keys.md").read_text())
    for place, part in keys(job_schema()):
        assert re.search(
            rf"^\| `{place.rpartition('.')[2]}` \|.*\| {re.escape(part['description'])} \|$", text, re.M
        ), place


def test_the_page_of_keys_has_defaults_as_a_job_file_writes_them() -> None:
    text = "\n".join(run_path(str(ROOT / "scripts" / "site_pages.py"))["job_keys"]())
    for key, default in {"input_mode": "File", "use_spot_instances": "false", "max_run": "86400"}.items():
        assert re.search(rf"^\| `{key}` \|[^|]*\| `{default}` \|", text, re.M), key


def test_the_page_of_the_job_file_explains_every_key_at_the_top() -> None:
    text = (ROOT / "docs" / "job-file.md").read_text()
    assert [name for name in job_schema()["properties"] if not re.search(rf"[`.]{name}[`.:]", text)] == []


def test_both_schemas_are_valid_and_agree_with_the_rules(load: Callable[..., Job]) -> None:
    import jsonschema

    for schema in (job_schema(), request_schema()):
        jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(job_schema())
    for text in (ONE, TWO + "distribution:\n  - {mpi: {enabled: true}, instance_groups: [dnn]}\ninputs: {a: data}\n"):
        validator.validate(job_document.read(text).data)
        validator.validate(json.loads(load(text).to_json()))
    for text in (
        ONE + "hyperparams: {}",
        ONE + "input_mode: Stream",
        ONE + "distribution: {mpi: {}}",
        ONE.replace("ml.c5.xlarge", "c5.xlarge"),
        TWO.replace("name: dnn", "title: dnn"),
    ):
        assert not validator.is_valid(job_document.read(text).data), text
