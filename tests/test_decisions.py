"""No sentence decides anything: no code looks into text that was written for people.

A value has a type; words are made from it where they are shown. So nothing in `src/` searches, compares or cuts a
message, a reason, an error. What reads text on purpose reads a format: that of a user's input or of another program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "headrace"

FOR_PEOPLE = frozenset(
    [
        "cause",
        "causes",
        "complaint",
        "description",
        "detail",
        "error",
        "errors",
        "hint",
        "how",
        "last_line",
        "last_lines",
        "message",
        "messages",
        "note",
        "notes",
        "problem",
        "reason",
        "reasons",
        "said",
        "sentence",
        "story",
        "summary",
        "title",
        "why",
    ]
)
"""How values are called that hold words for people."""
ANY_TEXT = frozenset(["line", "lines", "text", "texts", "word", "words"])
"""How values are called that hold words for people, or a format that is read."""

CUTS = frozenset(
    [
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "replace",
        "find",
        "rfind",
        "index",
        "partition",
        "rpartition",
    ]
)
SEARCHES = frozenset(["match", "search", "fullmatch", "findall", "finditer", "sub"])
UNCHANGED = frozenset(["lower", "upper", "casefold", "strip", "lstrip", "rstrip", "decode"])
SAYS = frozenset(["cause_text", "sentence", "exit_text", "str", "repr"])

FORMATS = {
    "catalog/": "tables of prices and instance types, bandwidths",
    "job/job_document.py": "YAML and --set",
    "job/json_schema.py": "docstrings",
    "job/problems/finding.py": "numbers of lines",
    "job/model/": "what a user writes in a field of a job",
    "job/rules/local_files.py": "the last line of a Python traceback",
    "job/sagemaker/": "patterns of SageMaker's service model",
    "instance/channels/mountinfo.py": "/proc/self/mountinfo",
    "instance/machine.py": "nvidia-smi",
    "instance/entry_command.py": "NUL bytes, which no argument may hold",
    "agent/host/host_python.py": "the first lines of scripts that lie beside a Python",
    "agent/launchers/": "Open MPI's options and version",
    "agent/coordinator/error_line.py": "tracebacks of Python, errors of shells: a line is shown",
    "agent/metrics/": "/proc, cgroup files; the regular expressions of a job's metric definitions",
    "processes/": "/proc and cgroup files",
    "control_group.py": "/proc and cgroup files",
    "hosting/inputs/requirements.py": "pip's requirements files; its output, of which the errors are shown",
    "hosting/isolation/": "/proc and resolv.conf",
    "engines/sagemaker/failure_reasons.py": "SageMaker's FailureReason: its type, a colon, words, an exit code",
    "engines/local/host_limits.py": "nvidia-smi",
    "engines/kubernetes/cluster.py": "the header Warning of an API server",
    "engines/kubernetes/pod_states.py": "what an API server says of pods that it refuses, which has no other sign",
    "engines/slurm/slurm_commands.py": "what scontrol prints",
    "engines/slurm/slurm_state.py": "what Slurm's programs print, also when something is wrong",
    "runs/log_pages.py": "lines of a log on disk, and what a reader of logs searches",
    "runs/log_lines.py": "lines of a log on disk, and selectors",
    "runs/store.py": "/proc",
    "runs/writers.py": "newlines of what programs print",
    "grid/line_file.py": "comments in files of lines",
    "endpoint/s3/upload_body.py": "the framing aws-chunked",
    "endpoint/services/cloudwatch_logs.py": "lines of a log on disk",
    "endpoint/wire/requests.py": "times in forms",
    "endpoint/training_jobs/job_of_request.py": "--image-map",
    "cli/main.py": "options as a shell gives them",
    "endpoint/auth/job_rights.py": "addresses in requests",
    "cli/commands/output.py": "times and patterns of `headrace logs`",
    "cli/options.py": "durations",
    "cli/commands/feed.py": "sizes",
    "cli/views/terminal.py": "control sequences of terminals",
    "install_hint.py": "requirements of an installed distribution",
    "adapters/tensorflow_likeness.py": "TensorFlow's graphs",
}
"""Where text is a format (`ANY_TEXT`); a path that ends with / is a folder."""

EXPECTED = {
    "agent/coordinator/first_cause.py": {  # other programs: what ranks and launchers print when they fail
        "text in said",
        "line.startswith('error: ')",
        "line.removeprefix('error: ')",
    },
    "agent/coordinator/data_services.py": {
        "_FORGOTTEN in line.lower()",
        "'notfounderror' in line.lower()",
    },  # TensorFlow
    "feed/sources/shard_objects.py": {"_NOT_SHOWN.sub('', str(error))"},  # keys in URLs, which are not shown
    "feed/wire/transport.py": {  # OpenSSL's names of errors
        "error.reason in ('WRONG_VERSION_NUMBER', 'HTTP_REQUEST', 'UNSUPPORTED_PROTOCOL')",
        "(error.reason or str(error)).lower().replace('_', ' ')",
    },
    "runs/reader.py": {"_TOO_LARGE.search(line)", "line.startswith(_OTHERS)"},  # a number and a name in lines of JSON
    "console/guard.py": {"message['type'] == 'http.response.start'"},  # ASGI
    "instance/channels/download.py": {"error.message.startswith(prefix)"},  # a channel is not named twice
    "adapters/tensorflow.py": {"str(getattr(error, 'message', '') or error).strip().partition('\\n')"},  # shown
    "cli/views/run_tables.py": {"message.partition('\\n')"},  # the first line is shown
    "cli/views/cost_tables.py": {"note not in report.notes"},  # a note is not shown twice
    "cli/commands/doctor.py": {"text not in said"},  # nothing is shown twice
}
"""Decisions that stay, by file, as `ast.unparse` gives them."""


def is_text(node: ast.expr, names: frozenset[str]) -> bool:
    """Tells whether an expression is a value of such a name, or such a value in other letters, or said."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name.lstrip("_") in names
        case ast.Subscript(value=value):
            return is_text(value, names)
        case ast.Call(func=ast.Name(says), args=[first, *_]) if says in SAYS:
            return says not in ("str", "repr") or is_text(first, names)
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in UNCHANGED:
            return is_text(value, names)
        case ast.BoolOp(values=values):
            return any(is_text(value, names) for value in values)
    return False


