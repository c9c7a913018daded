"""What may stand in a tar file, kind by kind: a row is what its members are, or an error names shard and member."""

from __future__ import annotations

import io
import itertools
import os
import random
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from source_data import count_reads

from headrace import feed
from headrace.errors import ShardError
from headrace.feed.sources import tar_shards

Row = dict[str, Any]
Content = bytes | tarfile.TarInfo


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **pax: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.pax_headers = kind, target, pax
    return member


def write(path: Path, members: Iterable[tuple[str, Content]], form: int = tarfile.PAX_FORMAT) -> Path:
    """Writes members by name: bytes, or a header of its own."""
    with tarfile.open(path, "w", format=form, errors="surrogateescape") as tar:
        for name, content in members:
            member = content if isinstance(content, tarfile.TarInfo) else info(name)
            if isinstance(content, bytes):
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def rows(folder: Path, *members: tuple[str, Content], form: int = tarfile.PAX_FORMAT) -> list[Row]:
    write(folder / "a.tar", members, form)
    source = feed.tar(folder)
    found = [source[row] for row in range(len(source))]
    assert found == list(source)
    assert source.lengths().tolist() == [sum(len(row[name]) for name in row if name != "__key__") for row in found]
    return found


def named(*names: str) -> list[tuple[str, Content]]:
    return [(name, name.encode()) for name in names]


# A row's members may lie anywhere


def test_the_members_of_a_row_come_together_wherever_they_are(tmp_path: Path) -> None:
    row = {key: {"__key__": key, "jpg": f"{key}.jpg".encode(), "cls": f"{key}.cls".encode()} for key in "012"}
    assert rows(tmp_path, *named("0.jpg", "1.jpg", "0.cls", "1.cls")) == [row["0"], row["1"]]
    del row["2"]["cls"]
    found = rows(tmp_path, *named("0.jpg", "0.cls", "1.jpg", "2.jpg", "1.cls"))
    assert found == [row["0"], row["1"], row["2"]]
    assert [list(each) for each in found] == [["__key__", "jpg", "cls"]] * 2 + [["__key__", "jpg"]]
    assert rows(tmp_path, *named("d/0.jpg", "./d/0.cls", "d//0.txt", "./d/../d/0.x")) == [
        {"__key__": "d/0", "jpg": b"d/0.jpg", "cls": b"./d/0.cls", "txt": b"d//0.txt", "x": b"./d/../d/0.x"}
    ]


@pytest.mark.promise(
    "feed-formats", "rows of tar shards are their members, whatever links lead to; an error names the member"
)
def test_rows_in_any_order_of_their_members_are_the_same_rows(tmp_path: Path, chance: random.Random) -> None:
    whole = {
        f"{number}": {name: chance.randbytes(chance.choice([0, 1, 511, 512, 40_000])) for name in ("a", "b.c", "d")}
        for number in range(20)
    }
    members = [(f"{key}.{name}", content) for key, row in whole.items() for name, content in row.items()]
    for _ in range(5):
        chance.shuffle(members)
        found = rows(tmp_path, *members)
        assert {row.pop("__key__"): row for row in found} == whole
        assert list(dict.fromkeys(name.partition(".")[0] for name, _ in members)) == [
            row["__key__"] for row in feed.tar(tmp_path)
        ]


def test_a_row_whose_members_are_far_apart_is_read_by_its_members_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    members = [(f"{row}.{name}", bytes([row]) * size) for name in ("jpg", "raw") for row in range(8)]
    write(tmp_path / "a.tar", members)
    source = feed.tar(tmp_path)
    reads = count_reads(monkeypatch)
    assert source[3] == {"__key__": "3", "jpg": b"\3" * size, "raw": b"\3" * size}
    assert reads == [size, size]


def test_a_field_that_comes_twice_is_named_with_both_places(tmp_path: Path) -> None:
    for again in ("0.jpg", "0.JPG", "./0.jpg"):
        told = r"a\.tar at offset 2048: row '0' has the field 'jpg' twice: it stands at offset 0 already"
        with pytest.raises(ShardError, match=told):
            rows(tmp_path, *named("0.jpg", "1.jpg", again))
    subprocess.run(["tar", "-rf", tmp_path / "a.tar", "-C", tmp_path, "a.tar"], check=True)
    with pytest.raises(ShardError, match=r"row '0' has the field 'jpg' twice"):
        feed.tar(tmp_path)


# Names


