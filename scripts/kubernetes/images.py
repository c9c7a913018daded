"""Makes the archive of an image of one layer, for `ctr images import`.

images.py OUT.tar NAME [--file /path=source] [--command word]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from pathlib import Path

# What a container's root needs, so that the runtime and a pod's volumes can be mounted on it.
FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var")
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]


def layer(files: dict[str, Path]) -> bytes:
    """Returns a layer's tar: the folders of a root, and `files` by their path in it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, source in files.items():
            _add(tar, path.lstrip("/"), source.read_bytes(), mode=0o755)
    return made.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(data))


def write_image(out: Path, name: str, files: dict[str, Path], command: list[str]) -> None:
    """Writes an archive in the format of `docker save`."""
    blob = layer(files)
    digest = hashlib.sha256(blob).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ENVIRONMENT, **({"Cmd": command} if command else {})},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(out, "w") as tar:
        _add(tar, config_name, text)
        _add(tar, f"{digest}/layer.tar", blob)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--file", action="append", default=[], help="/path/in/the/image=source")
    parser.add_argument("--command", action="append", default=[], help="a word of the command that it runs")
    given = parser.parse_args()
    files = dict(each.split("=", 1) for each in given.file)
    write_image(given.out, given.name, {path: Path(source) for path, source in files.items()}, given.command)


if __name__ == "__main__":
    main()
