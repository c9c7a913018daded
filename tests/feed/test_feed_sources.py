"""Counted sources: what is in the shards is what comes, by number, in every format; broken ones are named."""

from __future__ import annotations

import collections
import contextlib
import copy
import ctypes
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import SOAK
from feed_servers import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from source_data import count_reads, fill_tars, tar_rows, write_shard, write_tar

from headrace import errors, feed
from headrace.errors import PipelineError, ShardError
from headrace.feed.sources import byte_ranges, index_shards
from headrace.feed.sources.byte_ranges import Counted, pack, sample_of, stamp_of, unpack
from headrace.feed.sources.open_source import OPEN_SHARDS
from headrace.feed.sources.shard_index import ShardIndex
from headrace.instance.files import INDEX_FOLDER
from needs import require

COUNTS = {"a": 7, "b": 0, "c": 23}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_rows_of_tars_are_their_members_by_name_in_any_form_of_tar(form: int, tmp_path: Path) -> None:
    long = "folder/" + "x" * (150 if form != tarfile.USTAR_FORMAT else 60) + "/ä"
    rows = [
        {"__key__": "one", "jpg": b"1", "json": b"{}"},
        {"__key__": long, "seg.png": b"2" * 600, "JPG": b""},
        {"__key__": "three", "cls": b"x" * 512},
    ]
    write_tar(tmp_path / "s.tar", rows, form)
    with tarfile.open(tmp_path / "s.tar", "a", format=form) as tar:
        folder = tarfile.TarInfo("more.d")
        folder.type = tarfile.DIRTYPE
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "one.jpg"
        for member in (folder, link, tarfile.TarInfo("README"), tarfile.TarInfo("__about__.x__")):
            tar.addfile(member)
    rows[1] = {"__key__": long, "seg.png": b"2" * 600, "jpg": b""}
    assert list(feed.tar(tmp_path)) == [*rows, {"__key__": "link", "jpg": b"1"}]


def test_a_tar_of_gnu_s_base_256_sizes_is_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", tar_rows("a", 2), tarfile.GNU_FORMAT)
    whole = bytearray(path.read_bytes())
    size = int(whole[124:135], 8)
    whole[124:136] = b"\x80" + size.to_bytes(11, "big")
    whole[148:156] = b"        "
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    path.write_bytes(whole)
    assert list(feed.tar(tmp_path)) == tar_rows("a", 2)


def test_shards_are_in_the_order_of_their_names_and_rows_are_found_by_number(tmp_path: Path) -> None:
    source = feed.tar(fill_tars(tmp_path, COUNTS))
    expected = tar_rows("a", 7) + tar_rows("c", 23)
    assert len(source) == 30
    assert source.__shards__() == [("a.tar", 7), ("b.tar", 0), ("c.tar", 23)]
    assert [source[row] for row in range(30)] == expected == list(source)
    assert [source[row] for row in (29, 0, 8, 7, -1)] == [expected[row] for row in (29, 0, 8, 7, -1)]
    for beyond in (30, -31):
        with pytest.raises(IndexError, match=f"index {beyond} is out of range for 30 rows"):
            source[beyond]


def test_a_row_follows_the_one_before_without_a_read_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"__key__": f"{row}", "txt": b"%d" % row * 50} for row in range(200)]
    source = feed.tar(write_tar(tmp_path / "s.tar", rows).parent)
    reads = count_reads(monkeypatch)
    assert list(source) == rows
    assert len(reads) == 1
    del reads[:]
    assert [source[row] for row in (150, 20, 90)] == [rows[150], rows[20], rows[90]]
    assert len(reads) <= 3