HIDDEN = [
    "._0.jpg", "d/._0.jpg", "d/.DS_Store", ".DS_Store", "__MACOSX/d/._0.jpg", "__MACOSX/d/0.jpg", "d/Thumbs.db",
    "d/desktop.ini", "d/.0.cls.swp", "d/.jpg", ".nfs0001.x", "d/.ipynb_checkpoints/0-checkpoint.jpg", "README",
    "d/LICENSE", "__index__.json__", "d/@eaDir/0.jpg", "d/.AppleDouble/0.jpg",
]  # fmt: skip


def test_hidden_files_and_what_file_managers_leave_are_no_rows_and_no_fields(tmp_path: Path) -> None:
    row = {"__key__": "d/0", "jpg": b"d/0.jpg", "cls": b"d/0.cls"}
    for extra in HIDDEN:
        for place in range(3):
            members = named("d/0.jpg", "d/0.cls")
            members.insert(place, (extra, b"x"))
            assert rows(tmp_path, *members) == [row], extra
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            assert rows(tmp_path, *named("d/0.jpg", "d/0.cls"), (extra, info(extra, kind, "gone"))) == [row], extra


NAMES = [
    ("0.jpg", "0", "jpg"), ("0.JPG", "0", "jpg"), ("22.05.png", "22", "05.png"), ("0.", "0", ""),
    ("/data/0.jpg", "/data/0", "jpg"), ("../0.jpg", "../0", "jpg"), ("./0.jpg", "0", "jpg"),
    ("v1.2/a/0.jpg", "v1.2/a/0", "jpg"), (".cache/0.jpg", ".cache/0", "jpg"), ("ä/é.jpg", "ä/é", "jpg"),
    ("a b\n.jpg", "a b\n", "jpg"), ("caf\udce9/\udcff.jpg", "caf\udce9/\udcff", "jpg"), ("A.jpg", "A", "jpg"),
    ("x" * 400 + "/" + "y" * 90 + ".jpg", "x" * 400 + "/" + "y" * 90, "jpg"), ("__0__.jpg", "__0__", "jpg"),
    ("__d/0.x__", "__d/0", "x__"), ("0.j\udcffg", "0", "j\udcffg"),
]  # fmt: skip


def test_a_key_is_a_name_up_to_the_first_dot_of_the_file(tmp_path: Path) -> None:
    for (name, key, field), form in itertools.product(NAMES, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        assert rows(tmp_path, (name, b"x"), form=form) == [{"__key__": key, field: b"x"}], name


@pytest.mark.parametrize("field", ["__key__", "__KEY__", "__shard__", "__url__", "__local_path__"])
def test_fields_that_are_kept_for_notes_on_a_row_are_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=rf"a\.tar at offset 1024: the member 'd/0\.{field}' would be the field"):
        rows(tmp_path, ("d/0.jpg", b"x"), (f"d/0.{field}", b"x"))


def test_a_shard_of_files_that_are_no_rows_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    for names in (["d/0", "d/1"], [".jpg"], ["README"]):
        with pytest.raises(ShardError, match=r"no member belongs to a row, as '.*' does not"):
            rows(tmp_path, *named(*names))
    assert rows(tmp_path) == rows(tmp_path, *named("__about__.x__")) == []
    assert rows(tmp_path, ("d", info("d", tarfile.DIRTYPE)), ("d/x.y", info("d/x.y", tarfile.DIRTYPE))) == []


# Links


