"""Files for a folder of the user's: written whole, and over others only when that is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import UsageError


def write_files(folder: Path, files: Mapping[str, bytes], *, update: bool, dry_run: bool = False) -> dict[str, bool]:
    """Writes files into a folder, which is made if there is none.

    Args:
        folder: the folder.
        files: content by name; a name may have folders in it.
        update: files with another content may be replaced.
        dry_run: write nothing.

    Returns:
        By path, whether the file was (or would be) written; not if it is there with the same content.

    Raises:
        UsageError: one is there with another content, and then none is written; or it cannot be written.
    """
    try:
        there = {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in files}
        other = [name for name, content in there.items() if content is not None and content != files[name]]
        if other and not update:
            names = ", ".join(str(folder / name) for name in other)
            raise UsageError(f"there already, and other: {names}", hint="--update replaces it, or name another folder")
        new = {name: there[name] != content for name, content in files.items()}
        if not dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (name for name, is_new in new.items() if is_new):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f".{path.name}.{os.getpid()}")
                partial.write_bytes(files[name])
                partial.replace(path)
    except OSError as error:
        raise UsageError(
            f"--to {folder}: {error.strerror or error}", hint="name a folder in which you may write"
        ) from error
    return {str(folder / name): is_new for name, is_new in new.items()}
