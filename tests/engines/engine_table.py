"""The table of engines: one job or one fault a row, one engine a column. What must be true is the same in every engine,
unless a row says otherwise.

    JOBS      the job is Completed, with the same losses as on this machine, bit by bit
    FAULTS    what is done to which job, and how the run ends: cause, exit code, and within which time

After every row nothing may be left: on the nodes, with the scheduler, in the cluster. `engine_table_play` plays a row
on a `Platform`; `engine_table_cells` says which cell is played by `test_engine_table`, and which has another test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine_table_shapes import (
    DIGITS,
    EATING,
    ELASTIC,
    FED,
    HELLO,
    HOROVOD,
    LIMITED,
    MPI,
    RESTARTED,
    SUM_OF_SQUARES,
    TF_DATA,
    THREE,
    WAITING,
    WRITING,
    Shape,
)

from headrace.runs import CauseKind, Status
from headrace.runs.events import ProgramStarted

if TYPE_CHECKING:
    from engine_table_play import Play

Deed = Callable[["Play"], None]


@dataclass(frozen=True)
class JobRow:
    """One job.

    Attributes:
        name: of the row.
        shape: the job.
        said: words that must stand in the output, each so many times.
        losses: file of one of the hosts with the losses, which must be those of the local run in every byte.
        needs: what the Python of the hosts must have.
        seconds: within which it ends, on a machine that does nothing else.
    """

    name: str
    shape: Shape
    said: Mapping[str, int] = field(default_factory=dict)
    losses: str = ""
    needs: tuple[str, ...] = ()
    seconds: float = 60.0


@dataclass(frozen=True)
class End:
    """How a run ends after a fault.

    Attributes:
        status: of the run.
        kind: of its cause, None where there is none.
        exit_code: of `headrace wait`.
        within: seconds from the fault to the end.
        host: that the cause names.
        infrastructure: whether the cause says that another attempt may well succeed.
        code, signal: how the program ended that is the cause.
        degraded: whether the run went on without a part.
    """

    status: Status
    kind: CauseKind | None
    exit_code: int
    within: float = 10.0
    host: str = ""
    infrastructure: bool = False
    code: int | None = None
    signal: int | None = None
    degraded: bool = False


@dataclass(frozen=True)
class FaultRow:
    """One fault.

    Attributes:
        name: of the row.
        shape: the job.
        fault: waits for its moment, says that the time counts from here, and does it.
        end: how the run ends, in every engine that is not in `ends`.
        ends: engines in which it ends otherwise, and why that is right stands beside each.
        said: words that must stand in the output, each so many times.
        detached: whether the job was submitted by a process that has ended.
    """

    name: str
    shape: Shape
    fault: Deed
    end: End
    ends: Mapping[str, End] = field(default_factory=dict)
    said: Mapping[str, int] = field(default_factory=dict)
    detached: bool = True

    def end_in(self, engine: str) -> End:
        """Returns how the run ends in an engine."""
        return self.ends.get(engine, self.end)


FAILED = End(Status.FAILED, CauseKind.PROGRAM_EXITED, 1)
LOST = replace(FAILED, kind=CauseKind.HOST_LOST, infrastructure=True)
STOPPED = End(Status.STOPPED, CauseKind.STOPPED, 130)
COMPLETED = End(Status.COMPLETED, None, 0)
REMOVED = replace(LOST, host="algo-2", within=30)
SILENT = 20.0  # a host is silent for 5 s, then it counts as lost; then all end
KILLED = 9


def running(count: int) -> Deed:
    """All programs have said that they run; the time counts from here."""

    def moment(play: Play) -> None:
        play.said("running", count)
        play.strike()

    return moment


def after(count: int, deed: Deed) -> Deed:
    """A deed, when all programs run."""

    def both(play: Play) -> None:
        running(count)(play)
        deed(play)

    return both


def some_steps(play: Play) -> None:
    """The trainer has had some batches; the time counts from here."""
    play.said("step", 5)
    play.strike()
    play.platform.kill_node(play.run, "algo-2")


def rank_of_an_elastic_world(play: Play) -> None:
    """A rank is killed; when all have been started again, they may end."""
    running(2)(play)
    started = [each for each in play.run.events() if isinstance(each, ProgramStarted) and each.host == "algo-2"]
    (rank,) = (each.stream for each in started if each.stream.isdigit())
    play.platform.kill_program(play.run, "algo-2", rank)
    play.said("running", 4)
    play.go_on()


def full_disk(play: Play) -> None:
    """The disk is full when the program writes its model."""
    play.platform.fill_disk(play.run, "algo-1")
    play.go_on()


def little_memory(play: Play) -> None:
    """Memory is short when the program begins to take it."""
    play.platform.limit_memory(play.run, "algo-2")
    play.go_on()


def end_of_submitter(play: Play) -> None:
    """The submitting process is killed; a little later the job may end."""
    running(2)(play)
    play.kill_submitter()
    play.go_on()


def right_is_taken(play: Play) -> None:
    """Whoever looks at the run is told what he may not do; when he may again, the job may end."""
    running(2)(play)
    play.platform.set_right(False)
    play.until(lambda: "forbidden" in play.platform.headrace("status", play.run_id).stderr, "the missing right")
    play.platform.set_right(True)
    play.go_on()


def removed(how: str) -> Deed:
    """One host is removed by the platform, as people and controllers do."""
    return after(2, lambda play: play.platform.remove(play.run, "algo-2", how))


JOBS = [
    JobRow("hello", HELLO, said={"hello algo-1 data": 1, "hello algo-2 dnn": 1}, seconds=20),
    JobRow("MPI, 2 hosts with 2 ranks", MPI, said={"of 4": 4}, needs=("mpi4py",), seconds=30),
    JobRow("torchrun, elastic", ELASTIC, said={"world of 2": 2}, losses="result.json", needs=("torch",)),
    JobRow("Horovod", HOROVOD, said={"of 4, local rank": 4, "test accuracy": 1}, needs=("horovod",), seconds=240),
    JobRow("digits, heterogeneous, with the feed", DIGITS, losses="result.json", needs=("torch",)),
    JobRow("tf.data service", TF_DATA, losses="result.json", needs=("tensorflow",), seconds=120),
]

FAULTS = [
    FaultRow(
        "a rank is killed",
        WAITING,
        after(2, lambda play: play.platform.kill_program(play.run, "algo-2", "0")),
        replace(FAILED, host="algo-2", signal=KILLED),
    ),
    FaultRow(
        "a rank of an elastic world is killed",
        RESTARTED,
        rank_of_an_elastic_world,
        replace(COMPLETED, within=60),
        said={"running": 4},
    ),
    FaultRow(
        "an agent is killed",
        WAITING,
        after(2, lambda play: play.platform.kill_agent(play.run, "algo-2")),
        replace(LOST, host="algo-2"),
    ),
    FaultRow(
        "a node is lost",
        WAITING,
        after(2, lambda play: play.platform.kill_node(play.run, "algo-2")),
        replace(LOST, host="algo-2", within=SILENT),
    ),
    FaultRow(
        "a data node is lost, another one serves",
        FED,
        some_steps,
        replace(COMPLETED, degraded=True, within=90),
        said={"step": 100, f"sum {SUM_OF_SQUARES}": 1},
    ),
    FaultRow(
        "a node is cut off",
        THREE,
        after(3, lambda play: play.platform.cut(play.run, "algo-2")),
        replace(LOST, host="algo-2", within=SILENT),
        ends={"slurm": replace(LOST, host="algo-2", within=60)},  # srun ends when Slurm has given the node up
    ),
    FaultRow(
        "the leader's node is lost",
        WAITING,
        after(2, lambda play: play.platform.kill_node(play.run, "algo-1")),
        replace(LOST, host="algo-1"),
        ends={
            # the batch script was on that node: only Slurm knows, after its SlurmdTimeout (here 10 s)
            "slurm": replace(LOST, host="algo-1", within=60),
            # only Kubernetes knows: when its patience with a node is over (here 20 + 20 s), and its pod's grace
            "kubernetes": replace(LOST, host="algo-1", within=180),
        },
    ),
    FaultRow(
        "the submitting process is killed",
        WAITING,
        end_of_submitter,
        replace(COMPLETED, within=20),
        ends={"local": replace(FAILED, kind=CauseKind.CALLER_DIED)},  # without --detach the run is the command's
        detached=False,
    ),
    FaultRow(
        "a person stops the job",
        WAITING,
        after(2, lambda play: play.headrace("stop", play.run.id)),
        STOPPED,
        said={"saving": 2},
    ),
    FaultRow(
        "the time limit of the job",
        LIMITED,
        running(1),
        replace(STOPPED, kind=CauseKind.MAX_RUN, exit_code=1, within=20),
        said={"saving": 1},
    ),
    FaultRow(
        "the disk is full",
        WRITING,
        after(1, full_disk),
        replace(FAILED, host="algo-1", code=1),
        said={"No space left on device": 2},  # by the program, and by the agent, which names the cause
    ),
    FaultRow(
        "memory is short on a node",
        EATING,
        after(2, little_memory),
        replace(FAILED, kind=CauseKind.OUT_OF_MEMORY, host="algo-2", signal=KILLED, within=20),
    ),
    FaultRow(
        "the platform takes the nodes back",
        WAITING,
        after(2, lambda play: play.platform.take_back(play.run)),
        replace(FAILED, kind=CauseKind.ENGINE_FAILED, infrastructure=True, within=30),
        ends={"kubernetes": replace(LOST, within=30)},  # pod by pod: the first that is told names its host
        said={"saving": 2},
    ),
    FaultRow("a pod is evicted", WAITING, removed("evict"), REMOVED, said={"saving": 2}),
    FaultRow("a node is drained", WAITING, removed("drain"), REMOVED, said={"saving": 2}),
    FaultRow("a pod is deleted", WAITING, removed("delete"), REMOVED, said={"saving": 2}),
    FaultRow("a right is taken in mid-run", WAITING, right_is_taken, replace(COMPLETED, within=60)),
]