def test_tar_s_links_are_what_they_lead_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "blobs").mkdir(parents=True)
    (data / "blobs" / "ab12").write_bytes(b"photo0")
    (data / "0.cls").write_bytes(b"7")
    os.link(data / "0.cls", data / "1.cls")
    (data / "0.jpg").symlink_to("blobs/ab12")
    (data / "1.jpg").symlink_to("0.jpg")
    (data / "latest.v2").symlink_to("blobs")  # a folder
    (data / "2.jpg").symlink_to("latest.v2/ab12")
    os.link(data / "2.jpg", data / "3.jpg", follow_symlinks=False)  # a hard link to a link
    for form in ("gnu", "posix", "ustar"):
        folder = tmp_path / form
        folder.mkdir()
        options = ["--sort=name", f"--format={form}", "-cf", folder / "a.tar", "-C", data, "."]
        subprocess.run(["tar", *options], check=True)
        assert list(feed.tar(folder)) == [
            {"__key__": "0", "cls": b"7", "jpg": b"photo0"}, {"__key__": "1", "cls": b"7", "jpg": b"photo0"},
            {"__key__": "2", "jpg": b"photo0"}, {"__key__": "3", "jpg": b"photo0"},
        ]  # fmt: skip


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_may_stand_anywhere_and_have_a_long_target(kind: bytes, tmp_path: Path) -> None:
    long = "y" * 90 + "/" + "z" * 150 + ".bin"
    target = {tarfile.SYMTYPE: f"../{long}", tarfile.LNKTYPE: long}[kind]
    link: list[tuple[str, Content]] = [("d/0.jpg", info("d/0.jpg", kind, target))]
    file: list[tuple[str, Content]] = [(long, b"content"), ("z.txt", b"z")]
    for form, members in itertools.product(
        (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT), (link + file, file + link, file[1:] + link + file[:1])
    ):
        found = {row["__key__"]: row for row in rows(tmp_path, *members, form=form)}
        assert found["d/0"] == {"__key__": "d/0", "jpg": b"content"}
        assert len(found) == 3


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_out_of_the_shard_or_to_itself_is_named(kind: bytes, tmp_path: Path) -> None:
    for target in ("gone.jpg", "/0.cls", "../0.cls", "../../etc/passwd", "/etc/passwd", "1.jpg"):
        why = "to itself" if target == "1.jpg" else "to what is not in this shard"
        with pytest.raises(ShardError, match=rf"a\.tar at offset 1024: the member '1\.jpg' is a link to '.*', {why}"):
            rows(tmp_path, ("0.cls", b"7"), ("1.jpg", info("1.jpg", kind, target)))
    with pytest.raises(ShardError, match=r"the member '1\.jpg' is a link to '2.jpg', to itself"):
        rows(tmp_path, *((f"{x}.jpg", info(f"{x}.jpg", kind, f"{3 - x}.jpg")) for x in (1, 2)))


def test_a_link_to_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"at offset 1024: the member 'b', which a link leads to, is there twice"):
        rows(tmp_path, ("b", b"1"), ("b", b"2"), ("0.jpg", info("0.jpg", tarfile.SYMTYPE, "b")))


# Other kinds of members


def raw(kind: bytes) -> Callable[[Path], None]:
    """Writes a row, and a member of a kind that the standard library does not write."""

    def harm(path: Path) -> None:
        member = info("1.jpg", kind)
        write(path, [("0.jpg", b"x"), ("1.jpg", member), ("2.jpg", b"x")])

    return harm


