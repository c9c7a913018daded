"""The map of the house holds: who imports whom, no circles, what importing costs, and that the instance
side stays lean."""

from __future__ import annotations

import ast
import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.install_hint import LIBRARIES
from imports_of import Import, circles, imports_in, modules_of

PACKAGE = Path(__file__).parent.parent / "src" / "headrace"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "exit_status": set(),
    "home": set(),
    "name_order": set(),
    "install_hint": set(),
    "private_folders": set(),
    "own_runs": set(),
    "record_files": set(),
    "child_python": set(),
    "control_group": set(),
    "held_file": set(),
    "ledger": set(),
    "catalog": set(),
    "sagemaker_parameters": set(),  # SageMaker's names of hyperparameters, which both ends of the contract use
    "aws_errors": set(),  # what AWS's codes mean: hosts ask S3, too
    "job": {"catalog", "sagemaker_parameters"},
    "instance": {"aws_errors", "sagemaker_parameters"},
    "feed_metrics": set(),  # the records that the feed writes and runs reads
    "feed": {"feed_metrics", "instance"},  # instance: the client of S3, for shards that are objects
    "runs": {"feed_metrics"},
    "processes": set(),
    "agent": {"instance", "feed", "runs", "processes"},
    "hosting": {"instance", "runs", "agent", "processes"},
    "engines": {
        *("job", "hosting", "instance", "runs", "catalog", "processes", "insight", "feed"),
        "aws_errors",
        "sagemaker_parameters",
    },
    # insight: `Handle.report`; feed: the cores that a pod may use
    "insight": {"runs", "catalog"},
    "measuring": {"feed"},
    "adapters": {"feed", "instance", "job", "runs", "sagemaker_parameters"},
    "console": {"job", "instance", "runs", "catalog", "engines", "insight", "agent", "feed", "grid"},
    "grid": {"job", "engines", "runs", "insight", "catalog", "cloud", "instance", "ledger", "aws_errors"},
    # instance: the client of S3, for copies
    # cloud: AWS Batch needs what `headrace cloud` has: calls of AWS, stacks of roles, images, headrace's own wheel
    "endpoint": {"job", "engines", "runs", "insight", "catalog", "ledger"},
    "cloud": {
        "aws_errors",
        "catalog",
        "instance",
    },  # instance: the ports at which hosts meet
    "cli": {
        "job",
        "instance",
        "runs",
        "catalog",
        "engines",
        "insight",
        "agent",
        "feed",
        "measuring",
        "console",
        "endpoint",
        "cloud",
        "grid",
    },
}
INSTANCE_SIDE = ["instance", "feed", "measuring", "agent", "runs", "processes", "hosting"]
INSTANCE_LIBRARIES = {*LIBRARIES, "torch"}
OPTIONAL_LIBRARIES = {  # extras; nothing else needs them
    "agent/metrics/sampler.py": {"pynvml"},
    "feed/prometheus.py": {"prometheus_client"},
    "feed/sources/arrow_shards.py": {"pyarrow"},
    "feed/sources/parquet_shards.py": {"pyarrow"},
    "feed/sources/open_source.py": {"datasets"},
    "feed/sources/shard_objects.py": {"obstore"},
    "instance/s3.py": {"botocore"},
    "agent/tf_data_server.py": {"tensorflow"},
}
HEAVY = ["torch", "tensorflow", "grpc", "pydantic", "boto3", "rich", "yaml", "numpy", "msgspec", "starlette", "uvicorn"]


NO_IMPORT = {
    ("headrace.job.find_engine", "headrace.engines"): "the name of a group of entry points",
    ("headrace.hosting.supervision.host_agents", "headrace.agent"): "started as a program of its own",
    ("headrace.engines.slurm.enter_host", "headrace.agent"): "started as a program of its own",
    ("headrace.engines.kubernetes.refresh_run", "headrace.agent.ask"): "started in a pod",
}

