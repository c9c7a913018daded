"""`headrace doctor` on real scripts in real processes. Costs are far apart, so no noise turns a verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command_line import Cli
from effort import SOAK

from headrace.cli.commands import doctor as doctor_command
from headrace.cli.commands.doctor import _in_stages
from headrace.cli.main import invoke
from patience import until

pytestmark = pytest.mark.torch

HEAD = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Data(Dataset):
        def __init__(self, n, seconds): self.n, self.seconds = n, seconds
        def __len__(self): return self.n
        def __getitem__(self, i):
            time.sleep(self.seconds)
            return torch.rand(8) + i

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))

    def descend(loss):  # importing torch.optim.SGD's compiler takes longer than all else here
        model.zero_grad(); loss.backward()
        with torch.no_grad():
            for parameter in model.parameters(): parameter -= 0.0001 * parameter.grad

    def train(loader, epochs, seconds=0.0):
        for epoch in range(epochs):
            for step, x in enumerate(loader):
                loss = model(x).pow(2).mean()
                descend(loss)
                time.sleep(seconds)
                print(f"{epoch}/{step} {loss.item()!r}", flush=True)

"""
STEPS = ("--steps", "6", "--warmup", "1")
TO_REPLAY = 1 + 6 + 1 + 8  # warm-up, measured, the step that decides, kept
TO_END = TO_REPLAY + 3 + 6


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        return str(path)

    return write


@pytest.fixture
def doctor(cli: Cli, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Runs doctor on a command, by default a Python script, and checks that it leaves no file behind."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    cli.env["TMPDIR"] = str(temporary)

    def run(*arguments: str, options: tuple[str, ...] = (*STEPS, "--no-transfer")) -> CompletedProcess[str]:
        command = arguments if not arguments[0].endswith(".py") else (sys.executable, *arguments)
        done = cli("doctor", *options, "--", *command, timeout=110)
        assert not [path for path in temporary.iterdir() if path.name.startswith("headrace-")]
        return done

    return run


def judge(doctor: Callable[..., CompletedProcess[str]], *arguments: str, options: tuple[str, ...] = ()) -> Any:
    done = doctor(*arguments, options=(*STEPS, "--no-transfer", "--output", "json", *options))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def value(report: Any, name: str, rank: int = 0) -> Any:
    return report["ranks"][rank]["figures"][name]["value"]


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if "/" in line.partition(" ")[0]]


def test_a_stalled_script_is_told_how_many_workers_remove_the_stall(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    path = script("train(DataLoader(Data(400, 0.03), batch_size=4), 1, 0.02)")
    done = doctor(path, options=(*STEPS,))
    assert done.returncode == 0, done.stderr
    assert "\nLOCAL: " in done.stdout
    assert "num_workers=" in done.stdout.partition("LOCAL: ")[2]
    for words in (
        "stall (data wait)",
        "step floor",
        "best gain possible",
        "local capacity",
        "samples/s",
        "on loopback",
    ):
        assert words in done.stdout
    assert "at 10 Gbit/s" in done.stdout
    assert "not measured" not in done.stdout
    assert "the script was stopped after the trial" in done.stdout
    assert len(losses(done.stdout)) == TO_END
    assert "Traceback" not in done.stderr


if SOAK:  # in every run: a stalled one, headrace's own that ends early

    def test_the_figures_of_a_stalled_script(
        doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
    ) -> None:
        report = judge(doctor, script("train(DataLoader(Data(400, 0.03), batch_size=4, num_workers=2), 1)"))
        assert report["verdict"]["advice"] in ("local", "hybrid", "remote")  # as the machine has cores
        assert (report["exit_code"], report["stopped"]) == (75, True)
        assert value(report, "steps") == 6
        assert value(report, "batch_size") == 4
        assert value(report, "data_wait") > 50
        assert value(report, "step_floor") < value(report, "step_time") / 3
        assert 30 <= value(report, "sample_wall") < 300
        assert value(report, "sample_cpu") < 15
        assert value(report, "batch") == 4 * 8 * 4
        assert set(report["ranks"][0]["figures"]) - {"steps", "batch_size"} <= set(report["formulas"])


if SOAK:  # in every run: a stalled one, headrace's own that ends early

    def test_a_compute_bound_script_is_told_not_to_offload(
        doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
    ) -> None:
        report = judge(doctor, script("train(DataLoader(Data(400, 0), batch_size=4), 1, 0.1)"))
        assert report["verdict"]["advice"] == "do not offload"
        assert value(report, "step_floor") > 50


@pytest.mark.promise("doctor", "`headrace doctor` changes no batch and no random number of the script until it replays")
@pytest.mark.parametrize("workers", [2, *([0] if SOAK else [])])
def test_until_the_replay_the_script_gets_the_same_batches_and_random_numbers(
    cli: Cli, doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str], workers: int
) -> None:
    path = script(f"train(DataLoader(Data(28, 0), batch_size=4, shuffle=True, num_workers={workers}), 4)")
    watched = losses(doctor(path).stdout)
    alone = losses(cli.run_python(path).stdout)
    assert len(alone) == 28
    assert len(watched) == TO_END
    assert watched[:TO_REPLAY] == alone[:TO_REPLAY]
    assert watched[TO_REPLAY] != alone[TO_REPLAY]  # a kept batch
    assert [line.split()[0] for line in watched] == [line.split()[0] for line in alone[:TO_END]]  # passes keep length


