"""The values that a job is made of: each type checks itself and says what is allowed.

Limits are those of the CreateTrainingJob request (botocore's service model), and of the machine where it has none.
A number written as text, or the other way round, is refused: nothing is converted in silence.

Hyperparameters of a job in a request: from text to value and back, so that a request comes back as it was.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, cast, get_args

from pydantic import BeforeValidator, GetCoreSchemaHandler, JsonValue, WithJsonSchema
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

from headrace import sagemaker_parameters
from headrace.catalog import aws_facts, instance_types, prices
from headrace.catalog.instance_types import parse_bandwidth
from headrace.job.problems.finding import broken, nearest, show
from headrace.sagemaker_parameters import GROUPS, PREFIX, PROGRAM, STRATEGIES, SUBMIT_DIRECTORY, meaning

_RANGE = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?", re.ASCII)


def parse_cpu_set(text: str) -> tuple[int, ...]:
    """Reads CPU ids and ranges, as the kernel writes them.

    >>> parse_cpu_set("0-3,5")
    (0, 1, 2, 3, 5)

    Raises:
        ValueError: empty, not of that form, or a range that runs backwards.
    """
    ids: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"not a CPU id or range: {part!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"a range that runs backwards: {part!r}")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_cpu_set(ids: Sequence[int]) -> str:
    """Writes CPU ids in the form that `parse_cpu_set` reads.

    >>> format_cpu_set((0, 1, 2, 3, 5))
    '0-3,5'
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(ids)):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


THIS_MACHINE = ("local", "local_gpu")
"""What SageMaker's local mode calls the instance type; not for jobs that run elsewhere."""
RESERVED_CHANNEL = "headrace"
MAX_RUN_LIMIT = 28 * 24 * 3600
MAX_RUN_DEFAULT = 24 * 3600
MAX_COST_LIMIT = 1e9

_CUT_DIGITS = 8
JOB_NAME_CHARACTERS = 63
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_OCTET = r"(?:0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])"


def cut_name(name: str, most: int) -> str:
    """Returns a name, cut where it has too many characters; then it ends in a digest of the whole, so that two long
    names that begin alike stay two.

    >>> cut_name("short", 8), cut_name("a-longer-name", 12), cut_name("a-longer-one", 11)
    ('short', 'a-l-2df22ae1', 'a-675fdf0c')
    """
    if len(name) <= most:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_CUT_DIGITS]
    return f"{name[: most - _CUT_DIGITS - 1].rstrip('-')}-{digest}"


def json_form(value: object) -> str:
    """Returns a hyperparameter as SageMaker carries it: JSON, whose length is limited.

    Raises:
        ValueError: not a finite number, string, true, false, null, list or mapping with string keys.
    """
    _refuse_non_json(value)
    return json.dumps(value, allow_nan=False)


