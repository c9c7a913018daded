"""Runs made by hand: trees of hosts, and the plan that the processes beside the job read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace.hosting.helpers.artefacts import ArtefactPlan, HostArtefacts
from headrace.runs import RunPaths
from headrace.runs.reader import Run


@dataclass(frozen=True)
class HandMade:
    """A run without programs: only what they would have left, or find."""

    paths: RunPaths
    plan: ArtefactPlan

    @classmethod
    def make(cls, root: Path, hosts: int = 1, **plan: object) -> HandMade:
        paths = RunPaths(root)
        (root / "engine").mkdir(parents=True)
        folders = []
        for number in range(1, hosts + 1):
            base = paths.host(f"algo-{number}")
            for name in ("model", "output/data", "output/intermediate", "checkpoints"):
                (base / name).mkdir(parents=True)
            folders.append(HostArtefacts(f"algo-{number}", str(base), str(base / "checkpoints")))
        made = ArtefactPlan(output=str(paths.output), hosts=tuple(folders))
        return cls(paths, replace_plan(made, **plan))

    def write(self, *names: str) -> None:
        for name in names:
            (self.paths.root / "engine" / f"{name}.json").write_bytes(msgspec.json.encode(self.plan))

    def base(self, number: int = 1) -> Path:
        return self.paths.host(f"algo-{number}")

    def fill(self, number: int, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            path = self.base(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def start(self, module: str, **environment: str) -> subprocess.Popen[str]:
        self.write(module)
        return subprocess.Popen(
            [sys.executable, "-m", f"headrace.hosting.helpers.{module}", str(self.paths.root)],
            cwd=self.paths.root,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, **environment: str) -> tuple[int, str]:
        """Runs one of the processes to its end. Returns exit code and standard error."""
        process = self.start(module, **environment)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, said

    def with_host(self, number: int) -> HandMade:
        """The same run as the machine prepares it that has only this host."""
        name = f"algo-{number}"
        here = tuple(host for host in self.plan.hosts if host.name == name)
        return HandMade(self.paths, replace_plan(self.plan, hosts=here, part=name))

    def collect(self, status: str = "Completed") -> tuple[int, str]:
        return self.run("collect", HEADRACE_JOB_STATUS=status)

    def artefacts(self) -> dict[str, object]:
        return {each.name: each for each in Run(self.paths).artefacts}


def replace_plan(plan: ArtefactPlan, **changes: object) -> ArtefactPlan:
    return msgspec.structs.replace(plan, **changes)


__all__ = ["HandMade", "replace"]
