"""Folders and buckets have one face: listed alike, moved whole or not at all, errors in plain words with a hint."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import ObjectChanged, ObjectMissing, StorageError, UsageError
from headrace.install_hint import install_hint
from headrace.instance import storage
from headrace.instance.storage import Store
from objectstore import PAGE, ObjectStore, free_port
from patience import allowed

KEYS = ["a", "a/1", "a/10", "a/2", "a b", "a-b", "ä", "z/y/x", "€uro", "𝄞"]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(timeout=5, attempts=2) as store:
        yield store


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, s3: ObjectStore, tmp_path: Path) -> str:
    """An empty place of each kind."""
    if request.param == "folder":
        (tmp_path / "place").mkdir()
        return str(tmp_path / "place")
    return s3.uri("place")


def names(store: Store, uri: str) -> list[str]:
    return [each.uri for each in store.list(uri)]


def test_the_indexes_of_the_feed_are_no_data(store: Store, place: str) -> None:
    for name in ("a", "b/.headrace-index/tar.index", ".headrace-index/tar.index", ".headrace-index-of-mine/c"):
        store.write(b"x", storage.join(place, name))
    mine = storage.join(place, ".headrace-index-of-mine/c")
    for prefix, names in (
        ("", [mine, storage.join(place, "a")]),
        ("/", [mine, storage.join(place, "a")]),
        ("/.h", [mine]),
    ):
        assert [each.uri for each in store.list(place + prefix, data=True)] == names
    assert len(store.list(place + "/")) == 4
    assert len(store.list(storage.join(place, ".headrace-index/"), data=True)) == 1, "one who names it means it"


def test_what_is_written_is_listed_read_and_downloaded(store: Store, place: str, tmp_path: Path) -> None:
    data = os.urandom(700_001)
    (tmp_path / "file").write_bytes(data)
    store.upload(tmp_path / "file", storage.join(place, "deep/file"))
    store.write(b"", storage.join(place, "empty"))
    found = store.list(place + "/")
    assert [(each.uri, each.size) for each in found] == [
        (storage.join(place, "deep/file"), len(data)),
        (storage.join(place, "empty"), 0),
    ]
    assert store.look(found[0].uri) == found[0]
    done: list[str] = []
    store.download_all(
        [(each, tmp_path / "got" / str(number)) for number, each in enumerate(found)],
        lambda each: done.append(each.uri),
    )
    assert [(tmp_path / "got" / name).read_bytes() for name in "01"] == [data, b""]
    assert sorted(done) == sorted(each.uri for each in found)
    assert store.read_range(found[0], 5, 10) == data[5:15]
    assert store.read_range(found[0], 700_000, 10) == data[-1:]
    assert store.read_range(found[0], 800_000, 10) == b""


def test_a_file_that_goes_up_in_parts_comes_back_whole(store: Store, place: str, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.seek(70 << 20)
        file.write(b"end")
    store.upload(tmp_path / "large", storage.join(place, "large"))
    large = store.look(storage.join(place, "large"))
    assert large.size == (70 << 20) + 3
    store.download(large, tmp_path / "back")
    assert subprocess.run(["cmp", tmp_path / "large", tmp_path / "back"]).returncode == 0


def test_buckets_are_listed_by_the_bytes_of_their_keys_without_folder_markers(store: Store, s3: ObjectStore) -> None:
    for key in [*KEYS, "a/", "folder/"]:
        s3.put(key, b"x")
    assert [each.key for each in store.list(s3.uri())] == sorted(KEYS, key=str.encode)
    assert [each.key for each in store.list(s3.uri("a/1"))] == ["a/1", "a/10"]
    assert store.list(s3.uri("nothing")) == []


def test_folders_are_listed_by_bytes_with_links_followed_once_and_without_what_is_incomplete(
    store: Store, tmp_path: Path
) -> None:
    for name in ["b/1", "b-", "b/10", "ä", ".headrace-part-1", "b/.headrace-part-2", "other"]:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"x")
    (tmp_path / "d" / "loop").symlink_to("..")
    (tmp_path / "d" / "link").symlink_to("b")
    (tmp_path / "d" / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d" / "fifo")
    root = str(tmp_path / "d")
    expected = ["b-", "b/1", "b/10", "link/1", "link/10", "other", "ä"]
    assert [name for name in names(store, root) if "/loop/" not in name] == [f"{root}/{name}" for name in expected]
    assert names(store, f"file://{root}/b") == [f"{root}/b/1", f"{root}/b/10"]
    assert names(store, f"{root}/o") == [f"{root}/other"]
    with pytest.raises(ObjectMissing):
        store.list(f"{root}/b-/")
    with pytest.raises(ObjectMissing, match="no such file or folder"):
        store.list(f"{root}/nothing")


def test_objects_of_more_than_two_pages_are_all_listed_and_moved(store: Store, s3: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    places = [s3.uri(f"many/{number:04d}") for number in range(2 * PAGE + 10)]
    store.upload_all((tmp_path / "one", place) for place in places)
    assert names(store, s3.uri("many/")) == places


def test_a_download_that_fails_leaves_nothing_and_what_was_there(store: Store, place: str, tmp_path: Path) -> None:
    store.write(b"first", storage.join(place, "x"))
    listed = store.look(storage.join(place, "x"))
    store.write(b"later!", storage.join(place, "x"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_bytes(b"kept")
    with pytest.raises(ObjectChanged) as caught:
        store.download(listed, tmp_path / "out" / "x")
    assert caught.value.hint
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x"]
    assert (tmp_path / "out" / "x").read_bytes() == b"kept"


def test_where_files_cannot_be_nameless_they_have_a_hidden_name_for_a_while(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, whose open(2) refuses O_TMPFILE."""
    opened = os.open

    def refuse(path: str, flags: int, *more: int, **others: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", refuse)
    store.write(b"1", str(tmp_path / "x"))
    with contextlib.suppress(RuntimeError), store.create(str(tmp_path / "x"), tmp_path) as file:
        file.write(b"half")
        assert [storage.is_temporary(path.name) for path in sorted(tmp_path.iterdir())] == [True, False]
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"1"


def test_a_vanished_object_is_missing_and_the_first_error_ends_all(store: Store, place: str, tmp_path: Path) -> None:
    for number in range(40):
        store.write(b"x", storage.join(place, f"{number:02d}"))
    listed = store.list(place + "/")
    if storage.is_s3(place):
        with pytest.raises(ObjectMissing):
            store.look(storage.join(place, "nothing"))
        gone = storage.Object(storage.join(place, "nothing"), "nothing", 1, '"0"')
    else:
        gone = storage.Object(storage.join(place, "nothing"), "nothing", 1, "0")
    with pytest.raises(ObjectMissing):
        store.download_all([(each, tmp_path / "got" / each.key[-2:]) for each in [gone, *listed]])
    assert len(list((tmp_path / "got").iterdir())) < 40
    store.download_all([(each, tmp_path / "got" / each.key[-2:]) for each in listed])  # it can be used again
    assert len(list((tmp_path / "got").iterdir())) == 40


@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../x", "a//b", "a/", "./a", "a\0b"])
def test_a_key_that_leads_out_of_its_folder_is_no_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        storage.inside(tmp_path, name)


def test_how_often_is_tried_is_the_users_choice(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with Store() as store, pytest.raises(StorageError, match="tried once") as error:
        store.list(s3.uri())
    assert "list-type" not in error.value.message, "the query of its URL is only in the log"


def test_places() -> None:
    assert storage.split("s3://b/k/x") == ("b", "k/x")
    assert storage.split("s3://b") == ("b", "")
    assert storage.join("s3://b/", "k", "/x/") == "s3://b/k/x"
    assert storage.join("/", "k") == "/k"
    assert storage.local_path("file:///x/y") == Path("/x/y")
    assert storage.local_path("file://x/y", "/base") == Path("/base/x/y")
    assert storage.local_path("x", "/base") == Path("/base/x")
    assert storage.local_path("../x/./y", "/base/job") == Path("/base/x/y")
    assert storage.local_path("..", "/base/job") == storage.local_path("../base/.", "/job") == Path("/base")
    assert storage.local_path("../../../x", "/base") == Path("/x")
    for wrong in ("s3://", "s3:///x"):
        with pytest.raises(UsageError, match="names no bucket"):
            storage.split(wrong)
    with pytest.raises(UsageError, match="cannot read or write there"):
        storage.local_path("gs://b/x")


def test_a_place_above_a_link_is_the_one_that_the_kernel_would_take(tmp_path: Path) -> None:
    (tmp_path / "far" / "job").mkdir(parents=True)
    (tmp_path / "job").symlink_to("far/job")
    found = storage.local_path("../results/new", tmp_path / "job")
    assert found == tmp_path / "far" / "results" / "new"
    assert storage.local_path("x", tmp_path / "job") == tmp_path / "job" / "x", "no need to follow it"


def test_no_such_bucket(store: Store, s3: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    for ask in (
        lambda: store.list("s3://no-such-bucket-here/x"),
        lambda: store.check_writable("s3://no-such-bucket-here/x"),
        lambda: store.upload(tmp_path / "x", "s3://no-such-bucket-here/x"),
    ):
        with pytest.raises(ObjectMissing, match=r"s3://no-such-bucket-here.* no such") as caught:
            ask()
        assert caught.value.hint
    store.check_writable(s3.uri("new/prefix"))


def test_no_credentials(s3: ObjectStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="no AWS credentials") as caught:
        store.list(s3.uri())
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_profile_that_is_not_there(s3: ObjectStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        store.list(s3.uri())


def test_the_extra_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['botocore'] = None\n"
        "from headrace.errors import UsageError\nfrom headrace.instance.storage import Store\n"
        "try: Store().list('s3://b/x')\nexcept UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert f"hint: {install_hint('s3')}" in done.stdout


def test_local_data_loads_no_library_of_s3(tmp_path: Path) -> None:
    code = (
        "import sys; from headrace.instance.storage import Store\n"
        f"Store().write(b'x', {str(tmp_path / 'x')!r}); print('botocore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"


# --- servers that answer badly -------------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[bytes]]]:
    """Starts a server that answers each request with the next of the given answers, the last one for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []
    answers: list[bytes] = []

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (data := connection.recv(65536)):
                    head += data
                requests.append(head)
                connection.sendall(answers.pop(0) if len(answers) > 1 else answers[0])

    thread = threading.Thread(target=work)
    for name, value in [("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("REGION", "us-east-1")]:
        monkeypatch.setenv(f"AWS_{name}", value)

    def start(*wanted: bytes) -> list[bytes]:
        answers.extend(wanted)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.start()
        return requests

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def answer(status: str, body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f'HTTP/1.1 {status}\r\nETag: "e"\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n'.encode() + body


def fault(status: str, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>words</Message></Error>".encode())


@pytest.mark.s3
@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        ("403 Forbidden", "AccessDenied", "may not do that"),
        ("403 Forbidden", "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("403 Forbidden", "ExpiredToken", "too old"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "AWS_REGION"),
    ],
)
def test_an_answer_that_refuses_is_told_with_what_to_do(
    store: Store, serve: Callable[..., list[bytes]], status: str, code: str, hint: str
) -> None:
    serve(fault(status, code))
    with pytest.raises(StorageError, match=code) as caught:
        store.list("s3://b/x")
    assert hint in caught.value.hint


@pytest.mark.s3
def test_a_read_that_breaks_off_goes_on_where_it_was(
    store: Store, serve: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    requests = serve(answer("200 OK", b"0123", 10), answer("206 Partial Content", b"456789"))
    store.download(storage.Object("s3://b/k", "k", 10, '"e"'), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"0123456789"
    assert b'If-Match: "e"' in requests[1]
    assert b"Range: bytes=4-9" in requests[1]


@pytest.mark.s3
def test_a_read_that_always_breaks_off_is_an_error_and_leaves_nothing(
    store: Store, serve: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    serve(answer("200 OK", b"0123", 10), answer("206 Partial Content", b"", 6))
    with pytest.raises(StorageError, match="no answer from"):
        store.download(storage.Object("s3://b/k", "k", 10, '"e"'), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_is_not_there(s3: ObjectStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    began = time.monotonic()
    with pytest.raises(StorageError, match="tried 2 times") as caught:
        store.list(s3.uri())
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    assert time.monotonic() - began < allowed(10)


def test_an_endpoint_that_is_silent(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Store(timeout=0.5, attempts=2) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(StorageError, match="no answer from"):
            store.list(s3.uri())
        assert time.monotonic() - began < allowed(10)


def test_a_read_only_file_system_is_called_that(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    with Store() as store, pytest.raises(StorageError) as refused:
        store.check_writable(str(tmp_path / "out"))
    assert refused.value.message.endswith("Read-only file system")
    assert "mounted read-only" in refused.value.hint
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=0))
    with Store() as store, pytest.raises(StorageError) as refused:
        store.check_writable(str(tmp_path / "out"))
    assert refused.value.message.endswith("Permission denied")
    assert "change the permissions" in refused.value.hint


def test_what_is_not_stored_leaves_no_folder(tmp_path):
    class Stopped(BaseException):
        pass

    def stop(beside: Path | None) -> None:
        with Store() as store, store.create(str(target), tmp_path) as file:
            file.write(b"a part")
            if beside is not None:
                beside.touch()
            raise Stopped

    target = tmp_path / "out" / "job" / "output" / "model.tar.gz"
    (tmp_path / "out").mkdir()
    with pytest.raises(Stopped):
        stop(None)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(Stopped):
        stop(tmp_path / "out" / "job" / "of another")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["job", "of another"]


def test_a_folder_is_looked_into_one_level_at_a_time_behind_a_name(store: Store, place: str) -> None:
    folder = storage.join(place, "folder")
    assert store.names(folder) == store.folders(folder) == []
    for name in ("b", "a/1", "a/2", "ab/1", "c", "ä"):
        store.write(name.encode(), storage.join(folder, name))
    store.write(b"", place.rstrip("/") + "/folder-beside")
    assert store.names(folder) == ["b", "c", "ä"]
    assert store.names(folder, "b") == ["c", "ä"]
    assert store.folders(folder) == ["a", "ab"]
    assert store.folders(folder, "ab") == ["ab"]
    assert store.read(storage.join(folder, "ä")) == "ä".encode()
    with pytest.raises(ObjectMissing):
        store.read(storage.join(folder, "nothing"))