def _refuse_non_json(value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, {show(key)} is not")
            _refuse_non_json(key)
            _refuse_non_json(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_non_json(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers must be finite")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise ValueError(f"{type(value).__name__} is not allowed")
    elif isinstance(value, str) and "\0" in value:
        raise ValueError("text must not hold a NUL character")
    elif isinstance(value, str) and (lone := _SURROGATE.search(value)):
        raise ValueError(f"text {_surrogate_rule(lone)}")


def _surrogate_rule(lone: re.Match[str]) -> str:
    """Says which character of a text UTF-8 cannot hold. It would fail wherever the text is written or passed on."""
    return f"must not hold half of a surrogate pair; character {lone.start() + 1} is {lone[0]!r}"


def text_of(value: object) -> str:
    """Returns text as it is, and refuses anything else."""
    if isinstance(value, str):
        lone = _SURROGATE.search(value)
        if lone:
            raise broken(_surrogate_rule(lone), hint="write the character itself, or both halves of its pair")
        return value
    hint = f'write it in quotes: "{json.dumps(value)}"' if isinstance(value, (int, float)) else ""
    raise broken("must be a string", hint=hint)


def sized(value: object, low: int, high: int) -> str:
    """Returns text of `low` to `high` characters."""
    text = text_of(value)
    if not low <= len(text) <= high:
        raise broken(f"must have {low} to {high} characters", seen=f"{len(text)} characters")
    return text


def one_line(value: object, low: int, high: int) -> str:
    """Returns text of `low` to `high` characters without a line break."""
    text = sized(value, low, high)
    if "\n" in text or "\0" in text:
        raise broken("must be one line, without NUL characters")
    return text


def _channel_name(value: object) -> str:
    text = sized(value, 1, 64)
    if not _CHANNEL_NAME.fullmatch(text):
        raise broken("a channel name must be letters, digits, dots, hyphens and underscores")
    if text in (".", ".."):
        raise broken("a channel name must be usable as the name of a folder")
    if text.lower() == RESERVED_CHANNEL:
        raise broken(f"the channel name {RESERVED_CHANNEL!r} is reserved", hint="choose another channel name")
    return text


def _hyperparameter_key(value: object) -> str:
    text = one_line(value, 1, 256)
    if text.startswith(PREFIX):
        raise broken(f"names that start with {PREFIX!r} are reserved", hint=meaning(text) or "choose another name")
    return text


def _hyperparameter_value(value: object) -> object:
    try:
        as_json = json_form(value)
        length = len(value) if isinstance(value, str) else len(as_json)
    except RecursionError:
        raise broken("is nested too deeply", seen="") from None
    except ValueError as error:
        raise broken(f"must be a scalar, a list or a mapping that JSON can hold: {error}") from None
    if length > 2500:
        raise broken(
            "must have at most 2500 characters" + ("" if isinstance(value, str) else " as JSON"),
            seen=f"{length} characters",
        )
    return value


def _instance_type(value: object) -> str:
    text = text_of(value)
    if text in instance_types.KNOWN or text in THIS_MACHINE:
        return text
    raise broken(f"must be an instance type of SageMaker training; {instance_types.hint_for(text)}")


def whole(low: int, high: int | None = None, unit: str = "") -> BeforeValidator:
    """Makes the check of a whole number from `low` to `high`."""
    allowed = f"at least {low}" if high is None else f"{low} to {high}"

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise broken("must be a whole number")
        if value < low or (high is not None and value > high):
            raise broken(f"must be {allowed}{unit}", seen=show(value))
        return value

    return BeforeValidator(check)


def number(rule: str, fits: Callable[[float], bool], hint: str = "") -> BeforeValidator:
    """Makes the check of a number; `rule` says which ones fit."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits(value):
            raise broken(rule, hint=hint)
        return float(value)

    return BeforeValidator(check)


def matching(rule: str, pattern: str, sizes: tuple[int, int] | None = None, hint: str = "") -> BeforeValidator:
    """Makes the check of a text that a pattern describes as a whole; `rule` says it in words.

    Args:
        sizes: least and greatest number of characters of one line; None where the pattern says it.
    """
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        text = text_of(value) if sizes is None else one_line(value, *sizes)
        if not compiled.fullmatch(text):
            raise broken(rule, hint=hint)
        return text

    return BeforeValidator(check)


def parsed(rule: str, parse: Callable[[str], object]) -> BeforeValidator:
    """Makes the check of a text that `parse` can read; it raises ValueError for others. Whole numbers count as text."""

    def check(value: object) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        try:
            if not isinstance(text, str):
                raise ValueError
            parse(text)
        except ValueError:
            raise broken(rule) from None
        return text

    return BeforeValidator(check)


def trimmed(low: int, high: int) -> BeforeValidator:
    """Makes the check of one line without blanks at its ends."""
    return matching("must not begin or end with a blank", r"(?:\S(?:.*\S)?)?", (low, high))


def line(low: int, high: int) -> BeforeValidator:
    """Makes the check of one line of `low` to `high` characters."""
    return BeforeValidator(lambda value: one_line(value, low, high))


def _amount(value: object) -> float:
    """An amount of money: a number, or a number and the one currency that prices are in."""
    number = value
    if isinstance(value, str):
        words = value.split()
        if len(words) == 2 and words[1].isalpha() and words[1] != prices.CURRENCY:
            hint = f"the prices are in {prices.CURRENCY}: convert it, and write max_cost: 25.00 {prices.CURRENCY}"
            raise broken(f"must be in {prices.CURRENCY}", hint=hint)
        if len(words) in (1, 2) and _AMOUNT.fullmatch(words[0]):
            number = float(words[0])
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise broken(f"must be an amount such as 25 or '25.00 {prices.CURRENCY}'")
    if not 0 < number <= MAX_COST_LIMIT:
        raise broken(f"must be above 0 and at most {MAX_COST_LIMIT:g} {prices.CURRENCY}")
    return float(number)


@functools.cache
def known_regions() -> tuple[str, ...]:
    """Returns the regions of AWS that headrace knows: those with a price, and those with images for training."""
    return tuple(sorted({*prices.regions(), *aws_facts.known_regions()}))


def _among(value: object, allowed: Sequence[str], rule: str, otherwise: str = "") -> str:
    """Returns a text that must be one of those that are allowed."""
    text = text_of(value)
    if text not in allowed:
        near = nearest(text, allowed)
        raise broken(rule, hint=f"did you mean {near!r}?" if near else otherwise)
    return text


def _region_of(regions: Callable[[], tuple[str, ...]], what: str) -> BeforeValidator:
    return BeforeValidator(
        lambda value: _among(value, regions(), f"must be {what}", f"there are {', '.join(regions())}")
    )


def without_nul(text: str) -> str:
    """Returns text that a program can be given."""
    if "\0" in text:
        raise broken("must not hold a NUL character")
    return text


def _command(value: object) -> object:
    items = _sequence(value)
    if not 1 <= len(items) <= 200:
        raise broken("must be a list of 1 to 200 texts: the program and its arguments", seen="")
    if not items[0]:
        raise broken("must begin with a program")
    return items


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise broken("must be true or false")
    return value


def _workers(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise broken("must be 'auto' or a whole number that is at least 1")
    return value


class _OneOf:
    """The check of a `Literal`: a text that must be one of a few."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        allowed = get_args(source)
        rule = f"must be one of {', '.join(allowed)}"
        return no_info_before_validator_function(lambda value: _among(value, allowed, rule), handler(source))


one_of = _OneOf()


def _mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        raise broken("must be a mapping of names to values")
    return dict(value)


def _sequence(value: object) -> tuple[object, ...]:
    return as_tuple(value, "a list")


def as_tuple(value: object, what: str) -> tuple[object, ...]:
    """Returns the items of a list; anything else must be `what`, as the message says."""
    if not isinstance(value, (list, tuple)):
        raise broken(f"must be {what}")
    return tuple(value)


AsMapping = BeforeValidator(_mapping)
AsList = BeforeValidator(_sequence)
JobName = Annotated[
    str,
    matching(
        "must be 1 to 63 letters, digits and hyphens, and start and end with a letter or digit",
        rf"(?!.{{{JOB_NAME_CHARACTERS + 1}}})[a-zA-Z0-9](-*[a-zA-Z0-9])*",
    ),
]
GroupName = Annotated[str, line(1, 64)]
GroupNames = Annotated[tuple[GroupName, ...], AsList]
InstanceType = Annotated[
    str, BeforeValidator(_instance_type), WithJsonSchema({"type": "string", "enum": sorted(instance_types.KNOWN)})
]
InstanceCount = Annotated[int, whole(1)]
HyperparameterKey = Annotated[str, BeforeValidator(_hyperparameter_key)]
HyperparameterValue = Annotated[JsonValue, BeforeValidator(_hyperparameter_value)]
_VARIABLE_NAME = "a variable name must be letters, digits and underscores, and not start with a digit"
VariableName = Annotated[str, matching(_VARIABLE_NAME, "[a-zA-Z_][a-zA-Z0-9_]*", (1, 512))]
VariableValue = Annotated[str, BeforeValidator(lambda value: without_nul(sized(value, 0, 512)))]
ChannelName = Annotated[str, BeforeValidator(_channel_name)]
DataType = Annotated[Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile"], one_of]
InputMode = Annotated[Literal["File", "FastFile", "Pipe"], one_of]
Flag = Annotated[bool, BeforeValidator(_flag)]
Processes = Annotated[int, whole(1)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_workers)]
Command = Annotated[
    tuple[Annotated[str, BeforeValidator(lambda value: without_nul(sized(value, 0, 256)))], ...],
    BeforeValidator(_command),
]
MpiOptions = Annotated[str, line(0, 2500)]
Hosts = Annotated[int, whole(1, 1000)]
_SECONDS = f"must be above 0 and at most {MAX_RUN_LIMIT} seconds (28 days)"
Seconds = Annotated[float, number(_SECONDS, lambda value: 0 < value <= MAX_RUN_LIMIT)]
RecordInterval = Annotated[float, number("must be 1 to 3600 seconds", lambda value: 1 <= value <= 3600)]
Amount = Annotated[float, BeforeValidator(_amount), WithJsonSchema({"type": ["number", "string"]})]
Region = Annotated[str, _region_of(known_regions, "a region of AWS")]
PricedRegion = Annotated[str, _region_of(prices.regions, "a region whose prices are known")]
StopGrace = Annotated[float, number("must be a number of seconds, 0 to 3600", lambda value: 0 <= value <= 3600)]
_IDS = WithJsonSchema({"type": ["string", "integer"]})  # YAML reads one id as a number
CpuSet = Annotated[str, parsed("must be CPU ids and ranges, such as '0-3,5'", parse_cpu_set), _IDS]
GpuSet = Annotated[str, parsed("must be GPU ids and ranges, such as '0-3,5'", parse_cpu_set), _IDS]
CpuShare = Annotated[float, number("must be a number above 0", lambda value: 0 < value < math.inf)]
Isolation = Annotated[Literal["auto", "none", "shared_network", "namespace"], one_of]
Limits = Annotated[Literal["auto", "none"], one_of]
_BANDWIDTH = "must be a bandwidth such as '200mbit': a number and kbit, mbit or gbit, at least 8kbit"
Bandwidth = Annotated[str, parsed(_BANDWIDTH, parse_bandwidth)]
_LOOPBACK = "must be the first three octets of a loopback address, such as '127.0.1'"
AddressPrefix = Annotated[str, matching(_LOOPBACK, rf"127\.{_OCTET}\.{_OCTET}")]
Port = Annotated[int, whole(1, 65535)]


KNOWN = frozenset({PROGRAM, SUBMIT_DIRECTORY, GROUPS, *STRATEGIES})
"""Reserved hyperparameters that a job has keys for."""


def is_reserved(name: str) -> bool:
    """Tells whether a hyperparameter of a request is not the user's: SageMaker reserves it, or a key holds it."""
    return sagemaker_parameters.is_reserved(name) or name in STRATEGIES


def decode(text: str) -> JsonValue:
    """Returns what a program gets for a hyperparameter's text: the JSON value that it is, else the text itself.

    A value that a job cannot have, such as NaN, stays text.
    """
    value = sagemaker_parameters.decode(text)
    try:
        json_form(value)
    except (ValueError, RecursionError):
        return text
    return cast(JsonValue, value)


def encode(value: object, raw: object = None) -> str:
    """Returns a hyperparameter as a request carries it.

    Args:
        value: the value.
        raw: how a request wrote it; that is kept when it still means the same.
    """
    if isinstance(raw, str) and same(decode(raw), value):
        return raw
    return json.dumps(value, allow_nan=False)


def same(one: object, other: object) -> bool:
    """Tells whether two values are the same in JSON, where 1, 1.0 and true are three things."""
    return json.dumps(one) == json.dumps(other)


def encoded(values: Mapping[str, object], raw: Mapping[str, object]) -> dict[str, str]:
    """Returns hyperparameters as a request carries them, in their order. See `encode`."""
    return {name: encode(value, raw.get(name)) for name, value in values.items()}
