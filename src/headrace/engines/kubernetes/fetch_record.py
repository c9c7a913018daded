"""Brings the record of a run from the leader's pod into the run's directory on this machine, while it grows.

Every request says how much of each file is here already, so one that breaks off costs nothing, and several processes
may fetch one run: a lock lets one of them do it. What has arrived whole is added; of an answer that broke off, nothing.

The end of the run is the last that arrives in the record. Before it, the files of output/ are here, and the pod and
everybody else who looks has been told; until then it lies in ``engine/end_of_record``.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.engines.kubernetes.cluster import Cluster, KubernetesUnreachable
from headrace.engines.kubernetes.send_record import (
    MODULE,
    SENT_WHOLE,
    OutputFile,
    digests,
    encode_known,
    is_output,
)
from headrace.engines.platform_news import OWN_EVENTS
from headrace.errors import RecordDamaged
from headrace.private_folders import write_atomically
from headrace.runs import RunPaths
from headrace.runs.record_pieces import BATCH_BYTES, known_here, take_piece
from headrace.runs.segments import Piece, decode

END = "end_of_record"  # below the run's engine directory
PART = ".part"  # ending of a file of output/ that is not whole yet
EXEC_SECONDS = 60.0
IN_POD = 'exec "$HEADRACE_PYTHON" -X utf8 -m "$@"'
_DIGESTS = msgspec.json.Decoder(dict[str, str])
_OUTPUTS = msgspec.json.Decoder(tuple[OutputFile, ...])


class FetchTrouble(KubernetesUnreachable):
    """The pod answered, but not with what was asked for. That says nothing about the run."""


def in_pod(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the command line of a module of headrace in a pod."""
    return ("sh", "-c", IN_POD, "sh", module, *arguments)


class RecordFetch:
    """Fetches from one pod. To be used while `alone`.

    Args:
        cluster: where the pod is.
        paths: the run's directory on this machine; in the pod it has the same path.
        pod: name of the leader's pod.
    """

    def __init__(self, cluster: Cluster, paths: RunPaths, pod: str) -> None:
        self._cluster = cluster
        self._paths = paths
        self._pod = pod

    def fetch(self, seconds: float) -> bool:
        """Fetches what is new. Returns whether everything is here, the end of the record in END.

        Args:
            seconds: after so long no further request begins.

        Raises:
            KubernetesUnreachable, ExecFailed, ClusterRefused: a request failed; what came before is here.
            OSError: this machine cannot keep it.
        """
        deadline = time.monotonic() + seconds
        while True:
            answer = self._answer("pieces", encode_known(known_here(self._paths, SENT_WHOLE, OWN_EVENTS)))
            try:
                header, contents = decode(answer, f"the answer of the pod {self._pod}")
            except RecordDamaged as error:  # it broke off without a sign
                raise FetchTrouble(error.message, "it is asked again later") from error
            if header.run_id != self._paths.id or any(piece.path in OWN_EVENTS for piece in header.pieces):
                raise FetchTrouble(f"the pod {self._pod} sent a record of {header.run_id}, not of {self._paths.id}")
            if header.last:
                if not self._fetch_outputs(deadline):
                    return False
                write_atomically(self._paths.engine / END, answer)
                return True
            take_all(self._paths, header.pieces, contents)
            if sum(piece.size for piece in header.pieces) < BATCH_BYTES or time.monotonic() > deadline:
                return False

    def align(self) -> None:
        """Prepares for fetching from another pod, whose record may have less than what came from the one before.

        A file that does not begin as it does here is fetched anew, and what the other pod's run had made is not mixed
        with what this one's makes. Raises as `fetch` does.
        """
        known = known_here(self._paths, SENT_WHOLE, OWN_EVENTS)
        here = digests(self._paths.root, known.sent)
        try:
            there = _DIGESTS.decode(self._answer("digests", encode_known(known)))
        except msgspec.DecodeError as error:
            raise FetchTrouble(f"the pod {self._pod} did not say what it has: {error}") from error
        for name, digest in here.items():
            if there.get(name) != digest:
                os.truncate(self._paths.root / name, 0)
        if self._paths.output.is_dir():
            shutil.rmtree(self._paths.output)

    def tell_fetched(self) -> None:
        """Tells the pod that it need not wait any more. Raises as `fetch` does."""
        self._answer("fetched")

    def _fetch_outputs(self, deadline: float) -> bool:
        """Fetches the files of output/. Returns whether all are here."""
        try:
            files = _OUTPUTS.decode(self._answer("outputs"))
        except msgspec.DecodeError as error:
            raise FetchTrouble(f"the pod {self._pod} did not list its output: {error}") from error
        for file in files:
            if not is_output(file.path):
                raise FetchTrouble(f"the pod {self._pod} names a file that is no output: {file.path!r}")
            here = self._paths.root / file.path
            while not (here.is_file() and here.stat().st_size == file.size):
                if time.monotonic() > deadline:
                    return False
                self._fetch_output(file, here)
        return True

    def _fetch_output(self, file: OutputFile, here: Path) -> None:
        part = here.with_name(here.name + PART)
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            size = out.seek(0, io.SEEK_END)
            if size > file.size:
                out.truncate(0)
                size = 0
            if size < file.size:
                self._execute(out, "output", file.path, str(size))
        if part.stat().st_size == file.size:
            part.replace(here)

    def _answer(self, what: str, *given: str) -> bytes:
        out = io.BytesIO()
        self._execute(out, what, *given)
        return out.getvalue()

    def _execute(self, out: BinaryIO, what: str, *given: str) -> None:
        end = self._cluster.execute(
            self._pod,
            in_pod(MODULE, what, str(self._paths.root), *given),
            out,
            EXEC_SECONDS,
        )
        if end.exit_code:
            words = end.stderr.strip().splitlines() or [f"exit code {end.exit_code}"]
            raise FetchTrouble(f"the pod {self._pod} cannot send the record: {words[-1]}")


def take_all(paths: RunPaths, pieces: Sequence[Piece], contents: Sequence[memoryview]) -> None:
    """Adds pieces to the record on this machine. Raises OSError, PieceMissing."""
    for piece, content in zip(pieces, contents, strict=True):
        take_piece(paths.root, piece, content)


def has_end(paths: RunPaths) -> bool:
    """Returns whether everything has been fetched, and only the end of the record is not in it yet."""
    return (paths.engine / END).exists()


def take_end(paths: RunPaths) -> None:
    """Adds the end of the record to it. To be called while `alone`. Raises OSError."""
    file = paths.engine / END
    with contextlib.suppress(FileNotFoundError):
        header, contents = decode(file.read_bytes(), str(file))
        take_all(paths, header.pieces, contents)
        file.unlink()
