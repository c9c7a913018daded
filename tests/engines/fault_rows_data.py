"""Faults of data: feed servers and their workers, channels, disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fault_deeds import (
    KILL,
    STOP,
    at,
    at_last,
    complete,
    disk_full,
    executor,
    feed_ready,
    helper,
    last_words,
    let_end,
    nothing,
    printed,
    program,
    programs_run,
    small_disk,
    start,
    then,
)
from fault_jobs import DOWNLOADING, FEEDING, KEEPING, LOGGING, PIPING, SAVING, STORING
from fault_row import COMPLETED, Row
from fault_s3 import change, downloading, fill_disk, go_on, serve, vanish

from headrace.insight import report
from headrace.runs.events import DataWorkerLost, FeedReady, ProgramExited

if TYPE_CHECKING:
    from fault_play import Play


def served_again(times: int) -> object:
    """The data worker is ready again."""
    return lambda play: play.until(lambda: len(play.events(FeedReady)) >= times, "the feed again")


def worker_lost(play: Play) -> None:
    """The run says that it lost a data worker."""
    play.until(lambda: play.events(DataWorkerLost), "the loss of a data worker")


def lost_lines_told(play: Play) -> None:
    """The event, the words at the terminal and the report's note say how many of its 8,000 lines the log has not."""
    (ended,) = play.events(ProgramExited)
    assert ended.lost_lines == 8000 - sum(line.kind == "o" for line in play.run.logs()) > 1000
    words = f"lines of its output that the disk did not take: {ended.lost_lines}"
    assert words in play.said_to_user()
    assert any(words in note for note in report(play.run).notes)


def make_data(play: Play) -> None:
    """Makes a folder with data."""
    (play.place / "data").mkdir()
    for name in "abc":
        (play.place / "data" / name).write_text(name * 100_000)


FEED = [
    Row(
        "feed server killed at its start",
        FEEDING,
        then(at(start, KILL, program("algo-2", "feed")), worker_lost, served_again(1), let_end),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "feed server killed: started again",
        FEEDING,
        then(at(feed_ready, KILL, program("algo-2", "feed")), worker_lost, served_again(2), let_end),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "feed server killed at the end",
        FEEDING,
        at_last(feed_ready, complete, KILL, program("algo-2", "feed")),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "feed server stopped: does not hold the end",
        FEEDING,
        then(at(feed_ready, STOP, program("algo-2", "feed")), let_end),
        limit=14,
        **COMPLETED,
        soak=True,
    ),
    Row(
        "feed worker killed",
        FEEDING,
        then(at(feed_ready, KILL, executor), worker_lost, let_end),
        **COMPLETED,
        soak=True,
    ),
    Row(
        "feed worker stopped", FEEDING, then(at(feed_ready, STOP, executor), let_end), limit=14, **COMPLETED, soak=True
    ),
]

CHANNELS = [
    Row(
        "download: helper process killed",
        DOWNLOADING,
        then(at(downloading, KILL, helper("stage"))),
        "filling the channels failed: killed by SIGKILL",
        machine=(serve,),
        soak=True,
    ),
    Row(
        "an object changes during the download",
        DOWNLOADING,
        then(downloading, change),
        r"filling the channels failed: channel 'train': s3://bucket/train/\d changed while it was read.*",
        machine=(serve,),
        soak=True,
    ),
    Row(
        "an object vanishes during the download",
        DOWNLOADING,
        then(downloading, vanish),
        r"filling the channels failed: channel 'train': s3://bucket/train/\d: there is no such object.*",
        machine=(serve,),
        soak=True,
    ),
    Row(
        "disk full during the download",
        DOWNLOADING,
        then(downloading, fill_disk, go_on),
        r"filling the channels failed: channel 'train': .*(No space left on device|disk is full).*",
        machine=(small_disk("home", 40), serve),
    ),
    Row(
        "channels: helper process killed",
        PIPING,
        at(programs_run(1), KILL, helper("serve_channels")),
        "serving the channels failed: killed by SIGKILL",
        machine=(make_data,),
        soak=True,
    ),
    Row(
        "a reader of a FIFO leaves",
        PIPING.running(
            """
            import os
            base = os.environ["SAGEMAKER_BASE_DIR"] + "/input/data"
            for epoch in range(4):
                with open(f"{base}/train_{epoch}", "rb") as file:
                    print("read", epoch, file.read(1))
            """
        ),
        nothing,
        **COMPLETED,
        limit=20,
        machine=(make_data,),
        after=(printed("read 3 b'a'"),),
        soak=True,
    ),
    Row(
        "a reader of a FIFO is killed",
        PIPING.running(
            """
            import os, time
            file = open(os.environ["SAGEMAKER_BASE_DIR"] + "/input/data/train_0", "rb")
            print("running", file.read(1), flush=True)
            time.sleep(600)
            """
        ),
        at(programs_run(1), KILL, program("algo-1")),
        r"dnn/algo-1\[0\]: killed by SIGKILL",
        machine=(make_data,),
        soak=True,
    ),
]

DISKS = [
    Row(
        "disk full: log",
        LOGGING,
        then(disk_full, let_end),
        **COMPLETED,
        machine=(small_disk("home", 4),),
        after=(lost_lines_told,),
    ),
    Row(
        "disk full: model on the host",
        SAVING,
        nothing,
        r"dnn/algo-1\[0\]: exited with code 1: OSError: .*No space left on device.*",
        limit=20,
        machine=(small_disk("home", 8),),
        after=(last_words("No space left on device"),),
    ),
    Row(
        "disk full: model at its place",
        STORING,
        nothing,
        r"ClientError: Artifact upload failed: .*disk is full.*",
        limit=20,
        machine=(small_disk("output", 8),),
        soak=True,
    ),
]

STARTS = [
    Row(
        f"{work} killed at its start",
        job,
        at(start, KILL, helper(name)),
        f"{work} failed: killed by SIGKILL",
        machine=machine,
        soak=True,
    )
    for work, name, job, machine in (
        ("filling the channels", "stage", DOWNLOADING, (serve,)),
        ("serving the channels", "serve_channels", PIPING, (make_data,)),
        ("keeping the checkpoints", "sync", KEEPING, ()),
    )
]

DATA = [*STARTS, *FEED, *CHANNELS, *DISKS]
