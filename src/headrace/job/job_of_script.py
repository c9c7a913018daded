"""Writes the first job file of a script, from what can be seen without running it: its folder, and its text by `ast`.

What the script reads from the command line becomes hyperparameters, data that its defaults name become channels. What
a job file cannot say, or nobody can know from the text, stands there as a comment. The job is valid as it is written.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from headrace.errors import UsageError
from headrace.job.job import job_name_of

_CHANNEL = "SM_CHANNEL_"
_OUTPUT = re.compile(r"out|sav|log|ckpt|checkpoint|model|result|tmp|temp|cache|work", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HELP = 70  # characters of an option's help that are shown
_UNKNOWN = object()


class _Option(NamedTuple):
    """One option of the command line, in whatever form the script declares it.

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
        hint = (
            "give the script that trains, e.g. train.py; the page entry-points of the docs has what else a job may run"
        )
        raise UsageError(f"{script} is not a Python or shell script", hint)
    try:
        code = script.read_text("utf-8-sig")
        tree = ast.parse(code if script.suffix == ".py" else "")
    except (OSError, ValueError, SyntaxError) as error:
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
        f"# Runs {script.name}. Every key: the page job-file of the docs, and `headrace schema`.",
        f"job_name: {job_name_of(stem)}",
        f"source_dir: {source}  # copied, but for what .headraceignore, else .gitignore, names",
        f"entry_point: {_yaml(entry)}",
        *_requirements(top),
        *_options(script, tree),
        "",
        "instance_type: ml.c5.xlarge  # what the job asks a cloud for; on this machine it is one host",
        "instance_count: 1",
        *_distribution(code),
        *_data_hosts(code),
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


def _data_hosts(code: str) -> Iterator[str]:
    """Yields the job with hosts that only prepare batches, as a comment, where the script has a loader."""
    if not re.search(r"DataLoader\b", code):
        return
    yield "# With hosts that only prepare batches, for headrace's DataLoader (the page feed-workers of the docs):"
    yield "# in place of " + ("the three lines above" if any(_distribution(code)) else "the two lines above")
    yield "# instance_groups:"
    yield "#   - {name: gpu, type: ml.g5.xlarge, count: 1}"
    yield "#   - {name: data, type: ml.c5.xlarge, count: 2}"
    yield "# data_service: {feed: {enabled: true}, instance_groups: [data]}"
    if any(_distribution(code)):
        yield "# distribution: {torch_distributed: {enabled: true}, instance_groups: [gpu]}"


def _options(script: Path, tree: ast.AST) -> Iterator[str]:
    """Yields hyperparameters and inputs."""
    lines, channels, empty = list[str](), dict[str, str](), True
    options, notes = _declared(tree)
    read = dict.fromkeys(node.value for node in ast.walk(tree) if _text(node).startswith(_CHANNEL))  # type: ignore[attr-defined]
    named = [str(variable_name)[len(_CHANNEL) :].lower() for variable_name in read]
    named += [_text(node.args[0]) for node in ast.walk(tree) if _is_call_of(node, "channel")]
    for name in dict.fromkeys(named):
        channels[name] = name if name and (script.parent / name).exists() else ""
    for option in options:
        if option.variable.startswith(_CHANNEL):
            continue
        comment, place = f"  # {option.help}" if option.help else "", _place(script.parent, option)
        if option.unfit:
            needed = ", and the script needs it" if option.required else ""
            lines.append(
                f"  # {option.name}: {option.unfit}: only a `command` in place of entry_point gives it{needed}"
            )
        elif place is not None:
            empty = False
            channel, (channels[channel], file) = re.sub(r"[^A-Za-z0-9._-]", "-", option.name), place
            lines.append(f"  {_yaml(option.name)}: {_yaml('/'.join(['/opt/ml/input/data', channel, *file]))}{comment}")
        elif option.variable:
            lines.append(f"  # {option.name}: ${option.variable} unless it is given")
        elif option.required or option.default is None or option.default is _UNKNOWN:
            why = "the script needs it" if option.required else "the script has its own default"
            lines.append(f"  # {_yaml(option.name)}:  # {why}{': ' if option.help else ''}{option.help}")
        else:
            empty = False
            lines.append(f"  {_yaml(option.name)}: {_yaml(option.default)}{comment}")
    yield from notes
    if lines:
        yield "# Become arguments, --name value; for one run: headrace run job.yaml --set hyperparameters.NAME=VALUE"
        yield from ("# hyperparameters:" if empty else "hyperparameters:", *lines)
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


