"""What is missing is named with the command that adds it to this copy of headrace, however it was installed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from headrace.install_hint import install_hint

ROOT = Path(__file__).parent.parent
METADATA = (
    "Metadata-Version: 2.1\nName: headrace\nVersion: 9\nRequires-Dist: click>=8.1\n"
    "Requires-Dist: uvicorn>=0.30; extra == 'ui'\nRequires-Dist: starlette>=0.40; extra == \"ui\"\n"
    "Requires-Dist: jax>=0.4; (python_version >= '3.11') and extra == 'dev'\n"
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what an installer wrote about headrace, before all others."""
    info = tmp_path / "site" / "headrace-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "INSTALLER").write_text("pip\n")
    monkeypatch.syspath_prepend(str(info.parent))
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_dir / "python"))
    monkeypatch.setenv("PATH", str(bin_dir))
    install_hint.cache_clear()
    return info


@pytest.fixture(autouse=True)
def not_kept() -> object:
    """No other test sees what these have played."""
    yield
    install_hint.cache_clear()


@pytest.mark.promise("install", "a hint to install an extra works for a clone, a wheel, a repository and an index")
def test_from_an_index_the_name_is_enough(installed: Path) -> None:
    assert install_hint("ui") == "pip install 'headrace[ui]'"


@pytest.mark.promise("install", "a hint to install an extra works for a clone, a wheel, a repository and an index")
@pytest.mark.parametrize(
    ("origin", "what"),
    [
        ({"url": "file://{here}/my%20clone", "dir_info": {"editable": True}}, ["-e", "{here}/my clone[ui]"]),
        ({"url": "file://{here}/my%20clone", "dir_info": {}}, ["{here}/my clone[ui]"]),
        ({"url": "file://{here}/headrace-9.whl", "archive_info": {}}, ["{here}/headrace-9.whl[ui]"]),
        (
            {"url": "https://host/h.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ["headrace[ui] @ git+https://host/h.git@abc"],
        ),
        ({"url": "https://host/headrace-9.whl", "archive_info": {}}, ["headrace[ui] @ https://host/headrace-9.whl"]),
        ({"url": "file:///gone/clone", "dir_info": {"editable": True}}, ["uvicorn>=0.30", "starlette>=0.40"]),
    ],
    ids=["editable", "clone", "wheel", "repository", "address", "clone that is gone"],
)  # fmt: skip
def test_from_elsewhere_the_command_names_that_place(
    installed: Path, tmp_path: Path, origin: dict[str, object], what: list[str]
) -> None:
    (tmp_path / "my clone").mkdir()
    (tmp_path / "headrace-9.whl").touch()
    (installed / "direct_url.json").write_text(json.dumps(origin).replace("{here}", str(tmp_path)))
    assert shlex.split(install_hint("ui")) == [
        "pip",
        "install",
        *(word.replace("{here}", str(tmp_path)) for word in what),
    ]


def test_the_pip_is_that_of_the_python_that_runs(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_hint("ui") == f"{sys.executable} -m pip install 'headrace[ui]'"
    install_hint.cache_clear()
    (installed / "INSTALLER").write_text("uv")
    assert install_hint("ui") == f"uv pip install --python {sys.executable} 'headrace[ui]'"


def test_every_extra_is_in_the_list_and_every_hint_and_page_names_one() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.M))
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page, re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == extras
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "install_hint.py"]
    assert {name for text in sources for name in re.findall(r'install_hint\("(\w+)"\)', text)} <= extras
    assert not [text[:80] for text in sources if re.search(r"""["']pip install (-U )?'?headrace""", text)], "one way"
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "examples").glob("*/README.md")]
    for path in pages:
        assert "pip install 'headrace[" not in path.read_text(), f"{path.name}: that name is on no index"
        assert set(re.findall(r"extra \[?`(\w+)`", path.read_text())) <= extras, path.name
