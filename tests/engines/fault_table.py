"""Every fault, one row each: what is done to which job when, and how the run ends within which time.

A row is played by `fault_play` in a box of its own; `test_local_fault_table` plays them all, many at once.

    Row(name, job, deed, cause)     within 10 s of the deed the run is Failed with exactly this cause, `headrace run`
                                    has ended with exit code 1, and nothing is left

`cause` is a regular expression for the whole cause. `soak` rows are left to `make soak`, because they cost much or
are much like another row.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from fault_deeds import (
    CONTINUE,
    KILL,
    STOP,
    agent,
    at,
    caller,
    cut,
    engine_started,
    entering,
    first_to_go,
    flag,
    helper,
    is_over,
    last_of,
    network,
    part,
    pasta,
    program,
    programs_run,
    start,
    stopping,
    struck,
    supervisor,
    then,
)
from fault_jobs import EATING, KEEPING, MODEL, OBEYING, STALLING, TERMINATING, WAITING
from fault_row import COMPLETED, STOPPED, Row
from fault_rows_data import DATA
from fault_rows_input import INPUT
from fault_rows_launchers import LAUNCHERS

from headrace.runs.events import SecondaryStatus

if TYPE_CHECKING:
    from fault_play import Play

CALLER_DIED = r"the process that started the run \(pid \d+\) died"
BOTH = programs_run(2)
SUPERVISOR_KILLED = "the engine's supervisor was killed by SIGKILL"
THREE = replace(OBEYING, groups={"dnn": 3})
SILENT = "silent for 5 s(, its connection is broken)?"
LATE = WAITING.with_settings(start_timeout=4.0)

PROGRAMS = [
    Row(
        "script killed at its start",
        WAITING,
        at(start, KILL, program("algo-2")),
        r"dnn/algo-2\[0\]: killed by SIGKILL",
        soak=True,
    ),
    Row("script killed", WAITING, at(BOTH, KILL, program("algo-2")), r"dnn/algo-2\[0\]: killed by SIGKILL"),
    Row(
        "script killed when the others have ended",
        WAITING,
        at(last_of("algo-1"), KILL, program("algo-2")),
        r"dnn/algo-2\[0\]: killed by SIGKILL",
        soak=True,
    ),
    Row("script killed while it saves", WAITING, at(stopping(2), KILL, program("algo-2")), **STOPPED, soak=True),
    Row(
        "script stopped at its start (stall_after: 2)",
        STALLING,
        then(programs_run(1), at(start, STOP, program("algo-2"))),
        r"dnn/algo-[12]\[0\]: stalled: no output or metrics for 2 s.*",
        soak=True,
    ),
    Row(
        "script stopped (stall_after: 2)",
        STALLING,
        at(BOTH, STOP, program("algo-2")),
        r"dnn/algo-[12]\[0\]: stalled: no output or metrics for 2 s.*",
        soak=True,
    ),
    Row(
        "script stopped when the others have ended (stall_after: 2)",
        STALLING,
        at(last_of("algo-1"), STOP, program("algo-2")),
        r"dnn/algo-2\[0\]: stalled: no output or metrics for 2 s; the quietest: dnn/algo-2\[0\].*",
        soak=True,
    ),
    Row("script stopped while it saves", WAITING, at(stopping(2), STOP, program("algo-2")), **STOPPED, soak=True),
    Row(
        "script out of memory",
        EATING,
        then(BOTH, flag("eat")),
        r"dnn/algo-2\[0\]: killed by the kernel for memory \(OOM\): the instance's limit is 200 MiB",
        soak=True,
    ),
]

AGENTS = [
    Row(
        "agent killed at its start",
        WAITING,
        at(start, KILL, agent("algo-2")),
        r"dnn/algo-2\[agent\]: agent killed by SIGKILL",
        soak=True,
    ),
    Row(
        "agent killed",
        WAITING,
        at(BOTH, KILL, agent("algo-2")),
        r"dnn/algo-2\[agent\]: agent killed by SIGKILL",
    ),
    Row("agent killed while the job is stopped", WAITING, at(stopping(2), KILL, agent("algo-2")), **STOPPED, soak=True),
    Row(
        "host lost",
        WAITING.isolated(),
        at(BOTH, KILL, agent("algo-2")),
        r"dnn/algo-2\[agent\]: agent killed by SIGKILL",
        soak=True,
    ),
    Row(
        "agent stopped at its start (silent for start_timeout, here 4 s)",
        LATE,
        at(start, STOP, agent("algo-2")),
        r"dnn/algo-2\[agent\]: (did not come within 4 s; waited for: dnn/algo-2|silent for 5 s.*)",
        limit=20,
        soak=True,
    ),
    Row(
        "agent stopped (silent for 5 s)",
        WAITING,
        at(BOTH, STOP, agent("algo-2")),
        r"dnn/algo-2\[agent\]: silent for 5 s",
        limit=16,
        soak=True,
    ),
    Row(
        "agent stopped while the job is stopped",
        WAITING,
        at(stopping(2), STOP, agent("algo-2")),
        limit=20,
        **STOPPED,
        soak=True,
    ),
    Row(
        "leader's agent killed at its start",
        WAITING,
        at(start, KILL, agent("algo-1")),
        r"dnn/algo-1\[agent\]: agent killed by SIGKILL",
        soak=True,
    ),
    Row(
        "leader's agent killed",
        WAITING,
        at(BOTH, KILL, agent("algo-1")),
        r"dnn/algo-1\[agent\]: agent killed by SIGKILL",
        soak=True,
    ),
    Row(
        "leader's agent killed while the job is stopped",
        WAITING,
        at(stopping(2), KILL, agent("algo-1")),
        **STOPPED,
        soak=True,
    ),
    Row(
        "leader's host lost",
        WAITING.isolated(),
        at(BOTH, KILL, agent("algo-1")),
        r"dnn/algo-1\[agent\]: agent killed by SIGKILL",
        soak=True,
    ),
    Row(
        "leader's agent stopped (silent for 5 s)",
        WAITING,
        at(BOTH, STOP, agent("algo-1")),
        r"dnn/algo-1\[agent\]: silent for 5 s",
        limit=16,
        soak=True,
    ),
    Row(
        "host cut off (silent for 5 s)",
        THREE.isolated(),
        then(programs_run(3), cut("algo-2")),
        rf"dnn/algo-2\[agent\]: {SILENT}",
        limit=20,
    ),
    Row(
        "one of two hosts cut off (silent for 5 s)",
        OBEYING.isolated(),
        then(BOTH, cut("algo-2")),
        rf"dnn/algo-2\[agent\]: {SILENT}",
        limit=20,
        soak=True,
    ),
    Row(
        "leader's host cut off, one of two (silent for 5 s)",
        OBEYING.isolated(),
        then(BOTH, cut("algo-1")),
        rf"dnn/algo-1\[agent\]: {SILENT}",
        limit=20,
        soak=True,
    ),
]

AGENTS += [
    Row(
        "leader's host cut off (silent for 5 s)",
        THREE.isolated(),
        then(programs_run(3), cut("algo-1")),
        rf"dnn/algo-1\[agent\]: {SILENT}",
        limit=20,
        soak=True,
    ),
    Row(
        "host killed while it is made",
        OBEYING.isolated(),
        at(start, KILL, entering),
        "algo-[12] could not be isolated: its first process was killed by SIGKILL",
        soak=True,
    ),
    Row(
        "a program sends SIGTERM to process 1 of its host",
        TERMINATING.isolated(),
        then(BOTH, struck, flag("terminate")),
        "the agent of algo-1 was told to stop by SIGTERM",
    ),
    Row(
        "agent out of memory",
        EATING,
        then(BOTH, first_to_go(agent("algo-2")), flag("eat")),
        r"dnn/algo-2\[agent\]: agent killed by the kernel for memory \(OOM\): the instance's limit is 200 MiB",
        soak=True,
    ),
]


def reach_out(_: Play) -> None:
    """The box gets an interface with a default route, so that there is something that a way out can lead to."""
    for words in (
        "link add out type veth peer name far",
        "addr add 192.0.2.2/24 dev out",
        "link set far up",
        "link set out up",
        "route add default via 192.0.2.1",
    ):
        subprocess.run(["ip", *words.split()], check=True)


NETWORK = [
    Row(
        f"{what} killed",
        OBEYING.isolated(),
        at(BOTH, KILL, victim),
        f"the way out of the job's network failed: {who} killed by SIGKILL",
        machine=(reach_out,),
        soak=True,  # in every run: test_local_isolation.py::test_another_attempt_has_a_way_out_again
        needs=("way out",),
    )
    for what, victim, who in (("pasta", pasta, "pasta"), ("keeper of the network", network, "its keeper"))
]

ENGINE = [
    Row(
        "caller stopped: the job goes on",
        WAITING,
        then(at(BOTH, STOP, caller), flag("all"), is_over, at(start, CONTINUE, caller)),
        **COMPLETED,
        soak=True,
    ),
    Row("supervisor killed at its start", WAITING, at(start, KILL, supervisor), SUPERVISOR_KILLED, soak=True),
    Row("supervisor killed", WAITING, at(BOTH, KILL, supervisor), SUPERVISOR_KILLED),
    Row(
        "supervisor of isolated hosts killed",
        WAITING.isolated(),
        at(BOTH, KILL, supervisor),
        SUPERVISOR_KILLED,
        soak=True,
    ),
    Row(
        "supervisor killed while the model is stored",
        MODEL,
        at(part(SecondaryStatus.UPLOADING), KILL, supervisor),
        SUPERVISOR_KILLED,
        soak=True,
    ),
    Row(  # its supervisor may just have been started: then it is the one that tells
        "caller killed while it prepares",
        WAITING,
        at(start, KILL, caller),
        f"the engine was killed|{CALLER_DIED}",
        exit_code=-9,
    ),
    Row("caller killed at its start", WAITING, at(engine_started, KILL, caller), CALLER_DIED, exit_code=-9, soak=True),
    Row("caller killed", WAITING, at(BOTH, KILL, caller), CALLER_DIED, exit_code=-9),
    Row(
        "caller of isolated hosts killed",
        WAITING.isolated(),
        at(BOTH, KILL, caller),
        CALLER_DIED,
        exit_code=-9,
        soak=True,
    ),
    Row(
        "caller killed while the model is stored",
        MODEL,
        at(part(SecondaryStatus.UPLOADING), KILL, caller),
        CALLER_DIED,
        exit_code=-9,
        soak=True,
    ),
    Row(
        "checkpoints: helper process killed",
        KEEPING,
        at(programs_run(1), KILL, helper("sync")),
        "keeping the checkpoints failed: killed by SIGKILL",
        soak=True,
    ),
    Row(
        "model: helper process killed",
        MODEL,
        at(start, KILL, helper("collect")),
        "collecting model and output failed: killed by SIGKILL",
        soak=True,
    ),
]

ROWS = {row.name: row for row in [*PROGRAMS, *AGENTS, *NETWORK, *ENGINE, *DATA, *LAUNCHERS, *INPUT]}
