"""The main job on real input, on this machine: the same training as a homogeneous and as a heterogeneous job.

    python demo.py [--epochs 3] [--output json]

Runs homogeneous.yaml (one instance on core 0) with torch's own DataLoader and with headrace's, then heterogeneous.yaml
(the same instance, and a data instance on core 1), and prints what that changed, beside what it could have changed at
best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

import prepare
from headrace import insight
from headrace.errors import HeadraceError, UsageError
from headrace.insight.billing import amount
from headrace.job import load_job
from headrace.runs import Run, RunPaths

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """One finished run of the demo."""

    title: str
    report: insight.Report
    accuracy: float
    losses: list[str]

    def figure(self, name: str) -> float:
        """Returns a figure of the training loader. Raises HeadraceError when it was not measured."""
        if self.report.training is None:
            raise HeadraceError(f"{self.report.run_id} has no loader metrics")
        value = getattr(self.report.training, name).value
        if value is None:
            raise HeadraceError(f"{self.report.run_id}: {name} was not measured")
        return float(value)

    def money(self, name: str) -> str:
        """Returns a figure of the cost, as `headrace cost` writes it."""
        figure = None if self.report.cost is None else getattr(self.report.cost, name)
        return "-" if figure is None or figure.value is None else f"{amount(figure.value)} {figure.unit}"

    def cpu(self, group: str) -> str:
        """Returns the CPU share of a group, as text."""
        for found in self.report.groups:
            if found.name == group and found.cpu.value is not None:
                return f"{found.cpu.value:.0f} %"
        return "-"


def run(title: str, file: str, overrides: list[str], *, quiet: bool = False) -> Outcome:
    """Runs a job file on the local engine and reads what it left."""
    job = load_job(HERE / file, overrides)
    handle = job.fit(engine="local", logs=not quiet)
    paths = RunPaths(Run.open(handle.id).paths.root)
    host = job.hosts["dnn_group"][0]
    result = json.loads((paths.host(host) / "output" / "data" / "result.json").read_text())
    return Outcome(title, insight.report(Run.open(handle.id)), result["accuracy"], result["losses"])


def measure() -> dict[str, float]:
    """Measures P and T on core 0, in a process of its own."""
    text = subprocess.run([sys.executable, str(HERE / "measure.py")], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(text)
    return found


def table(outcomes: list[Outcome], costs: dict[str, float]) -> Table:
    """Returns the comparison; ratios are to the homogeneous run with headrace's loader."""
    shown = Table(title="The same training, homogeneous and heterogeneous", title_justify="left")
    shown.add_column("", no_wrap=True)
    for outcome in outcomes:
        shown.add_column(outcome.title, justify="right", min_width=len("heterogeneous,"))
    base = outcomes[1].figure("step_time")
    rows = {
        "step time, ms": [f"{outcome.figure('step_time'):.0f}" for outcome in outcomes],
        "samples/s": [f"{outcome.figure('samples_per_second'):.0f}" for outcome in outcomes],
        "data wait": [f"{outcome.figure('data_wait'):.0f} %" for outcome in outcomes],
        "CPU of dnn_group": [outcome.cpu("dnn_group") for outcome in outcomes],
        "CPU of data_group": [outcome.cpu("data_group") for outcome in outcomes],
        "time to train, s": [f"{outcome.report.time_to_train.value or 0:.1f}" for outcome in outcomes],
        "held-out accuracy": [f"{outcome.accuracy:.3f}" for outcome in outcomes],
        "list price to train": [outcome.money("total") for outcome in outcomes],
        "verdict": [outcome.report.verdict.name.value for outcome in outcomes],
        "speed-up": [f"{base / outcome.figure('step_time'):.2f}" for outcome in outcomes],
        "ideal speed-up": ["", "1.00", f"{costs['ideal_ratio']:.2f}"],
    }
    for name, cells in rows.items():
        shown.add_row(name, *cells)
    return shown


def meaning(outcomes: list[Outcome]) -> list[str]:
    """Returns the verdict of each run, and one line of advice for the first."""
    lines = [f"{outcome.title}: {outcome.report.verdict.sentence}" for outcome in outcomes]
    try:
        advice = insight.advised(Run.open(outcomes[0].report.run_id)).advice
    except UsageError as error:  # one epoch may be too short for it
        advice = f"none, {error.message}"
    return [*lines, f"advice for {outcomes[0].title}: {advice}"]


