"""A process that controls a grid and may be killed at any instant: forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import NoReturn

from installed_engines import install_engine

HERE = Path(__file__).parent


def installed_engine(folder: Path) -> str:
    """Installs the engine `ledger` for child processes. Returns PYTHONPATH for them."""
    install_engine(folder, "ledger")
    return os.pathsep.join([str(folder), str(HERE), str(HERE.parent), *filter(None, sys.path)])


class Controllers:
    """Controllers of one grid file, one after the other.

    Args:
        folder: for the engine.
        environment: of the controllers.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        path = installed_engine(folder / "engine")
        self._zygote = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": path},
        )

    def __enter__(self) -> Controllers:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        assert self._zygote.wait(60) == 0
        self._zygote.stdout.close()

    def run(self, file: Path, home: Path, ledger: Path, kill_at: int | str = 0) -> tuple[int, int, str]:
        """Lets a controller work to the end of the grid, or to an instant.

        Args:
            file: the grid's file.
            home: HEADRACE_HOME.
            ledger: of the engine.
            kill_at: at which instant it kills itself, from 1, or as "NAME#NUMBER"; 0 for never.

        Returns:
            How it ended (negative: by which signal), how many instants there were, and the name of the last one.
        """
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(f"{file}\t{home}\t{ledger}\t{kill_at}\n")
        self._zygote.stdin.flush()
        code, count, name = self._zygote.stdout.readline().rstrip("\n").split("\t")
        return int(code), int(count), name


def _control(file: str, kill_at: str, told: int) -> NoReturn:
    """Controls a grid, and tells of each instant."""
    import ledger_engine

    from headrace.grid.controller.control_grid import controlling

    lock, count, names = threading.Lock(), 0, Counter[str]()

    def instant(name: str) -> None:
        nonlocal count
        with lock:
            count += 1
            names[name] += 1
            os.write(told, f"{count}\t{name}\n".encode())
            if kill_at in (str(count), f"{name}#{names[name]}"):
                os.kill(os.getpid(), signal.SIGKILL)

    ledger_engine.instant = instant
    code = 1
    try:
        with controlling(file, confirm=lambda *_: False, instant=instant) as controller:
            controller.run()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def _main() -> None:
    from headrace.grid.controller import grid_controller

    grid_controller.TICK = grid_controller.LOOK_PLATFORM = 0.005
    grid_controller.LOOKS_PER_SECOND = 1e6
    for line in sys.stdin:
        file, home, ledger, kill_at = line.rstrip("\n").split("\t")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.environ.update(HEADRACE_HOME=home, LEDGER=ledger)
            _control(file, kill_at, writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            last = (told.read().splitlines() or ["0\tnone"])[-1]
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), last, sep="\t", flush=True)


if __name__ == "__main__":
    _main()
