"""Templates are what CloudFormation takes, by cfn-lint; and how they differ from what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_role_stack import LARGE, SMALL
from test_vpc_stack import CHOICES

from headrace.cloud.role_template import role_stack
from headrace.cloud.stacks import check_name, differences, parse_template
from headrace.cloud.vpc_template import VpcOptions, vpc_stack
from headrace.errors import UsageError


def test_templates_are_correct_by_the_shapes_of_aws(tmp_path: Path) -> None:
    files = []
    for number, stack in enumerate([*map(vpc_stack, CHOICES), role_stack(SMALL), role_stack(LARGE)]):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(stack.text)
    command = [Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1", "--", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_template_that_is_read_back_is_the_same_however_it_is_written() -> None:
    stack = vpc_stack(VpcOptions())
    for body in (stack.text, stack.document, yaml.safe_dump(stack.document, default_flow_style=True)):
        assert differences(stack, parse_template(body), stack.parameters) == ()


def test_words_in_a_template_make_no_difference() -> None:
    stack = vpc_stack(VpcOptions())
    there = parse_template(stack.text) | {"Description": "as an older version had it"}
    assert differences(stack, there, stack.parameters) == ()


def test_a_template_with_tags_was_not_written_here() -> None:
    with pytest.raises(UsageError, match="not written by headrace"):
        parse_template("Resources: {A: {Type: !Ref B}}")


@pytest.mark.parametrize("name", ["", "1a", "a_b", "a" * 49, "a b", "ä"])
def test_names_that_no_stack_can_have_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)
