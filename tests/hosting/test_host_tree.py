"""What a host made comes to the leader as it is: whole, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.hosting.helpers.artefacts import merge
from headrace.hosting.machines.host_tree import PIECE_BYTES, TreePiece, all_has_come, made_by, put

HOST = "algo-2"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A host's /opt/ml with all that a program may leave there."""
    base = tmp_path / "ml"
    for folder in ("model/deep/empty", "output/data", "checkpoints"):
        (base / folder).mkdir(parents=True)
    (base / "checkpoints/best").write_text("weights")
    (base / "model/large").write_bytes(os.urandom(PIECE_BYTES) * 2 + b"the end")
    (base / "model/exact").write_bytes(bytes(PIECE_BYTES))
    (base / "model/none").touch(mode=0o640)
    (base / "model/inside").symlink_to("deep")
    (base / "model/outside").symlink_to("../checkpoints/best")
    (base / "model/nowhere").symlink_to("missing/thing")
    os.mkfifo(base / "output/data/pipe")
    (Path(os.fsdecode(os.fsencode(base) + b"/output/data/caf\xe9"))).write_text("latin")
    (base / "output/failure").write_text("why")
    return base


def seen(host: str, base: Path) -> list[tuple[object, ...]]:
    """What the merge of all hosts would store of one."""
    found: list[tuple[object, ...]] = []
    for folder in ("model", "output/data"):
        merged = merge([(host, base, base / folder)])
        found += [
            (each.name, each.kind, each.target, each.path.read_bytes() if each.kind == "file" else b"")
            for each in merged.entries
        ]
        found.append(tuple(merged.left_out))
    return found


def test_it_is_stored_as_if_it_had_been_made_on_the_leaders_machine(base: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    for piece in made_by(HOST, base):
        put(there, piece)
        put(there, piece)  # a connection broke after it had come
    all_has_come(there)
    assert seen(HOST, there) == seen(HOST, base)
    assert (there / "output/failure").read_text() == "why"
    assert (there / "model/none").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in there.iterdir()) == ["model", "output"]


def test_a_file_is_there_when_all_of_it_has_come(base: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    large = [piece for piece in made_by(HOST, base) if piece.path == b"model/large"]
    assert len(large) == 3
    for piece in large[:-1]:
        put(there, piece)
    assert not (there / "model/large").exists()
    put(there, large[-1])
    assert (there / "model/large").read_bytes() == (base / "model/large").read_bytes()


@pytest.mark.parametrize("path", [b"code/train.py", b"model/../code/x", b"/etc/x", b"input/data/headrace/secret"])
def test_nothing_is_put_where_no_host_makes_anything(tmp_path: Path, path: bytes) -> None:
    with pytest.raises(ValueError, match="nothing that a host makes"):
        put(tmp_path / "there", TreePiece(path, "file", data=b"x"))


@pytest.mark.promise("security", "an archive that leads out of its folder is refused before anything is written")
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(there, TreePiece(b"model/link", "link", data=os.fsencode(elsewhere)))
    with pytest.raises(ValueError, match="leads out of the host's tree"):
        put(there, TreePiece(b"model/link/x", "file", data=b"x"))
    for kind in ("file", "folder", "link", "other"):
        with pytest.raises(ValueError, match="leads out of the host's tree"):
            put(there, TreePiece(b"model/link/deep/er/x", kind, data=b"x"))
    put(there, TreePiece(b"model/link", "file", data=b"x"))
    assert (there / "model/link").read_bytes() == b"x"
    assert list(elsewhere.iterdir()) == []


def test_what_cannot_be_stored_on_its_host_is_named_by_the_leader_or_ends_the_delivery(
    base: Path, tmp_path: Path
) -> None:
    (base / "model/bad").symlink_to("/tmp/of the host")
    there = tmp_path / "there"
    for piece in made_by(HOST, base):
        put(there, piece)
    ((_, lost),) = merge([(HOST, there, there / "model")]).lost
    assert (lost.name, "/tmp/of the host" in lost.target) == ("bad", True)
    (base / "output/data/pipe").unlink()
    (base / "output/data" / os.fsdecode(b"caf\xe9")).unlink()
    (base / "output/data").rmdir()
    (base / "output/data").touch()
    with pytest.raises(StorageError, match="output/data cannot be stored: it is no folder"):
        list(made_by(HOST, base))
