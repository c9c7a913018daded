"""Documents of an engine as files: all of them or none, and nothing of anybody else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engines import Document
from headrace.engines.documents import write_documents
from headrace.errors import UsageError


def test_when_one_file_cannot_be_written_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file where a folder is wanted")
    with pytest.raises(UsageError, match="cannot be written"):
        write_documents([Document("a.txt", "1"), Document("b/c.txt", "2")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


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
