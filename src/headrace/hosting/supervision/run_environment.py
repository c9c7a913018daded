"""The variables of the processes that belong to a run: supervisor, agents, and who works for it after them."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.instance.lifeline import PACKAGE_ENTRY, RUN_ID


def supervisor_environment(run_id: str) -> dict[str, str]:
    """Returns the variables of supervisor and agents: those of the caller, and how headrace is found from elsewhere.

    That folder may have other packages too, so no program sees it: `headrace.instance.toolkit` leads programs to
    headrace alone, where their Python does not have it.
    """
    package = str(Path(__file__).resolve().parents[3])
    search = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    variables = {**os.environ, RUN_ID: run_id}
    if package not in search:
        search.insert(0, package)
        variables[PACKAGE_ENTRY] = package
    return {**variables, "PYTHONPATH": os.pathsep.join(search)}
