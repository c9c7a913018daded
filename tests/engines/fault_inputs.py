"""Bad input for whole jobs: strange hyperparameters, huge job files, two jobs of one name, many hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from fault_jobs import JobShape

if TYPE_CHECKING:
    from fault_play import Play

STRANGE = {
    "quotes": "a 'b' \"c\" `d`",
    "lines": "x\ny\r\n\tz\n",
    "command": "$(touch executed) `touch executed` ${HOME}",
    "chain": "; rm -rf *; touch executed && touch executed | touch executed",
    "unicode": "h\u00e9llo \u2603 \U0001f680 \u202e",
    "empty": "",
    "blank": " ",
    "dashes": "--not-an-option",
    "glob": "* ? [a-z] ~ \\ \\n %s {}",
    "json": '{"a": [1, null]}',
}
# Python prints what it was given; its own file says what it would have been on the service.
TELL = """
    import json, os, sys
    base = os.environ["SAGEMAKER_BASE_DIR"]
    given = json.load(open(f"{base}/input/config/hyperparameters.json"))
    hps = json.loads(os.environ["SM_HPS"])
    print("TOLD", json.dumps([sys.argv[1:], given, hps, os.path.exists("executed"), sorted(os.listdir("."))]))
"""
COUNT = 10
ORDER = """
    import json, os
    base = os.environ["SAGEMAKER_BASE_DIR"]
    config = json.load(open(f"{base}/input/config/resourceconfig.json"))
    print("HOST", os.environ["SM_CURRENT_HOST"], config["hosts"] == json.loads(os.environ["SM_HOSTS"]))
    print("HOSTS", json.dumps(config["hosts"]), json.dumps(config["instance_groups"]))
    print("RANK", os.environ.get("SM_CURRENT_HOST_RANK"), flush=True)
"""


def told(play: Play) -> None:
    """The program was given every word as it is, and nothing was executed."""
    [line] = [line.text for line in play.run.logs() if line.text.startswith("TOLD ")]
    argv, given, hps, executed, files = json.loads(line[5:])
    assert argv == [word for name in sorted(STRANGE) for word in (f"--{name}", STRANGE[name])], argv
    assert {name: json.loads(value) for name, value in given.items() if name in STRANGE} == STRANGE, given
    assert {name: hps[name] for name in STRANGE if name != "json"} == {
        name: value for name, value in STRANGE.items() if name != "json"
    }, hps
    assert not executed
    assert files == ["train.py"], files


def in_order(play: Play) -> None:
    """algo-10 comes after algo-9, wherever hosts are listed."""
    hosts = [f"algo-{number}" for number in range(1, COUNT + 1)]
    lines = [line.text for line in play.run.logs()]
    told_hosts = {line for line in lines if line.startswith("HOSTS ")}
    assert len(told_hosts) == 1, told_hosts
    words = told_hosts.pop().removeprefix("HOSTS ")
    listed, _ = json.JSONDecoder().raw_decode(words)
    assert listed == hosts, listed
    [group] = json.loads(words[words.index("[{") :])
    assert group["hosts"] == hosts, group
    ranks = {line.stream.host: int(line.text.split()[1]) for line in play.run.logs() if line.text.startswith("RANK ")}
    assert ranks == {host: number for number, host in enumerate(hosts)}, ranks
    assert [stream.host for stream in play.run.streams() if stream.name == "0"] == hosts, play.run.streams()
    for command in (["status", play.run.id], ["report", play.run.id], ["plan", "job.yaml"]):
        said = headrace(play, *command)
        told_in = list(dict.fromkeys(re.findall(r"\balgo-\d+\b", said)))
        assert told_in == [host for host in hosts if host in told_in], (command, said)


def headrace(play: Play, *words: str) -> str:
    """Returns what a command of headrace prints."""
    command = [sys.executable, "-m", "headrace.cli", *words]
    done = subprocess.run(command, env=play.environment, cwd=play.place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def huge(kind: str) -> dict[str, Any]:
    """Returns fields that make the job file 10 MB."""
    if kind == "value":
        return {"hyperparameters": {"text": "x" * 10_000_000}}
    return {"hyperparameters": {f"name-{number}": "x" * 90 for number in range(100_000)}}


def second_of_that_name(play: Play) -> None:
    """Another user's, or the same one's, job with the name of one that runs."""
    play.until(lambda: "running" in play.text(), "the first job runs")
    play.strike()
    second = play.call()
    play.until(lambda: second.poll() is not None, "the second ends")
    assert second.returncode == 2, second.returncode
    play.flag("all")


def both_at_once(play: Play) -> None:
    """Two jobs of one name started together: one of them runs."""
    play.strike()
    play.call()
    play.until(lambda: any(each.poll() is not None for each in play.callers), "one of them ends")
    codes = [each.poll() for each in play.callers]
    assert sorted(codes, key=str) == [2, None], codes
    if codes[0] is not None:  # the row looks at the first
        play.callers.reverse()
    play.until(lambda: "running" in play.text(), "the other runs")
    play.flag("all")


def one_run(play: Play) -> None:
    """There is one run, and the other user was told of it."""
    [path] = (play.place / "home" / "runs").iterdir()
    told = play.said_to_user(0) + play.said_to_user(1)
    assert f"is already running: {path.name}" in told, told


STRANGE_JOB = JobShape(TELL, groups={"dnn": 1}, fields={"hyperparameters": STRANGE})
MANY_HOSTS = JobShape(ORDER, groups={"dnn": COUNT})
