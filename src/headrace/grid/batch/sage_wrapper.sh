#!/bin/bash
# Runs one line of a grid: the index of the child says which one. Its exit code is that of the line's training job.
set -euo pipefail

if [[ -z "${S3_ARRAY_FILE:-}" ]]; then
  echo "error: S3_ARRAY_FILE is not set: it names the array file in S3" >&2
  exit 2
fi
INDEX="${AWS_BATCH_JOB_ARRAY_INDEX:-${GRID_LINE:-}}"
if [[ -z "$INDEX" ]]; then
  echo "error: this is no array job, and GRID_LINE is not set: nothing says which line to run" >&2
  exit 2
fi
exec headrace grid step --index "$INDEX" --bundle "${S3_ARRAY_FILE%/*}"
