"""examples/digits: the files are MNIST's format, and the heterogeneous job trains exactly as the homogeneous one."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from effort import SOAK
from rich.console import Console

from few_digits import write_few
from headrace import insight
from headrace.job import load_job
from headrace.runs import Run, Status
from needs import require
from observer import Observer

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "digits"
PREFIX = "127.91.1"


def load(name: str) -> ModuleType:
    """Imports a script of the example by its path."""
    spec = importlib.util.spec_from_file_location(f"digits_example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_prepare_writes_the_digits_as_mnist_files_byte_for_byte(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    load("prepare").main(tmp_path)
    images = gzip.decompress((tmp_path / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((tmp_path / "train-labels-idx1-ubyte.gz").read_bytes())
    assert struct.unpack(">IIII", images[:16]) == (0x00000803, 1438, 8, 8)
    assert struct.unpack(">II", labels[:8]) == (0x00000801, 1438)
    digits = load_digits()
    assert np.array_equal(np.frombuffer(images, np.uint8, 64, 16).reshape(8, 8), np.rint(digits.images[0] * 255 / 16))
    assert labels[8:12] == bytes(digits.target[:4].tolist())
    held_out = gzip.decompress((tmp_path / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert struct.unpack(">IIII", held_out[:16])[1] == 1797 - 1438


def test_mnist_sized_files_drop_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = load("prepare")
    rng = np.random.default_rng(5)
    prepare.write_idx(tmp_path / "train-images-idx3-ubyte.gz", rng.integers(0, 256, (4, 28, 28)))
    prepare.write_idx(tmp_path / "train-labels-idx1-ubyte.gz", rng.integers(0, 10, 4))
    monkeypatch.syspath_prepend(str(EXAMPLE / "code"))
    digits = importlib.import_module("digits")
    try:
        dataset = digits.Digits(tmp_path, True)
        image, label = dataset[3]
        assert image.shape == (1, 28, 28)
        assert 0 <= label < 10
    finally:
        sys.modules.pop("digits")


def run(file: str, overrides: list[str]) -> tuple[Run, dict[str, object]]:
    job = load_job(EXAMPLE / file, [f"engines.local.address_prefix={PREFIX}", *overrides])
    observer = Observer(PREFIX)
    handle = job.fit(engine="local", logs=False)
    assert handle.status is Status.COMPLETED
    opened = Run.open(handle.id)
    observer.assert_nothing_left(opened.id, opened.paths.root, within=5.0)
    host = job.hosts["dnn_group"][0]
    return opened, json.loads((opened.paths.host(host) / "output" / "data" / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_homogeneous_and_heterogeneous_jobs_have_the_same_losses_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("2 cores")  # the heterogeneous job pins its groups to cores 0 and 1
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    little = ["hyperparameters.epochs=1", f"inputs.training={write_few(tmp_path / 'digits', 10 * 64)}"]
    single, alone = run("homogeneous.yaml", little)
    both, mixed = run("heterogeneous.yaml", little)
    assert len(alone["losses"]) == 10  # type: ignore[arg-type]
    assert alone["losses"] == mixed["losses"]
    assert alone["accuracy"] == mixed["accuracy"]
    assert mixed["accuracy"] > 0.5  # type: ignore[operator]  # after 10 of its 69 steps; guessing gives 0.1
    feeds = {program.stream.host for program in both.programs if program.stream.name == "feed"}
    assert feeds == {"algo-1", "algo-2"}
    assert not both.degraded
    monkeypatch.setitem(sys.modules, "prepare", load("prepare"))  # the demo imports it
    demo = load("demo")
    outcomes = [
        demo.Outcome(title, insight.report(of), result["accuracy"], result["losses"])
        for title, of, result in (
            ("homogeneous, torch", single, alone),  # the same run in its place: what is tested is the output
            ("homogeneous, headrace", single, alone),
            ("heterogeneous, headrace", both, mixed),
        )
    ]
    assert_demo_fits_on_a_screen_and_a_half(demo, outcomes)


def assert_demo_fits_on_a_screen_and_a_half(demo: ModuleType, outcomes: list[object]) -> None:
    printed = io.StringIO()
    costs = {"preprocessing": 0.07, "training": 0.11, "ideal_ratio": 1.6}
    demo.show(Console(file=printed, width=100), outcomes, costs)
    lines = printed.getvalue().splitlines()
    progress = 5 + 3 * (3 + 2)  # what the demo prints of the measurement and of three runs of three epochs
    assert progress + len(lines) <= 60, printed.getvalue()
    assert max(map(len, lines)) <= 120, printed.getvalue()
    said = [line.split(":")[0] for line in lines if ": " in line or line == "next:"]
    for wanted in ("homogeneous, headrace", "heterogeneous, headrace", "advice for homogeneous, headrace", "next"):
        assert said.count(wanted) == 1, printed.getvalue()
    for row in ("step time, ms", "data wait", "list price to train", "verdict", "speed-up"):
        assert sum(line.startswith(f"│ {row}") for line in lines) == 1, printed.getvalue()
    for text in ("assumed", "price:"):  # these are for `headrace advise` and `headrace cost`
        assert text not in printed.getvalue()


if SOAK:  # the first steps, and that they learn, are in every run

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_training_reaches_95_percent_on_held_out_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
        load("prepare").main(EXAMPLE / "data")
        _, result = run("heterogeneous.yaml", [])
        assert result["accuracy"] > 0.95  # type: ignore[operator]

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_on_a_machine_whose_cores_are_busy_a_job_is_slower_and_nothing_else(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        require("2 cores")
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
        little = ["hyperparameters.epochs=1", f"inputs.training={write_few(tmp_path / 'digits', 10 * 64)}"]
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 2))]
        try:
            both, mixed = run("heterogeneous.yaml", little)
        finally:
            for each in busy:
                each.kill()
                each.wait()
        _, alone = run("homogeneous.yaml", little)
        assert mixed["losses"] == alone["losses"]
        assert not both.degraded
        assert [program.attempt for program in both.programs] == [1] * 3, "no server was started again"