@pytest.mark.parametrize("writer", ["json", "crlf"])
def test_rows_of_json_lines_are_their_values_and_empty_lines_are_none(writer: str, tmp_path: Path) -> None:
    values: list[Any] = [{"text": "ä\n"}, [1, 2.5, None], "word", 7, {"long": "x" * 5000}]
    end = "\r\n" if writer == "crlf" else "\n"
    text = end + end.join(json.dumps(value) for value in values[:3]) + end * 3 + json.dumps(values[3]) + end
    (tmp_path / "a.jsonl").write_text(text, newline="")
    (tmp_path / "b.jsonl").write_text(json.dumps(values[4]))
    (tmp_path / "c.jsonl").write_text("")
    source = feed.jsonl(tmp_path)
    assert list(source) == values
    assert source.__shards__() == [("a.jsonl", 4), ("b.jsonl", 1), ("c.jsonl", 0)]


@settings(deadline=None, max_examples=150)
@given(
    lines=st.lists(st.sampled_from(["", "\r", " ", "\t \r", "1", '  "abc"', "[2, 3]\r"]), max_size=30),
    last=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_lines_are_found_wherever_a_chunk_of_the_file_ends(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], last: bool, chunk: int
) -> None:
    from headrace.feed.sources import json_lines

    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    data = ("\n".join(lines) + ("\n" if last and lines else "")).encode()
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_CHUNK", chunk)
        rows, columns = json_lines.index(path)
    begin = columns["begin"].tolist()
    found = [data[one:other].strip() for one, other in itertools.pairwise(begin)]
    expected = [line.strip().encode() for line in lines if line.strip()]
    assert found == expected
    assert rows == len(expected)


def test_rows_of_parquet_are_their_columns_also_when_row_groups_do_not_fit_in_memory(tmp_path: Path) -> None:
    require("pyarrow")
    import pyarrow
    from pyarrow import parquet

    rows = [{"id": row, "text": f"w{row}" * 20, "tokens": [row, row + 1], "pair": {"a": row}} for row in range(100)]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:60]), tmp_path / "a.parquet", row_group_size=13)
    parquet.write_table(pyarrow.Table.from_pylist(rows[60:]), tmp_path / "b.parquet", row_group_size=40)
    order = np.random.default_rng(3).permutation(100).tolist()
    for memory in (1, 3000, 256 << 20):
        source = feed.parquet(tmp_path, memory=memory)
        for row in order:
            found = source[row]
            assert isinstance(found["tokens"], np.ndarray)
            assert found | {"tokens": found["tokens"].tolist()} == rows[row]
        groups = source._form._groups  # type: ignore[attr-defined]
        assert groups._bytes == sum(size for _, size in groups._held.values())
        assert groups._bytes <= memory or len(groups._held) == 1
        assert len(groups._held) == {1: 1, 256 << 20: 6}.get(memory, len(groups._held))
    assert feed.parquet(tmp_path, columns=["id"])[61] == {"id": 61}
    with pytest.raises(ShardError, match="has no column 'wrong'; it has id, text"):
        feed.parquet(tmp_path, columns=["wrong"])[0]
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ShardError, match=r"1 of 3 shards cannot be used: .*c\.parquet"):
        feed.parquet(tmp_path)


def test_rows_of_arrow_files_and_streams_lie_in_mapped_memory(tmp_path: Path) -> None:
    require("pyarrow")
    import pyarrow

    table = pyarrow.Table.from_pylist([{"id": row, "none": [None, 1], "x": [0.5, float(row)]} for row in range(50)])
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table[:30], max_chunksize=7)
    with pyarrow.ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table[30:], max_chunksize=7)
    source = feed.arrow(tmp_path)
    assert source.__shards__() == [("a.arrow", 30), ("b.arrow", 20)]
    assert [source[row]["id"] for row in range(50)] == list(range(50))
    assert source[29]["none"] == [None, 1]
    assert source[31]["x"].flags.writeable
    assert source[31]["x"].tolist() == [0.5, 31.0]
    (tmp_path / "c.arrow").write_bytes(b"ARROW1 nothing")
    with pytest.raises(ShardError, match=r"c\.arrow is no Arrow file"):
        feed.arrow(tmp_path)