if SOAK:  # measuring/test_trial_watch.py has it, in one process

    def test_full_lets_the_script_go_on_to_its_end(
        doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
    ) -> None:
        path = script("train(DataLoader(Data(44, 0), batch_size=4, num_workers=1), 4); print('the end')")
        done = doctor(path, options=(*STEPS, "--no-transfer", "--full"))
        assert done.returncode == 0
        assert "the end\n" in done.stdout
        assert [line.split()[0] for line in losses(done.stdout)] == [f"{e}/{s}" for e in range(4) for s in range(11)]


def test_a_failing_script_passes_its_exit_code_and_output_through(
    doctor: Callable[..., CompletedProcess[str]],
) -> None:
    done = doctor(sys.executable, "-c", "print('my own words'); raise SystemExit(7)")
    assert done.returncode == 7
    assert "my own words" in done.stdout
    assert "error: the command failed before the trial was over: exit code 7\nhint: " in done.stderr


def test_a_script_that_is_killed_is_told_with_its_signal(doctor: Callable[..., CompletedProcess[str]]) -> None:
    done = doctor("sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "before the trial was over: SIGKILL\n" in done.stderr


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ((sys.executable, "-c", "import torch.utils.data"), "never iterated over a DataLoader"),
        ((sys.executable, "-c", "print(1)"), "never imported torch.utils.data.DataLoader"),
        ((sys.executable, "-I", "-c", "print(1)"), "no Python process that could be measured"),
        (("true",), "no Python process that could be measured"),
    ],
)
def test_nothing_to_measure_is_an_error_that_says_why(
    doctor: Callable[..., CompletedProcess[str]], command: tuple[str, ...], error: str
) -> None:
    done = doctor(*command)
    assert done.returncode == 1
    assert error in done.stderr.partition("error: ")[2]
    assert "hint: " in done.stderr


