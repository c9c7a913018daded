"""Writes src/headrace/endpoint/wire/operations.json: the operations that `headrace serve` answers, from botocore.

    .venv/bin/python scripts/wire_shapes.py

It takes the installed botocore. Run it for a new operation (OPERATIONS), or when a new botocore brings other shapes;
tests/endpoint/test_wire.py says when. One line holds one shape, in the words of the model, without its documentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import botocore
import botocore.loaders

FILE = Path(__file__).parent.parent / "src" / "headrace" / "endpoint" / "wire" / "operations.json"
OPERATIONS = {
    "cloudwatch": ["GetMetricStatistics"],
    "iam": ["GetRole", "SimulatePrincipalPolicy"],
    "logs": ["DescribeLogGroups", "DescribeLogStreams", "FilterLogEvents", "GetLogEvents"],
    "s3": [
        *("AbortMultipartUpload", "CompleteMultipartUpload", "CopyObject", "CreateBucket", "CreateMultipartUpload"),
        *("DeleteBucket", "DeleteObject", "DeleteObjects", "GetBucketLocation", "GetBucketVersioning", "GetObject"),
        *("HeadBucket", "HeadObject", "ListBuckets", "ListMultipartUploads", "ListObjects", "ListObjectsV2"),
        *("ListParts", "PutObject", "UploadPart", "UploadPartCopy"),
    ],
    "sagemaker": ["DeleteTrainingJob", "DescribeTrainingJob", "ListTags", "ListTrainingJobs", "StopTrainingJob"],
    "sagemaker-metrics": ["BatchGetMetrics", "BatchPutMetrics"],
    "sts": ["GetCallerIdentity"],
}
XML = ("cloudwatch", "iam", "s3", "sts")  # of the others answers are JSON, which needs no shapes
_KEPT = ("type", "required", "min", "max", "pattern", "enum", "payload", "flattened")


def wire_shapes() -> str:
    """Returns the text of the file for the installed botocore."""
    loader = botocore.loaders.Loader()
    services = [
        f"{json.dumps(name)}: {_service(name, loader.load_service_model(name, 'service-2'))}" for name in OPERATIONS
    ]
    return f'{{"source": "botocore {botocore.__version__}", "services": {{\n' + ",\n".join(services) + "\n}}\n"


def _service(name: str, model: dict[str, Any]) -> str:
    operations, shapes, names = {}, {}, []
    for each in OPERATIONS[name]:
        theirs = model["operations"][each]
        sides = ("input", "output") if name in XML else ("input",)
        ours = {side: theirs[side]["shape"] for side in sides if side in theirs}
        operations[each] = {"http": theirs["http"], **ours}
        names += ours.values()
    while names:
        shape = names.pop()
        if shape not in shapes:
            theirs = model["shapes"][shape]
            shapes[shape] = {key: theirs[key] for key in _KEPT if theirs.get(key) not in (None, [], False)}
            if members := {key: _reference(inner) for key, inner in theirs.get("members", {}).items()}:
                shapes[shape]["members"] = members
            inner = {key: _reference(theirs[key]) for key in ("member", "key", "value") if key in theirs}
            shapes[shape] |= inner
            names += [each if isinstance(each, str) else each["shape"] for each in (*members.values(), *inner.values())]
    metadata = {key: model["metadata"].get(key, "") for key in ("targetPrefix", "xmlNamespace")}
    lines = [f"  {json.dumps(each)}: {json.dumps(shapes[each])}" for each in sorted(shapes)]
    head = f'"metadata": {json.dumps(metadata)},\n "operations": {json.dumps(operations)}'
    return f'{{{head},\n "shapes": {{\n' + ",\n".join(lines) + "\n}}"


def _reference(theirs: dict[str, Any]) -> Any:
    ours = {key: theirs[key] for key in ("shape", "location", "locationName") if key in theirs}
    return ours if len(ours) > 1 else theirs["shape"]


if __name__ == "__main__":
    FILE.write_text(wire_shapes(), encoding="utf-8")
    print(FILE)
