"""Packs what travels to hosts that a platform gives: headrace's own package, and files of a run's directory.

The same input gives the same bytes, so that what is named after its digest is sent once.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import headrace

FOLDERS = ("adapters", "agent", "feed", "hosting", "instance", "processes", "runs")
_SUBMITTING = (  # what speaks to a cluster, and what makes the objects that are sent there
    *("kubernetes_engine", "lightkube_cluster", "kube_login", "submit_run", "fetch_record", "reach_run", "refresh_run"),
    *("watch_run", "kubernetes_job", "objects", "pod_spec", "pack_run", "pod_states", "end_of_run", "kube_ticket"),
    "cluster",
)
NOT_ON_HOSTS = (
    "adapters/estimator.py",
    "adapters/sdk_session.py",
    *(f"engines/kubernetes/{module}.py" for module in _SUBMITTING),
)
START = "__main__.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_zip(start: str, engine: str) -> bytes:
    """Returns headrace's package as an archive that Python runs: the instance side, and what a host starts.

    Args:
        start: the module that Python runs, relative to the package: standard library only.
        engine: folder of the engine, relative to the package.
    """
    root = Path(headrace.__file__).parent
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, file in _package_files(root, start, engine):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, file.read_bytes())
    return out.getvalue()


def _package_files(root: Path, start: str, engine: str) -> Iterator[tuple[str, Path]]:
    yield START, root / start
    files = [*root.glob("*.py"), *(root / "engines").glob("*.py")]
    for folder in (*FOLDERS, engine):
        files += (file for file in (root / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        if not name.startswith(NOT_ON_HOSTS):
            yield f"headrace/{name}", file


def files_below(root: Path, names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields files, folders and symlinks below `root` in order, with their names. What is not there is passed."""
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or path.exists():
                yield name, path
            continue
        yield name, path
        yield from files_below(root, sorted(f"{name}/{child.name}" for child in path.iterdir()))


def packed(files: Iterable[tuple[str, Path | bytes]], private: Collection[str] = ()) -> bytes:
    """Packs files as ``.tar.gz``: modes stay, owners and times do not.

    Args:
        files: names, and files, folders, symlinks or contents.
        private: names of contents that nobody else may read.
    """
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in files:
            info = tarfile.TarInfo(name)
            if isinstance(file, bytes):
                info.size, info.mode = len(file), 0o600 if name in private else 0o644
                archive.addfile(info, io.BytesIO(file))
            elif file.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(file)  # noqa: PTH115
                archive.addfile(info)
            elif file.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            else:
                content = file.read_bytes()
                info.size, info.mode = len(content), stat.S_IMODE(file.stat().st_mode)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
