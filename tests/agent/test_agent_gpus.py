"""GPUs by NVML: which ones a host owns, and what happens when library, driver or device fail. Each in a process of its
own, because a process loads one libnvidia-ml only."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from agent_plans import make_plan, scripts

from headrace.agent.metrics import sampler as sampler_module
from headrace.agent.metrics.sampler import Gpus, gpus_of
from headrace.install_hint import install_hint
from headrace.instance.launch_plan import LaunchPlan
from needs import require
from nvml import build_nvml

PROGRAM = """
import json, logging, sys, time
from headrace.agent.metrics.sampler import Gpus
names = json.loads(sys.argv[1])
if sys.argv[2] == "hide":
    sys.modules["pynvml"] = None
notes = []
told = logging.Handler()
told.emit = lambda record: notes.append(record.getMessage())
logging.getLogger("headrace").addHandler(told)
gpus = Gpus(names, interval=0.02)
seen = []
deadline = time.monotonic() + 10
while len(seen) < 3 and time.monotonic() < deadline and gpus._thread.is_alive():
    now = [[g.index, g.name, g.use, g.memory, g.memory_total, g.power] for g in gpus.latest()]
    if now and (not seen or now != seen[-1]) or (seen and time.monotonic() > deadline - 9):
        seen.append(now)
    time.sleep(0.01)
gpus.close()
print(json.dumps({"seen": seen, "notes": notes, "alive": gpus._thread.is_alive()}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("g++")
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def ask(names: list[str] | None, library: Path | None, hide: str = "", **variables: str) -> dict[str, object]:
    path = str(library) if library else "/nowhere"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(names), hide],
        env={"PYTHONPATH": ":".join(sys.path), "LD_LIBRARY_PATH": path, **variables},
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_all_devices_with_what_they_can_tell(library: Path) -> None:
    found = ask(None, library)
    half, whole = 8 << 30, 16 << 30
    assert found["seen"][0] == [
        [0, "Fake 0", 10.0, half, whole, None],  # no power sensor
        [1, "Fake 1", 20.0, half, whole, 50.0],
        [2, "Fake 2", 30.0, half, whole, 100.0],
    ]
    assert found["notes"] == []
    assert not found["alive"]


def test_only_the_named_devices_by_number_or_uuid_and_unknown_ones_are_told(library: Path) -> None:
    found = ask(["GPU-2222", "1", "7", "GPU-9"], library)
    assert [gpu[0] for gpu in found["seen"][0]] == [2, 1]
    assert found["notes"] == [
        "no figures of GPU 7: Invalid Argument",
        "no figures of GPU GPU-9: NVML finds no device of this UUID",
    ]


def test_a_device_that_fails_later_is_told_once_and_the_others_go_on(library: Path) -> None:
    found = ask(None, library, FAKE_NVML_LOST="1")
    assert [gpu[0] for gpu in found["seen"][0]] == [0, 1, 2]
    assert [gpu[0] for gpu in found["seen"][-1]] == [0, 2]
    assert found["notes"] == ["no figures of GPU 1 while it fails: GPU is lost"]


def test_a_missing_library_a_dead_driver_and_a_missing_package_are_told_once(library: Path) -> None:
    assert ask(None, None)["notes"] == ["no GPU figures: NVML: NVML Shared Library Not Found"]
    assert ask(None, library, FAKE_NVML_INIT="9")["notes"] == ["no GPU figures: NVML: Driver Not Loaded"]
    [note] = ask(None, library, hide="hide")["notes"]
    assert note == f"no GPU figures: nvidia-ml-py is not installed ({install_hint('gpu')})"


def test_a_host_without_gpus_does_not_look_for_nvml(logged) -> None:
    gpus = Gpus(())
    assert gpus.latest() == ()
    gpus.close()
    assert logged() == []
    assert not any(thread.name == "gpus" for thread in threading.enumerate())


def test_a_driver_that_falls_silent_is_told_once_and_does_not_hold_up_the_agent(monkeypatch, logged) -> None:
    answer = threading.Event()
    monkeypatch.setattr(Gpus, "_run", lambda self: answer.wait(30))
    monkeypatch.setattr(sampler_module, "SILENT", 0.05)
    monkeypatch.setattr(sampler_module, "_CLOSE_SECONDS", 0.05)
    gpus = Gpus(None, interval=0.01)
    deadline = time.monotonic() + 10
    while not logged() and time.monotonic() < deadline:
        assert gpus.latest() == ()
    gpus.latest()
    assert logged() == ["the GPU driver has not answered for 0.05 s; its figures are left out"]
    gpus.close()  # returns although the thread hangs
    answer.set()


def plan(gpus: tuple[int, ...] | None, **environment: str) -> LaunchPlan:
    made = make_plan(scripts("g", "algo-1"), environment=environment)
    return msgspec.structs.replace(made, hosts=(msgspec.structs.replace(made.hosts[0], gpus=gpus),))


@pytest.mark.parametrize(
    ("given", "user", "agent", "expected"),
    [
        ((1, 3), {}, {}, ("1", "3")),
        ((), {}, {}, ()),
        ((1, 3), {"CUDA_VISIBLE_DEVICES": "3"}, {}, ("3",)),  # the job says so: its programs see it
        (None, {}, {}, None),
        (None, {}, {"CUDA_VISIBLE_DEVICES": "0, GPU-77,-1,2"}, ("0", "GPU-77")),
        (None, {}, {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ((2,), {}, {"CUDA_VISIBLE_DEVICES": "0"}, ("2",)),
    ],
)
def test_the_gpus_of_a_host_are_those_that_its_programs_see(given, user, agent, expected) -> None:
    assert gpus_of(plan(given, **user), "algo-1", agent) == expected