# The order inside a room: a sub-package or module may import those that stand before it, never one after it.
# Modules at a room's top that are not named here stand outside the order; they are in no circle.
ORDER: dict[str, list[str]] = {
    "job": [
        "find_engine",
        "problems",
        "model",
        "job_document",
        "rules",
        "sagemaker",
        "json_schema",
        "run_handle",
        "job",
    ],
    "instance": ["entry_command", "storage", "channels", "environment", "toolkit", "tree", "variables"],
    "feed": [
        "batch",
        "streams",
        "sources",
        "wire",
        "pipelines",
        "plan",
        "metrics",
        "worker",
        "client",
        "tuning",
        "loader",
        "serve",
    ],
    "runs": [
        "cause",
        "events",
        "metric_records",
        "tail",
        "store",
        "writers",
        "state",
        "reader",
        "disk_use",
        "describe",
    ],
    "agent": [
        "metrics",
        "tf_data_server",
        "program_specs",
        "control",
        "host",
        "launchers",
        "coordinator",
        "host_agent",
    ],
    "hosting": ["inputs", "helpers", "machines", "supervision", "isolation"],
    "engines": ["planning", "local", "slurm", "kubernetes", "sagemaker"],
    "insight": [
        "figures",
        "performance_model",
        "billing",
        "run_cost",
        "evidence",
        "verdict",
        "offload_decision",
        "doctor_report",
        "run_report",
        "comparison",
        "timeline",
        "charts",
        "render",
        "advise",
        "run_cache",
    ],
    "grid": [
        "grid_file",
        "place_line",
        "line",
        "line_file",
        "line_query",
        "read_lines",
        "grid_record",
        "read_grid",
        "journal",
        "load_grid",
        "plan_grid",
        "copied_object",
        "object_copier",
        "copy_action",
        "data_places",
        "controller",
        "grid_report",
        "read_report",
        "grid_documents",
        "batch",
    ],
    "endpoint": [
        "http",
        "wire",
        "auth",
        "s3",
        "services",
        "training_jobs",
        "client_setup",
        "endpoint_server",
    ],
    "cloud": [
        "aws_calls",
        "stacks",
        "vpc_template",
        "role_template",
        "image_files",
    ],
    "cli": ["views", "options", "commands", "main"],
}
LOCAL_ENGINE = [
    "cgroups",
    "host_limits",
    "local_instances",
    "plan_hosts",
    "ports",
    "checked_job",
    "isolation_plan",
    "engine",
]
MODULES_IN_A_FOLDER = 22
DOCSTRING = re.compile(r'(#.*\n)*\s*r?"""\s*\S')
FACES = {  # a name that stands twice on purpose: what users import or type, before what is behind it
    "sitecustomize": "Python's own name for what it loads at its start; each stands in a folder of its own",
    "tensorflow": "headrace.tensorflow is what users import; adapters.tensorflow holds it",
    "keras": "headrace.keras is what users import; adapters.keras holds it",
    "estimator": "headrace.estimator is what users import; adapters.estimator holds it",
    "environment": "the toolkit's own module name, for scripts that import sagemaker_training",
}

ALL = modules_of(PACKAGE)
Imports = dict[str, list[Import]]


@pytest.fixture(scope="module")
def imports() -> Imports:
    """What each module imports."""
    return {name: list(imports_in(path, ALL)) for name, path in ALL.items()}


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


