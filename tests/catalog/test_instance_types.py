"""The table of instance types: what it knows, what it leaves open, what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.catalog.instance_types import KNOWN, InstanceShape, hint_for, parse, shape


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml.c5.xlarge", InstanceShape(4, 8.0, 0)),
        ("ml.c5n.xlarge", InstanceShape(4, 10.5, 0)),
        ("ml.c5.18xlarge", InstanceShape(72, 144.0, 0)),
        ("ml.g5.12xlarge", InstanceShape(48, 192.0, 4)),
        ("ml.p3.2xlarge", InstanceShape(8, 61.0, 1)),
        ("ml.p4d.24xlarge", InstanceShape(96, 1152.0, 8)),
        ("ml.trn1.32xlarge", InstanceShape(128, 512.0, 0)),
    ],
)
def test_a_published_shape_is_known(name: str, expected: InstanceShape) -> None:
    assert shape(name) == expected


def test_every_name_is_a_sagemaker_name_and_every_known_shape_is_of_a_real_machine() -> None:
    assert len(KNOWN) > 200
    for name in KNOWN:
        assert name.startswith("ml.")
        known = shape(name)
        if known is not None:
            assert known.vcpus >= 1
            assert known.memory_gib > 0
            assert 0 <= known.gpus <= 16


def test_a_type_may_be_known_without_its_shape() -> None:
    assert "ml.p6e-gb200.36xlarge" in KNOWN
    assert shape("ml.p6e-gb200.36xlarge") is None


@pytest.mark.parametrize("name", ["ml.c5.large", "c5.xlarge", "local", ""])
def test_a_type_that_sagemaker_does_not_train_on_is_unknown(name: str) -> None:
    assert name not in KNOWN
    assert shape(name) is None


def test_a_table_with_a_type_twice_is_refused() -> None:
    lines = ["# a comment", "instance_type,vcpus,memory_gib,gpus", "ml.a.b,1,2,0", "ml.a.b,1,2,0"]
    with pytest.raises(ValueError, match=r"ml\.a\.b comes twice"):
        parse(lines)


def test_the_catalog_imports_nothing_of_ours_and_no_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import headrace.catalog.instance_types;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "assert not new - set(sys.stdlib_module_names) - {'headrace'}, new;"
        "ours = {name for name in sys.modules if name.startswith('headrace')};"
        "assert ours == {'headrace', 'headrace._version', 'headrace.catalog', 'headrace.catalog.instance_types'}, ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ml.g5.xlrge", "did you mean 'ml.g5.xlarge'? ml.g5 has xlarge, 2xlarge"),
        ("g5.xlarge", "did you mean 'ml.g5.xlarge'?"),
        ("ML.C5.XLARGE", "did you mean 'ml.c5.xlarge'?"),
        ("ml-c5-xlarge", "did you mean 'ml.c5.xlarge'?"),
        ("ml.c5.large", "ml.c5 has xlarge, 2xlarge, 4xlarge, 9xlarge, 18xlarge"),
        ("p4d", "there are ml.p4d.24xlarge, ml.p4de.24xlarge"),
        ("", "e.g. 'ml.c5.xlarge'"),
        ("a machine", "e.g. 'ml.c5.xlarge'"),
    ],
)
def test_a_name_that_is_no_type_gets_the_nearest_or_those_of_its_family(name: str, hint: str) -> None:
    assert hint_for(name).startswith(hint) or hint in hint_for(name)