def what_next() -> list[str]:
    """Returns the commands to type next, each with what it shows. A job's name stands for its newest run."""
    program = Path(sys.executable).parent / "headrace"
    command = min(str(program), os.path.relpath(program), key=len)
    shows = {
        "report digits-heterogeneous": "every figure, with its formula",
        "compare digits-homogeneous digits-heterogeneous": "which differences are beyond the noise",
        "cost digits-heterogeneous": "prices with their sources",
        "advise digits-homogeneous": "other clusters, and what the advice assumes",
        "ui": "all runs on a local page",
    }
    width = max(map(len, shows))
    return [f"  {command} {arguments:<{width}}  # {shown}" for arguments, shown in shows.items()]


def same_losses(outcomes: list[Outcome]) -> bool:
    """Says whether headrace's two runs, on one host and on two, trained alike."""
    return outcomes[1].losses == outcomes[2].losses


def show(console: Console, outcomes: list[Outcome], costs: dict[str, float]) -> None:
    """Prints the comparison, the verdicts, one line of advice, and what to type next."""
    console.print(table(outcomes, costs))
    console.print("speed-up: step time of the homogeneous run with headrace's loader / that of the column's run")
    best = max(costs["training"], (costs["preprocessing"] + costs["training"]) / 2)
    if outcomes[2].figure("step_time") / 1000 > 1.5 * best:
        console.print("[yellow]note:[/] the machine was busy with something else: the figures say little")
    same = "equal bit by bit" if same_losses(outcomes) else "DIFFERENT"
    console.print(f"loss curves of headrace's two runs, {len(outcomes[1].losses)} steps: {same}")
    for line in ("", *meaning(outcomes[1:]), "", "next:"):
        console.print(line, highlight=False, markup=False)
    for line in what_next():
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def document(outcomes: list[Outcome], costs: dict[str, float]) -> dict[str, object]:
    """Returns what `show` prints, as values."""
    return {
        "costs": costs,
        "runs": [outcome.report.run_id for outcome in outcomes],
        "step_time_ms": [outcome.figure("step_time") for outcome in outcomes],
        "data_wait_percent": [outcome.figure("data_wait") for outcome in outcomes],
        "verdict": [outcome.report.verdict.name.value for outcome in outcomes],
        "cost": [outcome.report.cost and msgspec.to_builtins(outcome.report.cost) for outcome in outcomes],
        "accuracy": [outcome.accuracy for outcome in outcomes],
        "speed_up": outcomes[1].figure("step_time") / outcomes[2].figure("step_time"),
        "loss_curves_equal": same_losses(outcomes),
    }


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    quiet = options.output == "json"
    epochs = f"hyperparameters.epochs={options.epochs}"
    prepare.main(HERE / "data")
    console = Console(stderr=quiet)
    console.print("[bold]1/4[/] what a batch costs on core 0")
    costs = measure()
    p, t = costs["preprocessing"] * 1000, costs["training"] * 1000
    console.print(
        f"    preprocessing P = {p:.0f} ms, training T = {t:.0f} ms\n"
        f"    ideal speed-up (P + T) / max(T, (P + T) / 2) = {costs['ideal_ratio']:.2f}"
    )
    try:
        console.print("[bold]2/4[/] homogeneous.yaml with torch's DataLoader")
        outcomes = [
            run("homogeneous, torch", "homogeneous.yaml", [epochs, "hyperparameters.loader=torch"], quiet=quiet)
        ]
        console.print("[bold]3/4[/] homogeneous.yaml with headrace's DataLoader")
        outcomes.append(run("homogeneous, headrace", "homogeneous.yaml", [epochs], quiet=quiet))
        console.print("[bold]4/4[/] heterogeneous.yaml")
        outcomes.append(run("heterogeneous, headrace", "heterogeneous.yaml", [epochs], quiet=quiet))
    except HeadraceError as error:
        console.print(f"[red]error:[/] {error}" + (f"\nhint: {error.hint}" if error.hint else ""), highlight=False)
        return 1
    if quiet:
        print(json.dumps(document(outcomes, costs)))
    else:
        show(console, outcomes, costs)
    return 0 if same_losses(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
