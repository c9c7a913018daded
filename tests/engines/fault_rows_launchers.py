"""Faults of what starts ranks: mpirun and its daemons, torchrun, and of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fault_deeds import (
    KILL,
    STOP,
    Deed,
    at,
    daemon_proxy,
    finishing,
    flag,
    nothing,
    program,
    programs_run,
    rank_proxy,
    start,
    struck,
    then,
)
from fault_jobs import ELASTIC, MPI_JOB, TORCH_JOB
from fault_row import Row

if TYPE_CHECKING:
    from fault_play import Play

RANKS = programs_run(4)
PARTS = (("mpirun", "algo-1", "mpirun"), ("orted", "algo-2", "orted"), ("MPI rank", "algo-2", "3"))
MOMENTS = (("at its start", start), ("in the middle", RANKS), ("at the end", finishing(4)))
STALL = {"completion": {"stall_after": 3}}


def no_mpirun(play: Play) -> None:
    """There is no mpirun in PATH."""
    play.environment["PATH"] = str(play.place)


def old_mpirun(play: Play) -> None:
    """The mpirun in PATH is too old."""
    path = play.place / "mpirun"
    path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 3.1.6'\n")
    path.chmod(0o755)
    play.environment["PATH"] = f"{play.place}:{play.environment['PATH']}"


def failing(moment: Deed) -> Deed:
    """Rank 3 exits with 3."""
    return then(moment, struck, flag("fail"))


MPI = [
    Row("MPI rank 3 of 4 fails", MPI_JOB, failing(RANKS), r"dnn/algo-2\[3\]: exited with code 3", soak=True),
    *(
        Row(
            f"{what} killed {when}",
            MPI_JOB,
            at(moment, KILL, program(host, stream)),
            rf"dnn/{host}\[{stream}\]: killed by SIGKILL",
            soak=True,  # in every run: test_local_mpi.py::test_a_part_that_is_killed_is_the_cause
        )
        for what, host, stream in PARTS
        for when, moment in MOMENTS
    ),
    *(
        Row(
            f"{what} stopped (stall_after: 3)",
            MPI_JOB.having(**STALL),
            at(RANKS, STOP, program("algo-2", stream)),
            r"dnn/algo-.\[.\]: stalled: no output or metrics for 3 s.*",
            limit=16,
            soak=True,
        )
        for what, stream in (("MPI rank", "3"),)
    ),
    Row(
        "mpirun stopped at its start (start_timeout, here 5 s)",
        MPI_JOB.with_settings(start_timeout=5.0),
        at(start, STOP, program("algo-1", "mpirun")),
        r"dnn/algo-1\[mpirun\]: killed by SIGKILL: no rank was started within 5 s: mpirun on algo-1 is stopped.*",
        limit=20,
        soak=True,
    ),
    Row(
        "proxy of orted killed in the middle",
        MPI_JOB,
        at(RANKS, KILL, daemon_proxy),
        r"dnn/algo-1\[orted\]: the process that stands for orted of algo-[12] at mpirun was killed by SIGKILL",
        soak=True,
    ),
    Row(
        "proxy of an MPI rank killed in the middle",
        MPI_JOB,
        at(RANKS, KILL, rank_proxy),
        r"dnn/algo-[12]\[[0-3]\]: the process that stands for it at mpirun was killed by SIGKILL",
        soak=True,
    ),
    Row(
        "mpirun missing",
        MPI_JOB,
        nothing,
        r"dnn/algo-1\[mpirun\]: exited with code 127: mpirun is not installed",
        limit=20,
        before=(no_mpirun,),
        soak=True,
    ),
    Row(
        "mpirun of a wrong version",
        MPI_JOB,
        nothing,
        r"dnn/algo-1\[mpirun\]: exited with code 2: Open MPI 3.1.6 is not known here; known are 4 and 5",
        limit=20,
        before=(old_mpirun,),
        soak=True,
    ),
]

TORCH = [
    Row("torch rank 3 of 4 fails", TORCH_JOB, failing(RANKS), r"dnn/algo-2\[3\]: exited with code 3", soak=True),
    *(
        Row(
            f"torch rank killed {when}",
            TORCH_JOB,
            at(moment, KILL, program("algo-2", "3")),
            r"dnn/algo-2\[3\]: killed by SIGKILL",
            soak=True,
        )
        for when, moment in MOMENTS
    ),
    Row(
        "torch rank stopped (stall_after: 20)",
        TORCH_JOB.having(completion={"stall_after": 20}),
        at(RANKS, STOP, program("algo-2", "3")),
        r"dnn/algo-.\[.\]: stalled: no output or metrics for 20 s.*",
        limit=32,
        soak=True,
    ),
    Row(
        "torchrun: the rendezvous is never complete (start_timeout, here 15 s)",
        ELASTIC.with_settings(start_timeout=15.0),
        at(start, STOP, program("algo-2", "torchrun")),
        r"dnn/algo-2\[torchrun\]: .*torchrun on algo-2 did not come to the rendezvous within 15 s: it is stopped.*",
        limit=30,
        soak=True,
    ),
    Row(
        "torchrun killed",
        ELASTIC,
        at(programs_run(2), KILL, program("algo-2", "torchrun")),
        r"dnn/algo-2\[(torchrun|agent)\]: .*killed by SIGKILL",
        limit=20,
        soak=True,
    ),
    Row(
        "torchrun killed at its start",
        ELASTIC,
        at(start, KILL, program("algo-2", "torchrun")),
        r"dnn/algo-2\[(torchrun|agent)\]: .*killed by SIGKILL",
        limit=20,
        soak=True,
    ),
]

LAUNCHERS = [*MPI, *TORCH]