MODULES = sorted(name for name in ALL if room_of(name) in MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_the_rooms_that_the_map_allows(room: str, imports: Imports) -> None:
    allowed = MAY_IMPORT[room] | {
        "",
        "errors",
        "exit_status",
        "log_setup",
        "home",
        "name_order",
        "install_hint",
        "private_folders",
        "own_runs",
        "record_files",
        "child_python",
        "control_group",
        "held_file",
        "_version",
        room,
    }
    for name in MODULES:
        for found in imports[name] if room_of(name) == room else ():
            if found.name.split(".")[0] == "headrace" and (name, found.name) not in NO_IMPORT:
                assert room_of(found.name) in allowed, f"{name} may not import {found.name} (line {found.line})"


def executed_imports(imports: Imports) -> dict[str, set[str]]:
    """The modules that each module imports when it runs, sooner or later. A package's face is a module like others."""
    return {
        name: {
            found.name
            for found in imports[name]
            if found.name in ALL and not found.type_only and (name, found.name) not in NO_IMPORT and found.name != name
        }
        for name in ALL
    }


def test_no_module_imports_itself_in_a_circle(imports: Imports) -> None:
    assert circles(executed_imports(imports)) == []


@pytest.mark.parametrize("room", sorted(ORDER))
def test_inside_a_room_imports_go_one_way(room: str, imports: Imports) -> None:
    order = ORDER[room]
    inside = {name.split(".")[2] for name in ALL if room_of(name) == room and len(name.split(".")) > 2}
    assert set(order) <= inside, "the order names what is there"
    folders = {path.name for path in (PACKAGE / room).iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(order), "every sub-package has its place in the order"
    one_way(f"headrace.{room}", order, imports)


def test_inside_the_local_engine_imports_go_one_way(imports: Imports) -> None:
    one_way("headrace.engines.local", LOCAL_ENGINE, imports)


def one_way(package: str, order: list[str], imports: Imports) -> None:
    depth = package.count(".") + 1
    for name, imported in executed_imports(imports).items():
        here = name.split(".")[depth : depth + 1]
        if not name.startswith(f"{package}.") or here[0] not in order:
            continue
        for other in imported:
            there = other.split(".")[depth : depth + 1]
            if other.startswith(f"{package}.") and there[0] in order:
                assert order.index(there[0]) <= order.index(here[0]), f"{name} imports {other}, which stands above it"


def test_a_folder_holds_about_twenty_modules_at_most() -> None:
    sizes = collections.Counter(path.parent for path in ALL.values() if not path.name.startswith("__"))
    assert {str(folder): size for folder, size in sizes.items() if size > MODULES_IN_A_FOLDER} == {}


def test_no_name_stands_for_two_modules() -> None:
    names = collections.defaultdict(list)
    for name, path in ALL.items():
        command = name.startswith("headrace.cli.commands.")  # may have the name of what they are about
        if not path.name.startswith("__") and not command and path.stem not in FACES:
            names[path.stem].append(name)
    assert {stem: found for stem, found in names.items() if len(found) > 1} == {}


def test_every_folder_says_what_it_is() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "bootstrap" not in path.parts:  # `sitecustomize` is found there by its path, not as a package
            assert (path.parent / "__init__.py").exists(), path.parent


@pytest.mark.parametrize("room", INSTANCE_SIDE)
def test_the_instance_side_uses_numpy_msgspec_psutil_and_xxhash_only(room: str, imports: Imports) -> None:
    for name in MODULES:
        extra = OPTIONAL_LIBRARIES.get(str(ALL[name].relative_to(PACKAGE)), set())
        allowed = sys.stdlib_module_names | INSTANCE_LIBRARIES | extra | {"headrace", "__future__"}
        for found in imports[name] if room_of(name) == room else ():
            assert found.name.split(".")[0] in allowed, f"{name} imports {found.name} (line {found.line})"


def test_what_hosts_get_is_what_the_package_asks_for() -> None:
    project = (PACKAGE.parents[1] / "pyproject.toml").read_text()
    listed = project.partition("uses these four and nothing else.")[2].partition("# The submitting side")[0]
    assert re.findall(r'^  "(.*?)"', listed, re.MULTILINE) == [*LIBRARIES.values()]


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_headrace_loads_no_heavy_library() -> None:
    assert loaded_by("import headrace").isdisjoint(HEAVY)


@pytest.mark.promise("architecture", "`headrace --help` loads no heavy library")
@pytest.mark.parametrize(
    "room", ["headrace.instance", "headrace.runs", "headrace.feed", "headrace.feed.client.receiver"]
)
def test_what_training_processes_import_loads_no_torch(room: str) -> None:
    assert loaded_by(f"import {room}").isdisjoint({"torch", "grpc", "pydantic", "rich"})


@pytest.mark.parametrize("program", ["probe", "enter_namespaces", "network"])
def test_the_programs_that_make_namespaces_need_no_library(program: str) -> None:
    command = [sys.executable, "-S", "-c", f"import headrace.hosting.isolation.{program}"]
    environment = {"PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run(command, check=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    "modules",
    ["headrace.agent.__main__", "headrace.hosting.supervision.supervisor, headrace.engines.local.local_instances"],
)
def test_agents_and_supervisors_load_no_library_of_the_submitting_side(modules: str) -> None:
    assert loaded_by(f"import {modules}").isdisjoint({"torch", "pydantic", "rich", "yaml", "click", "botocore"})


def test_what_starts_a_job_loads_neither_what_reads_its_figures_nor_what_decides_it() -> None:
    loaded = loaded_by("import headrace.cli.follow, headrace.cli.views.run_screen, headrace.engines.local.engine")
    assert loaded.isdisjoint({"numpy", "asyncio", "headrace.agent.coordinator", "headrace.agent.control"})


def test_what_shows_runs_loads_nothing_that_makes_jobs() -> None:
    views = "headrace.cli.views.run_tables, headrace.insight.render.run_documents, headrace.cli.views.cost_tables"
    loaded = loaded_by(f"import {views}, headrace.engines.sagemaker.sagemaker_ticket, headrace.runs.describe")
    assert loaded.isdisjoint({"numpy", "torch", "grpc", "pydantic", "yaml"})


def test_a_module_holds_one_idea_and_says_which() -> None:
    for name, path in ALL.items():
        text = path.read_text()
        assert len(text.splitlines()) <= 700, f"{name}: a module stays under about 600 lines"
        assert not text.strip() or DOCSTRING.match(text), f"{name} does not begin with what its idea is"


THREADED = ("console", "feed", "insight", "runs")  # rooms whose functions run in several threads at once
GUARDED = {"_plan_decoder", "_decoder"}  # under a lock


def makes_a_decoder(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name == "Decoder" or (name == "decode" and any(each.arg == "type" for each in call.keywords))


@pytest.mark.parametrize("room", THREADED)
def test_decoders_are_made_before_there_are_threads(room: str) -> None:
    """msgspec resolves a type for its first decoder; the interpreter crashes when two threads do that at once."""
    texts = {name: ALL[name].read_text() for name in MODULES if room_of(name) == room}
    for name, text in texts.items():
        for function in ast.walk(ast.parse(text)) if "Decoder(" in text or "type=" in text else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name not in GUARDED:
                found = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Call) and makes_a_decoder(n)]
                assert found == [], f"{name}, line {found[:1]}: make the decoder when the module is imported"


MOST_PARAMETERS = 6
CALLED_BY_USERS = {"DataLoader.__init__", "Packable.pack", "pack"}  # with keywords


def functions_of(node: ast.AST, of: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield of + child.name, child
        yield from functions_of(child, f"{of}{child.name}." if named else of)


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in named if name not in ("self", "cls")]


def test_no_function_of_the_feed_takes_more_than_six_arguments() -> None:
    many = {
        f"{name}: {function}"
        for name in MODULES
        if room_of(name) == "feed"
        for function, node in functions_of(ast.parse(ALL[name].read_text()))
        if len(parameters_of(node)) > MOST_PARAMETERS and function not in CALLED_BY_USERS
    }
    assert many == set(), "give it the loader's options, or the record that these belong to"


def test_nobody_asks_a_planner_or_a_pass_what_class_it_is() -> None:
    """What callers need is a method or a property of it, so that a new kind of data touches its own file."""
    asked = []
    for name, path in ALL.items():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"(Planner|Pass|Supply)\b", text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                classes = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node.args[1])}
                asked += [f"{name}: {each}" for each in classes if re.search("(Planner|Pass|Supply)$", each)]
    assert asked == []
