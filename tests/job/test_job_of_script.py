"""`headrace init` writes a job file from what it sees of a script, without running it; it is valid as it is written."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import invoke
from headrace.errors import UsageError
from headrace.instance.entry_command import hyperparameter_arguments
from headrace.job import load_job
from headrace.job.job_of_script import job_of_script
from patience import allowed

SCRIPT = """
import argparse, os
raise SystemExit("it was run")
parser = argparse.ArgumentParser()
group = parser.add_argument_group("training")
group.add_argument("-l", "--learning-rate", type=float, default=1e-3, help="of  Adam: 10%% of it\\nat first")
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--name", default="yes: no # 'x'")
parser.add_argument("--seed", type=int)
parser.add_argument("--vocabulary", default=2 ** 15)
parser.add_argument("--corpus", default="data/corpus.jsonl")
parser.add_argument("--out-dir", default="out")
parser.add_argument("--train", default=os.environ.get("SM_CHANNEL_TRAIN"))
parser.add_argument("--test", default=os.environ["SM_CHANNEL_TEST"])
parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "/tmp/x"))
parser.add_argument("--fast", action="store_true")
parser.add_argument("--layers", nargs="+", default=[1, 2])
parser.add_argument("config")
parser.add_argument(f"--{os.name}")
"""


def test_options_become_hyperparameters_and_data_that_they_name_become_channels(tmp_path: Path) -> None:
    (tmp_path / "train me.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").touch()
    (tmp_path / "out").mkdir()  # of a run by hand, before
    (tmp_path / "train").mkdir()
    (tmp_path / "requirements-gpu.txt").touch()
    assert invoke(["init", str(tmp_path / "train me.py")]) == 0
    job = load_job(tmp_path / "job.yaml")
    assert (job.job_name, job.entry_point, str(job.requirements)) == ("train-me", "train me.py", "requirements-gpu.txt")
    assert job.hyperparameters == {
        "learning-rate": 1e-3,
        "name": "yes: no # 'x'",
        "corpus": "/opt/ml/input/data/corpus/corpus.jsonl",
        "out-dir": "out",
    }
    assert {name: channel.s3_data for name, channel in job.inputs.items()} == {
        "train": "train",
        "corpus": "data",
    }
    text = (tmp_path / "job.yaml").read_text()
    for words in (
        "  learning-rate: 0.001  # of Adam: 10%% of it at first\n",
        "  # epochs:  # the script needs it\n",
        "  # seed:  # the script has its own default\n",
        "  # vocabulary:  # the script has its own default\n",
        "  # test: FOLDER  # the script asks for it\n",
        "  # model-dir: $SM_MODEL_DIR unless it is given\n",
        "  # fast: a flag without a value: only a `command`",
        "  # layers: several values: only a `command`",
        "  # config: an argument without a name: only a `command` in place of entry_point gives it, and",
    ):
        assert words in text
    assert "nt" not in job.hyperparameters


def test_a_file_that_is_there_stays_unless_it_is_said_and_what_comes_next_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").touch()
    Path("job.yaml").write_text("mine")
    assert invoke(["init", "train.sh"]) == 2
    assert "job.yaml is there already" in capsys.readouterr().err
    assert Path("job.yaml").read_text() == "mine"
    assert invoke(["init", "train.sh", "--force"]) == 0
    commands = [line.strip().partition("  #")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert commands == ["headrace plan job.yaml", "headrace run job.yaml"]
    assert invoke(commands[0].split()[1:]) == 0
    assert invoke(["plan", "train.sh"]) == 2
    assert "`headrace init train.sh` writes a job file" in capsys.readouterr().err


def test_a_script_of_a_package_is_started_as_its_module_and_one_with_ranks_has_its_launcher(tmp_path: Path) -> None:
    folder = tmp_path / "trainer" / "text"
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        (each / "__init__.py").touch()
    (folder / "main.py").write_text("import torch.distributed as dist\nfrom .data import load\n")
    assert invoke(["init", str(folder / "main.py")]) == 0
    job = load_job(folder / "job.yaml")
    assert (job.job_name, job.entry_point) == ("text", "-m trainer.text.main")
    assert (folder / str(job.source_dir)).resolve() == tmp_path.resolve()
    assert job.distribution


@pytest.mark.parametrize("ranks", ["", "import torch.distributed\n"])
def test_hosts_that_prepare_batches_stand_in_the_file_of_a_script_with_a_loader_as_a_comment(
    ranks: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{ranks}import numpy\n")
    assert "data_service" not in job_of_script(script)
    script.write_text(f"{ranks}from torch.utils.data import DataLoader\n")
    above, block = job_of_script(script).split("# With hosts that only prepare batches")
    place, rest = block.split("in place of the ")[1].split("# instance_groups:")
    replaced = ["two", "three"].index(place.split()[0]) + 2
    kept = "\n".join(above.splitlines()[:-replaced])
    body, rest = rest.split("\n\n", 1)
    lines = "\n".join(line.removeprefix("# ") for line in f"instance_groups:{body}".splitlines())
    (tmp_path / "job.yaml").write_text(f"{kept}\n{lines}\n{rest}")
    job = load_job(tmp_path / "job.yaml")
    assert (job.entry_point_groups, job.feed_groups) == (("gpu",), ("data",))
    assert bool(job.distribution) == bool(ranks)


@pytest.mark.parametrize(("name", "text"), [("a.txt", ""), ("a.py", "def (:"), ("a.py", "\0"), ("a.py", None)])
def test_what_is_no_script_is_told(name: str, text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=name):
        job_of_script(tmp_path / name)


def test_a_channel_that_a_pipeline_asks_for_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "train.py").write_text("feed.channel('texts'); channel('words'); feed.channel(name)\n")
    text = job_of_script(tmp_path / "train.py")
    assert "\n  texts: texts\n" in text
    assert "\n  # words: FOLDER" in text


@pytest.mark.parametrize("default", ["/", ".", "..", "../..", "//", "./"])
def test_the_folders_around_a_script_are_no_data(default: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/train.py").write_text(f"p.add_argument('--root', default={default!r})\n")
    assert "inputs:" not in job_of_script(tmp_path / "a/train.py")


def test_whatever_an_option_says_the_file_is_valid_and_gives_back_its_value(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rng = random.Random(seed)
    signs = "ab1 .-_:#'\"{}[],&*!|>%@`~=?\\/\u00e9\n\t"
    for _ in range(60):
        values: dict[str, object] = {}
        for number in range(rng.randint(1, 6)):
            word = "".join(rng.choices(signs, k=rng.randint(1, 8)))
            value = rng.choice(
                (word, rng.random(), rng.randint(-9, 9), True, False, "true", "null", "1e-3", "no", "12", "x" * 999)
            )
            values[f"{rng.choice('abc')}{number}{rng.choice(('', '-x', '_y', '.z'))}"] = value
        options = "".join(
            f"p.add_argument('--{name}', default={value!r}, help={value!r})\n" for name, value in values.items()
        )
        script = tmp_path / "train.py"
        script.write_text(options)
        (tmp_path / "job.yaml").write_text(job_of_script(script))
        assert load_job(tmp_path / "job.yaml").hyperparameters == values, options


ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument({}, type=int, default=5)\n"
ARGPARSE += "a = p.parse_args()\nraise SystemExit(vars(a)[min(vars(a))] != 7)\n"
CLICK_ONE = "import click\n@click.command()\n@click.option({}, type=int, default=5)\n"
CLICK_ONE += "def main(**a): raise SystemExit(min(a.values()) != 7)\nmain()\n"
TYPER_ONE = "import typer\ndef main(n: int = typer.Option(5, {})): raise SystemExit(n != 7)\ntyper.run(main)\n"


@pytest.mark.parametrize(
    ("script", "names", "name"),
    [
        (ARGPARSE, "'--n'", ""),
        (ARGPARSE, "'-lr'", ""),
        (ARGPARSE, "'-n'", "n"),
        (ARGPARSE, "'--n', '-n'", "n"),
        (ARGPARSE, "'-n', '-num'", "n"),
        (ARGPARSE, "'-n', '--num'", "num"),
        (ARGPARSE, "'--n', '--num'", "num"),
        (CLICK_ONE, "'--n'", ""),
        (CLICK_ONE, "'n', '-n'", "n"),
        (TYPER_ONE, "", ""),
        (TYPER_ONE, "'-n'", "n"),
        (TYPER_ONE, "'--n', '-n'", "n"),
        ("from transformers import HfArgumentParser\nclass A:\n    n: int = 5\nHfArgumentParser(A)\n", "", ""),
    ],
)
def test_an_option_is_a_hyperparameter_only_by_a_name_that_the_script_takes_as_it_is_passed(
    script: str, names: str, name: str, tmp_path: Path
) -> None:
    """A name of one letter is passed with one hyphen, every other with two."""
    (tmp_path / "train.py").write_text(script.format(names))
    text = job_of_script(tmp_path / "train.py")
    (tmp_path / "job.yaml").write_text(text)
    parameters = load_job(tmp_path / "job.yaml").hyperparameters
    assert parameters == ({name: 5} if name else {})
    if name and script != TYPER_ONE:  # which needs a library that need not be here
        command = [sys.executable, str(tmp_path / "train.py"), *hyperparameter_arguments({name: 7})]
        assert subprocess.run(command, timeout=allowed(60), check=False).returncode == 0
    if not name:
        written = "lr" if "lr" in names else "n"
        passed, declared = ("--lr", "-lr") if written == "lr" else ("-n", "--n")
        reason = f"it would be passed as {passed}, as SageMaker does, and the script has {declared}: only a `command`"
        assert f"\n  # {written}: {reason}" in text


CLICK = """
import click
@click.command()
@click.option("-l", "--learning-rate", "lr", default=1e-3, help="of Adam")
@click.option("--epochs", type=int, required=True)
@click.option("--shuffle/--no-shuffle", default=True)
@click.option("--fast", is_flag=True)
@click.option("--data", default="corpus")
@click.option("--size", nargs=2, default=(1, 2))
@click.argument("config")
def main(**options): raise SystemExit("it was run")
"""
TYPER = """
import typer
from typing import Annotated, List, Optional
app = typer.Typer()
@app.command()
def main(
    context: typer.Context,
    config: str,
    learning_rate: float = 1e-3,
    epochs: int = typer.Option(..., help="how many"),
    name: Annotated[str, typer.Option("--run-name", "-n", help="of the run")] = "try",
    shuffle: bool = True,
    layers: List[int] = [1],
    seed: Optional[int] = None,
    data: str = typer.Option("corpus"),
): raise SystemExit("it was run")
"""
HF = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Base:
    data: str = "corpus"
@dataclass
class ModelArguments(Base):
    epochs: int
    learning_rate: float = field(default=1e-3, metadata={"help": "of Adam"})
    layers: list[int] = field(default_factory=list)
    shuffle: bool = True
    hidden: int = field(default=0, init=False)
model, training = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
"""
TYRO = """
import tyro, dataclasses
@dataclasses.dataclass
class Args:
    epochs: int
    learning_rate: float = 1e-3
    shuffle: bool = False
    data: str = "corpus"
tyro.cli(Args)
"""


