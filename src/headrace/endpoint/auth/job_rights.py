"""What the key of a job may do in S3: read what its request names, and write where it says that something is written.

Reading goes by the beginning of a key, as a channel's S3Prefix does; writing by folders. Pure.

* the channels: read;
* outputs, of the model, TensorBoard, the profiler and the debugger: read and written below ``ADDRESS/<job>/``;
* checkpoints: read and written at their address;
* addresses in hyperparameters, variables, arguments and the rest: read and written, since the program is told of them.
  One of a channel, of the code or of a whole bucket is only read. headrace's own engine for SageMaker names the folder
  of the run's record so, of this attempt;
* ``<job>/`` in the buckets that SDKs take by default: read and written; these buckets may be looked for and created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.job.problems.finding import value_at
from headrace.job.sagemaker.translation import CHANNELS

Place = tuple[str, bytes]
"""A bucket, and what a key there begins with."""

_ADDRESS = re.compile(r"s3://([^/\s\"'\\,;<>]+)(?:/([^\s\"'\\,;<>]*))?")
_OUTPUTS = ("OutputDataConfig", "TensorBoardOutputConfig", "DebugHookConfig", "ProfilerConfig")
_CODE = "sagemaker_submit_directory"


@dataclass(frozen=True)
class JobRights:
    """Rights in S3.

    Attributes:
        read: what may be read; all that may be written may be read too.
        written: what may be written.
        default: buckets that may be looked for and created.
        everywhere: all objects may be read and written: of those who carry the data of jobs.
    """

    read: tuple[Place, ...] = ()
    written: tuple[Place, ...] = ()
    default: frozenset[str] = frozenset()
    everywhere: bool = False

    def reads(self, bucket: str, key: bytes) -> bool:
        """Tells whether an object may be read, or what begins with a prefix be listed."""
        return self.writes(bucket, key) or any(bucket == each and key.startswith(place) for each, place in self.read)

    def writes(self, bucket: str, key: bytes) -> bool:
        """Tells whether an object may be written and removed."""
        return self.everywhere or any(
            bucket == each and (key == place or key.startswith(place.rstrip(b"/") + b"/"))
            for each, place in self.written
        )

    def knows(self, bucket: str) -> bool:
        """Tells whether it may be asked if a bucket is there, and where."""
        return self.everywhere or bucket in self.default or bucket in {each for each, _ in (*self.read, *self.written)}


def rights_of(request: Mapping[str, object], name: str, default: frozenset[str]) -> JobRights:
    """Returns the rights of a job.

    Args:
        request: its CreateTrainingJob request.
        name: of the job.
        default: buckets that SDKs take by default.
    """
    channels = [place for text in _texts(request.get(CHANNELS)) for place in _places(text)]
    parameters = request.get("HyperParameters")
    code = _places(str(parameters.get(_CODE, ""))) if isinstance(parameters, Mapping) else []
    outputs = [
        place for each in _OUTPUTS for place in _places(str(value_at(dict(request), (each, "S3OutputPath")) or ""))
    ]
    written = [(bucket, _folder(key) + name.encode() + b"/") for bucket, key in outputs]
    written += _places(str(value_at(dict(request), ("CheckpointConfig", "S3Uri")) or ""))
    written += [(bucket, name.encode() + b"/") for bucket in sorted(default)]
    others = {key: value for key, value in request.items() if key not in (CHANNELS, *_OUTPUTS, "CheckpointConfig")}
    named = [place for text in _texts(others) for place in _places(text)]
    only_read = {(bucket, key.rstrip(b"/")) for bucket, key in (*channels, *code)}
    told = [place for place in named if place[1].strip(b"/") and (place[0], place[1].rstrip(b"/")) not in only_read]
    return JobRights((*channels, *code, *named), (*written, *told), default)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _places(text: str) -> list[Place]:
    return [(bucket, key.encode()) for bucket, key in _ADDRESS.findall(text)]


def _folder(key: bytes) -> bytes:
    return key if not key or key.endswith(b"/") else key + b"/"