_HF, _TYRO = "HfArgumentParser", "cli"
_UNREADABLE = {
    "hydra": "hydra takes NAME=VALUE",
    "docopt": "docopt takes what its text says",
    "fire": "fire takes the arguments of functions",
    "absl": "absl takes what its flags declare",
    "jsonargparse": "jsonargparse takes what types elsewhere declare",
    "omegaconf": "OmegaConf takes NAME=VALUE",
}
_FLAG, _SEVERAL, _NAMELESS = "a flag without a value", "several values", "an argument without a name"


def _declared(tree: ast.AST) -> tuple[list[_Option], list[str]]:
    """Returns the options that a script declares, by argparse, click, typer and dataclasses (Hugging Face's parser,
    tyro), and comments on what cannot be seen in its text."""
    nodes = list(ast.walk(tree))
    imported = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    options = [option for node in nodes if _called(node) == "add_argument" and (option := _argument(node))]
    notes = []
    if "click" in imported:
        for function in functions:
            below = _is_subcommand(function) and "an option of a subcommand"
            options += (
                option._replace(unfit=below or option.unfit)
                for node in function.decorator_list
                if _called(node) in ("option", "argument") and (option := _argument(node, click=True))
            )
    if "typer" in imported:
        run = {name for node in nodes if _called(node) == "run" for name in _first_names(node)}
        commands = [node for node in functions if node.name in run or _is_subcommand(node)]
        below = "an option of a subcommand" if len(commands) > 1 else ""
        options += (
            option._replace(unfit=below or option.unfit) for command in commands for option in _parameters(command)
        )
    for node in nodes:
        if _called(node) == _HF or (_called(node) == _TYRO and "tyro" in imported):
            for name in _first_names(node):
                if name in classes:
                    options += _fields(classes[name], classes, tyro=_called(node) == _TYRO)
                else:
                    notes.append(
                        f"# {name} is not defined in the script: its fields are hyperparameters too, --name value"
                    )
    for module in sorted(imported & {*_UNREADABLE}):
        notes.append(
            f"# {_UNREADABLE[module]}: not seen here; name them as hyperparameters (--name value) or in a `command`"
        )
    if not options and not notes and re.search(r"\bsys\.argv\b", ast.unparse(tree)):
        notes.append(
            "# it reads sys.argv by itself: name what it takes as hyperparameters (--name value) or in a `command`"
        )
    return options, notes


def _option(
    spelling: str, value: ast.AST | None, unfit: str, required: bool, keywords: Mapping[str | None, ast.expr]
) -> _Option:
    spelling = spelling.partition("/")[0]
    name = spelling.lstrip("-")
    passed = f"-{name}" if len(name) == 1 else f"--{name}"
    if passed != spelling:
        unfit = unfit or f"it would be passed as {passed}, as SageMaker does, and the script has {spelling}"
    return _Option(name, _literal(value), _variable(value), unfit, required, _help(keywords.get("help")))


def _spelling(names: Sequence[str]) -> str:
    """Returns which name of an option a hyperparameter is best written as: one that is passed on as it is, a long one
    before one of one letter; else the first."""
    for form in (r"--[^/]{2,}.*", r"-[^-]"):
        for name in names:
            if re.fullmatch(form, name):
                return name
    return next((name for name in names if name.startswith("-")), names[0])


def _keywords(call: ast.AST | None) -> dict[str | None, ast.expr]:
    return {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}


