"""Requirements are installed once for each content, never seen half made, and a failure says what pip said."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from effort import SOAK
from run_places import WITHOUT_TORCH
from stage import groups, text
from wheels import wheel

from headrace.engines.planning.prepare_run import plan_environments
from headrace.errors import UsageError
from headrace.held_file import hold
from headrace.hosting.inputs import requirements
from headrace.hosting.inputs.requirements import VirtualEnvironment, environment_of, prepare_install
from headrace.hosting.supervision.cleanup import remove_leftovers
from headrace.instance.lifeline import PACKAGE_ENTRY
from headrace.job import Job
from headrace.runs import RunPaths, Status
from headrace.runs.events import RequirementsInstalled
from headrace.runs.reader import Run
from patience import until

HEADRACES_OWN = VirtualEnvironment("", sys.prefix, ())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, and a pip that knows no index."""
    pip_without_index(monkeypatch, tmp_path)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "home"


def pip_without_index(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Lets pip find what lies in a folder, and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
    patch.setenv("HEADRACE_HOME", str(folder / "home"))


class Case:
    """A run whose code is in place.

    Attributes:
        environments: those that it has installed, by file.
        again: whether another run with its requirements would install.
    """

    environments: dict[str, VirtualEnvironment]
    again: bool

    def __init__(self, root: Path, **files: str) -> None:
        self.paths = RunPaths(root)
        self.paths.code.mkdir(parents=True)
        for name, content in (files or {"requirements.txt": "alpha\n"}).items():
            (self.paths.code / name.replace("_txt", ".txt")).write_text(content)

    def environment(self, name: str = "requirements.txt") -> VirtualEnvironment:
        return environment_of(name, self.paths, ("all",))

    def start(self, *names: str) -> subprocess.Popen[str]:
        prepare_install({name: self.environment(name) for name in names or ["requirements.txt"]}, self.paths)
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.hosting.helpers.install", str(self.paths.root)],
            cwd=self.paths.root,
            stderr=subprocess.PIPE,
            text=True,
        )

    def install(self, *names: str) -> tuple[int, str]:
        process = self.start(*names)
        try:
            _, said = process.communicate(timeout=90)
        finally:
            process.kill()
        return process.returncode, said

    def said(self) -> list[RequirementsInstalled]:
        return [event for event in Run(self.paths).events() if isinstance(event, RequirementsInstalled)]

    def wanted(self) -> bool:
        prepare_install({"all": self.environment()}, self.paths)
        return (self.paths.root / "engine/install.json").exists()


