"""Installs the requirements of a job before its programs start.

It is started as `python -m headrace.hosting.helpers.install RUN_DIR`.

`engine/install.json` names the environments that the run needs (see `requirements`). What pip says goes to
`engine/pip.log`. Ends with 0, or with 1 and ``error: ...`` as the last line of standard error, after the last lines of
pip. SIGTERM ends it, and pip with it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.hosting.helpers.helper_main import work
from headrace.hosting.inputs.requirements import (
    INSTALL,
    InstallRequirementsError,
    VirtualEnvironment,
    environments_dir,
    make,
    sweep,
)
from headrace.runs import EventWriter, RequirementsInstalled, RunPaths

PIP_LOG = "pip.log"
FAILED = "InstallRequirementsError"


def install(paths: RunPaths) -> None:
    """Makes the environments of a run.

    Raises:
        InstallRequirementsError, StorageError: one cannot be made.
    """
    wanted = msgspec.json.decode((paths.engine / f"{INSTALL}.json").read_bytes(), type=list[VirtualEnvironment])
    with EventWriter(paths.events(INSTALL)) as events, (paths.engine / PIP_LOG).open("ab") as log:
        for environment in wanted:
            began = time.monotonic()
            try:
                file = paths.code / environment.requirements
                made = make(Path(environment.path), file, paths.code, log, environment.base, environment.variables)
            except InstallRequirementsError as error:
                raise InstallRequirementsError(f"{environment.requirements}: {error.message}", error.lines) from error
            events.write(
                RequirementsInstalled(
                    t=time.time(),
                    requirements=environment.requirements,
                    environment=environment.path,
                    groups=environment.groups,
                    seconds=round(time.monotonic() - began, 3),
                    reused=not made,
                )
            )


def main(paths: RunPaths) -> None:
    """Entry point."""
    sweep(environments_dir())
    try:
        install(paths)
    except InstallRequirementsError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        message = " ".join(error.message.split())
        raise HeadraceError(f"{message} (all that pip said: {paths.engine / PIP_LOG})") from error


if __name__ == "__main__":
    sys.exit(work(main, FAILED))
