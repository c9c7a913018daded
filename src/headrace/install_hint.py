"""How an extra is added to this copy of headrace: the command for a clone, a wheel's file, a repository or an index.

`LIBRARIES` is what headrace itself needs on a host of a job, with versions; a container reads it first of all.

Read from what pip and uv record (``direct_url.json``, PEP 610). Imports the standard library only, and that when asked.
"""

from __future__ import annotations

import functools
import shlex
import sys
from pathlib import Path
from typing import Any

LIBRARIES = {
    "msgspec": "msgspec>=0.18.2",
    "numpy": "numpy>=1.24",
    "psutil": "psutil>=6.0",
    "xxhash": "xxhash>=3.4",
}


@functools.cache
def install_hint(extra: str) -> str:
    """Returns the command that installs what an extra of headrace needs, for the Python that runs.

    Args:
        extra: a name of ``[project.optional-dependencies]`` in pyproject.toml.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution("headrace")
    except PackageNotFoundError:  # on the path, as a host gets it, or as `PYTHONPATH=src` does
        checkout = Path(__file__).parents[2]
        what = f"{checkout}[{extra}]" if (checkout / "pyproject.toml").exists() else f"headrace[{extra}]"
        return f"{_pip('')} {shlex.quote(what)}"
    ends = (f"; extra == '{extra}'", f'; extra == "{extra}"')
    libraries = [line.rpartition(";")[0].strip() for line in installed.requires or () if line.endswith(ends)]
    what = _what(extra, installed.read_text("direct_url.json"), libraries)
    return f"{_pip(installed.read_text('INSTALLER') or '')} {what}"


def _what(extra: str, direct_url: str | None, libraries: list[str]) -> str:
    """What pip is given: where this copy came from if that is still there, else the libraries themselves."""
    import json
    from urllib.parse import unquote, urlsplit

    if direct_url is None:
        return shlex.quote(f"headrace[{extra}]")
    origin: dict[str, Any] = json.loads(direct_url)
    url = str(origin["url"])
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return shlex.quote(f"headrace[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if not url.startswith("file:"):
        return shlex.quote(f"headrace[{extra}] @ {url}")
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():
        return " ".join(shlex.quote(library) for library in libraries) or shlex.quote(f"headrace[{extra}]")
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return editable + shlex.quote(f"{path}[{extra}]")


def _pip(installer: str) -> str:
    """The command ``pip install`` of the Python that runs, which need not be the first one on PATH."""
    import shutil

    if installer.strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    own = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return "pip install" if own else f"{shlex.quote(sys.executable)} -m pip install"
