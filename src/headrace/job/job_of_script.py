"""Writes the first job file of a script, from what can be seen without running it: its folder, and its text by `ast`.

What the script reads from the command line becomes hyperparameters, data that its defaults name become channels. What
a job file cannot say, or nobody can know from the text, stands there as a comment. The job is valid as it is written.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

from headrace.errors import UsageError
from headrace.job.load import job_name_of

_CHANNEL = "SM_CHANNEL_"
_OUTPUT = re.compile(r"out|sav|log|ckpt|checkpoint|model|result|tmp|temp|cache|work", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HELP = 70  # characters of an option's help that are shown
_UNKNOWN = object()


class _Option(NamedTuple):
    """One `add_argument`.

    Attributes:
        name: without its hyphens.
        default: its value; None for none, `_UNKNOWN` where only the running script knows it.
        variable: of the environment, which its default is.
        unfit: why a hyperparameter, which is passed on as ``--name value``, cannot give it; empty when it can.
        required: the script does not run without it.
        help: in few words.
    """

    name: str
    default: object
    variable: str
    unfit: str
    required: bool
    help: str


def job_of_script(script: Path) -> str:
    """Returns the text of a job file that lies beside a script and runs it.

    Args:
        script: a Python or shell script.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    if script.suffix not in (".py", ".sh"):
        hint = "give the script that trains, e.g. train.py; docs/entry-points.md has what else a job may run"
        raise UsageError(f"{script} is not a Python or shell script", hint)
    try:
        code = script.read_text("utf-8-sig")
        tree = ast.parse(code if script.suffix == ".py" else "")
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        where = f"{script}:{error.lineno}" if isinstance(error, SyntaxError) else script
        raise UsageError(f"{where} cannot be read: {error}", "is it the script that trains?") from error
    top = script.absolute().parent
    module = [script.stem]
    while (top / "__init__.py").exists():
        module.insert(0, top.name)
        top = top.parent
    source = "/".join([".."] * (len(module) - 1)) or "."
    entry = f"-m {'.'.join(module)}" if len(module) > 1 else script.name
    stem = module[-2] if len(module) > 1 and module[-1] in ("__main__", "main") else script.stem
    lines = [
        f"# Runs {script.name}. Every key: docs/job-file.md, and `headrace schema`.",
        f"job_name: {job_name_of(stem)}",
        f"source_dir: {source}  # copied, but for what .headraceignore, else .gitignore, names",
        f"entry_point: {_yaml(entry)}",
        *_requirements(top),
        *_options(script, tree),
        "",
        "instance_type: ml.c5.xlarge  # what the job asks a cloud for; on this machine it is one host",
        "instance_count: 1",
        *_distribution(code),
        "# Hosts that only prepare batches, for headrace's DataLoader: docs/feed-workers.md, README.md",
        "",
        "# What is kept: /opt/ml/model, /opt/ml/output/data; relative paths stay in the run (headrace files)",
        "# Figures of the training: headrace.log({\"loss\": loss}, step=i), or what it prints:",
        '# metric_definitions: [{name: loss, regex: "loss ([0-9.]+)"}]',
        "# stopping_condition: {max_run: 3600}  # seconds",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _requirements(top: Path) -> Iterator[str]:
    if (top / "requirements.txt").exists():
        yield "# requirements.txt of source_dir is installed for its programs"
        return
    files = sorted(path.name for path in top.glob("*requirements*.txt"))
    if len(files) == 1:
        yield f"requirements: {_yaml(files[0])}"
    elif files:
        yield f"# requirements: {_yaml(files[0])}  # or {', '.join(files[1:])}: is installed for its programs"


def _distribution(code: str) -> Iterator[str]:
    if re.search(r"torch\.distributed|init_process_group|LOCAL_RANK", code):
        yield "distribution: {torch_distributed: {enabled: true}}  # one process a GPU, at least one"


def _options(script: Path, tree: ast.AST) -> Iterator[str]:
    """Yields hyperparameters and inputs."""
    given, channels, empty = list[str](), dict[str, str](), True
    read = dict.fromkeys(node.value for node in ast.walk(tree) if _text(node).startswith(_CHANNEL))  # type: ignore[attr-defined]
    named = [str(each)[len(_CHANNEL) :].lower() for each in read]
    named += [_text(node.args[0]) for node in ast.walk(tree) if _is_call_of(node, "channel")]
    for name in dict.fromkeys(named):
        channels[name] = name if name and (script.parent / name).exists() else ""
    for option in filter(None, map(_option, ast.walk(tree))):
        if option.variable.startswith(_CHANNEL):
            continue
        comment, place = f"  # {option.help}" if option.help else "", _place(script.parent, option)
        if option.unfit:
            needed = ", and the script needs it" if option.required else ""
            given.append(
                f"  # {option.name}: {option.unfit}: only a `command` in place of entry_point gives it{needed}"
            )
        elif place is not None:
            empty = False
            channel, (channels[channel], file) = re.sub(r"[^A-Za-z0-9._-]", "-", option.name), place
            given.append(f"  {_yaml(option.name)}: {_yaml('/'.join(['/opt/ml/input/data', channel, *file]))}{comment}")
        elif option.variable:
            given.append(f"  # {option.name}: ${option.variable} unless it is given")
        elif option.required or option.default is None or option.default is _UNKNOWN:
            why = "the script needs it" if option.required else "the script has its own default"
            given.append(f"  # {_yaml(option.name)}:  # {why}{': ' if option.help else ''}{option.help}")
        else:
            empty = False
            given.append(f"  {_yaml(option.name)}: {_yaml(option.default)}{comment}")
    if given:
        yield "# Become arguments, --name value; for one run: headrace run job.yaml --set hyperparameters.NAME=VALUE"
        yield from ("# hyperparameters:" if empty else "hyperparameters:", *given)
    if channels:
        yield "# Data, which a host finds in /opt/ml/input/data/NAME and SM_CHANNEL_NAME: a path, or s3://"
        yield "inputs:" if any(channels.values()) else "# inputs:"
        for name, folder in channels.items():
            yield (
                f"  {_yaml(name)}: {_yaml(folder)}"
                if folder
                else f"  # {_yaml(name)}: FOLDER  # the script asks for it"
            )


def _is_call_of(node: ast.AST, function: str) -> TypeGuard[ast.Call]:
    """Whether a node calls a function of this name, of a module or not, with a text."""
    if not (isinstance(node, ast.Call) and node.args and _text(node.args[0])):
        return False
    return function == getattr(node.func, "attr", getattr(node.func, "id", ""))


def _place(folder: Path, option: _Option) -> tuple[str, tuple[str, ...]] | None:
    """Returns the folder of the data that an option's default names, and the file in it if it is one; None when it
    names none, what is written, or what lies beside the script and is copied with it."""
    if not isinstance(option.default, str) or _OUTPUT.search(option.name):
        return None
    place, file = Path(option.default), tuple[str, ...]()
    if os.path.isfile(folder / place):
        place, file = place.parent, (place.name,)
    around = os.path.realpath(folder / place)  # the script's own folder, and those above it, are no data
    is_data = os.path.isdir(around) and not Path(os.path.realpath(folder)).is_relative_to(around)
    return (str(place), file) if is_data else None


def _option(node: ast.AST) -> _Option | None:
    """Returns what a call of `add_argument` says; None of all else, and of what it computes."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return None
    names = [_text(each) for each in node.args]
    keywords = {word.arg: word.value for word in node.keywords}
    if not names or not all(names):
        return None
    name = next((each for each in names if each.startswith("--")), names[0])
    value, action = keywords.get("default"), keywords.get("action")
    unfit = ""
    if not name.startswith("-"):
        unfit = "an argument without a name"
    elif action is not None and _text(action) not in ("store", "append"):
        unfit = "a flag without a value"
    elif "nargs" in keywords and _text(keywords["nargs"]) != "?":
        unfit = "several values"
    required = _literal(keywords.get("required")) is True or (not name.startswith("-") and "nargs" not in keywords)
    words = " ".join(_text(keywords.get("help")).split())
    words = words if len(words) <= _HELP else f"{words[:_HELP]}..."
    return _Option(name.lstrip("-"), _literal(value), _variable(value), unfit, required, words)


def _literal(node: ast.AST | None) -> object:
    """Returns a value as it is written; None for none, `_UNKNOWN` for what is computed."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return _UNKNOWN
    return value


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _variable(node: ast.AST | None) -> str:
    """Returns the variable of the environment in `os.environ["X"]`, `os.environ.get("X")` and `os.getenv("X")`."""
    for each in ast.walk(node) if node is not None else ():
        key = (
            each.slice
            if isinstance(each, ast.Subscript)
            else each.args[0]
            if isinstance(each, ast.Call) and each.args
            else None
        )
        if key is not None and re.search(r"\b(environ|getenv)\b", ast.unparse(each)):
            return _text(key)
    return ""


def _yaml(value: object) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS else json.dumps(value)


_WORDS = ("true", "false", "null")