@pytest.mark.parametrize("name", ["a.arrow", "b.arrow"])
def test_an_arrow_file_that_is_cut_anywhere_is_named_and_never_shorter(tmp_path: Path, name: str) -> None:
    require("pyarrow")
    import pyarrow

    table = pyarrow.Table.from_pylist([{"id": row, "word": f"w{row}"} for row in range(40)])
    path = tmp_path / name
    make = pyarrow.ipc.new_file if name == "a.arrow" else pyarrow.ipc.new_stream
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    whole = path.read_bytes()
    for cut in range(1, len(whole), 1 if SOAK else 211):
        path.write_bytes(whole[:cut])
        try:
            rows = [row["id"] for row in feed.arrow(tmp_path)]
        except ShardError as error:
            assert f"{name} is no Arrow file, or is broken" in str(error)  # noqa: PT017
        else:  # batches that are whole: as much as a writer that was stopped between two has written
            assert name == "b.arrow", cut
            assert rows in [list(range(count)) for count in (0, 16, 32, 40)], cut


def test_a_dataset_of_hugging_face_on_disk_is_a_source(tmp_path: Path) -> None:
    require("datasets")
    program = Path(__file__).with_name("hugging_face_rows.py")
    done = subprocess.run([sys.executable, str(program), str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_batches_stay_inside_shards_and_maps_follow_each_other(tmp_path: Path) -> None:
    source = feed.tar(fill_tars(tmp_path, COUNTS)).map(lambda row: int(row["cls"])).batch(5).map(sum)
    assert source.__shards__() == [("a.tar", 2), ("b.tar", 0), ("c.tar", 5)]
    assert list(source) == [10, 11, 10, 35, 60, 85, 63]
    with pytest.raises(ValueError, match="at least 1"):
        source.batch(0)
    with pytest.raises(PipelineError, match="joins the rows of a source") as found:
        feed.tar(tmp_path).filter(bool).batch(5)
    assert "before them" in str(found.value.hint)


def test_a_file_that_is_open_until_the_interpreter_ends_is_closed_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some")
    file = byte_ranges.CountedFile(path, Counted(stamp_of(path), 0, sample_of(path)))
    descriptor = file.descriptor
    monkeypatch.setattr(byte_ranges, "os", None)  # as the interpreter does
    file.__del__()
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_no_more_than_some_shards_are_open_at_once(tmp_path: Path) -> None:
    count = OPEN_SHARDS + 20
    for shard in range(count):
        (tmp_path / f"{shard:04}.jsonl").write_text(f"{shard}")
    source = feed.jsonl(tmp_path)
    assert list(source) == list(range(count)) == [source[row] for row in range(count)]
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]  # noqa: PTH208
    assert sum(Path(file).parent == tmp_path.resolve() for file in files) == OPEN_SHARDS
    assert pickle.loads(pickle.dumps(source))[5] == 5
    assert len(pickle.dumps(source)) < 20_000


# Broken shards


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4000])


def _cut_at_a_member(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 512 + int(path.read_bytes()[124:135], 8) + 511 & ~511])


def _flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[3] ^= 1
    path.write_bytes(whole)


def _flip_later(path: Path) -> None:
    with tarfile.open(path) as tar:
        at = tar.getmembers()[3].offset
    whole = bytearray(path.read_bytes())
    whole[at + 126] ^= 1
    path.write_bytes(whole)


def _zip(path: Path) -> None:
    import gzip

    path.write_bytes(gzip.compress(path.read_bytes()))


def _joined(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole)  # as cat does it


