"""A box in which one row is played: namespaces of its own for processes, network, mounts and shared memory.

So rows do not disturb each other, what a row leaves is all that there is, and it goes with the box. The control groups
are the machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# /tmp is the box's own, unless this very code lies in it.
SCRIPT = """
set -e
mount -t tmpfs tmpfs /dev/shm
if [ "$FAULT_BASE" = /tmp ]; then mount -t tmpfs tmpfs /tmp; else mount -t tmpfs tmpfs "$FAULT_BASE"; fi
ip link set lo up
"$@" &
wait $!
"""
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]


def play(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Plays a row in a box. Returns what `fault_play` says.

    Args:
        name: of the row.
        folder: an empty folder.
        seconds: after which the box is thrown away.
    """
    used = [HERE, Path(sys.prefix), Path(sys.base_prefix), *(Path(each) for each in sys.path if each)]
    base = str(folder) if any(each.resolve().is_relative_to("/tmp") for each in used) else "/tmp"
    environment = {
        **os.environ,
        "FAULT_BASE": base,
        "FAULT_PLACE": f"{base}/place",
        "TMPDIR": base,
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for each in ("HEADRACE_HOME", "HEADRACE_RUN_ID"):
        environment.pop(each, None)
    command = [*UNSHARE, "sh", "-c", SCRIPT, "sh", sys.executable, str(HERE / "fault_play.py"), name]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    ) as box:
        try:
            said, complaint = box.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            box.kill()
            said, complaint = box.communicate()
            return {"row": name, "wrong": [f"was not played within {seconds:g} s", complaint]}
    try:
        seen: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"row": name, "wrong": [f"not played: {box.returncode}", said, complaint]}
    _remove_groups(seen["groups"])
    return seen


def _remove_groups(groups: list[str]) -> None:
    """Removes the control groups that a row has left, and reported: they do not go with the box."""
    for group in groups:
        for each in [*filter(Path.is_dir, Path(group).glob("*")), Path(group)]:
            with contextlib.suppress(OSError):
                each.rmdir()


def main() -> None:
    """Plays the rows whose names are given: `python fault_box.py ROW ...`."""
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            seen = play(name, Path(folder), 150)
        for each in seen.pop("shown", []):
            print(each)
        for each in seen.pop("wrong"):
            print("WRONG", each)
        print(seen)


if __name__ == "__main__":
    main()
