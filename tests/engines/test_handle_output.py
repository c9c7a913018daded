"""What a program that waits for its run shows: the work before the programs, their lines, how they end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.engines import handle as handles
from headrace.runs import EventWriter, Run, Status, create_run
from headrace.runs.events import ChannelProgress, ProgramExited, RunFinished, SecondaryStatus, StatusChanged


class Waiting(handles.Handle):
    """A run that nobody here answers for."""

    def wait(self, timeout: float | None = None) -> Status:
        return self.status

    def stop(self, now: bool = False) -> None:
        raise NotImplementedError


LATER = {
    2: (
        ChannelProgress(t=4.0, channel="train", files=2, files_total=2, bytes=0, bytes_total=0),
        StatusChanged(t=5.0, status=SecondaryStatus.TRAINING, message="Training in progress"),
    ),
    3: (
        ProgramExited(t=6.0, group="g", host="algo-1", stream="0", exit_code=3),
        RunFinished(t=7.0, status=Status.FAILED),
    ),
}
"""What happens when a line of that number has been shown."""


def test_installing_and_downloading_are_told_and_again_when_they_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = create_run("job", "local", runs=tmp_path)
    monkeypatch.setattr(handles, "STILL_SECONDS", -1.0)
    began = time.time() - 60
    with EventWriter(paths.events("engine")) as events:
        message = "Installing the requirements"
        events.write(StatusChanged(t=1.0, status=SecondaryStatus.STARTING, message=message))
        message = "Downloading the training data"
        events.write(StatusChanged(t=began, status=SecondaryStatus.DOWNLOADING, message=message))
        events.write(ChannelProgress(t=began, channel="train", files=1, files_total=2, bytes=0, bytes_total=0))
    seen = []
    for number, line in enumerate(Waiting(Run(paths)).output()):
        seen.append(line)
        with EventWriter(paths.events(f"after-{number}")) as events:
            for event in LATER.get(number, ()):
                events.write(event)
    assert seen[2].startswith("headrace: channel train: 1 of 2 files, 0.0 MB (6")
    assert seen[:2] + seen[3:] == [
        "headrace: Installing the requirements",
        "headrace: Downloading the training data",
        "headrace: channel train: 2 files, 0.0 MB",
        "headrace: g/algo-1[0]: ended with exit code 3",
    ]