def _called(node: ast.AST | None) -> str:
    """Returns the last name of what a node calls; empty when it calls nothing."""
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def _is_subcommand(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is a group, or a command of one or of an application of typer's, but not click's only one."""
    for node in function.decorator_list:
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and called.attr in ("command", "group"):
            return called.attr == "group" or not (isinstance(called.value, ast.Name) and called.value.id == "click")
    return False


def _argument(node: ast.AST, click: bool = False) -> _Option | None:
    """Returns what a call of `add_argument`, or a decorator of click's, says; None of what it computes."""
    if not isinstance(node, ast.Call):
        return None
    names, keywords = [_text(argument) for argument in node.args], _keywords(node)
    if not names or not all(names):
        return None
    name = _spelling(names)
    value, action = keywords.get("default"), keywords.get("action")
    unfit = ""
    if not name.startswith("-"):
        unfit = _NAMELESS
    elif (
        (action is not None and _text(action) not in ("store", "append"))
        or "/" in name
        or any(_literal(keywords.get(word)) is True for word in ("is_flag", "count"))
    ):
        unfit = _FLAG
    elif "nargs" in keywords and _text(keywords["nargs"]) != "?" and _literal(keywords["nargs"]) != 1:
        unfit = _SEVERAL
    required = _literal(keywords.get("required")) is True
    if not name.startswith("-") and not required:
        required = "required" not in keywords and value is None if click else "nargs" not in keywords
    return _option(name, value, unfit, required, keywords)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Option]:
    """Yields what typer makes of the parameters of a function."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    for parameter, written in zip([*plain, *arguments.kwonlyargs], defaults, strict=True):
        default = written
        of_type, declared = _annotated(parameter.annotation)
        names = [_text(argument) for argument in declared.args] if declared else []
        if declared is None and isinstance(default, ast.Call) and _called(default) in ("Option", "Argument"):
            declared, names = default, [_text(argument) for argument in default.args[1:]]
            default = default.args[0] if default.args else _keywords(default).get("default")
        if re.search(r"\bContext\b", of_type):
            continue
        missing = default is None or (isinstance(default, ast.Constant) and default.value is ...)
        unfit = _FLAG if of_type == "bool" else _SEVERAL if _is_many(of_type) else ""
        if _called(declared) == "Argument" or (declared is None and missing):
            unfit = _NAMELESS
        spellings = [spelling for spelling in names if spelling.startswith("-")]
        name = _spelling(spellings or [f"--{parameter.arg.replace('_', '-')}"])
        yield _option(name, None if missing else default, unfit, missing, _keywords(declared))


def _fields(
    described: ast.ClassDef, classes: Mapping[str, ast.ClassDef], *, tyro: bool, inside: tuple[str, ...] = ()
) -> Iterator[_Option]:
    """Yields what a parser of dataclasses makes of the fields of one, also of those that it inherits in the script."""
    for base in described.bases:
        name = getattr(base, "id", "")
        if name in classes and name not in inside:
            yield from _fields(classes[name], classes, tyro=tyro, inside=(*inside, described.name))
    for node in described.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        of_type, value, keywords = ast.unparse(node.annotation), node.value, dict[str | None, ast.expr]()
        if _called(value) in ("field", "HfArg"):
            keywords = _keywords(value)
            value = keywords.get("default", keywords.get("default_factory"))
        if of_type.startswith("ClassVar") or _literal(keywords.get("init")) is False:
            continue
        if isinstance(metadata := keywords.get("metadata"), ast.Dict):
            items = zip(metadata.keys, metadata.values, strict=True)
            keywords |= {_text(key): item for key, item in items if _text(key) == "help"}
        unfit = _FLAG if tyro and of_type == "bool" else _SEVERAL if _is_many(of_type) else ""
        name = node.target.id.replace("_", "-") if tyro else node.target.id
        option = _option(f"--{name}", value, unfit, value is None, keywords)
        yield option._replace(default=_UNKNOWN) if "default_factory" in keywords else option


def _annotated(annotation: ast.expr | None) -> tuple[str, ast.Call | None]:
    """Returns the type in an annotation, and typer's call in `Annotated`."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Annotated")):
        return (ast.unparse(annotation) if annotation is not None else ""), None
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    calls = [part for part in parts if isinstance(part, ast.Call) and _called(part) in ("Option", "Argument")]
    return ast.unparse(parts[0]), calls[0] if calls else None


def _is_many(of_type: str) -> bool:
    return re.match(r"(Optional\[)?(typing\.)?(list|tuple|set|Sequence|Iterable)\b", of_type, re.IGNORECASE) is not None


def _first_names(node: ast.AST) -> list[str]:
    """Returns the names that a call is given first: the classes of a parser of dataclasses, a function that is run."""
    if not isinstance(node, ast.Call):
        return []
    arguments = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "dataclass_types")]
    parts = [
        part
        for argument in arguments
        for part in (argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument])
    ]
    return [
        part.id if isinstance(part, ast.Name) else part.attr
        for part in parts
        if isinstance(part, ast.Name | ast.Attribute)
    ]


def _help(node: ast.AST | None) -> str:
    words = " ".join(_text(node).split())
    return words if len(words) <= _HELP else f"{words[:_HELP]}..."


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
    for part in ast.walk(node) if node is not None else ():
        key = (
            part.slice
            if isinstance(part, ast.Subscript)
            else part.args[0]
            if isinstance(part, ast.Call) and part.args
            else None
        )
        if key is not None and re.search(r"\b(environ|getenv)\b", ast.unparse(part)):
            return _text(key)
    return ""


def _yaml(value: object) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS else json.dumps(value)


_WORDS = ("true", "false", "null")
