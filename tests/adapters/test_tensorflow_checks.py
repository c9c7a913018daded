"""What `headrace.tensorflow.distribute` checks before anything is sent, without TensorFlow."""

import dataclasses
import enum
import json
import sys

import pytest

from headrace.adapters.tensorflow import (
    check_consumer,
    check_dataset,
    check_endless,
    check_options,
    mode_of,
    warn_shares,
)
from headrace.adapters.tensorflow_likeness import Likeness, certain_differences, job_name, rank_name, ranks_of
from headrace.errors import PipelineError, UsageError


class ShardingPolicy(enum.IntEnum):
    """As TensorFlow's."""

    OFF = 0
    DYNAMIC = 1
    FILE = 2


@pytest.mark.parametrize("given", ["dynamic", "distributed_epoch", ShardingPolicy.DYNAMIC])
def test_dynamic_has_three_names(given):
    assert mode_of(given) == "dynamic"


@pytest.mark.parametrize("given", ["off", "parallel_epochs", ShardingPolicy.OFF])
def test_off_has_three_names(given):
    assert mode_of(given) == "off"


@pytest.mark.parametrize("given", ["data", ShardingPolicy.FILE, None, 1, ["off"]])
def test_another_mode_is_refused(given):
    with pytest.raises(UsageError, match="processing_mode must be one of dynamic, off") as refused:
        mode_of(given)
    assert "divides the data" in refused.value.hint


@pytest.mark.parametrize(("index", "count"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), ("0", 2), (0.0, 2)])
def test_coordinated_reads_need_a_number_of_this_rank_and_of_all(index, count):
    with pytest.raises(UsageError, match="consumer_index must be 0 to num_consumers - 1"):
        check_consumer(index, count)


def test_right_numbers_of_ranks_are_taken():
    check_consumer(None, None)
    check_consumer(1, 2)


def test_names_and_compressions_are_checked():
    with pytest.raises(UsageError, match="name must be a text") as refused:
        check_options(name="")
    assert "share the elements" in refused.value.hint
    with pytest.raises(UsageError, match="not 'gzip'") as refused:
        check_options(compression="gzip")
    assert "None sends the elements as they are" in refused.value.hint
    check_options(compression=None)


def test_a_list_is_no_data_set_and_tensorflow_is_not_imported_to_know(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(UsageError, match=r"takes a tf\.data\.Dataset, not list") as refused:
        check_dataset([1, 2, 3])
    assert "from_tensor_slices" in refused.value.hint
    assert "tensorflow" not in sys.modules


def test_rounds_need_a_data_set_without_an_end():
    with pytest.raises(PipelineError, match="this one has 0 elements") as refused:
        check_endless("coordinated reads (consumer_index, num_consumers) need", 0)
    assert "repeat()" in refused.value.hint
    check_endless("coordinated reads need", -1)  # infinite
    check_endless("coordinated reads need", -2)  # nobody knows


def test_several_ranks_on_a_data_set_that_ends_are_warned():
    with pytest.warns(UserWarning, match=r"2 ranks share the 6 elements.*or none"):
        warn_shares(6, 2)
    warn_shares(6, 1)  # a warning would be an error here
    warn_shares(-1, 2)


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"HOROVOD_SIZE": "2"}, 2),
        ({"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}})}, 3),
        ({"TF_CONFIG": json.dumps({"cluster": {"ps": ["a:1"]}})}, 1),
        ({"TF_CONFIG": "nonsense"}, 1),
        ({"TF_CONFIG": "[]"}, 1),
        ({"SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-2","algo-3"]'}, 2),  # each runs the script: no distribution
        ({"SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-2","algo-3"]', "WORLD_SIZE": "8"}, 8),
        ({"SM_CURRENT_INSTANCE_GROUP_HOSTS": "nonsense"}, 1),
    ],
)
def test_the_number_of_ranks_is_what_the_launcher_says(variables, ranks):
    assert ranks_of(variables) == ranks


PASSED_ON = {
    "max_outstanding_requests": None,
    "target_workers": "AUTO",
    "data_transfer_protocol": None,
    "service": None,
    "wait": 120.0,
}


@pytest.mark.parametrize(
    ("option", "wrong", "allowed", "hint"),
    [
        ("max_outstanding_requests", [0, -2, "4", True, 1.5], "a whole number of at least 1, or None", "AUTOTUNE"),
        ("target_workers", ["foo", "", None, 1], "one of AUTO, ANY, LOCAL", "which a job does not start"),
        ("data_transfer_protocol", ["rdma", "", 1], "'grpc' or None", "gRPC"),
        ("service", [7072, "", b"grpc://h:1"], "an address, grpc://host:port, or None", "leave it out in a job"),
        ("wait", ["x", -1, True, None, float("inf"), float("nan")], "seconds of at least 0", "default is 120"),
    ],
)
def test_what_is_passed_on_is_checked_with_value_and_what_is_allowed(option, wrong, allowed, hint):
    for value in wrong:
        with pytest.raises(UsageError) as refused:
            check_options(**PASSED_ON | {option: value})
        assert refused.value.message.startswith(f"{option} must be ")
        assert allowed in refused.value.message
        assert refused.value.message.endswith(f", not {value!r}")
        assert hint in refused.value.hint


def test_right_options_are_taken():
    check_options(**PASSED_ON)
    check_options(
        max_outstanding_requests=1, target_workers="any", data_transfer_protocol="grpc", service="grpc://h:1", wait=0
    )
    check_options(**PASSED_ON | {"max_outstanding_requests": -1})  # tf.data.AUTOTUNE


FACTS = Likeness(elements="", structure="int64", shards="", counts="", sources="a", seeds="b", rest="c")


@pytest.mark.parametrize(
    ("fact", "there", "words"),
    [
        ("shards", "0 of 2", "shard none, there 0 of 2"),
        ("counts", "take(5)", "no take or skip, there take(5)"),
        ("elements", "100", "no known number of elements, there 100"),
        ("structure", "float32", "elements int64, there float32"),
        ("sources", "z", "made from other files or numbers"),
    ],
)
def test_facts_that_make_other_data_are_told_in_words(fact, there, words):
    other = Likeness(**dataclasses.asdict(FACTS) | {fact: there})
    assert certain_differences(FACTS, other) == [words]


def test_other_facts_need_not_make_other_data():
    other = Likeness(**dataclasses.asdict(FACTS) | {"seeds": "y", "rest": "z"})
    assert certain_differences(FACTS, other) == []


def test_a_process_is_called_by_rank_group_and_host():
    job = {"SM_CURRENT_HOST": "algo-2", "SM_CURRENT_INSTANCE_GROUP": "dnn"}
    assert rank_name(job | {"OMPI_COMM_WORLD_RANK": "1"}) == "rank 1 (dnn/algo-2)"
    assert rank_name(job) == "dnn/algo-2"
    assert rank_name({"RANK": "3"}).startswith("rank 3 (process ")


def test_all_ranks_of_a_start_by_torchrun_have_one_name_for_a_dataset_and_other_starts_another():
    def start(**variables):
        return {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": "4"} | variables

    assert job_name("train", {"RANK": "1", "WORLD_SIZE": "4"}) == "train"
    assert len({job_name("train", start(RANK=str(rank), GROUP_RANK=str(rank))) for rank in range(4)}) == 1
    others = [start(), start(TORCHELASTIC_RESTART_COUNT="1"), start(WORLD_SIZE="2"), start(TORCHELASTIC_RUN_ID="b")]
    assert len({job_name(name, each) for each in others for name in ("train", "validation")}) == 8
