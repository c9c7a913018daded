"""What is started for an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.instance.entry_command import Kind, entry_command, kind_of, search_path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name in ("train.py", "train.sh", "run", "bin/run", "trainer/__main__.py", "single.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("entry_point", "kind", "command"),
    [
        ("train.py", Kind.PYTHON, ["py", "train.py"]),
        ("train.sh", Kind.SHELL, ["bash", "./train.sh"]),
        ("-m trainer.task", Kind.MODULE, ["py", "-m", "trainer.task"]),
        ("-m  trainer", Kind.MODULE, ["py", "-m", "trainer"]),
        ("trainer", Kind.MODULE, ["py", "-m", "trainer"]),
        ("single", Kind.MODULE, ["py", "-m", "single"]),
        ("run", Kind.PROGRAM, ["./run"]),
        ("bin/run", Kind.PROGRAM, ["./bin/run"]),
    ],
)
def test_every_kind_has_its_command_line(code: Path, entry_point: str, kind: Kind, command: list[str]) -> None:
    arguments = ["--a b", "", "$(id)"]
    assert kind_of(entry_point, code) is kind
    assert entry_command(entry_point, arguments, "py", code) == [*command, *arguments]


def test_with_a_project_file_a_name_that_is_no_file_is_a_module_as_for_the_toolkit(code: Path) -> None:
    assert kind_of("other", code) is Kind.PROGRAM
    assert kind_of("other.py", code) is Kind.PYTHON
    (code / "setup.py").write_text("")
    assert entry_command("other", [], "py", code) == ["py", "-m", "other"]
    assert entry_command("other.py", [], "py", code) == ["py", "-m", "other"]
    assert entry_command("train.py", [], "py", code) == ["py", "train.py"]


@pytest.mark.parametrize(
    ("entry_point", "kind"),
    [("a.py", Kind.PYTHON), ("a.sh", Kind.SHELL), ("-m a", Kind.MODULE), ("a", Kind.MODULE), ("b/a", Kind.PROGRAM)],
)
def test_where_the_code_is_not_known_yet_the_name_decides(entry_point: str, kind: Kind) -> None:
    assert kind_of(entry_point) is kind


def test_a_package_with_a_src_directory_is_found_there_too(code: Path) -> None:
    (code / "src").mkdir()
    assert search_path(code) == [str(code)]
    (code / "pyproject.toml").write_text("")
    assert search_path(code) == [str(code), str(code / "src")]
