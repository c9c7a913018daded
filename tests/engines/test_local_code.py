"""Code comes as a folder, an archive or an object of a bucket; an archive cannot write outside its folder."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from headrace.errors import ObjectMissing, UsageError
from headrace.hosting.inputs.source_code import bring_code, unpack
from headrace.job.model.path_types import is_archive
from objectstore import ObjectStore


def packed(*members: tuple[str, object], mode: str = "w:gz") -> bytes:
    """Packs an archive: name and bytes (a file), None (a folder), ``-> x`` (a link), ``=> x`` (a hard link), a type."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mode = 0o6777
            info.mtime = 1_000_000
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type = tarfile.SYMTYPE if content.startswith("->") else tarfile.LNKTYPE
                info.linkname = content[3:]
            elif isinstance(content, int):
                info.type = bytes([content])
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                continue
            archive.addfile(info)
    return buffer.getvalue()


def bring(tmp_path: Path, source: str, *dependencies: str) -> Path:
    archive, runs = is_archive(source), tmp_path / "runs"
    bring_code(source, tmp_path, dependencies, tmp_path / "target", leave_out=runs, archive=archive)
    return tmp_path / "target"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_its_dependencies_beside_it(tmp_path: Path) -> None:
    for name in ("code/train.py", "code/.git/config", "lib/common/util.py", "lib/common/__pycache__/x.pyc", "one.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(files(bring(tmp_path, "code", "lib/common", "one.py"))) == ["common/util.py", "one.py", "train.py"]


def test_a_dependency_does_not_cover_the_code(tmp_path: Path) -> None:
    for name in ("code/train.py", "other/train.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    with pytest.raises(UsageError, match=r"other/train.py cannot be put beside the code, which has 'train.py'"):
        bring(tmp_path, "code", "other/train.py")


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_archive(tmp_path: Path, mode: str) -> None:
    (tmp_path / "code.tar.gz").write_bytes(
        packed((".", None), ("./train.py", b"t"), ("lib/a.py", b"a"), ("link", "-> lib/a.py"), ("hard", "=> lib/a.py"),
               ("again", b"1"), ("again", b"2"), ("empty", None), mode=mode)
    )  # fmt: skip
    target = bring(tmp_path, "code.tar.gz")
    assert files(target) == {"train.py": b"t", "lib/a.py": b"a", "link": b"a", "hard": b"a", "again": b"2"}
    assert (target / "link").is_symlink()
    assert (target / "empty").is_dir()
    assert (target / "train.py").stat().st_mode & 0o7777 == 0o755
    assert (target / "train.py").stat().st_mtime == 1_000_000


def test_an_archive_in_a_bucket(tmp_path: Path, s3: ObjectStore) -> None:
    s3.put("jobs/sourcedir.tar.gz", packed(("train.py", b"t")))
    assert files(bring(tmp_path, s3.uri("jobs/sourcedir.tar.gz"))) == {"train.py": b"t"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]
    (tmp_path / "target/train.py").unlink()
    (tmp_path / "target").rmdir()
    with pytest.raises(ObjectMissing):
        bring(tmp_path, s3.uri("jobs/nothing.tar.gz"))
    assert list(tmp_path.iterdir()) == []


def test_no_code(tmp_path: Path) -> None:
    assert files(bring(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("/etc/x", b"x")], "leads out of the folder"),
        ([("../x", b"x")], "leads out of the folder"),
        ([("a/../../x", b"x")], "leads out of the folder"),
        ([("up", "-> .."), ("up/x", b"x")], "is a link that leads out"),
        ([("up", "-> ../outside")], "is a link that leads out"),
        ([("abs", "-> /etc/passwd")], "is a link that leads out"),
        ([("a", None), ("a/b", "-> ."), ("a/b/c", "-> .."), ("a/c/d", "-> ../..")], "is a link that leads out"),
        ([("x", "-> y/.."), ("y", "-> .")], "is a link that leads out"),
        ([("a/x", "-> y/../.."), ("a/y", "-> z"), ("a/z", "-> .")], "is a link that leads out"),
        ([("y/z", b"z"), ("y", "-> .")], "takes the place of a folder"),
        ([("y/z", b"z"), ("y", b"y")], "takes the place of a folder"),
        ([("x", "-> y/.."), ("a", None), ("y", "-> a"), ("y", "-> .")], "is a link that leads out"),
        ([("hard", "=> ../outside")], "is a link to what is not in the archive"),
        ([("hard", "=> /etc/passwd")], "is a link to what is not in the archive"),
        ([("hard", "=> nothing")], "is a link to what is not in the archive"),
        ([("fifo", tarfile.FIFOTYPE[0])], "is neither a file"),
        ([("device", tarfile.CHRTYPE[0])], "is neither a file"),
    ],
)
@pytest.mark.promise("sagemaker-differences", "absent here: code archives are unpacked without a filter")
@pytest.mark.promise("security", "an archive that leads out of its folder is refused before anything is written")
def test_an_archive_that_leads_out_of_its_folder_is_refused_as_a_whole(
    tmp_path: Path, members: list[tuple[str, object]], why: str
) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "a.tar.gz").write_bytes(packed(("good", b"g"), *members))
    with pytest.raises(UsageError, match=why) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "target", "a.tar.gz")
    assert caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "outside"]
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_link_that_is_written_over_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(packed(("x", b"1"), ("link", "-> x"), ("link", b"2")))
    unpack(tmp_path / "a.tar.gz", tmp_path / "target", "a.tar.gz")
    assert files(tmp_path / "target") == {"x": b"1", "link": b"2"}


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_links_in_a_circle_are_copied_as_they_are(tmp_path: Path, form: str) -> None:
    if form == "archive":
        (tmp_path / "code.tar.gz").write_bytes(packed(("x", b"1"), ("a", "-> b"), ("b", "-> a"), ("self", "-> self")))
        copy = bring(tmp_path, "code.tar.gz")
    else:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "x").write_bytes(b"1")
        for name, target in (("a", "b"), ("b", "a"), ("self", "self")):
            (tmp_path / "code" / name).symlink_to(target)
        copy = bring(tmp_path, "code")
    links = {path.name: str(path.readlink()) for path in copy.iterdir() if path.is_symlink()}
    assert links == {"a": "b", "b": "a", "self": "self"}
    assert (copy / "x").read_bytes() == b"1"


@pytest.mark.parametrize("cut", ["no archive", "half", "damaged", "empty"])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: str) -> None:
    whole = packed(("x", os.urandom(200_000)))
    damaged = {
        "no archive": b"PK\3\4" * 100,
        "half": whole[: len(whole) // 2],
        "damaged": whole[:1000] + bytes(1000) + whole[2000:],
        "empty": b"",
    }[cut]
    (tmp_path / "a.tar.gz").write_bytes(damaged)
    with pytest.raises(UsageError, match=r"a\.tar\.gz is not an archive, or is damaged"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "target", "a.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]
