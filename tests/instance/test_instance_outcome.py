"""The failure file."""

from __future__ import annotations

from headrace.instance import read_failure, write_failure


def test_the_first_1024_characters_are_kept(tmp_path) -> None:
    assert write_failure(tmp_path, "ü" * 2000)
    assert (tmp_path / "output" / "failure").read_text() == "ü" * 1024


def test_what_the_user_wrote_wins(tmp_path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "failure").write_text("mine")
    assert not write_failure(tmp_path, "ours")
    assert read_failure(tmp_path) == "mine"


def test_reading_takes_the_first_1024_characters_of_anything(tmp_path) -> None:
    assert read_failure(tmp_path) == ""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "failure").write_bytes(b"\xff\r\n" + b"x" * 5000)
    assert read_failure(tmp_path) == "\N{REPLACEMENT CHARACTER}\r\n" + "x" * 1021


def test_text_that_utf8_cannot_hold_is_written_escaped(tmp_path) -> None:
    assert write_failure(tmp_path, "bad \udcff byte")
    assert read_failure(tmp_path) == "bad \\udcff byte"
