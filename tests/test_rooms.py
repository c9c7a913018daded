"""The map of the house holds: who imports whom, what importing costs, and that the instance side stays lean."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "headrace"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "catalog": set(),
    "job": {"catalog"},
    "instance": set(),
    "feed_metrics": set(),  # the records that the feed writes and runs reads
    "feed": {"feed_metrics"},
    "runs": {"feed_metrics"},
    "processes": set(),
    "agent": {"instance", "feed", "runs", "processes"},
    "engines": {"job", "instance", "runs", "catalog", "processes"},
    "insight": {"runs", "catalog"},
    "adapters": {"feed", "instance", "job", "runs"},
    "console": {"job", "instance", "runs", "catalog", "engines", "insight", "agent", "feed"},
    "cli": {"job", "instance", "runs", "catalog", "engines", "insight", "agent", "feed", "console"},
}
INSTANCE_SIDE = ["instance", "feed", "agent", "runs", "processes"]
INSTANCE_LIBRARIES = {"numpy", "msgspec", "psutil", "grpc", "torch"}
OPTIONAL_LIBRARIES = {  # extras; nothing else needs them
    "agent/metrics/gpus.py": {"pynvml"},
    "feed/prometheus.py": {"prometheus_client"},
    "instance/s3.py": {"botocore", "s3transfer"},
    "agent/host/tf_data_server.py": {"tensorflow"},
}
HEAVY = ["torch", "tensorflow", "grpc", "pydantic", "boto3", "rich", "yaml", "numpy", "msgspec", "starlette", "uvicorn"]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""
            if node.module == "headrace":
                yield from (f"headrace.{alias.name}" for alias in node.names)


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_the_rooms_that_the_map_allows(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "headrace" and len(parts) > 1 and parts[1] not in ("__version__", room):
            assert parts[1] in MAY_IMPORT[room] | {"errors", "log_setup"}, f"{room} may not import {name}"


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in INSTANCE_SIDE], ids=str)
def test_the_instance_side_uses_numpy_msgspec_psutil_and_grpc_only(path: Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        extra = OPTIONAL_LIBRARIES.get(str(path.relative_to(PACKAGE)), set())
        allowed = top in sys.stdlib_module_names or top in INSTANCE_LIBRARIES | extra | {"headrace", "__future__"}
        assert allowed, f"{path} imports {name}"


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_headrace_loads_no_heavy_library() -> None:
    assert loaded_by("import headrace").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "room", ["headrace.instance", "headrace.runs", "headrace.feed", "headrace.feed.client.receiver"]
)
def test_what_training_processes_import_loads_no_grpc_and_no_torch(room: str) -> None:
    assert loaded_by(f"import {room}").isdisjoint({"torch", "grpc", "pydantic", "rich"})


def test_an_agent_loads_no_library_of_the_submitting_side() -> None:
    assert loaded_by("import headrace.agent.__main__").isdisjoint({"torch", "pydantic", "rich", "yaml", "click"})


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_holds_one_idea_and_says_which(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 430, "a module stays under about 400 lines"
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module begins with what its idea is"
