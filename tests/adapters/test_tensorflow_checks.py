"""What `headrace.tensorflow.distribute` checks before anything is sent, without TensorFlow."""

import enum
import json
import sys

import pytest

from headrace.adapters.tensorflow_checks import (
    check_compression,
    check_consumer,
    check_dataset,
    check_name,
    check_rounds,
    mode_of,
    ranks_of,
    warn_shares,
)
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
    with pytest.raises(UsageError, match="name must be a text"):
        check_name("")
    with pytest.raises(UsageError, match="not 'gzip'"):
        check_compression("gzip")
    check_compression(None)


def test_a_list_is_no_data_set_and_tensorflow_is_not_imported_to_know(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(UsageError, match=r"takes a tf\.data\.Dataset, not list") as refused:
        check_dataset([1, 2, 3])
    assert "from_tensor_slices" in refused.value.hint
    assert "tensorflow" not in sys.modules


def test_rounds_need_a_data_set_without_an_end():
    with pytest.raises(PipelineError, match="this one has 0 elements") as refused:
        check_rounds(0)
    assert "repeat()" in refused.value.hint
    check_rounds(-1)  # infinite
    check_rounds(-2)  # nobody knows


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
    ],
)
def test_the_number_of_ranks_is_what_the_launcher_says(variables, ranks):
    assert ranks_of(variables) == ranks
