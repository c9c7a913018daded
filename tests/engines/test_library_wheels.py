"""Wheels that travel with a job: pip downloads them once, from an index that this test serves."""

from __future__ import annotations

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_jobs import planned
from wheels import wheel

from headrace.engines.planning.pack_files import PYTHONS, downloaded_libraries, pythons_of
from headrace.engines.sagemaker.stage_channel import shared_content, stage_channel
from headrace.errors import EngineRefused
from headrace.install_hint import LIBRARIES
from headrace.runs import create_run

NAMES = [wanted.partition(">")[0] for wanted in LIBRARIES.values()]


class Index(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is written."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    """An index of packages with one wheel of each library."""
    for name in NAMES:
        made = wheel(tmp_path / "index" / name, name, "99.0")
        (made.parent / "index.html").write_text(f'<a href="{made.name}">{made.name}</a>')
    handler = type("Handler", (Index,), {"asked": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(tmp_path / "index"))
    )
    server.asked = handler.asked  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Objects:
    """Objects in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.sent: list[str] = []

    def has(self, uri: str) -> bool:
        return uri in self.held

    def write(self, data: bytes, uri: str) -> None:
        self.held[uri] = data
        self.sent.append(uri)

    def copy(self, source: str, target: str) -> None:
        self.held[target] = self.held[source]

    def remove(self, uri: str) -> None:
        self.held.pop(uri, None)


def test_the_wheels_for_the_images_python_are_downloaded_once_and_sent_once(
    index: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    job = planned({"framework": "pytorch"})
    assert job.pythons == ("3.12",)
    paths = create_run("digits", "sagemaker", tmp_path)
    paths.code.mkdir()
    objects, name = Objects(), "libraries-3.12.zip"
    for _ in range(2):
        content = shared_content(job, paths)
        assert isinstance(content[name], Path)
        stage_channel(job, {}, content, objects)
        asked = len(index.asked)  # type: ignore[attr-defined]
        assert asked == 2 * len(NAMES), "a page and a wheel of each; nothing the second time"
    (sent,) = [uri for uri in objects.sent if uri.endswith(name)]
    assert sent.startswith("s3://bucket/out/headrace/shared/")
    with zipfile.ZipFile(content[name]) as archive:  # type: ignore[arg-type]
        assert archive.namelist() == [f"{each}-99.0-py3-none-any.whl" for each in NAMES]


def test_without_a_network_it_is_an_error_that_says_what_to_do_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(EngineRefused, match=r"the wheels for Python 3\.11 cannot be downloaded: ERROR: ") as caught:
        downloaded_libraries("3.11")
    assert "engines.sagemaker.wheels" in caught.value.hint
    assert "wheels: none" in caught.value.hint
    assert list((tmp_path / "home" / "wheels").iterdir()) == []


def test_an_image_that_lacks_nothing_gets_no_wheels_and_an_unknown_one_those_for_every_python() -> None:
    lacks_nothing = planned({"wheels": "none", "framework": None}, image_uri="mill:3", framework_version=None)
    assert not any("wheels" in line for line in lacks_nothing.limits)
    unknown = planned({"framework": None}, image_uri="mill:3", framework_version=None)
    assert unknown.pythons == PYTHONS
    assert any("wheels for Python 3.10, 3.11, 3.12, 3.13" in line for line in unknown.limits)
    assert pythons_of("mill:3", "py311") == ("3.11",)
    assert pythons_of("a.dkr.ecr.b.amazonaws.com/tensorflow-training:2.18.0-cpu-py310-ubuntu22.04", None) == ("3.10",)
    assert pythons_of("mill:1-py39", None) == PYTHONS, "it must be newer, whatever its tag says"
