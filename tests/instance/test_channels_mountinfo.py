"""The mounts of a process, as the kernel lists them."""

from __future__ import annotations

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