def is_pattern(node: ast.expr) -> bool:
    """Tells whether an expression is a text that stands in the code: a constant, or the name of one."""
    match node:
        case ast.Constant(str() | bytes() as value):
            return bool(value)  # whether there is any text may be asked
        case ast.JoinedStr():
            return True
        case ast.Name(name) | ast.Attribute(attr=name):
            return name.lstrip("_").isupper()
        case ast.Set(each) | ast.Tuple(each) | ast.List(each):
            return any(map(is_pattern, each))
    return False


def decisions(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.expr]:
    """Yields what looks into a text of such a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[_, *_]) if method in CUTS:
                if is_text(value, names):
                    yield node
            case ast.Call(func=ast.Attribute(attr=method), args=args) if method in SEARCHES:
                if any(is_text(each, names) for each in args):
                    yield node
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if any(is_text(a, names) and is_pattern(b) for a, b in ((left, right), (right, left))):
                    yield node
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                if is_text(right, names) or (is_text(left, names) and is_pattern(right)):
                    yield node
            case ast.Match(subject=subject, cases=cases):
                values = [case.pattern.value for case in cases if isinstance(case.pattern, ast.MatchValue)]
                if is_text(subject, names) and any(map(is_pattern, values)):
                    yield node


def found_in(path: Path) -> set[str]:
    """The decisions of a file, without those about formats that it reads on purpose."""
    name = str(path.relative_to(PACKAGE))
    reads = any(name == each or (each.endswith("/") and name.startswith(each)) for each in FORMATS)
    names = FOR_PEOPLE if reads else FOR_PEOPLE | ANY_TEXT
    return {ast.unparse(node) for node in decisions(ast.parse(path.read_text()), names)}


FILES = sorted(PACKAGE.rglob("*.py"))


def test_no_code_looks_into_text_for_people() -> None:
    found = {str(path.relative_to(PACKAGE)): found_in(path) for path in FILES}
    unexpected = {name: each - EXPECTED.get(name, set()) for name, each in found.items()}
    assert {name: each for name, each in unexpected.items() if each} == {}, "give it a type, and decide by that"


def test_the_lists_name_only_what_is_there() -> None:
    for name, expected in EXPECTED.items():
        assert expected <= found_in(PACKAGE / name), f"{name}: no longer there"
    for name in FORMATS:
        tree = [path for path in FILES if str(path.relative_to(PACKAGE)).startswith(name)]
        assert any(any(decisions(ast.parse(path.read_text()), ANY_TEXT)) for path in tree), f"{name} reads no text"


@pytest.mark.parametrize(
    "code",
    [
        "cause.reason.startswith(BUDGET)",
        "if 'stalled:' in cause.reason: pass",
        "'OOM' in str(error)",
        "str(cause).endswith('killed')",
        "message.replace(KILLED, words)",
        "event.reason == 'stopped by the user'",
        "reason in {'a', 'b'}",
        "lines[-1].removeprefix('error: ')",
        "re.match('x', self._message)",
        "PATTERN.search(error.message.lower())",
        "cause_text(cause).startswith('x')",
        "match reason:\n    case 'stopped': pass",
    ],
)
def test_a_decision_by_text_is_found(code: str) -> None:
    assert list(decisions(ast.parse(code), FOR_PEOPLE | ANY_TEXT))


@pytest.mark.parametrize(
    "code",
    [
        "cause.kind is CauseKind.BUDGET",
        "if reason: pass",
        "message == ''",
        "path.name.startswith('x')",
        "a in causes_of()",
    ],
)
def test_other_decisions_are_left_alone(code: str) -> None:
    assert not list(decisions(ast.parse(code), FOR_PEOPLE | ANY_TEXT))
