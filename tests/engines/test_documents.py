"""Documents of an engine as files: all of them or none, and nothing of anybody else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.engines import Document
from headrace.engines.documents import write_documents
from headrace.errors import UsageError


@pytest.mark.promise("running", "`plan --render` writes exactly what would be submitted, and overwrites no other file")
def test_when_one_file_cannot_be_written_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file where a folder is wanted")
    with pytest.raises(UsageError, match="cannot be written"):
        write_documents([Document("a.txt", "1"), Document("b/c.txt", "2")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_document_that_was_half_written_when_ctrl_c_came_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def interrupted(text: str) -> int:
        raise KeyboardInterrupt

    def open_then_press(path: Path, *arguments: Any, **named: Any) -> Any:
        file = opened(path, *arguments, **named)
        if path.name == "b.txt":
            file.write = interrupted
        return file

    monkeypatch.setattr(Path, "open", open_then_press)
    with pytest.raises(KeyboardInterrupt):
        write_documents([Document("a.txt", "1"), Document("b.txt", "2")], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "/etc/passwd", "../x", "a/../../x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a document"):
        write_documents([Document("first", ""), Document(name, "")], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is there already"):
        write_documents([Document("a.txt", "1")], tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()
