"""Real small jobs through the command line: success, failure, Ctrl-C once and twice, stop, a lost reader."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import COMMAND, Cli
from effort import SOAK

from headrace.job.rules.local_files import as_module
from headrace.runs import Run, Status
from patience import allowed

JobFile = Callable[..., str]

HELLO = """
    import os, sys
    print("args", sys.argv[1:])
    print("I am", os.environ["SM_CURRENT_HOST"], flush=True)
    print("and this is standard error", file=sys.stderr)
"""

PATIENT = """
    import signal, sys, time
    def end(number, frame):
        print("saving", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("training", flush=True)
    while True:
        time.sleep(0.05)
"""

STUBBORN = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("training", flush=True)
    while True:
        time.sleep(0.05)
"""


BARE = "engines.local.isolation=none"


def lines_until(child: subprocess.Popen[str], text: str) -> list[str]:
    """Reads the output of a command up to a line that holds the text."""
    assert child.stdout is not None
    found = []
    for line in child.stdout:
        found.append(line.rstrip("\n"))
        if text in line:
            return found
    raise AssertionError(f"{text!r} did not come: {found}; {child.stderr.read() if child.stderr else ''}")


@pytest.fixture
def running(cli: Cli) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `headrace run`; whatever the test leaves running is ended."""
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        children.append(cli.start("run", *arguments))
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=30)


@pytest.mark.promise("runs", "exit code 0: completed")
def test_a_job_runs_to_its_end_and_exits_with_0(cli: Cli, job_file: JobFile) -> None:
    result = cli("run", job_file(HELLO), "--set", "hyperparameters.epochs=7")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    run = Run.open("small", cli.runs)
    assert lines[0] == f"run {run.id}"
    assert lines[1].startswith("  dnn: 1 x ml.m5.large (algo-1)")
    assert "dnn/algo-1[0] args ['--epochs', '7', '--note', 'a b']" in lines
    assert "dnn/algo-1[0] I am algo-1" in lines
    assert "dnn/algo-1[0] and this is standard error" in lines
    assert lines[-3].startswith(f"{run.id}: Completed after ")
    assert lines[-2:] == [f"  headrace report {run.id}", f"  headrace logs {run.id}"]
    assert "\x1b" not in result.stdout
    assert "samples/s" not in result.stdout
    assert run.status is Status.COMPLETED
    report = json.loads(cli("report", "small", "--output", "json").stdout)
    assert report["time_to_train"]["value"] > 0
    assert [(p["stream"], p["exit_code"]) for p in report["programs"]] == [("0", 0)]


@pytest.mark.promise("sagemaker-differences", "absent here: one model folder for all")
def test_the_end_and_the_status_say_where_the_model_is_and_which_files_clashed(cli: Cli, job_file: JobFile) -> None:
    save = """
        import os, pathlib
        host, model = os.environ["SM_CURRENT_HOST"], pathlib.Path(os.environ["SM_MODEL_DIR"])
        (model / "weights").write_text(host)
        (model / host).write_text(host)
        """
    hosts = ("--set", "instance_groups.0.count=2")
    result = cli("run", job_file(save), *hosts, "--set", "output_path=out", "--quiet")
    assert result.returncode == 0, result.stderr
    place = f"{cli.cwd}/out/small/output/model.tar.gz"
    shown = result.stdout.splitlines()
    assert shown[-4:-2] == [
        f"  model: {place} (3 files, 0.0 MiB)",
        "  warning: model: weights differs: that of algo-1 was kept, not that of algo-2",
    ]
    assert (len(shown), ": Completed after " in shown[0]) == (5, True), "--quiet shows the end only"
    assert cli("status", "small").stdout.splitlines()[-1] == f"model: {place} (3 files, 1 file differs between hosts)"
    (model,) = json.loads(cli("status", "small", "--output", "json").stdout)["headrace"]["artefacts"]
    assert (model["uri"], model["clashes"][0]["path"]) == (place, "weights")


def test_json_output_is_one_document_and_a_relative_home_is_relative_to_where_the_command_was_started(
    cli: Cli, job_file: JobFile
) -> None:
    cli.env["HEADRACE_HOME"] = "elsewhere"
    result = cli("run", job_file(HELLO), "--output", "json")
    found = json.loads(result.stdout)
    assert (found["status"], found["exit_code"], found["cause"]) == ("Completed", 0, None)
    assert found["run_dir"] == str(cli.cwd / "elsewhere" / "runs" / found["run_id"])
    assert "I am algo-1" in result.stderr, "the logs"
    assert cli("report", "small").returncode == 0


@pytest.mark.promise("runs", "exit code 1: failed, or stopped by `max_run`")
@pytest.mark.promise("sagemaker-differences", "absent here: a wrapper prints credentials and drops the exit code")
def test_a_failed_job_exits_with_1_and_shows_the_first_cause_with_its_last_lines(cli: Cli, job_file: JobFile) -> None:
    result = cli("run", job_file("import sys; print('about to fail'); sys.exit(3)"))
    assert result.returncode == 1
    tail = result.stdout[result.stdout.index("last lines of dnn/algo-1[0]:") :]
    assert "  | about to fail" in tail
    assert "headrace: dnn/algo-1[0]: ended with exit code 3" in result.stdout
    assert ": Failed after " in tail
    assert "dnn/algo-1[0]: " in tail
    assert "3" in tail


@pytest.mark.promise("entry-points", "without `source_dir` the script alone is copied; a missing module is named")
def test_a_script_without_source_dir_that_misses_its_neighbour_is_told_to_name_the_folder(
    cli: Cli, job_file: JobFile, tmp_path: Path
) -> None:
    path = Path(job_file("import helper"))
    (tmp_path / "small-code" / "helper").mkdir()
    alone = path.read_text().replace("source_dir: small-code\nentry_point: ", "entry_point: small-code/")
    path.write_text(alone)
    result = cli("run", str(path))
    assert result.returncode == 1
    assert (
        "hint: helper lies beside train.py, but without source_dir the script alone is copied: "
        "give source_dir 'small-code' and entry_point 'train.py'\n"
    ) in result.stdout


def test_a_script_that_imports_with_a_dot_is_told_how_it_is_started_as_a_module_and_runs_so(
    cli: Cli, job_file: JobFile, tmp_path: Path
) -> None:
    path = job_file("from .helper import word; print(word)")
    (tmp_path / "small-code").rename(tmp_path / "small")
    Path(path).write_text(Path(path).read_text().replace("source_dir: small-code", "source_dir: small"))
    (tmp_path / "small" / "helper.py").write_text("word = 'found'")
    result = cli("run", path)
    assert result.returncode == 1
    hint = "hint: a script that imports with a dot is started as a module of its package: "
    assert f"{hint}give source_dir '.' and entry_point '-m small.train'\n" in result.stdout
    again = cli("run", path, "--set", "source_dir=.", "--set", "entry_point=-m small.train")
    assert again.returncode == 0, again.stdout
    assert "found" in again.stdout


@pytest.mark.parametrize(
    ("source_dir", "entry_point", "expected"),
    [
        ("code", "pkg/main.py", ("code", "-m pkg.main")),
        ("code/pkg", "main.py", ("code", "-m pkg.main")),
        ("file://code/pkg", "main.py", ("code", "-m pkg.main")),
        ("pkg", "main.py", (".", "-m pkg.main")),
        (".", "main.py", ("..", "-m base.main")),
        ("", "code/pkg/main.py", ("code", "-m pkg.main")),
        ("code", "pkg/sub/main.py", ("code", "-m pkg.sub.main")),
        ("s3://bucket/code.tar.gz", "main.py", None),
        ("code", "main.sh", None),
        ("code", "-m pkg.main", None),
    ],
)
def test_the_module_of_a_script_is_named_from_the_folder_that_holds_its_package(
    source_dir: str, entry_point: str, expected: tuple[str, str] | None, tmp_path: Path
) -> None:
    lines = ["Traceback", "ImportError: attempted relative import with no known parent package"]
    assert as_module([entry_point], source_dir, tmp_path / "base", lines) == expected
    assert as_module([entry_point], source_dir, tmp_path / "base", ["ImportError: other"]) is None


@pytest.mark.promise("runs", "exit code 130: stopped; a second Ctrl-C kills at once")
def test_ctrl_c_once_stops_the_job_in_order(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]]
) -> None:
    child = running(job_file(PATIENT))
    lines_until(child, "training")
    child.send_signal(signal.SIGINT)
    shown = lines_until(child, "Stopped after")
    assert child.wait(10) == 130
    assert "headrace: stopping (Ctrl-C again to kill)" in shown
    assert "dnn/algo-1[0] saving" in shown
    assert Run.open("small", cli.runs).status is Status.STOPPED


@pytest.mark.promise("runs", "exit code 130: stopped; a second Ctrl-C kills at once")
def test_ctrl_c_twice_kills_a_program_that_does_not_listen(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]]
) -> None:
    child = running(job_file(STUBBORN), "--set", "engines.local.stop_grace=60")
    lines_until(child, "training")
    child.send_signal(signal.SIGINT)
    lines_until(child, "Ctrl-C again")
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    shown = lines_until(child, "Stopped after")
    assert child.wait(10) == 130
    assert time.monotonic() - started < allowed(10)
    assert "headrace: killing" in shown


@pytest.mark.parametrize(("script", "flags"), [(STUBBORN, ["--now"]), *([(PATIENT, [])] if SOAK else [])])
def test_headrace_stop_ends_a_run_that_somebody_else_follows(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]], script: str, flags: list[str]
) -> None:
    child = running(job_file(script), "--set", "engines.local.stop_grace=60")
    lines_until(child, "training")
    stopped = cli("stop", "small", *flags)
    assert (stopped.returncode, stopped.stdout) == (0, f"stopping {Run.open('small', cli.runs).id}\n")
    lines_until(child, "Stopped after")
    assert child.wait(10) == 130


@pytest.mark.promise("faults", "output that cannot be written leaves the job alone")
def test_a_reader_that_goes_away_leaves_the_job_alone(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    script = PATIENT.replace("while True:", f"while not os.path.exists({str(tmp_path / 'end')!r}):")
    script = script.replace("import ", "import os, ").replace("time.sleep(0.05)", "time.sleep(0.05); print('on')")
    child = running(job_file(script), "--set", BARE)
    lines_until(child, "training")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    run = Run.open("small", cli.runs)
    unseen = f"headrace: the output cannot be written (Broken pipe): {run.id} goes on unseen; "
    assert child.stderr.readline().startswith(unseen)
    assert run.status is Status.IN_PROGRESS
    (tmp_path / "end").touch()
    assert child.wait(allowed(20)) == 0
    assert child.stderr.read() == ""
    assert run.status is Status.COMPLETED


def test_ctrl_c_stops_a_job_whose_output_cannot_be_written(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]]
) -> None:
    child = running(job_file(PATIENT), "--set", BARE)
    lines_until(child, "training")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stderr.close()  # `headrace run JOB 2>&1 | tee FILE`: Ctrl-C ends tee too
    child.send_signal(signal.SIGINT)
    assert child.wait(allowed(20)) == 130
    run = Run.open("small", cli.runs)
    assert (run.status, str(run.cause)) == (Status.STOPPED, "stopped by the user")
    assert "saving" in [line.text for line in run.logs()]


@pytest.mark.parametrize("closed", [False, True], ids=["full", "closed"])
def test_a_job_runs_to_its_end_with_an_output_that_is_full_or_closed(cli: Cli, job_file: JobFile, closed: bool) -> None:
    close = "exec 1>&- 2>&-" if closed else "exec >/dev/full"
    begun = ["sh", "-c", f'{close}; exec "$@"', "sh", *COMMAND, "run", job_file(HELLO), "--set", BARE]
    done = subprocess.run(
        begun, env=cli.env, cwd=cli.cwd, stderr=subprocess.PIPE, text=True, timeout=allowed(60), check=False
    )
    assert (done.returncode, "No space left on device" in done.stderr) == (0, not closed)
    assert Run.open("small", cli.runs).status is Status.COMPLETED


def test_the_death_of_the_command_line_ends_the_run(
    cli: Cli, job_file: JobFile, running: Callable[..., subprocess.Popen[str]]
) -> None:
    child = running(job_file(PATIENT))
    lines_until(child, "training")
    child.kill()
    child.wait(10)
    run = Run.open("small", cli.runs)
    deadline = time.monotonic() + 15
    while not run.finished and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.status is Status.FAILED
    assert "died" in str(run.cause)


@pytest.mark.promise("runs", "exit code 2: a mistake; nothing was started")
def test_a_job_that_cannot_start_exits_with_2_and_leaves_no_run(cli: Cli, job_file: JobFile) -> None:
    result = cli("run", job_file(HELLO), "--set", "engines.local.cpu_sets.dnn=4096")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert not cli.runs.exists() or list(cli.runs.iterdir()) == []


def test_plan_shows_what_would_run_and_starts_nothing(cli: Cli, job_file: JobFile) -> None:
    path = job_file(HELLO)
    text = cli("plan", path, "--set", "engines.local.isolation=none").stdout
    assert "127.0.1.1" in text
    assert "isolation: none (engines.local.isolation says so)" in text
    assert "train.py --epochs 2 --note 'a b'" in text
    found = json.loads(cli("plan", path, "--set", "hyperparameters.epochs=9", "--output", "json").stdout)
    (host,) = found["hosts"]
    assert host["programs"][0]["argv"][1:] == ["train.py", "--epochs", "9", "--note", "a b"]
    assert found["completion_groups"] == ["dnn"]
    assert not cli.runs.exists()


def test_on_a_terminal_a_progress_line_shows_steps_rate_and_data_wait(
    cli: Cli, job_file: JobFile, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = """
        import json, os, time
        second = {"metric": "loader", "loader": "train", "epoch": 0, "steps": 10, "samples": 100, "wait": 0.25,
                  "step": 1.0, "step_min": 0.1, "step_max": 0.1, "bytes": 0}
        with open(os.environ["HEADRACE_METRICS"], "a") as file:
            file.write(json.dumps({**second, "t": time.time()}) + "\\n")
        print("written", flush=True)
        deadline = time.monotonic() + 20
        while not os.path.exists("SEEN") and time.monotonic() < deadline:
            time.sleep(0.02)
    """.replace("SEEN", str(seen))
    master, slave = pty.openpty()
    child = cli.start("run", job_file(script), out=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:
            break
        if b"10 steps  100.0 samples/s  data wait 25.0 %" in shown:
            seen.touch()
    os.close(master)
    assert child.wait(30) == 0
    assert seen.exists(), shown[-3000:]
    assert b"\x1b[36mdnn/algo-1[0]\x1b[0m written" in shown


def test_names_that_the_locale_cannot_write_are_escaped_and_the_job_is_not_lost(cli: Cli, job_file: JobFile) -> None:
    path = Path(job_file(HELLO))
    path.write_text(path.read_text().replace("name: dnn", 'name: "dnü"'), encoding="utf-8")
    cli.env |= {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = cli("run", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "dn\\xfc/algo-1[0] I am algo-1" in done.stdout
    status = cli("status", "small")
    assert (status.returncode, status.stderr) == (0, "")
    assert "dn\\xfc" in status.stdout
