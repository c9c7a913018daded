"""The documentation: every page is linked, every link leads somewhere, every path that a page names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from effort import SOAK

from headrace.job.job import load_job
from test_rooms import MAY_IMPORT, ORDER

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCREENSHOTS = ROOT / "scripts" / "screenshots.py"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES, *sorted((ROOT / "examples").glob("*/README.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMES_CODE = [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"]
"""Pages whose `paths` in backticks are files and folders of the repository or, without a prefix, of src/headrace."""


WORDS = 50_000
"""Words of all pages of users that are written by hand, at most."""
GENERATED = {"benchmark-figures.md"}
HOW_TO_WORDS = 600
UNCLEAR = {
    "told": 3, "said": 0, "had": 0, "and nothing else": 0, "of one's own": 0, "as ever": 0, "makes it so that": 0,
}  # fmt: skip
"""Words in whose place a plain verb, or nothing, stands, and how often the pages have them: the numbers only fall."""


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[str]:
    return (target for target in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", target))


def menu() -> list[dict[str, list[dict[str, str]]]]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


def words(page: Path) -> int:
    return len(page.read_text().split())


def anchors(page: Path) -> set[str]:
    """The anchors that MkDocs and GitHub give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text in plain}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


def test_blocks_of_code_stand_at_the_margin() -> None:
    """MkDocs shows an indented fence, as in a list, as text."""
    indented = re.compile(r"^[ \t]+```", re.MULTILINE)
    assert [page.name for page in PAGES if indented.search(page.read_text())] == []


def test_the_first_page_leads_to_every_page() -> None:
    linked = {target.partition("#")[0] for target in links(DOCS / "index.md")}
    assert {str(page.relative_to(DOCS)) for page in PAGES} - {"index.md"} <= linked


def test_the_menu_of_the_site_has_every_page() -> None:
    def files(entries: list[dict[str, object]]) -> Iterator[str]:
        for entry in entries:
            for part in entry.values():
                yield from files(part) if isinstance(part, list) else [str(part)]

    assert sorted(files(menu())) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_a_how_to_is_one_task_in_600_words() -> None:
    pages = next(entry["How-to"] for entry in menu() if "How-to" in entry)
    names = {name.removesuffix(".md") for entry in pages for name in entry.values()}
    lengths = {name: words(DOCS / f"{name}.md") for name in names}
    assert {name: n for name, n in lengths.items() if n > HOW_TO_WORDS} == {}


def test_the_pages_have_few_words() -> None:
    assert sum(words(page) for page in DOCS.glob("*.md") if page.name not in GENERATED) <= WORDS
    assert words(ROOT / "README.md") <= 900


def test_pages_use_plain_words() -> None:
    text = " ".join(re.sub(r"`[^`]*`", "", " ".join(map(prose, TEXTS))).split())
    often = {phrase: len(re.findall(rf"\b{phrase}\b", text, re.IGNORECASE)) for phrase in UNCLEAR}
    assert {phrase: n for phrase, n in often.items() if n > UNCLEAR[phrase]} == {}


@pytest.mark.parametrize("page", NAMES_CODE, ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.py)`", prose(page))
    assert named
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "headrace"))]
    assert not missing


def test_messages_name_pages_that_exist_and_no_file_of_docs_which_a_wheel_does_not_have() -> None:
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    pages = {page.stem for page in PAGES}
    named = {
        (path.name, name) for path, text in sources.items() for name in re.findall(r"page ([\w-]+) of the docs", text)
    }
    assert len(named) > 10
    assert {(file, name) for file, name in named if name not in pages} == set()
    docstrings = re.compile(r'""".*?"""', re.DOTALL)
    assert [
        path.name for path, text in sources.items() if re.search(r"docs/[\w-]+\.md", docstrings.sub("", text))
    ] == []


def test_every_picture_of_the_page_is_made_by_a_script_and_is_small() -> None:
    names = {path.name: path.stat().st_size for path in (DOCS / "images").glob("*.png")}
    assert names.keys() <= {f"{name}.png" for name in re.findall(r'"([\w-]+)": \(', SCREENSHOTS.read_text())}
    assert max(names.values()) < 200_000


def test_the_pictures_of_the_architecture_name_folders_that_exist() -> None:
    for picture in (DOCS / "images").glob("way-of-*.svg"):
        for name in re.findall(r">((?:\w+/)+(?:\w+\.py)?)<", picture.read_text()):
            assert (ROOT / "src" / "headrace" / name).exists(), f"{picture.name}: {name}"


def test_the_tables_of_the_architecture_are_the_map_that_the_tests_hold() -> None:
    text = (DOCS / "architecture.md").read_text()
    rows = re.findall(
        r"^\| ([^|]*) \| [^|]* \| ([^|]*) \|$", text[: text.index("The sub-packages, in their order")], re.M
    )
    table = {
        name: set(re.findall(r"`(\w+)`", may))
        for rooms, may in rows
        for name in re.findall(r"`(\w+)(?:/|\.py)`", rooms)
    }
    assert table == {**MAY_IMPORT, "log_setup": set()}
    inside = dict(re.findall(r"^\| `(\w+)/` \| (.*) \|$", text[text.index("The sub-packages, in their order") :], re.M))
    for room, described in inside.items():
        packages = [name for name in ORDER[room] if (ROOT / "src" / "headrace" / room / name).is_dir()]
        assert re.findall(rf"`{room}/(\w+)/`", described) == packages, room


def copied_and_run(page: str, folder: Path, *, often: str = "$.") -> str:
    """Copies and types a tutorial: a block with the name of a file is the file, `text` is output, others are typed.

    Args:
        page: the page's name.
        folder: where it is done.
        often: how a block begins that is typed in every run, as a pattern; others only in the long one.

    Returns:
        What the commands printed.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "", "HEADRACE_HOME": str(folder / "home")}
    printed = ""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
        if name := re.match(r"# (\S+\.\w+)\n", block):
            (folder / name[1]).write_text(block.replace("return 4096", "return 640"))  # a tenth of the time
            if name[1].endswith(".py"):
                compile(block, name[1], "exec")
        elif not language and (SOAK or re.match(often, block)):
            done = subprocess.run(
                ["bash", "-ec", block], check=False, cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
    return printed


def test_what_the_tutorials_of_the_loader_show_can_be_copied_and_run(tmp_path: Path) -> None:
    loader = copied_and_run("first-loader.md", tmp_path)
    job = copied_and_run("tutorial.md", tmp_path, often="cat >>")
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["data.py", "job.yaml", "train.py"]
    assert "def spectra" in (tmp_path / "data.py").read_text()
    assert load_job(tmp_path / "job.yaml").data_service.feed.enabled
    if SOAK:
        assert "step floor" in loader
        assert re.search(r"^loss [0-9.]+$", loader, re.MULTILINE), "headrace's loader, without a job"
        assert "] loss " in job, "the job"
        assert "to train" in job, "the report"


def test_what_the_tutorial_of_a_sweep_shows_can_be_copied_and_run(tmp_path: Path) -> None:
    """The plan in every run, the grid in the long one."""
    printed = copied_and_run("sweep.md", tmp_path, often="mkdir|headrace grid plan")
    rows = re.findall(r"^lines\.csv:\d+ with combination \d .* (us-east-1|eu-west-1)  the line names it", printed, re.M)
    assert sorted(rows) == ["eu-west-1", "eu-west-1", "us-east-1", "us-east-1"]
    if SOAK:
        assert "sweep: 4 lines: 4 completed" in printed
        assert re.search(r"^ +1 .*train=data/eu, lr=0.5", printed, re.M), "the best line"