def pax(**headers: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        write(path, [("0.jpg", b"x"), ("1.jpg", info("1.jpg", **headers))])

    return harm


def sparse(path: Path) -> None:
    hole = path.with_name("1.jpg")
    with hole.open("wb") as file:
        file.truncate(1 << 20)
    form = "--format=gnu" if path.parent.name.endswith("0") else "--format=posix"
    subprocess.run(["tar", form, "--sparse", "-cf", path, "-C", path.parent, "1.jpg"], check=True)


NAMED = r"a\.tar at offset \d+: the member '(\./)?1\.jpg' "


@pytest.mark.promise(
    "feed-formats", "rows of tar shards are their members, whatever links lead to; an error names the member"
)
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (raw(tarfile.FIFOTYPE), NAMED + "is a FIFO, no file"), (raw(tarfile.CHRTYPE), NAMED + "is a device, no file"),
        (raw(tarfile.BLKTYPE), NAMED + "is a device, no file"), (raw(b"Z"), NAMED + "is of the kind b'Z', no file"),
        (raw(b"M"), NAMED + "goes on from another volume"), (raw(b"N"), NAMED + "is in a form that GNU tar gave up"),
        (raw(b"S"), NAMED + "is sparse"), (sparse, NAMED + "is sparse"),
        (pax(size="x"), r"a pax header that is damaged: a size of b'x'"), (pax(path="1.j\0pg"), r"NUL in its name"),
        (pax(size="100000"), NAMED + "has 100000 bytes, and only"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_field_is_named(harm: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    harm(tmp_path / "a.tar")
    with pytest.raises(ShardError, match=told):
        feed.tar(tmp_path)


def test_what_stands_beside_the_files_changes_no_row(tmp_path: Path) -> None:
    row = {"__key__": "0", "jpg": b"0.jpg"}
    beside: list[tuple[str, Content]] = [
        ("d.x", info("d.x", tarfile.DIRTYPE)), ("backup.2020", info("backup.2020", b"V")), ("d.y", info("d.y", b"D")),
        ("old.z/", info("old.z/", tarfile.AREGTYPE)), ("fifo", info("fifo", tarfile.FIFOTYPE)),
        ("README", info("README", tarfile.SYMTYPE, "gone")),
    ]  # fmt: skip
    for extra in beside:
        assert rows(tmp_path, extra, *named("0.jpg"), extra) == [row]
    for kind in (tarfile.AREGTYPE, tarfile.CONTTYPE):
        path = write(tmp_path / "a.tar", named("0.jpg"))
        whole = bytearray(path.read_bytes())
        whole[156:157] = kind
        whole[148:156] = b"        "
        whole[148:156] = b"%06o\0 " % sum(whole[:512])
        path.write_bytes(whole)
        assert list(feed.tar(tmp_path)) == [row]


def test_pax_headers_of_the_whole_archive_and_of_a_member_count(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"comment": "git", "path": "d/0.jpg"}) as tar:
        tar.addfile(info("a.b"))
        tar.addfile(info("c.d", path="1.cls"))
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["d/0.jpg", "1.cls"]
    assert list(feed.tar(tmp_path)) == [{"__key__": "d/0", "jpg": b""}, {"__key__": "1", "cls": b""}]


def test_an_extended_header_before_no_member_is_refused(tmp_path: Path) -> None:
    member = info("0.jpg", comment="x").tobuf(tarfile.PAX_FORMAT)
    (tmp_path / "a.tar").write_bytes(member[:-512] + bytes(1024))
    with pytest.raises(ShardError, match="an extended header stands before no member"):
        feed.tar(tmp_path)


@pytest.mark.parametrize("field", [b"-0000000001\0", b"00000_00001\0", b"0x000000001\0"])
def test_a_size_that_is_no_octal_number_is_refused(field: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", named("0.jpg"))
    whole = bytearray(path.read_bytes())
    whole[124:136] = field
    whole[148:156] = b"        "
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    path.write_bytes(whole)
    with pytest.raises(ShardError, match="a member's size is"):
        feed.tar(tmp_path)


@pytest.mark.promise(
    "feed-formats", "rows of tar shards are their members, whatever links lead to; an error names the member"
)
def test_any_tar_is_read_as_the_standard_library_reads_it_or_refused(tmp_path: Path, chance: random.Random) -> None:
    """Archives of members of all kinds by chance: what comes is what extracting gives."""
    read = 0
    for number in range(150):
        folder = tmp_path / str(number)
        folder.mkdir()
        names = [f"{place}{name}" for place in ("", "d/") for name in ("a.x", "a.y", "a", "b.x", "b.y", "b", "._a.x")]
        kinds = [tarfile.REGTYPE] * 10 + [tarfile.LNKTYPE, tarfile.SYMTYPE] * 2 + [tarfile.DIRTYPE, tarfile.FIFOTYPE]
        members: list[tuple[str, Content]] = []
        for name in chance.sample(names, chance.randrange(1, 10)):
            kind = chance.choice(kinds)
            before = [before for before, _ in members]  # what a hard link may lead to
            target = chance.choice([*before, "gone"] if kind == tarfile.LNKTYPE else [*names, "../a.x", "a.x", "b"])
            content = chance.randbytes(chance.randrange(3)) if kind == tarfile.REGTYPE else info(name, kind, target)
            members.append((name, content))
        refused = ""
        found: list[Row] = []
        try:
            found = rows(folder, *members, form=chance.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
        except ShardError as error:
            refused = str(error)
        if refused:
            assert f"{folder}/a.tar at offset" in refused
            continue
        read += 1
        expected: dict[str, Row] = {}
        with tarfile.open(folder / "a.tar") as tar:
            for member in tar:
                base = member.name.rpartition("/")[2]
                if "." not in base or base.startswith(".") or member.isdir():
                    continue
                file = tar.extractfile(member)
                if file is None:
                    assert member.islnk() or member.issym(), "a link to a folder"
                    continue
                key, _, field = base.partition(".")
                key = member.name[: len(member.name) - len(base)] + key
                expected.setdefault(key, {"__key__": key})[field] = file.read()
        assert found == list(expected.values())
    assert read > 30


def test_a_shard_with_links_is_walked_twice_and_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Any] = []
    walk = tar_shards._walk
    monkeypatch.setattr(tar_shards, "_walk", lambda path: walks.append(path) or walk(path))
    tar_shards.index(write(tmp_path / "a.tar", named("0.jpg", "1.jpg", "0.cls")))
    tar_shards.index(write(tmp_path / "b.tar", [*named("0.jpg"), ("1.jpg", info("1.jpg", tarfile.LNKTYPE, "0.jpg"))]))
    assert [path.name for path in walks] == ["a.tar", "b.tar", "b.tar"]