def run_in(environment: VirtualEnvironment, code: str) -> str:
    done = subprocess.run([environment.python, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run whose two files are installed. headrace itself has another `iniconfig`, and finds an older `alpha`."""
    folder = tmp_path_factory.mktemp("installed")
    wheels = folder / "wheels"
    wheel(wheels, "alpha", "1.0", script=True)
    wheel(wheels, "beta", "1.0")
    wheel(wheels, "iniconfig", "99.0")
    with zipfile.ZipFile(wheel(folder / "made", "alpha", "0.1")) as archive:
        archive.extractall(folder / "of headrace")
    with pytest.MonkeyPatch.context() as patch:
        pip_without_index(patch, folder)
        patch.setenv("PYTHONPATH", str(folder / "of headrace"))
        patch.setenv(PACKAGE_ENTRY, str(folder / "of headrace"))
        case = Case(folder / "run", requirements_txt="alpha\niniconfig==99.0\n", data_txt="beta\n")
        assert case.wanted()
        assert case.install("requirements.txt", "data.txt") == (0, "")
        case.environments = {name: case.environment(name) for name in ("requirements.txt", "data.txt")}
        case.again = Case(folder / "again", requirements_txt="alpha\niniconfig==99.0\n").wanted()
    return case


def test_an_environment_has_what_is_required_and_what_headrace_has(installed: Case) -> None:
    environment = installed.environments["requirements.txt"]
    assert (
        run_in(environment, "import alpha, msgspec, sys; print(alpha.version, sys.prefix)") == f"1.0 {environment.path}"
    ), "what headrace alone finds satisfies no requirement"
    shown = subprocess.run([Path(environment.path, "bin/alpha-say")], check=True, capture_output=True, text=True)
    assert shown.stdout == "alpha 1.0\n"
    assert run_in(HEADRACES_OWN, "import importlib.util as u; print(u.find_spec('alpha'))") == "None"
    event = next(event for event in installed.said() if event.requirements == "requirements.txt")
    assert (event.environment, event.groups) == (environment.path, ("all",))
    assert not event.reused
    log = (installed.paths.root / "engine/pip.log").read_text()
    assert re.search(r"Successfully installed .*alpha-1\.0", log)


def test_what_headrace_has_is_covered_by_what_is_required_and_not_changed(installed: Case) -> None:
    environment = installed.environments["requirements.txt"]
    assert run_in(environment, "import iniconfig; print(iniconfig.version)") == "99.0"
    assert run_in(HEADRACES_OWN, "import iniconfig; print(hasattr(iniconfig, 'IniConfig'))") == "True"


@pytest.mark.promise("sagemaker-differences", "absent here: every host runs pip, every time")
def test_the_same_content_is_installed_once(tmp_path: Path, installed: Case) -> None:
    first = Case(tmp_path / "1")
    second = Case(tmp_path / "2", other_txt="alpha\n")
    assert first.environment().path == second.environment("other.txt").path
    assert not installed.again


def test_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = set()

    def one(**files: str) -> None:
        case = Case(tmp_path / str(len(paths)), **files)
        for name in ("pkg", "pkg.whl"):
            if name in files.get("requirements_txt", ""):
                wheel(case.paths.code, "pkg", f"{len(paths)}.0").rename(case.paths.code / "pkg.whl")
        before = len(paths)
        paths.add(case.environment().path)
        assert len(paths) == before + 1

    one(requirements_txt="alpha\n")
    one(requirements_txt="alpha==1\n")
    one(requirements_txt="-r more.txt\n", more_txt="alpha\n")
    one(requirements_txt="-r more.txt\n", more_txt="beta\n")
    one(requirements_txt="alpha\n-cmore.txt\n", more_txt="alpha<2\n")
    one(requirements_txt="alpha\n-cmore.txt\n", more_txt="alpha<3\n")
    one(requirements_txt="./pkg.whl\n")
    one(requirements_txt="./pkg.whl\n")
    one(requirements_txt="pkg @ ./pkg.whl\n")
    monkeypatch.setenv("PIP_INDEX_URL", "http://elsewhere")
    one(requirements_txt="alpha\n")


def test_an_editable_folder_is_the_runs_own(tmp_path: Path) -> None:
    first, second = (Case(tmp_path / name, requirements_txt="-e .\n") for name in "12")
    for case in (first, second):
        (case.paths.code / "pyproject.toml").write_text("")
    assert Path(first.environment().path).is_relative_to(first.paths.root)
    assert Path(second.environment().path).is_relative_to(second.paths.root)


def test_groups_have_their_own(tmp_path: Path, installed: Case) -> None:
    case = Case(tmp_path / "run", requirements_txt="alpha\n", data_txt="beta\n")
    (case.paths.code / "train.py").write_text("")
    groups = [
        {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": 1, **more}
        for name, more in {"a": {}, "b": {"requirements": "data.txt"}, "c": {}}.items()
    ]
    job = Job("job", source_dir=str(case.paths.code), entry_point="train.py", instance_groups=groups)
    planned = plan_environments(job, case.paths)
    assert [planned[name].groups for name in "abc"] == [("a", "c"), ("b",), ("a", "c")]
    data = installed.environments["data.txt"]
    assert run_in(data, "import beta; print(beta.version)") == "1.0"
    assert run_in(data, "import importlib.util as u; print(u.find_spec('alpha'))") == "None"


@pytest.mark.promise("packages", "pip has the job's variables before the caller's")
def test_pip_has_the_jobs_variables_before_the_callers_and_they_count(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "alpha", "1.0")
    wheel(tmp_path / "of the job", "alpha", "2.0")
    case = Case(tmp_path / "run", requirements_txt="--find-links ${WHERE}\nalpha\n")
    options = {"source_dir": str(case.paths.code), "entry_point": "train.py", "instance_count": 1}
    paths = set()
    for where, pip in (("of the job", {"PIP_FIND_LINKS": ""}), ("wheels", {"PIP_FIND_LINKS": ""}), ("wheels", {})):
        environment = {"WHERE": (tmp_path / where).as_uri(), **pip}
        job = Job("job", instance_type="ml.m5.large", environment=environment, **options)
        (made,) = plan_environments(job, case.paths).values()
        paths.add(made.path)
        if not paths - {made.path}:
            prepare_install({"all": made}, case.paths)
            helper = [sys.executable, "-m", "headrace.hosting.helpers.install", str(case.paths.root)]
            subprocess.run(helper, check=True, cwd=case.paths.root, timeout=90)
            assert run_in(made, "import alpha; print(alpha.version)") == "2.0"
    assert len(paths) == 3


def test_an_index_of_codeartifact_is_refused_unless_the_job_names_pip_s_own_too(tmp_path: Path) -> None:
    case = Case(tmp_path / "run")
    repository = {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:us-west-2:123456789012:repository/domain/packages"}
    with pytest.raises(UsageError, match=r"CA_REPOSITORY_ARN is arn:.*requirements.txt is not installed from") as error:
        environment_of("requirements.txt", case.paths, ("all",), variables=repository)
    assert "PIP_INDEX_URL" in error.value.hint
    index = {
        "PIP_INDEX_URL": "https://aws:token@domain-123456789012.d.codeartifact.us-west-2.amazonaws.com/pypi/p/simple/"
    }
    assert environment_of("requirements.txt", case.paths, ("all",), variables=repository | index).path


def test_a_file_that_is_included_and_is_not_there_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path / "run", requirements_txt="-r nothing.txt\n")
    with pytest.raises(UsageError, match=r"nothing\.txt cannot be read: No such file"):
        case.environment()


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    Case(tmp_path / "run", requirements_txt="-r other.txt\n", other_txt="-r requirements.txt\n").environment()


# --- faults ----------------------------------------------------------------------------------------------------------


def environments_of(home: Path) -> list[str]:
    """What a user sees in the folder of environments, and what is being made."""
    folder = home / "environments"
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")] + [
        path.name for path in (folder / ".made").iterdir()
    ]


def test_a_package_that_is_not_there_is_an_error_with_the_words_of_pip(tmp_path: Path, home: Path) -> None:
    case = Case(tmp_path / "run", requirements_txt="no-such-package-at-all==3\n")
    code, said = case.install()
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("error: InstallRequirementsError: requirements.txt: pip ended with code 1: ERROR: ")
    assert "no-such-package-at-all==3" in last
    assert str(case.paths.root / "engine/pip.log") in last
    assert said.count("ERROR: No matching distribution") == 2
    assert environments_of(home) == []
    assert case.said() == []


def test_what_an_installation_for_one_run_alone_has_left_goes_with_the_run(tmp_path: Path, home: Path) -> None:
    case = Case(tmp_path / "run")
    begun = case.paths.root / "environments" / ".made" / "0123abcd-1"
    (begun / ".tmp").mkdir(parents=True)
    remove_leftovers(case.paths)
    assert not begun.exists()


def test_two_jobs_at_once_install_once(tmp_path: Path, home: Path) -> None:
    wheel(tmp_path / "wheels", "alpha")
    cases = [Case(tmp_path / name) for name in "12"]
    processes = [case.start() for case in cases]
    for process in processes:
        assert process.communicate(timeout=90)[1] == ""
        assert process.returncode == 0
    assert sorted(case.said()[0].reused for case in cases) == [False, True]
    assert len(environments_of(home)) == 2  # one, and its name


def test_an_installation_that_another_process_does_not_end_is_waited_for_so_long_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "INSTALL_SECONDS", 0.2)
    held = hold(tmp_path / ".digest.lock")
    assert held is not None
    try:
        os.write(held, b"4711")
        with pytest.raises(requirements.InstallRequirementsError, match=r"waited 0\.2 s for the process 4711,"):
            requirements.make(tmp_path / "digest", tmp_path / "r.txt", tmp_path, io.BytesIO())
        (tmp_path / requirements.MADE / "digest-abc").mkdir()
        requirements.sweep(tmp_path)
        assert (tmp_path / requirements.MADE / "digest-abc").exists(), "it is being made"
    finally:
        os.close(held)
    requirements.sweep(tmp_path)
    assert not (tmp_path / requirements.MADE / "digest-abc").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, *([signal.SIGTERM] if SOAK else [])])
def test_an_installation_that_is_killed_is_never_seen_and_the_next_one_makes_it(
    tmp_path: Path, home: Path, number: int
) -> None:
    case = Case(tmp_path / "run", requirements_txt="./slow\n")
    begun = slow_package(case.paths.code, tmp_path)
    process = case.start()
    until(begun.exists, 60, "the build")
    assert not requirements.is_made(Path(case.environment().path))
    process.send_signal(number)
    said = process.communicate(timeout=20)[1]
    assert process.returncode != 0
    if number == signal.SIGTERM:
        assert said.splitlines()[-1] == "error: InstallRequirementsError: stopped"
        assert environments_of(home) == []
    for pid in running(str(home)):  # what the supervisor does with what a killed process leaves; pip itself is tied
        os.kill(pid, signal.SIGKILL)
    until(lambda: not running(str(home)), 20, "the end of all")
    wheel(tmp_path / "wheels", "alpha")
    other = Case(tmp_path / "other")
    assert other.install()[0] == 0
    assert (
        sorted(re.sub("-.*", "", name) for name in environments_of(home)) == [Path(other.environment().path).name] * 2
    )


def slow_package(code: Path, folder: Path) -> Path:
    """Makes a package whose build hangs: in a FIFO that nobody writes to. Returns the file that it makes before."""
    slow, gate, begun = code / "slow", folder / "gate", folder / "begun"
    slow.mkdir()
    os.mkfifo(gate)
    (slow / "setup.py").write_text(
        f"open({str(begun)!r}, 'w').close()\nopen({str(gate)!r}).read()\n"
        "from setuptools import setup\nsetup(name='slow', version='1', py_modules=[])\n"
    )
    backend = "[build-system]\nrequires = []\nbuild-backend = 'setuptools.build_meta:__legacy__'\n"
    (slow / "pyproject.toml").write_text(backend)
    return begun


@pytest.mark.promise("running", "a stop while requirements are installed leaves nothing")
@pytest.mark.parametrize("now", [True, *([False] if SOAK else [])])
def test_a_stop_while_requirements_are_installed_leaves_no_file_of_pip(
    stage, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = Path(stage.folder) / "code"
    code.mkdir(exist_ok=True)
    begun = slow_package(code, tmp_path)
    (code / "requirements.txt").write_text("./slow\n")
    handle = stage.start("")
    until(begun.exists, 60, "the build")
    assert list(home.glob("environments/.made/*/.tmp/pip-*"))
    handle.stop(now)
    assert handle.wait(30) is Status.STOPPED
    assert environments_of(home) == []
    assert list(temporary.iterdir()) == []
    stage.assert_nothing_left(handle)


DATA = """
import numpy
from headrace import feed

class Numbers:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        import alpha
        return numpy.int64(index + int(float(alpha.version)))

@feed.pipeline
def numbers():
    return Numbers()
"""


def test_programs_and_data_workers_of_a_job_have_what_is_required(stage, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "alpha")
    code = Path(stage.folder) / "code"
    code.mkdir(exist_ok=True)
    (code / "data.py").write_text(DATA)
    (code / "requirements.txt").write_text("alpha\n")
    handle = stage.start(
        "from data import numbers\nfrom headrace import feed\nimport alpha\n"
        "loader = feed.DataLoader(numbers(), batch_size=4, collate_fn=feed.stack_arrays)\n"
        "print('seen', [int(each) for batch in loader for each in batch], flush=True)",
        instance_groups=groups(dnn=1, data=1),
        data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
        completion={"instance_groups": ["dnn"]},
        environment=WITHOUT_TORCH,
    )
    assert handle.wait(90) is Status.COMPLETED, text(handle)
    assert "seen [1, 2, 3, 4, 5, 6, 7, 8]" in text(handle)
    stage.assert_nothing_left(handle)


def running(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in command:
            found.append(int(path.parent.name))
    return found
