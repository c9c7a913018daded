"""Hyperparameters as JSON strings and as argv."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.instance import hyperparameter_arguments
from headrace.instance.entry_command import decode, encode

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
hyperparameters = st.dictionaries(text.filter(bool), json_values, max_size=6)


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        ({}, []),
        ({"epochs": 3}, ["--epochs", "3"]),
        ({"k": 5, "lr": 1e-05}, ["-k", "5", "--lr", "1e-05"]),
        ({"b": True, "a": False}, ["-a", "False", "-b", "True"]),
        ({"note": None}, ["--note", ""]),
        ({"layers": [1, "x", None]}, ["--layers", "[1, 'x', None]"]),
        ({"use": {"y": 2, "x": None}}, ["--use", "x=None,y=2"]),
        ({"empty": {}}, ["--empty", ""]),
        ({"batch-size": 64, "batch_size": 1}, ["--batch-size", "64", "--batch_size", "1"]),
        ({"Z": 1, "a": 2}, ["-Z", "1", "-a", "2"]),
    ],
)
def test_the_dialect_is_the_toolkits(given_values: dict[str, object], expected: list[str]) -> None:
    assert hyperparameter_arguments(given_values) == expected


@settings(deadline=None)
@given(hyperparameters)
def test_every_hyperparameter_is_one_option_and_one_value_in_sorted_order(values: dict[str, object]) -> None:
    arguments = hyperparameter_arguments(values)
    assert arguments[::2] == [f"--{name}" if len(name) > 1 else f"-{name}" for name in sorted(values)]
    assert len(arguments) == 2 * len(values)
    for name, argument in zip(sorted(values), arguments[1::2], strict=True):
        if isinstance(values[name], str):
            assert argument == values[name]


@settings(deadline=None)
@given(hyperparameters)
def test_values_survive_the_file(values: dict[str, object]) -> None:
    encoded = encode(values)
    assert all(isinstance(value, str) for value in encoded.values())
    assert decode(json.loads(json.dumps(encoded))) == values


@pytest.mark.promise("entry-points", "hyperparameters arrive as they are, and no shell sees them")
@settings(max_examples=15, deadline=None)
@given(st.dictionaries(text.filter(bool), text, min_size=5, max_size=20))
def test_every_text_arrives_whole_in_a_real_process(values: dict[str, str]) -> None:
    arguments = hyperparameter_arguments(values)
    assert received(arguments) == arguments


@pytest.mark.promise("entry-points", "hyperparameters arrive as they are, and no shell sees them")
@pytest.mark.promise("sagemaker-differences", "absent here: a hyperparameter with quotes or `;` is cut or executed")
def test_shell_characters_mean_nothing() -> None:
    arguments = hyperparameter_arguments({"name": "a b; echo INJECTED", "other": "$(id) `id` \"x' * \\ \n &"})
    assert arguments[1] == "a b; echo INJECTED"
    assert received(arguments) == arguments


def received(arguments: list[str]) -> list[str]:
    script = "import json, sys; json.dump(sys.argv[1:], sys.stdout)"
    done = subprocess.run([sys.executable, "-S", "-c", script, *arguments], capture_output=True, timeout=30, check=True)
    return json.loads(done.stdout)


def test_strings_that_are_not_json_stay_as_they_are() -> None:
    raw = {"plain": "abc", "number": "10", "deep": "[" * 2500, "long": "1" * 5000, "not a string": 3}
    assert decode(raw) == raw | {"number": 10}


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b", {"x": "\0"}])
def test_a_value_that_no_process_can_be_given_is_refused_by_name(value: object) -> None:
    with pytest.raises(UsageError, match="hyperparameter 'name'") as caught:
        encode({"name": value})
    assert caught.value.hint


def test_a_value_that_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"hyperparameter 'when'.*JSON"):
        encode({"when": {1, 2}})
