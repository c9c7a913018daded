"""What of a folder of code goes to a run: its ignore file, and a word before much is copied.

A folder says what is left out of it in `.headraceignore`, else in `.gitignore`, in the form that git reads; only the
file in the folder itself counts. An empty `.headraceignore` leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.errors import UsageError
from headrace.hosting.inputs.source_code import Ignored, entries_of, nothing_ignored
from headrace.instance import storage
from headrace.job import Job
from headrace.job.model.path_types import is_archive, is_script

IGNORE_FILES = (".headraceignore", ".gitignore")
MUCH = 50_000_000  # bytes of code that are told before they are copied
NAMED = 3


def ignore_file(folder: Path) -> Path | None:
    """Returns the file that says what is left out of a folder of code; None for no such file."""
    return next((folder / name for name in IGNORE_FILES if (folder / name).is_file()), None)


def ignored_in(folder: Path) -> Ignored:
    """Returns what a folder of code says is left out of it.

    Raises:
        UsageError: its ignore file holds what git would not understand.
        OSError: it cannot be read.
    """
    file = ignore_file(folder)
    if file is None:
        return nothing_ignored(folder)
    import pathspec

    try:
        rules = pathspec.GitIgnoreSpec.from_lines(file.read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        raise UsageError(f"{file}: {error}", "write it as git reads a .gitignore, in UTF-8") from error
    return lambda name, is_folder: rules.match_file(f"{name}/" if is_folder else name)


def code_notes(job: Job, runs: Path) -> Iterator[str]:
    """Yields what a user should know before the code of a job is copied: how much it is, when it is much, and what a
    `.gitignore` leaves out.

    Args:
        job: the job.
        runs: the folder of all runs, which is not copied.

    Raises:
        UsageError, OSError: the code cannot be read.
    """
    named = [job.source_dir] if job.source_dir and not _is_packed(job.source_dir) else []
    for text in (*named, *job.dependencies):
        folder = job.base_path / text
        if not folder.is_dir():
            continue
        sizes: dict[str, int] = {}
        ignored, left_out = _noted(ignored_in(folder))
        for name, path, link in entries_of(folder, runs, ignored):
            if link is None and path.is_file():
                sizes[name.parts[0]] = sizes.get(name.parts[0], 0) + path.stat().st_size
        total = sum(sizes.values())
        if total > MUCH:
            largest = sorted(sizes.items(), key=lambda item: -item[1])[:NAMED]
            names = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in largest if size > total / 100)
            yield (
                f"warning: {folder} goes to the run as code, {total / 1e6:.0f} MB, of these {names}; "
                f"data belong into `inputs`, and what a run does not need into {folder / IGNORE_FILES[0]} "
                "(in the form of .gitignore)"
            )
        file = ignore_file(folder)
        if left_out and file is not None and file.name != IGNORE_FILES[0]:  # which was not written for headrace
            more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
            yield (
                f"code: {file} leaves out {', '.join(left_out[:NAMED])}{more}; "
                f"{IGNORE_FILES[0]} counts in its place, and leaves nothing out when it is empty"
            )


def check_entry_points(job: Job, code: Path) -> None:
    """Checks that no script of the job was left out of its code by an ignore file. Raises UsageError."""
    if not job.source_dir or _is_packed(job.source_dir):
        return
    folder = job.base_path / job.source_dir
    for group in job.hosts:
        script = job.in_code(job.entry_point_of(group))
        if script and is_script(script) and (folder / script).exists() and not (code / script).exists():
            raise UsageError(
                f"entry_point {script}: {ignore_file(folder)} leaves it out of the code",
                f"name it there with `!{script}`; an empty {IGNORE_FILES[0]} beside it leaves nothing out",
            )


def _noted(ignored: Ignored) -> tuple[Ignored, list[str]]:
    """Returns rules that note what they leave out, and the notes."""
    left_out: list[str] = []

    def noting(name: str, is_folder: bool) -> bool:
        says_so = ignored(name, is_folder)
        if says_so:
            left_out.append(name)
        return says_so

    return noting, left_out


def _is_packed(source: str) -> bool:
    return storage.is_s3(source) or is_archive(source)
