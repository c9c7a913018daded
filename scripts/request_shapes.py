"""Writes src/headrace/job/sagemaker/request_shapes.json: the shapes of a CreateTrainingJob request, from botocore.

    .venv/bin/python scripts/request_shapes.py

It takes the installed botocore. Run it when a new one brings another request; tests/job/test_job_request_shapes.py says
when. One line holds one shape, in the words of the model, without what headrace does not use: documentation, the names
of instance types (training types are those of headrace.catalog, processing types are not looked up), and limits of 0.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import botocore

ROOT = "CreateTrainingJobRequest"
FILE = Path(__file__).parent.parent / "src" / "headrace" / "job" / "sagemaker" / "request_shapes.json"
INSTANCE_TYPES = ("TrainingInstanceType", "ProcessingInstanceType")
_KINDS = {"long": "integer"}


def service_model() -> dict[str, Any]:
    """Returns SageMaker's model as the installed botocore has it."""
    folder = Path(botocore.__file__).parent / "data" / "sagemaker" / "2017-07-24"
    packed = folder / "service-2.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "service-2.json").read_bytes()
    return json.loads(text)


def request_shapes(model: dict[str, Any]) -> str:
    """Returns the text of the file for a model."""
    shapes: dict[str, dict[str, Any]] = {}
    wanted = [ROOT]
    while wanted:
        name = wanted.pop(0)
        if name not in shapes:
            shapes[name], inner = _shape(name, model["shapes"][name])
            wanted += inner
    lines = [f"  {json.dumps(name)}: {json.dumps(shapes[name])}" for name in sorted(shapes)]
    about = f"sagemaker/2017-07-24 of botocore {botocore.__version__}"
    return f'{{"source": {json.dumps(about)}, "shapes": {{\n' + ",\n".join(lines) + "\n}}\n"


def _shape(name: str, theirs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns a shape, and the names of those inside it."""
    ours: dict[str, Any] = {"type": _KINDS.get(theirs["type"], theirs["type"])}
    for key in ("required", "min", "max", "pattern", "enum"):
        if theirs.get(key) not in (None, []) and not (key == "enum" and name in INSTANCE_TYPES):
            ours[key] = theirs[key]
    if ours["type"] != "integer" and ours.get("min") == 0:
        del ours["min"]
    members = {member: each["shape"] for member, each in theirs.get("members", {}).items()}
    inner = {key: theirs[key]["shape"] for key in ("member", "key", "value") if key in theirs}
    return ours | ({"members": members} if members else {}) | inner, [*members.values(), *inner.values()]


if __name__ == "__main__":
    FILE.write_text(request_shapes(service_model()), encoding="utf-8")
    print(FILE)
