"""The mounts of a process, as the kernel lists them."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import pytest

from headrace.instance.channels import mounts
from headrace.instance.channels.mountinfo import Mount, read_mounts

LINES = [
    r"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue",
    r"40 35 0:31 / /mnt/a\040b\134c\011d rw - tmpfs  rw",
    # Docker Desktop under WSL 2: blanks in the options are not escaped.
    r"41 35 0:32 / /Docker/host rw - 9p drvfs rw,aname=drvfs;path=C:\Program Files\Docker\res;symlinkroot=/mnt/",
    "42 35 0:33 / /mnt/line\u2028\x85\x0cfeed rw - fuse.headrace headrace rw",
]


def test_mounts_are_read_whatever_their_names_and_options():
    assert list(read_mounts("\n".join(LINES) + "\n")) == [
        Mount("/mnt1", "/mnt2", "ext3", "rw,errors=continue"),
        Mount("/", "/mnt/a b\\c\td", "tmpfs", "rw"),
        Mount("/", "/Docker/host", "9p", r"rw,aname=drvfs;path=C:\Program Files\Docker\res;symlinkroot=/mnt/"),
        Mount("/", "/mnt/line\u2028\x85\x0cfeed", "fuse.headrace", "rw"),
    ]


def test_the_mounts_of_this_process_have_the_root():
    assert "/" in {mount.point for mount in read_mounts()}


def test_a_tool_that_does_not_end_is_named_and_the_mount_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tool := tmp_path / "fusermount3").write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr(mounts, "_TOOL_SECONDS", 0.2)
    monkeypatch.setattr(mounts, "tool", lambda: str(tool))
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EPERM)  # as for an ordinary user
    assert mounts.unmount(tmp_path / "nothing") == f"{tool} had not ended after 0.2 s"
