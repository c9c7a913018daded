"""Which cells of the table of engines are played by `test_engine_table`, and which have another test, or none and why.

A cell is (row, engine). Every cell is in one of these, and may be in several:

    QUICK       the table plays it in every run
    PROVED      other tests prove it, named FILE::TEST, a row of the fault table in brackets
    LONG        only the long run plays it
    ABSENT      there is no such thing in that engine, and why
    DEFECTS     it does not hold yet, and why

In the long run (`make soak`) the table plays every cell that is not absent. A new engine needs its platform in
PLATFORMS and, for each cell that it does not have, a line in ABSENT. The columns of ON_CLUSTER need a cluster that no
test run has at hand: `make kubernetes` plays them, and what was seen is kept in KEPT.
"""

from __future__ import annotations

from pathlib import Path

from engine_table import FAULTS, JOBS
from engine_table_local import LocalMachine
from engine_table_platform import Opened
from engine_table_slurm import SlurmNodes

Cell = tuple[str, str]

PLATFORMS: dict[str, Opened] = {"local": LocalMachine(), "slurm": SlurmNodes()}
ENGINES = tuple(PLATFORMS)
ON_CLUSTER = ("kubernetes",)
KEPT = Path(__file__).parents[2] / "bench" / "results" / "kubernetes-table-20261128.json"
COLUMNS = (*ENGINES, *ON_CLUSTER)
ROWS = tuple(row.name for row in (*JOBS, *FAULTS))

_FAULT = "engines/test_local_fault_table.py::test_the_row_holds[{}]"
_NODES = (
    "engines/test_slurm_attempts.py::"
    "test_a_data_node_may_die_and_the_leaders_may_not_and_with_retry_slurm_finds_another_one"
)
_SLURM = "engines/test_slurm_runs.py::{}"

