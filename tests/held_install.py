"""Requirements whose installation takes as long as a test wants: pip builds a package that waits, without an index."""

from __future__ import annotations

from pathlib import Path

_BACKEND = """
import pathlib, time, zipfile
FILES = {{
    "held.py": "",
    "held-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: held\\nVersion: 1\\n",
    "held-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}}
def build_wheel(directory, settings=None, metadata=None):
    folder = pathlib.Path({folder!r})
    (folder / "begun").touch()
    while (folder / "hold").exists():
        time.sleep(0.05)
    name = "held-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as archive:
        for file, text in FILES.items():
            archive.writestr(file, text)
        archive.writestr("held-1.dist-info/RECORD", "".join(f"{{file}},,\\n" for file in FILES))
    return name
"""


def hold_install(code: Path, folder: Path) -> None:
    """Adds requirements to a folder of code. Their build makes `folder/begun`, and waits while `folder/hold` exists."""
    package = code / "held"
    package.mkdir(parents=True)
    (folder / "hold").touch()
    (code / "requirements.txt").write_text("./held\n")
    (package / "backend.py").write_text(_BACKEND.format(folder=str(folder)))
    system = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    (package / "pyproject.toml").write_text(system)
