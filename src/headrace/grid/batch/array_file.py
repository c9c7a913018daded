"""The array file: line N + 1 of it is what child N of the array job runs. It is made to be read, and read back. Pure.

A grid whose lines say their region and one channel's place has the form ``region,s3://...`` without a header. Every
other one has JSON lines. Either can be the `file` of a grid's `lines`: then every line is placed where it stands.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from headrace.grid.lines.line import REGION, Line

_CSV, _JSON = "array.txt", "array.jsonl"


def array_file(lines: Sequence[Line], regions: Sequence[str]) -> tuple[str, bytes]:
    """Returns the name and the content of the array file.

    Args:
        lines: of the grid.
        regions: where each runs.
    """
    placed = [{**line.fields, REGION: region} for line, region in zip(lines, regions, strict=True)]
    column = _only_place(placed)
    if column:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows((each[REGION], each[column]) for each in placed)
        return _CSV, out.getvalue().encode()
    return _JSON, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in placed).encode()


def _only_place(placed: Sequence[Mapping[str, object]]) -> str:
    """Returns the field of the one channel that all lines name beside their region; empty for another form."""
    named = {field for fields in placed for field in fields if field != REGION}
    column = next(iter(named)) if len(named) == 1 else ""
    if not (column.startswith("inputs.") and column.endswith(".path")):
        return ""
    values = [fields.get(column) for fields in placed]
    return column if all(isinstance(value, str) and value.startswith("s3://") for value in values) else ""
