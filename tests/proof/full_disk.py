"""Words that have a command run where nothing can be written: in a mount namespace with full disks.

`/tmp` and the working directory are a full tmpfs, `/dev/shm` is one of 1 MB, and what the command prints to its log
goes to the full disk too when `log` is true. Needs root.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = """
set -e
full=$1 log=$2; shift 2
mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs "$full"
mount -t tmpfs -o size=1m tmpfs /dev/shm
: > "$full/log"
head -c 1048576 /dev/zero > "$full/filler" 2> /dev/null || true
export TMPDIR=$full
cd "$full"
if [ "$log" = 1 ]; then exec "$@" > "$full/log" 2>&1; fi
exec "$@"
"""


def with_full_disk(mount_point: Path, *, log: bool) -> list[str]:
    """Returns the words; the command keeps its process id.

    Args:
        mount_point: an empty directory; the full disk is mounted there, for the command only.
        log: whether the command's output goes there, too.
    """
    return ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(mount_point), str(int(log))]