PROVED: dict[Cell, tuple[str, ...]] = {
    ("hello", "local"): ("engines/test_local_run.py::test_three_hosts_run_the_entry_point_and_leave_nothing",),
    ("hello", "slurm"): (_SLURM.format("test_two_groups_say_hello_from_their_nodes_and_leave_nothing"),),
    ("MPI, 2 hosts with 2 ranks", "local"): (
        "engines/test_local_mpi.py::test_every_rank_knows_its_world_and_its_own_host",
    ),
    ("MPI, 2 hosts with 2 ranks", "slurm"): (
        _SLURM.format("test_mpirun_starts_ranks_on_the_nodes_although_slurm_has_filled_them"),
    ),
    ("torchrun, elastic", "local"): (
        "engines/test_local_elastic.py::test_every_rank_has_a_log_its_hosts_variables_and_torchruns",
        "engines/test_local_elastic.py::test_a_host_whose_torchrun_or_agent_is_killed_is_gone_on_without",
    ),
    ("Horovod", "local"): ("engines/test_local_horovod.py::test_horovod_in_its_own_words_knows_its_world",),
    ("digits, heterogeneous, with the feed", "local"): (
        "examples/test_digits_example.py::test_homogeneous_and_heterogeneous_jobs_have_the_same_losses_bit_by_bit",
    ),
    ("digits, heterogeneous, with the feed", "slurm"): (
        _SLURM.format("test_the_digits_are_learnt_with_the_same_losses_as_on_one_machine"),
    ),
    ("tf.data service", "local"): (
        "engines/test_local_tfdata.py::"
        "test_trainers_share_the_data_and_go_on_when_a_worker_and_the_dispatcher_were_killed",
    ),
    ("a rank is killed", "local"): (_FAULT.format("script killed"),),
    ("a rank of an elastic world is killed", "local"): (
        "engines/test_local_elastic.py::test_a_rank_that_always_fails_is_the_first_cause_when_restarts_are_used_up",
        "examples/test_torchrun_example.py::"
        "test_an_elastic_world_starts_again_from_its_checkpoint_when_a_rank_is_killed",
    ),
    ("an agent is killed", "local"): (_FAULT.format("agent killed"),),
    ("a node is lost", "local"): (_FAULT.format("host lost"),),
    ("a data node is lost, another one serves", "local"): (
        "engines/test_local_training.py::"
        "test_an_executor_a_data_host_and_the_trainer_s_own_server_are_killed_and_it_gets_the_same_bits",
    ),
    ("a data node is lost, another one serves", "slurm"): (_NODES,),
    ("a node is cut off", "local"): (_FAULT.format("host cut off (silent for 5 s)"),),
    ("the leader's node is lost", "local"): (
        _FAULT.format("leader's agent killed"),
        _FAULT.format("leader's host lost"),
    ),
    ("the leader's node is lost", "slurm"): (
        _NODES,
        "engines/test_slurm_asking.py::"
        "test_a_job_that_goes_on_without_the_leaders_node_is_queued_again_and_after_the_last_attempt_ended",
    ),
    ("the submitting process is killed", "local"): (
        _FAULT.format("caller killed"),
        "engines/test_local_detach.py::test_it_survives_the_death_of_its_starter_and_of_the_terminal",
    ),
    ("the submitting process is killed", "slurm"): (_SLURM.format("test_the_submitting_command_may_be_killed"),),
    ("a person stops the job", "local"): (
        "engines/test_local_faults.py::test_a_stop_gives_time_to_save_and_ends_as_stopped",
    ),
    ("a person stops the job", "slurm"): (
        _SLURM.format("test_stop_lets_programs_save_and_a_waiting_run_is_shown_as_waiting_and_stopped_too"),
    ),
    ("the time limit of the job", "local"): (
        "engines/test_local_retry.py::test_max_run_covers_all_attempts_together",
        "agent/test_agent_coordinator.py::test_max_run_stops_the_job_with_its_name",
    ),
    ("the time limit of the job", "slurm"): (
        _SLURM.format("test_the_time_limit_stops_the_run_in_order_before_slurm_does"),
        "agent/test_agent_coordinator.py::test_max_run_stops_the_job_with_its_name",
    ),
    ("the disk is full", "local"): (_FAULT.format("disk full: model on the host"),),
    ("memory is short on a node", "local"): (_FAULT.format("script out of memory"),),
    ("the platform takes the nodes back", "slurm"): (
        _SLURM.format("test_what_slurm_cancels_has_failed_and_was_not_stopped"),
        "engines/test_slurm_attempts.py::"
        "test_a_preempted_run_saves_and_goes_on_when_it_has_nodes_again_and_without_retry_the_cause_is_told",
    ),
}

_OF_PODS = ("a pod is evicted", "a node is drained", "a pod is deleted", "a right is taken in mid-run")

ABSENT: dict[Cell, str] = {
    ("the platform takes the nodes back", "local"): "no scheduler takes this machine from a run",
    ("a pod is evicted", "slurm"): "as when the platform takes the nodes back",
    ("a node is drained", "slurm"): "a node that is drained lets its jobs end",
    ("a pod is deleted", "slurm"): "as when the platform takes the nodes back",
    ("a right is taken in mid-run", "slurm"): "a job is its owner's to look at",
} | {(row, "local"): "no platform is between a person and this machine" for row in _OF_PODS}

QUICK: frozenset[Cell] = frozenset(
    (row, "slurm")
    for row in (
        "tf.data service",
        "a rank is killed",
        "an agent is killed",
        "the disk is full",
        "memory is short on a node",
    )
)

LONG: frozenset[Cell] = frozenset(
    (row, "slurm")
    for row in (
        "Horovod",
        "torchrun, elastic",
        "a rank of an elastic world is killed",
        "a node is lost",
        "a node is cut off",
    )
)
"""Cells that only the long run plays, and that no other test proves: they cost much and are much like another row."""

DEFECTS: dict[Cell, str] = {}
"""Cells whose row does not hold yet. The long run plays them, and fails when one holds."""