@pytest.mark.parametrize(
    ("script", "parameters", "comments"),
    [
        (
            CLICK,
            {"learning-rate": 1e-3},
            ["  learning-rate: 0.001  # of Adam\n", "# epochs:  # the script needs it", "# shuffle: a flag",
             "# fast: a flag", "# size: several values", "# config: an argument without a name"],
        ),
        (
            TYPER,
            {"learning-rate": 1e-3, "run-name": "try"},
            ["# epochs:  # the script needs it: how many", "# shuffle: a flag", "# layers: several values",
             "# seed:  # the", "# config: an argument without a name", "  run-name: try  # of the run\n"],
        ),
        (
            HF,
            {"learning_rate": 1e-3, "shuffle": True},
            ["  learning_rate: 0.001  # of Adam\n", "# epochs:  # the script needs it", "# layers: several values",
             "# TrainingArguments is not defined in the script"],
        ),
        (TYRO, {"learning-rate": 1e-3}, ["# epochs:  # the script needs it", "# shuffle: a flag"]),
    ],
    ids=["click", "typer", "dataclasses", "tyro"],
)  # fmt: skip
def test_options_of_click_typer_and_dataclasses_are_read_as_those_of_argparse_are(
    script: str, parameters: dict[str, object], comments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "corpus").mkdir()
    text = job_of_script(tmp_path / "train.py")
    (tmp_path / "job.yaml").write_text(text)
    job = load_job(tmp_path / "job.yaml")
    assert job.hyperparameters == {**parameters, "data": "/opt/ml/input/data/data"}
    assert {name: channel.s3_data for name, channel in job.inputs.items()} == {"data": "corpus"}
    assert not [words for words in comments if words not in text], text
    assert "context" not in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import click\n@click.group()\ndef cli(): 0\n@cli.command()\n@click.option('--lr')\ndef go(lr): 0\n",
         "lr: an option of a subcommand: only a `command`"),
        ("import typer\napp = typer.Typer()\n@app.command()\ndef a(x: int = 1): pass\n@app.command()\ndef b(): pass\n",
         "x: an option of a subcommand: only a `command`"),
        ("import hydra\n@hydra.main()\ndef main(cfg): pass\n", "# hydra takes NAME=VALUE: not seen here"),
        ("import fire\nfire.Fire(lambda lr=1: lr)\n", "# fire takes the arguments of functions: not seen here"),
        ("import sys\nprint(sys.argv[1])\n", "# it reads sys.argv by itself"),
    ],
    ids=["group", "two commands", "hydra", "fire", "sys.argv"],
)  # fmt: skip
def test_what_cannot_be_seen_of_a_command_line_is_said_with_the_way_out(
    script: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    text = job_of_script(tmp_path / "train.py")
    (tmp_path / "job.yaml").write_text(text)
    assert not load_job(tmp_path / "job.yaml").hyperparameters
    assert words in text
    assert "`command`" in text


def test_a_method_called_option_or_run_in_a_script_without_these_libraries_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "@menu.option('--x', default=1)\ndef f(y: int = 2): pass\napp.run(f)\ncli(Args)\n"
    )
    assert "hyperparameters" not in job_of_script(tmp_path / "train.py")