def _twice(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name in ("a.jpg", "a.JPG"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.promise(
    "feed-formats", "an index that is torn, damaged or old is not used; a broken shard is named with offset"
)
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (_cut, r"b\.tar at offset \d+: .*cut off"), (_cut_at_a_member, r"b\.tar at offset \d+: .*cut off"),
        (_flip, r"b\.tar at offset 0: this is no tar file"), (_flip_later, r"b\.tar at offset [1-9]\d*: no header"),
        (_zip, r"b\.tar at offset 0: this is no tar file, or a compressed one"),
        (_joined, r"b\.tar at offset [1-9]\d*: something stands behind the mark of the tar file's end"),
        (_twice, r"b\.tar at offset 512: row 'a' has the field 'jpg' twice"), (_empty, r"b\.tar at offset 0: it ends"),
    ],
)  # fmt: skip
def test_a_broken_tar_is_named_with_the_offset(harm: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    fill_tars(tmp_path, {"a": 4, "b": 9})
    harm(tmp_path / "b.tar")
    with pytest.raises(ShardError, match=rf"1 of 2 shards cannot be used: .*{told}"):
        feed.tar(tmp_path)
    (tmp_path / "b.tar").unlink()
    assert len(feed.tar(tmp_path)) == 4


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jsonl", ["a"]), ("**/*.jsonl", ["a", "d/b"]), ("*/*.jsonl", ["d/b"]), (".h*.jsonl", [".hidden"]),
        (".c/*.jsonl", [".c/e"]), ("**/.h*.jsonl", [".hidden"]), ("?a.jsonl", None), ("[.]hidden.jsonl", None),
    ],
)  # fmt: skip
def test_hidden_shards_are_left_out_as_in_a_shell(pattern: str, names: list[str] | None, tmp_path: Path) -> None:
    for name in ("a", ".a", "._a", ".hidden", "d/b", "d/._b", ".c/e", ".c/.f"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"{name}"\n')
    (tmp_path / "empty").mkdir()
    if names is None:
        with pytest.raises(ShardError, match="matches"):
            feed.jsonl(tmp_path, pattern)
    else:
        source = feed.jsonl(tmp_path, pattern)
        assert sorted(source[row] for row in range(len(source))) == sorted(names)


def _without_root_s_rights() -> None:
    """Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of what is executed next: root may then not read everything."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP


FOLDERS = """
import itertools, sys
from pathlib import Path
from headrace import feed
for number, (rights, pattern) in enumerate(itertools.product((0o000, 0o111, 0o444), sys.argv[2:])):
    home = Path(sys.argv[1]) / str(number)
    for name in ("a", "day1/b", "day2/c", ".hidden/d"):
        path = home / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\\n")
    (home / "day2").chmod(rights)
    (home / ".hidden").chmod(0)
    try:
        print(len(feed.jsonl(home, pattern)))
    except feed.ShardError as error:
        print("named" if f"the folder {home / 'day2'} cannot be read" in error.message else error.message)
"""


def test_a_folder_that_cannot_be_read_is_never_passed_over(tmp_path: Path) -> None:
    told = {"**/*.jsonl": "named", "day2/*.jsonl": "named", "*/*.jsonl": "named", "*.jsonl": "1", "day1/*.jsonl": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FOLDERS, str(tmp_path), *told],
        capture_output=True, text=True, check=True, preexec_fn=_without_root_s_rights,
    )  # fmt: skip
    assert done.stdout.split() == [*told.values()] * 3


@pytest.mark.parametrize("pattern", ["", "***/a", "/a/*.jsonl"])
def test_what_is_no_pattern_is_said(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ShardError, match="is no pattern of names"):
        feed.jsonl(tmp_path, pattern)


def test_a_line_that_is_no_json_is_named_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('1\n{"a": \n3\n')
    source = feed.jsonl(tmp_path)
    assert (source[0], source[2]) == (1, 3)
    with pytest.raises(ShardError, match=r"a\.jsonl at offset 2, row 1: Expecting value at character \d+$"):
        source[1]
    with pytest.raises(ShardError, match=r"a\.jsonl at offset 2, row 1: .*\(raised on worker 0 over index \d+\)$"):
        list(feed.DataLoader(source, num_workers=1))
    (tmp_path / "a.jsonl").write_bytes(b"\x1f\x8b")
    with pytest.raises(ShardError, match="is compressed"):
        feed.jsonl(tmp_path)


def test_no_folder_no_shard_and_an_address_are_said(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="there is no folder"):
        feed.tar(tmp_path / "none")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ShardError, match=r"no file in .* matches '\*\.tar'; there is: a\.txt"):
        feed.tar(tmp_path)
    with pytest.raises(ShardError, match=r"a\.txt is a file(.|\n)*'a\.txt'"):
        feed.tar(tmp_path / "a.txt")
    (tmp_path / "b.tar.gz").touch()
    with pytest.raises(ShardError, match=r"there is: a\.txt, b\.tar\.gz\n.*decompress"):
        feed.tar(tmp_path)
    with pytest.raises(ShardError, match=r"ftp://bucket/x is not a folder(.|\n)*s3://"):
        feed.tar("ftp://bucket/x")


def test_a_shard_that_is_changed_while_it_is_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    source = feed.jsonl(tmp_path)
    (tmp_path / "a.jsonl").write_text("1\n2\n3\n")
    with pytest.raises(ShardError, match="was changed since its rows were counted"):
        source[0]
    assert len(feed.jsonl(tmp_path)) == 3


def test_a_shard_that_changes_while_slices_are_compared_says_nothing_of_the_dataset(tmp_path: Path) -> None:
    path = write_shard("jsonl", tmp_path / "a.jsonl")
    source = feed.jsonl(tmp_path)
    with feed.DataLoader(source, batch_size=4, num_workers=2, shuffle=True, seed=1, verify=1.0) as loader:
        rows = iter(loader)
        next(rows)
        path.write_text(path.read_text().replace("1499", "2499"))
        with warnings.catch_warnings(action="error"), pytest.raises(ShardError, match="was changed"):
            collections.deque(rows, maxlen=0)
        assert not loader.stats()["purity_failures"]


@pytest.mark.parametrize("kind", ["tar", "jsonl", "parquet", "arrow"])
def test_a_source_that_is_dropped_leaves_no_file_open(kind: str, tmp_path: Path) -> None:
    path = write_shard(kind, tmp_path / f"a.{kind}")
    source = getattr(feed, kind)(tmp_path)
    for source in (copy.deepcopy(source) for _ in range(3)):
        source[0]
        assert path in _open_files()
    del source
    # A thread of pyarrow's pool may be the last to let go of its file.
    wait_until(lambda: path not in _open_files(), "the file to be closed")


def _open_files() -> set[Path]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since by another thread
            found.add(path.readlink())
    return found


@pytest.mark.parametrize("kind", ["tar", "jsonl", "parquet", "arrow"])
def test_a_shard_that_is_removed_or_replaced_stays_what_it_was_for_who_has_it_open(kind: str, tmp_path: Path) -> None:
    path = write_shard(kind, tmp_path / f"a.{kind}")
    source = getattr(feed, kind)(tmp_path)
    expected = list(source)
    write_shard(kind, tmp_path / "other", "row").replace(path)
    assert list(source) == expected
    path.unlink()
    assert list(source) == expected
    with pytest.raises(ShardError, match="cannot be read"):
        copy.deepcopy(source)[0]  # opens it anew


# The index


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**63)), max_size=5))
def test_columns_come_back_as_they_were_packed(columns: dict[str, list[int]]) -> None:
    given = {name: np.array(column, np.uint64) for name, column in columns.items()}
    found = unpack(memoryview(pack(given)))
    assert {name: column.tolist() for name, column in found.items()} == columns


@pytest.fixture
def indexed(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of shards, and its index."""
    folder = fill_tars(tmp_path / "data", COUNTS)
    feed.tar(folder)
    [index] = (folder / INDEX_FOLDER).glob("*.index")
    return folder, index


@pytest.mark.promise(
    "feed-formats", "an index that is torn, damaged or old is not used; a broken shard is named with offset"
)
def test_an_index_is_made_once_and_again_only_of_what_is_new(
    indexed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = indexed
    made: list[str] = []
    one = index_shards.index_one
    monkeypatch.setattr(index_shards, "index_one", lambda *given: made.append(given[2]) or one(*given))
    before = file.read_bytes()
    feed.tar(folder)
    assert (made, file.read_bytes()) == ([], before)
    write_tar(folder / "c.tar", tar_rows("c", 5))
    write_tar(folder / "d.tar", tar_rows("d", 1))
    (folder / "b.tar").unlink()
    assert feed.tar(folder).__shards__() == [("a.tar", 7), ("c.tar", 5), ("d.tar", 1)]
    assert sorted(made) == ["c.tar", "d.tar"]
    os.utime(folder / "a.tar", ns=(0, 1))
    assert len(feed.tar(folder)) == 13
    assert made[2:] == ["a.tar"]


class DamagedPart(Exception):
    """A read was refused, because what the index holds of a shard is damaged."""


def _read(folder: Path) -> list[Any]:
    try:
        return list(feed.tar(folder))
    except ShardError as error:
        raise (DamagedPart if "is damaged: the part of" in error.message else AssertionError) from error


@pytest.mark.promise(
    "feed-formats", "an index that is torn, damaged or old is not used; a broken shard is named with offset"
)
def test_an_index_that_is_torn_or_damaged_anywhere_is_never_used(indexed: tuple[Path, Path]) -> None:
    folder, file = indexed
    whole = file.read_bytes()
    expected = tar_rows("a", 7) + tar_rows("c", 23)
    for size in {0, 1, 16, 24, 60, len(whole) // 2, len(whole) - 1}:
        file.write_bytes(whole[:size])
        assert ShardIndex.open(file) is None
        assert list(feed.tar(folder)) == expected
    for at in range(0, len(whole), 37):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with contextlib.suppress(DamagedPart):
            assert _read(folder) == expected
    file.unlink()
    assert list(feed.tar(folder)) == expected


def test_where_the_folder_cannot_be_written_the_index_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    (folder / INDEX_FOLDER).write_text("a file is in the way, for root too")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(feed.tar(folder)) == 30
    [file] = (tmp_path / "cache").rglob("*.index")
    made = file.stat().st_mtime_ns
    assert len(feed.tar(folder)) == 30
    assert file.stat().st_mtime_ns == made
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "a.tar"))
    with pytest.raises(ShardError, match=r"can be kept nowhere: .*headrace-index: .*; .*a\.tar"):
        feed.tar(folder)


def test_processes_share_the_work_and_of_several_that_begin_together_one_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {f"{shard:02}": 3 for shard in range(8)}
    expected = [row for shard in counts for row in tar_rows(shard, 3)]
    monkeypatch.setattr(index_shards, "_ALONE_SECONDS", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    folder = fill_tars(tmp_path / "helped", counts)
    assert list(feed.tar(folder)) == expected
    (folder / "99.tar").write_bytes(b"broken")
    with pytest.raises(ShardError, match=r"1 of 9 .*99\.tar"):
        feed.tar(folder)
    monkeypatch.undo()
    folder = fill_tars(tmp_path / "together", counts)
    program = (
        "import sys, time; from headrace import feed; from headrace.feed.sources import index_shards as i\n"
        "one = i.index_one\n"
        "def told(*given): print(given[2]); time.sleep(0.01); return one(*given)\n"
        "i.index_one = told\n"
        "assert len(feed.tar(sys.argv[1])) == 24"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [process.communicate()[0].split() for process in begun]
    assert all(process.returncode == 0 for process in begun)
    assert sorted(itertools.chain(*told)) == [f"{shard}.tar" for shard in counts]


def test_walking_headers_reads_no_contents(tmp_path: Path) -> None:
    """A tar of 64 GB, most of it a hole, is indexed at once."""
    path, size = tmp_path / "huge.tar", 1 << 30
    with path.open("wb") as file:
        for row in range(64):
            member = tarfile.TarInfo(f"{row}.bin")
            member.size = size
            file.write(member.tobuf())
            file.seek(size, os.SEEK_CUR)
        file.write(bytes(1024))
    began = time.process_time()
    assert len(feed.tar(tmp_path)) == 64
    assert time.process_time() - began < 1.0


def test_mistakes_are_told_with_what_to_write(tmp_path: Path) -> None:
    for folder, pattern in ((None, "*"), (3, "*"), (tmp_path, 3)):
        with pytest.raises(TypeError, match="opened by their folder, a path or 's3://bucket/prefix/', and a pattern"):
            feed.jsonl(folder, pattern)  # type: ignore[arg-type]
    with pytest.raises(feed.ShardError, match=r"write objects as text, not as a Path: 's3://bucket/prefix/'"):
        feed.jsonl(Path("s3://bucket/x"))
    for limit in ("1GB", -1, 0, True, 1.5):
        with pytest.raises(ValueError, match="memory, a number of bytes, must be an integer of at least 1"):
            feed.parquet(tmp_path, memory=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"columns must be a list of names, got 'text': write \['text'\]"):
        feed.parquet(tmp_path, columns="text")
    with pytest.raises(TypeError, match=r"shuffle must be True, False or a feed.Window\(run, runs\), got 'window'"):
        feed.DataLoader([1, 2], batch_size=2, shuffle="window")  # type: ignore[arg-type]
    with pytest.raises(feed.PipelineError, match="needs the name of an input channel"):
        feed.channel("")
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf{}\n{}\n")
    with pytest.raises(feed.ShardError, match=r"row 0: it begins with a byte order mark\nhint: write the"):
        feed.jsonl(tmp_path)[0]
    assert feed.jsonl(tmp_path)[1] == {}


def test_shards_of_another_format_are_told(tmp_path: Path) -> None:
    for number in (1, 200):
        (tmp_path / "a.tar").write_text('{"id": 1}\n' * number)
        with pytest.raises(ShardError, match=r"a\.tar at offset 0: this is no tar file"):
            feed.tar(tmp_path)
    fill_tars(tmp_path / "tars", {"b": 3})
    with pytest.raises(ShardError, match=r"row 0: .*\nhint: this is no text: feed\.tar, feed\.parquet and feed\.arrow"):
        list(feed.jsonl(tmp_path / "tars", "*.tar"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_flat_map_without_a_return_is_told_with_its_function(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")

    def forgotten(row: int) -> None: ...

    loader = feed.DataLoader(feed.jsonl(tmp_path).flat_map(forgotten), 2, num_workers=workers, num_shards=1)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"\.flat_map\(\) takes a function that returns an iterable.*forgotten returned None"
    ):
        list(loader)


def test_errors_of_the_feed_are_found_there() -> None:
    for name in ("PipelineError", "PositionError", "ShardError", "WorkerError", "WorkersLost"):
        assert getattr(feed, name) is getattr(errors, name)


def test_a_kind_of_shards_is_one_file_and_one_row(tmp_path: Path) -> None:
    """With the row, `feed.toy` is there, a loader reads it with workers, and `headrace feed index` knows it."""
    (tmp_path / "a.toy").write_bytes(bytes(range(5)))
    (tmp_path / "b.toy").write_bytes(b"xyz")
    program = """
import sys
from headrace.feed import sources
sources.KINDS["toy"] = "toy_shards"
from headrace import feed
from headrace.cli.main import main
with feed.DataLoader(feed.toy(sys.argv[1]), 3, num_workers=1) as loader:
    print([batch.tolist() for batch in loader])
print(feed.toy.__module__)
sys.argv[1:] = ["feed", "index", sys.argv[1], "--pattern", "*.toy"]
main()
"""
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    assert told.stdout.splitlines() == [
        "[[0, 1, 2], [3, 4, 120], [121, 122]]",
        "toy_shards",
        f"8 rows in {tmp_path}",
    ], told.stderr
