"""What a job names on this machine: its code and its channels. The only module of this room that asks the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.job.fields import TrainingInput
from headrace.job.findings import Finding


def missing(data: Mapping[str, object], base: Path, broken: frozenset[tuple[str | int, ...]]) -> Iterator[Finding]:
    """Yields what a job names and is not there.

    Args:
        data: the job as the user wrote it.
        base: what relative paths are relative to.
        broken: paths of the values that are wrong anyway; they are not looked for.
    """
    yield from _code(data, base, broken)
    inputs = data.get("inputs")
    for name, channel in inputs.items() if isinstance(inputs, Mapping) else ():
        key = next((key for key in ("s3_data", "path") if isinstance(channel, Mapping) and channel.get(key)), None)
        path = ("inputs", name) if key is None else ("inputs", name, key)
        text = channel if key is None else channel[key]
        if isinstance(text, str) and path not in broken:
            yield from _folder(path, text, TrainingInput(text).local_path(base))


def _code(data: Mapping[str, object], base: Path, broken: frozenset[tuple[str | int, ...]]) -> Iterator[Finding]:
    source_dir, entry_point = data.get("source_dir"), data.get("entry_point")
    if not isinstance(source_dir, str) or ("source_dir",) in broken:
        return
    problems = list(_folder(("source_dir",), source_dir, base / source_dir))
    yield from problems
    if problems or not isinstance(entry_point, str) or ("entry_point",) in broken:
        return
    script = base / source_dir / entry_point
    if not script.is_file():
        near = sorted(path.name for path in (base / source_dir).glob("*.py"))
        hint = f"scripts there: {', '.join(near[:8])}" if near else "there is no Python script in that folder"
        yield Finding(("entry_point",), f"must be a file in source_dir; {script} is none", repr(entry_point), hint)


def _folder(path: tuple[str | int, ...], text: str, folder: Path) -> Iterator[Finding]:
    if folder.is_dir():
        return
    wrong = "is a file" if folder.is_file() else "does not exist"
    hint = "name the folder that holds it" if folder.is_file() else ""
    yield Finding(path, f"must be a folder; {folder} {wrong}", repr(text), hint)
