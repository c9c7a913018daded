"""The text of a job file: YAML in and out, what ``--set`` changes in it, and from Python's arguments to plain data.
"""

from __future__ import annotations
