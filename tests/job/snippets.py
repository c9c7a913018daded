"""Job files that the tests of this folder begin with."""

HEAD = """\
job_name: demo
source_dir: code
entry_point: train.py
"""

ONE = (
    HEAD
    + """\
instance_type: ml.c5.xlarge
instance_count: 1
"""
)
"""Five lines: a valid homogeneous job. A snippet that follows begins in line 6."""

TWO = (
    HEAD
    + """\
instance_groups:
  - {name: data, type: ml.c5.xlarge, count: 2}
  - {name: dnn, type: ml.g5.12xlarge, count: 1}
"""
)
"""Six lines: a valid heterogeneous job. A snippet that follows begins in line 7."""
