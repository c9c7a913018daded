"""`headrace cloud` as users type it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_account import Account

from headrace.cli.main import invoke
from headrace.cloud import stacks
from headrace.job.job import load_job

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Types a command; returns its exit code, output and standard error."""
    monkeypatch.setattr(stacks, "POLL", 0.05)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = invoke(["cloud", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_what_it_prints_belongs_into_a_job_file(account: Account, typed: Typed, tmp_path: Path) -> None:
    name, before = account.name, account.inventory()
    code, out, _ = typed("vpc", "create", "--name", name, "--dry-run")
    assert (code, out.splitlines()[0]) == (
        0, f"the stack {name} in us-east-1, account 123456789012: would be created",
    )  # fmt: skip
    assert out.endswith("nothing was changed\n")
    assert account.inventory() == before
    code, out, progress = typed("vpc", "create", "--name", name)
    assert code == 0
    assert "CREATE_COMPLETE" in progress
    job = tmp_path / "job.yaml"
    (tmp_path / "train.py").write_text("")
    job.write_text(f"job_name: j\nentry_point: train.py\ninstance_type: ml.m5.large\ninstance_count: 1\n{out}")
    assert len(load_job(job).subnets) == 2
    assert len(load_job(job).security_group_ids) == 1
    assert typed("vpc", "show", name)[1].splitlines()[1:] == out.splitlines()[1:]
    made = document(typed("vpc", "create", "--name", name, "--output", "json"))
    assert (made["outcome"], made["job"]) == ("unchanged", yaml.safe_load(out))
    code, out, err = typed("vpc", "create", "--name", name, "--encrypted")
    assert (code, out) == (2, "")
    assert "error:   resource IngressIpsecKeys: is asked for, and is not there\n" in err
    assert "hint: give the same options as then, --update to change it" in err
    planned = document(
        typed("vpc", "create", "--name", name, "--encrypted", "--update", "--dry-run", "--output", "json")
    )
    assert (planned["outcome"], len(planned["differences"])) == ("updated", 2)
    there = account.inventory()
    assert "nothing was changed" in typed("vpc", "remove", name, "--dry-run")[1]
    assert account.inventory() == there
    gone = document(typed("vpc", "remove", name, "--output", "json"))
    assert (gone["outcome"], gone["dry_run"]) == ("removed", False)
    assert account.inventory() == before
    role = typed("role", "create", "--name", name, "--bucket", "s3://mine/jobs")[1]
    assert yaml.safe_load(role) == {"role": f"arn:aws:iam::123456789012:role/{name}"}
    assert f"# attach to who submits: arn:aws:iam::123456789012:policy/{name}-submit\n" in role
    assert typed("role", "remove", name)[0] == 0
    code, _, err = typed("vpc", "remove", name)
    assert (code, err.splitlines()[0]) == (2, f"error: there is no stack {name} in us-east-1")


def document(result: tuple[int, str, str]) -> dict[str, Any]:
    assert result[0] == 0, result[2]
    return json.loads(result[1])


@pytest.mark.parametrize("kind", ["vpc", "role"])
def test_files_are_written_once_and_over_others_only_when_asked(typed: Typed, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "deep" / "er"
    first = ("role", "--bucket", "mine") if kind == "role" else ("vpc",)
    other = ("role", "--bucket", "other") if kind == "role" else ("vpc", "--encrypted")
    assert "would be written" in typed(*first, "--to", str(folder), "--dry-run")[1]
    assert not folder.exists()
    code, out, err = typed(*first, "--to", str(folder))
    assert (code, out.splitlines()[0]) == (0, f"{folder}/{kind}.yaml: written")
    assert f"--template-body file://{folder}/{kind}.yaml" in err
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert typed(*first, "--to", str(folder))[1].splitlines()[0] == f"{folder}/{kind}.yaml: is there already"
    code, _, err = typed(*other, "--to", str(folder))
    assert (code, err.splitlines()[0]) == (2, f"error: there already, and other: {folder}/{kind}.yaml")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert typed(*other, "--to", str(folder), "--update")[0] == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} != before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vpc", "--encrypted", "create"), "--encrypted: options stand behind 'create'"),
        (("vpc", "--encrypted"), "--to DIR is missing, or a command: create, show, remove"),
        (("vpc", "create", "--cidr", "10.0.0.0/8"), "a VPC of two subnets is /16 to /27"),
        (("vpc", "create", "--name", "a_b"), "'a_b' cannot be a stack's name"),
        (("role", "create"), "--bucket is missing"),
        (("role", "create", "--bucket", "B"), "'B' is not a bucket"),
        (("role", "create", "--bucket", "a..b"), "has a dot beside a dot"),
        (("role", "create", "--bucket", "mine/jobs*"), "the prefix has '*'"),
        (("vpc", "create", "--bucket", "mine-s3alias"), "ends with '-s3alias', which S3 keeps for itself"),
        (("image", "--to", "there", "--framework", "pytorch", "--framework-version", "1.0"), "no image of pytorch"),
        (("image", "--to", "there", "--framework", "pytorch", "--base", "x"), "give one of them"),
        (("image", "--to", "there", "--framework-version", "2.8"), "is possible with --framework only"),
        (("vpc", "--to", "/proc/nowhere"), "--to /proc/nowhere: "),
    ],
)
def test_mistakes_are_told_before_aws_is_asked(typed: Typed, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = typed(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "\nhint: " in err
