"""The image of the children: its definition, in the layout that wrappers of AWS Batch have had since they were scripts.

    /api/sage_wrapper.sh    what Batch runs
    headrace                and boto3, which the wrapper calls
    /api/home/wheels        what training images may lack, which children would else download one by one

The wrapper becomes the command (`exec`), so that the command gets Batch's signals and its exit code is the child's.
Pure.
"""

from __future__ import annotations

import json

from headrace.cloud.image_files import DOCKERFILE

WRAPPER = "sage_wrapper.sh"
COMMAND = f"/api/{WRAPPER}"
ARRAY_VARIABLE = "S3_ARRAY_FILE"
LINE_VARIABLE = "GRID_LINE"
"""Index of the line of a job that is no array: Batch has no array of one child."""
RUNS_VARIABLE = "GRID_RUNS"
"""How often a line may run: once, and once more for each submission of the grid that has failed."""

_DOWNLOAD = (
    "from headrace.engines.planning import library_wheels as all; "
    "[all.downloaded_libraries(each) for each in all.PYTHONS]"
)
_WRAPPER = f"""\
#!/bin/bash
# Runs one line of a grid: the index of the child says which one. Its exit code is that of the line's training job.
set -euo pipefail

if [[ -z "${{{ARRAY_VARIABLE}:-}}" ]]; then
  echo "error: {ARRAY_VARIABLE} is not set: it names the array file in S3" >&2
  exit 2
fi
INDEX="${{AWS_BATCH_JOB_ARRAY_INDEX:-${{{LINE_VARIABLE}:-}}}}"
if [[ -z "$INDEX" ]]; then
  echo "error: this is no array job, and {LINE_VARIABLE} is not set: nothing says which line to run" >&2
  exit 2
fi
exec headrace grid step --index "$INDEX" --bundle "${{{ARRAY_VARIABLE}%/*}}"
"""


def image_definition(base: str, wheel: tuple[str, bytes]) -> dict[str, bytes]:
    """Returns the files of the definition, by name.

    Args:
        base: image to begin with; it has Python, pip and bash.
        wheel: name and content of headrace's wheel.
    """
    name, content = wheel
    place = "/tmp/headrace"
    dockerfile = (
        f"FROM {base}\n\n"
        "### HEADRACE AND BOTO3\n\n"
        f"COPY {json.dumps([name, place + '/'])}\n"
        f'RUN python3 -m pip install --no-cache-dir "{place}/{name}[sagemaker]" \\\n'
        f" && rm -r {place} && headrace --version\n\n"
        "### API SCRIPTS\n\n"
        "RUN mkdir /api\n"
        f"COPY {WRAPPER} /api\n"
        f"RUN chmod +x {COMMAND}\n\n"
        "### WHEELS FOR TRAINING IMAGES\n\n"
        "ENV HEADRACE_HOME=/api/home\n"
        f"RUN python3 -c {json.dumps(_DOWNLOAD)}\n"
    )
    return {name: content, WRAPPER: _WRAPPER.encode(), DOCKERFILE: dockerfile.encode()}
