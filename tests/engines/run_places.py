"""Where a run has its code, and which of this machine's processes is one of a host's. Imports nothing of weight."""

from __future__ import annotations

from pathlib import Path

# Variables of programs that are to find no torch: see without_torch/sitecustomize.py.
WITHOUT_TORCH = {"PYTHONPATH": str(Path(__file__).with_name("without_torch"))}


def code(run: object, host: str = "algo-1") -> Path:
    """The code directory of a host, in which its programs run. `run` is a handle or a run."""
    return run.paths.host(host) / "code"


def flag(run: object, name: str) -> None:
    """Makes an empty file in the code directory of every host, for which programs wait."""
    for host in (run.paths.root / "hosts").iterdir():
        (code(run, host.name) / name).touch()


def pid_here(agent: int, pid: int) -> int:
    """The pid on this machine of a process of the host of that agent."""
    space = Path(f"/proc/{agent}/ns/pid").readlink()
    if space == Path("/proc/self/ns/pid").readlink():
        return pid
    for path in Path("/proc").iterdir():
        try:
            rows = (path / "status").read_text().splitlines() if path.name.isdigit() else []
            numbers = next((row.split() for row in rows if row.startswith("NSpid:")), [""])
            if numbers[-1] == str(pid) and (path / "ns" / "pid").readlink() == space:
                return int(path.name)
        except OSError:  # it has ended by now
            continue
    raise AssertionError(f"no process {pid} on the host of agent {agent}")
