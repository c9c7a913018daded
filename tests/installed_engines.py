"""Engines that stand in the metadata of a package of somebody else, as pip leaves it."""

from __future__ import annotations

from pathlib import Path


def install_engine(folder: Path, name: str, text: str = "") -> None:
    """Makes `folder`, for PYTHONPATH, one from which headrace takes the engine `name`: the module NAME_engine.

    Args:
        folder: of packages; made where it is not there.
        name: of the engine.
        text: of the module; empty where another folder has it.
    """
    metadata = folder / f"{name}_engine-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}_engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[headrace.engines]\n{name} = {name}_engine\n")
    if text:
        (folder / f"{name}_engine.py").write_text(text)