def test_too_few_steps_are_an_error_and_some_are_a_verdict_with_an_estimated_floor(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    few = doctor(script("train(DataLoader(Data(8, 0), batch_size=4), 1)"))
    assert few.returncode == 1
    assert "too few steps to judge (DataLoader(Data, batch_size=4, num_workers=0): 2 steps)" in few.stderr
    if SOAK:  # headrace's own loader that ends early is in every run
        report = judge(doctor, script("train(DataLoader(Data(24, 0.05), batch_size=4), 1)"))
        assert value(report, "data_wait") > 50
        floor = report["ranks"][0]["figures"]["step_floor"]
        assert "estimated, batches were not replayed: the script ended" in floor["note"]
        assert ["the script ended before the trial was over" in note for note in report["notes"]] == [True]


def test_headraces_own_loader_of_a_script_that_ends_early_tells_what_a_sample_costs_or_what_to_do(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    loader = "f.DataLoader(Data(24, 0.03), batch_size=4, num_workers=1)"
    ended = judge(doctor, script(f"import headrace.feed as f; train({loader}, 1)"))
    assert value(ended, "steps") == 5
    assert value(ended, "sample_cpu") is not None
    reports = [ended]
    if SOAK:  # measuring/test_trial_watch.py has what cannot be replayed
        left = judge(doctor, script(f"import headrace.feed as f; train((x for x, _ in zip({loader}, range(5))), 1)"))
        assert value(left, "sample_cpu") is None  # its last pass has no end
        assert left["verdict"]["advice"] == "unknown"
        assert left["verdict"]["reason"].endswith("the script ended before the trial was over")
        assert left["verdict"]["notes"] == []  # and nothing about workers or the start method
        reports.append(left)
    for report in reports:
        assert ["give it more data or epochs" in note for note in report["notes"]] == [True]


def test_the_command_itself_may_be_missing(doctor: Callable[..., CompletedProcess[str]]) -> None:
    done = doctor("no-such-command")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot start no-such-command: No such file or directory\nhint: ")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--step", "30", "--", "python", "train.py"), "Did you mean '--steps'?"),
        (("--outptu", "json", "python", "train.py"), "Did you mean '--output'?"),
        (("--", "pyhton3", "train.py"), "did you mean 'python3'?"),
        (("--", "torch", "train.py"), "did you mean 'torchrun'?"),
        (("--", "./train.py"), "`headrace doctor -- python ./train.py`"),
    ],
)
def test_a_mistyped_option_or_program_is_refused_with_the_nearest(
    arguments: tuple[str, ...], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert invoke(["doctor", *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_a_stopped_script_unwinds_and_with_cuda_the_device_is_waited_for_at_the_borders_of_what_is_timed(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    path = script(
        """
        import atexit
        atexit.register(print, "atexit ran")
        torch.cuda.is_initialized = lambda: True  # stands for a device that this machine may not have
        torch.cuda.synchronize = lambda: print("waited")
        try:
            train(DataLoader(Data(400, 0), batch_size=4), 1)
        except Exception:
            print("caught")
        finally:
            print("finally ran")
        """
    )
    done = doctor(path)
    assert "finally ran\natexit ran\n" in done.stdout
    assert "caught" not in done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    at = [number - before for before, number in enumerate(n for n, line in enumerate(lines) if line == "waited")]
    assert at == [1, 1 + 6, TO_REPLAY, TO_REPLAY + 3, TO_END]


if SOAK:

    def test_a_loader_that_chooses_its_workers_is_told_and_measured(
        doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
    ) -> None:
        text = "import headrace.feed as f; train(f.DataLoader(Data(9000, 0.01), batch_size=4, num_workers='auto'), 1)"
        report = judge(doctor, script(text), options=("--steps", "200"))
        assert report["ranks"][0]["loader"] == 'headrace.feed.DataLoader(Data, batch_size=4, num_workers="auto")'
        assert value(report, "data_wait") is not None


def test_every_rank_is_reported_and_the_worst_is_judged(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    path = script(
        """
        import os
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        loader = DataLoader(Data(400, 0.06 if rank else 0), batch_size=4, num_workers=1)
        for x in loader:
            model(x).sum().backward()
            torch.distributed.all_reduce(model[0].weight.grad)
        """
    )
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    report = judge(doctor, *launcher, path)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["worst"] == 1
    assert (report["exit_code"], report["stopped"]) == (0, True)
    assert "rank 1, which waits the most of 2 ranks" in report["notes"][0]


def test_a_command_that_goes_on_after_the_trial_is_ended(
    doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str]
) -> None:
    path = script("train(DataLoader(Data(400, 0.03), batch_size=4), 1)")
    done = doctor("sh", "-c", f"{sys.executable} {path}; sleep 600; echo never")
    assert done.returncode == 0
    assert "the command went on after the trial, and was ended" in done.stderr
    assert "never" not in done.stdout


def test_the_scripts_environment_needs_no_headrace_and_keeps_its_own_sitecustomize(
    cli: Cli, doctor: Callable[..., CompletedProcess[str]], script: Callable[[str], str], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    (own / "headrace").mkdir(parents=True)
    (own / "headrace" / "__init__.py").write_text("raise RuntimeError('headrace was imported')")
    (own / "sitecustomize.py").write_text("MARK = 'mine'")
    path = script(
        """
        import sitecustomize
        left = [name for name in sys.modules if name.startswith(("headrace.feed.metrics", "headrace.feed.worker"))]
        print(sitecustomize.MARK, [entry for entry in sys.path if "trial" in entry], left)
        train(DataLoader(Data(400, 0.03), batch_size=4, num_workers=1), 1)
        """
    )
    done = doctor("sh", "-c", f'PYTHONPATH="${{PYTHONPATH%%:*}}:{own}" exec {sys.executable} {path}')
    assert done.returncode == 0, done.stderr
    assert "mine [] []\n" in done.stdout  # another version of headrace would find the probe's files in place of its own
    assert "step floor" in done.stdout


def test_ctrl_c_stops_the_script_and_cleans_up(cli: Cli, script: Callable[[str], str], tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    cli.env["TMPDIR"] = str(temporary)
    path = script(
        """
        import os
        print("pid", os.getpid(), flush=True)
        train(DataLoader(Data(10**6, 0.01), batch_size=4, num_workers=1), 1)
        """
    )
    child = cli.start("doctor", "--", sys.executable, path, err=-1)
    assert child.stdout is not None
    pid = int(child.stdout.readline().split()[1])
    while "/" not in child.stdout.readline().partition(" ")[0]:
        pass
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "KeyboardInterrupt" in err
    assert "Traceback" not in err.partition("doctor: stopped")[2]
    until(lambda: not Path(f"/proc/{pid}").exists(), 10)
    assert not [each for each in temporary.iterdir() if each.name.startswith("headrace-")]


def a_trial_in(stages: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"import sys, time\nsay = lambda text: print(text, flush=True)\n{stages}",
    ]


def test_what_the_trial_over_tcp_waits_for_is_shown_while_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_command, "SIGN_SECONDS", 0.05)
    answer = _in_stages(a_trial_in("say('\"the first batch\"'); time.sleep(0.4); print('{}')"))
    assert answer == (b"{}", "")
    assert "s: the first batch\n" in capsys.readouterr().err
    assert _in_stages(a_trial_in("say('\"the first batch\"'); sys.exit('no room')")) == (b"", "no room")
    assert _in_stages(a_trial_in("sys.exit(3)")) == (b"", "exit code 3")


def test_a_trial_over_tcp_that_stands_still_is_ended_by_the_time_of_one_stage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor_command, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr(doctor_command, "STAGE_SECONDS", 0.8)  # a shell starts within that, also on a busy machine
    unwound = tmp_path / "unwound"
    shell = f"trap 'touch {unwound}; exit' INT; echo '\"one\"'; sleep 0.4; echo '\"two\"'; sleep 60 & wait"
    answer, why_not = _in_stages(["sh", "-c", shell])
    assert answer == b""
    assert re.fullmatch(r"it was not over after \d+ s of waiting: two", why_not)
    assert unwound.exists(), "so it ends its server, too"
    monkeypatch.setattr(doctor_command, "ENDING_SECONDS", 0.1)
    assert _in_stages(["sh", "-c", "trap '' INT; echo '\"deaf\"'; sleep 60"])[1].endswith("deaf")
