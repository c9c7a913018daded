"""What a program leaves, whatever it is and wherever: stored as the program sees it, or named as what cannot be."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.instance import read_failure
from headrace.instance.kept_files import FILE, FOLDER, LINK, LOST, OTHER, Entry, bring_in, resolve, walk

FOLDERS = ("model", "output/data", "output/intermediate", "checkpoints")
Make = Callable[[Path, Path], object]  # of the entry's path and of a folder of the host that is not kept


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
            os.rename("s", path.name)  # noqa: PTH104
    finally:
        os.chdir(here)


def _file(path: Path, text: str = "data") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _folder_with_links(path: Path, own: Path) -> None:
    folder = own / "deep"
    _file(folder / "w")
    (folder / "again").symlink_to("w")
    (folder / "absolute").symlink_to(folder / "w")
    (folder / "farther").symlink_to(_file(own / "farther"))
    path.symlink_to(folder)


# kind of entry: how it is made, and what it is where links are kept, and where every link is what it leads to
KINDS: dict[str, tuple[Make, str, str]] = {
    "file": (lambda path, _: path.write_text("data"), FILE, FILE),
    "sparse": (lambda path, _: (path.touch(), os.truncate(path, 1 << 40)), FILE, FILE),
    "folder": (lambda path, _: _file(path / "w"), FOLDER, FOLDER),
    "relative link": (lambda path, _: path.symlink_to(_file(path.parent / "w").name), LINK, FILE),
    "link over folders": (lambda path, _: path.symlink_to(f"../{_file(path.parent / 'w').parent.name}/w"), LINK, FILE),
    "absolute link": (lambda path, _: path.symlink_to(f"/opt/ml/other/{path.name}"), FILE, FILE),
    "absolute link and up": (lambda path, _: path.symlink_to(f"/opt/ml/model/../other/{path.name}"), FILE, FILE),
    "link that leads out": (lambda path, own: path.symlink_to(_file(own / "x")), FILE, FILE),
    "link to a link that leads out": (
        lambda path, own: (_file(own / "x"), (own / "y").symlink_to("x"), path.symlink_to(own / "y")), FILE, FILE,
    ),
    "link to a folder that leads out": (_folder_with_links, FOLDER, FOLDER),
    "link into a channel": (
        lambda path, _: path.symlink_to(f"/opt/ml/input/data/train/{path.name}"), FILE, FILE,
    ),
    "link to nothing": (lambda path, _: path.symlink_to("nothing"), LINK, OTHER),
    "absolute link to nothing": (lambda path, _: path.symlink_to("/opt/ml/nothing"), LOST, LOST),
    "link out to nothing": (lambda path, own: path.symlink_to(own / "nothing"), LOST, LOST),
    "loop": (lambda path, _: path.symlink_to(path.name), LINK, LOST),
    "loop of two": (lambda path, _: (path.symlink_to("z"), (path.parent / "z").symlink_to(path.name)), LINK, LOST),
    "link through a file": (lambda path, _: path.symlink_to(f"{_file(path.parent / 'w').name}/x"), LINK, LOST),
    "link to a folder above": (lambda path, _: path.symlink_to(f"../{path.parent.name}"), LINK, OTHER),
    "link to its own folder": (lambda path, _: path.symlink_to("."), LINK, OTHER),
    "fifo": (lambda path, _: os.mkfifo(path), OTHER, OTHER),
    "socket": (lambda path, _: _socket(path), OTHER, OTHER),
    "link to a device": (lambda path, _: path.symlink_to("/dev/null"), OTHER, OTHER),
    "unreadable file": (lambda path, _: (path.write_text("data"), path.chmod(0)), LOST, LOST),
    "unreadable folder": (lambda path, _: (_file(path / "w"), path.chmod(0)), LOST, LOST),
}  # fmt: skip
NAMES = ("e", os.fsdecode(b"caf\xe9"), "new\nline", "n" * 255, " ", "line\u2028end", "-r", "a:b")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tree = tmp_path / "ml"
    for folder in FOLDERS:
        _file(tree / folder / "zz-rest", "rest")
    (tree / "input/config").mkdir(parents=True)
    (tree / "input/data").mkdir()
    _file(tmp_path / "channel/x")
    (tree / "input/data/train").symlink_to(tmp_path / "channel")
    (tmp_path / "own").mkdir()
    return tree


def entries(base: Path, folder: str, links: bool) -> dict[str, Entry]:
    return {entry.name: entry for entry in walk(base, base / folder, links=links)}


@pytest.mark.promise("artefacts", "what leaves a host is read as the host sees it; what cannot be stored fails the job")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_entry_is_read_as_the_host_sees_it_or_named_and_the_rest_is_read(base: Path, kind: str) -> None:
    make, with_links, without = KINDS[kind]
    if kind.startswith("unreadable") and os.geteuid() == 0:  # who reads everything
        with_links = without = FILE if kind.endswith("file") else FOLDER
    for folder in FOLDERS:
        for number, name in enumerate(NAMES):
            path = base / folder / f"{number}" / name
            path.parent.mkdir()
            _file(base / "other" / name)
            _file(base.parent / "channel" / name)
            make(path, base.parent / "own" / folder / f"{number}")
    troubles = bring_in(base, lambda: False)
    assert len(troubles) == (len(FOLDERS) * len(NAMES) if kind in {"link to a device", "link out to nothing"} else 0)
    for folder in FOLDERS:
        for links, expected in ((True, with_links), (False, without)):
            found = entries(base, folder, links)
            assert found["zz-rest"].kind == FILE
            for number, name in enumerate(NAMES):
                entry = found[f"{number}/{name}"]
                assert entry.kind == expected, (folder, links, entry)
                assert entry.target or entry.kind not in {LOST, LINK}
                if entry.kind == FILE and entry.size < 1 << 20:
                    assert entry.path.read_text() == "data"
                    assert resolve(base, entry.path) == entry.path
                if kind == "link to a folder that leads out":
                    inner = [found[f"{number}/{name}/{each}"] for each in ("again", "absolute", "farther", "w")]
                    assert [each.kind for each in inner] == [*[LINK if links else FILE] * 2, FILE, FILE]


@pytest.mark.promise("artefacts", "what leaves a host is read as the host sees it; what cannot be stored fails the job")
@pytest.mark.parametrize("target", ["/tmp/elsewhere", "{}/../own/x", "{}/input/data/train/x", "/opt/ml/../../x"])
@pytest.mark.promise("security", "links in outputs that lead to this machine's files are not followed")
def test_what_leads_out_of_the_host_is_never_opened_from_outside(base: Path, target: str) -> None:
    _file(base.parent / "own/x", "of this machine")
    for folder in FOLDERS:
        up = "/".join([".."] * len(Path(folder).parts))
        (base / folder / "link").symlink_to(target.format(up))
        for links in (True, False):
            entry = entries(base, folder, links)["link"]
            assert entry.kind == LOST
            assert "not among what the host keeps" in entry.target
    (base / "output/failure").symlink_to(target.format(".."))
    assert read_failure(base) == ""


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", ["link out", "link inside", "file", "link to nothing"])
def test_a_folder_in_whose_place_something_else_is_is_read_or_named(base: Path, folder: str, kind: str) -> None:
    path = base / folder
    (path / "zz-rest").unlink()
    path.rmdir()
    if kind == "file":
        path.write_text("data")
    else:
        where = base.parent / "own/m" if kind == "link out" else base / "other"
        if kind != "link to nothing":
            _file(where / "w")
        path.symlink_to("/opt/ml/other" if kind != "link out" else where)
    assert bring_in(base, lambda: False) == []
    found = entries(base, folder, links=True)
    if kind.startswith("link ") and kind != "link to nothing":
        assert {name: entry.path.read_text() for name, entry in found.items()} == {"w": "data"}
    else:
        assert [(entry.name, entry.kind, entry.path) for entry in found.values()] == [("", LOST, path)]


def test_the_failure_file_may_be_a_link_to_the_hosts_own_files(base: Path) -> None:
    (base / "output/failure").symlink_to(_file(base.parent / "own/why", "because"))
    bring_in(base, lambda: False)
    assert read_failure(base) == "because"


def test_without_time_to_copy_links_stay_and_are_named(base: Path) -> None:
    (base / "model/w").symlink_to(_file(base.parent / "own/w"))
    assert bring_in(base, lambda: True) == [f"{base}/model/w: there was no time to copy what it leads to"]
    assert entries(base, "model", links=True)["w"].kind == LOST
    assert sorted(os.listdir(base / "model")) == ["w", "zz-rest"]  # noqa: PTH208
